# SPDX-License-Identifier: Apache-2.0
"""REST: one route table (`routes`), a fixed order of middleware (`app`), a folder per contract."""
