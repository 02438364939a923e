# SPDX-License-Identifier: Apache-2.0
"""Scripts that print figures. `make bench` runs them one after the other."""
