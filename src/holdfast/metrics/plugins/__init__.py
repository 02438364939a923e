# SPDX-License-Identifier: Apache-2.0
"""Metric plugins shipped with Holdfast; docs/metric-plugins.md describes how to write others."""
