# SPDX-License-Identifier: Apache-2.0
"""The documentation: generated pages, links and examples."""
