# SPDX-License-Identifier: Apache-2.0
"""Rules of a site over leases, one file each; chosen by `[enforcement] enabled_filters`."""
