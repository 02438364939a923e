# SPDX-License-Identifier: Apache-2.0
"""Entry points: a module per program."""
