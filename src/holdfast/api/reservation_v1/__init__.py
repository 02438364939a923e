# SPDX-License-Identifier: Apache-2.0
"""The reservation contract, version 1 (Blazar's): one file per noun."""
