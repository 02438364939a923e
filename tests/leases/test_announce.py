# SPDX-License-Identifier: Apache-2.0
"""What is told of leases, in which order, how often, and what happens while nobody listens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.api.reservation_v1.leases import view
from holdfast.jobs import outbox
from holdfast.jobs.job import NotYet
from holdfast.leases import events
from holdfast.leases.events import Announcer, events_of
from holdfast.model.errors import DriverError
from holdfast.model.lease import Lease, Reservation
from holdfast.model.operation import Operation
from holdfast.ports.ledger import Work
from tests.ear import Ear
from tests.jobs.conftest import Shop
from tests.leases.house import copy, make_template
from tests.simclock import EPOCH

HOUR = timedelta(hours=1)


def lease(**more: Any) -> Lease:
    values: dict[str, Any] = {
        "before_end": EPOCH + HOUR,
        "reservations": (Reservation("r1", "physical:host", spec={"min": 1, "max": 1}),),
        **more,
    }
    return Lease("l1", "lab", "ann", "alpha", EPOCH, EPOCH + 2 * HOUR, **values)


AWAY = DriverError("ear", "away", retryable=True)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_template(tmp_path_factory.mktemp("announce") / "empty")


@pytest.fixture
def shop(files: Path, tmp_path: Path) -> Iterator[Shop]:
    made = Shop(copy(files, tmp_path / "shop"))
    yield made
    made.store.close()


class Town:
    """A table of work, an announcer with sinks, and time."""

    def __init__(self, shop: Shop, *sinks: Ear) -> None:
        self.shop = shop
        self.settings = SimpleNamespace(give_up_h=24.0)
        self.announcer = Announcer(sinks, view, self.settings, shop.clock)

    def happens(self, event: str, about: Lease) -> tuple[Operation, ...]:
        rows = self.announcer.work(event, about, self.shop.clock.now())
        self.shop.apply(about.id, Work(put=rows))
        return rows

    def turn(self) -> float:
        """Tell all that can be told now; how long until the next look."""
        for _ in range(50):
            runner = self.shop.runner(*self.announcer.kinds().values())
            pause = self.shop.loop(runner).cycle()
            if not runner.freed.is_set():
                return pause
        raise AssertionError("the loop never rests")

    def run(self, hours: float) -> None:
        until = self.shop.clock.now() + timedelta(hours=hours)
        while (left := (until - self.shop.clock.now()).total_seconds()) > 0:
            self.shop.clock.advance(min(self.turn(), left))


def kinds(told: Ear) -> list[str]:
    return [notice.event_type for notice in told.heard]


def test_a_notice_has_the_contracts_keys_and_dates(shop: Shop) -> None:
    ear = Ear()
    town = Town(shop, ear)
    town.happens("lease.event.start_lease", lease(status="ACTIVE", version=3))
    town.turn()
    (told,) = ear.heard
    assert told.at == EPOCH
    assert set(told.payload) == {
        "lease_id",
        "user_id",
        "project_id",
        "trust_id",
        "start_date",
        "end_date",
        "status",
        "reservations",
        "events",
        "name",
        "created_at",
        "updated_at",
        "degraded",
    }
    assert told.payload["lease_id"] == "l1"
    assert told.payload["start_date"] == "2030-01-01T10:00:00.000000"
    assert told.payload["updated_at"] == "2030-01-01 10:00:00"
    assert told.payload["reservations"][0]["id"] == "r1"
    assert told.payload["events"] == [
        {"lease_id": "l1", "event_type": kind, "time": time, "status": status}
        for kind, time, status in (
            ("start_lease", "2030-01-01T10:00:00.000000", "DONE"),
            ("before_end_lease", "2030-01-01T11:00:00.000000", "UNDONE"),
            ("end_lease", "2030-01-01T12:00:00.000000", "UNDONE"),
        )
    ]


@pytest.mark.parametrize(
    ("event", "status", "hours", "expected"),
    [
        ("lease.create", "PENDING", -1, "UNDONE UNDONE UNDONE"),
        ("lease.create", "PENDING", 0.1, "UNDONE UNDONE UNDONE"),
        ("lease.event.before_end_lease", "ACTIVE", 1, "DONE DONE UNDONE"),
        ("lease.update", "ACTIVE", 1.5, "DONE DONE UNDONE"),
        ("lease.event.end_lease", "TERMINATED", 2, "DONE DONE DONE"),
        ("lease.update", "ERROR", 0.5, "ERROR UNDONE UNDONE"),
        ("lease.delete", "DELETING", -1, "UNDONE UNDONE UNDONE"),
        ("lease.delete", "DELETING", 0.5, "DONE UNDONE UNDONE"),
        ("lease.delete", "DELETING", 3, "DONE DONE DONE"),
    ],
)
def test_events_say_how_far_the_lease_is(
    event: str, status: str, hours: float, expected: str
) -> None:
    found = events.payload(event, lease(status=status), EPOCH + hours * HOUR, view)
    assert " ".join(e["status"] for e in found["events"]) == expected


def test_no_sink_no_work() -> None:
    assert Announcer().work("lease.create", lease(), EPOCH) == ()
    assert Announcer().changed(lease(), lease(degraded=True), EPOCH) == ()


def test_the_events_of_a_lease_keep_the_order_through_an_outage(shop: Shop) -> None:
    ear = Ear(trouble=AWAY)
    town = Town(shop, ear)
    town.happens("lease.create", lease(version=0))
    town.turn()
    town.happens("lease.update", lease(version=0))
    town.happens("lease.event.start_lease", lease(version=1, status="ACTIVE"))
    town.happens("lease.delete", lease(version=2, status="DELETING"))
    town.run(0.1)
    ear.trouble = None
    town.run(0.2)
    assert kinds(ear) == ["lease.create", "lease.update", "lease.event.start_lease", "lease.delete"]


def test_several_events_of_a_change_keep_the_order(shop: Shop) -> None:
    ear = Ear()
    town = Town(shop, ear)
    old = lease(status="ACTIVE", version=4)
    new = replace(old, end=old.end + 5 * HOUR, before_end=EPOCH + 6 * HOUR)
    shop.clock.advance(3700)
    shop.apply("l1", Work(add=tuple(reversed(town.announcer.changed(old, new, shop.clock.now())))))
    town.turn()
    assert kinds(ear) == ["lease.update", "lease.event.before_end_lease.stop"]


def test_a_sink_that_is_away_holds_up_no_other(shop: Shop) -> None:
    deaf, ear = Ear("deaf", trouble=AWAY), Ear()
    town = Town(shop, deaf, ear)
    town.happens("lease.create", lease())
    town.happens("lease.update", lease())
    town.turn()
    assert kinds(ear) == ["lease.create", "lease.update"]
    assert deaf.heard == []


def test_an_unreachable_sink_is_probed_by_a_single_event(shop: Shop) -> None:
    """Hundreds of leases wait outside, where they hold no worker for the length of a timeout."""
    deaf = Ear(trouble=AWAY)
    town = Town(shop, deaf)
    for number in range(20):
        town.happens("lease.create", replace(lease(), id=f"l{number}"))
    town.turn()
    assert deaf.tries == 1
    town.run(0.3)
    assert deaf.tries < 40  # one a minute, and the first ones
    deaf.trouble = None
    town.run(0.1)
    assert len(deaf.heard) == 20


def test_thousands_that_wait_for_a_slow_sink_do_not_ask_all_the_time(shop: Shop) -> None:
    door = outbox.SinkGate(Ear(), shop.clock)
    for _ in range(outbox.MOST_AT_ONCE):
        door.enter()
    waits: list[float] = []
    for _ in range(5000):
        with pytest.raises(NotYet) as refused:
            door.enter()
        waits.append(refused.value.seconds)
    assert min(waits) < 1
    for second in range(100):
        assert sum(second <= wait < second + 1 for wait in waits) <= 1.1 / outbox.APART_S
    door.leave(away=None)
    door.enter()  # who comes when there is room need not wait


def test_every_try_and_every_sink_have_the_same_message_id(shop: Shop) -> None:
    one, other = Ear("one"), Ear("other")
    town = Town(shop, one, other)
    town.happens("lease.create", lease())
    town.turn()
    town.happens("lease.create", lease())  # armed again: a second try after a crash
    town.happens("lease.update", lease())
    town.turn()
    assert {n.message_id for n in one.heard} == {n.message_id for n in other.heard}
    first, again, update = one.heard
    assert first.message_id == again.message_id != update.message_id


def test_a_repeated_before_end_is_a_single_event_until_rearmed() -> None:
    announcer = Announcer([Ear()], view, SimpleNamespace(give_up_h=24.0))
    event = "lease.event.before_end_lease"

    def key(about: Lease) -> str:
        return announcer.work(event, about, EPOCH)[0].key

    assert key(lease(version=3)) == key(lease(version=4))
    assert key(lease(version=5, before_end=EPOCH + 3 * HOUR)) != key(lease(version=4))


def test_an_undeliverable_event_is_dropped_after_hours_and_the_next_follows(shop: Shop) -> None:
    ear = Ear(trouble=AWAY)
    town = Town(shop, ear)
    town.settings.give_up_h = 2.0
    (lost,) = town.happens("lease.create", lease())
    town.run(1.9)
    assert shop.get(lost.key).status == "retrying"
    town.run(0.2)
    assert shop.get(lost.key).status == "error"
    ear.trouble = None
    town.happens("lease.update", lease())
    town.run(0.1)
    assert kinds(ear) == ["lease.update"]


def test_an_event_refused_for_good_is_dropped_at_once(shop: Shop) -> None:
    ear = Ear(trouble=DriverError("ear", "answered 410", retryable=False))
    town = Town(shop, ear)
    (lost,) = town.happens("lease.create", lease())
    town.turn()
    assert ear.tries == 1
    assert shop.get(lost.key).status == "error"
    assert "410" in shop.get(lost.key).sentence
    ear.trouble = None
    town.happens("lease.update", lease())
    town.turn()
    assert kinds(ear) == ["lease.update"]  # and it is not resting: it answered


def test_an_event_for_an_unconfigured_sink_waits_for_another_manager(shop: Shop) -> None:
    ear = Ear()
    there, here = Town(shop, ear), Town(shop)
    (row,) = there.happens("lease.create", lease())
    here.settings = SimpleNamespace(give_up_h=24.0)
    here.announcer = Announcer((), view, here.settings, shop.clock)
    here.turn()
    assert shop.get(row.key).status == "retrying"
    shop.clock.advance(61)
    there.turn()
    assert kinds(ear) == ["lease.create"]


@pytest.mark.parametrize(
    ("old", "new", "at", "expected"),
    [
        (lease(), replace(lease(), name="b"), EPOCH, "lease.update"),
        (
            lease(status="ACTIVE"),
            lease(status="ACTIVE", before_end=EPOCH + 4 * HOUR),
            EPOCH + HOUR,
            "lease.update lease.event.before_end_lease.stop",
        ),
        (
            lease(status="ACTIVE"),
            lease(status="ACTIVE", before_end=EPOCH + 4 * HOUR),
            EPOCH + HOUR - timedelta(seconds=1),
            "lease.update",
        ),
        (
            lease(status="ACTIVE"),
            lease(status="ACTIVE", before_end=EPOCH + HOUR / 2),
            EPOCH + HOUR,
            "lease.update",
        ),
        (lease(before_end=None), lease(), EPOCH, "lease.update"),
        (lease(), lease(degraded=True), EPOCH, "lease.update lease.degraded"),
        (lease(degraded=True), lease(), EPOCH, "lease.update lease.healed"),
    ],
)
def test_each_update_has_the_matching_event_types(
    old: Lease, new: Lease, at: datetime, expected: str
) -> None:
    assert " ".join(events_of(old, new, at)) == expected


def test_a_change_of_health_is_announced_and_an_unchanged_health_is_not(shop: Shop) -> None:
    ear = Ear()
    town = Town(shop, ear)
    well, ill = lease(version=1), lease(version=1, degraded=True)
    assert town.announcer.health(well, well, EPOCH) == ()
    shop.apply("l1", Work(add=town.announcer.health(well, ill, EPOCH)))
    shop.apply("l1", Work(add=town.announcer.health(replace(ill, version=2), well, EPOCH)))
    town.turn()
    assert sorted(kinds(ear)) == ["lease.degraded", "lease.healed"]
