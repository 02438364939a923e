# SPDX-License-Identifier: Apache-2.0
"""The SQLite file of the simulated cloud: tables, call counters, connections, transactions.

Every writing transaction is `BEGIN IMMEDIATE`: writers of all threads and processes queue for the
single write lock and never deadlock on an upgrade. Readers wait for no writer and see the last
commit. WAL makes the half transaction of a killed writer vanish.
"""

import contextlib
import os
import random
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

from holdfast.model.errors import DriverError
from holdfast.runtime.clock import Clock

# The tables. Two kinds of truth are stored side by side: what the cloud *reports*
# (`servers.status`, the service columns of `hosts`) and what *is* (`hosts.powered`, `domains`).
# Times are seconds since the epoch. `hosts.failed_at` is when the host fell silent: it has no
# power, or it is cut off. `hosts.changed_at` is when its service was last changed. `cuts` are
# cut cables of a host that is heard on its other networks. `servers.crashed` is 1 for a guest
# that died, 2 for a removed guest.


VERSION = 4

STATEMENTS = (
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE calls (name TEXT PRIMARY KEY, count INTEGER NOT NULL)",
    """CREATE TABLE effects (
        id INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL,
        call TEXT NOT NULL, subject TEXT NOT NULL)""",
    """CREATE TABLE hosts (
        id INTEGER PRIMARY KEY AUTOINCREMENT, uuid TEXT NOT NULL UNIQUE,
        name TEXT NOT NULL UNIQUE, short TEXT NOT NULL,
        hypervisor_hostname TEXT NOT NULL, hypervisor_short TEXT NOT NULL,
        hypervisor_type TEXT NOT NULL, hypervisor_version INTEGER NOT NULL,
        cpu_info TEXT NOT NULL, zone TEXT NOT NULL, rack TEXT NOT NULL,
        vcpus INTEGER NOT NULL, memory_mb INTEGER NOT NULL, local_gb INTEGER NOT NULL,
        inventories TEXT NOT NULL DEFAULT '{}', traits TEXT NOT NULL DEFAULT '[]',
        powered INTEGER NOT NULL DEFAULT 1, failed_at REAL, restarted_at REAL,
        enabled INTEGER NOT NULL DEFAULT 1, disabled_reason TEXT NOT NULL DEFAULT '',
        forced_down INTEGER NOT NULL DEFAULT 0, changed_at REAL NOT NULL DEFAULT 0,
        generation INTEGER NOT NULL DEFAULT 0)""",
    "CREATE INDEX hosts_short ON hosts (short)",
    "CREATE INDEX hosts_hypervisor_short ON hosts (hypervisor_short)",
    """CREATE TABLE cuts (
        host_id INTEGER NOT NULL REFERENCES hosts (id), network TEXT NOT NULL,
        PRIMARY KEY (host_id, network))""",
    """CREATE TABLE pools (
        id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE,
        metadata TEXT NOT NULL)""",
    """CREATE TABLE pool_hosts (
        pool_id INTEGER NOT NULL REFERENCES pools (id),
        host_id INTEGER NOT NULL REFERENCES hosts (id),
        PRIMARY KEY (pool_id, host_id))""",
    """CREATE TABLE servers (
        id TEXT PRIMARY KEY, name TEXT NOT NULL, project_id TEXT NOT NULL,
        host_id INTEGER REFERENCES hosts (id), status TEXT NOT NULL,
        vcpus INTEGER NOT NULL, memory_mb INTEGER NOT NULL, disk_gb INTEGER NOT NULL,
        flavor TEXT NOT NULL, metadata TEXT NOT NULL,
        user_id TEXT NOT NULL DEFAULT '', created_at REAL NOT NULL,
        locked INTEGER NOT NULL DEFAULT 0, locked_reason TEXT NOT NULL DEFAULT '',
        crashed INTEGER NOT NULL DEFAULT 0,
        task_state TEXT, finish_at REAL, next_status TEXT,
        dest_host_id INTEGER REFERENCES hosts (id))""",
    "CREATE INDEX servers_host ON servers (host_id)",
    "CREATE INDEX servers_dest ON servers (dest_host_id)",
    "CREATE INDEX servers_finish ON servers (finish_at) WHERE finish_at IS NOT NULL",
    """CREATE TABLE domains (
        server_id TEXT NOT NULL REFERENCES servers (id) ON DELETE CASCADE,
        host_id INTEGER NOT NULL REFERENCES hosts (id),
        PRIMARY KEY (server_id, host_id))""",
    "CREATE INDEX domains_host ON domains (host_id)",
    """CREATE TABLE migrations (
        id INTEGER PRIMARY KEY AUTOINCREMENT, server_id TEXT NOT NULL,
        source_id INTEGER NOT NULL REFERENCES hosts (id),
        dest_id INTEGER REFERENCES hosts (id), type TEXT NOT NULL,
        status TEXT NOT NULL, created_at REAL NOT NULL, run_at REAL NOT NULL,
        cleaned INTEGER NOT NULL DEFAULT 0)""",
    "CREATE INDEX migrations_source ON migrations (source_id)",
    "CREATE INDEX migrations_server ON migrations (server_id)",
    """CREATE TABLE images (
        id TEXT PRIMARY KEY, name TEXT NOT NULL, server_id TEXT NOT NULL,
        created_at REAL NOT NULL)""",
    "CREATE INDEX images_server ON images (server_id, name)",
    """CREATE TABLE flavors (
        id TEXT PRIMARY KEY, name TEXT NOT NULL UNIQUE, vcpus INTEGER NOT NULL,
        memory_mb INTEGER NOT NULL, disk_gb INTEGER NOT NULL, public INTEGER NOT NULL,
        extra_specs TEXT NOT NULL)""",
    """CREATE TABLE flavor_access (
        flavor_id TEXT NOT NULL REFERENCES flavors (id) ON DELETE CASCADE,
        project_id TEXT NOT NULL, PRIMARY KEY (flavor_id, project_id))""",
    """CREATE TABLE inventories (
        host_id INTEGER NOT NULL REFERENCES hosts (id), resource_class TEXT NOT NULL,
        total INTEGER NOT NULL, PRIMARY KEY (host_id, resource_class))""",
    """CREATE TABLE server_groups (
        id TEXT PRIMARY KEY, name TEXT NOT NULL, policy TEXT NOT NULL,
        project_id TEXT NOT NULL, UNIQUE (project_id, name))""",
    """CREATE TABLE addresses (
        id TEXT PRIMARY KEY, network_id TEXT NOT NULL, address TEXT NOT NULL,
        project_id TEXT NOT NULL, tags TEXT NOT NULL,
        server_id TEXT REFERENCES servers (id) ON DELETE SET NULL,
        UNIQUE (network_id, address))""",
    "CREATE TABLE networks (id TEXT PRIMARY KEY)",
    """CREATE TABLE subnets (
        id TEXT PRIMARY KEY, network_id TEXT NOT NULL REFERENCES networks (id),
        cidr TEXT NOT NULL, gateway TEXT, pools TEXT NOT NULL)""",
    """CREATE TABLE volumes (
        id TEXT PRIMARY KEY, name TEXT NOT NULL, project_id TEXT NOT NULL,
        size_gb INTEGER NOT NULL)""",
    """CREATE TABLE attachments (
        volume_id TEXT NOT NULL REFERENCES volumes (id) ON DELETE CASCADE,
        server_id TEXT NOT NULL REFERENCES servers (id) ON DELETE CASCADE,
        PRIMARY KEY (volume_id, server_id))""",
)


AGE_S = 0.2

_WRITE = (
    "INSERT INTO calls VALUES (?, ?)"
    " ON CONFLICT (name) DO UPDATE SET count = count + excluded.count"
)


class Calls:
    """Counts of calls on a file that are not written yet.

    The counts are kept in memory and written with the next writing transaction, because a reading
    call has none. All users of a file in this process share them and see each other's calls at
    once. Other processes see them when they are written: by the next call that changes something,
    or by the first read later than `AGE_S`. `kill -9` loses unwritten counts, but no state of the
    world.
    """

    _by_file: ClassVar[dict[tuple[int, int], "Calls"]] = {}
    _lock = threading.Lock()

    def __init__(self, key: tuple[int, int] = (0, 0)) -> None:
        self._key = key
        self._new: Counter[str] = Counter()
        self._since = 0.0
        self._users = 0

    @classmethod
    def of(cls, path: str) -> "Calls":
        """Return the counters of an existing file.

        A later file at the same path has its own counters.
        """
        status = os.stat(path)
        key = status.st_dev, status.st_ino
        with cls._lock:
            calls = cls._by_file.setdefault(key, cls(key))
            calls._users += 1
            return calls

    def let_go(self) -> bool:
        """Release a user; return whether it was the last user and counts are unwritten."""
        with self._lock:
            self._users -= 1
            if self._users == 0:
                del self._by_file[self._key]
            return self._users == 0 and bool(self._new)

    def add(self, some: Mapping[str, int]) -> None:
        with self._lock:
            if not self._new:
                self._since = time.monotonic()
            self._new.update(some)

    def drain(self) -> Mapping[str, int]:
        """Remove and return the unwritten counts.

        A caller that cannot write them returns them by `add`.
        """
        with self._lock:
            some, self._new = self._new, Counter()
            return some

    @staticmethod
    def write(db: sqlite3.Connection, some: Mapping[str, int]) -> None:
        if some:
            db.executemany(_WRITE, some.items())

    def are_old(self) -> bool:
        """Return whether counts are older than AGE_S, so that other processes should see them."""
        return bool(self._new) and time.monotonic() - self._since > AGE_S


PORT = "sim cloud"
PATIENCE_S = 10.0
#: Interval at which a writer tries the lock; SQLite's own pauses grow to 0.1 s.
POLL_S = 0.001


def failed(message: str, *, retryable: bool) -> DriverError:
    """Create the driver's DriverError."""
    return DriverError(PORT, message, retryable=retryable)


def _begin(db: sqlite3.Connection, how: str, deadline: float) -> None:
    """Begin a transaction; uses real time, because the lock's holder is another process."""
    while True:
        try:
            db.execute(how)
            if how == "BEGIN":  # BEGIN alone takes no snapshot yet
                db.execute("PRAGMA user_version").fetchone()
            return
        except sqlite3.OperationalError as error:
            if db.in_transaction:
                db.execute("ROLLBACK")
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(POLL_S)


class File:
    """A pool of connections to an SQLite file, one for each parallel transaction."""

    def __init__(self, path: str, clock: Clock, seed: int | None = None) -> None:
        self.path = path
        self._clock = clock
        self._idle: list[sqlite3.Connection] = []
        self._lock = threading.Lock()
        # Threads of a process queue here in turn; SQLite's own waiting is a poll with sleeps.
        self._turn = threading.Lock()
        self._closed = False
        self._calls = Calls()
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise failed(f"{path}: {error}", retryable=False) from error
        self._use_wal()
        self._create(seed)
        self._calls = Calls.of(path)

    @contextmanager
    def transaction(self, patience_s: float = PATIENCE_S) -> Iterator[sqlite3.Connection]:
        """Run the block in an exclusive transaction, all or nothing.

        SQLite errors become DriverError.
        """
        deadline = time.monotonic() + patience_s
        with self._turn, self._connection() as db:
            _begin(db, "BEGIN IMMEDIATE", deadline)
            counted = self._calls.drain()
            try:
                self._calls.write(db, counted)
                yield db
                db.execute("COMMIT")
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                    self._calls.add(counted)

    @contextmanager
    def reading(self, patience_s: float = PATIENCE_S) -> Iterator[sqlite3.Connection]:
        """Run the block in a reading transaction on the last commit, in parallel with a writer."""
        with self._connection() as db:
            _begin(db, "BEGIN", time.monotonic() + patience_s)
            try:
                yield db
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")

    def count(self, call: str) -> None:
        """Count a call; the count is written with the next transaction."""
        self._calls.add({call: 1})

    def must_write(self) -> bool:
        """Return whether counts are old enough to be written for other processes."""
        return self._calls.are_old()

    def close(self) -> None:
        """Close idle connections; a connection in use closes when its transaction ends."""
        if not self._closed and self._calls.let_go():
            # Write the last counts. If the file is gone, no process needs them.
            with contextlib.suppress(DriverError), self.transaction(0.0):
                pass
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for db in idle:
            db.close()

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        try:
            db = self._borrow()
            try:
                yield db
            finally:
                self._give_back(db)
        except sqlite3.Error as error:
            # Locked, full or unreadable may be temporary; a broken statement or file is not.
            passing = isinstance(error, sqlite3.OperationalError)
            raise failed(f"{self.path}: {error}", retryable=passing) from error

    def _borrow(self) -> sqlite3.Connection:
        with self._lock:
            if self._closed:
                raise failed(f"{self.path} is closed", retryable=False)
            if self._idle:
                return self._idle.pop()
        db = sqlite3.connect(
            self.path, timeout=PATIENCE_S, isolation_level=None, check_same_thread=False
        )
        db.row_factory = sqlite3.Row
        db.execute("PRAGMA foreign_keys = ON")
        # Safe if a process is killed; only a power cut may lose the last commits.
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("PRAGMA busy_timeout = 0")  # see _begin
        return db

    def _give_back(self, db: sqlite3.Connection) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(db)
                return
        db.close()

    def _use_wal(self) -> None:
        """Switch the file to WAL, with retries, because SQLite does not wait for the lock here."""
        never = threading.Event()
        deadline = self._clock.monotonic() + PATIENCE_S
        while True:
            try:
                with self._connection() as db:
                    db.execute("PRAGMA journal_mode = WAL")
                return
            except DriverError as error:
                if not isinstance(error.__cause__, sqlite3.OperationalError):
                    raise
                if "locked" not in str(error) or self._clock.monotonic() > deadline:
                    raise
            self._clock.wait(never, 0.02)

    def _create(self, seed: int | None) -> None:
        with self.transaction() as db:
            version = db.execute("PRAGMA user_version").fetchone()[0]
            if version == VERSION:
                return
            if version:
                raise failed(
                    f"{self.path} has layout {version}, this program {VERSION};"
                    " remove the file and seed it again",
                    retryable=False,
                )
            for statement in STATEMENTS:
                db.execute(statement)
            # Ids are hashes of this salt and a counter: unique in the file, reproducible by
            # seed.
            salt = f"{random.Random(seed).getrandbits(64):x}"
            db.execute("INSERT INTO meta VALUES ('salt', ?), ('ids', '0')", (salt,))
            db.execute(f"PRAGMA user_version = {VERSION}")
