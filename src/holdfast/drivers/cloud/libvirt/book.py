# SPDX-License-Identifier: Apache-2.0
"""The guests as we know them: what was last seen of each, where it belongs, what is under way.

A look at a host is written down here, but never over what is newer: not over what is under way, nor
over what ended after the look began. What a host that is forced down says of its guests counts for
nothing: they are to start elsewhere, as they were when it died.
"""

import logging
import sqlite3
import threading
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from holdfast.drivers.cloud.libvirt import guest
from holdfast.drivers.cloud.libvirt.file import File
from holdfast.model.errors import Conflict, NotFound
from holdfast.ports.clock import Clock
from holdfast.ports.cloud import Server

LOG = logging.getLogger(__name__)

SHELVED = "SHELVED_OFFLOADED"
EVACUATION = "evacuation"
#: How long the XML is kept of a guest that is no longer there.
KEEP_GONE_S = 90 * 86_400.0


@dataclass(frozen=True)
class Seen:
    """A domain as a host told of it."""

    uuid: str
    name: str
    status: str
    passing: str | None
    active: bool
    persistent: bool
    autostart: bool
    xml: str


@dataclass(frozen=True)
class Known:
    """A guest of the file; see there."""

    uuid: str
    name: str
    host: str | None
    left_host: str | None
    xml: str
    autostart: bool
    persistent: bool
    status: str
    passing: str | None
    created_at: float
    changed_at: float
    task: str | None
    token: str | None
    until: float | None
    dest: str | None
    runs: bool
    locked: bool
    locked_reason: str
    error: bool

    @property
    def shown(self) -> str:
        """Its status; somebody's word that it is in ERROR counts until something is done."""
        return "ERROR" if self.error else self.status

    @property
    def under_way(self) -> str | None:
        return self.task or self.passing

    def server(self) -> Server:
        facts = guest.facts(self.xml)
        return Server(
            id=self.uuid,
            name=self.name,
            project_id=facts.project,
            host=self.host,
            status=self.shown,
            vcpus=facts.vcpus,
            memory_mb=facts.memory_mb,
            disk_gb=0,
            task_state=self.under_way,
            locked=self.locked,
            locked_reason=self.locked_reason,
            flavor=facts.flavor,
            metadata=facts.metadata,
            created_at=datetime.fromtimestamp(self.created_at, UTC),
            powered=self.status == "ACTIVE",
        )


class Book:
    def __init__(self, file: File, clock: Clock, configured: Collection[str]) -> None:
        self.file = file
        self.configured = configured
        self._clock = clock
        with file.transaction() as db:
            for name in configured:
                db.execute("INSERT OR IGNORE INTO hosts (name) VALUES (?)", (name,))

    def now(self) -> float:
        return self._clock.now().timestamp()

    def pause(self, seconds: float) -> None:
        self._clock.wait(threading.Event(), seconds)

    def find(self, server_id: str) -> Known:
        with self.file.transaction() as db:
            return _one(db, server_id)

    def all(self) -> Sequence[Known]:
        with self.file.transaction() as db:
            rows = db.execute("SELECT * FROM guests ORDER BY name, uuid").fetchall()
        return [_known(row) for row in rows]

    def overdue(self) -> Sequence[Known]:
        """What should have ended: whoever did it has died, or does not know how it ended."""
        with self.file.transaction() as db:
            query = "SELECT * FROM guests WHERE task IS NOT NULL AND until < ?"
            return [_known(row) for row in db.execute(query, (self.now(),))]

    # what hosts say

    def take(self, host: str, seen: Sequence[Seen], began: float, *, of: str = "") -> None:
        """Write down all guests of a host, or only the one `of` that uuid, as it told of them."""
        with self.file.transaction() as db:
            marks = db.execute("SELECT * FROM hosts WHERE name = ?", (host,)).fetchone()
            if marks is None or marks["forced_down"]:
                return
            for one in seen:
                self._take_one(db, host, one, began)
            there = {one.uuid for one in seen}
            for row in db.execute(
                "SELECT * FROM guests WHERE COALESCE(host, left_host) = ? AND task IS NULL"
                " AND changed_at < ?",
                (host, began),
            ).fetchall():
                if row["uuid"] not in there and of in ("", row["uuid"]):
                    self._lose(db, row, host)

    def _lose(self, db: sqlite3.Connection, row: sqlite3.Row, host: str) -> None:
        """Somebody has removed it; or the host was made anew, and then its XML is all there is."""
        LOG.info("guest %s is no longer on %s", row["name"], host)
        now = self.now()
        db.execute("DELETE FROM guests WHERE uuid = ?", (row["uuid"],))
        db.execute("DELETE FROM gone WHERE at < ?", (now - KEEP_GONE_S,))
        db.execute(
            "INSERT INTO gone VALUES (?, ?, ?, ?, ?)",
            (row["uuid"], row["name"], host, now, row["xml"]),
        )

    def _take_one(self, db: sqlite3.Connection, host: str, one: Seen, began: float) -> None:
        row = db.execute("SELECT * FROM guests WHERE uuid = ?", (one.uuid,)).fetchone()
        said = (one.name, one.xml, one.autostart, one.persistent, one.status, one.passing)
        if row is None:
            db.execute(
                "INSERT INTO guests (name, xml, autostart, persistent, status, passing, uuid, host,"
                " created_at, changed_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*said, one.uuid, host, began, began),
            )
            return
        if row["task"] or row["changed_at"] >= began:
            return
        if row["host"] != host and not self._came_here(db, _known(row), host, one):
            return
        db.execute(
            "UPDATE guests SET name = ?, xml = ?, autostart = ?, persistent = ?, status = ?,"
            " passing = ?, host = ?, left_host = NULL WHERE uuid = ?",
            (*said, host, one.uuid),
        )

    def _came_here(self, db: sqlite3.Connection, known: Known, host: str, one: Seen) -> bool:
        """Whether a guest that belongs elsewhere was moved here by somebody: it runs here, and does
        not there. A copy that does not run is what a move has left behind."""
        if known.host is not None and known.host not in self.configured:
            return True  # its host has another name now
        if known.host is None or not one.active:
            return one.active
        if known.status in ("ACTIVE", "PAUSED"):
            said = "guest %s belongs to %s and is seen running on %s"
            LOG.warning(said, one.name, known.host, host)
            return False
        there = db.execute("SELECT forced_down FROM hosts WHERE name = ?", (known.host,)).fetchone()
        return there is None or not there["forced_down"]

    # what we do

    def begin(
        self, known: Known, task: str, lasts_s: float, *, dest: str | None = None, runs: bool = True
    ) -> Known:
        """Put it under way, in a name that nobody else has. Conflict if it is, or was changed since
        `known` was read."""
        now = self.now()
        with self.file.transaction() as db:
            seen = _one(db, known.uuid)
            if seen.task:
                raise Conflict(f"server {known.uuid}: it is {seen.task}")
            if (seen.host, seen.changed_at) != (known.host, known.changed_at):
                raise Conflict(f"server {known.uuid}: something was done with it meanwhile")
            db.execute(
                "UPDATE guests SET task = ?, token = ?, until = ?, dest = ?, runs = ?,"
                " changed_at = ? WHERE uuid = ?",
                (task, uuid.uuid4().hex, now + lasts_s, dest, runs, now, known.uuid),
            )
            if task == "rebuilding":
                record(db, known, dest, "running", now)
            return _one(db, known.uuid)

    def is_mine(self, doing: Known) -> bool:
        """Whether it is still under way in that name, and its time is not over."""
        with self.file.transaction() as db:
            return _is(db, doing) and (doing.until or 0.0) > self.now()

    def hand_over(self, doing: Known, lasts_s: float = 0.0) -> Known | None:
        """What is under way gets a new name and time, if it is still in that name: whoever settles
        it takes it over so; without time, anybody may."""
        token, until = uuid.uuid4().hex, self.now() + lasts_s
        with self.file.transaction() as db:
            if not _is(db, doing):
                return None
            query = "UPDATE guests SET token = ?, until = ? WHERE uuid = ?"
            db.execute(query, (token, until, doing.uuid))
            return _one(db, doing.uuid)

    def end(
        self,
        doing: Known,
        *,
        status: str | None = None,
        host: str | None = None,
        left_host: str | None = None,
        failed: str = "",
    ) -> bool:
        """It has ended: it is `host`'s now, or where it was; False if it was not ours to end. Why
        an evacuation `failed` is kept, and the guest is in ERROR."""
        with self.file.transaction() as db:
            if not _is(db, doing):
                return False
            moved = doing.task == "rebuilding"
            values = {
                "status": status or doing.status,
                "host": host or (None if left_host else doing.host),
                "left_host": left_host if not host else None,
                "error": int(bool(moved and failed) or (doing.error and bool(failed))),
                "changed_at": self.now(),
            }
            _write(db, doing.uuid, values)
            if moved:
                db.execute(
                    "UPDATE migrations SET status = ?, why = ? WHERE server_id = ?"
                    " AND status = 'running'",
                    ("failed" if failed else "done", failed[:500], doing.uuid),
                )
            return True

    def reset(self, server_id: str, *, error: bool) -> None:
        with self.file.transaction() as db:
            _one(db, server_id)
            _write(db, server_id, {"error": int(error), "changed_at": self.now()})
            db.execute(
                "UPDATE migrations SET status = 'failed', why = 'reset' WHERE server_id = ?"
                " AND status = 'running'",
                (server_id,),
            )

    def adopt(self, known: Known, host: str) -> None:
        """Somebody has moved it there, where it runs."""
        with self.file.transaction() as db:
            values = {"host": host, "status": "ACTIVE", "error": 0, "changed_at": self.now()}
            _write(db, known.uuid, values)

    def lock(self, server_id: str, reason: str) -> None:
        with self.file.transaction() as db:
            _one(db, server_id)
            db.execute(
                "UPDATE guests SET locked = 1, locked_reason = COALESCE(?, locked_reason)"
                " WHERE uuid = ?",
                (reason or None, server_id),
            )

    def unlock(self, server_id: str) -> None:
        with self.file.transaction() as db:
            _one(db, server_id)
            query = "UPDATE guests SET locked = 0, locked_reason = '' WHERE uuid = ?"
            db.execute(query, (server_id,))

    def is_wanted_at(self, known: Known, host: str) -> bool:
        """Whether it belongs to that host, or is on its way there in another name."""
        with self.file.transaction() as db:
            row = db.execute(
                "SELECT 1 FROM guests WHERE uuid = ? AND (host = ? OR left_host = ?"
                " OR (dest = ? AND token != ?))",
                (known.uuid, host, host, host, known.token),
            ).fetchone()
            return row is not None


def record(db: sqlite3.Connection, known: Known, dest: str | None, status: str, now: float) -> None:
    db.execute(
        "INSERT INTO migrations (server_id, source, dest, type, status, created_at)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        (known.uuid, known.host, dest, EVACUATION, status, now),
    )


def _write(db: sqlite3.Connection, server_id: str, values: Mapping[str, object]) -> None:
    """These columns, and nothing is under way any more."""
    names = ", ".join(f"{name} = ?" for name in values)
    db.execute(
        f"UPDATE guests SET {names}, task = NULL, token = NULL, until = NULL, dest = NULL,"
        " passing = NULL WHERE uuid = ?",
        (*values.values(), server_id),
    )


def _is(db: sqlite3.Connection, doing: Known) -> bool:
    query = "SELECT 1 FROM guests WHERE uuid = ? AND token = ?"
    return db.execute(query, (doing.uuid, doing.token)).fetchone() is not None


def _one(db: sqlite3.Connection, server_id: str) -> Known:
    row = db.execute("SELECT * FROM guests WHERE uuid = ?", (server_id,)).fetchone()
    if row is None:
        raise NotFound(f"there is no server {server_id}")
    return _known(row)


_TRUTHS: Iterable[str] = ("autostart", "persistent", "runs", "locked", "error")


def _known(row: sqlite3.Row) -> Known:
    values = dict(zip(row.keys(), row, strict=True))
    return Known(**{**values, **{name: bool(values[name]) for name in _TRUTHS}})
