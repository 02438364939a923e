# SPDX-License-Identifier: Apache-2.0
"""A whole deployment in one thread: SQLite files, the simulated cloud, managers that come and go.

    house = House(tmp_path); house.enrol("cmp-1", "cmp-2")
    lease_id = house.create(minutes=(5, 65), hosts=1)
    house.run(minutes=6)

Nothing sleeps: `run` takes what is due, then moves the clock to what is due next. A manager can be
made to die, or not to hear an answer, at any point where it changes the world (`Points`).
"""

import contextlib
import functools
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import count, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from sqlalchemy import event
from sqlalchemy.engine import Engine

from holdfast.db import Store, engine, migrations
from holdfast.drivers.sim.cloud import SimCloud
from holdfast.drivers.sim.simulator import Simulator
from holdfast.hoststatus.status import HostStatus
from holdfast.jobs.job import never_ending
from holdfast.jobs.loop import Ended, Loop, Runner
from holdfast.leases import aggregates, hosts, lifecycle, repair
from holdfast.leases.aggregates import RESYNC
from holdfast.leases.booking import Leases
from holdfast.leases.commands import Commands
from holdfast.leases.hosts import Hosts
from holdfast.leases.lifecycle import LeaseContext
from holdfast.leases.repair import REPAIR, Repairs
from holdfast.leases.resources.base import Resource
from holdfast.leases.resources.floatingip import FloatingIpResource, FloatingIps
from holdfast.leases.resources.host import HostResource
from holdfast.leases.resources.instance import FlavorResource, InstanceResource
from holdfast.leases.resources.server import ServerResource
from holdfast.model.errors import DriverError, Unavailable
from holdfast.model.lease import EVENT_TYPES, Lease, LeaseChange, NewLease, NewReservation
from holdfast.model.operation import Operation
from holdfast.nova.names import CLOSED, KEPT_POOL, OPEN
from holdfast.ports.manager import Caller
from holdfast.ports.recovery import StatusChange
from holdfast.recovery.expected import ExpectedOnHosts, SegmentHosts
from holdfast.recovery.mass_failure import DefaultLimits
from tests.simclock import SimClock

ANN = Caller("ann", "alpha", ("member",))
BOB = Caller("bob", "beta", ("member",))
ADMIN = Caller("root", "admin", ("admin",), is_admin=True)
CLAIM_S = 30.0
RESOURCES: tuple[Resource, ...] = (
    HostResource(),
    InstanceResource(),
    FlavorResource(),
    FloatingIpResource(),
    ServerResource(),
)


class Killed(BaseException):
    """kill -9: nothing catches it, nothing is tidied up."""


class Inline(Executor):
    """Runs what it is given at once, in the caller's thread."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # Killed is none: it ends the caller, as it would the process
            future.set_exception(error)
        return future


@dataclass
class Points:
    """Every moment at which a manager has changed the world, counted; at one of them it ends.

    `kill` dies there; `lose` lets the change happen and the answer get lost. To die just before a
    change leaves the same world as to die just after the one before it, so only the first counts.
    With `statements`, each answer of the database is a point too: after a lost one the transaction
    is undone, and the manager goes on with what it remembers. Only what is `armed` counts.
    """

    at: int = 0
    how: str = "kill"
    statements: bool = False
    armed: bool = True
    passed: list[str] = field(default_factory=list)

    def before(self, what: str) -> None:
        if self.how == "kill" and not self.passed:
            self._reach(f"before {what}")

    def after(self, what: str) -> None:
        self._reach(f"after {what}")

    def _reach(self, what: str) -> None:
        if not self.armed:
            return
        self.passed.append(what)
        if len(self.passed) != self.at:
            return
        if self.how == "kill":
            raise Killed(self.where)
        if what.startswith("after sql "):
            raise sqlite3.OperationalError(f"no answer {what}")
        if "commit" in what:
            raise Unavailable(f"no answer {what}")
        raise DriverError("test", f"no answer {what}", retryable=True)

    @property
    def where(self) -> str:
        trail = " > ".join(self.passed[max(0, self.at - 3) : self.at])
        return f"{self.how} at point {self.at}: {trail}"


_LOOKS = {
    "check_role",
    "find",
    "list",
    "show",
    "images",
    "inventory",
    "groups",
    "migrations",
    "subnets",
    "without_role",
}


class _Watched:
    """A cloud (or a port of it) whose every effect is a point."""

    def __init__(self, target: Any, points: Points, name: str = "") -> None:
        self._target, self._points, self._name = target, points, name

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if not callable(value):
            return value if isinstance(value, float) else _Watched(value, self._points, name)
        if name in _LOOKS or not self._name:
            return value

        def call(*args: Any, **kwargs: Any) -> Any:
            what = f"{self._name}.{name}"
            self._points.before(what)
            result = value(*args, **kwargs)
            self._points.after(what)
            return result

        return call


class Manager:
    """One process: its own connections, runner, loop and commands on the house's files."""

    def __init__(self, house: "House", name: str, points: Points | None = None) -> None:
        self.house, self.name = house, name
        self.store = open_store(house.path, house.clock)
        # A number of its own, so that a story is the same when it is told again.
        self.cloud: Any = SimCloud(
            str(house.path / "cloud.db"), house.clock, seed=len(house._managers)
        )
        self._unlisten: list[Callable[[], None]] = []
        if points is not None:
            self._watch(points)
        self.ended: list[Ended] = []
        context = LeaseContext(
            ledger=self.store.ledger,
            cloud=self.cloud,
            calls=Inline(),
            resources={one.type: one for one in RESOURCES},
            settings=house.settings,
        )
        its_hosts = Hosts(context, house.new_id, "here")
        repairs = Repairs(context, house.settings, house.limits, its_hosts, house.new_id)
        self.runner = Runner(
            self.store.operations,
            {
                **lifecycle.kinds(context),
                **hosts.host_kinds(context),
                **aggregates.resync_kinds(context),
                **repair.kinds(repairs, house.settings),
                **aggregates.reconcile_kinds(context, house.settings),
                **house.more_kinds(self, points),
            },
            house.clock,
            owner=name,
            patience=house.settings,
            claim_s=CLAIM_S,
            on_ended=self.ended.append,
            pool=Inline(),
        )
        self.loop = Loop(self.store.operations, self.runner, house.clock, house.settings)
        self.commands = Commands(
            Leases(context, house.clock, house.new_id),
            its_hosts,
            FloatingIps(self.store.ledger, self.cloud),
            repairs,
            self.store.operations,
            house.clock,
            name=name,
            wake=lambda: self.turn() and None,
            patience_s=lambda: 1.0,
            know_host=SegmentHosts(self.store.segments, self.cloud, "").know,
            expected=ExpectedOnHosts(self.store.incidents, self.cloud),
        )

    def turn(self) -> float:
        """Do all that is due now; the seconds until something else is."""
        for _ in range(200):
            self.runner.freed.clear()
            pause = self._cycle()
            if not self.runner.freed.is_set():
                return pause
        raise AssertionError("the loop finds work again and again without time passing")

    def _cycle(self) -> float:
        """A repair renews its claim from a thread, every few seconds by the machine's clock. Here
        time stands still while it plans: on a busy machine that thread would only add points."""
        with mock.patch.object(repair, "KEEP_S", 3600.0):
            return self.loop.cycle()

    def run(self, until: datetime) -> None:
        """Work until that moment, sleeping as the loop would."""
        clock = self.house.clock
        for _ in range(5000):
            pause = self.turn()
            left = (until - clock.now()).total_seconds()
            if left <= 0:
                return
            clock.advance(min(pause, left))
        raise AssertionError(f"{until} is never reached")

    def die(self) -> None:
        """Give back the file handles; nothing else is tidied up."""
        while self._unlisten:
            self._unlisten.pop()()
        self.store.close()
        self.cloud.close()

    def _watch(self, points: Points) -> None:
        self.cloud = _Watched(self.cloud, points)
        database: Any = self.store.database
        if points.statements:
            self._watch_statements(points, database.engine)
        whole = database.write

        @contextlib.contextmanager
        def write() -> Iterator[Any]:
            with whole() as conn:
                yield conn
                points.before("commit")
            points.after("commit")

        database.write = write

    def _watch_statements(self, points: Points, engine: Engine) -> None:
        """Managers of one house share an engine, so a statement is whose turn it is."""

        def answered(conn: Any, cursor: Any, statement: str, *_more: Any) -> None:
            said = _STATEMENT.match(statement)
            if not said or self.house.m is not self:
                return
            try:
                points.after(f"sql {said[1]} {said[2] or said[3]}")
            except BaseException:
                cursor.close()
                conn.connection.dbapi_connection.rollback()  # as a database does for the dead
                raise

        event.listen(engine, "after_cursor_execute", answered)
        self._unlisten.append(lambda: event.remove(engine, "after_cursor_execute", answered))


_STATEMENT = re.compile(
    r"\s*(?=(\w+))(?:UPDATE\s+(\w+)|(?:SELECT|INSERT|DELETE)\b.*?\b(?:FROM|INTO)\s+(\w+))",
    re.DOTALL,
)


class House:
    def __init__(self, path: Path, clock: SimClock | None = None, ids_from: int = 0) -> None:
        self.path = path
        self.clock = clock or SimClock()
        self.settings = SimpleNamespace(
            minutes_before_end_lease=60,
            cleaning_time=0,
            prepare_s=60.0,
            before_end="",
            preemptibles=False,
            server_on_end=["stop"],
            server_start_timeout_s=120.0,
            repair=True,
            repair_interval_s=10.0,
            repair_horizon_s=86_400.0,
            repair_priorities={},
            reconcile_s=60.0,
            retry_first_s=0.5,
            retry_most_s=15.0,
            claim_ahead=0,
            poll_interval_s=1e6,  # so that only due rows end a sleep
        )
        self.limits = DefaultLimits()
        self._ids = count(ids_from)
        self._names = count(1)
        self._managers: list[Manager] = []
        self.sim = Simulator(str(path / "cloud.db"), self.clock)
        self.m = self.manager()

    def new_id(self) -> str:
        return f"00000000-0000-4000-8000-{next(self._ids):012d}"

    def manager(self, points: Points | None = None) -> Manager:
        """Another manager on the same files; the house works with it from now on."""
        self.m = Manager(self, f"m{next(self._names)}", points)
        self._managers.append(self.m)
        return self.m

    def more_kinds(self, manager: Manager, points: Points | None) -> dict[str, Any]:
        """Work that a house with more rooms does."""
        return {}

    def close(self) -> None:
        for manager in self._managers:
            manager.die()
        self.sim.close()

    # what people do

    def add(self, *names: str) -> None:
        for name in names:
            self.sim.add_host(name)

    def enrol(self, *names: str) -> list[int]:
        self.add(*names)
        return [self.m.commands.enrol_host(ADMIN, name, {}) for name in names]

    def create(
        self,
        *,
        minutes: tuple[float | None, float] = (5, 125),
        hosts: int | Sequence[tuple[int, int]] = 1,
        caller: Caller = ANN,
        lease_id: str = "",
        before_end_date: datetime | None = None,
        **spec: Any,
    ) -> str:
        """A lease from and to so many minutes after now (None: from now); its id."""
        ranges = [(hosts, hosts)] if isinstance(hosts, int) else hosts
        wanted = NewLease(
            id=lease_id or self.new_id(),
            name="lab",
            start=None if minutes[0] is None else self.at(minutes[0]),
            end=self.at(minutes[1]),
            before_end=before_end_date,
            reservations=tuple(
                NewReservation("physical:host", {"min": low, "max": high, **spec})
                for low, high in ranges
            ),
        )
        self.m.commands.create_lease(caller, wanted)
        return wanted.id

    def update(self, lease_id: str, caller: Caller = ANN, **change: Any) -> None:
        self.m.commands.update_lease(caller, lease_id, LeaseChange(**change))

    def delete(self, lease_id: str, caller: Caller = ANN) -> None:
        self.m.commands.delete_lease(caller, lease_id)

    def boot(self, name: str, host: str, flavor: str = "") -> str:
        return self.sim.boot(name, "alpha", host, 1, 512, 1, flavor).id

    # time

    def at(self, minutes: float) -> datetime:
        return self.clock.now() + timedelta(minutes=minutes)

    def run(self, *, minutes: float = 0, seconds: float = 0, until: datetime | None = None) -> None:
        self.m.run(until or self.clock.now() + timedelta(minutes=minutes, seconds=seconds))

    def tell(self) -> None:
        """From now on pools are told again, and those that are over go."""
        self.m.store.operations.ensure(never_ending(RESYNC, self.clock.now()))

    def stands(self, name: str, state: str) -> None:
        """What watching decides of a host, as it writes it."""
        host_status = self.m.store.host_status
        (host,) = [one for one in host_status.watched() if one.name == name]
        new = HostStatus(state, since=self.clock.now())
        host_status.change(
            [StatusChange(host.id, host.status, new, f"{name} is {state}")],
            lambda now: never_ending(REPAIR, now),
        )

    # what is

    def lease(self, lease_id: str) -> Lease:
        return self.m.store.ledger.lease(lease_id)

    def status(self, lease_id: str) -> str:
        return self.lease(lease_id).status

    def events(self, lease_id: str) -> dict[str, str]:
        """The contract's events with the statuses it knows."""
        found = self.m.store.operations.list_all(subject=lease_id)
        return {EVENT_TYPES[o.kind]: self._event(o) for o in found if o.kind in EVENT_TYPES}

    def _event(self, operation: Operation) -> str:
        if operation.status in ("running", "retrying"):
            return "IN_PROGRESS" if operation.due_at <= self.clock.now() else "UNDONE"
        return {"waiting": "UNDONE", "done": "DONE"}.get(operation.status, "ERROR")

    def sentences(self, subject: str, kind: str = "%") -> list[str]:
        """Return the audit lines about a subject, of one kind or of all."""
        with sqlite3.connect(self.path / "holdfast.db") as db:
            query = "SELECT sentence FROM audit WHERE subject = ? AND kind LIKE ? ORDER BY id"
            return [sentence for (sentence,) in db.execute(query, [subject, kind])]

    def held(self, lease_id: str) -> list[list[str]]:
        """The hosts each reservation of the lease holds, by name."""
        return [sorted(r.hosts()) for r in self.lease(lease_id).reservations]

    def pools(self) -> dict[str, set[str]]:
        """All pools but the one that every enrolled host is in, and those that only wait for their
        last telling."""
        return {
            pool["name"]: set(pool["hosts"])
            for pool in self.sim.world()["pools"]
            if pool["name"] != KEPT_POOL and (pool["hosts"] or pool["metadata"].get(OPEN) != CLOSED)
        }

    def all_pools(self) -> dict[str, set[str]]:
        return {pool["name"]: set(pool["hosts"]) for pool in self.sim.world()["pools"]}

    def hosts(self) -> list[str]:
        """All of the cloud, enrolled or not."""
        return [host["name"] for host in self.sim.world()["hosts"]]

    def servers(self) -> list[str]:
        return [server["name"] for server in self.sim.world()["servers"]]

    def images(self) -> list[str]:
        return [image["name"] for image in self.sim.world()["images"]]

    def effects(self, call: str) -> list[str]:
        return [effect.subject for effect in self.sim.effects(call)]

    # what must always be so

    def check_pools(self) -> None:
        """Replay the log: once a host is in a pool, it never is in none (but after a withdraw)."""
        inside: dict[str, set[str]] = {}
        for effect in self.sim.effects():
            if effect.call not in ("pools.add_host", "pools.remove_host"):
                continue
            pool, host = effect.subject.split("/")
            pools = inside.setdefault(host, set())
            (pools.add if effect.call == "pools.add_host" else pools.remove)(pool)
            assert pools or pool == KEPT_POOL, f"{host} was in no pool after {effect}"

    def check_combination(self, lease_id: str, *, claimed: bool = False) -> None:
        """Lease, reservations and events fit together as section 2.1 has it. While somebody has
        `claimed` an event it is in progress: since just before its lease moves, until just after.
        """
        lease, events = self.lease(lease_id), self.events(lease_id)
        reservations, starts, ends = COMBINATIONS[lease.status]
        seen = {r.status for r in lease.reservations}
        what = (lease.status, seen, events)
        assert seen <= set(reservations.split()), what
        under_way = ["IN_PROGRESS"] if claimed else []
        assert events["start_lease"] in starts.split() + under_way, what
        assert events["end_lease"] in ends.split() + under_way, what

    def check_no_double_booking(self) -> None:
        """No host is held twice at one moment."""
        holds: dict[int, list[tuple[datetime, datetime]]] = {}
        for lease, _events in self.m.store.ledger.with_events():
            for reservation in self.lease(lease.id).reservations:
                for a in reservation.allocations:
                    holds.setdefault(a.host_id, []).append((a.held.start, a.held.end))
        for host_id, spans in holds.items():
            spans.sort()
            for one, other in pairwise(spans):
                assert one[1] <= other[0], f"host {host_id} is held twice: {one}, {other}"


#: Section 2.1 of the contract: reservations, start event, end event.
COMBINATIONS = {
    "PENDING": ("pending", "UNDONE", "UNDONE"),
    "STARTING": ("pending active error", "IN_PROGRESS", "UNDONE"),
    "ACTIVE": ("active", "DONE", "UNDONE"),
    "TERMINATING": ("active deleted error", "DONE ERROR", "IN_PROGRESS"),
    "TERMINATED": ("deleted", "DONE", "DONE"),
    "ERROR": ("error", "DONE ERROR", "UNDONE ERROR"),
    "DELETING": ("pending active deleted error", "UNDONE DONE ERROR", "UNDONE DONE ERROR"),
}


#: By path: an engine remembers how it compiled each query, which is most of its time.
_ENGINES: dict[Path, Engine] = {}
_make_engine = engine._engine


def open_store(path: Path, clock: SimClock) -> Store:
    """The database, without waiting for the disk: no test here cuts the power."""
    with mock.patch.object(engine, "_engine", functools.partial(_engine, path)):
        return Store(f"sqlite:///{path / 'holdfast.db'}", clock)


def _engine(path: Path, *how: Any) -> Engine:
    if path not in _ENGINES:
        _ENGINES[path] = _make_engine(*how)
        event.listen(_ENGINES[path], "connect", _hasty)
    return _ENGINES[path]


def _hasty(dbapi: Any, _record: Any) -> None:
    dbapi.execute("PRAGMA synchronous=OFF")


def make_template(path: Path) -> Path:
    """Empty files, made once and copied often."""
    path.mkdir(parents=True, exist_ok=True)
    store = open_store(path, SimClock())
    migrations.sync(store.database)
    store.close()
    return path


def copy(template: Path, to: Path) -> Path:
    """Lay the files out anew; at the same place, the engine there is used again."""
    if to in _ENGINES:
        _ENGINES[to].dispose()
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(template, to)
    return to
