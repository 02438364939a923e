# SPDX-License-Identifier: Apache-2.0
"""Alarm rules through the API: what is wrong is said line by line, and hosts learn what holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.alarms import rules_file
from holdfast.api import tokens
from holdfast.model.observation import AGENT_HEADER
from tests.api.conftest import Build
from tests.api.house import OWN, House, basic_config
from tests.api.rules import BUSY, beat_body

RULES = f"{OWN}/alarm-rules"
SECRET = b"s" * 40


def put(house: House, name: str, text: str, **more: Any) -> Any:
    answer = house.call("PUT", f"{RULES}/{name}", json={"text": text, **more})
    assert answer.status_code == 200, answer.text
    return answer.json["alarm_rules"]


def held(house: House, host: str) -> Any:
    answer = house.call("GET", f"{OWN}/agents/{host}/alarm-rules")
    assert answer.status_code == 200, answer.text
    return answer.json["alarm_rules"]


def test_a_bad_document_is_refused_with_every_problem_and_changes_nothing(house: House) -> None:
    put(house, "base", BUSY)
    before = house.dump()
    lines = [f"- {{id: r{n}, on: guest, field: util_ratio, when: 'about {n}'}}" for n in range(30)]
    bad = "\n".join(["rules:", *lines])
    answer = house.call("PUT", f"{RULES}/base", json={"text": bad})
    assert answer.status_code == 400
    (error,) = answer.json["errors"]
    assert error["code"] == "holdfast.alarmrules.invalid"
    assert [problem["line"] for problem in error["details"]["problems"]] == list(range(2, 32))
    assert house.dump() == before


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"text": BUSY, "scope": "everywhere"}, "all, host:NAME, group:NAME or project:ID"),
        ({"text": BUSY, "scope": "host:"}, "scope"),
        ({"text": BUSY, "scope": "project:*"}, "scope"),
        ({"text": "rules: [{id: h, on: host, field: load1, when: '> 9'}]", "scope": "project:p"},
         "a project has no hosts"),
        ({"text": BUSY.replace("field", "project: q, field"), "scope": "project:p"},
         "leave `project` out"),
        ({"text": "x" * 70_000}, "text"),
        ({"scope": "all"}, "Missing parameter text"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused(shared: House, body: Any, why: str) -> None:
    answer = shared.call("PUT", f"{RULES}/base", json=body)
    assert answer.status_code == 400, answer.text
    assert why in answer.text
    assert shared.call("GET", RULES).json == {"alarm_rules": []}


def test_what_no_agent_could_take_is_a_400_that_says_how_large_it_is(house: House) -> None:
    head = "on: guest, field: util_ratio, severity: critical"
    lines = [f"- {{id: r{n:03}, {head}, when: '> {n}'}}" for n in range(800)]
    before = house.dump()
    answer = house.call("PUT", f"{RULES}/base", json={"text": "\n".join(["rules:", *lines])})
    assert answer.status_code == 400
    (error,) = answer.json["errors"]
    assert "rules base on one host come to" in error["detail"]
    assert "take rules out" in error["detail"]
    assert house.dump() == before


def test_a_document_has_versions_and_goes_back_to_any(house: House) -> None:
    assert put(house, "base", BUSY, replaces=0)["version"] == 1
    assert put(house, "base", BUSY.replace("95", "90"))["version"] == 2
    late = house.call("PUT", f"{RULES}/base", json={"text": "rules: []", "replaces": 1})
    assert late.status_code == 409
    back = house.call("POST", f"{RULES}/base/rollback", json={})
    assert back.json["alarm_rules"]["text"] == BUSY
    (listed,) = house.call("GET", RULES).json["alarm_rules"]
    assert (listed["version"], listed["rules"], listed["scope"]) == (3, ["busy"], "all")
    assert house.call("DELETE", f"{RULES}/base").status_code == 204
    assert house.call("GET", f"{RULES}/base").status_code == 404
    versions = house.call("GET", f"{RULES}/base/history").json["versions"]
    assert [(version["version"], version["removed"]) for version in versions] == [
        (4, True), (3, False), (2, False), (1, False),
    ]  # fmt: skip
    assert house.call("GET", f"{RULES}/base", query_string="version=2").status_code == 200


def test_the_narrower_rule_counts_and_a_project_adds_its_own(build: Build) -> None:
    house = build("[auth]\nagent_groups = gpu: cmp-1\n")
    assert held(house, "cmp-1")["version"] == "none"
    put(house, "base", BUSY)
    put(house, "gpus", BUSY.replace("95", "80"), scope="group:gpu")
    put(house, "one", BUSY.replace("95", "50"), scope="host:cmp-2")
    put(house, "shop", BUSY.replace("95", "70"), scope="project:p-1")
    levels = {}
    for host in ("cmp-1", "cmp-2", "cmp-3"):
        found = rules_file.parse(held(house, host)["text"], host)
        levels[host] = {rule.id: rule.conditions[0].level for rule in found.rules}
        assert found.by_id["shop.busy"].selector.projects == ("p-1",)
    assert levels == {
        "cmp-1": {"busy": 0.8, "shop.busy": 0.7},
        "cmp-2": {"busy": 0.5, "shop.busy": 0.7},
        "cmp-3": {"busy": 0.95, "shop.busy": 0.7},
    }
    assert held(house, "cmp-2")["origins"] == {"busy": "one", "shop.busy": "shop"}


def test_an_agent_does_not_get_the_rules_of_a_group_that_it_names_itself(
    build: Build, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_bytes(SECRET)
    groups = "agent_groups = gpu: cmp-1, x-*\nagent_groups = ssd: cmp-?\n"
    secret = f"agent_secret_file = {tmp_path / 'secret'}\n"
    house = build(basic_config(tmp_path) + secret + groups)
    rules = {"gpus": "group:gpu", "ssds": "group:ssd", "vault": "group:vault"}
    for name, scope in rules.items():
        body = {"text": BUSY.replace("busy", name), "scope": scope}
        assert house.call("PUT", f"{RULES}/{name}", "admin", json=body).status_code == 200
    found, versions = {}, {}
    for host in ("cmp-1", "cmp-2", "cmp-33"):
        shown = {AGENT_HEADER: tokens.agent_token(host, SECRET)}
        beat = beat_body(groups=["vault", "gpu"])
        said = house.call("PUT", f"{OWN}/agents/{host}", headers=shown, json=beat)
        answer = house.call("GET", f"{OWN}/agents/{host}/alarm-rules", headers=shown)
        found[host] = sorted(answer.json["alarm_rules"]["origins"])
        versions[host] = said.json["agent"]["rules"]["version"]
        assert versions[host] == answer.json["alarm_rules"]["version"]
    assert found == {"cmp-1": ["gpus", "ssds"], "cmp-2": ["ssds"], "cmp-33": []}
    listed = house.call("GET", f"{OWN}/agents", "admin").json["agents"]
    assert [one["groups"] for one in listed] == [["gpu", "ssd"], ["ssd"], []]
    assert {one["host"]: one["rules"]["wanted"] for one in listed} == versions


def test_groups_of_agents_that_cannot_be_read_are_refused_at_the_start(build: Build) -> None:
    with pytest.raises(ValueError, match="cmp-1"):
        build("[auth]\nagent_groups = cmp-1\n").conf.auth.agent_groups  # noqa: B018


def test_a_field_that_no_agent_measures_is_refused_with_what_may_be_meant(house: House) -> None:
    text = "rules:\n  - {id: r1, on: guest, field: util_ration, when: '> 1'}"
    answer = house.call("PUT", f"{RULES}/base", json={"text": text})
    assert answer.status_code == 400
    (problem,) = answer.json["errors"][0]["details"]["problems"]
    assert problem["line"] == 2 and "util_ratio" in problem["text"]


def test_conditions_of_the_same_name_in_two_documents_stay_apart(house: House) -> None:
    text = """
conditions:
  busy: {{field: util_ratio, when: '> {level}'}}
  "all: of it": {{field: steal_ratio, when: '> 1'}}
rules:
  - {{id: {id}, on: guest, all: [busy, "all: of it"], summary: "naïve 😀 # {id}"}}
  - {{id: lone-{id}, on: guest, any: busy}}
"""
    put(house, "a", text.format(level=0.5, id="r1"))
    put(house, "b", text.format(level=0.9, id="r2"), scope="host:cmp-1")
    found = rules_file.parse(held(house, "cmp-1")["text"], "x").by_id
    assert found["r1"].conditions[0].level == 0.5
    assert found["r2"].conditions[0].level == found["lone-r2"].conditions[0].level == 0.9
    assert found["r1"].summary == "naïve 😀 # r1"


def test_an_agent_learns_of_a_new_version_by_its_heartbeat_and_says_what_it_could_not_take(
    house: House,
) -> None:
    def beat(**rules: str) -> str:
        answer = house.call("PUT", f"{OWN}/agents/CMP-1", json=beat_body(rules=rules, firing=2))
        assert answer.status_code == 200, answer.text
        version: str = answer.json["agent"]["rules"]["version"]
        return version

    assert beat() == "none"
    put(house, "base", BUSY)
    new = beat()
    assert new == held(house, "cmp-1")["version"] != "none"
    beat(version="4-aa", central="none", error="line 2: no such thing")
    (agent,) = house.call("GET", f"{OWN}/agents").json["agents"]
    assert (agent["host"], agent["fresh"], agent["firing"]) == ("cmp-1", True, 2)
    assert agent["rules"] == {
        "version": "4-aa", "central": "none", "error": "line 2: no such thing", "wanted": new,
    }  # fmt: skip
    put(house, "far", BUSY, scope="host:cmp-2")
    assert beat() == new


def test_an_agent_reads_the_rules_of_its_own_host_only(build: Build, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(SECRET)
    house = build(basic_config(tmp_path) + f"agent_secret_file = {tmp_path / 'secret'}\n")
    shown = {AGENT_HEADER: tokens.agent_token("cmp-1", SECRET)}
    for method, body in (("GET", None), ("PUT", beat_body())):
        tail = "/alarm-rules" if method == "GET" else ""
        for host, status in (("cmp-1", 200), ("cmp-2", 403)):
            path = f"{OWN}/agents/{host}{tail}"
            answer = house.call(method, path, headers=shown, json=body)
            assert answer.status_code == status, answer.text
    assert house.call("GET", f"{OWN}/agents", headers=shown).status_code == 403
    assert house.call("GET", RULES, headers=shown).status_code == 403
