# SPDX-License-Identifier: Apache-2.0
"""OpenStack as a cloud: every cloud port on Nova, Placement, Glance and their neighbours.

    [cloud]
    driver = nova
    [openstack]
    auth_type = password
    …

Needs Nova 2.79 (Train) or newer. Imported only when it is used: openstacksdk is large.
"""

from holdfast.drivers.nova.cloud import NovaCloud, connect

__all__ = ["NovaCloud", "connect"]
