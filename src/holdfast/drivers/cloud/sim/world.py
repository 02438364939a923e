# SPDX-License-Identifier: Apache-2.0
"""The world inside one transaction: time, settings, and how things are found in it."""

import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from holdfast.drivers.cloud.sim import progress
from holdfast.drivers.cloud.sim import settings as settings_
from holdfast.drivers.cloud.sim.file import PATIENCE_S, File
from holdfast.model.errors import Conflict, NotFound
from holdfast.model.host import same, short
from holdfast.ports.clock import Clock

SERVERS = (
    "SELECT s.*, h.name AS host,"
    " (SELECT extra_specs FROM flavors WHERE id = s.flavor OR name = s.flavor) AS extra_specs,"
    " (SELECT name FROM meta WHERE name = 'image:' || s.id) AS image"
    " FROM servers s LEFT JOIN hosts h ON h.id = s.host_id"
)


@dataclass(frozen=True)
class Effect:
    """Something that changed: when, by which call, to whom."""

    at: datetime
    call: str
    subject: str


def moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


class World:
    """One transaction. A caller may set `subject` to a better name than it came with; who is only
    `looking` writes nothing."""

    def __init__(
        self, db: sqlite3.Connection, now: float, subject: str, *, looking: bool = False
    ) -> None:
        self.looking = looking
        self.db = db
        self.now = now
        self.settings = settings_.load(db)
        self.subject = subject

    def one(self, sql: str, *values: Any) -> sqlite3.Row | None:
        row: sqlite3.Row | None = self.db.execute(sql, values).fetchone()
        return row

    def all(self, sql: str, *values: Any) -> list[sqlite3.Row]:
        return self.db.execute(sql, values).fetchall()

    def run(self, sql: str, *values: Any) -> int:
        """Execute a write; the number of rows it touched."""
        if self.looking:
            raise AssertionError(f"a look must not write: {sql}")
        return self.db.execute(sql, values).rowcount

    def change(self, **settings: Any) -> None:
        settings_.save(self.db, settings)
        self.settings = settings_.load(self.db)

    def new_id(self) -> str:
        """A uuid nobody in this file has; not random, so that runs can be replayed."""
        self.run("UPDATE meta SET value = value + 1 WHERE name = 'ids'")
        rows = self.all("SELECT name, value FROM meta")
        meta = {row["name"]: row["value"] for row in rows}
        return str(uuid.uuid5(uuid.NAMESPACE_OID, f"{meta['salt']}/{meta['ids']}"))

    def host(self, name: str) -> sqlite3.Row:
        """The host of that name, short or full, or of that uuid."""
        rows = self.all(
            "SELECT * FROM hosts WHERE uuid = ? OR short = ? OR hypervisor_short = ?",
            *(name, short(name), short(name)),
        )
        exact = [row for row in rows if name in (row["uuid"], row["name"])]
        found = exact or [
            row for row in rows if same(row["name"], name) or same(row["hypervisor_hostname"], name)
        ]
        if not found:
            raise NotFound(f"simulated cloud: no host {name}")
        if len(found) > 1:
            names = ", ".join(row["name"] for row in found)
            raise Conflict(f"simulated cloud: {name} could be any of {names}")
        return found[0]

    def server(self, server_id: str) -> sqlite3.Row:
        row = self.one(f"{SERVERS} WHERE s.id = ?", server_id)
        if row is None:
            raise NotFound(f"simulated cloud: no server {server_id}")
        return row

    def abandon_move(self, server_id: str) -> None:
        """A move under way, if any, will never arrive."""
        self.run(
            "UPDATE migrations SET status = 'failed'"
            f" WHERE server_id = ? AND status IN {progress.PENDING}",
            server_id,
        )

    def looks_up(self, host: sqlite3.Row) -> bool:
        """The service as the cloud sees it: it misses a silent host only after a while."""
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
    """A transaction in which what is due has happened; a change in it leaves an effect."""
    with (
        file.transaction(patience_s) as db,
        acting(World(db, clock.now().timestamp(), subject), call) as world,
    ):
        yield world


@contextmanager
def acting(world: World, call: str) -> Iterator[World]:
    """The same in a transaction that has begun. Its time was read with the lock in hand: time in
    the file never runs against its order."""
    db = world.db
    if world.looking:
        yield world
        return
    progress.settle(db, world.now)
    before = db.total_changes
    yield world
    if db.total_changes > before:
        db.execute(
            "INSERT INTO effects (at, call, subject) VALUES (?, ?, ?)",
            (world.now, call, world.subject),
        )
