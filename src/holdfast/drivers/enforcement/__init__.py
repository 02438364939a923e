# SPDX-License-Identifier: Apache-2.0
"""Filters over leases that ask somebody outside."""
