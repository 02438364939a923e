# SPDX-License-Identifier: Apache-2.0
"""GET /holdfast/v1/availability: what could be had and when, for any member, without trying."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from falcon import testing

from tests.api.house import OWN, House, host_reservation, lease_body, when

AVAILABILITY = f"{OWN}/availability"
HOSTS_2 = json.dumps(host_reservation(min=2, max=2))


def ask(house: House, user: str = "", **asked: Any) -> testing.Result:
    params = {"reservation": HOSTS_2, **asked}
    return house.call("GET", AVAILABILITY, user, params=params)


def found(answer: testing.Result) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    availability: dict[str, Any] = answer.json["availability"]
    return availability


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def near(text: str, moment: datetime) -> bool:
    """Hours are what differs, not how long the machine takes."""
    return abs(at(text) - moment) < timedelta(minutes=15)


def test_a_window_that_is_free_fits_and_books_nothing(shared: House) -> None:
    before = shared.dump()
    said = found(ask(shared, start_date=when(days=1), end_date=when(days=2)))
    assert shared.dump() == before
    assert (said["fits"], said["amount"], said["why_not"]) == (True, 2, None)
    (window,) = said["windows"]
    assert near(window["start_date"], datetime.now(UTC) + timedelta(days=1))
    assert window["amount"] == 2


def test_the_answer_names_the_holds_and_the_next_windows(guarded: House) -> None:
    busy = [host_reservation(min=3, max=3)]
    guarded.lease("other", name="secret", reservations=busy)
    dates = {"start_date": when(days=1), "end_date": when(days=2)}
    for user in ("reader", "member"):
        refused = found(ask(guarded, user, **dates))
        assert (refused["fits"], refused["amount"], refused["windows"]) == (False, 0, [])
        assert "Not enough hosts" in refused["why_not"]["message"]
        assert {"conditions", "obstacles", "earliest"} <= refused["why_not"].keys()
        assert "secret" not in json.dumps(refused)
    # a day: from now it would meet the lease, so only after it
    now = datetime.now(UTC)
    said = found(ask(guarded, "reader", duration_s=2 * 86_400))
    assert said["fits"] is True
    first = said["windows"][0]
    assert near(first["start_date"], now + timedelta(days=2))
    assert at(first["end_date"]) - at(first["start_date"]) == timedelta(days=2)
    # twelve hours: at once
    said = found(ask(guarded, "reader", duration_s=43_200, limit=1))
    assert len(said["windows"]) == 1
    assert near(said["windows"][0]["start_date"], now)
    # what it names can be booked
    window = {key: first[key] for key in ("start_date", "end_date")}
    body = lease_body(reservations=[host_reservation(min=2, max=2)], **window)
    assert guarded.call("POST", "/reservation/v1/leases", "member", json=body).status_code == 201


def test_the_search_stays_between_from_and_until(guarded: House) -> None:
    guarded.lease("other", reservations=[host_reservation(min=3, max=3)])
    later = found(ask(guarded, "reader", duration_s=3600, **{"from": when(days=1, hours=1)}))
    assert near(later["windows"][0]["start_date"], datetime.now(UTC) + timedelta(days=2))
    span = {"from": when(days=1, hours=1), "until": when(days=1, hours=2)}
    none = found(ask(guarded, "reader", duration_s=3600, **span))
    assert (none["fits"], none["windows"]) == (False, [])
    assert none["why_not"]["message"]


def test_more_than_there_is_never_fits(shared: House) -> None:
    wanted = json.dumps(host_reservation(min=5, max=5))
    said = found(ask(shared, reservation=wanted, duration_s=60))
    assert (said["fits"], said["windows"]) == (False, [])
    assert "Not enough hosts" in said["why_not"]["message"]


SLOTS = {
    **{"resource_type": "virtual:instance", "vcpus": 1, "memory_mb": 1, "disk_gb": 1},
    **{"amount": 2, "affinity": None, "resource_properties": ""},
}


def test_slots_and_addresses_can_be_asked_for_too(shared: House) -> None:
    address = {"resource_type": "virtual:floatingip", "network_id": "public", "amount": 1}
    for wanted, amount in ((SLOTS, 2), (address, 1)):
        said = found(ask(shared, reservation=json.dumps(wanted), duration_s=3600))
        assert (said["fits"], said["amount"]) == (True, amount), wanted
        dates = {"start_date": "now", "end_date": when(days=1)}
        assert found(ask(shared, reservation=json.dumps(wanted), **dates))["amount"] == amount


WINDOW = {"start_date": when(days=1), "end_date": when(days=2)}


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({}, "start_date"),
        ({"start_date": when(days=1)}, "end_date"),
        ({"start_date": when(days=2), "end_date": when(days=1)}, "End date"),
        ({"start_date": "now", "end_date": "now"}, "End date"),
        ({**WINDOW, "end_date": "soon"}, "end_date"),
        ({**WINDOW, "duration_s": 60}, "start_date"),
        ({**WINDOW, "limit": 3}, "limit"),
        ({**WINDOW, "until": when(days=3)}, "until"),
        ({"duration_s": 0}, "duration_s"),
        ({"duration_s": -5}, "duration_s"),
        ({"duration_s": "long"}, "duration_s"),
        ({"duration_s": 10**12}, "duration_s"),
        ({"duration_s": "9" * 5000}, "duration_s"),
        ({"duration_s": 60, "limit": 21}, "limit"),
        ({"duration_s": 60, "limit": 0}, "limit"),
        ({"duration_s": 60, "from": "x"}, "from"),
        ({"duration_s": 60, "from": when(days=2), "until": when(days=1)}, "until"),
        ({"duration_s": 60, "until": "2020-01-01 10:00"}, "until"),
        ({"duration_s": 60, "until": "9999-12-31 10:00"}, "until"),
        ({"duration_s": 60, "colour": "red"}, "colour"),
        ({"duration_s": 60, "reservation": ""}, "reservation"),
        ({"duration_s": 60, "reservation": "x" * 10_001}, "reservation"),
        ({"duration_s": 60, "reservation": "{"}, "reservation"),
        ({"duration_s": 60, "reservation": "[]"}, "reservation"),
        ({"duration_s": 60, "reservation": "{}"}, "resource_type"),
        ({"duration_s": 60, "reservation": '{"resource_type": 5}'}, "resource_type"),
        (
            {"duration_s": 60, "reservation": '{"resource_type": "a", "resource_type": "b"}'},
            "twice",
        ),
        ({"duration_s": 60, "reservation": '{"resource_type": "nope"}'}, "nope"),
        ({"duration_s": 60, "reservation": '{"resource_type": "physical:host"}'}, "min"),
        ({"duration_s": 60, "reservation": "[" * 5000}, "reservation"),
        ({"duration_s": 60, "reservation": '{"resource_type": "a", "x": 1e999}'}, "too large"),
        (
            {"duration_s": 60, "reservation": '{"resource_type": "a", "x": "\\u0000"}'},
            "reservation",
        ),
        (
            {"duration_s": 60, "reservation": '{"resource_type": "a", "x": ' + "9" * 30 + "}"},
            "reservation.x",
        ),
    ],
    ids=range(33),
)
def test_nonsense_is_refused_with_its_name(
    shared: House, asked: dict[str, Any], field: str
) -> None:
    answer = ask(shared, **asked)
    assert answer.status_code == 400, answer.text
    (fault,) = answer.json["errors"]
    assert field in fault["detail"]
    assert len(fault["detail"]) < 1000


def test_the_reservation_must_be_there(shared: House) -> None:
    answer = shared.call("GET", AVAILABILITY, params={"duration_s": 60})
    assert answer.status_code == 400
    assert "Missing parameter reservation" in answer.json["errors"][0]["detail"]
