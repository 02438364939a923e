# SPDX-License-Identifier: Apache-2.0
"""The resource types we ship, one file each."""
