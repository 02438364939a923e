# SPDX-License-Identifier: Apache-2.0
"""Alarms of what is measured on one host; docs/alarms.md says what they can do, `engine` is the
door."""
