# SPDX-License-Identifier: Apache-2.0
"""The Holdfast API, version 1 (/holdfast/v1): a module per resource."""
