# SPDX-License-Identifier: Apache-2.0
"""Metrics of a host: collector, rates, history, plugins and metric sinks."""
