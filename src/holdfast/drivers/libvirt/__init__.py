# SPDX-License-Identifier: Apache-2.0
"""The libvirt cloud driver: a few KVM hosts with shared disks, without OpenStack.

    [cloud]
    driver = libvirt
    [libvirt]
    hosts = kvm-1:qemu+ssh://root@kvm-1/system, kvm-2:qemu+ssh://root@kvm-2/system
    shared = /srv/guests

The driver lists, starts and stops guests, and starts the guests of a dead host elsewhere, as
recovery needs. It has no pools, flavors, slots or addresses, so nothing can be reserved. The
module is imported only when used: libvirt-python is an extra, `pip install holdfast[libvirt]`.
"""

from typing import Any

from holdfast.ports.cloud import Cloud
from holdfast.runtime.clock import Clock


def connect(conf: Any, clock: Clock) -> Cloud:
    """The entry point `libvirt` of `holdfast.cloud`."""
    from holdfast.drivers.libvirt.connection import running
    from holdfast.drivers.libvirt.settings import load

    settings = load(conf)
    running()  # raises DriverError if libvirt-python is missing
    from holdfast.drivers.libvirt.cloud import LibvirtCloud

    return LibvirtCloud(settings, clock)
