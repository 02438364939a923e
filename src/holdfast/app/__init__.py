# SPDX-License-Identifier: Apache-2.0
"""Composition roots: one module per process, the only modules that know every part."""
