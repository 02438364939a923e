# SPDX-License-Identifier: Apache-2.0
"""Who may do what: personas against the whole route table, and what operators change about it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from falcon import testing

from holdfast import console
from holdfast.api.policies import RULES
from holdfast.api.request import Route
from holdfast.api.routes import table
from holdfast.model.errors import Unavailable
from tests.api.cases import INCIDENT, WINDOW, furnish_case
from tests.api.conftest import Build
from tests.api.ha import furnish, report_body, segment_body
from tests.api.house import (
    ADDRESSES,
    HOSTS,
    LATER,
    LEASES,
    NETWORK,
    OWN,
    PEOPLE,
    House,
    basic_config,
    copy,
    host_reservation,
    lease_body,
    when,
)
from tests.api.rules import beat_body, furnish_alarm, furnish_rules
from tests.api.views import furnish_view, view_body

ROUTES = table(None)  # type: ignore[arg-type]  # only what the table says is looked at
GUARDED = [route for route in ROUTES if route.rule is not None]
#: Open to everybody, and meant so: they tell nothing of any project.
OPEN = {
    "/", "/healthcheck", "/livez", "/readyz", "/metrics", "/reservation", "/reservation/versions",
    "/reservation/v1", "/instance-ha", "/instance-ha/v1", "/instance-ha/{other}",
    "/instance-ha/healthcheck", "/holdfast", "/holdfast/v1",
    "/holdfast/v1/errors/{code}", "/holdfast/v1/openapi.json",
    "/reservation/v1/openapi", "/instance-ha/v1/openapi",
}  # fmt: skip
READERS = {"reader", "member", "manager", "other", "admin"}
MEMBERS = READERS - {"reader"}
ADMINS = {"admin"}
SERVICES = {"service", "admin"}
MAY = {
    "reservation:lease:list": READERS,
    "reservation:lease:show": READERS,
    "reservation:lease:create": MEMBERS,
    "reservation:lease:update": MEMBERS,
    "reservation:lease:delete": MEMBERS,
    "reservation:host:list": ADMINS,
    "reservation:host:show": ADMINS,
    "reservation:host:create": ADMINS,
    "reservation:host:update": ADMINS,
    "reservation:host:delete": ADMINS,
    "reservation:host:allocations": ADMINS,
    "reservation:property:list": READERS,
    "reservation:property:update": ADMINS,
    "reservation:floatingip:list": READERS,
    "reservation:floatingip:show": READERS,
    "reservation:floatingip:create": ADMINS,
    "reservation:floatingip:delete": ADMINS,
    "instance_ha:extension:list": ADMINS,
    "instance_ha:extension:show": ADMINS,
    "instance_ha:segment:list": ADMINS,
    "instance_ha:segment:show": ADMINS,
    "instance_ha:segment:create": ADMINS,
    "instance_ha:segment:update": ADMINS,
    "instance_ha:segment:delete": ADMINS,
    "instance_ha:host:list": ADMINS,
    "instance_ha:host:show": ADMINS,
    "instance_ha:host:create": ADMINS,
    "instance_ha:host:update": ADMINS,
    "instance_ha:host:delete": ADMINS,
    "instance_ha:notification:list": ADMINS,
    "instance_ha:notification:show": ADMINS,
    "instance_ha:notification:create": SERVICES,
    "instance_ha:vmove:list": ADMINS,
    "instance_ha:vmove:show": ADMINS,
    "holdfast:availability:show": READERS,
    "holdfast:observation:create": {*SERVICES, "agent", "monitor"},
    "holdfast:monitor:report": {*SERVICES, "monitor"},
    "holdfast:monitor:register": ADMINS,
    "holdfast:monitor:unregister": ADMINS,
    "holdfast:observation:list": SERVICES,
    "holdfast:reservation:replace": ADMINS,
    "holdfast:lease:acknowledge": MEMBERS,
    "holdfast:repair:plan": ADMINS,
    "holdfast:repair:run": ADMINS,
    "holdfast:host:list": ADMINS,
    "holdfast:host:expected": SERVICES,
    "holdfast:host:samples": ADMINS,
    "holdfast:monitor:list": ADMINS,
    "holdfast:agent:list": ADMINS,
    "holdfast:agent:report": {*SERVICES, "agent"},
    "holdfast:agent:rules": {*SERVICES, "agent"},
    "holdfast:agent:samples": {*SERVICES, "agent"},
    "holdfast:alarm:list": READERS,
    "holdfast:alarm:show": READERS,
    "holdfast:alarm:answer": ADMINS,
    "holdfast:alarm_rules:list": ADMINS,
    "holdfast:alarm_rules:show": ADMINS,
    "holdfast:alarm_rules:preview": ADMINS,
    "holdfast:alarm_rules:update": ADMINS,
    "holdfast:failover:list": ADMINS,
    "holdfast:failover:update": ADMINS,
    "holdfast:incident:list": ADMINS,
    "holdfast:incident:show": ADMINS,
    "holdfast:incident:retry": ADMINS,
    "holdfast:incident:abort": ADMINS,
    "holdfast:incident:confirm-off": ADMINS,
    "holdfast:incident:approve": ADMINS,
    "holdfast:pause:list": ADMINS,
    "holdfast:pause:create": ADMINS,
    "holdfast:pause:delete": ADMINS,
    "holdfast:maintenance:list": ADMINS,
    "holdfast:maintenance:create": ADMINS,
    "holdfast:maintenance:delete": ADMINS,
    "holdfast:operation:list": ADMINS,
    "holdfast:audit:list": READERS,
    "holdfast:sim:show": ADMINS,
    "holdfast:sim:change": ADMINS,
}
SEEN = {
    "observer": "m1",
    "subject": "cmp-1",
    "kind": "host",
    "state": "down",
    "since": "2026-11-15T00:00:00Z",
}
SEGMENTS = "/instance-ha/v1/segments"
MEMBER = {"name": "cmp-4", "type": "KVM", "control_attributes": "SSH"}
BODIES: dict[tuple[str, str], Any] = {
    ("POST", SEGMENTS): {"segment": segment_body("another")},
    ("PUT", f"{SEGMENTS}/{{segment_id}}"): {"segment": {"name": "renamed"}},
    ("POST", f"{SEGMENTS}/{{segment_id}}/hosts"): {"host": MEMBER},
    ("PUT", f"{SEGMENTS}/{{segment_id}}/hosts/{{host_id}}"): {"host": {"reserved": True}},
    ("POST", "/instance-ha/v1/notifications"): {"notification": report_body("cmp-3")},
    ("POST", LEASES): lease_body(),
    ("PUT", f"{LEASES}/{{lease_id}}"): {"name": "renamed"},
    ("POST", HOSTS): {"name": "cmp-5"},
    ("PUT", f"{HOSTS}/{{host_id}}"): {"colour": "red"},
    ("PATCH", f"{HOSTS}/properties/{{name}}"): {"private": True},
    ("POST", ADDRESSES): {"floating_network_id": NETWORK, "floating_ip_address": "203.0.113.8"},
    ("POST", f"{OWN}/observations"): SEEN,
    ("PUT", f"{OWN}/monitors/{{observer}}"): view_body(),
    ("POST", f"{OWN}/monitors"): {"observer": "ctl-9"},
    ("PUT", f"{OWN}/agents/{{host}}"): beat_body(),
    ("PUT", f"{OWN}/agents/{{host}}/samples"): {"begin": 1, "points": 0, "lines": []},
    ("POST", f"{OWN}/hosts/{{host}}/samples"): {},
    ("POST", f"{OWN}/alarms/{{alarm_id}}/mute"): {"duration_s": 60},
    ("PUT", f"{OWN}/alarm-rules/{{rules_name}}"): {"text": "rules: []", "scope": "all"},
    ("POST", f"{OWN}/alarm-rules/{{rules_name}}/rollback"): {},
    ("POST", f"{OWN}/alarm-rules-preview"): {"text": "rules: []", "hosts": ["cmp-1"]},
    ("PUT", f"{OWN}/failover/{{segment_id}}"): {"kept": 1},
    ("PUT", f"{OWN}/sim/settings"): {"latency_s": 0},
    ("POST", f"{OWN}/incidents/{{incident_id}}/retry"): {},
    ("POST", f"{OWN}/incidents/{{incident_id}}/abort"): {"reason": "a drill"},
    ("POST", f"{OWN}/incidents/{{incident_id}}/confirm-off"): {
        "reason": "plug pulled",
        "despite_power_on": True,
    },
    ("POST", f"{OWN}/approvals"): {"reason": "it is so"},
    ("POST", f"{OWN}/pauses"): {"reason": "a storm"},
    ("POST", f"{OWN}/maintenance-windows"): {
        "matcher": {"kind": "guest"},
        "reason": "patches",
        "duration_s": 60,
    },
}
QUERIES = {
    f"{OWN}/availability": {
        "reservation": '{"resource_type": "physical:host", "min": 1, "max": 1}',
        "duration_s": "3600",
    }
}
NAMES = {"host_id": "2", "ref": "web-1", "code": "holdfast.internal", "alias": "segments"}
NAMES |= {"segment_id": "1", "notification_id": "1", "vmove_id": "1"}
NAMES |= {"incident_id": INCIDENT, "window_id": WINDOW, "observer": "ctl-1", "host": "cmp-1"}
NAMES["rules_name"] = "base"


def test_every_route_has_a_rule_that_exists_or_is_open_on_purpose() -> None:
    known = {rule.name for rule in RULES}
    for route in ROUTES:
        if route.rule is None:
            assert route.path in OPEN, f"{route.method} {route.path} has no rule"
            assert route.method == "GET"
        else:
            assert route.path not in OPEN
            assert route.rule in known, f"{route.rule} is not defined"
    assert (
        known - {"context_is_admin", "console:look"}
        == {route.rule for route in GUARDED}
        == set(MAY)
    )


def test_rules_document_the_routes_they_guard() -> None:
    said = {
        (operation["method"], operation["path"], rule.name)
        for rule in RULES
        for operation in getattr(rule, "operations", ())
    }
    assert said == {(route.method, route.path, route.rule) for route in GUARDED}


def test_every_rule_is_for_tokens_of_a_project() -> None:
    documented = [rule for rule in RULES if rule.name != "context_is_admin"]
    assert {tuple(rule.scope_types or ()) for rule in documented} == {("project",)}


def address(house: House, route: Route, lease_id: str) -> str:
    names = {
        **NAMES,
        "lease_id": lease_id,
        "operation_id": house.core.store.operations.list_all(subject=lease_id)[0].id,
        "reservation_id": house.core.store.ledger.lease(lease_id).reservations[0].id,
        "floatingip_id": house.core.store.ledger.floatingips()[0].id,
        "name": "gpu" if "properties" in route.path else "cmp-6",
    }
    return re.sub(r"{(\w+)}", lambda found: names.get(found[1], found[0]), route.path)


def spelt(route: Route) -> str:
    return f"{route.method} {route.path}"


def judge(house: House, route: Route, path: str, **asked: Any) -> None:
    """Who may not is refused and changes nothing; who may is answered as the table says."""
    before = house.dump()
    refused = set(PEOPLE) - MAY[str(route.rule)]
    for user in sorted(refused):
        answer = house.call(route.method, path, user, **asked)
        assert answer.status_code == 403, (user, answer.text)
    assert house.call(route.method, path, **asked).status_code == 401
    if "{lease_id}" in route.path and "other" not in refused:
        assert house.call(route.method, path, "other", **asked).status_code == 404
    assert house.dump() == before
    # those who may: weakest first, writes once each
    allowed = [u for u in ("reader", "member", "service", "admin") if u in MAY[str(route.rule)]]
    for user in allowed[: 1 if route.method in ("POST", "DELETE") else None]:
        answer = house.call(route.method, path, user, **asked)
        assert answer.status_code == route.status, (user, answer.text)


@pytest.fixture(scope="module")
def full(
    furnished: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[House, str, str]]:
    """A house with one of everything to look at; a lease and an alarm of it."""
    folder = tmp_path_factory.mktemp("full")
    with House(copy(furnished, folder), basic_config(folder)) as house:
        lease_id = house.lease("member")["id"]
        furnish(house)
        furnish_case(house, "")
        furnish_view(house)
        furnish_rules(house)
        yield house, lease_id, furnish_alarm(house)


@pytest.mark.parametrize("route", [one for one in GUARDED if one.method == "GET"], ids=spelt)
def test_each_persona_may_see_what_its_roles_allow_and_nothing_else(
    full: tuple[House, str, str], route: Route
) -> None:
    house, lease_id, alarm = full
    path = address(house, route, lease_id).replace("{alarm_id}", alarm)
    judge(house, route, path, params=QUERIES.get(route.path))


@pytest.mark.parametrize("route", [one for one in GUARDED if one.method != "GET"], ids=spelt)
def test_each_persona_may_do_what_its_roles_allow_and_nothing_else(
    guarded: House, route: Route
) -> None:
    lease_id = guarded.lease("member")["id"]
    path, body = address(guarded, route, lease_id), BODIES.get((route.method, route.path))
    if route.path.endswith("/replace-host"):
        body = {"host": guarded.core.store.ledger.lease(lease_id).reservations[0].hosts()[0]}
    if route.path.startswith("/instance-ha/") or "{segment_id}" in route.path:
        furnish(guarded)
    if str(route.rule).startswith(("holdfast:incident", "holdfast:pause", "holdfast:maintenance")):
        furnish_case(guarded, path)
    if "{rules_name}" in route.path:
        furnish_rules(guarded)
    if route.rule == "holdfast:monitor:unregister":
        furnish_view(guarded)
    if "{alarm_id}" in route.path:
        path = path.replace("{alarm_id}", furnish_alarm(guarded))
    judge(guarded, route, path, json=body, params=QUERIES.get(route.path))


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_the_answer_for_another_projects_lease_equals_that_for_a_missing_lease(
    guarded: House, method: str
) -> None:
    lease_id, missing = guarded.lease("member")["id"], "00000000-0000-0000-0000-000000000000"
    body = {"name": "mine"} if method == "PUT" else None
    before = guarded.dump()
    foreign = guarded.call(method, f"{LEASES}/{lease_id}", "other", json=body)
    nothing = guarded.call(method, f"{LEASES}/{missing}", "other", json=body)
    assert foreign.status_code == nothing.status_code == 404
    assert foreign.text.replace(lease_id, "ID") == nothing.text.replace(missing, "ID")
    changing = {"x-openstack-request-id", "content-length"}
    assert foreign.headers.keys() == nothing.headers.keys()
    for name in foreign.headers.keys() - changing:
        assert foreign.headers[name] == nothing.headers[name]
    assert guarded.dump() == before


def test_an_admin_sees_and_changes_the_leases_of_every_project(guarded: House) -> None:
    lease_id = guarded.lease("member")["id"]
    assert guarded.call("GET", f"{LEASES}/{lease_id}", "admin").status_code == 200
    renamed = guarded.call("PUT", f"{LEASES}/{lease_id}", "admin", json={"name": "by admin"})
    assert renamed.json["lease"]["project_id"] == "blue"
    assert guarded.call("DELETE", f"{LEASES}/{lease_id}", "admin").status_code == 204


def test_private_properties_are_for_admins(guarded: House) -> None:
    path = f"{HOSTS}/properties"
    assert guarded.call("PATCH", f"{path}/gpu", "admin", json={"private": True}).status_code == 200
    assert guarded.call("GET", path, "reader").json == {"resource_properties": []}
    assert guarded.call("GET", path, "reader", query_string="all=True").status_code == 403
    assert guarded.call("GET", path, "admin", query_string="all=True").json != {
        "resource_properties": []
    }


SLOTS = {"vcpus": 1, "memory_mb": 64, "disk_gb": 1, "amount": 1, "affinity": None}
#: Requests that would tell a private value, if its conditions were tested on it.
PROBES: dict[str, dict[str, Any]] = {
    "equal": {"resource_properties": '["==", "$gpu", "a100"]'},
    "in": {"resource_properties": '["in", "$gpu", "a100", "h100"]'},
    "not": {"min": 4, "max": 4, "resource_properties": '["not", ["==", "$gpu", "a100"]]'},
    "or": {
        **{"min": 4, "max": 4},
        "hypervisor_properties": '["or", [">", "$vcpus", "9999"], ["<", "$gpu", "b"]]',
    },
    "capability": {"capabilities": {"gpu": "a100"}},
    "path": {"capabilities": {"capabilities:gpu:model": "a100"}},
    "below": {"resource_properties": '["not", ["==", "$gpu:model", "a100"]]'},
    "slots": {**SLOTS, "resource_type": "virtual:instance", "capabilities": {"gpu": "a100"}},
}


def _renamed(value: Any) -> Any:
    return json.loads(json.dumps(value).replace("gpu", "gpv"))


def _told(answer: testing.Result) -> tuple[int, str]:
    """What an answer says, but for the ids and times that differ between any two."""
    text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID", answer.text)
    text = re.sub(r'("(?:created|updated)_at": )"[^"]+"', r'\1"THEN"', text)
    return answer.status_code, text.replace("gpv", "gpu")


def _probe(
    house: House, probe: Mapping[str, Any], user: str, dates: Mapping[str, str]
) -> list[testing.Result]:
    """The answers of availability, dry run, POST and PUT to a request with this condition."""
    slots = "resource_type" in probe
    plain = {**SLOTS, "resource_type": "virtual:instance"} if slots else host_reservation()
    asked = plain | probe
    windows = dates, {"from": dates["start_date"], "duration_s": 3600}
    queries = [{"reservation": json.dumps(asked), **window} for window in windows]
    said = [house.call("GET", f"{OWN}/availability", user, params=query) for query in queries]
    for dry_run in (True, False):
        body = lease_body(reservations=[asked], dry_run=dry_run, **dates)
        said.append(house.call("POST", LEASES, user, json=body, headers=LATER))
    if said[-1].status_code == 201:
        house.call("DELETE", f"{LEASES}/{said[-1].json['lease']['id']}", user)
    made = house.lease(user, reservations=[plain], **dates)
    change = {"reservations": [{"id": made["reservations"][0]["id"], **probe}], "dry_run": True}
    said.append(house.call("PUT", f"{LEASES}/{made['id']}", user, json=change, headers=LATER))
    house.call("DELETE", f"{LEASES}/{made['id']}", user)
    return said


@pytest.mark.parametrize("name", PROBES)
def test_the_answer_for_a_private_property_equals_that_for_an_unknown_one(
    guarded: House, name: str
) -> None:
    probe = PROBES[name]
    if name in ("path", "below"):
        value = {"gpu": '{"model": "a100"}'}
        assert guarded.call("PUT", f"{HOSTS}/1", "admin", json=value).status_code == 200
    private = guarded.call("PATCH", f"{HOSTS}/properties/gpu", "admin", json={"private": True})
    assert private.status_code == 200
    dates = {"start_date": when(days=5), "end_date": when(days=6)}
    found = _probe(guarded, probe, "member", dates)
    unknown = _probe(guarded, _renamed(probe), "member", dates)
    assert [_told(answer) for answer in found] == [_told(answer) for answer in unknown]
    assert "masked" not in "".join(answer.text for answer in found)
    admins = _probe(guarded, probe, "admin", dates)
    assert [_told(answer) for answer in admins] != [_told(answer) for answer in found]


def policy_file(folder: Path, text: str) -> str:
    (folder / "policy.yaml").write_text(text)
    return f"[oslo_policy]\npolicy_file = {folder / 'policy.yaml'}\n"


def test_a_policy_file_overrides_the_defaults_and_is_read_again_when_it_changes(
    build: Build, tmp_path: Path
) -> None:
    house = build(policy_file(tmp_path, '"reservation:lease:list": "!"\n'))
    answer = house.call("GET", LEASES)
    assert answer.status_code == 403
    assert "Policy doesn't allow reservation:lease:list" in answer.json["error_message"]
    assert house.call("GET", HOSTS).status_code == 200
    policy_file(tmp_path, '"reservation:lease:list": "@"\n"reservation:host:list": "!"\n')
    house.clock.ahead_s += 1
    assert house.call("GET", LEASES).status_code == 200
    assert house.call("GET", HOSTS).status_code == 403


def test_a_policy_file_that_breaks_later_keeps_the_old_rules(
    build: Build, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    house = build(policy_file(tmp_path, '"reservation:lease:list": "!"\n'))
    policy_file(tmp_path, "{{{")
    for _ in range(2):
        house.clock.ahead_s += 1
        assert house.call("GET", LEASES).status_code == 403
        assert house.call("GET", HOSTS).status_code == 200
    assert "the old rules stay" in caplog.text


@pytest.mark.parametrize("text", ["{", "- a\n", '"reservation:lease:list": 5\n'])
def test_a_policy_file_that_is_broken_at_the_start_is_refused(
    build: Build, tmp_path: Path, text: str
) -> None:
    with pytest.raises(Unavailable, match="policy_file cannot be used"):
        build(policy_file(tmp_path, text))


@pytest.mark.parametrize("name", ["blazar:leases:post", "os_masakari_api:segments"])
def test_a_policy_file_with_rules_of_blazar_or_masakari_is_refused(
    build: Build, tmp_path: Path, name: str
) -> None:
    with pytest.raises(Unavailable, match=f"{name}: Holdfast has no such rule"):
        build(policy_file(tmp_path, f'"admin_or_owner": "@"\n"{name}": "!"\n'))


def test_every_page_has_a_rule_that_exists_or_is_open_on_purpose() -> None:
    known = {rule.name for rule in RULES}
    doors = ("/console/login", "/console/logout", "/console/theme", "/console/static/{name}")
    for route in console.ROUTES:
        assert route.page
        assert route.method in ("GET", "POST")
        if route.rule is None:
            assert route.path in doors, f"{route.path} has no rule"
        else:
            assert route.rule in known, f"{route.rule} is not defined"
