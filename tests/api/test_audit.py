# SPDX-License-Identifier: Apache-2.0
"""/holdfast/v1/audit: who decided what about which thing, and nobody else's business."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.api.audits import LEASE, furnish_audit
from tests.api.house import OWN, House, basic_config, copy

AUDIT = f"{OWN}/audit"


@pytest.fixture(scope="module")
def told(furnished: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[House, Any]]:
    folder = tmp_path_factory.mktemp("audit")
    with House(copy(furnished, folder / "state"), basic_config(folder)) as house:
        yield house, furnish_audit(house)


def found(house: House, user: str = "admin", **query: Any) -> list[dict[str, Any]]:
    answer = house.call("GET", AUDIT, user, params=query)
    assert answer.status_code == 200, answer.text
    lines: list[dict[str, Any]] = answer.json["audit"]
    return lines


def test_lines_are_filtered_and_the_newest_come_first(told: tuple[House, Any]) -> None:
    house, ids = told

    def names(**query: Any) -> list[str]:
        by_id = {own: name for name, own in ids.items()}
        return [by_id[one["id"]] for one in found(house, **query) if one["id"] in by_id]

    assert names() == ["paused", "fenced", "opened", "mine", "booked"]
    assert names(subject="incident:c0ffee") == ["fenced", "opened"]
    assert names(subject="incident:") == ["fenced", "opened"]
    assert names(subject="incident") == []
    assert names(subject=LEASE) == ["mine", "booked"]
    assert names(actor="ann") == ["fenced"]
    assert names(project_id="red") == ["booked"]
    assert names(text="fenced") == ["fenced"]
    assert names(text="100%") == ["mine"]
    assert names(text="1_0%") == []
    assert names(since="2027-01-31T14:00:00Z") == ["paused", "fenced", "opened"]
    assert names(until="2027-01-31T13:00:00Z", since="2027-01-31T12:00:00Z") == ["booked"]
    assert names(limit=2) == ["paused", "fenced"]
    assert names(limit=2, marker=ids["fenced"]) == ["opened", "mine"]
    (line,) = found(house, text="recovery is paused")
    assert line["at"] == "2027-01-31T16:00:00+00:00"
    assert (line["subject"], line["request_id"], line["project_id"]) == ("recovery", "req-7", None)


def test_a_member_reads_of_the_things_of_its_project_whatever_it_asks_for(
    told: tuple[House, Any],
) -> None:
    house, _ = told
    for user in ("member", "reader"):
        for query in ({}, {"project_id": "red"}, {"subject": LEASE}):
            said = [one["sentence"] for one in found(house, user, **query)]
            assert said == ["lease 100% Blue booked"], (user, query)
        assert found(house, user, subject="incident:") == []
    assert [one["project_id"] for one in found(house, "other")] == ["red"]
    assert house.call("GET", AUDIT, "bare").status_code == 403
    assert house.call("GET", AUDIT, "service").status_code == 403
    assert house.call("GET", AUDIT).status_code == 401


def test_what_is_answered_is_what_the_document_says(told: tuple[House, Any]) -> None:
    house, _ = told
    document = house.call("GET", f"{OWN}/openapi.json").json
    said = document["paths"][AUDIT]["get"]["responses"]["200"]
    answer = house.call("GET", AUDIT, "admin")
    jsonschema.validate(answer.json, said["content"]["application/json"]["schema"])
    assert answer.json["audit"]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("marker=last", "marker"),
        ("marker=0", "marker"),
        ("since=yesterday", "since"),
        ("until=tomorrow", "until"),
        ("text=", "text"),
        ("colour=red", "unknown field colour"),
    ],
)
def test_a_question_that_cannot_be_meant_is_refused(
    told: tuple[House, Any], query: str, field: str
) -> None:
    answer = told[0].call("GET", AUDIT, "admin", query_string=query)
    assert answer.status_code == 400
    assert field in answer.json["errors"][0]["detail"]


def test_a_request_leaves_its_id_with_what_it_decided(guarded: House) -> None:
    made = guarded.call("POST", f"{OWN}/pauses", "admin", json={"reason": "a storm"})
    (line,) = found(guarded, subject="recovery", limit=1)
    assert line["sentence"] == "recovery is paused by admin: a storm"
    assert line["actor"] == "admin"
    assert line["request_id"] == made.headers["x-openstack-request-id"]
