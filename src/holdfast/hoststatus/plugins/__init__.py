# SPDX-License-Identifier: Apache-2.0
"""The monitors that come with Holdfast, one file each."""
