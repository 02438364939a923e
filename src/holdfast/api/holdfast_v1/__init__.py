# SPDX-License-Identifier: Apache-2.0
"""Our own API, version 1: one file per noun; `openapi` draws the document from the route table."""
