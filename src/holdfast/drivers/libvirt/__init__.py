# SPDX-License-Identifier: Apache-2.0
"""Plain libvirt as a cloud: a handful of KVM machines with shared disks, and no OpenStack.

    [cloud]
    driver = libvirt
    [libvirt]
    hosts = kvm-1:qemu+ssh://root@kvm-1/system, kvm-2:qemu+ssh://root@kvm-2/system
    shared = /srv/guests

It lists, starts and stops guests, and starts those of a dead host elsewhere: what recovery needs.
There are no pools, flavors, slots or addresses, so nothing can be reserved. Imported only when it
is used: libvirt-python is an extra, `pip install holdfast[libvirt]`.
"""

from typing import Any

from holdfast.ports.cloud import Cloud
from holdfast.runtime.clock import Clock


def connect(conf: Any, clock: Clock) -> Cloud:
    """The entry point `libvirt` of `holdfast.cloud`."""
    from holdfast.drivers.libvirt.connection import running
    from holdfast.drivers.libvirt.settings import load

    settings = load(conf)
    running()  # which says so where libvirt-python is not installed
    from holdfast.drivers.libvirt.cloud import LibvirtCloud

    return LibvirtCloud(settings, clock)
