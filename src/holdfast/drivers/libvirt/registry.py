# SPDX-License-Identifier: Apache-2.0
"""The guest registry: an SQLite file with hosts, guests and migrations, and the host poller.

The poller writes each poll of a host into the registry, but never over newer information: not over
a running task, nor over a task that ended after the poll began. The registry ignores the guests
that a forced-down host reports: they are to start elsewhere, as they were when the host died.
"""

import contextlib
import json
import logging
import os
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import libvirt
from holdfast.drivers.libvirt import cloud_xml, domain_xml
from holdfast.drivers.libvirt.connection import Call
from holdfast.drivers.libvirt.host_connection import Line, failed
from holdfast.drivers.libvirt.settings import Settings
from holdfast.model.errors import Conflict, DriverError, NotFound
from holdfast.model.host import same
from holdfast.ports.cloud import Server
from holdfast.runtime.clock import Clock

VERSION = 1
PATIENCE_S = 5.0
_TABLES = (
    "CREATE TABLE hosts (name TEXT PRIMARY KEY, enabled INTEGER NOT NULL DEFAULT 1,"
    " disabled_reason TEXT NOT NULL DEFAULT '', forced_down INTEGER NOT NULL DEFAULT 0,"
    " changed_at REAL, seen_at REAL, size TEXT NOT NULL DEFAULT '{}')",
    # host: NULL while the guest is shelved; left_host is then the host with its definition.
    # task, token, until, dest: the running task, its owner's token, deadline, destination.
    "CREATE TABLE guests (uuid TEXT PRIMARY KEY, name TEXT NOT NULL, host TEXT, left_host TEXT,"
    " xml TEXT NOT NULL, autostart INTEGER NOT NULL, persistent INTEGER NOT NULL,"
    " status TEXT NOT NULL, passing TEXT, created_at REAL NOT NULL, changed_at REAL NOT NULL,"
    " task TEXT, token TEXT, until REAL, dest TEXT, runs INTEGER NOT NULL DEFAULT 0,"
    " locked INTEGER NOT NULL DEFAULT 0, locked_reason TEXT NOT NULL DEFAULT '',"
    " error INTEGER NOT NULL DEFAULT 0)",
    "CREATE INDEX guests_host ON guests (host)",
    # cleared: the host that may have had a copy of the guest is back and has no copy any more
    "CREATE TABLE migrations (id INTEGER PRIMARY KEY AUTOINCREMENT, server_id TEXT NOT NULL,"
    " source TEXT NOT NULL, dest TEXT, type TEXT NOT NULL, status TEXT NOT NULL,"
    " created_at REAL NOT NULL, cleared INTEGER NOT NULL DEFAULT 0, why TEXT NOT NULL DEFAULT '')",
    "CREATE INDEX migrations_source ON migrations (source)",
    # for operators who miss a guest; the driver never reads it
    "CREATE TABLE gone (uuid TEXT, name TEXT, host TEXT, at REAL, xml TEXT)",
)


class File:
    """The SQLite state file: host marks, guests as last polled, migrations.

    libvirt cannot store these: they are needed when the guests and their hosts are dead. The file
    contains the guests' XML with its secrets (console passwords), so only its owner may read it.
    Threads share a single connection in turn: transactions are short and few.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._turn = threading.Lock()
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
            self._db = sqlite3.connect(
                path, timeout=PATIENCE_S, isolation_level=None, check_same_thread=False
            )
            self._db.row_factory = sqlite3.Row
            self._db.execute("PRAGMA journal_mode = WAL")
            # Commits must survive a power cut, above all the host on which a guest was started.
            self._db.execute("PRAGMA synchronous = FULL")
        except (OSError, sqlite3.Error) as error:
            said = f"[libvirt] state: {path} cannot be used: {error}"
            raise failed(said, retryable=False) from error
        self._create()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Run the block in a transaction: all of it or nothing takes effect."""
        with self._turn:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                try:
                    yield self._db
                    self._db.execute("COMMIT")
                finally:
                    if self._db.in_transaction:
                        self._db.execute("ROLLBACK")
            except sqlite3.Error as error:
                passing = isinstance(error, sqlite3.OperationalError)
                raise failed(f"{self.path}: {error}", retryable=passing) from error

    def close(self) -> None:
        with self._turn:
            self._db.close()

    def _create(self) -> None:
        with self.transaction() as db:
            version = db.execute("PRAGMA user_version").fetchone()[0]
            if version == VERSION:
                return
            if version:
                said = f"{self.path} has layout {version}, this program {VERSION}: give it another"
                raise failed(f"{said} [libvirt] state", retryable=False)
            for statement in _TABLES:
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {VERSION}")


LOG = logging.getLogger(__name__)

SHELVED = "SHELVED_OFFLOADED"
EVACUATION = "evacuation"
#: How long the table `gone` keeps the XML of a vanished guest.
KEEP_GONE_S = 90 * 86_400.0


@dataclass(frozen=True)
class Seen:
    """A domain as reported by a host."""

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
    """A guest: a row of the table `guests`; `_TABLES` explains the columns."""

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
        """The reported status: ERROR if the error mark is set, else `status`.

        A reset or a failed evacuation sets the mark; the next successful task clears it.
        """
        return "ERROR" if self.error else self.status

    @property
    def under_way(self) -> str | None:
        return self.task or self.passing

    def server(self) -> Server:
        facts = cloud_xml.facts(self.xml)
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


class GuestRegistry:
    """The hosts and guests of the state file, and the tasks on guests."""

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
        """Return guests whose task is overdue: the process died or does not know the outcome."""
        with self.file.transaction() as db:
            query = "SELECT * FROM guests WHERE task IS NOT NULL AND until < ?"
            return [_known(row) for row in db.execute(query, (self.now(),))]

    # Polls of hosts

    def record(self, host: str, seen: Sequence[Seen], began: float, *, of: str = "") -> None:
        """Record the domains that a host reported: all, or only the guest with the uuid `of`."""
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
        """Move a vanished guest to the table `gone`.

        Either an operator has removed it, or the host was reinstalled and this XML is all that is
        left.
        """
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
        """Return whether an operator moved the guest to this host.

        That is so if the guest runs here and not on the host it belongs to. A copy that does not
        run is a leftover of a move.
        """
        if known.host is not None and known.host not in self.configured:
            return True  # its host was renamed or removed from the configuration
        if known.host is None or not one.active:
            return one.active
        if known.status in ("ACTIVE", "PAUSED"):
            said = "guest %s belongs to %s and is seen running on %s"
            LOG.warning(said, one.name, known.host, host)
            return False
        there = db.execute("SELECT forced_down FROM hosts WHERE name = ?", (known.host,)).fetchone()
        return there is None or not there["forced_down"]

    # Tasks

    def begin(
        self, known: Known, task: str, lasts_s: float, *, dest: str | None = None, runs: bool = True
    ) -> Known:
        """Start a task on a guest under a new token.

        Raises Conflict if a task runs already, or if the guest was changed since `known` was read.
        """
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
        """Return whether the task still has this token and its deadline has not passed."""
        with self.file.transaction() as db:
            return _is(db, doing) and (doing.until or 0.0) > self.now()

    def hand_over(self, doing: Known, lasts_s: float = 0.0) -> Known | None:
        """Give the task a new token and deadline; None if another caller has taken the task over.

        A caller that settles an overdue task takes it over this way. With `lasts_s` 0 the next
        caller may.
        """
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
        """End the task; return False if another caller has taken the task over.

        The guest belongs to `host` now, or stays where it was. If an evacuation `failed`, the
        registry stores the reason and the guest is in ERROR.
        """
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
        """Record that an operator has moved the guest to `host`, where it runs."""
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
        """Return whether the guest belongs to `host`, or another task is bringing it there."""
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
    """Set these columns and clear the task."""
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


# Polling hosts


T = TypeVar("T")
#: Maximum age in seconds of a poll that `reached` reuses.
FRESH_S = 1.0
#: Seconds to wait for a host that did not answer the last time.
AGAIN_S = 0.3
#: Request the XML for the next start, with passwords, in a form that other libvirt versions can
#: read.
AS_DEFINED = (
    libvirt.VIR_DOMAIN_XML_INACTIVE
    | libvirt.VIR_DOMAIN_XML_SECURE
    | libvirt.VIR_DOMAIN_XML_MIGRATABLE
)


class HostPoller:
    """Polls the hosts in parallel, each with a time limit, and records their answers.

    Each poll reads the XML of all guests of a host, so that it is known when the host is dead.
    """

    def __init__(self, settings: Settings, book: GuestRegistry) -> None:
        self.settings = settings
        self.book = book
        self.lines: Mapping[str, Line] = {host.name: Line(host) for host in settings.hosts}
        self._last: tuple[float, Collection[str]] = (float("-inf"), ())

    def name(self, host: str) -> str:
        """Return the host's name in the spelling of the configuration; NotFound."""
        found = [name for name in self.lines if same(name, host)]
        if not found:
            raise NotFound(f"there is no host {host} in [libvirt] hosts")
        return found[0]

    def line(self, host: str) -> Line:
        return self.lines[self.name(host)]

    def ask(self, host: str, what: str, do: Callable[[Any], T]) -> T:
        """Run a call on a host with the time limit of a poll."""
        return self.line(host).ask(what, do, self.settings.look_timeout_s)

    def all(self) -> Collection[str]:
        """Poll every host and every guest; return the hosts that answered."""
        when, answering = time.monotonic(), self._round(self.lines)
        self._last = when, answering
        return answering

    def reached(self) -> Collection[str]:
        """Return the hosts that answer; a poll of the last FRESH_S seconds counts."""
        when, answering = self._last
        return answering if time.monotonic() - when < FRESH_S else self.all()

    def host(self, host: str) -> bool:
        """Poll a single host; return whether it answered."""
        return bool(self._round([self.name(host)]))

    def guest(self, server_id: str) -> bool:
        """Poll a single guest on its own host; return whether it was found there."""
        known = self.book.find(server_id)
        if known.host is None:
            return False
        began = self.book.now()
        try:
            seen = self.ask(known.host, "domain", lambda conn: lookup(conn, server_id))
        except DriverError:
            return False
        self.book.record(known.host, [seen] if seen else [], began, of=server_id)
        return seen is not None

    def running(self, server_id: str) -> Mapping[str, bool]:
        """Return for each host that answers whether the guest runs there now."""
        calls = self._begin(self.lines, "running", lambda conn: _is_active(conn, server_id))
        return self._answers(calls, "running")

    def close(self) -> None:
        for line in self.lines.values():
            line.close()

    def _round(self, names: Collection[str]) -> Collection[str]:
        began = self.book.now()
        answers = self._answers(self._begin(names, "domains", _everything), "domains")
        for name, (size, seen) in answers.items():
            with self.book.file.transaction() as db:
                db.execute(
                    "UPDATE hosts SET seen_at = ?, size = ? WHERE name = ?",
                    (self.book.now(), json.dumps(size), name),
                )
            self.book.record(name, seen, began)
        return answers.keys()

    def _begin(
        self, names: Collection[str], what: str, do: Callable[[Any], T]
    ) -> dict[str, Call[T]]:
        calls = {}
        for name in names:
            try:
                calls[name] = self.lines[name].begin(what, do)
            except DriverError:  # silent: the host is missing from the result
                continue
        return calls

    def _answers(self, calls: Mapping[str, Call[T]], what: str) -> dict[str, T]:
        found, until = {}, time.monotonic() + self.settings.look_timeout_s
        for name, call in calls.items():  # the calls run in parallel under one deadline
            try:
                left = max(0.0, until - time.monotonic())
                if self.lines[name].is_late:  # do not wait the full time a second time
                    left = min(left, AGAIN_S)
                found[name] = self.lines[name].wait(call, what, left)
            except DriverError:
                continue
        return found


def lookup(conn: Any, server_id: str) -> Seen | None:
    try:
        return _seen(conn.lookupByUUIDString(server_id))
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
            return None
        raise


def _is_active(conn: Any, server_id: str) -> bool:
    seen = lookup(conn, server_id)
    return seen is not None and seen.active


def _everything(conn: Any) -> tuple[dict[str, Any], list[Seen]]:
    info = conn.getInfo()
    size = {
        "vcpus": info[2],
        "memory_mb": info[1],
        "hypervisor_type": conn.getType(),
        "hypervisor_version": conn.getLibVersion(),  # QEMU's version takes a new daemon seconds
        "cpu_info": json.dumps({"arch": info[0]}),
    }
    found = (lookup(conn, listAllDomain.UUIDString()) for listAllDomain in conn.listAllDomains())
    return size, [seen for seen in found if seen is not None]


def _seen(domain: Any) -> Seen:
    status, passing = cloud_xml.status(*domain_xml.state(*domain.state()))
    return Seen(
        uuid=domain.UUIDString(),
        name=domain.name(),
        status=status,
        passing=passing,
        active=bool(domain.isActive()),
        persistent=bool(domain.isPersistent()),
        autostart=bool(domain.autostart()) if domain.isPersistent() else False,
        xml=domain.XMLDesc(AS_DEFINED),
    )
