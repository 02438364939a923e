# SPDX-License-Identifier: Apache-2.0
"""Database access: connections, transactions, the database's clock, errors and pages.

SQLite, PostgreSQL and MariaDB are supported. Every use is `with database.read() as conn` or
`with database.write() as conn`. A lost race becomes StaleWrite (try again). A database that is
away becomes Unavailable: nothing was changed, or the outcome is unknown, and callers repeat
with the same ids. The only SQLAlchemy error that leaves this package is IntegrityError; each
query translates it where the meaning is known.
"""

import contextlib
import functools
import logging
import math
import random
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import Connection, Engine, RowMapping

from holdfast.model.errors import InvalidInput, StaleWrite, Unavailable
from holdfast.ports.publishers import EventPublisher, NullPublisher
from holdfast.runtime.clock import Clock

LOG = logging.getLogger(__name__)
T = TypeVar("T")

#: Error codes of a lost race. PostgreSQL: serialisation, deadlock, exclusion, lock; MariaDB:
#: deadlock, lock, changed.
_RACES = {"40001", "40P01", "23P01", "55P03", 1213, 1205, 1020}
#: Error codes of a server that answers but cannot serve now: read-only, shutting down,
#: starting.
_AWAY = {"25006", "57P01", "57P02", "57P03", 1290, 1836}
#: Error codes of a missing table or column.
_SCHEMA = {"42P01", "42703", 1146, 1054}
#: Error codes of damaged data: a file of SQLite that is malformed or no database, corrupted pages,
#: crashed tables.
_DAMAGED = {"SQLITE_CORRUPT", "SQLITE_NOTADB", "XX001", "XX002", 126, 127, 144, 145}
_DAMAGED |= {1034, 1194, 1195}
#: Seconds for which a successful test write of `ping` counts.
WRITTEN_S = 1.0
_PROBE = sa.table("resource_locks", sa.column("key"), sa.column("generation"))
#: How often a transaction runs that loses every race. On a busy machine ten writers of one row
#: lose nine times.
_TRIES = 12
_LONGEST_PAUSE_S = 0.5
#: How long the monotonic clock extends a reading of the database's clock.
CLOCK_AGE_S = 2.0
#: A reading that took longer is too imprecise: the previous reading stays in use.
SLOW_READ_S = 0.2
#: Two readings may differ by the time they took; within this difference `now` does not go back.
UNSURE = timedelta(seconds=1)
#: A connection that was idle longer is pinged before use.
IDLE_S = 1.0
#: How long a request waits for a connection of the pool, and a write for a row lock.
POOL_TIMEOUT_S = 10
LOCK_S = 10


class Database:
    def __init__(
        self,
        url: str,
        clock: Clock,
        *,
        pool_size: int = 20,
        connect_timeout_s: int = 5,
        timeout_s: int = 30,
    ) -> None:
        self.clock = clock
        #: Turns written changes into notifications, in the same transaction.
        self.publisher: EventPublisher = NullPublisher()
        self.engine = _engine(url, pool_size, connect_timeout_s, timeout_s)
        self.dialect = self.engine.dialect.name
        # READ COMMITTED gives every statement its own snapshot, in a transaction or not.
        # Therefore PostgreSQL reads run in autocommit and cost no BEGIN and no COMMIT. SQLite's
        # read transaction is one snapshot.
        self._reading = (
            self.engine.execution_options(isolation_level="AUTOCOMMIT")
            if self.dialect == "postgresql"
            else self.engine
        )
        self._writing = self.engine.execution_options(holdfast_write=True)
        self._clock_read = (-math.inf, datetime.min.replace(tzinfo=UTC))
        self._told = self._clock_read[1]
        self._written_at = -math.inf
        # SQLite has one writer; queueing here is fair, its busy handler is not.
        self._writer: contextlib.AbstractContextManager[Any] = (
            threading.Lock() if self.dialect == "sqlite" else contextlib.nullcontext()
        )

    @contextlib.contextmanager
    def read(self) -> Iterator[Connection]:
        with _translated(), self._reading.connect() as conn:  # ends in one ROLLBACK
            yield conn

    @contextlib.contextmanager
    def write(self) -> Iterator[Connection]:
        with (
            self._writer,
            _translated(),
            self._writing.connect() as conn,
            conn.begin(),
        ):
            yield conn

    @contextlib.contextmanager
    def write_one(self) -> Iterator[Connection]:
        """Open a connection for a write of a single statement.

        On PostgreSQL a single statement is a transaction by itself, which costs one round trip
        instead of three.
        """
        if self.dialect != "postgresql":
            with self.write() as conn:
                yield conn
            return
        with _translated(), self._reading.connect() as conn:
            yield conn

    def retry(self, action: Callable[[Connection], T], *, single: bool = False) -> T:
        """Run a write transaction, and repeat the transaction after a lost race.

        `single`: on PostgreSQL the action is one statement.
        """
        for attempt in range(1, _TRIES + 1):
            try:
                with self.write_one() if single else self.write() as conn:
                    return action(conn)
            except (StaleWrite, sa.exc.IntegrityError) as error:
                # Another writer wrote the row first: run the action again, which then finds
                # that row.
                if attempt == _TRIES:
                    raise StaleWrite("other writers won every time, try again") from error
                pause = random.uniform(0, min(_LONGEST_PAUSE_S, 0.005 * 2**attempt))
                self.clock.wait(threading.Event(), pause)
        raise AssertionError("unreachable")

    def now(self, conn: Connection | None = None) -> datetime:
        """Return the database's time; for SQLite the time of the Clock port.

        SQLite has no clock except the machine's. The database's clock is read every few seconds
        (CLOCK_AGE_S), and the monotonic clock extends the reading in between. Therefore a jump
        of this machine's clock does no harm, and a read costs no extra query. The result goes
        back only if the database's clock does, because rows are listed in the order of their
        times.
        """
        if self.dialect == "sqlite":
            return self.clock.now()
        read_at, value = self._clock_read
        age = self.clock.monotonic() - read_at
        if age > CLOCK_AGE_S:
            if conn is None:
                with self.read() as own:
                    return self.now(own)
            read_at, value = self._read_clock(conn)
            age = self.clock.monotonic() - read_at
        estimate = value + timedelta(seconds=age)
        if not estimate < self._told < estimate + UNSURE:
            self._told = estimate
        return self._told

    def _read_clock(self, conn: Connection) -> tuple[float, datetime]:
        sql = (
            "SELECT clock_timestamp() AT TIME ZONE 'utc'"
            if self.dialect == "postgresql"
            else "SELECT UTC_TIMESTAMP(6)"
        )
        before = self.clock.monotonic()
        value: datetime = conn.execute(sa.text(sql)).scalar_one()
        took = self.clock.monotonic() - before
        if took < SLOW_READ_S or self._clock_read[0] == -math.inf:
            self._clock_read = (before + took / 2, value.replace(tzinfo=UTC))
        return self._clock_read

    def ping(self) -> None:
        """Check that the database answers, and at most once a second that it can be written."""
        if self.clock.monotonic() - self._written_at < WRITTEN_S:
            with self.read() as conn:
                conn.execute(sa.text("SELECT 1"))
            return
        with self.write() as conn:
            key = f"ping:{uuid.uuid4()}"
            conn.execute(sa.insert(_PROBE).values(key=key, generation=0))
            conn.execute(sa.delete(_PROBE).where(_PROBE.c.key == key))
        self._written_at = self.clock.monotonic()

    def close(self) -> None:
        self.engine.dispose()


def _engine(url: str, pool_size: int, connect_timeout_s: int, timeout_s: int) -> Engine:
    # No overflow: a burst waits briefly for a connection instead of opening and closing more.
    parsed = sa.engine.make_url(url)
    if parsed.get_backend_name() == "sqlite":
        engine = sa.create_engine(
            parsed,
            connect_args={"timeout": 10, "check_same_thread": False},
            pool_size=pool_size,
            max_overflow=0,
            pool_timeout=POOL_TIMEOUT_S,
        )
        event.listen(engine, "connect", _sqlite_connect)
        event.listen(engine, "begin", _sqlite_begin)
        return engine
    engine = sa.create_engine(
        parsed,
        connect_args=_patience(parsed.get_backend_name(), connect_timeout_s, timeout_s),
        isolation_level="READ COMMITTED",
        pool_size=pool_size,
        max_overflow=0,
        pool_timeout=POOL_TIMEOUT_S,
        pool_recycle=1800,
    )
    event.listen(engine, "checkin", _rests)
    event.listen(engine, "checkout", functools.partial(_still_there, engine))
    return engine


def _patience(backend: str, connect_s: int, answer_s: int) -> dict[str, Any]:
    """Return connect arguments with the time-outs for a silent server; `answer_s` 0: no limit."""
    args: dict[str, Any] = {"connect_timeout": connect_s}
    if not answer_s:
        return args
    if backend == "postgresql":
        args |= {"keepalives_idle": 5, "keepalives_interval": 5, "keepalives_count": 3}
        args["tcp_user_timeout"] = answer_s * 1000
        limits = {
            "statement_timeout": answer_s,
            "lock_timeout": LOCK_S,
            "idle_in_transaction_session_timeout": answer_s,
        }
        args["options"] = " ".join(f"-c {name}={s * 1000}" for name, s in limits.items())
        return args
    lock = f"innodb_lock_wait_timeout={LOCK_S}"
    args["init_command"] = f"SET SESSION {lock}, SESSION idle_transaction_timeout={answer_s}"
    return args | {"read_timeout": answer_s, "write_timeout": answer_s}


def _rests(_dbapi: Any, record: Any) -> None:
    record.info["idle_since"] = time.monotonic()


def _still_there(engine: Engine, dbapi: Any, record: Any, _proxy: Any) -> None:
    """Ping a connection that was idle for IDLE_S; a connection just used needs no ping."""
    if time.monotonic() - record.info.get("idle_since", time.monotonic()) < IDLE_S:
        return
    try:
        engine.dialect.do_ping(dbapi)
    except Exception as error:  # whatever a driver raises, the connection is unusable
        raise sa.exc.DisconnectionError(str(error)) from error


def _sqlite_connect(dbapi: Any, _record: Any) -> None:
    dbapi.isolation_level = None  # we begin transactions ourselves, see _sqlite_begin
    cursor = dbapi.cursor()
    for pragma in (
        "journal_mode=WAL",
        "synchronous=FULL",  # an acknowledged lease survives a power cut
        "foreign_keys=ON",
        "busy_timeout=10000",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _sqlite_begin(conn: Connection) -> None:
    """Begin a transaction directly on the SQLite driver.

    Every read begins a transaction; a SQLAlchemy statement for BEGIN would cost as much as the
    read.
    """
    begin = "BEGIN IMMEDIATE" if conn.get_execution_options().get("holdfast_write") else "BEGIN"
    driver: Any = conn.connection.driver_connection
    try:
        driver.execute(begin)
    except sqlite3.Error as error:
        raise sa.exc.DBAPIError.instance(begin, None, error, sqlite3.Error) from error


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except sa.exc.DBAPIError as error:
        if _state(error) & _RACES:
            raise StaleWrite("lost a race in the database, try again") from error
        if _state(error) & _SCHEMA:
            LOG.error("the database lacks a table or a column: %s", _first_line(error.orig))
            raise Unavailable("the database is not at our version: holdfast db sync") from error
        if _state(error) & _DAMAGED:
            LOG.critical("the database is damaged: %s", _first_line(error.orig))
            raise Unavailable(f"the database is damaged: {_first_line(error.orig)}") from error
        away = isinstance(error, sa.exc.OperationalError | sa.exc.InterfaceError)
        if away or error.connection_invalidated or _state(error) & _AWAY:
            LOG.warning("the database is away: %s", _first_line(error.orig))
            raise Unavailable("the database is away, try again in a moment") from error
        raise
    except sa.exc.TimeoutError as error:
        raise Unavailable("every database connection is busy, try again") from error


def _state(error: sa.exc.DBAPIError) -> set[str | int]:
    """Return the error codes of a driver's exception: SQLSTATE, MariaDB's number, SQLite's name."""
    codes: set[str | int] = set()
    if name := getattr(error.orig, "sqlite_errorname", None):
        codes.add("_".join(name.split("_")[:2]))  # without the extended code
    sqlstate = getattr(error.orig, "sqlstate", None)
    if sqlstate:
        codes.add(str(sqlstate))
    args = getattr(error.orig, "args", ())
    if args and isinstance(args[0], int):
        codes.add(args[0])
    return codes


def _first_line(error: BaseException | None) -> str:
    return (str(error).splitlines() or ["no answer"])[0]


# Lists in pages, sorted by keys that the caller names, continued after the last row seen.
#
# The marker is a row, not an offset: rows added or deleted meanwhile neither repeat nor skip
# others. NULL sorts before every value, on every database.
#
#     >>> rows = fetch(conn, sa.select(segments), Page(limit=20, marker=40), COLUMNS)


MOST = 1000
#: Public names of sort keys; None: all rows have the same value.
Columns = Mapping[str, sa.ColumnElement[Any] | None]
_NEWEST_FIRST = (("created_at", True), ("id", True))
#: A sort expression, and whether its order is descending.
Key = tuple[sa.ColumnElement[Any], bool]


@dataclass(frozen=True)
class Page:
    """A page request: at most `limit` rows after the row with id `marker`.

    `sort` holds keys and whether each is descending.
    """

    limit: int = MOST
    marker: str | None = None
    sort: tuple[tuple[str, bool], ...] = _NEWEST_FIRST


def fetch(
    conn: Connection, query: sa.Select[Any], page: Page, columns: Columns
) -> Sequence[RowMapping]:
    """Return the rows of a page; InvalidInput names an unknown key or marker."""
    keys, seen = _keys(page, columns), None
    if page.marker is not None:
        seen = _marker(conn, query, page.marker, keys, columns)
    return conn.execute(continued(query, keys, seen, page.limit)).mappings().all()


def continued(
    query: sa.Select[Any], keys: Sequence[Key], seen: Sequence[Any] | None, limit: int | None
) -> sa.Select[Any]:
    """Sort a query by unique keys, and select at most `limit` rows after the values `seen`."""
    if seen is not None:
        query = query.where(_after(keys, seen))
    order = [key.desc() if descending else key.asc() for key, descending in keys]
    return query.order_by(None).order_by(*order).limit(limit)


def _keys(page: Page, columns: Columns) -> list[Key]:
    keys: list[Key] = []
    for name, descending in page.sort:
        if name not in columns:
            known = ", ".join(sorted(columns))
            raise InvalidInput(f"sort_key: {name[:40]!r} is not known; possible are {known}")
        column = columns[name]
        if column is None:
            continue
        if isinstance(column.type, sa.Boolean):  # not every database compares booleans
            column = sa.case((column, 1), else_=0)
        elif getattr(column, "nullable", True):
            keys.append((sa.case((column.is_(None), 0), else_=1), descending))
        keys.append((column, descending))
    return keys


def _marker(
    conn: Connection, query: sa.Select[Any], marker: str, keys: Sequence[Key], columns: Columns
) -> Sequence[Any]:
    """Return the sort values of the last row seen, even if the query no longer returns the row."""
    id_ = columns["id"]
    missing = InvalidInput(
        f"Marker {marker[:40]} could not be found: a marker is the integer id of the last row seen"
    )
    if id_ is None or not (marker.isascii() and marker.isdigit() and len(marker) < 10):
        raise missing
    wanted = [key.label(f"key_{number}") for number, (key, _) in enumerate(keys)]
    source = query.get_final_froms()
    row = conn.execute(sa.select(*wanted).select_from(*source).where(id_ == int(marker))).first()
    if row is None:
        raise missing
    return tuple(row)


def _after(keys: Sequence[Key], seen: Sequence[Any]) -> sa.ColumnElement[bool]:
    """Select later rows: equal in the first keys, and beyond the seen row in the next key."""
    beyond: list[sa.ColumnElement[bool]] = []
    alike: list[sa.ColumnElement[bool]] = []
    for (key, descending), value in zip(keys, seen, strict=True):
        if value is None:  # the key before already separates rows with NULL
            continue
        beyond.append(sa.and_(*alike, key < value if descending else key > value))
        alike.append(key == value)
    return sa.or_(*beyond)
