# SPDX-License-Identifier: Apache-2.0
"""Reservations: plan picks (pure), leases books, due starts and ends on time, hosts enrols."""
