# SPDX-License-Identifier: Apache-2.0
"""The instance HA contract: notifications, how their recovery goes, and the moves of servers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from holdfast.db.tables import incidents, operations, steps
from holdfast.model.errors import StaleWrite, Unavailable
from holdfast.model.incident import GUEST as GUESTS
from holdfast.model.incident import HOST, WORK
from holdfast.model.incident import PROCESS as PROCESSES
from tests.api.conftest import Build
from tests.api.ha import (
    DOWN,
    REPORTS,
    SEGMENTS,
    add_host,
    at,
    make_segment,
    report_body,
    write_move,
    write_report,
)
from tests.api.house import House, copy
from tests.api.test_instance_ha import MISSING, STAMP, refused

KEYS = {
    "id", "notification_uuid", "generated_time", "source_host_uuid", "type", "payload", "status",
    "failover_segment_uuid", "message", "created_at", "updated_at", "deleted_at", "deleted",
}  # fmt: skip
MOVE_KEYS = {
    "id", "uuid", "notification_uuid", "instance_uuid", "instance_name", "source_host",
    "dest_host", "start_time", "end_time", "type", "status", "message", "created_at",
    "updated_at", "deleted_at", "deleted",
}  # fmt: skip
SERVER = "4f2c6c8e-0000-4000-8000-000000000001"
GUEST = {"instance_uuid": SERVER, "event": "LIFECYCLE", "vir_domain_event": "STOPPED_FAILED"}
PROCESS = {"process_name": "nova-compute", "event": "STOPPED"}


@pytest.fixture
def house(build: Build) -> Iterator[House]:
    """A segment with cmp-1 and cmp-2; nobody works on what is reported."""
    made = build()
    made.manager.loop.stop()
    segment = make_segment(made)["uuid"]
    for name in ("cmp-1", "cmp-2"):
        add_host(made, segment, name)
    yield made


@pytest.fixture(scope="module")
def untouched(furnished: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """The same, for tests that leave nothing behind."""
    with House(copy(furnished, tmp_path_factory.mktemp("untouched"))) as made:
        made.manager.loop.stop()
        add_host(made, make_segment(made)["uuid"], "cmp-1")
        yield made


def send(house: House, hostname: str = "cmp-1", **fields: Any) -> Any:
    return house.call("POST", REPORTS, json={"notification": report_body(hostname, **fields)})


def sent(house: House, hostname: str = "cmp-1", **fields: Any) -> dict[str, Any]:
    answer = send(house, hostname, **fields)
    assert answer.status_code == 202, answer.text
    made: dict[str, Any] = answer.json["notification"]
    return made


def uuid_of(house: House, name: str) -> str:
    return next(
        member.uuid for member in house.core.store.segments.all_members() if member.name == name
    )


# admission


@pytest.mark.parametrize(
    ("type_", "payload"), [("COMPUTE_HOST", DOWN), ("VM", GUEST), ("PROCESS", PROCESS)]
)
def test_a_report_is_accepted_as_new_with_the_contracts_keys(
    house: House, type_: str, payload: dict[str, str]
) -> None:
    made = sent(house, type=type_, payload=payload, generated_time="2026-11-15T19:23:11.914659")
    assert made.keys() == KEYS
    assert (made["status"], made["type"], made["payload"]) == ("new", type_, payload)
    assert made["generated_time"] == "2026-11-15T19:23:11.914659"
    assert made["source_host_uuid"] == uuid_of(house, "cmp-1")
    (segment,) = house.call("GET", SEGMENTS).json["segments"]
    assert made["failover_segment_uuid"] == segment["uuid"]
    assert STAMP.fullmatch(made["created_at"])
    path = f"{REPORTS}/{made['notification_uuid']}"
    assert house.call("GET", path).json["notification"] == made
    assert house.call("GET", f"{REPORTS}/{made['id']}").json["notification"] == made
    later = house.call("GET", path, headers=at("1.4")).json["notification"]
    ours = {"hostname", "incident_id", "recovery_workflow_details"}
    assert later.keys() == KEYS | ours
    assert (later["hostname"], later["incident_id"]) == ("cmp-1", None)
    work = house.core.store.operations.by_key(f"notification/{made['notification_uuid']}")
    assert (work.kind, work.subject) == (
        "notification",
        f"notification:{made['notification_uuid']}",
    )


def test_times_are_taken_in_every_form_of_iso_8601(house: House) -> None:
    for text, kept in (
        ("2025-11-15 19:23:11", "2025-11-15T19:23:11.000000"),
        ("2025-11-16", "2025-11-16T00:00:00.000000"),
        ("2025-11-17T19:23:11+09:00", "2025-11-17T10:23:11.000000"),
        ("2025-11-18T19:23:11Z", "2025-11-18T19:23:11.000000"),
        ("2025-11-19T19:23:11.5", "2025-11-19T19:23:11.500000"),
    ):
        assert sent(house, generated_time=text)["generated_time"] == kept


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"generated_time": 1763234591}, "generated_time"),
        ({"generated_time": "1763234591"}, "generated_time"),
        ({"generated_time": "yesterday"}, "generated_time"),
        ({"generated_time": ""}, "generated_time"),
        ({"hostname": ""}, "hostname"),
        ({"hostname": "a b"}, "hostname"),
        ({"hostname": "cmp-1\n"}, "hostname"),
        ({"hostname": "x" * 256}, "255"),
        ({"hostname": "cmp-9"}, "Host with name cmp-9 could not be found"),
        ({"type": "HOST"}, "type"),
        ({"payload": {}}, "payload"),
        ({"payload": None}, "payload"),
        ({"payload": {"host_status": "NORMAL"}}, "event is missing"),
        ({"payload": {"event": "CRASHED"}}, "STARTED, STOPPED"),
        ({"payload": {"event": "STOPPED", "host_status": "DEAD"}}, "NORMAL, UNKNOWN"),
        ({"payload": {"event": "STOPPED", "cluster_status": "x"}}, "ONLINE, OFFLINE"),
        ({"payload": {"event": "STOPPED", "mood": "bad"}}, "mood is not known"),
        ({"payload": {"event": 1}}, "payload.event: must be text"),
        ({"type": "VM", "payload": {**GUEST, "instance_uuid": "web-1"}}, "no uuid"),
        ({"type": "VM", "payload": {**GUEST, "event": ""}}, "event: is empty"),
        ({"type": "VM", "payload": {**GUEST, "vir_domain_event": "x" * 256}}, "255"),
        ({"type": "VM", "payload": DOWN}, "instance_uuid, vir_domain_event is missing"),
        ({"type": "PROCESS", "payload": {**PROCESS, "process_name": ""}}, "is empty"),
        ({"type": "PROCESS", "payload": {"event": "STOPPED"}}, "process_name is missing"),
        ({"status": "new"}, "status"),
    ],
)
def test_a_report_that_makes_no_sense_is_refused_and_says_why(
    untouched: House, wrong: dict[str, Any], word: str
) -> None:
    before = untouched.dump()
    body = {"notification": {**report_body("cmp-1"), **wrong}}
    refused(untouched.call("POST", REPORTS, json=body), 400, "badRequest", word)
    assert untouched.dump() == before


def test_reports_about_a_host_on_maintenance_are_a_conflict(house: House) -> None:
    path = f"{SEGMENTS}/1/hosts/{uuid_of(house, 'cmp-1')}"
    body = {"host": {"on_maintenance": True}}
    assert house.call("PUT", path, json=body).status_code == 200
    for fields in ({}, {"type": "VM", "payload": GUEST}, {"type": "PROCESS", "payload": PROCESS}):
        refused(send(house, **fields), 409, "conflictingRequest", "on maintenance")
    sent(house, "cmp-2")


def test_a_disabled_segment_still_takes_reports(house: House) -> None:
    body = {"segment": {"enabled": False}}
    assert house.call("PUT", f"{SEGMENTS}/1", json=body, headers=at("1.2")).status_code == 200
    assert sent(house)["status"] == "new"


def test_a_duplicate_is_a_conflict_and_a_later_failure_is_not(house: House) -> None:
    first = sent(house, ago_s=60)
    refused(send(house), 409, "conflictingRequest", "duplicate", first["notification_uuid"])
    sent(house, payload={**DOWN, "host_status": "UNKNOWN"})
    with house.core.store.database.write() as conn:
        conn.exec_driver_sql("UPDATE notifications SET status = 'finished'")
    again = send(house, generated_time=first["generated_time"])
    refused(again, 409, "conflictingRequest", "duplicate")
    assert sent(house)["status"] == "new"


def test_the_interval_of_duplicates_is_an_option_that_changes_while_running(
    house: House,
) -> None:
    sent(house, ago_s=60)
    assert send(house).status_code == 409
    house.conf.set_override("duplicate_interval_s", 30.0, "recovery")
    sent(house)


def test_a_report_dated_before_a_recovery_is_taken(house: House) -> None:
    """The clock of its sender may be behind: recovery asks all sources."""
    now = datetime.now(UTC)
    row = {
        "id": "i-1",
        "key": "i-1",
        "subject": "host:cmp-1",
        "kind": "host",
        "cause": "x",
        "status": "recovered",
        "opened_at": now,
        "closed_at": now,
        "sentence": "",
        "details": {"verified_at": now.isoformat()},
        "created_at": now,
    }
    with house.core.store.database.write() as conn:
        conn.execute(sa.insert(incidents).values(**row))
    assert sent(house, generated_time=(now - timedelta(seconds=10)).isoformat())["status"] == "new"


def test_twenty_equal_reports_at_once_are_one(house: House) -> None:
    body = {"notification": report_body("cmp-1")}
    gate = threading.Barrier(20)

    def post(_number: int) -> int:
        gate.wait()
        return int(house.call("POST", REPORTS, json=body).status_code)

    with ThreadPoolExecutor(20) as pool:
        said = sorted(pool.map(post, range(20)))
    assert said == [202] + [409] * 19
    assert len(house.call("GET", REPORTS).json["notifications"]) == 1


def test_a_report_that_cannot_be_written_is_503_never_409(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    for error in (StaleWrite("lost a race"), Unavailable("the database is away")):

        def fail(*_args: Any, error: Exception = error, **_kwargs: Any) -> None:
            raise error

        monkeypatch.setattr(house.core.store.database, "retry", fail)
        refused(send(house), 503, "serviceUnavailable")


class Nobody:
    """A manager that cannot be reached."""

    def __getattr__(self, name: str) -> Any:
        def fail(*_args: Any, **_kwargs: Any) -> None:
            raise Unavailable("no manager answers")

        return fail


def test_reports_are_taken_and_shown_while_no_manager_answers(build: Build) -> None:
    house = build(manager=Nobody())
    house.manager.loop.stop()
    make_segment(house)
    host_id = house.core.store.ledger.host("cmp-1").id
    values = {"type": "KVM", "control_attributes": "SSH"}
    host = house.core.store.segments.add_host("h-1", "1", host_id, values)
    made = sent(house)
    assert made["source_host_uuid"] == host.uuid
    work(house, "i-1", ["guards"])
    own = write_report(house, host.uuid, incident_id="i-1")
    shown = house.call("GET", f"{REPORTS}/{own}", headers=at("1.1")).json["notification"]
    assert len(shown["recovery_workflow_details"]) == 2


# show and list


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH"])
def test_reports_are_neither_changed_nor_deleted(house: House, method: str) -> None:
    made = sent(house)
    for path in (REPORTS, f"{REPORTS}/{made['notification_uuid']}"):
        answer = house.call(method, path, json={"notification": {"status": "finished"}})
        refused(answer, 405, "badMethod", method)
        assert "GET" in answer.headers["Allow"]


def test_an_unknown_report_is_not_found(house: House) -> None:
    for ref in (MISSING, "999999", "x"):
        refused(house.call("GET", f"{REPORTS}/{ref}"), 404, "itemNotFound", ref)
        for path in ("vmoves", f"vmoves/{MISSING}"):
            refused(house.call("GET", f"{REPORTS}/{ref}/{path}"), 404, "itemNotFound", ref)


def test_reports_are_listed_by_what_they_say(house: House) -> None:
    one, two = uuid_of(house, "cmp-1"), uuid_of(house, "cmp-2")
    old = datetime(2026, 1, 1, tzinfo=UTC)
    a = write_report(house, one, generated_time=old, status="finished")
    b = write_report(house, one, type="VM", payload=GUEST)
    c = write_report(house, two, status="ignored")

    def listed(query: str = "") -> list[str]:
        answer = house.call("GET", REPORTS, query_string=query)
        assert answer.status_code == 200, answer.text
        assert all(row.keys() == KEYS for row in answer.json["notifications"])
        return [row["notification_uuid"] for row in answer.json["notifications"]]

    assert listed() == [c, b, a]
    assert listed("status=finished") == [a]
    assert listed("status=unheard-of") == []
    assert listed("type=VM") == [b]
    assert listed(f"source_host_uuid={two}") == [c]
    assert listed("generated-since=2026-01-02") == [c, b]
    assert listed("generated-since=2026-01-01T00:00:00Z") == [c, b, a]
    assert listed("sort_key=generated_time&sort_dir=asc&limit=1") == [a]
    assert listed("limit=1&marker=2") == [a]
    answer = house.call("GET", REPORTS, query_string="generated-since=lately")
    refused(answer, 400, "badRequest", "generated-since")
    later = house.call("GET", REPORTS, headers=at("1.4")).json["notifications"]
    assert [row["hostname"] for row in later] == ["cmp-2", "cmp-1", "cmp-1"]
    assert "recovery_workflow_details" not in later[0]


# how it goes


def work(
    house: House, incident: str, done: list[str], status: str = "running", kind: str = HOST
) -> None:
    """The durable work of a recovery that has come so far."""
    now = datetime(2026, 11, 15, 12, 0, 0, 250_000, tzinfo=UTC)
    row = {
        "id": incident,
        "kind": WORK[kind],
        "subject": incident,
        "key": f"recovery/{incident}",
        "due_at": now,
        "status": status,
        "is_open": status == "running",
        "next_try_at": now,
        "sentence": "at it",
        "payload": {},
        "created_at": now,
        "updated_at": now,
    }
    with house.core.store.database.write() as conn:
        conn.execute(sa.insert(operations).values(**row))
        for position, name in enumerate(done):
            conn.execute(
                sa.insert(steps).values(
                    operation_id=incident,
                    name=name,
                    position=position,
                    status="done",
                    finished_at=now,
                    sentence=f"{name} done",
                )
            )


@pytest.mark.parametrize(
    ("kind", "done", "status", "wanted"),
    [
        (HOST, [], "running", [("guards", "RUNNING")]),
        (
            HOST,
            ["guards", "fence", "force_down", "repair", "prepare"],
            "running",
            [
                ("guards", "SUCCESS"),
                ("fence", "SUCCESS"),
                ("DisableComputeServiceTask", "SUCCESS"),
                ("repair", "SUCCESS"),
                ("PrepareHAEnabledInstancesTask", "SUCCESS"),
                ("EvacuateInstancesTask", "RUNNING"),
            ],
        ),
        (
            GUESTS,
            ["guards", "stop", "start"],
            "error",
            [
                ("guards", "SUCCESS"),
                ("StopInstanceTask", "SUCCESS"),
                ("StartInstanceTask", "SUCCESS"),
                ("ConfirmInstanceActiveTask", "FAILURE"),
            ],
        ),
        (
            PROCESSES,
            ["guards", "disable", "mail", "confirm", "report"],
            "done",
            [
                ("guards", "SUCCESS"),
                ("DisableComputeNodeTask", "SUCCESS"),
                ("mail", "SUCCESS"),
                ("ConfirmComputeNodeDisabledTask", "SUCCESS"),
                ("report", "SUCCESS"),
            ],
        ),
    ],
)
def test_from_1_1_on_a_report_shows_the_steps_of_its_recovery(
    house: House, kind: str, done: list[str], status: str, wanted: list[tuple[str, str]]
) -> None:
    work(house, "i-7", done, status, kind)
    # a guest may have died with its host
    own = write_report(house, uuid_of(house, "cmp-1"), type="VM", incident_id="i-7")
    assert house.call("GET", f"{REPORTS}/{own}").json["notification"].keys() == KEYS
    shown = house.call("GET", f"{REPORTS}/{own}", headers=at("1.1")).json["notification"]
    found = shown["recovery_workflow_details"]
    assert [(one["name"], one["state"]) for one in found] == wanted
    for one in found:
        success = one["state"] == "SUCCESS"
        assert one["progress"] == (1.0 if success else 0.0)
        (detail,) = one["progress_details"]
        assert detail["timestamp"] == "2026-11-15 12:00:00.250000"
        assert detail["progress"] == ("1.0" if success else "0.0")
        assert detail["message"].endswith("done" if success else "at it")


@pytest.mark.parametrize("status", ["finished", "ignored"])
def test_a_report_that_is_over_shows_no_step_that_still_runs(house: House, status: str) -> None:
    """Also before the manager has written down that the last one is done."""
    work(house, "i-7", ["guards", "fence", "force_down", "repair", "prepare", "move", "verify"])
    own = write_report(house, uuid_of(house, "cmp-1"), incident_id="i-7", status=status)
    shown = house.call("GET", f"{REPORTS}/{own}", headers=at("1.1")).json["notification"]
    last = shown["recovery_workflow_details"][-1]
    assert (last["name"], last["state"], last["progress"]) == ("report", "SUCCESS", 1.0)
    assert last["progress_details"][0]["message"] == "at it"


def test_a_report_that_nobody_recovers_has_no_steps(house: House) -> None:
    made = sent(house)
    path = f"{REPORTS}/{made['notification_uuid']}"
    shown = house.call("GET", path, headers=at("1.1")).json["notification"]
    assert shown["recovery_workflow_details"] == []


# moves


def test_moves_of_a_report_are_listed_and_shown(house: House) -> None:
    host = uuid_of(house, "cmp-1")
    own = write_report(house, host, incident_id="i-1")
    twin = write_report(house, host, incident_id="i-1")
    other = write_report(house, host)
    first = write_move(house, own, incident_id="i-1")
    second = write_move(house, own, incident_id="i-1", status="failed", dest_host=None)
    path = f"{REPORTS}/{own}/vmoves"
    listed = house.call("GET", path).json["vmoves"]  # at any version, as clients rely on
    assert [one["uuid"] for one in listed] == [second, first]
    assert all(one.keys() == MOVE_KEYS for one in listed)
    one = house.call("GET", f"{path}/{first}").json["vmove"]
    assert one == listed[1]
    assert (one["source_host"], one["dest_host"]) == ("cmp-3", "cmp-4")
    assert (one["type"], one["status"], one["instance_name"]) == (
        "evacuation", "succeeded", "web-1",
    )  # fmt: skip
    assert one["start_time"] < one["end_time"] and STAMP.fullmatch(one["end_time"])
    later = house.call("GET", f"{path}/{first}", headers=at("1.4")).json["vmove"]
    assert later == {**one, "attempts": 2}

    def found(query: str) -> list[str]:
        rows = house.call("GET", path, query_string=query).json["vmoves"]
        return [row["uuid"] for row in rows]

    assert found("status=failed") == [second]
    assert found("type=migration") == []
    assert found("sort_key=start_time&sort_dir=asc&limit=1") == [first]
    assert found(f"limit=1&marker={listed[0]['id']}") == [first]
    # who reported the same host sees the same moves; who did not sees none
    moves = house.call("GET", f"{REPORTS}/{twin}/vmoves").json["vmoves"]
    assert [(row["uuid"], row["notification_uuid"]) for row in moves] == [
        (second, twin), (first, twin),
    ]  # fmt: skip
    assert house.call("GET", f"{REPORTS}/{other}/vmoves").json == {"vmoves": []}
    refused(house.call("GET", f"{REPORTS}/{other}/vmoves/{first}"), 404, "itemNotFound", first)
    refused(house.call("GET", f"{path}/{MISSING}"), 404, "itemNotFound", MISSING)
    refused(house.call("POST", path, json={}), 405, "badMethod")


def test_moves_are_of_hosts_only(house: House) -> None:
    own = write_report(house, uuid_of(house, "cmp-1"), type="VM", payload=GUEST)
    refused(house.call("GET", f"{REPORTS}/{own}/vmoves"), 400, "badRequest", "COMPUTE_HOST")
