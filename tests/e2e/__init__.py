# SPDX-License-Identifier: Apache-2.0
"""Whole programs, as an operator runs them: real processes, databases, broker and clients."""
