# SPDX-License-Identifier: Apache-2.0
"""The host monitor: network membership, host health and the HA matrix."""
