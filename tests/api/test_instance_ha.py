# SPDX-License-Identifier: Apache-2.0
"""The instance HA contract: versions, segments and their hosts, lists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from falcon.testing import Result

from holdfast.model.errors import DriverError
from holdfast.ports.manager import Caller
from tests.api.conftest import Build
from tests.api.ha import (
    HA,
    REPORTS,
    SEGMENTS,
    VERSION,
    add_host,
    at,
    host_body,
    make_segment,
    report_body,
    segment_body,
    write_report,
)
from tests.api.house import House, basic_config, copy

MISSING = "00000000-0000-4000-8000-000000000000"
STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}")
SEGMENT_KEYS = {
    "id", "uuid", "name", "service_type", "enabled", "description", "recovery_method",
    "created_at", "updated_at", "deleted_at", "deleted",
}  # fmt: skip
HOST_KEYS = {
    "id", "uuid", "name", "failover_segment_id", "failover_segment", "type", "reserved",
    "control_attributes", "on_maintenance", "created_at", "updated_at", "deleted_at", "deleted",
}  # fmt: skip
OURS = {"spare_hosts", "trust_host_status", "trust_notifications"}


@pytest.fixture
def house(build: Build) -> Iterator[House]:
    """Nobody works on what is reported here."""
    made = build()
    made.manager.loop.stop()
    yield made


@pytest.fixture(scope="module")
def listed(furnished: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """Five segments, s1 with three hosts; nobody changes what lists show of it."""
    with House(copy(furnished, tmp_path_factory.mktemp("listed"))) as made:
        made.manager.loop.stop()
        for number in range(1, 6):
            method = "auto" if number < 3 else "rh_priority"
            kind = "GPU" if number == 5 else "COMPUTE"
            fields = {"recovery_method": method, "service_type": kind, "enabled": number != 2}
            segment = make_segment(made, f"s{number}", **fields)
            if number == 1:
                add_host(made, segment["uuid"], "cmp-1", reserved=True)
                add_host(made, segment["uuid"], "cmp-2", on_maintenance="yes", type="XEN")
                add_host(made, segment["uuid"], "cmp-3", control_attributes="IPMI")
        yield made


def refused(answer: Result, status: int, fault: str, *words: str) -> None:
    assert answer.status_code == status, answer.text
    ((name, said),) = answer.json.items()
    assert (name, said["code"]) == (fault, status)
    for word in words:
        assert word in said["message"], said


def names(answer: Result) -> list[str]:
    assert answer.status_code == 200, answer.text
    (rows,) = answer.json.values()
    return [row["name"] for row in rows]


# versions


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        (None, "1.0"),
        ("instance-ha 1.0", "1.0"),
        ("instance-ha 1.3", "1.3"),
        ("compute 2.90, instance-ha 1.2", "1.2"),
        ("instance-ha latest", "1.4"),
        ("masakari 1.2", "1.0"),
        ("1.2", "1.0"),
    ],
)
def test_answers_name_the_version_they_are_of(listed: House, asked: str | None, given: str) -> None:
    answer = listed.call("GET", SEGMENTS, headers={VERSION: asked} if asked else {})
    assert answer.status_code == 200
    assert answer.headers[VERSION] == f"instance-ha {given}"
    assert VERSION in answer.headers["Vary"]
    assert answer.headers["x-openstack-request-id"].startswith("req-")


def test_versions_out_of_range_are_406_without_the_header_and_malformed_ones_400(
    listed: House,
) -> None:
    answer = listed.call("GET", SEGMENTS, headers=at("1.5"))
    refused(answer, 406, "masakariFault", "1.5", "1.4")
    assert VERSION not in answer.headers and VERSION in answer.headers["Vary"]
    refused(listed.call("GET", SEGMENTS, headers=at("x")), 400, "badRequest")


def test_version_documents_lead_to_v1_and_other_addresses_offer_it(listed: House) -> None:
    (entry,) = listed.call("GET", "/instance-ha/").json["versions"]
    assert entry["status"] == "CURRENT" and entry["updated"]
    assert entry["links"] == [{"href": f"http://127.0.0.1:8780{HA}", "rel": "self"}]
    one = listed.call("GET", f"{HA}/").json["version"]
    assert one["version"] == "1.4" and one["media-types"]
    other = listed.call("GET", "/instance-ha/v2")
    assert other.status_code == 300
    (choice,) = other.json["choices"]
    assert choice["links"][0]["href"].endswith("/instance-ha/v1/v2")
    for path in ("/healthcheck", "/instance-ha/healthcheck"):
        assert listed.call("GET", path).text == "OK"


def test_extensions_are_the_parts_of_the_contract(listed: House) -> None:
    found = listed.call("GET", f"{HA}/extensions").json["extensions"]
    aliases = {one["alias"] for one in found}
    wanted = {"extensions", "notifications", "os-hosts", "segments", "versions", "vmoves"}
    assert aliases == wanted
    one = listed.call("GET", f"{HA}/extensions/vmoves").json["extension"]
    assert one["alias"] == "vmoves" and one["description"]
    refused(listed.call("GET", f"{HA}/extensions/none"), 404, "itemNotFound", "segments")


@pytest.mark.parametrize(
    "path", [f"{HA}/nowhere", f"{HA}/segments/x/y", "/instance-ha/v2/segments"]
)
def test_there_is_nothing_at_other_addresses(listed: House, path: str) -> None:
    refused(listed.call("GET", path), 404, "itemNotFound")


# the project in the address


PROJECT = "0123456789abcdef0123456789abcdef"


def test_the_callers_project_may_be_in_the_address_and_no_other(build: Build) -> None:
    house = build(f"[auth]\nnoauth_project = {PROJECT}\n")
    house.manager.loop.stop()
    own, other = f"{HA}/{PROJECT}", f"{HA}/{PROJECT[:-1]}0"
    made = house.call("POST", f"{own}/segments", json={"segment": segment_body()})
    assert made.status_code == 201
    ref = made.json["segment"]["uuid"]
    body = {"host": host_body("cmp-1")}
    assert house.call("POST", f"{own}/segments/{ref}/hosts", json=body).status_code == 201
    answer = house.call("GET", f"{own}/segments/{ref}.json", headers=at("1.2"))
    assert answer.json["segment"]["uuid"] == ref
    assert answer.headers[VERSION] == "instance-ha 1.2"
    assert house.call("GET", f"{own}/notifications").json == {"notifications": []}
    assert house.call("GET", own).json["version"]["id"] == "v1.0"
    assert house.call("GET", f"{other}/").status_code == 200
    for path in ("segments", f"segments/{ref}", "notifications", "extensions"):
        refused(house.call("GET", f"{other}/{path}"), 400, "badRequest", "project_id")
    gone = house.call("DELETE", f"{other}/segments/{ref}")
    refused(gone, 400, "badRequest", PROJECT)
    assert house.call("GET", f"{HA}/segments/{ref}").status_code == 200
    refused(house.call("GET", f"{HA}/demo/segments"), 404, "itemNotFound")
    refused(house.call("GET", f"{own}/{PROJECT}/segments"), 404, "itemNotFound")


# segments


def test_a_segment_has_the_contracts_keys_and_ours_from_1_4_on(house: House) -> None:
    made = make_segment(house, description="first\nsecond")
    assert made.keys() == SEGMENT_KEYS
    assert isinstance(made["id"], int) and STAMP.fullmatch(made["created_at"])
    assert (made["enabled"], made["updated_at"], made["deleted_at"]) == (True, None, None)
    assert made["deleted"] is False
    ours = {"spare_hosts": 2, "trust_host_status": "yes", "trust_notifications": "on"}
    body = {"segment": ours}
    old = house.call("PUT", f"{SEGMENTS}/{made['uuid']}", json=body)
    assert old.json["segment"].keys() == SEGMENT_KEYS
    new = house.call("GET", f"{SEGMENTS}/{made['uuid']}", headers=at("1.4")).json["segment"]
    assert new.keys() == SEGMENT_KEYS | OURS
    assert {name: new[name] for name in ours} == {**ours, **dict.fromkeys(list(ours)[1:], True)}
    host = add_host(house, made["uuid"], "cmp-1")
    assert host["failover_segment"].keys() == SEGMENT_KEYS
    path = f"{SEGMENTS}/{made['uuid']}/hosts/{host['uuid']}"
    later = house.call("GET", path, headers=at("1.4")).json["host"]
    assert later["failover_segment"] == new
    # openstacksdk's objects come back with the number
    assert house.call("GET", f"{SEGMENTS}/{made['id']}").json["segment"]["uuid"] == made["uuid"]


def test_enabled_is_a_field_of_requests_from_1_2_on_and_of_all_answers(house: House) -> None:
    body = {"segment": segment_body(enabled=False)}
    for headers in ({}, at("1.1")):
        answer = house.call("POST", SEGMENTS, json=body, headers=headers)
        refused(answer, 400, "badRequest", "enabled", "1.2")
    made = house.call("POST", SEGMENTS, json=body, headers=at("1.2")).json["segment"]
    assert made["enabled"] is False
    assert house.call("GET", f"{SEGMENTS}/{made['uuid']}").json["segment"]["enabled"] is False


@pytest.mark.parametrize(
    ("word", "meant"),
    [("off", False), ("OFF", False), ("0", False), ("no", False), ("False", False), (False, False),
     ("on", True), ("YES", True), ("1", True), ("True", True), (True, True)],
)  # fmt: skip
def test_a_text_for_enabled_is_stored_as_a_boolean(listed: House, word: Any, meant: bool) -> None:
    for said, stored in ((not meant, not meant), (word, meant), (True, True)):
        body = {"segment": {"enabled": said}}
        answer = listed.call("PUT", f"{SEGMENTS}/4", json=body, headers=at("1.2"))
        assert answer.json["segment"]["enabled"] is stored


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"name": ""}, "name"),
        ({"name": " a"}, "blank"),
        ({"name": "a\n"}, "blank"),
        ({"name": "a\tb"}, "printed"),
        ({"name": "x" * 256}, "255"),
        ({"name": 7}, "name"),
        ({"service_type": "\u200bx"}, "printed"),
        ({"recovery_method": "magic"}, "recovery_method"),
        ({"description": 3}, "description"),
        ({"enabled": "maybe"}, "neither true nor false"),
        ({"enabled": 1}, "enabled"),
        ({"spare_hosts": -1}, "spare_hosts"),
        ({"spare_hosts": "2"}, "spare_hosts"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_segment_that_makes_no_sense_is_refused_by_field(
    listed: House, wrong: dict[str, Any], word: str
) -> None:
    body = {"segment": {**segment_body(), **wrong}}
    refused(listed.call("POST", SEGMENTS, json=body, headers=at("1.2")), 400, "badRequest", word)
    answer = listed.call("PUT", f"{SEGMENTS}/5", json={"segment": wrong}, headers=at("1.2"))
    refused(answer, 400, "badRequest", word)


@pytest.mark.parametrize("body", [{}, {"segment": {}}, {"segment": None}, [], {"name": "x"}])
def test_an_empty_change_is_refused(listed: House, body: Any) -> None:
    refused(listed.call("PUT", f"{SEGMENTS}/5", json=body), 400, "badRequest")
    refused(listed.call("POST", SEGMENTS, json=body), 400, "badRequest")
    refused(listed.call("POST", SEGMENTS, body="{"), 400, "badRequest", "Malformed request body")


def test_names_of_segments_are_unique_and_free_again_after_the_end(house: House) -> None:
    made, other = make_segment(house), make_segment(house, "south")
    body = {"segment": segment_body()}
    refused(house.call("POST", SEGMENTS, json=body), 409, "conflictingRequest", "north")
    path = f"{SEGMENTS}/{other['uuid']}"
    answer = house.call("PUT", path, json={"segment": {"name": "north"}})
    refused(answer, 409, "conflictingRequest", "north")
    add_host(house, made["uuid"], "cmp-1")
    gone = house.call("DELETE", f"{SEGMENTS}/{made['uuid']}")
    assert (gone.status_code, gone.text) == (204, "")
    for method, where in (
        ("GET", ""), ("PUT", ""), ("DELETE", ""), ("GET", "/hosts"), ("POST", "/hosts"),
    ):  # fmt: skip
        sent = {"segment": {"name": "x"}} if where == "" else {"host": host_body("cmp-1")}
        answer = house.call(method, f"{SEGMENTS}/{made['uuid']}{where}", json=sent)
        refused(answer, 404, "itemNotFound", made["uuid"])
    make_segment(house)
    add_host(house, other["uuid"], "cmp-1")


def test_a_segment_or_host_in_use_is_a_conflict_until_its_report_has_ended(house: House) -> None:
    segment = make_segment(house)["uuid"]
    host = add_host(house, segment, "cmp-1")["uuid"]
    body = {"notification": report_body("cmp-1")}
    made = house.call("POST", REPORTS, json=body).json["notification"]
    edits = [
        ("PUT", f"{SEGMENTS}/{segment}", {"segment": {"description": "x"}}),
        ("PUT", f"{SEGMENTS}/{segment}/hosts/{host}", {"host": {"reserved": True}}),
        ("DELETE", f"{SEGMENTS}/{segment}/hosts/{host}", None),
        ("DELETE", f"{SEGMENTS}/{segment}", None),
    ]
    for method, path, sent in edits:
        answer = house.call(method, path, json=sent)
        refused(answer, 409, "conflictingRequest", "in-use to process notifications")
    with house.core.store.database.write() as conn:
        conn.exec_driver_sql("UPDATE notifications SET status = 'finished'")
    for method, path, sent in edits:
        assert house.call(method, path, json=sent).status_code in (200, 204)
    shown = house.call("GET", f"{REPORTS}/{made['notification_uuid']}").json["notification"]
    assert shown["source_host_uuid"] == host  # the report outlives what it was about


# hosts


def test_a_host_has_the_contracts_keys_and_its_whole_segment(house: House) -> None:
    segment = make_segment(house)
    made = add_host(house, segment["uuid"], "cmp-5", reserved="True", on_maintenance="False")
    assert made.keys() == HOST_KEYS
    assert (made["reserved"], made["on_maintenance"]) == (True, False)
    assert made["failover_segment_id"] == segment["uuid"]
    assert made["failover_segment"] == segment
    path = f"{SEGMENTS}/{segment['uuid']}/hosts/{made['uuid']}"
    assert house.call("GET", path).json["host"] == made
    changed = house.call("PUT", path, json={"host": {"on_maintenance": "ON", "type": "XEN"}})
    assert (changed.json["host"]["on_maintenance"], changed.json["host"]["type"]) == (True, "XEN")
    assert STAMP.fullmatch(changed.json["host"]["updated_at"])
    assert house.call("DELETE", path).status_code == 204
    refused(house.call("GET", path), 404, "itemNotFound", made["uuid"])


def test_only_hosts_of_the_cloud_join_and_each_joins_one_segment(house: House) -> None:
    north, south = make_segment(house)["uuid"], make_segment(house, "south")["uuid"]
    answer = house.call("POST", f"{SEGMENTS}/{north}/hosts", json={"host": host_body("moon")})
    refused(answer, 400, "badRequest", "Compute service with name moon could not be found")
    made = add_host(house, north, "CMP-5.")
    assert made["name"] == "cmp-5"  # as the cloud has it
    for where in (north, south):
        answer = house.call("POST", f"{SEGMENTS}/{where}/hosts", json={"host": host_body("cmp-5")})
        refused(answer, 409, "conflictingRequest", "cmp-5", "north")
    path = f"{SEGMENTS}/{north}/hosts/{made['uuid']}"
    answer = house.call("PUT", path, json={"host": {"name": "moon"}})
    refused(answer, 400, "badRequest", "could not be found")
    renamed = house.call("PUT", path, json={"host": {"name": "cmp-6", "reserved": True}})
    assert (renamed.json["host"]["name"], renamed.json["host"]["reserved"]) == ("cmp-6", True)
    other = add_host(house, south, "cmp-5")
    answer = house.call("PUT", path, json={"host": {"name": "cmp-5"}})
    refused(answer, 409, "conflictingRequest", "cmp-5")
    answer = house.call("PUT", f"{SEGMENTS}/{north}/hosts/{other['uuid']}", json={"host": {}})
    refused(answer, 400, "badRequest")
    answer = house.call("GET", f"{SEGMENTS}/{north}/hosts/{other['uuid']}")
    refused(answer, 404, "itemNotFound")


def test_joining_a_segment_neither_enrols_a_host_nor_takes_it_out_of_reservation(
    house: House,
) -> None:
    segment = make_segment(house)["uuid"]
    before = [host.id for host in house.core.store.ledger.enrolled()]
    for name in ("cmp-1", "cmp-6"):  # enrolled, and with a server on it
        host = add_host(house, segment, name)
    assert [host.id for host in house.core.store.ledger.enrolled()] == before
    house.call("DELETE", f"{SEGMENTS}/{segment}/hosts/{host['uuid']}")
    assert [host.id for host in house.core.store.ledger.enrolled()] == before


class AwayCloud:
    """A manager whose cloud does not answer."""

    def know_host(self, caller: Caller, name: str) -> int:
        raise DriverError("cloud", f"{name}: no answer", retryable=True)


def test_a_cloud_that_is_away_is_503_and_nothing_is_changed(build: Build) -> None:
    house = build(manager=AwayCloud())
    segment = make_segment(house)["uuid"]
    before = house.dump()
    answer = house.call("POST", f"{SEGMENTS}/{segment}/hosts", json={"host": host_body("cmp-1")})
    refused(answer, 503, "serviceUnavailable", "no answer")
    assert house.dump() == before


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"type": "a-b"}, "type"),
        ({"type": ""}, "type"),
        ({"type": "KVM\n"}, "type"),
        ({"reserved": "perhaps"}, "neither true nor false"),
        ({"on_maintenance": None}, "on_maintenance"),
        ({"control_attributes": 1}, "control_attributes"),
        ({"name": ""}, "name"),
        ({"uuid": MISSING}, "uuid"),
    ],
)
def test_a_host_that_makes_no_sense_is_refused_by_field(
    listed: House, wrong: dict[str, Any], word: str
) -> None:
    body = {"host": {**host_body("cmp-4"), **wrong}}
    answer = listed.call("POST", f"{SEGMENTS}/1/hosts", json=body)
    refused(answer, 400, "badRequest", word)
    path = f"{SEGMENTS}/1/hosts/1"
    refused(listed.call("PUT", path, json={"host": wrong}), 400, "badRequest", word)


# lists


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("", "s5 s4 s3 s2 s1"),
        ("recovery_method=auto", "s2 s1"),
        ("service_type=GPU", "s5"),
        ("enabled=True", "s5 s4 s3 s1"),
        ("enabled=off", "s2"),
        ("name=s3", "s3"),
        ("name=none", ""),
        ("colour=red&x=", "s5 s4 s3 s2 s1"),
        ("limit=2", "s5 s4"),
        ("limit=0", ""),
        ("limit=9999", "s5 s4 s3 s2 s1"),
        ("sort_key=name&sort_dir=asc", "s1 s2 s3 s4 s5"),
        ("sort_key=name", "s5 s4 s3 s2 s1"),
        ("sort_key=recovery_method&sort_key=name&sort_dir=desc&sort_dir=asc", "s3 s4 s5 s1 s2"),
        ("sort_key=service_type&sort_dir=asc", "s1 s2 s3 s4 s5"),
        ("sort_dir=asc", "s1 s2 s3 s4 s5"),
    ],
)
def test_segments_are_filtered_sorted_and_cut(listed: House, query: str, wanted: str) -> None:
    assert names(listed.call("GET", SEGMENTS, query_string=query)) == wanted.split()


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("", "cmp-3 cmp-2 cmp-1"),
        ("type=XEN", "cmp-2"),
        ("on_maintenance=true", "cmp-2"),
        ("reserved=1", "cmp-1"),
        ("reserved=no", "cmp-3 cmp-2"),
        ("name=cmp-1", "cmp-1"),
        ("control_attributes=IPMI", "cmp-3"),
        ("sort_key=name&sort_dir=asc&limit=2", "cmp-1 cmp-2"),
        ("failover_segment_id=whatever", "cmp-3 cmp-2 cmp-1"),
    ],
)
def test_hosts_are_filtered_sorted_and_cut(listed: House, query: str, wanted: str) -> None:
    assert names(listed.call("GET", f"{SEGMENTS}/1/hosts", query_string=query)) == wanted.split()


@pytest.mark.parametrize(
    ("query", "word"),
    [
        ("limit=-1", "limit"),
        ("limit=x", "limit"),
        ("limit=" + "9" * 30, "limit"),
        ("marker=" + MISSING, "Marker"),
        ("marker=99", "Marker 99 could not be found"),
        ("sort_key=colour", "sort_key"),
        ("sort_key=name&sort_dir=up", "sort_dir"),
        ("sort_key=name&sort_dir=asc&sort_dir=asc", "directions"),
        ("enabled=perhaps", "enabled"),
    ],
)
def test_lists_that_make_no_sense_are_refused(listed: House, query: str, word: str) -> None:
    refused(listed.call("GET", SEGMENTS, query_string=query), 400, "badRequest", word)
    if "enabled" not in query:
        for path in (f"{SEGMENTS}/1/hosts", REPORTS):
            refused(listed.call("GET", path, query_string=query), 400, "badRequest", word)


def test_a_filter_of_hosts_that_is_neither_true_nor_false_is_refused(listed: House) -> None:
    answer = listed.call("GET", f"{SEGMENTS}/1/hosts", query_string="reserved=2")
    refused(answer, 400, "badRequest", "reserved")


def test_pages_go_on_after_the_number_of_the_last_row(listed: House) -> None:
    seen: list[str] = []
    query = "limit=2"
    while True:
        answer = listed.call("GET", SEGMENTS, query_string=query)
        page = answer.json["segments"]
        assert "segments_links" not in answer.json
        if not page:
            break
        seen += [one["name"] for one in page]
        query = f"limit=2&marker={page[-1]['id']}"
    assert seen == ["s5", "s4", "s3", "s2", "s1"]
    query = "sort_key=recovery_method&sort_dir=asc&marker=1"
    assert names(listed.call("GET", SEGMENTS, query_string=query)) == ["s2", "s3", "s4", "s5"]


# who


def test_members_and_readers_are_refused_and_a_service_only_reports(
    build: Build, tmp_path: Path
) -> None:
    house = build(basic_config(tmp_path))
    house.manager.loop.stop()
    segment = house.core.store.segments.create(MISSING, segment_body())
    host_id = house.core.store.ledger.host("cmp-1").id
    values = {"type": "KVM", "control_attributes": ""}
    host = house.core.store.segments.add_host("h-1", segment.uuid, host_id, values)
    write_report(house, host.uuid)
    for user in ("reader", "member", "manager", "other", "bare", "service"):
        for path in (SEGMENTS, f"{SEGMENTS}/1", f"{SEGMENTS}/1/hosts", REPORTS, f"{REPORTS}/1"):
            refused(house.call("GET", path, user), 403, "forbidden", "instance_ha:")
        body = {"notification": report_body("cmp-1", payload={"event": "STARTED"})}
        answer = house.call("POST", REPORTS, user, json=body)
        if user == "service":
            assert answer.status_code == 202
        else:
            refused(answer, 403, "forbidden", "instance_ha:notification:create")
    refused(house.call("GET", SEGMENTS), 401, "unauthorized")
