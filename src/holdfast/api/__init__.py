# SPDX-License-Identifier: Apache-2.0
"""REST API: route table (`routes`), middleware in a fixed order (`app`), a folder per contract."""
