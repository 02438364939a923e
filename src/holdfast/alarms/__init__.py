# SPDX-License-Identifier: Apache-2.0
"""Alarms on the metrics of a host: rules, engine, notifications; see docs/concepts/alarms.md."""
