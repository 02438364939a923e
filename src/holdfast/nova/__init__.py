# SPDX-License-Identifier: Apache-2.0
"""Nova plugins: scheduler filter, nova-api pipeline filter, and nova-compute monitor.

These modules run in Nova's processes, on Nova's Python (3.9 and later), with Nova's packages. They
import nothing else of Holdfast.
"""
