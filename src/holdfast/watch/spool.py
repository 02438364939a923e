# SPDX-License-Identifier: Apache-2.0
"""What was decided and not yet delivered, on disk: it outlives kill -9 and a reboot.

A SQLite file of its own. Reports of one subject leave in the order in which they came; one that
cannot be taken, or that JSON cannot say (a number that is none), is put aside with the reason, and
kept for people: it would stand in the way of all that comes after it. What whoever decides has to
remember is written with what it decided, so that neither is there without the other.
"""

import contextlib
import json
import logging
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.model.errors import DriverError
from holdfast.model.observed import OVER_SINCE

LOG = logging.getLogger(__name__)
#: More than that are not kept: whoever decides has to wait, and decides again.
MOST = 10_000
#: Put aside, the latest of them.
MOST_PARKED = 100
_SCHEMA = """
CREATE TABLE IF NOT EXISTS reports (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  subject TEXT NOT NULL,
  key TEXT NOT NULL UNIQUE,
  body TEXT NOT NULL,
  parked TEXT
);
CREATE INDEX IF NOT EXISTS ix_reports_subject ON reports (subject, id);
CREATE INDEX IF NOT EXISTS ix_reports_parked ON reports (parked);
CREATE TABLE IF NOT EXISTS notes (name TEXT PRIMARY KEY, text TEXT NOT NULL);
"""
_IS_OVER = (
    "UPDATE reports SET body = json_set(body, ?, ?) WHERE subject = ? AND parked IS NULL"
    " AND json_extract(body, '$.state') = 'failed'"
)


@dataclass(frozen=True)
class Item:
    id: int
    subject: str
    body: Mapping[str, Any]


@dataclass(frozen=True)
class Backlog:
    """How many reports wait to be delivered, when the oldest of them was made, and how many were
    put aside."""

    waits: int = 0
    oldest_at: str | None = None
    put_aside: int = 0


class Spool:
    """Threads may share it. `backlog` is kept in memory: whoever asks for it does not wait for the
    disk."""

    def __init__(self, path: str, *, most: int = MOST) -> None:
        self._path = path
        self._most = most
        self._lock = threading.Lock()
        with self._errors():
            if path != ":memory:":
                Path(path).parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(
                path, check_same_thread=False, isolation_level=None, timeout=5
            )
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.executescript(_SCHEMA)
            self.backlog = _backlog(self._db)

    def put(
        self,
        items: Iterable[tuple[str, str, Mapping[str, Any]]],
        notes: Mapping[str, Any] | None = None,
        over: Mapping[str, str] | None = None,
    ) -> None:
        """(subject, key, body) of each, all or none; a key that is there already is there. `notes`
        by name replace those before. `over`: subjects that are well again, and since when; failures
        of them that still wait say so, for who gets them shall not have to wait for the next."""
        rows = [(subject, key, *_said(subject, body)) for subject, key, body in items]
        with self._change() as db:
            (kept,) = db.execute("SELECT count(*) FROM reports WHERE parked IS NULL").fetchone()
            if kept + len(rows) > self._most:
                raise self._failed(f"{kept} reports wait to be delivered, more are not kept")
            db.executemany(
                "INSERT OR IGNORE INTO reports (subject, key, body, parked) VALUES (?, ?, ?, ?)",
                rows,
            )
            if any(parked for *_, parked in rows):
                _keep_few_parked(db)
            for subject, since in (over or {}).items():
                db.execute(_IS_OVER, (f"$.evidence.{OVER_SINCE}", since, subject))
            for name, value in (notes or {}).items():
                db.execute("REPLACE INTO notes VALUES (?, ?)", (name, json.dumps(value)))

    def note(self, name: str) -> Any:
        """What was noted under that name; None if nothing was."""
        with self._lock, self._errors():
            row = self._db.execute("SELECT text FROM notes WHERE name = ?", (name,)).fetchone()
        return None if row is None else json.loads(row[0])

    def heads(self, most: int = 100) -> list[Item]:
        """The oldest of each subject, oldest first."""
        query = (
            "SELECT min(id), subject, body FROM reports WHERE parked IS NULL"
            " GROUP BY subject ORDER BY 1 LIMIT ?"
        )
        with self._lock, self._errors():
            rows = self._db.execute(query, (most,)).fetchall()
        return [Item(id_, subject, json.loads(body)) for id_, subject, body in rows]

    def done(self, item: Item) -> None:
        with self._change() as db:
            db.execute("DELETE FROM reports WHERE id = ?", (item.id,))

    def park(self, item: Item, why: str) -> None:
        """Nobody will ever take it: for people to look at."""
        with self._change() as db:
            db.execute("UPDATE reports SET parked = ? WHERE id = ?", (why[:1000], item.id))
            _keep_few_parked(db)

    def counts(self) -> tuple[int, int]:
        """How many wait, and how many were put aside."""
        with self._lock, self._errors():
            row = self._db.execute(
                "SELECT count(*) FILTER (WHERE parked IS NULL), count(parked) FROM reports"
            ).fetchone()
        return int(row[0]), int(row[1])

    def close(self) -> None:
        with self._lock:
            self._db.close()

    @contextlib.contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._errors():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                backlog = _backlog(self._db)
                self._db.execute("COMMIT")
                self.backlog = backlog
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise self._failed(f"{self._path}: {error}") from error

    def _failed(self, why: str) -> DriverError:
        return DriverError("spool", why, retryable=True)


def _said(subject: str, body: Mapping[str, Any]) -> tuple[str, str | None]:
    """Its text, and why it is put aside at once: nobody could be sent it."""
    try:
        return json.dumps(body, allow_nan=False), None
    except (TypeError, ValueError) as error:
        why = f"it cannot be said in JSON: {error}"
        LOG.error("a report about %s is put aside: %s: %r", subject, why, body)
        return json.dumps(repr(body)), why[:1000]


def _backlog(db: sqlite3.Connection) -> Backlog:
    """By an index: it is read with every change."""
    (waits,) = db.execute("SELECT count(*) FROM reports WHERE parked IS NULL").fetchone()
    (aside,) = db.execute("SELECT count(*) FROM reports WHERE parked IS NOT NULL").fetchone()
    oldest = "SELECT min(id) FROM reports WHERE parked IS NULL"
    made = f"SELECT json_extract(body, '$.observed_at') FROM reports WHERE id = ({oldest})"
    row = db.execute(made).fetchone() if waits else None
    return Backlog(int(waits), str(row[0]) if row and row[0] else None, int(aside))


def _keep_few_parked(db: sqlite3.Connection) -> None:
    db.execute(
        "DELETE FROM reports WHERE parked IS NOT NULL AND id NOT IN"
        " (SELECT id FROM reports WHERE parked IS NOT NULL ORDER BY id DESC LIMIT ?)",
        (MOST_PARKED,),
    )
