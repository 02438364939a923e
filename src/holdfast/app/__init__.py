# SPDX-License-Identifier: Apache-2.0
"""Composition roots: a module per process that builds and connects all parts of the process."""
