# SPDX-License-Identifier: Apache-2.0
"""The monitor's outbox on disk, and the threads that send reports and heartbeats to Holdfast.

The outbox is a SQLite file and survives kill -9 and a reboot. Reports about one subject are sent in
order. A report that Holdfast refuses, or that cannot be written as JSON (NaN), is parked with the
reason for operators to read: it would block every later report. A monitor writes its state (notes)
and its reports in one transaction, so that neither exists without the other.

`Sender` delivers reports, `Heartbeat` sends the monitor's view. They are two threads, so that a
report that cannot be delivered delays neither decisions nor heartbeats.
"""

import contextlib
import json
import logging
import os
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
#: The outbox holds at most this many reports; then `put` fails, and the monitor retries later.
MOST = 10_000
#: The outbox keeps this many parked reports, the latest ones.
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
    " AND CASE WHEN json_valid(body) THEN json_extract(body, '$.state') = 'failed' END"
)


@dataclass(frozen=True)
class Item:
    """A report in the outbox."""

    id: int
    subject: str
    body: Mapping[str, Any]


@dataclass(frozen=True)
class Backlog:
    """Number of waiting reports, date of the oldest, and number of parked reports."""

    waits: int = 0
    oldest_at: str | None = None
    put_aside: int = 0


class Outbox:
    """A durable queue of reports, with notes; thread-safe.

    `backlog` is kept in memory, so reading it does not wait for the disk.
    """

    def __init__(self, path: str, *, most: int = MOST) -> None:
        self._path = path
        self._most = most
        self._lock = threading.Lock()
        with self._errors():
            if path != ":memory:":
                _make_private(Path(path))
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
        """Write reports (subject, key, body), notes and recoveries in one transaction.

        A report with a known key is ignored. `notes` replace earlier notes of the same name. `over`
        maps recovered subjects to their recovery date. Waiting failure reports about them get this
        date, so that the manager learns of the recovery with the failure.
        """
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
        """Return the note of this name, or None."""
        with self._lock, self._errors():
            row = self._db.execute("SELECT text FROM notes WHERE name = ?", (name,)).fetchone()
        return None if row is None else json.loads(row[0])

    def heads(self, most: int = 100) -> list[Item]:
        """Return the oldest readable report of each subject, oldest first; park the unreadable."""
        query = (
            "SELECT min(id), subject, CAST(body AS BLOB) FROM reports WHERE parked IS NULL"
            " GROUP BY subject ORDER BY 1 LIMIT ?"
        )
        while True:
            with self._lock, self._errors():
                rows = self._db.execute(query, (most,)).fetchall()
            reports = [(id_, subject, _read(body)) for id_, subject, body in rows]
            if all(body is not None for _, _, body in reports):
                return [Item(id_, subject, body or {}) for id_, subject, body in reports]
            for id_, subject, body in reports:
                if body is None:
                    LOG.error("a report about %s is put aside: its row is unreadable", subject)
                    self.park(Item(id_, subject, {}), "its row is unreadable")

    def done(self, item: Item) -> None:
        with self._change() as db:
            db.execute("DELETE FROM reports WHERE id = ?", (item.id,))

    def park(self, item: Item, why: str) -> None:
        """Park a report that Holdfast will never accept, for operators to read."""
        with self._change() as db:
            db.execute("UPDATE reports SET parked = ? WHERE id = ?", (why[:1000], item.id))
            _keep_few_parked(db)

    def counts(self) -> tuple[int, int]:
        """Return the number of waiting and of parked reports."""
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
        return DriverError("outbox", why, retryable=True)


def _said(subject: str, body: Mapping[str, Any]) -> tuple[str, str | None]:
    """Return the report as JSON, and why to park it at once if JSON cannot express it."""
    try:
        return json.dumps(body, allow_nan=False), None
    except (TypeError, ValueError) as error:
        why = f"it cannot be written as JSON: {error}"
        LOG.error("a report about %s is put aside: %s: %r", subject, why, body)
        return json.dumps(repr(body)), why[:1000]


def _make_private(path: Path) -> None:
    """Create the folder and the file for the account alone; OSError if the file is a symlink."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(handle, 0o600)
    finally:
        os.close(handle)


def _read(body: bytes) -> dict[str, Any] | None:
    """Return the report of a row; None if the row is no JSON object."""
    try:
        report = json.loads(body)
    except (TypeError, ValueError, RecursionError):
        return None
    return report if isinstance(report, dict) else None


def _backlog(db: sqlite3.Connection) -> Backlog:
    """Read the backlog by index, because every change reads it."""
    (waits,) = db.execute("SELECT count(*) FROM reports WHERE parked IS NULL").fetchone()
    (aside,) = db.execute("SELECT count(*) FROM reports WHERE parked IS NOT NULL").fetchone()
    oldest = "SELECT min(id) FROM reports WHERE parked IS NULL"
    date = "CASE WHEN json_valid(body) THEN json_extract(body, '$.observed_at') END"
    made = f"SELECT {date} FROM reports WHERE id = ({oldest})"
    row = db.execute(made).fetchone() if waits else None
    return Backlog(int(waits), str(row[0]) if row and row[0] else None, int(aside))


def _keep_few_parked(db: sqlite3.Connection) -> None:
    db.execute(
        "DELETE FROM reports WHERE parked IS NOT NULL AND id NOT IN"
        " (SELECT id FROM reports WHERE parked IS NOT NULL ORDER BY id DESC LIMIT ?)",
        (MOST_PARKED,),
    )


# Delivery: reports are retried until Holdfast accepts or refuses them.


PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0
#: The sender checks the outbox this often even without a wake-up.
IDLE_S = 5.0
AT_A_TIME = 100


class Sender(Worker):
    """A thread that sends the reports of the outbox to Holdfast and retries with backoff.

    `observer` is the only name under which this host may report, if there is such a limit. A
    report that names another observer, from before a rename of the host, is parked when Holdfast
    forbids it: a retry would never succeed.
    """

    def __init__(
        self, outbox: Outbox, reports: Reports, clock: Clock, *, observer: str | None = None
    ) -> None:
        super().__init__("sender", clock, self._send)
        self.make_essential()
        self._outbox = outbox
        self._reports = reports
        self._observer = observer
        self._complained = ""
        self._held: dict[str, str] = {}  # subjects that wait for a retry, and why
        self._pause_s, self._retry_at = PAUSE_S, 0.0

    def _send(self) -> float:
        """Send waiting reports; return the seconds until the next try.

        A wake sends reports of other subjects than those that just failed.
        """
        again = self._clock.monotonic() >= self._retry_at
        stuck = self._try(self.round if again else self._go_on)
        self._log(stuck)
        now = self._clock.monotonic()
        if not stuck:
            self._pause_s, self._retry_at = PAUSE_S, 0.0
            return IDLE_S
        if again:
            self._retry_at = now + self._pause_s
            self._pause_s = min(self._pause_s * 2, LONGEST_PAUSE_S)
        return self._retry_at - now

    def _try(self, deliver: Callable[[], str]) -> str:
        try:
            return deliver()
        except HoldfastError as error:
            return error.message
        except Exception:  # the top of the thread: the loop must go on
            LOG.exception("sender: unforeseen")
            return "something unforeseen, see the log"

    def round(self) -> str:
        """Deliver all waiting reports; return why some failed, or ""."""
        self._held.clear()
        return self._go_on()

    def _go_on(self) -> str:
        """Deliver reports of subjects that have not just failed; these must not delay others."""
        while not self._stop.is_set():
            heads = self._outbox.heads(AT_A_TIME + len(self._held))
            fresh = [item for item in heads if item.subject not in self._held]
            if not fresh:
                break
            for item in fresh:
                if why := self._deliver(item):
                    self._held[item.subject] = why
        return next(iter(self._held.values()), "")

    def _deliver(self, item: Item) -> str:
        self.beat()  # a backlog may take hours
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
        self._outbox.done(item)
        LOG.info("reported: %s %s", item.subject, item.body.get("state", ""))
        return ""

    def _is_ours(self, item: Item) -> bool:
        return self._observer is None or item.body.get("observer") == self._observer

    def _put_aside(self, item: Item, refused: HoldfastError) -> None:
        LOG.error(
            "the report about %s is not taken and put aside: %s", item.subject, refused.message
        )
        self._outbox.park(item, refused.message)

    def _log(self, why: str) -> None:
        """Log a failure once, not at every retry."""
        if why and not self._complained:
            LOG.error("reports cannot be delivered and wait on disk: %s", why)
        elif self._complained and not why:
            LOG.info("reports are delivered again")
        self._complained = why


class Heartbeat(Worker):
    """A thread that sends the monitor's view every `interval_s` seconds and after a wake."""

    def __init__(
        self,
        reports: Reports,
        observer: str,
        view: Callable[[], Mapping[str, Any]],
        interval_s: float,
        clock: Clock,
    ) -> None:
        super().__init__("heartbeat", clock, self._view_sent, retry_s=min(1.0, interval_s))
        self.make_essential()
        self._reports = reports
        self._observer = observer
        self._view = view
        self._every_s = interval_s

    def _view_sent(self) -> float:
        self._reports.view(self._observer, self._view())
        return self._every_s
