# SPDX-License-Identifier: Apache-2.0
"""Servers that should have a lease get one from the sweep, once, whoever died before."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.drivers.sim.cloud import SimCloud
from holdfast.drivers.sim.simulator import Simulator
from holdfast.jobs.job import never_ending
from holdfast.jobs.loop import Loop, Runner
from holdfast.leases import auto_lease, lifecycle
from holdfast.leases.booking import Leases
from holdfast.leases.lifecycle import LeaseContext
from holdfast.leases.resources.server import ServerResource
from holdfast.model.errors import QuotaExceeded
from holdfast.model.lease import Lease, NewLease, NewReservation
from holdfast.model.operation import OPEN
from holdfast.nova.lease_hint import Wish
from holdfast.nova.names import WISH
from holdfast.ports.ledger import Work
from holdfast.ports.manager import Caller
from tests.leases.house import Inline, Killed, copy, open_store
from tests.simclock import SimClock

ANN = Caller("ann", "alpha")


class Site:
    """A store, a simulated cloud with one host, and managers that lease servers."""

    def __init__(self, path: Path, stack: contextlib.ExitStack) -> None:
        self.clock = SimClock()
        file = str(path / "cloud.db")
        self.store = stack.enter_context(contextlib.closing(open_store(path, self.clock)))
        self.sim = stack.enter_context(contextlib.closing(Simulator(file, self.clock)))
        self.cloud = stack.enter_context(contextlib.closing(SimCloud(file, self.clock)))
        self.settings: Any = SimpleNamespace(
            server_sweep_s=60.0,
            lease_every_server=False,
            default_lease_days=30,
            minutes_before_end_lease=60,
            cleaning_time=0,
            prepare_s=60.0,
            before_end="",
            preemptibles=False,
            server_on_end=["stop"],
            server_start_timeout_s=120.0,
            retry_first_s=0.5,
            retry_most_s=15.0,
            claim_ahead=0,
            poll_interval_s=1e6,
        )
        self._ids = count()
        self.before: Callable[[NewLease], None] = lambda _wanted: None
        self.after: Callable[[NewLease], None] = lambda _wanted: None
        self.loop = self.manager("m1")
        self.store.operations.ensure(never_ending(auto_lease.SWEEP, self.clock.now()))
        self.sim.add_host("cmp-1")

    def manager(self, name: str) -> Loop:
        context = LeaseContext(
            ledger=self.store.ledger,
            cloud=self.cloud,
            calls=Inline(),
            resources={ServerResource.type: ServerResource()},
            settings=self.settings,
        )
        self.leases = Leases(context, self.clock, lambda: f"id-{next(self._ids)}")
        kinds = {
            **lifecycle.kinds(context),
            **auto_lease.kinds(context, self.settings, self.create),
        }
        runner = Runner(
            self.store.operations,
            kinds,
            self.clock,
            owner=name,
            patience=self.settings,
            claim_s=30,
            pool=Inline(),
        )
        return Loop(self.store.operations, runner, self.clock, self.settings)

    def create(self, caller: Caller, wanted: NewLease) -> None:
        """How the sweep makes leases: tests get in its way here."""
        self.before(wanted)
        self.leases.create(caller, wanted)
        self.after(wanted)

    def boot(self, name: str, host: str = "cmp-1", note: str | None = None) -> str:
        metadata = {} if note is None else {WISH: note}
        made = self.sim.boot(name, "alpha", host, 1, 512, 1, "", metadata, "ann")
        return made.id

    def wish(self, minutes: tuple[float | None, float], **more: Any) -> str:
        start, end = (
            None if at is None else self.clock.now() + timedelta(minutes=at) for at in minutes
        )
        assert end is not None
        return Wish("night", start, end, **more).note()

    def run(self, minutes: float = 0, seconds: float = 0, loop: Loop | None = None) -> None:
        until = self.clock.monotonic() + 60 * minutes + seconds
        while True:
            pause = turn(loop or self.loop)
            left = until - self.clock.monotonic()
            if left <= 0:
                return
            self.clock.advance(min(max(pause, 0.001), left))

    def all(self) -> list[Lease]:
        return [lease for lease, _events in self.store.ledger.with_events()]

    def leased(self) -> dict[str, Lease]:
        """The leases by the name of their server."""
        names = {server["id"]: server["name"] for server in self.sim.world()["servers"]}
        return {names[r.spec["server_id"]]: one for one in self.all() for r in one.reservations}

    def row(self) -> Any:
        return self.store.operations.by_key(auto_lease.SWEEP)


def turn(loop: Loop) -> float:
    """Come round as long as the bell rings; the seconds until something else is due."""
    wake_event: Any = loop._runner.freed
    while True:
        wake_event.clear()
        pause = loop.cycle()
        if not wake_event.is_set():
            return pause


@pytest.fixture
def here(template: Path, site: Path) -> Iterator[Site]:
    with contextlib.ExitStack() as stack:
        yield Site(copy(template, site), stack)


def test_the_sweep_makes_a_missing_lease_in_the_name_of_the_owner(here: Site) -> None:
    server_id = here.boot("web", note=here.wish((None, 120), on_end="shelve"))
    here.boot("plain")
    here.run(minutes=4)
    (lease,) = here.all()
    assert (lease.name, lease.user_id, lease.project_id) == ("night", "ann", "alpha")
    assert lease.status == "ACTIVE"
    spec = lease.reservations[0].spec
    assert (spec["server_id"], spec["on_end"]) == (server_id, "shelve")
    assert here.row().status in OPEN


def test_a_cloud_with_a_slow_server_list_does_not_stop_the_sweep(here: Site) -> None:
    for name in ("one", "two", "three"):
        here.boot(name, note=here.wish((None, 600)))
    here.sim.change(latency_s=auto_lease.TURN.total_seconds() + 1, only_calls=["servers.list"])
    here.run(minutes=5)
    assert set(here.leased()) == {"one", "two", "three"}


def test_a_server_that_is_to_start_later_is_shelved_until_then_and_ends_by_its_on_end(
    here: Site,
) -> None:
    here.boot("web", note=here.wish((30, 60), on_end="delete"))
    here.run(minutes=5)
    assert here.leased()["web"].status == "PENDING"
    assert here.sim.world()["servers"][0]["status"] == "SHELVED_OFFLOADED"
    here.run(minutes=27)
    assert here.leased()["web"].status == "ACTIVE"
    assert here.sim.world()["servers"][0]["status"] == "ACTIVE"
    here.run(minutes=30)
    assert [lease.status for lease in here.all()] == ["TERMINATED"]
    assert here.sim.world()["servers"] == []


def test_a_young_server_is_left_to_nova_api(here: Site) -> None:
    here.run(seconds=1)
    here.boot("web", note=here.wish((None, 120)))
    here.run(seconds=62)
    assert here.all() == []
    here.run(seconds=60)
    assert len(here.all()) == 1


def test_a_server_leased_by_nova_api_is_not_leased_again(here: Site) -> None:
    here.settings.lease_every_server = True
    server_id = here.boot("web", note=here.wish((None, 120)))
    wanted = NewReservation("virtual:server", {"server_id": server_id})
    end = here.clock.now() + timedelta(minutes=120)
    here.leases.create(ANN, NewLease("l1", "own", None, end, reservations=(wanted,)))
    here.run(minutes=5)
    assert [lease.id for lease in here.all()] == ["l1"]


def test_a_deleted_or_ended_lease_is_not_made_again(here: Site) -> None:
    here.settings.lease_every_server = True
    note = here.wish((None, 20))
    here.boot("web", note=note)
    here.boot("db", note=note)
    here.run(minutes=4)
    leases = here.leased()
    here.leases.delete(ANN, leases["web"].id)
    here.run(minutes=40)
    assert [(lease.id, lease.status) for lease in here.all()] == [(leases["db"].id, "TERMINATED")]


def test_every_server_in_no_reservation_gets_a_lease_of_a_month(here: Site) -> None:
    enrolled = here.sim.add_host("cmp-2")
    here.store.ledger.enrol(enrolled, "here", {}, Work())
    here.boot("web")
    here.boot("reserved", "cmp-2")
    shelved = here.boot("shelved")
    here.cloud.servers.shelve(shelved)
    here.run(minutes=4)
    assert here.all() == []
    here.settings.lease_every_server = True
    here.run(seconds=65)
    ((name, lease),) = here.leased().items()
    assert (name, lease.name, lease.status) == ("web", "web_lease", "ACTIVE")
    assert timedelta(days=30) - timedelta(minutes=2) < lease.end - lease.start
    assert lease.end - lease.start <= timedelta(days=30)


@pytest.mark.parametrize(
    ("note", "said"),
    [
        ('{"end": "2020-01-01 00:00"}', "is over by now: dropped"),
        ("nonsense", "makes no sense"),
        ('{"end": "2040-01-01 00:00", "x": "y"}', "makes no sense"),
    ],
)
def test_an_expired_or_invalid_hint_is_logged_once_and_dropped(
    here: Site, caplog: pytest.LogCaptureFixture, note: str, said: str
) -> None:
    here.boot("web", note=note)
    here.boot("db", note=here.wish((None, 60)))
    with caplog.at_level(logging.WARNING):
        here.run(minutes=6)
    assert list(here.leased()) == ["db"]
    assert caplog.text.count(said) == 1


def test_a_server_without_a_possible_lease_is_retried_and_stops_no_other(
    here: Site, caplog: pytest.LogCaptureFixture
) -> None:
    broken = {here.boot(f"web-{n}", note=here.wish((None, 60))) for n in range(4)}
    good = here.boot("db", note=here.wish((None, 60)))

    def refused(wanted: NewLease) -> None:
        if wanted.reservations[0].spec["server_id"] in broken:
            raise QuotaExceeded("not today")

    here.before = refused
    with caplog.at_level(logging.WARNING):
        here.run(minutes=6)
    assert [r.spec["server_id"] for lease in here.all() for r in lease.reservations] == [good]
    assert here.row().sentence == "0 servers leased, 4 could not be"
    assert caplog.text.count("not today") == 4
    broken.clear()
    here.run(minutes=2)
    assert len(here.all()) == 5


def test_a_server_in_error_has_nothing_to_lease(here: Site) -> None:
    here.settings.lease_every_server = True
    server_id = here.boot("web", note=here.wish((None, 60)))
    here.sim.fail_host("cmp-1")
    here.cloud.services.force_down("cmp-1")
    here.cloud.moves.evacuate(server_id)  # there is no other host
    here.run(minutes=4)
    assert here.cloud.servers.show(server_id).status == "ERROR"
    assert here.all() == []


def test_a_manager_that_died_in_the_middle_is_followed_by_another(here: Site) -> None:
    here.boot("web", note=here.wish((None, 120)))
    here.run(minutes=1)

    def dies(_wanted: NewLease) -> None:
        raise Killed

    here.after = dies
    with pytest.raises(Killed):
        here.run(minutes=2)
    here.after = lambda _wanted: None
    other = here.manager("m2")
    here.run(minutes=3, loop=other)
    assert [lease.status for lease in here.all()] == ["ACTIVE"]
    assert here.row().status in OPEN


def test_the_sweep_switched_off_calls_no_cloud_and_can_be_switched_on(here: Site) -> None:
    here.settings.server_sweep_s = 0
    here.boot("web", note=here.wish((None, 120)))
    here.run(minutes=10)
    assert (here.all(), here.sim.calls().get("servers.list")) == ([], None)
    here.settings.server_sweep_s = 60.0
    here.run(minutes=2)
    assert len(here.all()) == 1
