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
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.model.errors import DriverError, Forbidden, HoldfastError, InvalidInput
from holdfast.model.observation import OVER_SINCE
from holdfast.ports.reports import Reports
from holdfast.runtime.clock import Clock
from holdfast.runtime.threads import Worker

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


class Outbox:
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


# Carries what the spool holds to Holdfast, for as long as it takes, and tells it how we are.
#
# Two threads, so that a report that nobody takes holds up neither the decision nor the next sign
# of
# life.


PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0
#: What waits is looked for so often even if nobody rings.
IDLE_S = 5.0
AT_A_TIME = 100


class Sender(Worker):
    """`observer`: in whose name its host reports, if it may report in no other one. What is refused
    because it names another, of before a host was renamed, is put aside: it would be for ever."""

    def __init__(
        self, spool: Outbox, reports: Reports, clock: Clock, *, observer: str | None = None
    ) -> None:
        super().__init__("courier", clock)
        self._spool = spool
        self._reports = reports
        self._observer = observer
        self._complained = ""
        self._held: dict[str, str] = {}  # subjects that wait for another try, and why

    def _forever(self) -> None:
        pause_s, retry_at = PAUSE_S, 0.0
        while not self._stop.is_set():
            self._bell.clear()
            again = self._clock.monotonic() >= retry_at
            stuck = self._try(self.round if again else self._go_on)
            self._complain(stuck)
            now = self._clock.monotonic()
            if not stuck:
                pause_s, retry_at = PAUSE_S, 0.0
                self._clock.wait(self._bell, IDLE_S)
                continue
            if again:
                retry_at, pause_s = now + pause_s, min(pause_s * 2, LONGEST_PAUSE_S)
            self._clock.wait(self._bell, max(0.0, retry_at - now))

    def _try(self, deliver: Callable[[], str]) -> str:
        try:
            return deliver()
        except HoldfastError as error:
            return error.message
        except Exception:  # the top of the thread: it must come round again
            LOG.exception("courier: unforeseen")
            return "something unforeseen, see the log"

    def round(self) -> str:
        """Deliver all that can be; why the rest could not be, or ""."""
        self._held.clear()
        return self._go_on()

    def _go_on(self) -> str:
        """The same without those that have just been tried: they hold up nobody else."""
        while not self._stop.is_set():
            heads = self._spool.heads(AT_A_TIME + len(self._held))
            fresh = [item for item in heads if item.subject not in self._held]
            if not fresh:
                break
            for item in fresh:
                if why := self._deliver(item):
                    self._held[item.subject] = why
        return next(iter(self._held.values()), "")

    def _deliver(self, item: Item) -> str:
        try:
            self._reports.report(item.body)
        except InvalidInput as refused:
            self._put_aside(item, refused)
            return ""
        except Forbidden as refused:
            if self._is_ours(item):
                return f"{item.subject}: {refused.message}"
            self._put_aside(item, refused)
            return ""
        except HoldfastError as later:
            return f"{item.subject}: {later.message}"
        self._spool.done(item)
        LOG.info("reported: %s %s", item.subject, item.body.get("state", ""))
        return ""

    def _is_ours(self, item: Item) -> bool:
        return self._observer is None or item.body.get("observer") == self._observer

    def _put_aside(self, item: Item, refused: HoldfastError) -> None:
        LOG.error(
            "the report about %s is not taken and put aside: %s", item.subject, refused.message
        )
        self._spool.park(item, refused.message)

    def _complain(self, why: str) -> None:
        """Once, not at every try."""
        if why and not self._complained:
            LOG.error("reports cannot be delivered and wait on disk: %s", why)
        elif self._complained and not why:
            LOG.info("reports are delivered again")
        self._complained = why


class Heartbeat(Worker):
    """Says how we are and what we see: every few seconds, and soon after a change."""

    def __init__(
        self,
        reports: Reports,
        observer: str,
        view: Callable[[], Mapping[str, Any]],
        every_s: float,
        clock: Clock,
    ) -> None:
        super().__init__("heartbeat", clock)
        self._reports = reports
        self._observer = observer
        self._view = view
        self._every_s = every_s
        self._complained = False

    def _forever(self) -> None:
        while not self._stop.is_set():
            self._bell.clear()
            try:
                self._reports.view(self._observer, self._view())
                self._complained = False
            except HoldfastError as error:
                if not self._complained:
                    LOG.warning("Holdfast does not hear how we are: %s", error.message)
                self._complained = True
            except Exception:  # the top of the thread: it must come round again
                LOG.exception("heartbeat: unforeseen")
            if self._complained:
                self._clock.wait(self._stop, min(1.0, self._every_s))
            else:
                self._clock.wait(self._bell, self._every_s)
