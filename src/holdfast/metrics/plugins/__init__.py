# SPDX-License-Identifier: Apache-2.0
"""Metric plugins that are shipped, one file each; others: docs/metric-plugins.md."""
