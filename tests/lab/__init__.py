# SPDX-License-Identifier: Apache-2.0
"""Tests on a real OpenStack: the one that `make lab` brings up."""
