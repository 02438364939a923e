# SPDX-License-Identifier: Apache-2.0
"""What is made of a host's numbers: rates, snapshots, and the dicts that plugins get."""
