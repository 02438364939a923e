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
from holdfast.drivers.libvirt import domain_xml
from holdfast.drivers.libvirt.connection import Call
from holdfast.drivers.libvirt.host_connection import HostConnection, failed
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
            reason = f"[libvirt] state: {path} cannot be used: {error}"
            raise failed(reason, retryable=False) from error
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
                reason = (
                    f"{self.path} has layout {version}, this program {VERSION}: give it another"
                )
                raise failed(f"{reason} [libvirt] state", retryable=False)
            for statement in _TABLES:
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {VERSION}")


LOG = logging.getLogger(__name__)

SHELVED = "SHELVED_OFFLOADED"
EVACUATION = "evacuation"
#: How long the table `gone` keeps the XML of a vanished guest.
KEEP_GONE_S = 90 * 86_400.0


@dataclass(frozen=True)
class DomainState:
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
class GuestRecord:
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

    @property
    def version(self) -> tuple[object, ...]:
        """Differs after every change of the guest's host, task or state."""
        return self.host, self.token, self.changed_at

    def server(self) -> Server:
        facts = domain_xml.read_cloud_facts(self.xml)
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

    def find(self, server_id: str) -> GuestRecord:
        with self.file.transaction() as db:
            return _find(db, server_id)

    def all(self) -> Sequence[GuestRecord]:
        with self.file.transaction() as db:
            rows = db.execute("SELECT * FROM guests ORDER BY name, uuid").fetchall()
        return [_record(row) for row in rows]

    def overdue(self) -> Sequence[GuestRecord]:
        """Return guests whose task is overdue: the process died or does not know the outcome."""
        with self.file.transaction() as db:
            query = "SELECT * FROM guests WHERE task IS NOT NULL AND until < ?"
            return [_record(row) for row in db.execute(query, (self.now(),))]

    # Polls of hosts

    def record(
        self, host: str, domains: Sequence[DomainState], began: float, *, of: str = ""
    ) -> None:
        """Record the domains that a host reported: all, or only the guest with the uuid `of`."""
        with self.file.transaction() as db:
            marks = db.execute("SELECT * FROM hosts WHERE name = ?", (host,)).fetchone()
            if marks is None or marks["forced_down"]:
                return
            for domain in domains:
                self._record_domain(db, host, domain, began)
            there = {domain.uuid for domain in domains}
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

    def _record_domain(
        self, db: sqlite3.Connection, host: str, domain: DomainState, began: float
    ) -> None:
        row = db.execute("SELECT * FROM guests WHERE uuid = ?", (domain.uuid,)).fetchone()
        values = (
            domain.name,
            domain.xml,
            domain.autostart,
            domain.persistent,
            domain.status,
            domain.passing,
        )
        if row is None:
            db.execute(
                "INSERT INTO guests (name, xml, autostart, persistent, status, passing, uuid, host,"
                " created_at, changed_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*values, domain.uuid, host, began, began),
            )
            return
        if row["task"] or row["changed_at"] >= began:
            return
        if row["host"] != host and not self._came_here(db, _record(row), host, domain):
            return
        db.execute(
            "UPDATE guests SET name = ?, xml = ?, autostart = ?, persistent = ?, status = ?,"
            " passing = ?, host = ?, left_host = NULL WHERE uuid = ?",
            (*values, host, domain.uuid),
        )

    def _came_here(
        self, db: sqlite3.Connection, guest: GuestRecord, host: str, domain: DomainState
    ) -> bool:
        """Return whether an operator moved the guest to this host.

        That is so if the guest runs here and not on the host it belongs to. A copy that does not
        run is a leftover of a move.
        """
        if guest.host is not None and guest.host not in self.configured:
            return True  # its host was renamed or removed from the configuration
        if guest.host is None or not domain.active:
            return domain.active
        if guest.status in ("ACTIVE", "PAUSED"):
            warning = "guest %s belongs to %s and is seen running on %s"
            LOG.warning(warning, domain.name, guest.host, host)
            return False
        there = db.execute("SELECT forced_down FROM hosts WHERE name = ?", (guest.host,)).fetchone()
        return there is None or not there["forced_down"]

    # Tasks

    def begin(
        self,
        record: GuestRecord,
        task: str,
        lasts_s: float,
        *,
        dest: str | None = None,
        runs: bool = True,
    ) -> GuestRecord:
        """Start a task on a guest under a new token.

        Raises Conflict if a task runs already, or if the guest was changed since `record` was read.
        """
        now = self.now()
        with self.file.transaction() as db:
            guest = _unchanged(db, record)
            if guest.task:
                raise Conflict(f"server {record.uuid}: it is {guest.task}")
            db.execute(
                "UPDATE guests SET task = ?, token = ?, until = ?, dest = ?, runs = ?,"
                " changed_at = ? WHERE uuid = ?",
                (task, uuid.uuid4().hex, now + lasts_s, dest, runs, now, record.uuid),
            )
            if task == "rebuilding":
                _record_migration(db, record, dest, "running", now)
            return _find(db, record.uuid)

    def is_mine(self, doing: GuestRecord) -> bool:
        """Return whether the task still has this token and its deadline has not passed."""
        with self.file.transaction() as db:
            return _is(db, doing) and (doing.until or 0.0) > self.now()

    def hand_over(self, doing: GuestRecord, lasts_s: float = 0.0) -> GuestRecord | None:
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
            return _find(db, doing.uuid)

    def end(
        self,
        doing: GuestRecord,
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
        """End whatever task the guest has, as an operator orders it."""
        with self.file.transaction() as db:
            self._reset(db, _find(db, server_id), error=error)

    def drop_task(self, record: GuestRecord) -> GuestRecord:
        """End the task of a guest on a dead host; return the guest without the task.

        Raises Conflict if the guest was changed since `record` was read.
        """
        with self.file.transaction() as db:
            _unchanged(db, record)
            self._reset(db, record, error=record.error)
            return _find(db, record.uuid)

    def refuse_move(self, record: GuestRecord, dest: str | None) -> None:
        """Record an evacuation that failed for lack of room, and mark the guest with ERROR.

        Raises Conflict if the guest was changed since `record` was read.
        """
        with self.file.transaction() as db:
            _unchanged(db, record)
            _record_migration(db, record, dest, "failed", self.now())
            self._reset(db, record, error=True)

    def _reset(self, db: sqlite3.Connection, guest: GuestRecord, *, error: bool) -> None:
        _write(db, guest.uuid, {"error": int(error), "changed_at": self.now()})
        db.execute(
            "UPDATE migrations SET status = 'failed', why = 'reset' WHERE server_id = ?"
            " AND status = 'running'",
            (guest.uuid,),
        )

    def adopt(self, record: GuestRecord, host: str) -> None:
        """Record that an operator has moved the guest to `host`, where it runs.

        Raises Conflict if the guest was changed since `record` was read: another manager may have
        brought the guest to `host`, and its task still runs.
        """
        with self.file.transaction() as db:
            _unchanged(db, record)
            values = {"host": host, "status": "ACTIVE", "error": 0, "changed_at": self.now()}
            _write(db, record.uuid, values)

    def lock(self, server_id: str, reason: str) -> None:
        with self.file.transaction() as db:
            _find(db, server_id)
            db.execute(
                "UPDATE guests SET locked = 1, locked_reason = COALESCE(?, locked_reason)"
                " WHERE uuid = ?",
                (reason or None, server_id),
            )

    def unlock(self, server_id: str) -> None:
        with self.file.transaction() as db:
            _find(db, server_id)
            query = "UPDATE guests SET locked = 0, locked_reason = '' WHERE uuid = ?"
            db.execute(query, (server_id,))

    def is_wanted_at(self, guest: GuestRecord, host: str) -> bool:
        """Return whether the guest belongs to `host`, or another task is bringing it there."""
        with self.file.transaction() as db:
            row = db.execute(
                "SELECT 1 FROM guests WHERE uuid = ? AND (host = ? OR left_host = ?"
                " OR (dest = ? AND token != ?))",
                (guest.uuid, host, host, host, guest.token),
            ).fetchone()
            return row is not None


def _record_migration(
    db: sqlite3.Connection, guest: GuestRecord, dest: str | None, status: str, now: float
) -> None:
    db.execute(
        "INSERT INTO migrations (server_id, source, dest, type, status, created_at)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        (guest.uuid, guest.host, dest, EVACUATION, status, now),
    )


def _write(db: sqlite3.Connection, server_id: str, values: Mapping[str, object]) -> None:
    """Set these columns and clear the task."""
    names = ", ".join(f"{name} = ?" for name in values)
    db.execute(
        f"UPDATE guests SET {names}, task = NULL, token = NULL, until = NULL, dest = NULL,"
        " passing = NULL WHERE uuid = ?",
        (*values.values(), server_id),
    )


def _is(db: sqlite3.Connection, doing: GuestRecord) -> bool:
    query = "SELECT 1 FROM guests WHERE uuid = ? AND token = ?"
    return db.execute(query, (doing.uuid, doing.token)).fetchone() is not None


def _find(db: sqlite3.Connection, server_id: str) -> GuestRecord:
    row = db.execute("SELECT * FROM guests WHERE uuid = ?", (server_id,)).fetchone()
    if row is None:
        raise NotFound(f"there is no server {server_id}")
    return _record(row)


def _unchanged(db: sqlite3.Connection, record: GuestRecord) -> GuestRecord:
    """Return the stored guest; Conflict if host, task or state changed since `record` was read."""
    guest = _find(db, record.uuid)
    if guest.version != record.version:
        raise Conflict(f"server {record.uuid}: something was done with it meanwhile")
    return guest


_TRUTHS: Iterable[str] = ("autostart", "persistent", "runs", "locked", "error")


def _record(row: sqlite3.Row) -> GuestRecord:
    values = dict(zip(row.keys(), row, strict=True))
    return GuestRecord(**{**values, **{name: bool(values[name]) for name in _TRUTHS}})


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

    def __init__(self, settings: Settings, registry: GuestRegistry) -> None:
        self.settings = settings
        self.registry = registry
        self.connections: Mapping[str, HostConnection] = {
            host.name: HostConnection(host) for host in settings.hosts
        }
        self._last: tuple[float, Collection[str]] = (float("-inf"), ())

    def name(self, host: str) -> str:
        """Return the host's name in the spelling of the configuration; NotFound."""
        names = [name for name in self.connections if same(name, host)]
        if not names:
            raise NotFound(f"there is no host {host} in [libvirt] hosts")
        return names[0]

    def connection(self, host: str) -> HostConnection:
        return self.connections[self.name(host)]

    def call(self, host: str, call_name: str, do: Callable[[Any], T]) -> T:
        """Run a call on a host with the time limit of a poll."""
        return self.connection(host).call(call_name, do, self.settings.poll_timeout_s)

    def all(self) -> Collection[str]:
        """Poll every host and every guest; return the hosts that answered."""
        when, answering = time.monotonic(), self._round(self.connections)
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
        guest = self.registry.find(server_id)
        if guest.host is None:
            return False
        began = self.registry.now()
        try:
            domain = self.call(guest.host, "domain", lambda conn: lookup(conn, server_id))
        except DriverError:
            return False
        self.registry.record(guest.host, [domain] if domain else [], began, of=server_id)
        return domain is not None

    def running(self, server_id: str) -> Mapping[str, bool]:
        """Return for each host that answers whether the guest runs there now."""
        calls = self._begin(self.connections, "running", lambda conn: _is_active(conn, server_id))
        return self._answers(calls, "running")

    def close(self) -> None:
        for connection in self.connections.values():
            connection.close()

    def _round(self, names: Collection[str]) -> Collection[str]:
        began = self.registry.now()
        answers = self._answers(self._begin(names, "domains", _list_domains), "domains")
        for name, (size, domains) in answers.items():
            with self.registry.file.transaction() as db:
                db.execute(
                    "UPDATE hosts SET seen_at = ?, size = ? WHERE name = ?",
                    (self.registry.now(), json.dumps(size), name),
                )
            self.registry.record(name, domains, began)
        return answers.keys()

    def _begin(
        self, names: Collection[str], call_name: str, do: Callable[[Any], T]
    ) -> dict[str, Call[T]]:
        calls = {}
        for name in names:
            try:
                calls[name] = self.connections[name].begin(call_name, do)
            except DriverError:  # silent: the host is missing from the result
                continue
        return calls

    def _answers(self, calls: Mapping[str, Call[T]], call_name: str) -> dict[str, T]:
        answers, until = {}, time.monotonic() + self.settings.poll_timeout_s
        for name, call in calls.items():  # the calls run in parallel under one deadline
            try:
                left = max(0.0, until - time.monotonic())
                if self.connections[name].is_late:  # do not wait the full time a second time
                    left = min(left, AGAIN_S)
                answers[name] = self.connections[name].wait(call, call_name, left)
            except DriverError:
                continue
        return answers


def lookup(conn: Any, server_id: str) -> DomainState | None:
    try:
        return _domain_state(conn.lookupByUUIDString(server_id))
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
            return None
        raise


def _is_active(conn: Any, server_id: str) -> bool:
    domain = lookup(conn, server_id)
    return domain is not None and domain.active


def _list_domains(conn: Any) -> tuple[dict[str, Any], list[DomainState]]:
    info = conn.getInfo()
    size = {
        "vcpus": info[2],
        "memory_mb": info[1],
        "hypervisor_type": conn.getType(),
        "hypervisor_version": conn.getLibVersion(),  # QEMU's version takes a new daemon seconds
        "cpu_info": json.dumps({"arch": info[0]}),
    }
    domains = (lookup(conn, listAllDomain.UUIDString()) for listAllDomain in conn.listAllDomains())
    return size, [domain for domain in domains if domain is not None]


def _domain_state(domain: Any) -> DomainState:
    status, passing = domain_xml.server_status(*domain_xml.state(*domain.state()))
    return DomainState(
        uuid=domain.UUIDString(),
        name=domain.name(),
        status=status,
        passing=passing,
        active=bool(domain.isActive()),
        persistent=bool(domain.isPersistent()),
        autostart=bool(domain.autostart()) if domain.isPersistent() else False,
        xml=domain.XMLDesc(AS_DEFINED),
    )
