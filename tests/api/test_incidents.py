# SPDX-License-Identifier: Apache-2.0
"""/holdfast/v1/incidents, /pauses, /maintenance-windows, /approvals: what operators see and what
they order, with a real recovery behind it on the simulated cloud."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from holdfast.db.operations import put
from holdfast.model.incident import HELD, RECOVERED, RUNNING, Verdict, recovery_of
from holdfast.model.operation import RUNNING as AT_WORK
from holdfast.model.operation import Claim
from holdfast.ports.recovery import Change
from tests.api.cases import write_incident
from tests.api.conftest import Build
from tests.api.ha import REPORTS, add_host, make_segment, report_body
from tests.api.house import OWN, House, basic_config, copy
from tests.processes import eventually

INCIDENTS, PAUSES, WINDOWS = f"{OWN}/incidents", f"{OWN}/pauses", f"{OWN}/maintenance-windows"
APPROVALS = f"{OWN}/approvals"
CONFIG = "[recovery]\nbring_back = false\n"
MISSING = "00000000-0000-4000-8000-000000000000"
HOUR = {"reason": "new memory", "duration_s": 3600}


class Away:
    """A manager that nobody can ask."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"a manager was asked to {name}")


def show(house: House, incident_id: str) -> dict[str, Any]:
    answer = house.call("GET", f"{INCIDENTS}/{incident_id}")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json["incident"]
    return found


def wait(house: House, incident_id: str, *statuses: str) -> dict[str, Any]:
    def there() -> dict[str, Any]:
        found = show(house, incident_id)
        assert found["status"] in statuses, f"it is {found['status']}: {found['sentence']}"
        return found

    return eventually(there)


def wait_held(house: House, incident_id: str) -> None:
    """Until it is held and no manager is at it: who orders something then does not wait for the
    end of a claim."""
    wait(house, incident_id, "held")
    eventually(lambda: show(house, incident_id)["work"]["status"] == "retrying")


def order(house: House, incident_id: str, what: str, **body: Any) -> Any:
    return house.call("POST", f"{INCIDENTS}/{incident_id}/{what}", json=body)


def fault(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json["errors"][0]["detail"]


def report(house: House, host: str) -> str:
    """The id of the incident that comes of it."""
    body = {"notification": report_body(host)}
    said = house.call("POST", REPORTS, json=body)
    assert said.status_code == 202, said.text
    query = f"host={host}&open=true"
    mine = eventually(lambda: house.call("GET", INCIDENTS, query_string=query).json["incidents"])
    return str(mine[0]["id"])


@pytest.fixture(scope="module")
def furnished_house(furnished: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """Two segments; nothing dies here: incidents are rows that nobody works on."""
    with House(copy(furnished, tmp_path_factory.mktemp("incidents")), CONFIG) as house:
        north, south = make_segment(house), make_segment(house, "south")
        for name in ("cmp-1", "cmp-2"):
            add_host(house, north["uuid"], name)
        add_host(house, south["uuid"], "cmp-3")
        yield house


@pytest.fixture
def live(build: Build) -> House:
    """A house whose recovery runs: all six hosts in a segment, a server on cmp-6."""
    house = build(CONFIG, manager=Away())
    segment = house.core.store.segments
    make = {"name": "north", "recovery_method": "auto", "service_type": "COMPUTE"}
    uuid = segment.create(house.services.new_id(), make).uuid
    for number in range(1, 7):
        cloud = house.manager.recovering.context.cloud
        host_id = segment.know(cloud.hosts.find(f"cmp-{number}"), "here")
        values = {"type": "KVM", "control_attributes": "SSH"}
        segment.add_host(house.services.new_id(), uuid, host_id, values)
    return house


def test_from_report_to_recovered_with_a_pause_in_between(live: House) -> None:
    paused = live.call("POST", PAUSES, json={"reason": "switch is replaced"})
    assert paused.status_code == 201
    assert paused.json["pause"]["segment"] is None
    sim = live.services.sim()
    sim.fail_host("cmp-6")
    own = report(live, "cmp-6")
    held = wait(live, own, "held")
    assert "paused by" in held["sentence"]
    assert held["segment"] == "north"
    guards = {verdict["guard"]: verdict["passed"] for verdict in held["verdicts"]}
    assert guards["paused"] is False
    assert guards["evidence"] is True
    assert [step["status"] for step in held["steps"]][:2] == ["under way", "to come"]
    assert held["steps"][0]["name"] == "guards"
    assert "paused" in held["steps"][0]["sentence"]
    assert live.call("DELETE", PAUSES).status_code == 204
    over = wait(live, own, "recovered")
    assert {step["status"] for step in over["steps"]} == {"done"}
    (server,) = over["servers"]
    assert (server["name"], server["from"], server["status"]) == ("web-1", "cmp-6", "succeeded")
    assert server["to"] not in (None, "cmp-6")
    assert over["moves"] == {
        "pending": 0, "ongoing": 0, "succeeded": 1, "failed": 0, "ignored": 0
    }  # fmt: skip
    (said,) = over["reports"]
    assert (said["type"], said["status"]) == ("COMPUTE_HOST", "finished")
    assert over["timeline"][0]["sentence"].startswith("opened: ")
    assert over["timeline"][-1]["sentence"].startswith("recovered: ")
    told = live.call("GET", f"{INCIDENTS}/{own}/explanation").json["explanation"]
    headings = [part["heading"] for part in told["parts"]]
    assert headings == [
        "What was seen",
        "What was decided",
        "What was done",
        "How long it took",
        "What is left",
    ]
    text = told["text"]
    for part in (
        "a COMPUTE_HOST report (cluster_status OFFLINE, event STOPPED, host_status NORMAL)",
        "about host cmp-6 of segment north",
        "proof that it is off: cmp-6 was not fenced: its power reads off already.",
        "recovery is paused by",
        "All guards allowed the recovery:",
        f"web-1 ({server['server']}): cmp-6 -> {server['to']}, moved in",
        "In all: ",
        "It is over, recovered: cmp-6: 1 of 1 servers moved.",
        "cmp-6 is forced down, disabled and on maintenance until it comes back.",
    ):
        assert part in text, text
    keeps_schema(live, own)


def under_way(house: House, own: str) -> Claim:
    """The work of an incident about cmp-3, in the hands of a manager that is not of this house."""
    database = house.core.store.database
    now = database.now()
    held = {"owner": "ctl-9", "epoch": 1, "claim_until": now + timedelta(hours=1)}
    work = recovery_of(own, "host", "host:cmp-3", now)
    work = replace(work, status=AT_WORK, next_try_at=now + timedelta(hours=1), **held)
    with database.write() as conn:
        put(conn, (work,), now)
    return Claim(work.id, "ctl-9", 1)


def test_who_sees_that_it_is_held_sees_why_at_the_step_that_waits(build: Build) -> None:
    """The manager has not given the work back yet."""
    house = build(CONFIG)
    own = write_incident(house, status="open", sentence="cmp-3 is reported to have stopped")
    claim, store = under_way(house, own), house.core.store
    why = "recovery is paused by ann: a storm"
    store.incidents.change(own, Change(HELD, why, verdicts=[Verdict("paused", False, why)]), claim)
    held = show(house, own)
    assert (held["status"], held["sentence"], held["work"]["sentence"]) == ("held", why, why)
    first = held["steps"][0]
    assert (first["name"], first["status"], first["sentence"]) == ("guards", "under way", why)
    assert [verdict["sentence"] for verdict in held["verdicts"]] == [why]


def test_a_step_that_begins_does_not_say_why_the_one_before_it_waited(build: Build) -> None:
    house = build(CONFIG)
    own = write_incident(house, status="open", sentence="cmp-3 is reported to have stopped")
    claim, store = under_way(house, own), house.core.store
    store.incidents.change(own, Change(HELD, "recovery is paused by ann"), claim)
    yes = "all guards say yes"
    now = store.database.now()
    change = Change(RUNNING, yes, lambda one: replace(one, started_at=now, domain="rack-a"), [])
    begun = store.incidents.start(own, change, [], claim)
    assert begun is not None
    assert show(house, own)["steps"][0]["sentence"] == yes
    store.operations.step_done(claim, 0, "guards", yes, timedelta(hours=1))
    guards, fence = show(house, own)["steps"][:2]
    assert (guards["status"], guards["sentence"]) == ("done", yes)
    assert (fence["name"], fence["status"], fence["sentence"]) == ("fence", "under way", "")


def test_list_page_and_explanation_show_the_end_of_a_closed_incident(build: Build) -> None:
    """Also before the manager has written down that its work is done."""
    house = build(CONFIG)
    own = write_incident(house, status="running", sentence="0 of 1 servers moved")
    claim = under_way(house, own)
    said = "cmp-3: 1 of 1 servers moved"
    house.core.store.incidents.close(own, Change(RECOVERED, said), claim)
    over = show(house, own)
    assert (over["status"], over["sentence"], over["work"]["sentence"]) == ("recovered", said, said)
    assert over["timeline"][-1]["sentence"] == f"recovered: {said}"


def keeps_schema(house: House, own: str) -> None:
    document = house.call("GET", f"{OWN}/openapi.json").json
    for path in ("", "/{incident_id}", "/{incident_id}/explanation"):
        answer = house.call("GET", INCIDENTS + path.replace("{incident_id}", own))
        said = document["paths"][INCIDENTS + path]["get"]["responses"]["200"]
        jsonschema.validate(answer.json, said["content"]["application/json"]["schema"])


def test_every_order_is_answered_as_the_document_says(build: Build) -> None:
    house = build(CONFIG)
    document = house.call("GET", f"{OWN}/openapi.json").json
    own = write_incident(house)
    why = {"reason": "so"}
    for path, body in (
        (PAUSES, why),
        (WINDOWS, {"matcher": {"kind": "guest"}, **HOUR}),
        (APPROVALS, why),
        (f"{INCIDENTS}/{{incident_id}}/confirm-off", {**why, "despite_power_on": True}),
        (f"{INCIDENTS}/{{incident_id}}/abort", why),
        (f"{INCIDENTS}/{{incident_id}}/retry", {}),
    ):
        answer = house.call("POST", path.replace("{incident_id}", own), json=body)
        said = document["paths"][path]["post"]["responses"][str(answer.status_code)]
        jsonschema.validate(answer.json, said["content"]["application/json"]["schema"])
    for path in (PAUSES, WINDOWS):
        answer = house.call("GET", path)
        said = document["paths"][path]["get"]["responses"]["200"]
        jsonschema.validate(answer.json, said["content"]["application/json"]["schema"])
        assert list(answer.json.values()) != [[]]


def test_aborted_then_tried_again_without_asking_a_manager(live: House) -> None:
    live.call("POST", PAUSES, json={"reason": "wait", "duration_s": None})
    live.services.sim().fail_host("cmp-6")
    own = report(live, "cmp-6")
    wait_held(live, own)
    aborted = order(live, own, "abort", reason=" a drill ")
    assert aborted.status_code == 202
    assert aborted.json["incident"]["status"] == "aborted"
    assert aborted.json["incident"]["sentence"].endswith(": a drill")
    assert fault(order(live, own, "abort", reason="again"))[0] == 409
    work = show(live, own)["work"]
    assert work["status"] == "cancelled"
    told = live.call("GET", f"{INCIDENTS}/{own}/explanation").json["explanation"]["text"]
    assert f"To try again: holdfast incident retry {own}" in told
    assert "Nothing was touched." in told
    live.call("DELETE", PAUSES)
    again = order(live, own, "retry")
    assert (again.status_code, again.json["incident"]["status"]) == (202, "open")
    assert wait(live, own, "recovered")["moves"]["succeeded"] == 1
    assert fault(order(live, own, "retry")) == (
        409,
        f"incident {own} is recovered: only what failed or was aborted can be tried again; if it"
        " died again, report it again",
    )


def test_the_list_is_filtered_and_the_newest_come_first(furnished_house: House) -> None:
    house = furnished_house
    north = house.core.store.incident_queries.segment_uuid("north")
    first = write_incident(house, host="cmp-1.example", segment=north, status="failed")
    second = write_incident(
        house, host="cmp-2", segment=north, kind="guest", subject=f"server:{MISSING}"
    )
    now = house.core.store.database.now()
    third = write_incident(house, host="cmp-3", status="recovered", opened_at=now)

    def found(query: str) -> list[str]:
        answer = house.call("GET", INCIDENTS, query_string=query)
        assert answer.status_code == 200, answer.text
        return [incident["id"] for incident in answer.json["incidents"]]

    assert found("")[0] == third
    assert sorted(found("")) == sorted([first, second, third])
    assert found("limit=1") == [third]
    assert found("status=failed") == [first]
    assert found("kind=guest") == [second]
    assert found("host=cmp-1") == [first]
    assert found("host=CMP-1.example.") == [first]
    assert found("host=cmp") == []
    assert sorted(found("segment=north")) == sorted([first, second])
    assert sorted(found(f"segment={north}")) == sorted([first, second])
    assert found("segment=south") == []
    assert found("open=true") == [second]
    assert sorted(found("open=false")) == sorted([first, third])
    assert found(f"since={now:%Y-%m-%dT%H:%M:%S.%f}") == [third]
    everybody = found("")
    assert found(f"marker={third}") == everybody[1:]
    assert found(f"marker={everybody[1]}&limit=1") == everybody[2:]
    assert found(f"marker={everybody[2]}") == []
    (one,) = house.call("GET", INCIDENTS, query_string="kind=guest").json["incidents"]
    assert (one["server"], one["segment"], one["host"]) == (MISSING, "north", "cmp-2")


@pytest.mark.parametrize(
    ("query", "status", "said"),
    [
        ("open=maybe", 400, "open"),
        ("status=burning", 400, "status"),
        ("kind=rack", 400, "kind"),
        ("limit=0", 400, "limit"),
        ("limit=1001", 400, "limit"),
        ("since=yesterday", 400, "since"),
        ("colour=red", 400, "unknown field colour"),
        ("segment=nowhere", 404, "'nowhere'"),
        ("marker=nowhere", 404, "a marker is the id"),
    ],
)
def test_a_list_that_cannot_be_meant_is_refused(
    furnished_house: House, query: str, status: int, said: str
) -> None:
    code, detail = fault(furnished_house.call("GET", INCIDENTS, query_string=query))
    assert code == status
    assert said in detail


@pytest.mark.parametrize("what", ["", "/explanation", "/retry", "/abort", "/confirm-off"])
def test_an_incident_that_is_not_there_is_404(furnished_house: House, what: str) -> None:
    method = "GET" if what in ("", "/explanation") else "POST"
    body = None if method == "GET" else {"reason": "so"}
    answer = furnished_house.call(method, f"{INCIDENTS}/{MISSING}{what}", json=body)
    code, detail = fault(answer)
    assert (code, f"no incident {MISSING}" in detail) == (404, True)


@pytest.mark.parametrize("what", ["abort", "confirm-off"])
@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "Missing parameter reason"),
        ({"reason": " \t"}, "reason: required"),
        ({"reason": ""}, "reason"),
        ({"reason": 5}, "reason"),
        ({"reason": "x" * 1001}, "reason: longer than 1000"),
        ({"reason": "so", "force": True}, "unknown field force"),
    ],
)
def test_an_order_needs_a_reason(
    furnished_house: House, what: str, body: dict[str, Any], said: str
) -> None:
    code, detail = fault(furnished_house.call("POST", f"{INCIDENTS}/{MISSING}/{what}", json=body))
    assert (code, said in detail) == (400, True), detail


def test_the_confirmation_that_a_host_is_off_has_author_and_reason(build: Build) -> None:
    house = build(CONFIG)
    own = write_incident(house)
    house.services.sim().fail_host("cmp-3")
    answer = order(house, own, "confirm-off", reason="plug pulled")
    assert answer.status_code == 202
    word = show(house, own)["details"]["confirmed_off"]
    assert (word["author"], word["reason"]) == ("admin", "plug pulled")
    assert (
        "said that cmp-3 is off: plug pulled."
        in (house.call("GET", f"{INCIDENTS}/{own}/explanation").json["explanation"]["text"])
    )
    guest = write_incident(house, kind="guest", subject=f"server:{MISSING}")
    code, detail = fault(order(house, guest, "confirm-off", reason="plug pulled"))
    assert (code, "not about a host" in detail) == (409, True)
    over = write_incident(house, status="recovered", host="cmp-4")
    code, detail = fault(order(house, over, "confirm-off", reason="plug pulled"))
    assert (code, "nothing waits" in detail) == (409, True)


def test_the_confirmation_that_a_host_is_off_is_refused_while_its_fence_reads_on(
    build: Build,
) -> None:
    house = build(CONFIG)
    own = write_incident(house)
    code, detail = fault(order(house, own, "confirm-off", reason="plug pulled"))
    assert (code, "the fence of cmp-3 reads on" in detail) == (409, True), detail
    assert "--despite-power-on" in detail
    assert not show(house, own)["details"].get("confirmed_off")
    answer = order(house, own, "confirm-off", reason="its BMC is wrong", despite_power_on=True)
    assert answer.status_code == 202, answer.text
    text = house.call("GET", f"{INCIDENTS}/{own}/explanation").json["explanation"]["text"]
    assert "said that cmp-3 is off although its fence reads on: its BMC is wrong." in text
    said = [line["sentence"] for line in show(house, own)["timeline"]]
    assert "admin says that cmp-3 is off although its fence reads on: its BMC is wrong" in said


def test_the_confirmation_that_a_host_is_off_counts_if_its_fence_cannot_be_read(
    build: Build,
) -> None:
    house = build(CONFIG)
    own = write_incident(house)
    house.services.sim().change(only_calls=["fence.power"], failure_rate=1.0)
    answer = order(house, own, "confirm-off", reason="plug pulled")
    assert answer.status_code == 202, answer.text
    word = show(house, own)["details"]["confirmed_off"]
    assert (word["reads_on"], word["despite_power_on"]) == (False, False)
    odd = order(house, own, "confirm-off", reason="so", despite_power_on="perhaps")
    assert odd.status_code == 400


def test_pauses_are_of_everything_or_of_a_segment(furnished_house: House) -> None:
    house = furnished_house
    made = house.call("POST", PAUSES, json={"reason": "a storm", "segment": "north"})
    pause = made.json["pause"]
    assert (made.status_code, pause["segment"], pause["author"]) == (201, "north", "admin")
    assert pause["expires_at"] > pause["created_at"]
    again = {"reason": "worse", "segment": pause["segment_id"], "duration_s": None}
    replaced = house.call("POST", PAUSES, json=again).json["pause"]
    assert (replaced["expires_at"], replaced["reason"]) == (None, "worse")
    assert house.call("GET", PAUSES).json["pauses"] == [replaced]
    code, detail = fault(house.call("DELETE", PAUSES))
    assert (code, "not paused everywhere" in detail) == (404, True)
    assert house.call("DELETE", PAUSES, query_string="segment=north").status_code == 204
    assert house.call("GET", PAUSES).json["pauses"] == []


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({}, 400, "reason"),
        ({"reason": "  "}, 400, "reason: required"),
        ({"reason": "so", "duration_s": 0}, 400, "duration_s"),
        ({"reason": "so", "duration_s": "1h"}, 400, "duration_s"),
        ({"reason": "so", "duration_s": 10**9}, 400, "duration_s"),
        ({"reason": "so", "segment": "nowhere"}, 404, "openstack segment list"),
        ({"reason": "so", "author": "eve"}, 400, "unknown field author"),
    ],
)
def test_a_pause_that_cannot_be_meant_is_refused(
    furnished_house: House, body: dict[str, Any], status: int, said: str
) -> None:
    code, detail = fault(furnished_house.call("POST", PAUSES, json=body))
    assert (code, said in detail) == (status, True), detail


def test_a_maintenance_window_is_made_listed_and_removed(furnished_house: House) -> None:
    house = furnished_house
    matcher = {"host": "CMP-1", "segment": "north", "kind": "host"}
    made = house.call("POST", WINDOWS, json={"matcher": matcher, **HOUR})
    assert made.status_code == 201, made.text
    window = made.json["maintenance_window"]
    north = house.core.store.incident_queries.segment_uuid("north")
    assert window["matcher"] == {"host": "cmp-1", "segment": north, "kind": "host"}
    assert (window["segment"], window["author"]) == ("north", "admin")
    assert house.call("GET", WINDOWS).json["maintenance_windows"] == [window]
    path = f"{WINDOWS}/{window['id']}"
    assert house.call("DELETE", path).status_code == 204
    assert fault(house.call("DELETE", path))[0] == 404
    assert house.call("GET", WINDOWS).json["maintenance_windows"] == []


def test_a_maintenance_window_may_begin_later(furnished_house: House) -> None:
    window = {"starts_at": "2040-01-31T18:00:00Z", "expires_at": "2040-02-01T19:00:00+01:00"}
    body = {"matcher": {"server": MISSING}, "reason": "patches", **window}
    window = furnished_house.call("POST", WINDOWS, json=body).json["maintenance_window"]
    assert window["starts_at"] == "2040-01-31T18:00:00+00:00"
    assert window["expires_at"] == "2040-02-01T18:00:00+00:00"
    furnished_house.call("DELETE", f"{WINDOWS}/{window['id']}")


@pytest.mark.parametrize(
    ("matcher", "more", "status", "said"),
    [
        ({}, {}, 400, "matcher"),
        ({"rack": "rack-a"}, {}, 400, "unknown field rack"),
        ({"kind": "rack"}, {}, 400, "matcher.kind"),
        ({"host": "cmp-99"}, {}, 404, "cmp-99 is in no segment"),
        ({"segment": "nowhere"}, {}, 404, "'nowhere'"),
        ({"server": "web-1"}, {}, 400, "no id of a server"),
        ({"server": MISSING, "kind": "host"}, {}, 400, "kind guest"),
        ({"kind": "host"}, {"reason": " "}, 400, "reason: required"),
        ({"kind": "host"}, {"expires_at": "2040-01-01T00:00:00Z"}, 400, "either"),
        ({"kind": "host"}, {"duration_s": None}, 400, "duration_s"),
        ({"kind": "host"}, {"duration_s": 31 * 86400}, 400, "duration_s"),
        ({"kind": "host"}, {"starts_at": "soon"}, 400, "starts_at"),
        ({"kind": "host"}, {"starts_at": "2020-01-01T00:00:00Z"}, 400, "over already"),
    ],
)
def test_a_maintenance_window_that_would_not_do_what_is_meant_is_refused(
    furnished_house: House, matcher: dict[str, str], more: dict[str, Any], status: int, said: str
) -> None:
    answer = furnished_house.call("POST", WINDOWS, json={"matcher": matcher, **HOUR, **more})
    code, detail = fault(answer)
    assert (code, said in detail) == (status, True), detail


@pytest.mark.parametrize(
    ("window", "said"),
    [
        ({}, "say when it ends"),
        ({"expires_at": "2020-01-01T00:00:00Z"}, "before it starts"),
        (
            {"starts_at": "2040-01-01T00:00:00Z", "expires_at": "2040-02-01T00:00:00Z"},
            "30 days at most",
        ),
        ({"expires_at": "never"}, "expires_at"),
    ],
)
def test_a_maintenance_window_ends_and_does_so_within_thirty_days(
    furnished_house: House, window: dict[str, str], said: str
) -> None:
    body = {"matcher": {"kind": "host"}, "reason": "so", **window}
    code, detail = fault(furnished_house.call("POST", WINDOWS, json=body))
    assert (code, said in detail) == (400, True), detail


def test_an_approval_says_where_until_when_and_how_many_waited(furnished_house: House) -> None:
    made = furnished_house.call("POST", APPROVALS, json={"reason": "it is so", "domain": "rack-a"})
    approval = made.json["approval"]
    assert made.status_code == 202
    assert (approval["domain"], approval["author"], approval["held"]) == ("rack-a", "admin", 0)
    assert furnished_house.core.store.ledger.approved("repair") == {"rack-a"}
    everywhere = furnished_house.call("POST", APPROVALS, json={"reason": "it is so"})
    assert everywhere.json["approval"]["domain"] is None
    wrong = {"reason": "so", "domain": "rack-z"}
    code, detail = fault(furnished_house.call("POST", APPROVALS, json=wrong))
    assert (code, "az-1, rack-a" in detail) == (404, True), detail


def test_a_member_may_neither_read_nor_act_on_incidents(build: Build, tmp_path: Path) -> None:
    house = build(basic_config(tmp_path))
    own = write_incident(house)
    for method, path, body in (
        ("GET", INCIDENTS, None),
        ("GET", f"{INCIDENTS}/{own}", None),
        ("GET", f"{INCIDENTS}/{own}/explanation", None),
        ("POST", f"{INCIDENTS}/{own}/abort", {"reason": "so"}),
        ("POST", f"{INCIDENTS}/{own}/retry", {}),
        ("POST", f"{INCIDENTS}/{own}/confirm-off", {"reason": "so"}),
        ("POST", APPROVALS, {"reason": "so"}),
        ("POST", PAUSES, {"reason": "so"}),
        ("DELETE", PAUSES, None),
        ("POST", WINDOWS, {"matcher": {"kind": "host"}, **HOUR}),
        ("DELETE", f"{WINDOWS}/{MISSING}", None),
    ):
        assert house.call(method, path, "member", json=body).status_code == 403, (method, path)
    assert show_as(house, own, "admin")["status"] == "held"


def show_as(house: House, own: str, user: str) -> dict[str, Any]:
    found: dict[str, Any] = house.call("GET", f"{INCIDENTS}/{own}", user).json["incident"]
    return found
