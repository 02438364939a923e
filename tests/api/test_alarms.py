# SPDX-License-Identifier: Apache-2.0
"""Alarms that agents report: one row each, told and answered, and nobody else's business."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from holdfast.db.tables import alarms, operations
from holdfast.ports.publishers import ANNOUNCE
from holdfast.recovery.events import IncidentPublisher
from tests.api.conftest import Build
from tests.api.house import OWN, House, basic_config
from tests.api.rules import GUEST, NOON, alarm_body, furnish_alarm, report

ALARMS = f"{OWN}/alarms"
LATER, LAST = NOON.replace("12:00", "12:05"), NOON.replace("12:00", "12:09")


def listed(house: House, query: str = "", user: str = "") -> list[dict[str, Any]]:
    answer = house.call("GET", ALARMS, user, query_string=query)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json["alarms"]
    return found


def told(house: House) -> list[str]:
    """What is on its way to the sinks, in order."""
    o = operations.c
    with house.core.store.database.read() as conn:
        rows = conn.execute(sa.select(o.payload).where(o.kind == ANNOUNCE).order_by(o.sequence))
        return [row.payload["event_type"] for row in rows]


def test_an_alarm_is_one_row_from_its_beginning_to_its_end(house: House) -> None:
    report(house, alarm_body())
    report(house, alarm_body())  # told twice
    report(house, alarm_body("again", LATER, value=0.99))
    (alarm,) = listed(house)
    assert (alarm["state"], alarm["value"], alarm["threshold"]) == ("firing", 0.99, 0.95)
    assert (alarm["subject"], alarm["name"], alarm["rules_version"]) == (
        f"server:{GUEST}", "web-1", "3-abc",
    )  # fmt: skip
    report(house, alarm_body("cleared", LAST))
    report(house, alarm_body("no_data", LATER))  # late
    assert listed(house) == []
    (over,) = listed(house, "all=true")
    assert (over["state"], over["resolved_at"]) == ("ok", LAST)


def test_a_host_has_alarms_too_and_they_are_not_a_projects(house: House) -> None:
    body = alarm_body(kind="host", entity="cmp-1", project="", key=f"cmp-1/load/{NOON}")
    report(house, body)
    (alarm,) = listed(house, "host=cmp-1")
    assert (alarm["subject"], alarm["project_id"]) == ("host:cmp-1", "")
    report(house, {**body, "subject": "host:cmp-2", "key": "x"}, 400)


@pytest.mark.parametrize(
    "wrong",
    [
        {"rule": ""},
        {"rule": "x" * 200},
        {"severity": "dire"},
        {"at": "soon"},
        {"value": "much"},
        {"value": 10**400},
        {"actions": ["explode"]},
        {"actions": [[]]},
        {"actions": ["notify"] * 1000},
        {"threshold": "x"},
        {"host": "x" * 256},
        {"at": "4231-01-01T00:00:00+00:00"},
        {"host": ""},
        {"first_at": "0001-01-01T00:00:00+00:00"},
    ],
)
def test_what_is_no_alarm_is_refused_and_not_kept(shared: House, wrong: dict[str, Any]) -> None:
    house, body = shared, alarm_body()
    before = house.dump()
    report(house, {**body, "evidence": {**body["evidence"], **wrong}}, 400)
    report(house, {**body, "state": "odd"}, 400)
    assert house.dump() == before


def test_an_alarm_that_an_older_version_stored_with_any_threshold_is_shown(house: House) -> None:
    alarm_id = furnish_alarm(house)
    for stored in ("x", [], {"a": 1}, True):
        with house.core.store.database.write() as conn:
            details = {**alarm_body()["evidence"], "threshold": stored, "name": stored}
            conn.execute(sa.update(alarms).values(details=details))
        (alarm,) = listed(house)
        assert (alarm["threshold"], alarm["value"]) == (None, 0.97)
        for page in ("alarms", "alarms/rows", f"alarms/{alarm_id}", f"alarms/{alarm_id}/state"):
            assert house.call("GET", f"/console/{page}").status_code == 200, page


def test_an_alarm_is_repeated_until_it_is_acknowledged_or_muted(build: Build) -> None:
    house = build()
    house.core.store.database.publisher = IncidentPublisher(people=("nowhere",))
    alarm_id = furnish_alarm(house)
    report(house, alarm_body("again", LATER))
    assert told(house) == ["alarm.raised", "alarm.again"]
    acked = house.call("POST", f"{ALARMS}/{alarm_id}/ack").json["alarm"]
    assert acked["acked_by"] and acked["acked_at"]
    report(house, alarm_body("again", LAST))
    assert len(told(house)) == 2
    report(house, alarm_body("cleared", LAST))
    assert told(house)[2:] == ["alarm.cleared"]


def test_a_mute_also_hushes_the_next_alarm_of_the_same_rule(house: House) -> None:
    house.core.store.database.publisher = IncidentPublisher(people=("nowhere",))
    alarm_id = furnish_alarm(house)
    body = {"duration_s": 3600}
    silent = house.call("POST", f"{ALARMS}/{alarm_id}/mute", json=body).json["alarm"]
    assert silent["muted_until"] > silent["fired_at"]
    report(house, alarm_body("cleared", LATER))
    next_one = {"first_at": LAST, "key": f"{GUEST}/busy/{LAST}"}
    report(house, alarm_body("raised", LAST, **next_one))
    assert told(house) == ["alarm.raised"]
    (alarm,) = listed(house)
    assert alarm["muted_until"] == silent["muted_until"]
    house.call("POST", f"{ALARMS}/{alarm['id']}/mute", json={"duration_s": 0})
    assert told(house)[1:] == ["alarm.raised"]
    report(house, alarm_body("again", NOON.replace("12:00", "12:20"), **next_one))
    assert told(house)[2:] == ["alarm.again"]


def test_a_project_sees_and_answers_its_own_alarms_only(build: Build, tmp_path: Path) -> None:
    house = build(basic_config(tmp_path))
    alarm_id = furnish_alarm(house)
    assert [one["id"] for one in listed(house, user="reader")] == [alarm_id]
    assert [one["id"] for one in listed(house, user="admin")] == [alarm_id]
    assert listed(house, "project=blue", user="other") == []
    assert house.call("GET", f"{ALARMS}/{alarm_id}", "other").status_code == 404
    assert house.call("GET", f"{ALARMS}/{alarm_id}", "member").status_code == 200


@pytest.mark.parametrize(
    ("action", "body"), [("ack", {}), ("mute", {"duration_s": 60}), ("end", {})]
)
def test_an_owner_cannot_switch_off_an_alarm_of_the_operators_about_his_server(
    build: Build, tmp_path: Path, action: str, body: dict[str, int]
) -> None:
    house = build(basic_config(tmp_path))
    alarm_id = furnish_alarm(house)
    before = house.call("GET", f"{ALARMS}/{alarm_id}", "member").json
    for user in ("reader", "member", "other"):
        answer = house.call("POST", f"{ALARMS}/{alarm_id}/{action}", user, json=body)
        assert answer.status_code == 403
    assert house.call("GET", f"{ALARMS}/{alarm_id}", "member").json == before
    answer = house.call("POST", f"{ALARMS}/{alarm_id}/{action}", "admin", json=body)
    assert answer.status_code == 200


def test_somebody_who_may_answer_an_alarm_ends_it(build: Build, tmp_path: Path) -> None:
    house = build(basic_config(tmp_path))
    house.core.store.database.publisher = IncidentPublisher(people=("nowhere",))
    alarm_id = furnish_alarm(house)
    path = f"{ALARMS}/{alarm_id}/end"
    for _ in range(2):
        ended = house.call("POST", path, "admin").json["alarm"]
        assert (ended["state"], ended["details"]["reason"]) == ("ok", "ended by admin")
    assert (told(house), listed(house, user="member")) == (["alarm.raised", "alarm.cleared"], [])
    query = f"subject=alarm:{alarm_id}"
    (said,) = house.call("GET", f"{OWN}/audit", "member", query_string=query).json["audit"]
    assert said["sentence"] == f"admin ended alarm busy of server:{GUEST} on cmp-1"
