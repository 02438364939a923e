# SPDX-License-Identifier: Apache-2.0
"""Lists of leases: what is left out, in which order, and page by page, on every database."""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast.model.errors import InvalidInput
from holdfast.model.lease import Allocation, Lease, Reservation, Window
from holdfast.ports.cloud import CloudHost
from holdfast.ports.ledger import Work
from holdfast.store import Store
from holdfast.store.lease_list import SORTS, Listing

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
    book(store, "empty", 20, types=[])
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


def test_pages_of_any_length_and_order_show_each_lease_once(store: Store) -> None:
    chance = random.Random(4)
    for _ in range(11):
        book(store, chance.choice("ab"), chance.randrange(3), status=chance.choice(["ACTIVE", "X"]))
    for sort in SORTS:
        whole = listed(store, Listing(sort=sort))
        assert len(set(whole)) == 11
        for descending in (False, True):
            for limit in (1, 3, 11, 12):
                paged = walk(store, Listing(sort=sort, descending=descending, limit=limit))
                assert paged == (whole[::-1] if descending else whole)


def walk(store: Store, listing: Listing) -> list[str]:
    """All ids, page after page."""
    found: list[str] = []
    while page := listed(
        store, Listing(**{**vars(listing), "marker": found[-1] if found else None})
    ):
        found += page
    return found


def test_a_list_is_sorted_by_what_was_asked_for(store: Store) -> None:
    made = [book(store, name, start) for name, start in (("b", 1), ("a", 2), ("c", 0))]

    def order(listing: Listing) -> str:
        names = {lease.id: lease.name for lease in made}
        return "".join(names[id_] for id_ in listed(store, listing))

    assert order(Listing(sort="name")) == "abc"
    assert order(Listing(sort="name", descending=True)) == "cba"
    assert order(Listing(sort="start_date")) == "cba"
    assert order(Listing(sort="end_date", descending=True)) == "abc"
    assert order(Listing()) == "bac"


def test_a_lease_that_comes_between_two_pages_hides_no_other(store: Store) -> None:
    first, second = book(store, "a", 0), book(store, "c", 0)
    assert listed(store, Listing(sort="name", limit=1)) == [first.id]
    book(store, "0", 0)  # sorts before the page that was read
    assert listed(store, Listing(sort="name", limit=1, marker=first.id)) == [second.id]


def test_a_marker_that_is_gone_or_anothers_is_refused(store: Store) -> None:
    lease = book(store, "a", 0, project="theirs")
    for marker, project in ((str(uuid.uuid4()), None), (lease.id, "mine")):
        with pytest.raises(InvalidInput, match="marker"):
            listed(store, Listing(marker=marker), project)
    assert listed(store, Listing(marker=lease.id), "theirs") == []


def enrol(store: Store, name: str) -> int:
    cloud = CloudHost(str(uuid.uuid4()), name, name, "az-1", "", 8, 8192, 100)
    return store.ledger.enrol(cloud, "", {}, Work()).id


def test_in_full_they_come_with_what_they_hold_where_that_is_asked_for(store: Store) -> None:
    hosts = [enrol(store, f"cmp-{number}") for number in (1, 2)]
    held = Window(NOW, NOW + HOUR)

    def reservation(*allocations: Allocation) -> Reservation:
        return Reservation(str(uuid.uuid4()), HOST, spec={"min": 1}, allocations=allocations)

    parts = (
        reservation(*(Allocation(id_, held) for id_ in hosts)),
        reservation(Allocation(None, held, thing="address:1")),
        reservation(),
    )
    ids = [book(store, "a", 0, reservations=parts).id, book(store, "b", 0).id]
    assert _got(store, ids) == {"a": [("cmp-1", None), ("cmp-2", None), ("", "address:1")], "b": []}
    _, plain = store.ledger.stamped(lambda _: ids)
    assert not any(lease.allocations() for lease, _ in plain.values())
    _, full = store.ledger.stamped(lambda _: ids, holding=True)
    positions = [r.id for r in full[ids[0]][0].reservations]
    assert positions == [r.id for r in parts]


def _got(store: Store, ids: Sequence[str]) -> dict[str, list[tuple[str, str | None]]]:
    _, full = store.ledger.stamped(lambda _: ids, holding=True)
    return {
        lease.name: [(a.host, a.thing) for a in lease.allocations()] for lease, _ in full.values()
    }
