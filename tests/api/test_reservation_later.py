# SPDX-License-Identifier: Apache-2.0
"""What microversion 1.1 adds to the reservation contract, and that 1.0 never shows it."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from falcon import testing

from tests.api.conftest import Build
from tests.api.house import HOSTS, LATER, LEASES, NETWORK, House, host_reservation, lease_body, when


def later(house: House, query: str = "", user: str = "") -> testing.Result:
    return house.call("GET", LEASES, user, query_string=query, headers=LATER)


def names(answer: testing.Result) -> list[str]:
    assert answer.status_code == 200, answer.text
    return [lease["name"] for lease in answer.json["leases"]]


def test_owners_see_which_hosts_they_got_and_old_clients_do_not(house: House) -> None:
    made = house.lease(reservations=[host_reservation(min=2, max=2)])
    old = house.call("GET", f"{LEASES}/{made['id']}")
    new = house.call("GET", f"{LEASES}/{made['id']}", headers=LATER)
    (reservation,) = new.json["lease"]["reservations"]
    hosts = reservation.pop("hosts")
    assert len(hosts) == 2
    assert {(host["id"], host["name"]) for host in hosts} <= {
        (str(number), f"cmp-{number}") for number in range(1, 5)
    }
    assert old.json["lease"]["reservations"] == [reservation]
    assert old.json == {"lease": made}
    # each answer again, from what was kept of it
    assert house.call("GET", f"{LEASES}/{made['id']}").content == old.content
    assert house.call("GET", f"{LEASES}/{made['id']}", headers=LATER).content == new.content


def test_leases_show_when_their_end_is_announced(house: House) -> None:
    asked = when(days=1, hours=5)
    lease = house.lease(before_end_date=asked)
    shown = house.call("GET", f"{LEASES}/{lease['id']}", headers=LATER).json["lease"]
    assert shown["before_end_date"][:16].replace("T", " ") == asked
    assert "before_end_date" not in lease


def test_hosts_change_with_the_lease(house: House) -> None:
    made = house.lease()
    path = f"{LEASES}/{made['id']}"
    (first,) = house.call("GET", path, headers=LATER).json["lease"]["reservations"]
    changes = [{"id": first["id"], "min": 3, "max": 3}]
    changed = house.call("PUT", path, json={"reservations": changes}, headers=LATER)
    (grown,) = changed.json["lease"]["reservations"]
    assert (len(first["hosts"]), len(grown["hosts"])) == (1, 3)
    assert later(house).json["leases"][0] == changed.json["lease"]


def test_hosts_show_their_region_and_rack_unless_capabilities_have_these_names(
    build: Build,
) -> None:
    house = build("[openstack]\nregion_name = north\n")
    made = house.call("POST", HOSTS, json={"name": "cmp-5"}, headers=LATER)
    assert made.status_code == 201, made.text
    path = f"{HOSTS}/cmp-5"
    shown = house.call("GET", path, headers=LATER).json["host"]
    assert shown == made.json["host"]
    assert (shown["region"], shown["rack"]) == ("north", "rack-a")
    assert house.call("GET", path).json["host"].keys() == shown.keys() - {"region", "rack"}
    house.call("PUT", path, json={"rack": "b7"})
    listed = house.call("GET", HOSTS, headers=LATER).json["hosts"]
    assert (listed[-1]["region"], listed[-1]["rack"]) == ("north", "b7")


def test_owners_see_their_addresses(house: House) -> None:
    wanted = {"resource_type": "virtual:floatingip", "network_id": NETWORK, "amount": 1}
    made = house.call("POST", LEASES, json=lease_body(reservations=[wanted]), headers=LATER)
    assert made.status_code == 201, made.text
    (reservation,) = made.json["lease"]["reservations"]
    (address,) = reservation["floatingips"]
    assert address["address"] == "203.0.113.7"


@pytest.fixture(scope="module")
def furnished_list(shared: House) -> House:
    """Leases a to e, made in this order, one after the other in time, e empty."""
    for number, name in enumerate("cadb"):
        dates = {"start_date": when(days=number + 1), "end_date": when(days=number + 2)}
        shared.lease(name=name, **dates)
    shared.lease(name="e", reservations=[], start_date=when(days=9), end_date=when(days=10))
    return shared


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("", "cadbe"),
        ("name=d", "d"),
        ("name=D", ""),
        ("status=PENDING", "cadbe"),
        ("status=ACTIVE", ""),
        ("resource_type=physical:host", "cadb"),
        ("project_id=demo", "cadbe"),
        ("project_id=other", ""),
        ("sort=name", "abcde"),
        ("sort=name:asc", "abcde"),
        ("sort=name:desc", "edcba"),
        ("sort=end_date:desc", "ebdac"),
        ("sort=name&limit=2", "ab"),
    ],
)
def test_a_list_is_narrowed_and_sorted_from_1_1_on(
    furnished_list: House, query: str, found: str
) -> None:
    assert "".join(names(later(furnished_list, query))) == found
    old = furnished_list.call("GET", LEASES, query_string=query)
    assert "".join(names(old)) == "cadbe"
    assert old.json.keys() == {"leases"}


def test_a_list_is_narrowed_by_dates(furnished_list: House) -> None:
    def found(**asked: str) -> str:
        answer = furnished_list.call("GET", LEASES, params=asked, headers=LATER)
        return "".join(names(answer))

    assert found(start_after=when(days=2, hours=12)) == "dbe"
    assert found(start_before=when(days=2, hours=12)) == "ca"
    assert found(end_after=when(days=5, hours=-1)) == "be"
    assert found(end_before=when(days=2, hours=12), start_after="now") == "c"


@pytest.mark.parametrize("sort", ["name", "created_at:desc"])
def test_links_lead_through_all_pages(furnished_list: House, sort: str) -> None:
    whole = names(later(furnished_list, f"sort={sort}"))
    answer, found = later(furnished_list, f"sort={sort}&limit=2&status=PENDING"), []
    for _ in range(5):
        found += names(answer)
        if "leases_links" not in answer.json:
            break
        (link,) = answer.json["leases_links"]
        assert link["rel"] == "next"
        address = urlsplit(link["href"])
        assert address.path == LEASES
        assert dict(parse_qsl(address.query))["sort"] == sort
        answer = later(furnished_list, address.query)
    assert found == whole


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("colour=red", "colour"),
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("limit=many", "limit"),
        ("limit=" + "9" * 5000, "limit"),
        ("status=odd", "status"),
        ("sort=colour", "sort"),
        ("sort=name:up", "sort"),
        ("name=", "name"),
        ("name=" + "x" * 81, "name"),
        ("name=%00", "name"),
        ("start_after=yesterday", "start_after"),
        ("end_before=9999-12-31T23:59:59-14:00", "end_before"),
        ("marker=nope", "marker"),
        ("marker=" + "x" * 37, "marker"),
        ("resource_type=" + "x" * 67, "resource_type"),
    ],
)
def test_what_a_list_does_not_understand_is_refused_from_1_1_on(
    furnished_list: House, query: str, field: str
) -> None:
    answer = later(furnished_list, query)
    assert answer.status_code == 400, answer.text
    assert field in answer.json["error_message"]
    assert len(answer.json["error_message"]) < 1000
    if "%00" not in query:
        assert furnished_list.call("GET", LEASES, query_string=query).status_code == 200


def test_only_administrators_list_by_project(guarded: House) -> None:
    guarded.lease("member", name="blue")
    guarded.lease("other", name="red")
    assert names(later(guarded, "", "admin")) == ["blue", "red"]
    assert names(later(guarded, "project_id=red", "admin")) == ["red"]
    assert names(later(guarded, "project_id=blue", "member")) == ["blue"]
    assert names(later(guarded, "", "member")) == ["blue"]
    refused = later(guarded, "project_id=red", "member")
    assert refused.status_code == 403
    assert "project_id" in refused.json["error_message"]
    (theirs,) = later(guarded, "project_id=red", "admin").json["leases"]
    assert later(guarded, f"marker={theirs['id']}", "member").status_code == 400


# dry runs


@pytest.mark.parametrize("headers", [{}, LATER])
def test_a_dry_run_shows_the_lease_and_books_nothing(
    shared: House, headers: dict[str, str]
) -> None:
    body = lease_body(dry_run=True, reservations=[host_reservation(min=2, max=2)])
    before = shared.dump()
    answer = shared.call("POST", LEASES, json=body, headers=headers)
    assert shared.dump() == before
    assert answer.status_code == 200, answer.text
    assert answer.json["dry_run"] is True
    lease = answer.json["lease"]
    assert (lease["status"], lease["name"]) == ("PENDING", "lease-1")
    (reservation,) = lease["reservations"]
    assert len(reservation["hosts"]) == 2
    assert all(host["name"].startswith("cmp-") for host in reservation["hosts"])


def test_a_dry_run_that_finds_nothing_is_refused_like_the_real_thing(house: House) -> None:
    body = lease_body(reservations=[host_reservation(min=5, max=5)])
    for dry_run in (True, False):
        answer = house.call("POST", LEASES, json=body | {"dry_run": dry_run})
        assert answer.status_code == 409
        assert "Not enough hosts" in answer.json["error_message"]


def test_a_dry_run_of_an_update_shows_what_would_become_of_the_lease(house: House) -> None:
    made = house.lease()
    path, (part,) = f"{LEASES}/{made['id']}", made["reservations"]
    change = {
        "name": "renamed",
        "end_date": when(days=5),
        "reservations": [{"id": part["id"], "min": 2, "max": 2}],
        "dry_run": True,
    }
    before = house.dump()
    answer = house.call("PUT", path, json=change)
    assert answer.status_code == 200, answer.text
    assert house.dump() == before
    lease = answer.json["lease"]
    assert (lease["id"], lease["name"]) == (made["id"], "renamed")
    assert lease["end_date"] > made["end_date"]
    assert len(lease["reservations"][0]["hosts"]) == 2
    too_many = [{"id": part["id"], "min": 9, "max": 9}]
    refused = house.call("PUT", path, json={"reservations": too_many, "dry_run": True})
    assert refused.status_code == 409
    assert house.dump() == before


@pytest.mark.parametrize("value", ["yes", 1, None, [], {}])
def test_a_dry_run_is_meant_or_it_is_not(shared: House, value: Any) -> None:
    before = shared.dump()
    for method, path in (("POST", LEASES), ("PUT", f"{LEASES}/none")):
        body = lease_body(dry_run=value) if method == "POST" else {"dry_run": value}
        answer = shared.call(method, path, json=body)
        assert answer.status_code == 400
        assert "dry_run" in answer.json["error_message"]
    assert shared.dump() == before


# refusals


def test_a_refusal_says_who_is_in_the_way_and_when_it_would_fit(guarded: House) -> None:
    start, end = when(days=1), when(days=2)
    guarded.lease("other", name="secret", reservations=[host_reservation(min=3, max=3)])
    mine = guarded.lease("member", name="mine")
    body = lease_body(reservations=[host_reservation(min=2, max=2)], start_date=start, end_date=end)
    old = guarded.call("POST", LEASES, "member", json=body)
    new = guarded.call("POST", LEASES, "member", json=body, headers=LATER)
    assert old.status_code == new.status_code == 409
    assert old.json.keys() == {"error_code", "error_message", "error_name"}
    assert old.json["error_message"] == new.json["error_message"]
    for word in ("Not enough hosts available", "mine", "another project", "it would fit from"):
        assert word in old.json["error_message"]
    assert "secret" not in new.text
    details = new.json["details"]
    assert {"conditions", "obstacles", "earliest"} <= details.keys()
    known = {obstacle["name"]: obstacle for obstacle in details["obstacles"]}
    assert known.keys() == {"mine", None}
    assert (known["mine"]["lease_id"], known[None]["lease_id"]) == (mine["id"], None)
    assert known[None]["hosts"] == 3
    assert details["earliest"].keys() == {"start_date", "end_date"}
    assert details["earliest"]["start_date"] >= mine["end_date"]


def test_a_lease_is_not_in_its_own_way(guarded: House) -> None:
    days = {"start_date": when(days=1), "end_date": when(days=2)}
    all_hosts = [host_reservation(min=4, max=4)]
    mine = guarded.lease("member", name="mine", reservations=all_hosts, **days)
    later = {"start_date": when(days=3), "end_date": when(days=4)}
    guarded.lease("member", name="neighbour", reservations=all_hosts, **later)
    body = {"end_date": when(days=3, hours=1)}
    answer = guarded.call("PUT", f"{LEASES}/{mine['id']}", "member", json=body, headers=LATER)
    assert answer.status_code == 409
    assert [obstacle["name"] for obstacle in answer.json["details"]["obstacles"]] == ["neighbour"]
    assert "lease mine" not in answer.json["error_message"]


def test_refusals_of_other_kinds_have_no_details(shared: House) -> None:
    for body in ({}, lease_body(name="x" * 81)):
        answer = shared.call("POST", LEASES, json=body, headers=LATER)
        assert answer.status_code == 400
        assert answer.json.keys() == {"error_code", "error_message", "error_name"}
