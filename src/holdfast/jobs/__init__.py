# SPDX-License-Identifier: Apache-2.0
"""Durable jobs for leases, repair and recovery: job kinds, job runner, claim loop."""
