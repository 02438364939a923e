# SPDX-License-Identifier: Apache-2.0
"""The simulated world in a transaction: settings, due actions, and lookups of hosts and servers."""

import dataclasses
import json
import sqlite3
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from holdfast.drivers.sim.file import PATIENCE_S, File
from holdfast.model.errors import Conflict, InvalidInput, NotFound
from holdfast.model.host import same, short
from holdfast.ports import cloud as ports
from holdfast.runtime.clock import Clock

# Settings: values, checks, rows.


#: Every call of every port, as `only_calls`, `calls()` and `effects()` name them.
CALLS = frozenset(
    f"{protocol.__name__.lower()}.{method}"
    for protocol in (
        ports.Hosts,
        ports.Pools,
        ports.Servers,
        ports.Moves,
        ports.Services,
        ports.Flavors,
        ports.Slots,
        ports.Addresses,
        ports.Volumes,
    )
    for method in vars(protocol)
    if not method.startswith("_")
)
#: Calls of the fences (`drivers/sim/outage.py`); only `only_calls` gives them faults.
FENCES = frozenset({"fence.power", "fence.off", "fence.on"})


@dataclass(frozen=True)
class Settings:
    """Fault settings of calls (limited to `only_calls`, if set) and durations of actions."""

    latency_s: float = 0.0  # duration of a call
    latency_jitter: float = 0.0  # variation of latency_s as a fraction, up or down
    lost_reply_rate: float = 0.0  # the call takes effect, the reply is lost
    failure_rate: float = 0.0  # the call fails without effect
    hang_s: float = 0.0  # the call blocks; the caller gives up at its timeout
    down: bool = False  # every call fails at once
    only_calls: tuple[str, ...] = ()
    delete_s: float = 0.0  # duration of `deleting`
    action_s: float = 0.0  # duration of stop, start, shelve, evacuate, ...
    service_down_s: float = 0.0  # seconds until a dead host's service is reported down
    report_s: float = 0.0  # report interval of nova-compute; 0: continuous
    fence_lies: bool = False  # a fence accepts the order, and the power stays

    def applies_to(self, call: str) -> bool:
        return not self.only_calls or call in self.only_calls


FIELDS = tuple(field.name for field in dataclasses.fields(Settings))
_TRUTHS = frozenset({"down", "fence_lies"})
_RATES = frozenset({"latency_jitter", "lost_reply_rate", "failure_rate"})


def check(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Validate and convert the changes; InvalidInput names the first wrong field."""
    return {name: _value(name, value) for name, value in changes.items()}


LARGEST = 86_400.0


def load(db: sqlite3.Connection) -> Settings:
    rows = db.execute("SELECT name, value FROM settings").fetchall()
    return Settings(**check({row["name"]: json.loads(row["value"]) for row in rows}))


def save(db: sqlite3.Connection, changes: Mapping[str, Any]) -> None:
    for name, value in check(changes).items():
        db.execute(
            "INSERT INTO settings VALUES (?, ?)"
            " ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            (name, json.dumps(value)),
        )


def _value(name: str, value: Any) -> Any:
    if name not in FIELDS:
        raise _wrong(name, f"no such setting; there are {', '.join(FIELDS)}")
    if name in _TRUTHS:
        if not isinstance(value, bool):
            raise _wrong(name, "must be true or false")
        return value
    if name == "only_calls":
        return _calls(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(name, "must be a number")
    if not 0 <= value < LARGEST:  # not true of NaN either
        raise _wrong(name, "must be zero or more, and no more than a day of seconds")
    if name in _RATES and value > 1:
        raise _wrong(name, "must be between 0 and 1")
    return float(value)


def _calls(value: Any) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, list | tuple | set | frozenset):
        raise _wrong("only_calls", "must be a list of call names")
    unknown = [call for call in value if call not in CALLS | FENCES]
    if unknown:
        raise _wrong("only_calls", f"no such call: {unknown[0]!r}")
    return tuple(value)


def _wrong(name: str, why: str) -> InvalidInput:
    return InvalidInput(f"simulated cloud: setting {name}: {why}", field=name)


# Due actions: deletes, actions and moves that became due since the last transaction.
#
# There is no background thread. A server with a running action has `finish_at`, `next_status`
# and perhaps `dest_host_id`; every transaction first completes what is due at its own time. An
# action that needs a silent host waits for it, as a message to a dead nova-compute does.


#: SQL that clears the running action.
IDLE = "task_state = NULL, finish_at = NULL, next_status = NULL, dest_host_id = NULL"

PENDING = "('accepted', 'running')"


def is_behind(db: sqlite3.Connection, now: float) -> bool:
    """Return whether an action may be due."""
    return db.execute(_ANYTHING, (now, now)).fetchone() is not None


_ANYTHING = (
    "SELECT 1 FROM servers WHERE finish_at <= ?"
    " UNION ALL SELECT 1 FROM migrations WHERE status = 'accepted' AND run_at <= ? LIMIT 1"
)


def settle(db: sqlite3.Connection, now: float) -> None:
    """Complete all actions that are due."""
    if not is_behind(db, now):
        return
    db.execute(
        "UPDATE migrations SET status = 'running' WHERE status = 'accepted' AND run_at <= ?",
        (now,),
    )
    due = db.execute(
        "SELECT s.*, there.failed_at AS lost_there, here.failed_at AS lost_here FROM servers s"
        " LEFT JOIN hosts there ON there.id = COALESCE(s.dest_host_id, s.host_id)"
        " LEFT JOIN hosts here ON here.id = s.host_id"
        " WHERE s.finish_at <= ?",
        (now,),
    ).fetchall()
    for server in due:
        if _waits(server):
            continue
        if server["task_state"] == "deleting":
            db.execute("DELETE FROM servers WHERE id = ?", (server["id"],))
        elif server["task_state"] == "migrating":
            _arrive(db, server)
        else:
            _finish(db, server)


def _waits(server: sqlite3.Row) -> bool:
    """Return whether the action needs a host that is silent.

    An evacuation without room needs no host; a live migration needs both.
    """
    if server["next_status"] == "ERROR":
        return False
    if server["task_state"] == "migrating" and server["lost_here"] is not None:
        return True
    return server["lost_there"] is not None


def _arrive(db: sqlite3.Connection, server: sqlite3.Row) -> None:
    """Complete a live migration: the guest runs on the new host, or stays if there was no room.

    A guest that died meanwhile cannot move.
    """
    runs = db.execute(
        "UPDATE domains SET host_id = ? WHERE server_id = ? AND host_id = ?",
        (server["dest_host_id"] or server["host_id"], server["id"], server["host_id"]),
    ).rowcount
    moved = bool(runs and server["dest_host_id"])
    db.execute(
        f"UPDATE migrations SET status = ? WHERE server_id = ? AND status IN {PENDING}",
        ("done" if moved else "failed", server["id"]),
    )
    db.execute(
        f"UPDATE servers SET status = ?, host_id = ?, {IDLE} WHERE id = ?",
        (
            server["next_status"] if runs else "SHUTOFF",
            server["dest_host_id"] if moved else server["host_id"],
            server["id"],
        ),
    )


def _finish(db: sqlite3.Connection, server: sqlite3.Row) -> None:
    status, server_id = server["next_status"], server["id"]
    host_id = server["dest_host_id"] or server["host_id"]
    if server["task_state"] == "rebuilding":
        # The simulator does not end the domain on the source: if that host still has power, it
        # was not fenced, and a start at the target makes the server run twice. Tests look for
        # that.
        ended = "failed" if status == "ERROR" else "done"
        db.execute(
            f"UPDATE migrations SET status = ? WHERE server_id = ? AND status IN {PENDING}",
            (ended, server_id),
        )
    elif server["task_state"] != "image_snapshot":
        db.execute(
            "DELETE FROM domains WHERE server_id = ? AND host_id = ?",
            (server_id, server["host_id"]),
        )
    if status == "ACTIVE":
        db.execute("INSERT OR IGNORE INTO domains VALUES (?, ?)", (server_id, host_id))
    if status == "SHELVED_OFFLOADED":
        host_id = None
    db.execute(
        f"UPDATE servers SET status = ?, host_id = ?, {IDLE} WHERE id = ?",
        (status, host_id, server_id),
    )


SERVERS = (
    "SELECT s.*, h.name AS host,"
    " (SELECT extra_specs FROM flavors WHERE id = s.flavor OR name = s.flavor) AS extra_specs,"
    " (SELECT name FROM meta WHERE name = 'image:' || s.id) AS image"
    " FROM servers s LEFT JOIN hosts h ON h.id = s.host_id"
)


@dataclass(frozen=True)
class Effect:
    """A recorded change: time, call, subject."""

    at: datetime
    call: str
    subject: str


def moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


class World:
    """A transaction on the world.

    A caller may set `subject` to a better name. With `read_only` the transaction only reads.
    """

    def __init__(
        self, db: sqlite3.Connection, now: float, subject: str, *, read_only: bool = False
    ) -> None:
        self.read_only = read_only
        self.db = db
        self.now = now
        self.settings = load(db)
        self.subject = subject

    def one(self, sql: str, *values: Any) -> sqlite3.Row | None:
        row: sqlite3.Row | None = self.db.execute(sql, values).fetchone()
        return row

    def all(self, sql: str, *values: Any) -> list[sqlite3.Row]:
        return self.db.execute(sql, values).fetchall()

    def run(self, sql: str, *values: Any) -> int:
        """Execute a write; return the number of changed rows."""
        if self.read_only:
            raise AssertionError(f"a read-only transaction must not write: {sql}")
        return self.db.execute(sql, values).rowcount

    def change(self, **settings: Any) -> None:
        save(self.db, settings)
        self.settings = load(self.db)

    def new_id(self) -> str:
        """Return a new uuid, unique in the file; not random, which makes runs reproducible."""
        self.run("UPDATE meta SET value = value + 1 WHERE name = 'ids'")
        rows = self.all("SELECT name, value FROM meta")
        meta = {row["name"]: row["value"] for row in rows}
        return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{meta['salt']}/{meta['ids']}"))

    def host(self, name: str) -> sqlite3.Row:
        """Return the host by short name, full name or uuid."""
        rows = self.all(
            "SELECT * FROM hosts WHERE uuid = ? OR short = ? OR hypervisor_short = ?",
            *(name, short(name), short(name)),
        )
        exact = [row for row in rows if name in (row["uuid"], row["name"])]
        matches = exact or [
            row for row in rows if same(row["name"], name) or same(row["hypervisor_hostname"], name)
        ]
        if not matches:
            raise NotFound(f"simulated cloud: no host {name}")
        if len(matches) > 1:
            names = ", ".join(row["name"] for row in matches)
            raise Conflict(f"simulated cloud: {name} could be any of {names}")
        return matches[0]

    def server(self, server_id: str) -> sqlite3.Row:
        row = self.one(f"{SERVERS} WHERE s.id = ?", server_id)
        if row is None:
            raise NotFound(f"simulated cloud: no server {server_id}")
        return row

    def abandon_move(self, server_id: str) -> None:
        """Mark a running move, if any, as failed."""
        self.run(
            f"UPDATE migrations SET status = 'failed' WHERE server_id = ? AND status IN {PENDING}",
            server_id,
        )

    def appears_up(self, host: sqlite3.Row) -> bool:
        """Return whether the cloud reports the service as up.

        The cloud notices a silent host only after `service_down_s`.
        """
        if host["forced_down"]:
            return False
        if host["failed_at"] is None:
            return True
        return bool(self.now < host["failed_at"] + self.settings.service_down_s)


@contextmanager
def open_world(
    file: File,
    clock: Clock,
    call: str,
    subject: str = "",
    patience_s: float = PATIENCE_S,
) -> Iterator[World]:
    """Open a transaction in which due actions are complete; a change leaves an effect."""
    with (
        file.transaction(patience_s) as db,
        acting(World(db, clock.now().timestamp(), subject), call) as world,
    ):
        yield world


@contextmanager
def acting(world: World, call: str) -> Iterator[World]:
    """Complete due actions in an open transaction, and record an effect after a change.

    The transaction's time was read with the lock held: times in the file never contradict its
    order.
    """
    db = world.db
    if world.read_only:
        yield world
        return
    settle(db, world.now)
    before = db.total_changes
    yield world
    if db.total_changes > before:
        db.execute(
            "INSERT INTO effects (at, call, subject) VALUES (?, ?, ?)",
            (world.now, call, world.subject),
        )
