# SPDX-License-Identifier: Apache-2.0
"""The programs: one file each, and the operator commands of `holdfast`."""
