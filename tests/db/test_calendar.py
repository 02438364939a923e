# SPDX-License-Identifier: Apache-2.0
"""Who holds which host when, on every database."""

from __future__ import annotations

from datetime import datetime, timedelta

import sqlalchemy as sa

from holdfast.db import Store
from holdfast.db.tables import hosts
from holdfast.db.views import Which
from tests.db.test_wall import furnish

HOUR = timedelta(hours=1)
ANY = Which()


def span(now: datetime, first: float, last: float) -> tuple[datetime, datetime]:
    return now + first * HOUR, now + last * HOUR


def test_a_page_of_hosts_and_what_is_held_of_them_in_a_time(store: Store) -> None:
    now = furnish(store)
    calendar = store.calendar
    found, total = calendar.hosts(ANY, 1, 1)
    assert ([row.service_host for row in found], total) == (["CMP-2"], 3)
    assert [row.name for row in calendar.hosts(Which(text="P-3"), 0, 9)[0]] == ["cmp-3"]
    assert calendar.hosts(Which(rack="r", zone="moon"), 0, 9) == ([], 0)
    assert calendar.places() == (["r"], [])
    held = calendar.holds([1, 2], *span(now, 0, 0.5))
    assert [(row.host_id, row.name, row.slots) for row in held] == [
        (1, "run_1", None),
        (2, "slots-b", 2),
        (2, "slots-r", 1),
    ]
    assert [row.name for row in calendar.holds([1], *span(now, 1, 9))] == ["Next%run"]
    assert calendar.holds([], *span(now, 0, 9)) == ()


def test_busy_hosts_are_listed_with_the_times_of_their_holds(store: Store) -> None:
    now = furnish(store)
    crowded, when = store.calendar.dense([1, 2, 3], *span(now, -2, 9), most=1)
    assert sorted(crowded) == [1, 2]
    assert len(when) == 4
    assert store.calendar.dense([1, 2, 3], *span(now, -2, 9), most=2) == ((), ())
    assert store.calendar.dense([], *span(now, -2, 9), most=0) == ((), ())


def test_pools_have_what_is_usable_and_what_is_taken(store: Store) -> None:
    now = furnish(store)
    open_up(store, "cmp-1", "cmp-2", "cmp-3")
    assert counts(store) == {("r", "up", True): 2, ("r", "down", True): 1}
    whole, slots = store.calendar.taken("racks", ANY, *span(now, 0, 9))
    assert sorted((one.pool, one.hosts, one.held_until) for one in whole) == [
        ("r", 1, now + HOUR),
        ("r", 1, now + 2 * HOUR),
    ]
    assert [(slot.host_id, slot.pool) for slot in slots] == [(2, "r"), (2, "r")]


def test_a_host_that_cannot_be_reserved_is_neither_free_nor_taken(store: Store) -> None:
    now = furnish(store)
    open_up(store, "cmp-2")
    assert counts(store) == {("r", "up", True): 1, ("r", "up", False): 1, ("r", "down", False): 1}
    whole, slots = store.calendar.taken("racks", ANY, *span(now, 0, 9))
    assert whole == [] and {slot.host_id for slot in slots} == {2}


def open_up(store: Store, *names: str) -> None:
    with store.database.engine.begin() as conn:
        some = hosts.c.name.in_(names)
        conn.execute(sa.update(hosts).where(some).values(reservable=True))


def counts(store: Store) -> dict[tuple[str, str, bool], int]:
    found = store.calendar.pools("racks", ANY)
    return {(one.pool, one.state, bool(one.reservable)): one.hosts for one in found}


def test_leases_incidents_and_maintenance_windows_of_a_time(store: Store) -> None:
    now = furnish(store)
    rows, total = store.calendar.leases("blue", *span(now, 0, 9), offset=0, limit=1)
    assert (len(rows), total) == (1, 2)
    assert store.calendar.leases(None, *span(now, 0, 9), offset=0, limit=9)[1] == 4
    assert store.calendar.leases("red", *span(now, 3, 9), offset=0, limit=9) == ([], 0)
    assert len(store.calendar.incidents(["cmp-3"], *span(now, -1, 1))) == 2
    assert store.calendar.incidents(["cmp-1"], *span(now, -1, 1)) == []
    values = {"matcher": {"host": "cmp-1"}, "author": "a", "reason": "r"}
    store.switches.add_window({**values, "starts_at": now, "expires_at": now + HOUR})
    assert len(store.calendar.maintenance_windows(*span(now, 0.5, 9))) == 1
    assert store.calendar.maintenance_windows(*span(now, 1.5, 9)) == []
