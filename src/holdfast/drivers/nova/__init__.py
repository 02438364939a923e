# SPDX-License-Identifier: Apache-2.0
"""The OpenStack cloud driver: every cloud port on Nova, Placement, Glance, Neutron and Cinder.

    [cloud]
    driver = nova
    [openstack]
    auth_type = password
    …

Needs Nova 2.79 (Train) or newer. Imported only when used: openstacksdk is large.
"""

from holdfast.drivers.nova.cloud import NovaCloud, connect

__all__ = ["NovaCloud", "connect"]
