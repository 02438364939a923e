# SPDX-License-Identifier: Apache-2.0
"""Durable work, built once for leases, repair and recovery: kinds, runner, loop."""
