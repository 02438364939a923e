# SPDX-License-Identifier: Apache-2.0
"""Ports: the Protocols between the core and the cloud, the database, guests and devices."""
