# SPDX-License-Identifier: Apache-2.0
"""The file the simulated cloud lives in: connections and transactions, nothing of their meaning.

Every transaction that writes is `BEGIN IMMEDIATE`: writers of all threads and processes queue for
the one write lock and never deadlock on an upgrade. Who only looks waits for nobody and sees what
was committed last. WAL makes a killed writer's half transaction vanish.
"""

import contextlib
import random
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.drivers.cloud.sim import schema
from holdfast.drivers.cloud.sim.calls import Calls
from holdfast.model.errors import DriverError
from holdfast.ports.clock import Clock

PORT = "sim cloud"
PATIENCE_S = 10.0
#: How often a writer looks whether the lock is free; SQLite's own pauses grow to 0.1 s.
POLL_S = 0.001


def failed(message: str, *, retryable: bool) -> DriverError:
    """The one kind of failure this driver has."""
    return DriverError(PORT, message, retryable=retryable)


def _begin(db: sqlite3.Connection, how: str, deadline: float) -> None:
    """Begin a transaction; real time, for what it waits for is another process."""
    while True:
        try:
            db.execute(how)
            if how == "BEGIN":  # which by itself does nothing yet
                db.execute("PRAGMA user_version").fetchone()
            return
        except sqlite3.OperationalError as error:
            if db.in_transaction:
                db.execute("ROLLBACK")
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(POLL_S)


class File:
    """A pool of connections to one SQLite file, as many as transactions run at once."""

    def __init__(self, path: str, clock: Clock, seed: int | None = None) -> None:
        self.path = path
        self._clock = clock
        self._idle: list[sqlite3.Connection] = []
        self._lock = threading.Lock()
        # Threads of one process queue here, in turn; SQLite's own waiting is a poll with sleeps.
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
        """All of the block or none of it, alone; foreign exceptions become DriverError."""
        deadline = time.monotonic() + patience_s
        with self._turn, self._connection() as db:
            _begin(db, "BEGIN IMMEDIATE", deadline)
            counted = self._calls.take()
            try:
                self._calls.write(db, counted)
                yield db
                db.execute("COMMIT")
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                    self._calls.add(counted)

    @contextmanager
    def looking(self, patience_s: float = PATIENCE_S) -> Iterator[sqlite3.Connection]:
        """What was committed last, and beside whoever writes."""
        with self._connection() as db:
            _begin(db, "BEGIN", time.monotonic() + patience_s)
            try:
                yield db
            finally:
                if db.in_transaction:
                    db.execute("ROLLBACK")

    def count(self, call: str) -> None:
        """Of a call that came in; it is written with the next transaction."""
        self._calls.add({call: 1})

    def must_write(self) -> bool:
        """Whether calls have been counted for so long that others should see them."""
        return self._calls.are_old()

    def close(self) -> None:
        """Close what is idle; what is in use closes when its transaction ends."""
        if not self._closed and self._calls.let_go():
            # What was counted last; where the file has gone, nobody asks how often.
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
            # Locked, full or unreadable may pass; a broken statement or file will not.
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
        # Enough against a killed process; only a power cut may cost the last commits.
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
        """Switch the file to WAL; SQLite does not queue for that, so we do."""
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
            if version == schema.VERSION:
                return
            if version:
                raise failed(
                    f"{self.path} has layout {version}, this program {schema.VERSION};"
                    " remove the file and seed it again",
                    retryable=False,
                )
            for statement in schema.STATEMENTS:
                db.execute(statement)
            # Ids are hashes of this and a counter: unique in the file, the same for one seed.
            salt = f"{random.Random(seed).getrandbits(64):x}"
            db.execute("INSERT INTO meta VALUES ('salt', ?), ('ids', '0')", (salt,))
            db.execute(f"PRAGMA user_version = {schema.VERSION}")
