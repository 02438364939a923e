# SPDX-License-Identifier: Apache-2.0
"""contracts/reservation-v1.md, section 1: what python-blazarclient and others rely on."""

from __future__ import annotations

import re
from typing import Any

import pytest
from falcon import testing
from oslo_context import context

from holdfast.api import app
from tests.api.house import HOSTS, LEASES, House, host_reservation, lease_body, when
from tests.processes import eventually

LEASE_DATE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}")
STAMP = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
LEASE_KEYS = {
    "id",
    "name",
    "user_id",
    "project_id",
    "start_date",
    "end_date",
    "trust_id",
    "status",
    "degraded",
    "created_at",
    "updated_at",
    "reservations",
    "events",
}
RESERVATION_KEYS = {
    "id",
    "lease_id",
    "resource_id",
    "resource_type",
    "status",
    "missing_resources",
    "resources_changed",
    "created_at",
    "updated_at",
    "hypervisor_properties",
    "resource_properties",
    "before_end",
    "min",
    "max",
}
EVENT_KEYS = {
    "id",
    "lease_id",
    "event_type",
    "time",
    "status",
    "created_at",
    "updated_at",
}
HOST_KEYS = {
    "id",
    "vcpus",
    "cpu_info",
    "hypervisor_type",
    "hypervisor_version",
    "hypervisor_hostname",
    "service_name",
    "memory_mb",
    "local_gb",
    "status",
    "availability_zone",
    "trust_id",
    "reservable",
    "created_at",
    "updated_at",
}
VERSION = "OpenStack-API-Version"


def refused(answer: testing.Result, status: int, *words: str) -> None:
    """Shape (a) of the contract, with these words in its message."""
    assert answer.status_code == status, answer.text
    assert answer.json.keys() == {"error_code", "error_message", "error_name"}
    assert answer.json["error_code"] == answer.json["error_name"] == status
    for word in words:
        assert word in answer.json["error_message"]


def refused_before(answer: testing.Result, status: int, *words: str) -> None:
    """Shape (c): refused before the application looked at anything."""
    assert answer.status_code == status, answer.text
    assert answer.json.keys() == {"error", "error_message"}
    assert answer.json["error"] == status
    for word in words:
        assert word in answer.json["error_message"]


# 1.1, 1.2: versions, headers, suffixes


@pytest.mark.parametrize("path", ["/reservation", "/reservation/", "/reservation/versions"])
def test_version_document_is_a_300_with_links_that_end_in_v1(shared: House, path: str) -> None:
    answer = shared.call("GET", path)
    assert answer.status_code == 300
    (version,) = answer.json["versions"]
    assert version["id"] == "v1.0"
    assert version["status"] == "CURRENT"
    assert version["links"] == [{"href": "http://127.0.0.1:8780/reservation/v1", "rel": "self"}]
    assert (version["min_version"], version["max_version"]) == ("1.0", "1.1")


def test_instance_ha_version_documents_name_their_range(shared: House) -> None:
    (version,) = shared.call("GET", "/instance-ha").json["versions"]
    assert (version["id"], version["min_version"], version["version"]) == ("v1.0", "1.0", "1.4")
    one = shared.call("GET", "/instance-ha/v1/")
    assert one.status_code == 200
    assert "media-types" in one.json["version"]


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        (None, "1.0"),
        ("reservation 1.0", "1.0"),
        ("compute 2.90", "1.0"),
        ("reservation 1.1", "1.1"),
        ("reservation latest", "1.1"),
    ],
)
def test_answers_carry_the_version_and_vary(shared: House, asked: str | None, given: str) -> None:
    answer = shared.call("GET", LEASES, headers={VERSION: asked} if asked else {})
    assert answer.status_code == 200
    assert answer.headers[VERSION] == f"reservation {given}"
    assert VERSION in answer.headers["Vary"]


@pytest.mark.parametrize(
    ("asked", "status", "words"),
    [
        ("reservation 2.0", 406, ["2.0", "1.0"]),
        ("reservation 0.9", 406, ["minimum"]),
        ("reservation abc", 400, ["abc"]),
        ("reservation 1", 400, ["X.Y"]),
        ("reservation  1.1", 400, ["' 1.1'"]),
        ("reservation 01.1", 400, ["'01.1'"]),
        ("reservation 1.01", 400, ["'1.01'"]),
        ("reservation", 400, ["X.Y"]),
        ("compute 2.1, reservation 1.99999", 400, ["1.99999"]),
    ],
)
def test_versions_we_do_not_speak_are_refused_before_the_application(
    shared: House, asked: str, status: int, words: list[str]
) -> None:
    refused_before(shared.call("GET", LEASES, headers={VERSION: asked}), status, *words)


def test_instance_ha_refuses_a_version_with_vary_but_without_the_header(shared: House) -> None:
    answer = shared.call("GET", "/instance-ha/v1", headers={VERSION: "instance-ha 1.9"})
    assert answer.status_code == 406
    assert answer.json["masakariFault"]["code"] == 406
    assert VERSION in answer.headers["Vary"]
    assert VERSION not in answer.headers


def test_every_answer_has_a_request_id_and_its_log_lines_have_the_callers_too(
    shared: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = "req-6ba7b810-9dad-11d1-80b4-00c04fd430c8"
    lines: list[tuple[str, str | None]] = []

    def note(*_args: object) -> None:
        current = context.get_current()
        assert current is not None
        lines.append((current.request_id, current.global_request_id))

    monkeypatch.setattr(app.LOG, "isEnabledFor", lambda _level: True)
    monkeypatch.setattr(app.LOG, "log", note)
    for path in (LEASES, "/nowhere", "/reservation/nowhere"):
        answer = shared.call("GET", path, headers={"X-Openstack-Request-Id": asked})
        given = answer.headers["x-openstack-request-id"]
        assert re.fullmatch(r"req-[0-9a-f-]{36}", given)
        assert lines.pop() == (given, asked)
    shared.call("GET", LEASES, headers={"X-Openstack-Request-Id": "req-1\x7f forged"})
    assert lines.pop()[1] is None


def test_every_route_also_answers_with_a_json_suffix(house: House) -> None:
    lease_id = house.lease()["id"]
    for path in (LEASES, f"{LEASES}/{lease_id}", HOSTS, f"{HOSTS}/1", f"{HOSTS}/1/allocation"):
        assert house.call("GET", f"{path}.json").json == house.call("GET", path).json


def test_query_strings_and_accept_are_ignored_by_lists(shared: House) -> None:
    answer = shared.call("GET", LEASES, query_string="limit=x&x=y", headers={"Accept": "text/xml"})
    assert answer.status_code == 200
    assert answer.headers["Content-Type"] == "application/json"


# 1.3: errors


def test_unknown_addresses_and_methods_are_answered_in_the_routers_shape(shared: House) -> None:
    refused_before(shared.call("GET", "/reservation/v1/plugins"), 404)
    wrong = shared.call("PATCH", LEASES)
    refused_before(wrong, 405)
    assert set(wrong.headers["Allow"].split(", ")) >= {"GET", "POST"}


@pytest.mark.parametrize("body", [b"{", b"\xff\xfe{}", b"[1", b"nope", b'{"a": NaN}'])
def test_malformed_json_is_a_400_in_the_routers_shape(shared: House, body: bytes) -> None:
    refused_before(shared.call("POST", LEASES, body=body), 400, "Malformed request body")


def test_unknown_lease_and_host_are_named_as_blazar_names_them(shared: House) -> None:
    for method in ("GET", "PUT", "DELETE"):
        answer = shared.call(method, f"{LEASES}/nope", json={} if method == "PUT" else None)
        refused(answer, 404, "Object with {'lease_id': 'nope'} not found")
        answer = shared.call(method, f"{HOSTS}/99", json={"a": "b"} if method == "PUT" else None)
        refused(answer, 404, "Object with {'host_id': '99'} not found")


def reserve(**fields: Any) -> dict[str, Any]:
    return {"reservations": [host_reservation(**fields)]}


REFUSED: list[tuple[dict[str, Any], int, list[str]]] = [
    ({"start_date": when(days=2), "end_date": when(days=1)}, 400,
     ["End date must be later than start date."]),
    ({"end_date": "never"}, 400,
     ["never is an invalid date. Required format: %Y-%m-%d %H:%M", "end_date"]),
    ({"start_date": when(days=-1)}, 400,
     ["Start date must be later than current date", "start_date"]),
    ({"before_end_date": when(days=3)}, 400,
     ["Datetime is out of lease limits", "before_end_date"]),
    (reserve(min=3, max=2), 400, ["min"]),
    (reserve(max="foo"), 400, ["Malformed parameter max"]),
    (reserve(min="", max=""), 400, ["min"]),
    (reserve(min=-1), 400, ["min"]),
    (reserve(max=2.5), 400, ["max"]),
    (reserve(resource_type="nope"), 400, ["The nope resource type is not supported"]),
    (reserve(resource_type="virtual:instance", affinity="None"), 400, ["virtual:instance"]),
    (reserve(min=99, max=99), 409, ["Not enough hosts available"]),
    (reserve(resource_properties='["==", "$colour", "red"]'), 409, ["Not enough hosts"]),
    (reserve(resource_properties="[nonsense"), 400, ["Malformed requirements"]),
    (reserve(before_end="explode"), 400, ["Malformed parameter before_end"]),
    (reserve(colour="red"), 400, ["colour"]),
    ({"name": "x" * 81}, 400, ["name"]),
    ({"name": ""}, 400, ["name"]),
    ({"reservations": [{}]}, 400, ["Missing parameter resource_type"]),
    ({"before_end_date": " "}, 400, ["is an invalid date", "before_end_date"]),
    ({"end_date": "2028-5-1"}, 400, ["2028-5-1 is an invalid date"]),
    ({"end_date": "2028-5-1 9"}, 400, ["2028-5-1 9 is an invalid date"]),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "status", "words"), REFUSED, ids=lambda v: str(v)[:40])
def test_what_blazar_answers_with_mistakes_is_refused_in_its_words(
    shared: House, fields: dict[str, Any], status: int, words: list[str]
) -> None:
    before = shared.dump()
    refused(shared.call("POST", LEASES, json=lease_body(**fields)), status, *words)
    assert shared.dump() == before


@pytest.mark.parametrize("body", [{}, None])
def test_a_lease_without_anything_names_all_that_is_missing(
    shared: House, body: dict[str, Any] | None
) -> None:
    answer = shared.call("POST", LEASES, json=body)
    refused(answer, 400, "Missing parameter end_date, name, start_date")


# 1.4: leases


def test_a_created_lease_has_exactly_the_keys_and_dates_of_the_contract(house: House) -> None:
    answer = house.call("POST", LEASES, json=lease_body())
    assert answer.status_code == 201
    lease = answer.json["lease"]
    assert lease.keys() == LEASE_KEYS
    assert LEASE_DATE.fullmatch(lease["start_date"])
    assert LEASE_DATE.fullmatch(lease["end_date"])
    assert STAMP.fullmatch(lease["created_at"])
    assert (lease["status"], lease["degraded"], lease["trust_id"]) == ("PENDING", False, None)
    (reservation,) = lease["reservations"]
    assert reservation.keys() == RESERVATION_KEYS
    assert (reservation["min"], reservation["max"]) == (1, 1)
    assert reservation["status"] == "pending"
    kinds = {event["event_type"] for event in lease["events"]}
    assert kinds == {"start_lease", "before_end_lease", "end_lease"}
    for event in lease["events"]:
        assert event.keys() == EVENT_KEYS
        assert LEASE_DATE.fullmatch(event["time"])
        assert event["status"] == "UNDONE"
    assert house.call("GET", f"{LEASES}/{lease['id']}").json == {"lease": lease}
    assert house.call("GET", LEASES).json == {"leases": [lease]}


def test_counts_sent_as_text_come_back_as_numbers(house: House) -> None:
    lease = house.lease(reservations=[host_reservation(min="1", max="2")])
    assert (lease["reservations"][0]["min"], lease["reservations"][0]["max"]) == (1, 2)


def test_an_empty_lease_is_legal_and_names_may_repeat(house: House) -> None:
    body = {"name": "empty", "start_date": "now", "end_date": when(hours=1)}
    first, second = (house.call("POST", LEASES, json=body) for _ in range(2))
    assert first.status_code == second.status_code == 201
    assert first.json["lease"]["reservations"] == []
    assert first.json["lease"]["id"] != second.json["lease"]["id"]


def test_users_events_are_stored_and_shown(house: House) -> None:
    asked = [
        {"event_type": "x", "event_date": "2031-1-1 10:00"},
        {"event_type": "y", "time": "now"},
        {},
        {"event_type": "end_lease", "event_date": "2031-01-01 10:00"},
    ]
    lease = house.lease(events=asked)
    *ours, first, second, third = lease["events"]
    assert {e["event_type"] for e in ours} == {"start_lease", "before_end_lease", "end_lease"}
    assert all(event.keys() == EVENT_KEYS for event in lease["events"])
    assert (first["event_type"], first["time"]) == ("x", "2031-01-01T10:00:00.000000")
    assert second["time"].endswith(":00.000000")
    assert (third["event_type"], third["time"]) == ("", None)
    path = f"{LEASES}/{lease['id']}"
    changed = house.call("PUT", path, json={"name": "renamed"}).json["lease"]
    assert changed["events"] == lease["events"] == house.call("GET", path).json["lease"]["events"]


def test_an_event_at_no_date_is_refused(shared: House) -> None:
    answer = shared.call("POST", LEASES, json=lease_body(events=[{"time": "soon"}]))
    refused(answer, 400, "soon is an invalid date", "events")


def test_unknown_keys_of_a_lease_are_ignored(house: House) -> None:
    lease = house.lease(project_id="other", status="ACTIVE", colour="red")
    assert (lease["project_id"], lease["status"]) == ("demo", "PENDING")
    change = {"name": "renamed", "status": "ERROR", "events": [{"event_type": "x"}], "colour": 1}
    answer = house.call("PUT", f"{LEASES}/{lease['id']}", json=change)
    assert answer.status_code == 200, answer.text
    changed = answer.json["lease"]
    assert changed == lease | {"name": "renamed", "updated_at": changed["updated_at"]}


def test_an_empty_before_end_date_is_an_unset_one(house: House) -> None:
    usual = house.lease()
    lease = house.lease(before_end_date="")
    assert [e["time"] for e in lease["events"]] == [e["time"] for e in usual["events"]]
    answer = house.call("PUT", f"{LEASES}/{lease['id']}", json={"before_end_date": ""})
    assert (answer.status_code, answer.json) == (200, {"lease": lease})


@pytest.mark.parametrize("written", ["2058-5-1 9:00", " 2058-05-1 09:00 ", "2058-5-01  9:0"])
def test_dates_may_lack_leading_zeros(house: House, written: str) -> None:
    lease = house.lease(start_date="now", end_date=written)
    assert lease["end_date"] == "2058-05-01T09:00:00.000000"


@pytest.mark.parametrize("by", ["POST", "PUT"])
def test_a_start_of_now_is_the_minute_so_that_an_update_can_repeat_the_start(
    house: House, by: str
) -> None:
    lease = house.lease(**{"start_date": "now"} if by == "POST" else {})
    path = f"{LEASES}/{lease['id']}"
    if by == "PUT":
        lease = house.call("PUT", path, json={"start_date": "now"}).json["lease"]
    assert lease["start_date"].endswith(":00.000000")
    eventually(lambda: house.call("GET", path).json["lease"]["status"] == "ACTIVE")
    again = {"start_date": lease["start_date"][:16].replace("T", " "), "end_date": when(days=4)}
    answer = house.call("PUT", path, json=again)
    assert answer.status_code == 200, answer.text


def test_before_end_date_sets_the_time_of_its_event(house: House) -> None:
    asked = when(days=1, hours=5)
    lease = house.lease(before_end_date=asked)
    times = {event["event_type"]: event["time"] for event in lease["events"]}
    assert times["before_end_lease"][:16].replace("T", " ") == asked


@pytest.mark.parametrize("sent", [{"json": {}}, {"body": b""}])
def test_an_empty_update_changes_nothing(house: House, sent: dict[str, Any]) -> None:
    lease = house.lease()
    answer = house.call("PUT", f"{LEASES}/{lease['id']}", **sent)
    assert answer.status_code == 200
    assert answer.json == {"lease": lease}


def test_an_update_changes_what_it_names(house: House) -> None:
    lease = house.lease()
    reservation = lease["reservations"][0]["id"]
    later = when(days=3)
    change = {
        "name": "renamed",
        "end_date": later,
        "reservations": [{"id": reservation, "min": 1, "max": 2}],
    }
    answer = house.call("PUT", f"{LEASES}/{lease['id']}", json=change)
    assert answer.status_code == 200
    changed = answer.json["lease"]
    assert changed["name"] == "renamed"
    assert changed["end_date"][:16].replace("T", " ") == later
    assert changed["reservations"][0]["max"] == 2
    assert changed["status"] == "PENDING"


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"end_date": when(hours=1)}, "end_date"),
        ({"start_date": when(days=-1)}, "start_date"),
        ({"before_end_date": "now"}, "before_end_date"),
        ({"reservations": [{"id": "stranger"}]}, "stranger"),
        ({"reservations": [{}]}, "Missing parameter reservation ID"),
        ({"name": 5}, "name"),
    ],
)
def test_an_update_that_cannot_be_names_its_field_and_changes_nothing(
    shared: House, change: dict[str, Any], word: str
) -> None:
    lease = shared.lease()
    before = shared.dump()
    refused(shared.call("PUT", f"{LEASES}/{lease['id']}", json=change), 400, word)
    assert shared.dump() == before
    assert shared.call("DELETE", f"{LEASES}/{lease['id']}").status_code == 204


def test_a_deleted_lease_is_a_204_without_a_body_and_then_gone(house: House) -> None:
    lease = house.lease()
    answer = house.call("DELETE", f"{LEASES}/{lease['id']}")
    assert (answer.status_code, answer.content) == (204, b"")
    refused(house.call("GET", f"{LEASES}/{lease['id']}"), 404)


# 1.5: hosts


def test_hosts_have_the_keys_of_the_contract_and_their_extras_on_top(shared: House) -> None:
    hosts = shared.call("GET", HOSTS).json["hosts"]
    assert [host["id"] for host in hosts] == ["1", "2", "3", "4"]
    assert hosts[0].keys() == HOST_KEYS | {"gpu"}
    assert hosts[1].keys() == HOST_KEYS
    assert hosts[0]["gpu"] == "a100"
    assert hosts[0]["status"] is hosts[0]["trust_id"] is None
    assert isinstance(hosts[0]["hypervisor_version"], int)
    assert shared.call("GET", f"{HOSTS}/cmp-1").json == {"host": hosts[0]}


def test_a_host_is_enrolled_described_and_withdrawn(house: House) -> None:
    made = house.call("POST", HOSTS, json={"name": "cmp-5", "colour": "red", "cores": 7})
    assert made.status_code == 201
    host = made.json["host"]
    assert (host["colour"], host["cores"], host["reservable"]) == ("red", "7", True)
    path = f"{HOSTS}/{host['id']}"
    changed = house.call("PUT", path, json={"colour": None, "cores": "8"})
    assert changed.status_code == 200
    assert "colour" not in changed.json["host"]
    assert changed.json["host"]["cores"] == "8"
    assert house.call("DELETE", path).status_code == 204
    refused(house.call("GET", path), 404)


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({}, 400, ["name"]),
        ({"name": ""}, 400, ["name"]),
        ({"name": 7}, 400, ["name"]),
        ({"name": "nowhere"}, 404, ["nowhere"]),
        ({"id": 424242}, 404, ["424242"]),
        ({"name": "cmp-1"}, 409, ["cmp-1"]),
        ({"name": "cmp-6"}, 409, ["cmp-6", "servers"]),
        ({"name": "cmp-5", "k" * 65: "v"}, 400, ["Extra capability key too long"]),
        ({"name": "cmp-5", "vcpus": "1"}, 400, ["vcpus"]),
        ({"name": "cmp-5", "deep": {"a": 1}}, 400, ["deep"]),
    ],
)
def test_a_host_that_cannot_be_enrolled_is_refused_and_leaves_nothing(
    shared: House, body: dict[str, Any], status: int, words: list[str]
) -> None:
    before = shared.dump()
    refused(shared.call("POST", HOSTS, json=body), status, *words)
    assert shared.dump() == before


def test_an_update_of_a_host_without_data_is_refused(shared: House) -> None:
    refused(shared.call("PUT", f"{HOSTS}/1", json={}), 400, "No data to update")
    refused(shared.call("PUT", f"{HOSTS}/1", json=[1]), 400)


def test_a_reserved_host_keeps_the_capability_it_was_chosen_for(house: House) -> None:
    house.lease(reservations=[host_reservation(resource_properties='["==", "$gpu", "a100"]')])
    refused(house.call("PUT", f"{HOSTS}/1", json={"gpu": "h100"}), 409, "gpu")
    refused(house.call("DELETE", f"{HOSTS}/1"), 409, "reserved")


def test_allocations_list_every_host_and_their_filters_thin_out_reservations(house: House) -> None:
    lease = house.lease()
    listed = house.call("GET", f"{HOSTS}/allocations").json["allocations"]
    assert [entry["resource_id"] for entry in listed] == ["1", "2", "3", "4"]
    (held,) = (entry for entry in listed if entry["reservations"])
    (shown,) = held["reservations"]
    assert shown == {
        "id": lease["reservations"][0]["id"],
        "lease_id": lease["id"],
        "start_date": lease["start_date"],
        "end_date": lease["end_date"],
    }
    path = f"{HOSTS}/{held['resource_id']}/allocation"
    assert house.call("GET", path).json == {"allocation": held}
    for query, found in (
        (f"lease_id={lease['id']}", [shown]),
        ("lease_id=x", []),
        ("reservation_id=x", []),
    ):
        one = house.call("GET", path, query_string=query).json["allocation"]
        assert one["reservations"] == found


def test_properties_are_listed_and_made_private(house: House) -> None:
    path = f"{HOSTS}/properties"
    assert house.call("GET", path).json == {"resource_properties": [{"property": "gpu"}]}
    detailed = house.call("GET", path, query_string="detail=False").json["resource_properties"]
    assert detailed == [{"property": "gpu", "private": False, "values": ["a100"]}]
    answer = house.call("PATCH", f"{path}/gpu", json={"private": True})
    assert answer.status_code == 200
    assert answer.json["resource_property"].keys() == {
        "id", "resource_type", "property_name", "private", "created_at", "updated_at",
    }  # fmt: skip
    assert answer.json["resource_property"]["private"] is True
    assert house.call("GET", path).json == {"resource_properties": []}
    everything = house.call("GET", path, query_string="all=True").json
    assert everything == {"resource_properties": [{"property": "gpu"}]}


@pytest.mark.parametrize(
    ("name", "body", "status", "word"),
    [
        ("nope", {"private": True}, 404, "nope"),
        ("gpu", {}, 400, "private"),
        ("gpu", {"private": "yes"}, 400, "private"),
        ("gpu", {"private": True, "x": 1}, 400, "x"),
    ],
)
def test_a_property_that_cannot_be_changed_is_refused(
    shared: House, name: str, body: dict[str, Any], status: int, word: str
) -> None:
    refused(shared.call("PATCH", f"{HOSTS}/properties/{name}", json=body), status, word)
