# SPDX-License-Identifier: Apache-2.0
"""The libvirt side of the Hosts port: those of the configuration, as large as they last said."""

import json
import sqlite3
import uuid
from collections.abc import Collection, Sequence
from dataclasses import replace

from holdfast.drivers.cloud.libvirt.looks import Looks
from holdfast.drivers.cloud.libvirt.settings import Host
from holdfast.model.errors import NotFound
from holdfast.model.host import Inventory, same
from holdfast.ports.cloud import CloudHost


class LibvirtHosts:
    def __init__(self, looks: Looks) -> None:
        self._looks = looks

    def list(self) -> Sequence[CloudHost]:
        answering = self._looks.reached()
        with self._looks.book.file.transaction() as db:
            rows = {row["name"]: row for row in db.execute("SELECT * FROM hosts")}
        known = self._looks.settings.hosts
        return [_host(one, rows[one.name], answering) for one in known]

    def find(self, name: str) -> CloudHost:
        for one in self.list():
            if one.uuid == name or same(one.service_host, name):
                ratio = self._looks.settings.ram_ratio
                return replace(
                    one,
                    inventories={
                        "VCPU": Inventory(one.vcpus, most=one.vcpus),
                        "MEMORY_MB": Inventory(one.memory_mb, ratio=ratio, most=one.memory_mb),
                    },
                )
        raise NotFound(f"there is no host {name} in [libvirt] hosts")


def _host(one: Host, row: sqlite3.Row, answering: Collection[str]) -> CloudHost:
    size = json.loads(row["size"])
    up = one.name in answering and not row["forced_down"]
    return CloudHost(
        uuid=str(uuid.uuid5(uuid.NAMESPACE_DNS, one.name)),
        hypervisor_hostname=one.name,
        service_host=one.name,
        zone=one.zone,
        rack=one.rack,
        state="up" if up else "down",
        **size,
    )
