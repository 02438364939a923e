# SPDX-License-Identifier: Apache-2.0
"""Leases: booking, placement, lifecycle jobs, host pools, and repair after host failures."""
