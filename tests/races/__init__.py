# SPDX-License-Identifier: Apache-2.0
"""Many at once, and managers killed in the middle: what must hold all the same."""
