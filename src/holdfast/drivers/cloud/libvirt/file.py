# SPDX-License-Identifier: Apache-2.0
"""What libvirt cannot remember, in an SQLite file: marks on hosts, guests as last seen, moves.

It cannot be with the guests or on their hosts: it is needed when these are dead. The file holds
their XML with its secrets (a console's password), so only its owner may read it.
"""

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

from holdfast.drivers.cloud.libvirt.line import failed

VERSION = 1
PATIENCE_S = 5.0
_TABLES = (
    "CREATE TABLE hosts (name TEXT PRIMARY KEY, enabled INTEGER NOT NULL DEFAULT 1,"
    " disabled_reason TEXT NOT NULL DEFAULT '', forced_down INTEGER NOT NULL DEFAULT 0,"
    " changed_at REAL, seen_at REAL, size TEXT NOT NULL DEFAULT '{}')",
    # host: where it is; none while it is shelved, and then left_host is where its definition is.
    # task, token, until, dest: what is under way, in whose name, how long, and where to.
    "CREATE TABLE guests (uuid TEXT PRIMARY KEY, name TEXT NOT NULL, host TEXT, left_host TEXT,"
    " xml TEXT NOT NULL, autostart INTEGER NOT NULL, persistent INTEGER NOT NULL,"
    " status TEXT NOT NULL, passing TEXT, created_at REAL NOT NULL, changed_at REAL NOT NULL,"
    " task TEXT, token TEXT, until REAL, dest TEXT, runs INTEGER NOT NULL DEFAULT 0,"
    " locked INTEGER NOT NULL DEFAULT 0, locked_reason TEXT NOT NULL DEFAULT '',"
    " error INTEGER NOT NULL DEFAULT 0)",
    "CREATE INDEX guests_host ON guests (host)",
    # cleared: the host that may have had a copy of the guest is back, and has none any more
    "CREATE TABLE migrations (id INTEGER PRIMARY KEY AUTOINCREMENT, server_id TEXT NOT NULL,"
    " source TEXT NOT NULL, dest TEXT, type TEXT NOT NULL, status TEXT NOT NULL,"
    " created_at REAL NOT NULL, cleared INTEGER NOT NULL DEFAULT 0, why TEXT NOT NULL DEFAULT '')",
    "CREATE INDEX migrations_source ON migrations (source)",
    # nobody reads it but people who miss a guest
    "CREATE TABLE gone (uuid TEXT, name TEXT, host TEXT, at REAL, xml TEXT)",
)


class File:
    """One connection, used in turn: transactions are short and there are few."""

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
            # What is promised here must outlast a power cut: where a guest was started, above all.
            self._db.execute("PRAGMA synchronous = FULL")
        except (OSError, sqlite3.Error) as error:
            said = f"[libvirt] state: {path} cannot be used: {error}"
            raise failed(said, retryable=False) from error
        self._create()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All of the block or none of it."""
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
