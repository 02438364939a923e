# SPDX-License-Identifier: Apache-2.0
"""Drivers of the cloud ports, one package each, found by entry point `holdfast.cloud`."""
