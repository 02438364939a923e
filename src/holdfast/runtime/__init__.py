# SPDX-License-Identifier: Apache-2.0
"""Process utilities: clock, threads, YAML documents, printable text."""
