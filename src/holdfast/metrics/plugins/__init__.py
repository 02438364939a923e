# SPDX-License-Identifier: Apache-2.0
"""Metric plugins shipped with Holdfast; docs/reference/metric-plugins.md says how to write one."""
