# SPDX-License-Identifier: Apache-2.0
"""The Servers and Moves ports of plain libvirt, and the ports that plain libvirt cannot offer.

`stop` switches a guest off at once. A shelved guest is off and on no host; its definition stays on
its old host until it runs elsewhere. The driver deletes, saves and images no guest: recovery needs
none of it, and nothing else could bring back a guest of this cloud.
"""

import contextlib
import json
import sqlite3
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NoReturn

from holdfast.drivers.libvirt import domain_xml, tasks
from holdfast.drivers.libvirt.host_connection import failed
from holdfast.drivers.libvirt.registry import EVACUATION, SHELVED, GuestRecord
from holdfast.drivers.libvirt.tasks import DomainTasks
from holdfast.model.errors import Conflict, NotFound
from holdfast.ports.cloud import (
    Address,
    Flavor,
    Inventory,
    Migration,
    Pool,
    Server,
    ServerGroup,
    Subnet,
    Volume,
)

if TYPE_CHECKING:
    from holdfast.drivers.libvirt.registry import HostPoller


@dataclass(frozen=True)
class Room:
    """The free memory of a host."""

    host: str
    free_mb: float


def best(rooms: Sequence[Room], needs_mb: int, tried: Mapping[str, int]) -> str | None:
    """Return the host with the most free memory that fits.

    Hosts where the start failed come last.
    """
    fit = [room for room in rooms if room.free_mb >= needs_mb]
    if not fit:
        return None
    return min(fit, key=lambda room: (tried.get(room.host, 0), -room.free_mb, room.host)).host


class Rooms:
    """Chooses a destination: a host that answers, is enabled and has the most free memory."""

    def __init__(self, poller: "HostPoller") -> None:
        self._poller = poller
        self._turn = threading.Lock()

    @contextlib.contextmanager
    def choosing(self) -> Iterator[None]:
        """Serialise choices, so that each choice counts guests already on their way."""
        with self._turn:
            yield

    def choose(
        self,
        guest: GuestRecord,
        host: str | None,
        answering: Collection[str],
        unwanted: str | None = None,
    ) -> str | None:
        """Return the named host, or the best host; None if no host has room.

        Raises NotFound if the named host does not exist. `unwanted`, the host that the guest comes
        from, is the last choice.
        """
        named = self._poller.name(host) if host is not None else None
        rooms = [
            room
            for room in self._open(guest)
            if room.host in answering and named in (None, room.host) and room.host != guest.host
        ]
        tried = self._tried(guest)
        if unwanted is not None:
            tried[unwanted] = tried.get(unwanted, 0) + 1000
        return best(rooms, domain_xml.read_cloud_facts(guest.xml).memory_mb, tried)

    def _open(self, guest: GuestRecord) -> list[Room]:
        """Return enabled hosts with the memory left after all guests on their way have arrived."""
        registry, ratio = self._poller.registry, self._poller.settings.ram_ratio
        used: dict[str, int] = {}
        for other in registry.all():
            place = other.dest if other.task and other.dest else other.host
            runs = other.status != "SHUTOFF" or other.task
            if place is not None and runs and other.uuid != guest.uuid:
                used[place] = used.get(place, 0) + domain_xml.read_cloud_facts(other.xml).memory_mb
        with registry.file.transaction() as db:
            rows = db.execute("SELECT * FROM hosts WHERE enabled AND NOT forced_down").fetchall()
        return [
            Room(
                row["name"],
                json.loads(row["size"]).get("memory_mb", 0) * ratio - used.get(row["name"], 0),
            )
            for row in rows
            if row["name"] in self._poller.connections
        ]

    def _tried(self, guest: GuestRecord) -> dict[str, int]:
        with self._poller.registry.file.transaction() as db:
            rows = db.execute(
                "SELECT dest, count(*) AS times FROM migrations WHERE server_id = ?"
                " AND status = 'failed' AND dest IS NOT NULL GROUP BY dest",
                (guest.uuid,),
            ).fetchall()
        return {row["dest"]: row["times"] for row in rows}


# Ports that plain libvirt does not offer. Lists are empty, because recovery and periodic jobs
# read them; every change fails with an error that is not retryable.


def refused(limit: str) -> NoReturn:
    raise failed(f"plain libvirt {limit}", retryable=False)


def _nothing_to_reserve() -> NoReturn:
    refused("has no pools, flavors, slots or addresses, so nothing can be reserved on it")


class NoPools:
    def list(self) -> Sequence[Pool]:
        return []

    def find(self, name: str) -> Pool | None:
        return None

    def create(self, name: str, metadata: Mapping[str, str]) -> Pool:
        _nothing_to_reserve()

    def set_metadata(self, pool_id: str, metadata: Mapping[str, str]) -> None:
        _nothing_to_reserve()

    def resync(self, pool_id: str) -> None:
        _nothing_to_reserve()

    def add_host(self, pool_id: str, host: str) -> None:
        _nothing_to_reserve()

    def remove_host(self, pool_id: str, host: str) -> None:
        """Do nothing: the host is in no pool."""

    def rename(self, pool_id: str, name: str) -> None:
        _nothing_to_reserve()

    def delete(self, pool_id: str) -> None:
        """Do nothing: the pool does not exist."""


class NoFlavors:
    def list(self) -> Sequence[Flavor]:
        return []

    def show(self, flavor_id: str) -> Flavor:
        raise NotFound(f"there is no flavor {flavor_id}: plain libvirt has none")

    def create(self, flavor: Flavor) -> None:
        _nothing_to_reserve()

    def delete(self, flavor_id: str) -> None:
        """Do nothing: the flavor does not exist."""

    def add_access(self, flavor_id: str, project_id: str) -> None:
        _nothing_to_reserve()

    def remove_access(self, flavor_id: str, project_id: str) -> None:
        """Do nothing: no project has access."""


class NoSlots:
    def inventory(self, host: str, resource_class: str) -> Inventory:
        _nothing_to_reserve()

    def set_inventory(
        self, host: str, resource_class: str, total: int, generation: int
    ) -> Inventory:
        _nothing_to_reserve()

    def drop_class(self, resource_class: str) -> None:
        """Do nothing: the resource class does not exist."""

    def create_group(self, name: str, policy: str, project_id: str) -> ServerGroup:
        _nothing_to_reserve()

    def check_role(self, project_id: str) -> None:
        _nothing_to_reserve()

    def without_role(self) -> Sequence[str]:
        return []

    def groups(self) -> Sequence[ServerGroup]:
        return []

    def delete_group(self, group_id: str) -> None:
        """Do nothing: the server group does not exist."""


class NoAddresses:
    def list(self) -> Sequence[Address]:
        return []

    def create(
        self, network_id: str, address: str, project_id: str, tags: Sequence[str]
    ) -> Address:
        _nothing_to_reserve()

    def delete(self, address_id: str) -> None:
        """Do nothing: the address does not exist."""

    def subnets(self, network_id: str) -> Sequence[Subnet]:
        raise NotFound(f"there is no network {network_id}: plain libvirt has no floating addresses")


class NoVolumes:
    def list(self, *, server_id: str | None = None) -> Sequence[Volume]:
        return []


_HERE = frozenset({"ACTIVE", "SHUTOFF", "SUSPENDED", "PAUSED", "ERROR"})


class LibvirtServers:
    """The Servers port: libvirt domains; see the module docstring."""

    def __init__(self, domain_tasks: DomainTasks, rooms: Rooms) -> None:
        self._tasks = domain_tasks
        self._poller = domain_tasks.poller
        self._registry = domain_tasks.registry
        self._rooms = rooms

    def list(
        self, *, host: str | None = None, project_id: str | None = None, placed: bool = True
    ) -> Sequence[Server]:
        self._tasks.settle()
        name = self._poller.name(host) if host is not None else None
        if name is None:
            self._poller.all()
        else:
            self._poller.host(name)
        guests = [guest for guest in self._registry.all() if name in (None, _place(guest))]
        servers = [guest.server() for guest in guests]
        if host is not None and not placed:
            servers = [server for server in servers if server.host is not None]
        return [server for server in servers if project_id in (None, server.project_id)]

    def show(self, server_id: str) -> Server:
        guest, live = self._poll_guest(server_id)
        return replace(guest.server(), live=live)

    def delete(self, server_id: str) -> None:
        try:
            self._registry.find(server_id)
        except NotFound:
            return
        refused("deletes no guests: virsh undefine")

    def stop(self, server_id: str) -> None:
        guest = self._ready(server_id, "stop", _HERE - {"SHUTOFF"})
        host = _host(guest)

        def act(doing: GuestRecord) -> None:
            self._tasks.call(doing, host, "stop", tasks.stop_domain)
            self._registry.end(doing, status="SHUTOFF")

        self._tasks.do(guest, "powering-off", act, runs=False)

    def start(self, server_id: str) -> None:
        guest = self._ready(server_id, "start", frozenset({"SHUTOFF", "SUSPENDED"}))
        host = _host(guest)

        def act(doing: GuestRecord) -> None:
            self._tasks.runs_nowhere(doing)
            self._tasks.call(doing, host, "start", tasks.start_domain)
            self._registry.end(doing, status="ACTIVE")

        self._tasks.do(guest, "powering-on", act, runs=True)

    def suspend(self, server_id: str) -> None:
        self._fresh(server_id)
        refused("suspends no guests, whose memory would be on one host: virsh managedsave")

    def shelve(self, server_id: str) -> None:
        guest = self._ready(server_id, "shelve", _HERE)
        host = _host(guest)
        if not guest.persistent:
            raise Conflict(f"server {server_id}: it would be lost: virsh define it first")
        if why := self.why_stays(guest):
            raise Conflict(f"server {server_id}: {why}")

        def act(doing: GuestRecord) -> None:
            self._tasks.call(doing, host, "stop", tasks.stop_domain)
            self._registry.end(doing, status=SHELVED, left_host=host)

        self._tasks.do(guest, "shelving", act, runs=False)

    def unshelve(self, server_id: str, host: str | None = None) -> None:
        guest = self._ready(server_id, "unshelve", frozenset({SHELVED}))
        left = guest.left_host
        with self._rooms.choosing():
            dest = self._rooms.choose(guest, host, self._poller.running(server_id), unwanted=left)
            if dest is None:
                return  # no host has room: the guest stays shelved

            def act(doing: GuestRecord) -> None:
                self._tasks.bring_up(doing, dest)

            self._tasks.do(guest, "unshelving", act, dest=dest, runs=True)

    def snapshot(self, server_id: str, name: str) -> str:
        self._fresh(server_id)
        refused("keeps no images: copy the guest's disks")

    def image_properties(self, image_ids: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
        return {}

    def images(self, server_id: str, name: str) -> Sequence[str]:
        return []

    def lock(self, server_id: str, reason: str) -> None:
        self._registry.lock(server_id, reason)

    def unlock(self, server_id: str) -> None:
        self._registry.unlock(server_id)

    def reset(self, server_id: str, *, active: bool = False) -> None:
        self._registry.reset(server_id, error=not active)

    def why_stays(self, guest: GuestRecord) -> str:
        """Return why the guest cannot leave its host; "" if it can."""
        facts, shared = domain_xml.read_cloud_facts(guest.xml), self._poller.settings.shared
        return domain_xml.why_stays(facts, shared, autostart=guest.autostart)

    def _fresh(self, server_id: str) -> GuestRecord:
        return self._poll_guest(server_id)[0]

    def _poll_guest(self, server_id: str) -> tuple[GuestRecord, bool]:
        """Poll the guest.

        Return the registry's entry, and whether the host has just confirmed it.
        """
        self._tasks.settle()
        try:
            live = self._poller.guest(server_id)
            return self._registry.find(server_id), live
        except NotFound:
            self._poller.all()  # the guest may be new, or moved
        return self._registry.find(server_id), False

    def _ready(self, server_id: str, verb: str, allowed: frozenset[str]) -> GuestRecord:
        guest = self._fresh(server_id)
        state = guest.under_way or (guest.shown if guest.shown not in allowed else None)
        if state:
            raise Conflict(f"server {server_id}: cannot {verb} it while it is {state}")
        return guest


def _host(guest: GuestRecord) -> str:
    if guest.host is None:
        raise Conflict(f"server {guest.uuid}: it is on no host")
    return guest.host


def _place(guest: GuestRecord) -> str | None:
    """Return the guest's host, or its destination if it has no host yet."""
    return guest.host or guest.dest


class LibvirtMoves:
    """The Moves port: defines and starts a guest on another host.

    The guest's own host must be found dead and forced down before. That host cannot be asked, so
    this driver does not prove that it is off: the evidence of recovery does. The driver still
    checks what it can see: no host that answers may run the guest.
    """

    def __init__(self, domain_tasks: DomainTasks, servers: LibvirtServers, rooms: Rooms) -> None:
        self._tasks = domain_tasks
        self._poller = domain_tasks.poller
        self._registry = domain_tasks.registry
        self._servers = servers
        self._rooms = rooms

    def evacuate(
        self,
        server_id: str,
        host: str | None = None,
        *,
        as_it_was: bool = False,
        last_read: Server | None = None,
    ) -> None:
        """Evacuate the guest as the port describes.

        Raises Conflict also if a disk is not shared, or if any host that answers runs the guest.
        """
        self._tasks.settle()
        guest = self._registry.find(server_id)
        source = self._check(guest)
        if host is not None and self._poller.name(host) == source:
            raise Conflict(f"server {server_id}: {host} is where it is now")
        answering = self._poller.running(server_id)
        self._runs_nowhere(guest, [name for name, active in answering.items() if active])
        if guest.task:  # a task on a dead host never ends
            guest = self._registry.drop_task(guest)
        runs = guest.shown == "ERROR" or (as_it_was and guest.shown == "ACTIVE")
        with self._rooms.choosing():
            dest = self._rooms.choose(guest, host, answering)
            if dest is None:
                self._no_room(guest, host)
                return

            def act(doing: GuestRecord) -> None:
                self._tasks.bring_up(doing, dest)

            self._tasks.do(guest, "rebuilding", act, dest=dest, runs=runs)

    def live_migrate(self, server_id: str, host: str | None = None) -> None:
        self._servers.show(server_id)
        raise Conflict(
            f"server {server_id}: Holdfast moves no running guests of plain libvirt: virsh migrate"
        )

    def migrations(
        self, *, source_host: str, kind: str = EVACUATION, after: int = 0
    ) -> Sequence[Migration]:
        self._tasks.settle()
        source = self._poller.name(source_host)
        with self._registry.file.transaction() as db:
            rows = db.execute(
                "SELECT * FROM migrations WHERE source = ? AND type = ? AND id > ? ORDER BY id",
                (source, kind, after),
            ).fetchall()
        return [_migration(row) for row in rows]

    def _check(self, guest: GuestRecord) -> str:
        """Return the host that the guest leaves; Conflict unless the guest may be evacuated."""
        subject = f"server {guest.uuid}"
        if guest.task == "rebuilding":
            raise Conflict(f"{subject}: cannot evacuate it while it is {guest.task}")
        if guest.host is None:
            raise Conflict(f"{subject}: cannot evacuate it: it is {guest.status}, on no host")
        with self._registry.file.transaction() as db:
            query = "SELECT forced_down FROM hosts WHERE name = ?"
            marks = db.execute(query, (guest.host,)).fetchone()
        if marks is not None and not marks["forced_down"]:
            raise Conflict(
                f"{subject}: cannot evacuate it while {guest.host} counts as up; make sure that it"
                " is off, and force it down first"
            )
        if why := self._servers.why_stays(guest):
            raise Conflict(f"{subject}: {why}")
        return guest.host

    def _runs_nowhere(self, guest: GuestRecord, running: Sequence[str]) -> None:
        """Raise Conflict if the guest runs.

        If it runs on another host than its own, record the host where it runs.
        """
        if not running:
            return
        subject = f"server {guest.uuid}: it runs on {running[0]}"
        if guest.host in running:
            raise Conflict(f"{subject}, which was said to be dead: fence it")
        self._registry.adopt(guest, running[0])
        raise Conflict(subject)

    def _no_room(self, guest: GuestRecord, host: str | None) -> None:
        """Record a failed migration: as in a cloud, the request is accepted and then fails."""
        self._registry.refuse_move(guest, self._poller.name(host) if host else None)


def _migration(row: sqlite3.Row) -> Migration:
    return Migration(
        id=str(row["id"]),
        server_id=row["server_id"],
        source_host=row["source"],
        dest_host=row["dest"],
        type=row["type"],
        status=row["status"],
        created_at=datetime.fromtimestamp(row["created_at"], UTC),
    )
