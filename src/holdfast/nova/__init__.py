# SPDX-License-Identifier: Apache-2.0
"""What Nova itself loads: the scheduler filter, nova-api's filter, nova-compute's monitor. Stands
alone: nothing else of Holdfast is imported.

These modules run in Nova's process, on Nova's Python (3.9 and later), with Nova's packages.
"""
