# SPDX-License-Identifier: Apache-2.0
"""The libvirt cloud driver: `LibvirtCloud` with all ports, and the Hosts and Services ports."""

import functools
import json
import logging
import sqlite3
import uuid
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from holdfast.drivers.libvirt import tasks
from holdfast.drivers.libvirt.host_connection import Silent
from holdfast.drivers.libvirt.registry import EVACUATION, File, GuestRegistry, HostPoller
from holdfast.drivers.libvirt.servers import (
    LibvirtMoves,
    LibvirtServers,
    NoAddresses,
    NoFlavors,
    NoPools,
    NoSlots,
    NoVolumes,
    Rooms,
)
from holdfast.drivers.libvirt.settings import Host, Settings
from holdfast.drivers.libvirt.tasks import DomainTasks
from holdfast.model.errors import Conflict, NotFound
from holdfast.model.host import Inventory, same
from holdfast.ports import cloud as ports
from holdfast.ports.cloud import CloudHost, Service
from holdfast.runtime.clock import Clock


class LibvirtHosts:
    """The Hosts port: the configured hosts, with the size that each host last reported."""

    def __init__(self, poller: HostPoller) -> None:
        self._poller = poller

    def list(self) -> Sequence[CloudHost]:
        answering = self._poller.reached()
        with self._poller.registry.file.transaction() as db:
            rows = {row["name"]: row for row in db.execute("SELECT * FROM hosts")}
        hosts = self._poller.settings.hosts
        return [_host(host, rows[host.name], answering) for host in hosts]

    def find(self, name: str) -> CloudHost:
        for cloud_host in self.list():
            if cloud_host.uuid == name or same(cloud_host.service_host, name):
                ratio = self._poller.settings.ram_ratio
                return replace(
                    cloud_host,
                    inventories={
                        "VCPU": Inventory(cloud_host.vcpus, most=cloud_host.vcpus),
                        "MEMORY_MB": Inventory(
                            cloud_host.memory_mb, ratio=ratio, most=cloud_host.memory_mb
                        ),
                    },
                )
        raise NotFound(f"there is no host {name} in [libvirt] hosts")


def _host(host: Host, row: sqlite3.Row, answering: Collection[str]) -> CloudHost:
    size = json.loads(row["size"])
    up = host.name in answering and not row["forced_down"]
    return CloudHost(
        uuid=str(uuid.uuid5(uuid.NAMESPACE_DNS, host.name)),
        hypervisor_hostname=host.name,
        service_host=host.name,
        zone=host.zone,
        rack=host.rack,
        state="up" if up else "down",
        **size,
    )


LOG = logging.getLogger(__name__)
#: Migrations that may have left a copy of the guest on a host: completed from it, or failed to
#: it.
_COPIES = "((m.source = ? AND m.status = 'done') OR (m.dest = ? AND m.status = 'failed'))"


class LibvirtServices:
    """The Services port: whether each host answers, and its `enabled` and `forced_down` marks.

    libvirt has no disabled hosts. The marks are in the state file and this driver obeys them: it
    sends no guest to a host that is disabled or forced down. `list` polls all hosts, so the guest
    registry is never older than the last time a monitor listed the services.
    """

    def __init__(self, poller: HostPoller) -> None:
        self._poller = poller
        self._registry: GuestRegistry = poller.registry

    def list(self) -> Sequence[Service]:
        answering = self._poller.all()
        with self._registry.file.transaction() as db:
            rows = db.execute("SELECT * FROM hosts ORDER BY name").fetchall()
        return [_service(row, answering) for row in rows if row["name"] in self._poller.connections]

    def disable(self, host: str, reason: str) -> None:
        self._mark(
            host,
            "enabled = 0, disabled_reason = ?1",
            "enabled OR disabled_reason != ?1",
            reason,
        )

    def enable(self, host: str) -> None:
        self._mark(host, "enabled = 1, disabled_reason = ?1", "NOT enabled", "")

    def force_down(self, host: str) -> None:
        self._mark(host, "forced_down = 1", "NOT forced_down")

    def unforce(self, host: str) -> None:
        """Clear the forced-down mark, after removing copies of guests that were moved away.

        The driver stops a copy that runs on this host while the guest runs elsewhere too.
        """
        name = self._poller.name(host)
        with self._registry.file.transaction() as db:
            marks = db.execute("SELECT * FROM hosts WHERE name = ?", (name,)).fetchone()
            coming = db.execute(
                "SELECT 1 FROM migrations WHERE source = ? AND status = 'running'", (name,)
            ).fetchone()
            left = db.execute(
                "SELECT DISTINCT m.server_id, g.host FROM migrations m"
                " LEFT JOIN guests g ON g.uuid = m.server_id"
                f" WHERE m.type = ? AND NOT m.cleared AND {_COPIES}",
                (EVACUATION, name, name),
            ).fetchall()
        if not marks["forced_down"]:
            return
        if coming:
            raise Conflict(f"host {name}: guests are leaving it still")
        self._clear(name, [row["server_id"] for row in left if row["host"] != name])
        with self._registry.file.transaction() as db:
            db.execute(f"UPDATE migrations AS m SET cleared = 1 WHERE {_COPIES}", (name, name))
        self._mark(name, "forced_down = 0", "forced_down")
        self._poller.host(name)

    def _clear(self, host: str, moved: Sequence[str]) -> None:
        if not moved:
            return
        try:
            run = self._poller.call(host, "undefine", functools.partial(_forget, moved=moved))
            for server_id in run:
                self._stop_copy(host, server_id)
        except Silent as silent:
            raise Conflict(
                f"host {host}: {len(moved)} guests were moved away from it, and it does not answer:"
                f" restart it first ({silent.message})"
            ) from silent

    def _stop_copy(self, host: str, server_id: str) -> None:
        """Stop a guest that runs on its old host although it was moved.

        Raises Conflict if the guest runs only here.
        """
        if not any(on for name, on in self._poller.running(server_id).items() if name != host):
            raise Conflict(
                f"host {host}: guest {server_id} was moved away and runs there, and nowhere else:"
                " stop the one that is not wanted, or restart the host first"
            )
        LOG.error("guest %s ran on %s too, from where it was moved away: stopped", server_id, host)
        self._poller.call(host, "stop", functools.partial(tasks.stop_domain, server_id=server_id))
        self._poller.call(
            host, "undefine", functools.partial(tasks.undefine_domain, server_id=server_id)
        )

    def _mark(self, host: str, mark: str, unless: str, text: str | None = None) -> None:
        """Update the host's row unless the mark is already set."""
        with self._registry.file.transaction() as db:
            db.execute(
                f"UPDATE hosts SET {mark}, changed_at = ?2 WHERE name = ?3 AND ({unless})",
                (text, self._registry.now(), self._poller.name(host)),
            )


def _forget(conn: Any, moved: Sequence[str]) -> list[str]:
    """Undefine the moved guests; return the ids of guests that run and stay defined."""
    return [server_id for server_id in moved if tasks.undefine_domain(conn, server_id)]


def _service(row: sqlite3.Row, answering: Any) -> Service:
    last = max(row["seen_at"] or 0.0, row["changed_at"] or 0.0)
    up = row["name"] in answering and not row["forced_down"]
    return Service(
        host=row["name"],
        state="up" if up else "down",
        enabled=bool(row["enabled"]),
        disabled_reason=row["disabled_reason"],
        forced_down=bool(row["forced_down"]),
        updated_at=datetime.fromtimestamp(last, UTC) if last else None,
    )


class LibvirtCloud:
    """A `Cloud` on the libvirt daemons of a few hosts.

    Safe from many threads, and from several processes of one machine. The driver contacts no host
    before the first call.
    """

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.call_timeout_s = settings.call_timeout_s
        self._file = File(settings.state)
        names = [host.name for host in settings.hosts]
        self._poller = HostPoller(settings, GuestRegistry(self._file, clock, names))
        domain_tasks, rooms = DomainTasks(self._poller), Rooms(self._poller)
        servers = LibvirtServers(domain_tasks, rooms)
        self.hosts: ports.Hosts = LibvirtHosts(self._poller)
        self.servers: ports.Servers = servers
        self.moves: ports.Moves = LibvirtMoves(domain_tasks, servers, rooms)
        self.services: ports.Services = LibvirtServices(self._poller)
        self.pools: ports.Pools = NoPools()
        self.flavors: ports.Flavors = NoFlavors()
        self.slots: ports.Slots = NoSlots()
        self.addresses: ports.Addresses = NoAddresses()
        self.volumes: ports.Volumes = NoVolumes()

    def close(self) -> None:
        """Close connections and the state file; running tasks go on in the hosts.

        The next manager finds out how they ended.
        """
        self._poller.close()
        self._file.close()
