# SPDX-License-Identifier: Apache-2.0
"""Numbers of a host and its guests: from the kernel every second, from libvirt now and then."""
