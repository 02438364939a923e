# SPDX-License-Identifier: Apache-2.0
"""The monitors included in Holdfast, a module each."""
