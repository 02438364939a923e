# SPDX-License-Identifier: Apache-2.0
"""The agent of a compute host: guest state, filters, hangs, services, outbox and admin socket."""
