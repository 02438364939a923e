# SPDX-License-Identifier: Apache-2.0
"""Lists of leases: what is left out, in which order, and page by page, on every database."""

from __future__ import annotations

import random
import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from holdfast.db import Store
from holdfast.db.leases import SORTS, Listing
from holdfast.db.tables import hosts
from holdfast.model.errors import InvalidInput
from holdfast.model.lease import Allocation, Lease, Reservation, Window
from holdfast.ports.cloud import CloudHost
from holdfast.ports.ledger import Work

NOW = datetime(2030, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
HOST, SLOT = "physical:host", "virtual:instance"


def book(store: Store, name: str, start: int, hours: int = 1, **more: Any) -> Lease:
    parts = tuple(Reservation(str(uuid.uuid4()), type_) for type_ in more.get("types", [HOST]))
    begin = NOW + start * HOUR
    lease = Lease(
        id=str(uuid.uuid4()),
        name=name,
        user_id="u",
        project_id=more.get("project", "p"),
        start=begin,
        end=begin + hours * HOUR,
        status=more.get("status", "PENDING"),
        reservations=more.get("reservations", parts),
    )
    store.ledger.book(lease, Work())
    return lease


def listed(store: Store, listing: Listing, project_id: str | None = None) -> list[str]:
    stamps, _ = store.ledger.stamped(lambda _: (), listing=listing, project_id=project_id)
    return [id_ for id_, *_ in stamps]


def named(store: Store, **where: Any) -> set[str]:
    ids = set(listed(store, Listing(where)))
    return {lease.name for lease, _ in store.ledger.with_events() if lease.id in ids}


def test_conditions_leave_out_what_does_not_meet_them(store: Store) -> None:
    book(store, "early", 0)
    book(store, "late", 10, hours=5, types=[SLOT, HOST])
    book(store, "slots", 5, types=[SLOT], status="ACTIVE")
    theirs = book(store, "empty", 20, types=[], project="theirs")
    assert named(store) == {"early", "late", "slots", "empty"}
    assert named(store, status="ACTIVE") == {"slots"}
    assert named(store, name="late") == {"late"}
    assert named(store, resource_type=SLOT) == {"late", "slots"}
    assert named(store, resource_type=HOST) == {"early", "late"}
    assert named(store, start_after=NOW + 5 * HOUR) == {"slots", "late", "empty"}
    assert named(store, start_before=NOW + 5 * HOUR) == {"early"}
    assert named(store, end_after=NOW + 15 * HOUR) == {"late", "empty"}
    assert named(store, end_before=NOW + 6 * HOUR) == {"early"}
    assert named(store, resource_type=SLOT, status="PENDING") == {"late"}
    for marker, project in ((str(uuid.uuid4()), None), (theirs.id, "mine")):
        with pytest.raises(InvalidInput, match="marker"):
            listed(store, Listing(marker=marker), project)
    assert listed(store, Listing(marker=theirs.id), "theirs") == []


def walk(store: Store, listing: Listing) -> list[str]:
    """All ids, page after page."""
    found: list[str] = []
    while page := listed(store, replace(listing, marker=found[-1] if found else None)):
        found += page
    return found


def test_pages_of_any_length_and_order_show_each_lease_once(store: Store) -> None:
    chance = random.Random(4)
    leases = {}
    for _ in range(11):
        status = chance.choice(["ACTIVE", "PENDING"])
        lease = book(store, chance.choice("ab"), chance.randrange(3), status=status)
        leases[lease.id] = lease
    for sort in SORTS:
        whole = listed(store, Listing(sort=sort))
        assert sorted(whole) == sorted(leases)
        if sort != "created_at":
            values = [getattr(leases[id_], sort.removesuffix("_date")) for id_ in whole]
            assert values == sorted(values)
        for descending in (False, True):
            for limit in (1, 3, 11, 12):
                paged = walk(store, Listing(sort=sort, descending=descending, limit=limit))
                assert paged == (whole[::-1] if descending else whole)
    # one that comes between two pages hides no other
    by_name = listed(store, Listing(sort="name"))
    book(store, "0", 0)
    assert listed(store, Listing(sort="name", marker=by_name[4])) == by_name[5:]


def enrol(store: Store, name: str) -> int:
    cloud = CloudHost(str(uuid.uuid4()), name, name, "az-1", "", 8, 8192, 100)
    host_id = store.ledger.enrol(cloud, "", {}, Work()).id
    with store.database.write() as conn:  # as the last step of an enrolment does
        conn.execute(sa.update(hosts).where(hosts.c.id == host_id).values(reservable=True))
    return host_id


def test_in_full_they_come_with_what_they_hold_where_that_is_asked_for(store: Store) -> None:
    held = Window(NOW, NOW + HOUR)
    ours = [Allocation(enrol(store, f"cmp-{number}"), held) for number in (1, 2)]

    def reservation(*allocations: Allocation) -> Reservation:
        return Reservation(str(uuid.uuid4()), HOST, spec={"min": 1}, allocations=allocations)

    server = Allocation(None, held, thing="server:1")
    parts = (reservation(*ours), reservation(server), reservation())
    ids = [book(store, "a", 0, reservations=parts).id, book(store, "b", 0).id]
    _, full = store.ledger.stamped(lambda _: ids, holding=True)
    got = {
        lease.name: [(a.host, a.thing) for a in lease.allocations()] for lease, _ in full.values()
    }
    assert got == {"a": [("cmp-1", None), ("cmp-2", None), ("", "server:1")], "b": []}
    assert [r.id for r in full[ids[0]][0].reservations] == [r.id for r in parts]
    _, plain = store.ledger.stamped(lambda _: ids)
    assert not any(lease.allocations() for lease, _ in plain.values())
