# SPDX-License-Identifier: Apache-2.0
"""/holdfast/v1/repair and …/acknowledge: what is asked of the manager, and how its report reads."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from holdfast.model.errors import NotFound
from holdfast.ports.manager import Caller, RepairMove, RepairReport
from tests.api.conftest import Build
from tests.api.house import OWN, House, basic_config, copy, when

PLAN, RUN = f"{OWN}/repair/plan", f"{OWN}/repair"
START, END = (datetime(2030, 1, day, 12, tzinfo=UTC) for day in (1, 2))


def move(number: int, **more: Any) -> RepairMove:
    base = {"resource_type": "physical:host", "active": False, "start": START, "end": END}
    return RepairMove(f"l{number}", "night", "blue", f"r{number}", **{**base, **more})


REPORT = RepairReport(
    failed=("cmp-1", "cmp-2"),
    moves=(
        move(1, active=True, leaves=("cmp-1", "cmp-2"), joins=("cmp-3",), short="1 host: none"),
        move(2, leaves=("cmp-1",), joins=("cmp-4",)),
        move(3, short="2 slots: no room"),
        move(4, leaves=("cmp-2",), joins=("cmp-4",)),
        move(5, leaves=("cmp-2",), joins=("cmp-4",)),
    ),
    held="2 of 4 hosts in rack-a are down",
    usable=2,
    free=1,
)


class Recorder:
    """A manager that has one answer and remembers what it was asked; it knows the lease `mine`."""

    def __init__(self, report: RepairReport = REPORT) -> None:
        self.report = report
        self.asked: list[tuple[Any, ...]] = []

    def acknowledge(self, caller: Caller, lease_id: str) -> None:
        if lease_id != "mine" or not caller.may_see("blue"):
            raise NotFound(f"Object with {{'lease_id': {lease_id!r}}} not found")
        self.asked.append(("acknowledge", caller.user_id, lease_id))

    def plan_repair(self, caller: Caller, hosts: Any = (), racks: Any = ()) -> RepairReport:
        if "moon" in hosts:
            raise NotFound("no host moon is enrolled")
        self.asked.append(("plan", caller.user_id, hosts, racks))
        return self.report

    def run_repair(
        self, caller: Caller, approve: bool = False, reason: str = "", domain: str = ""
    ) -> RepairReport:
        self.asked.append(("run", caller.user_id, approve, reason, domain))
        return self.report


@pytest.fixture(scope="module")
def asking(
    furnished: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[House, Recorder]]:
    """A house that asks a recorder."""
    folder, recorder = tmp_path_factory.mktemp("asking"), Recorder()
    with House(copy(furnished, folder), basic_config(folder), manager=recorder) as house:
        yield house, recorder


@pytest.fixture
def recorder(asking: tuple[House, Recorder]) -> Recorder:
    """What the house asks from here on."""
    recorder = asking[1]
    recorder.asked.clear()
    return recorder


@pytest.fixture
def guarded(asking: tuple[House, Recorder]) -> House:
    return asking[0]


def test_the_owner_acknowledges_and_nobody_else_hears_of_the_lease(
    guarded: House, recorder: Recorder
) -> None:
    mine, missing = (f"{OWN}/leases/{lease}/acknowledge" for lease in ("mine", "gone"))
    for user in ("member", "manager", "admin"):
        answer = guarded.call("POST", mine, user)
        assert (answer.status_code, answer.text) == (204, ""), user
    assert [user for _, user, _ in recorder.asked] == ["member", "manager", "admin"]
    foreign, nothing = (guarded.call("POST", path, "other") for path in (mine, missing))
    assert foreign.status_code == nothing.status_code == 404
    assert guarded.call("POST", mine, "reader").status_code == 403
    assert guarded.call("POST", mine).status_code == 401
    assert len(recorder.asked) == 3


def test_plan_and_run_are_for_administrators(guarded: House, recorder: Recorder) -> None:
    for path in (PLAN, RUN):
        for user in ("reader", "member", "manager", "service", "other"):
            assert guarded.call("POST", path, user, json={}).status_code == 403, (path, user)
        assert guarded.call("POST", path, json={}).status_code == 401
    assert recorder.asked == []


@pytest.mark.parametrize(
    ("asked", "hosts", "racks"),
    [
        (None, (), ()),
        ({}, (), ()),
        ({"hosts": [], "racks": []}, (), ()),
        ({"hosts": ["cmp-1", "2"]}, ("cmp-1", "2"), ()),
        ({"hosts": ["cmp-1"], "racks": ["rack a", "b"]}, ("cmp-1",), ("rack a", "b")),
    ],
)
def test_a_plan_names_what_else_would_fail_or_nothing(
    guarded: House, recorder: Recorder, asked: Any, hosts: Any, racks: Any
) -> None:
    answer = guarded.call("POST", PLAN, "admin", json=asked)
    assert answer.status_code == 200, answer.text
    assert recorder.asked == [("plan", "admin", hosts, racks)]


def test_the_report_has_counts_and_every_move_and_keeps_its_schema(guarded: House) -> None:
    document = guarded.call("GET", f"{OWN}/openapi.json").json["paths"]
    for path, status in ((PLAN, "200"), (RUN, "202")):
        answer = guarded.call("POST", path, "admin", json={})
        said = document[path]["post"]["responses"][status]["content"]["application/json"]
        jsonschema.validate(answer.json, said["schema"])
        report = answer.json["repair"]
        assert report["failed"] == ["cmp-1", "cmp-2"]
        assert report["held"] == "2 of 4 hosts in rack-a are down"
        assert report["counts"] == {
            "reservations": 5, "moved": 3, "short": 2, "usable": 2, "free": 1,
        }  # fmt: skip
        assert report["moves"][0] == {
            "lease_id": "l1",
            "lease_name": "night",
            "project_id": "blue",
            "reservation_id": "r1",
            "resource_type": "physical:host",
            "active": True,
            "start_date": "2030-01-01T12:00:00+00:00",
            "end_date": "2030-01-02T12:00:00+00:00",
            "leaves": ["cmp-1", "cmp-2"],
            "joins": ["cmp-3"],
            "short": "1 host: none",
        }
        assert [each["short"] for each in report["moves"][1:3]] == [None, "2 slots: no room"]


def test_where_nothing_failed_the_report_is_empty(build: Build) -> None:
    house = build(manager=Recorder(RepairReport(usable=4, free=3)))
    assert house.call("POST", PLAN).json["repair"] == {
        "failed": [],
        "held": None,
        "counts": {"reservations": 0, "moved": 0, "short": 0, "usable": 4, "free": 3},
        "moves": [],
    }


@pytest.mark.parametrize(
    ("asked", "approve", "reason", "domain"),
    [
        (None, False, "", ""),
        ({"approve": False}, False, "", ""),
        ({"approve": True, "reason": " rack-a burns "}, True, "rack-a burns", ""),
        ({"approve": True, "reason": "so", "domain": " rack-a"}, True, "so", "rack-a"),
    ],
)
def test_a_run_hands_the_approval_and_its_reason_on(
    guarded: House, recorder: Recorder, asked: Any, approve: bool, reason: str, domain: str
) -> None:
    assert guarded.call("POST", RUN, "admin", json=asked).status_code == 202
    assert recorder.asked == [("run", "admin", approve, reason, domain)]


@pytest.mark.parametrize(
    ("path", "asked", "field"),
    [
        (PLAN, {"hosts": "cmp-1"}, "hosts"),
        (PLAN, {"hosts": [7]}, "hosts.0"),
        (PLAN, {"hosts": [""]}, "hosts.0"),
        (PLAN, {"hosts": ["x" * 256]}, "hosts.0"),
        (PLAN, {"racks": ["a", None]}, "racks.1"),
        (PLAN, {"hosts": ["a"] * 1001}, "hosts"),
        (PLAN, {"racks": ["a"] * 1001}, "racks"),
        (PLAN, {"hosts": None}, "hosts"),
        (PLAN, {"host": ["cmp-1"]}, "unknown field host"),
        (PLAN, ["cmp-1"], "JSON object"),
        (RUN, {"approve": True}, "reason"),
        (RUN, {"approve": True, "reason": ""}, "reason"),
        (RUN, {"approve": True, "reason": " \t"}, "reason"),
        (RUN, {"approve": True, "reason": "x" * 1001}, "reason"),
        (RUN, {"approve": True, "reason": 5}, "reason"),
        (RUN, {"approve": "yes", "reason": "so"}, "approve"),
        (RUN, {"approve": 1, "reason": "so"}, "approve"),
        (RUN, {"domain": "rack-a"}, "domain"),
        (RUN, {"approve": True, "reason": "so", "domain": "x" * 201}, "domain"),
        (RUN, {"hosts": ["cmp-1"]}, "unknown field hosts"),
    ],
)
def test_nonsense_is_refused_with_its_name_and_never_reaches_the_manager(
    guarded: House, recorder: Recorder, path: str, asked: Any, field: str
) -> None:
    answer = guarded.call("POST", path, "admin", json=asked)
    assert answer.status_code == 400, answer.text
    assert field in answer.json["errors"][0]["detail"]
    assert recorder.asked == []


def test_a_host_that_is_not_enrolled_is_named(guarded: House) -> None:
    answer = guarded.call("POST", PLAN, "admin", json={"hosts": ["moon"]})
    assert answer.status_code == 404
    assert "moon" in answer.json["errors"][0]["detail"]


def test_a_body_that_may_be_left_out_is_documented_so(guarded: House) -> None:
    paths = guarded.call("GET", f"{OWN}/openapi.json").json["paths"]
    needed = {path: paths[path]["post"]["requestBody"]["required"] for path in (PLAN, RUN)}
    assert needed == {PLAN: False, RUN: False}
    assert paths[f"{OWN}/observations"]["post"]["requestBody"]["required"] is True


# the whole house


def test_what_if_names_the_lease_that_would_move_and_changes_nothing(house: House) -> None:
    lease = house.lease(start_date=when(hours=2), end_date=when(hours=3))
    (reservation,) = house.core.store.ledger.lease(lease["id"]).reservations
    (host,) = reservation.hosts()
    before = house.dump()
    told = house.call("POST", PLAN, json={"hosts": [host]})
    assert told.status_code == 200, told.text
    report = told.json["repair"]
    assert house.dump() == before
    assert (report["failed"], report["held"]) == ([host], None)
    (move,) = report["moves"]
    assert (move["lease_id"], move["leaves"], move["short"]) == (lease["id"], [host], None)
    assert move["joins"] and host not in move["joins"]
    everything = house.call("POST", PLAN, json={"racks": ["rack-a"]}).json["repair"]
    assert everything["counts"] == {
        "reservations": 1, "moved": 0, "short": 1, "usable": 0, "free": 0,
    }  # fmt: skip
    assert "4 of 4 hosts" in everything["held"]
    assert everything["moves"][0]["short"]


def test_the_refusal_of_an_unknown_rack_lists_the_racks(house: House) -> None:
    answer = house.call("POST", PLAN, json={"racks": ["rack-z"]})
    assert answer.status_code == 404
    assert "rack-a" in answer.json["errors"][0]["detail"]
