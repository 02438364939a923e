# SPDX-License-Identifier: Apache-2.0
"""The libvirt side of the Moves port: a guest is defined and started on another host, after its own
was found dead and forced down.

Its own host cannot be asked then, so nothing here proves that it is off: the evidence of recovery
does. What can be seen is seen to all the same: no host that answers may run the guest.
"""

import sqlite3
from collections.abc import Sequence
from datetime import UTC, datetime

from holdfast.drivers.cloud.libvirt.book import EVACUATION, Known, record
from holdfast.drivers.cloud.libvirt.deeds import Deeds
from holdfast.drivers.cloud.libvirt.place import Rooms
from holdfast.drivers.cloud.libvirt.servers import LibvirtServers
from holdfast.model.errors import Conflict
from holdfast.ports.cloud import Migration, Server


class LibvirtMoves:
    def __init__(self, deeds: Deeds, servers: LibvirtServers, rooms: Rooms) -> None:
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
        """Besides what the port says: Conflict, too, if a disk is not shared, and if any host that
        answers runs it."""
        self._deeds.settle()
        known = self._book.find(server_id)
        source = self._check(known)
        if host is not None and self._looks.name(host) == source:
            raise Conflict(f"server {server_id}: {host} is where it is now")
        answering = self._looks.running(server_id)
        self._runs_nowhere(known, [name for name, active in answering.items() if active])
        if known.task:  # of a host that is dead: never done
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
        """The host it leaves; Conflict unless it may."""
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
        """Conflict if it runs. Where that is another host than its own, it belongs there."""
        if not running:
            return
        what = f"server {known.uuid}: it runs on {running[0]}"
        if known.host in running:
            raise Conflict(f"{what}, which was said to be dead: fence it")
        self._book.adopt(known, running[0])
        raise Conflict(what)

    def _no_room(self, known: Known, host: str | None) -> None:
        """As a cloud does: it is accepted, and fails."""
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
