# SPDX-License-Identifier: Apache-2.0
"""The store on SQLite, PostgreSQL and MariaDB: the same tests on all three."""
