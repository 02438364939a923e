# SPDX-License-Identifier: Apache-2.0
"""Where the numbers of a host go if its operator says so: UDP in three formats, a page for
Prometheus, the log."""
