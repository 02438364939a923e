# SPDX-License-Identifier: Apache-2.0
"""Watching: monitors hear and look, their sightings become standings of hosts."""
