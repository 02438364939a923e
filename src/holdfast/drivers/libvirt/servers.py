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

from holdfast.drivers.libvirt import cloud_xml, tasks
from holdfast.drivers.libvirt.host_connection import failed
from holdfast.drivers.libvirt.registry import EVACUATION, SHELVED, Known, record
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

    def __init__(self, looks: "HostPoller") -> None:
        self._looks = looks
        self._turn = threading.Lock()

    @contextlib.contextmanager
    def choosing(self) -> Iterator[None]:
        """Serialise choices, so that each choice counts guests already on their way."""
        with self._turn:
            yield

    def choose(
        self,
        known: Known,
        host: str | None,
        answering: Collection[str],
        unwanted: str | None = None,
    ) -> str | None:
        """Return the named host, or the best host; None if no host has room.

        Raises NotFound if the named host does not exist. `unwanted`, the host that the guest comes
        from, is the last choice.
        """
        named = self._looks.name(host) if host is not None else None
        rooms = [
            room
            for room in self._open(known)
            if room.host in answering and named in (None, room.host) and room.host != known.host
        ]
        tried = self._tried(known)
        if unwanted is not None:
            tried[unwanted] = tried.get(unwanted, 0) + 1000
        return best(rooms, cloud_xml.facts(known.xml).memory_mb, tried)

    def _open(self, known: Known) -> list[Room]:
        """Return enabled hosts with the memory left after all guests on their way have arrived."""
        book, ratio = self._looks.book, self._looks.settings.ram_ratio
        used: dict[str, int] = {}
        for one in book.all():
            place = one.dest if one.task and one.dest else one.host
            runs = one.status != "SHUTOFF" or one.task
            if place is not None and runs and one.uuid != known.uuid:
                used[place] = used.get(place, 0) + cloud_xml.facts(one.xml).memory_mb
        with book.file.transaction() as db:
            rows = db.execute("SELECT * FROM hosts WHERE enabled AND NOT forced_down").fetchall()
        return [
            Room(
                row["name"],
                json.loads(row["size"]).get("memory_mb", 0) * ratio - used.get(row["name"], 0),
            )
            for row in rows
            if row["name"] in self._looks.lines
        ]

    def _tried(self, known: Known) -> dict[str, int]:
        with self._looks.book.file.transaction() as db:
            rows = db.execute(
                "SELECT dest, count(*) AS times FROM migrations WHERE server_id = ?"
                " AND status = 'failed' AND dest IS NOT NULL GROUP BY dest",
                (known.uuid,),
            ).fetchall()
        return {row["dest"]: row["times"] for row in rows}


# Ports that plain libvirt does not offer. Lists are empty, because recovery and periodic jobs
# read them; every change fails with an error that is not retryable.


def refused(what: str) -> NoReturn:
    raise failed(f"plain libvirt {what}", retryable=False)


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

    def __init__(self, deeds: DomainTasks, rooms: Rooms) -> None:
        self._deeds = deeds
        self._looks = deeds.looks
        self._book = deeds.book
        self._rooms = rooms

    def list(self, *, host: str | None = None, project_id: str | None = None) -> Sequence[Server]:
        self._deeds.settle()
        name = self._looks.name(host) if host is not None else None
        if name is None:
            self._looks.all()
        else:
            self._looks.host(name)
        found = [one for one in self._book.all() if name in (None, _place(one))]
        servers = [one.server() for one in found]
        return [server for server in servers if project_id in (None, server.project_id)]

    def show(self, server_id: str) -> Server:
        known, live = self._seen(server_id)
        return replace(known.server(), live=live)

    def delete(self, server_id: str) -> None:
        try:
            self._book.find(server_id)
        except NotFound:
            return
        refused("deletes no guests: virsh undefine")

    def stop(self, server_id: str) -> None:
        known = self._ready(server_id, "stop", _HERE - {"SHUTOFF"})
        host = _host(known)

        def act(doing: Known) -> None:
            self._deeds.ask(doing, host, "stop", tasks.stop_domain)
            self._book.end(doing, status="SHUTOFF")

        self._deeds.do(known, "powering-off", act, runs=False)

    def start(self, server_id: str) -> None:
        known = self._ready(server_id, "start", frozenset({"SHUTOFF", "SUSPENDED"}))
        host = _host(known)

        def act(doing: Known) -> None:
            self._deeds.runs_nowhere(doing)
            self._deeds.ask(doing, host, "start", tasks.start_domain)
            self._book.end(doing, status="ACTIVE")

        self._deeds.do(known, "powering-on", act, runs=True)

    def suspend(self, server_id: str) -> None:
        self._fresh(server_id)
        refused("suspends no guests, whose memory would be on one host: virsh managedsave")

    def shelve(self, server_id: str) -> None:
        known = self._ready(server_id, "shelve", _HERE)
        host = _host(known)
        if not known.persistent:
            raise Conflict(f"server {server_id}: it would be lost: virsh define it first")
        if why := self.why_stays(known):
            raise Conflict(f"server {server_id}: {why}")

        def act(doing: Known) -> None:
            self._deeds.ask(doing, host, "stop", tasks.stop_domain)
            self._book.end(doing, status=SHELVED, left_host=host)

        self._deeds.do(known, "shelving", act, runs=False)

    def unshelve(self, server_id: str, host: str | None = None) -> None:
        known = self._ready(server_id, "unshelve", frozenset({SHELVED}))
        left = known.left_host
        with self._rooms.choosing():
            dest = self._rooms.choose(known, host, self._looks.running(server_id), unwanted=left)
            if dest is None:
                return  # no host has room: the guest stays shelved

            def act(doing: Known) -> None:
                self._deeds.bring_up(doing, dest)

            self._deeds.do(known, "unshelving", act, dest=dest, runs=True)

    def snapshot(self, server_id: str, name: str) -> str:
        self._fresh(server_id)
        refused("keeps no images: copy the guest's disks")

    def image_properties(self, image_ids: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
        return {}

    def images(self, server_id: str, name: str) -> Sequence[str]:
        return []

    def lock(self, server_id: str, reason: str) -> None:
        self._book.lock(server_id, reason)

    def unlock(self, server_id: str) -> None:
        self._book.unlock(server_id)

    def reset(self, server_id: str, *, active: bool = False) -> None:
        self._book.reset(server_id, error=not active)

    def why_stays(self, known: Known) -> str:
        """Return why the guest cannot leave its host; "" if it can."""
        shared = self._looks.settings.shared
        return cloud_xml.stays(cloud_xml.facts(known.xml), shared, autostart=known.autostart)

    def _fresh(self, server_id: str) -> Known:
        return self._seen(server_id)[0]

    def _seen(self, server_id: str) -> tuple[Known, bool]:
        """Poll the guest.

        Return the registry's entry, and whether the host has just confirmed it.
        """
        self._deeds.settle()
        try:
            live = self._looks.guest(server_id)
            return self._book.find(server_id), live
        except NotFound:
            self._looks.all()  # the guest may be new, or moved
        return self._book.find(server_id), False

    def _ready(self, server_id: str, verb: str, allowed: frozenset[str]) -> Known:
        known = self._fresh(server_id)
        state = known.under_way or (known.shown if known.shown not in allowed else None)
        if state:
            raise Conflict(f"server {server_id}: cannot {verb} it while it is {state}")
        return known


def _host(known: Known) -> str:
    if known.host is None:
        raise Conflict(f"server {known.uuid}: it is on no host")
    return known.host


def _place(known: Known) -> str | None:
    """Return the guest's host, or its destination if it has no host yet."""
    return known.host or known.dest


class LibvirtMoves:
    """The Moves port: defines and starts a guest on another host.

    The guest's own host must be found dead and forced down before. That host cannot be asked, so
    this driver does not prove that it is off: the evidence of recovery does. The driver still
    checks what it can see: no host that answers may run the guest.
    """

    def __init__(self, deeds: DomainTasks, servers: LibvirtServers, rooms: Rooms) -> None:
        self._deeds = deeds
        self._looks = deeds.looks
        self._book = deeds.book
        self._servers = servers
        self._rooms = rooms

    def evacuate(
        self,
        server_id: str,
        host: str | None = None,
        *,
        as_it_was: bool = False,
        seen: Server | None = None,
    ) -> None:
        """Evacuate the guest as the port describes.

        Raises Conflict also if a disk is not shared, or if any host that answers runs the guest.
        """
        self._deeds.settle()
        known = self._book.find(server_id)
        source = self._check(known)
        if host is not None and self._looks.name(host) == source:
            raise Conflict(f"server {server_id}: {host} is where it is now")
        answering = self._looks.running(server_id)
        self._runs_nowhere(known, [name for name, active in answering.items() if active])
        if known.task:  # a task on a dead host never ends
            self._book.reset(server_id, error=known.error)
            known = self._book.find(server_id)
        runs = known.shown == "ERROR" or (as_it_was and known.shown == "ACTIVE")
        with self._rooms.choosing():
            dest = self._rooms.choose(known, host, answering)
            if dest is None:
                self._no_room(known, host)
                return

            def act(doing: Known) -> None:
                self._deeds.bring_up(doing, dest)

            self._deeds.do(known, "rebuilding", act, dest=dest, runs=runs)

    def live_migrate(self, server_id: str, host: str | None = None) -> None:
        self._servers.show(server_id)
        raise Conflict(
            f"server {server_id}: Holdfast moves no running guests of plain libvirt: virsh migrate"
        )

    def migrations(self, *, source_host: str, kind: str = EVACUATION) -> Sequence[Migration]:
        self._deeds.settle()
        source = self._looks.name(source_host)
        with self._book.file.transaction() as db:
            rows = db.execute(
                "SELECT * FROM migrations WHERE source = ? AND type = ? ORDER BY id",
                (source, kind),
            ).fetchall()
        return [_migration(row) for row in rows]

    def _check(self, known: Known) -> str:
        """Return the host that the guest leaves; Conflict unless the guest may be evacuated."""
        what = f"server {known.uuid}"
        if known.task == "rebuilding":
            raise Conflict(f"{what}: cannot evacuate it while it is {known.task}")
        if known.host is None:
            raise Conflict(f"{what}: cannot evacuate it: it is {known.status}, on no host")
        with self._book.file.transaction() as db:
            query = "SELECT forced_down FROM hosts WHERE name = ?"
            marks = db.execute(query, (known.host,)).fetchone()
        if marks is not None and not marks["forced_down"]:
            raise Conflict(
                f"{what}: cannot evacuate it while {known.host} counts as up; make sure that it is"
                " off, and force it down first"
            )
        if why := self._servers.why_stays(known):
            raise Conflict(f"{what}: {why}")
        return known.host

    def _runs_nowhere(self, known: Known, running: Sequence[str]) -> None:
        """Raise Conflict if the guest runs.

        If it runs on another host than its own, record the host where it runs.
        """
        if not running:
            return
        what = f"server {known.uuid}: it runs on {running[0]}"
        if known.host in running:
            raise Conflict(f"{what}, which was said to be dead: fence it")
        self._book.adopt(known, running[0])
        raise Conflict(what)

    def _no_room(self, known: Known, host: str | None) -> None:
        """Record a failed migration: as in a cloud, the request is accepted and then fails."""
        with self._book.file.transaction() as db:
            record(db, known, self._looks.name(host) if host else None, "failed", self._book.now())
        self._book.reset(known.uuid, error=True)


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
