# SPDX-License-Identifier: Apache-2.0
"""/holdfast/v1/monitors, /matrix and /hosts/health: what monitors say they see, and what people are
shown of it. Rows only: no manager is asked."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import bcrypt
import jsonschema
import pytest

from holdfast.api import tokens
from holdfast.hostmonitor import matrix
from holdfast.model.observation import AGENT_HEADER
from tests.api.conftest import Build
from tests.api.ha import add_host, make_segment
from tests.api.house import OWN, SECRET, House, basic_config
from tests.api.views import BLIND, NETWORKS, NO_STORAGE, UP, registered, stamp
from tests.api.views import view_body as body
from tests.processes import eventually

MONITORS, MATRIX, HEALTH = f"{OWN}/monitors", f"{OWN}/matrix", f"{OWN}/hosts/health"


def put(house: House, observer: str, sent: dict[str, Any], code: int = 204) -> Any:
    mine = registered(house, observer)
    answer = house.call("PUT", f"{MONITORS}/{observer}", json=sent, headers=mine)
    assert answer.status_code == code, answer.text
    return answer


def get(house: House, path: str, query: str = "") -> Any:
    """The answer, which is as the document says."""
    answer = house.call("GET", path, query_string=query)
    assert answer.status_code == 200, answer.text
    document = house.call("GET", f"{OWN}/openapi.json").json
    template = path if path in document["paths"] else f"{OWN}/hosts/{{host}}/health"
    said = document["paths"][template]["get"]["responses"]["200"]
    jsonschema.validate(answer.json, said["content"]["application/json"]["schema"])
    (found,) = answer.json.values()
    return found


def vote(house: House, observer: str, host: str, state: str, at: float = 0) -> dict[str, Any]:
    evidence = {"networks": {"storage": {"health": "down", "since": stamp(at - 3)}}}
    sent = {
        "observer": observer,
        "subject": f"host:{host}",
        "kind": "host_health",
        "state": state,
        "since": stamp(at - 3),
        "observed_at": stamp(at),
        "evidence": evidence,
    }
    mine = registered(house, observer)
    answer = house.call("POST", f"{OWN}/observations", json=sent, headers=mine)
    assert answer.status_code == 202, answer.text
    found: dict[str, Any] = answer.json["observation"]
    return found


def test_where_no_monitor_ever_spoke_there_is_nothing_to_show(house: House) -> None:
    assert get(house, MONITORS) == []
    assert get(house, HEALTH) == []
    shown = get(house, MATRIX)
    assert (shown["networks"], shown["rows"], shown["ha_matrix"]) == ([], [], None)
    assert house.call("GET", f"{OWN}/hosts/cmp-1/health").status_code == 404


def test_a_monitor_is_listed_with_what_it_sees_and_whether_it_does(house: House) -> None:
    dark = {"sighted": False, "leader": "", "since": stamp(), "why": "no leader"}
    sent = body((UP, "none", ["cmp-1", "cmp-2"]), (BLIND, "undecided", ["cmp-3"]))
    sent["networks"] = {**sent["networks"], "storage": dark}
    put(house, "ctl-1", sent)
    (one,) = get(house, MONITORS)
    assert (one["observer"], one["kind"], one["fresh"], one["hosts"]) == ("ctl-1", "host", True, 3)
    assert one["matrix_source"] == "default"
    assert one["networks"]["storage"] == dark
    assert one["networks"]["manage"]["sighted"] is True


def test_what_is_to_be_changed_about_a_cluster_is_shown(house: House) -> None:
    sent = body((UP, "none", ["cmp-1"]))
    sight = {**sent["networks"]["storage"], "warning": "the cluster has 1 server"}
    put(house, "ctl-1", {**sent, "networks": {**sent["networks"], "storage": sight}})
    (one,) = get(house, MONITORS)
    assert one["networks"]["storage"]["warning"] == "the cluster has 1 server"
    assert "warning" not in one["networks"]["manage"]


def test_a_host_lost_on_all_networks_is_shown_as_an_alert_while_one_network_is_blind(
    house: House,
) -> None:
    dark = {"sighted": False, "leader": "", "since": stamp(), "why": "no leader"}
    sent = body((("down", "down", "unknown"), "undecided", ["cmp-1"]))
    put(house, "ctl-1", {**sent, "networks": {**sent["networks"], "storage": dark}})
    (one,) = get(house, HEALTH)
    assert one["action"] == "alert"
    shown = house.call("GET", f"{OWN}/hosts/cmp-1/health").json["health"]
    assert (shown["action"], shown["for_s"]) == ("alert", 3.0)
    assert get(house, MATRIX)["blind"] == ["storage"]


def test_what_is_older_than_what_is_kept_changes_nothing(house: House) -> None:
    put(house, "ctl-1", body((UP, "none", ["cmp-1", "cmp-2"])))
    put(house, "ctl-1", body((UP, "none", ["cmp-1"]), at=-600))
    (one,) = get(house, MONITORS)
    assert one["hosts"] == 2
    put(house, "ctl-1", body((UP, "none", ["cmp-1"])))
    (one,) = get(house, MONITORS)
    assert one["hosts"] == 1


def test_a_clock_that_was_ahead_and_is_set_right_silences_nobody(house: House) -> None:
    put(house, "ctl-1", body((UP, "none", ["cmp-1", "cmp-2"]), at=3600))
    put(house, "ctl-1", body((UP, "none", ["cmp-1"])))
    (one,) = get(house, MONITORS)
    assert one["hosts"] == 1


def test_a_clock_that_was_set_back_counts_once_the_old_view_is_stale(house: House) -> None:
    put(house, "ctl-1", body((UP, "none", ["cmp-1", "cmp-2"]), heartbeat_s=0.05))
    eventually(lambda: not get(house, MONITORS)[0]["fresh"])
    put(house, "ctl-1", body((UP, "none", ["cmp-1"]), at=-3600))
    (one,) = get(house, MONITORS)
    assert (one["hosts"], one["fresh"]) == (1, True)


def test_the_matrix_has_each_host_in_the_row_it_is_in_now(house: House) -> None:
    rows = (UP, "none", ["cmp-1", "cmp-2"]), (NO_STORAGE, "recovery", ["cmp-3"])
    put(house, "ctl-1", body(*rows, (BLIND, "undecided", ["cmp-4"])))
    put(house, "ctl-2", body(*rows, (BLIND, "undecided", ["cmp-4"])))
    shown = get(house, MATRIX)
    assert (shown["networks"], shown["source"]) == (list(NETWORKS), "default")
    assert matrix.from_plain(shown["ha_matrix"]) == matrix.default(NETWORKS)
    assert len(shown["rows"]) == 8
    full = {tuple(row["health"].values()): row for row in shown["rows"] if row["count"]}
    assert full[UP]["hosts"] == ["cmp-1", "cmp-2"]
    assert (full[NO_STORAGE]["hosts"], full[NO_STORAGE]["action"]) == (["cmp-3"], "recovery")
    assert full[NO_STORAGE]["for_s"] == 3.0
    assert len(full) == 2
    (dark,) = shown["undecided"]
    assert (dark["hosts"], dark["count"], dark["health"]["storage"]) == (["cmp-4"], 1, "unknown")
    assert shown["differing"] == []


def test_monitors_that_go_by_another_matrix_than_most_are_named(house: House) -> None:
    same = {**matrix.default(NETWORKS).to_plain(), "source": "/etc/other.yaml"}
    other = matrix.default(NETWORKS).to_plain()
    other["rules"][0]["action"], other["source"] = "alert", "/etc/odd.yaml"
    put(house, "ctl-1", body((UP, "none", ["cmp-1"]), ha_matrix=other))
    put(house, "ctl-2", body((UP, "none", ["cmp-1"])))
    put(house, "ctl-3", body((UP, "none", ["cmp-1"]), ha_matrix=same))
    assert get(house, MATRIX)["differing"] == [{"observer": "ctl-1", "source": "/etc/odd.yaml"}]


def test_the_health_of_hosts_is_what_most_see_and_the_worse_if_they_are_as_many(
    house: House,
) -> None:
    well = (UP, "none", ["cmp-1", "cmp-2", "cmp-3"])
    bad = (NO_STORAGE, "recovery", ["cmp-2", "cmp-3"])
    put(house, "ctl-1", body(well))
    put(house, "ctl-2", body((UP, "none", ["cmp-1"]), bad))
    put(house, "ctl-3", body((UP, "none", ["cmp-1", "cmp-2"]), (BLIND, "undecided", ["cmp-3"])))
    said = {one["host"]: one for one in get(house, HEALTH)}
    assert [said[name]["health"]["storage"] for name in said] == ["up", "up", "down"]
    assert [said[name]["action"] for name in said] == ["none", "none", "recovery"]
    assert said["cmp-3"]["monitors"] == 3
    vote(house, "ctl-2", "cmp-3", "failed")
    (only,) = get(house, HEALTH, "health=bad")
    assert only["host"] == "cmp-3"
    assert only["since"] is not None
    assert house.call("GET", HEALTH, query_string="health=odd").status_code == 400


def test_the_page_of_a_host_lists_views_and_votes(house: House) -> None:
    put(house, "ctl-1", body((NO_STORAGE, "recovery", ["cmp-1"]), at=-1))
    put(house, "ctl-2", body((UP, "none", ["cmp-1"])))
    put(house, "ctl-3", body((BLIND, "undecided", ["cmp-1"])))
    put(house, "ctl-4", body((UP, "none", ["cmp-9"])))
    vote(house, "ctl-1", "CMP-1", "failed")
    found = get(house, f"{OWN}/hosts/cmp-1.example.org/health")
    assert found["host"] == "cmp-1"
    assert found["votes"] == {
        "for": ["ctl-1"], "against": ["ctl-2"], "abstain": ["ctl-3", "ctl-4"], "needed": 2,
    }  # fmt: skip
    storage = found["networks"]["storage"]
    assert storage["state"] == "down"
    assert storage["since"] is not None
    assert [(one["observer"], one["state"]) for one in storage["seen_by"]] == [
        ("ctl-1", "down"), ("ctl-2", "up"), ("ctl-3", "unknown"),
    ]  # fmt: skip
    assert (found["action"], found["for_s"]) == ("recovery", 3.0)
    assert "storage down" in found["sentence"]
    assert found["status"]["state"] == "up"
    assert found["incident_id"] is None
    lost = house.call("GET", f"{OWN}/hosts/cmp-7/health")
    assert lost.status_code == 404
    assert "no registered monitor reports a host 'cmp-7'" in lost.text


def test_monitors_that_fell_silent_are_neither_shown_nor_counted(house: House) -> None:
    put(house, "ctl-1", body((NO_STORAGE, "recovery", ["cmp-1"]), heartbeat_s=0.05))
    eventually(lambda: get(house, HEALTH) == [])
    found = get(house, f"{OWN}/hosts/cmp-1/health")
    assert found["votes"]["abstain"] == ["ctl-1"]
    assert found["networks"]["storage"] == {"state": "unknown", "since": None, "seen_by": []}


def test_an_observation_of_a_host_we_do_not_know_is_kept_and_changes_nothing_else(
    house: House,
) -> None:
    kept = vote(house, "ctl-1", "nowhere", "failed")
    found = house.call("GET", f"{OWN}/observations", query_string="subject=host:nowhere")
    assert [observation["id"] for observation in found.json["observations"]] == [kept["id"]]
    assert {host["state"] for host in house.call("GET", f"{OWN}/hosts").json["hosts"]} == {"up"}
    assert house.call("GET", f"{OWN}/incidents").json["incidents"] == []


SIGHT = {"sighted": True, "leader": "", "since": stamp(), "why": ""}
NONSENSE: list[tuple[str, dict[str, Any]]] = [
    ("opinion", body((UP, "maybe", ["cmp-1"]))),
    ("health", body((("up", "up", "sick"), "none", ["cmp-1"]))),
    ("twice", body((UP, "none", ["cmp-1"]), (NO_STORAGE, "none", ["cmp-1"]))),
    ("rows.0.hosts", body((UP, "none", ["x" * 256]))),
    ("rows.0.hosts", body((UP, "none", [""]))),
    ("rows.0.hosts", body((UP, "none", [7]))),  # type: ignore[list-item]
    ("at most 20000", body(*((UP, "none", [f"{r}-{i}" for i in range(10001)]) for r in range(2)))),
    ("heartbeat_s", body(heartbeat_s=0)),
    ("kind", body(kind="guest")),
    ("started_at", body(started_at="yesterday")),
    *(("at: more than a day", body(at=days * 86_400)) for days in (-2, 2, 400_000)),
    ("waiting", body(waiting=1.0)),
    ("parked", body(parked=2**31)),
    ("networks.lan.since", body(networks={"lan": {**SIGHT, "since": "lately"}})),
    ("HA matrix", body(ha_matrix={"networks": []})),
    ("networks", body(networks={str(i): {} for i in range(17)})),
    ("colour", body(colour="red")),
    ("Missing parameter rows", {k: v for k, v in body().items() if k != "rows"}),
]


@pytest.mark.parametrize(("named", "sent"), NONSENSE, ids=[one[0] for one in NONSENSE])
def test_nonsense_is_refused_by_name_and_not_kept(
    shared: House, named: str, sent: dict[str, Any]
) -> None:
    answer = put(shared, "ctl-1", sent, code=400)
    assert named in answer.json["errors"][0]["detail"]
    assert [one["seen_at"] for one in get(shared, MONITORS)] == [None]


@pytest.mark.parametrize(
    ("change", "said"), [({"subject": "cmp-1"}, "host:NAME"), ({"state": "odd"}, "failed, alert")]
)
def test_a_vote_that_nobody_could_count_is_refused(
    shared: House, change: dict[str, str], said: str
) -> None:
    sent = {
        "observer": "ctl-8",
        "subject": "host:cmp-1",
        "kind": "host_health",
        "state": "failed",
        "since": stamp(),
    }
    answer = shared.call("POST", f"{OWN}/observations", json=sent | change)
    assert (answer.status_code, said in answer.text) == (400, True), answer.text


def test_twenty_thousand_hosts_with_long_names_are_taken_within_a_second(house: House) -> None:
    names = [f"compute-{i:06}.rack-{i % 100:03}.region-one.example.org" for i in range(20_000)]
    began = time.thread_time()
    put(house, "ctl-1", body((UP, "none", names)))
    put(house, "ctl-1", body((UP, "none", names)))
    assert time.thread_time() - began < 2.0
    (one,) = get(house, MONITORS)
    assert one["hosts"] == 20_000


def said(observer: str, kind: str = "host_health") -> dict[str, Any]:
    body = {"observer": observer, "subject": "host:cmp-6", "kind": kind, "state": "failed"}
    return {**body, "since": stamp(-3), "observed_at": stamp(), "evidence": {"host": "ctl-1"}}


@pytest.fixture
def basic(build: Build, tmp_path: Path) -> House:
    """With http_basic: a user `service` that reports, a user `admin`."""
    return build(basic_config(tmp_path))


def register(house: House, observer: str, code: int = 201) -> Any:
    answer = house.call("POST", MONITORS, "admin", json={"observer": observer})
    assert answer.status_code == code, answer.text
    return answer.json


def test_a_monitor_is_registered_by_an_admin_and_votes_by_its_token(basic: House) -> None:
    made = register(basic, "ctl-1")["monitor"]
    assert made["token"].startswith("monitor@ctl-1:")
    assert made["registered_by"] == "admin"
    assert register(basic, "ctl-1")["monitor"] == made
    listed = basic.call("GET", MONITORS, "admin").json["monitors"]
    assert [(one["registered"], one["fresh"], one["seen_at"]) for one in listed] == [
        (True, False, None)
    ]
    assert "token_file" in listed[0]["hint"]
    mine = {AGENT_HEADER: made["token"]}
    seen = body((NO_STORAGE, "recovery", ["cmp-6"]), at=-1)
    assert basic.call("PUT", f"{MONITORS}/ctl-1", headers=mine, json=seen).status_code == 204
    answer = basic.call("POST", f"{OWN}/observations", headers=mine, json=said("ctl-1"))
    assert answer.status_code == 202
    health = basic.call("GET", f"{OWN}/hosts/cmp-6/health", "admin").json["health"]
    assert health["votes"] == {"for": ["ctl-1"], "against": [], "abstain": [], "needed": 1}
    (one,) = basic.call("GET", MONITORS, "admin").json["monitors"]
    assert (one["registered"], one["fresh"], one["hint"]) == (True, True, "")


def test_a_monitors_token_is_good_for_its_name_and_for_reports_of_hosts_alone(
    basic: House,
) -> None:
    mine = {AGENT_HEADER: register(basic, "ctl-1")["monitor"]["token"]}
    register(basic, "ctl-2")
    seen, path = body((UP, "none", ["cmp-1"])), f"{OWN}/observations"
    for name in ("ctl-2", "ctl-3"):
        assert basic.call("PUT", f"{MONITORS}/{name}", headers=mine, json=seen).status_code == 403
        assert basic.call("POST", path, headers=mine, json=said(name)).status_code == 403
    assert basic.call("POST", path, headers=mine, json=said("ctl-1", "guest")).status_code == 403
    for other in (MONITORS, MATRIX, HEALTH, path, f"{OWN}/agents/cmp-1/alarm-rules"):
        assert basic.call("GET", other, headers=mine).status_code == 403, other
    body_ = {"observer": "ctl-9"}
    assert basic.call("POST", MONITORS, headers=mine, json=body_).status_code == 403
    assert basic.call("DELETE", f"{MONITORS}/ctl-2", headers=mine).status_code == 403


def test_nobody_else_speaks_under_the_name_of_a_registered_monitor(basic: House) -> None:
    register(basic, "ctl-1")
    seen = body((UP, "none", ["cmp-1"]))
    agent = {AGENT_HEADER: tokens.agent_token("ctl-1", SECRET)}
    for user, shown in (("service", {}), ("admin", {}), ("", agent)):
        answer = basic.call("PUT", f"{MONITORS}/ctl-1", user, headers=shown, json=seen)
        assert answer.status_code == 403, user
        for kind in ("host_health", "guest"):
            sent = said("ctl-1", kind)
            answer = basic.call("POST", f"{OWN}/observations", user, headers=shown, json=sent)
            assert answer.status_code == 403, (user, kind)
    (one,) = basic.call("GET", MONITORS, "admin").json["monitors"]
    assert one["seen_at"] is None


def test_observers_that_a_service_makes_up_are_listed_and_have_no_vote(basic: House) -> None:
    mine = {AGENT_HEADER: register(basic, "ctl-1")["monitor"]["token"]}
    well = body((UP, "none", ["cmp-6"]))
    assert basic.call("PUT", f"{MONITORS}/ctl-1", headers=mine, json=well).status_code == 204
    dead = body((NO_STORAGE, "recovery", ["cmp-6"]), at=-1)
    for name in ("evil-1", "evil-2"):
        assert basic.call("PUT", f"{MONITORS}/{name}", "service", json=dead).status_code == 204
        answer = basic.call("POST", f"{OWN}/observations", "service", json=said(name))
        assert answer.status_code == 202
    listed = basic.call("GET", MONITORS, "admin").json["monitors"]
    assert {one["observer"]: one["registered"] for one in listed} == {
        "ctl-1": True, "evil-1": False, "evil-2": False,
    }  # fmt: skip
    assert "`holdfast monitor register evil-1`" in listed[1]["hint"]
    health = basic.call("GET", f"{OWN}/hosts/cmp-6/health", "admin").json["health"]
    assert health["votes"] == {"for": [], "against": ["ctl-1"], "abstain": [], "needed": 1}
    assert health["networks"]["storage"]["state"] == "up"
    (shown,) = basic.call("GET", HEALTH, "admin").json["hosts"]
    assert (shown["health"]["storage"], shown["since"]) == ("up", None)


def test_an_unregistered_monitor_has_no_vote_and_its_token_is_refused(basic: House) -> None:
    mine = {AGENT_HEADER: register(basic, "ctl-1")["monitor"]["token"]}
    seen, path = body((UP, "none", ["cmp-1"])), f"{MONITORS}/ctl-1"
    assert basic.call("PUT", path, headers=mine, json=seen).status_code == 204
    assert basic.call("DELETE", path, "service").status_code == 403
    assert basic.call("DELETE", path, "admin").status_code == 204
    refused = basic.call("PUT", path, headers=mine, json=seen)
    assert (refused.status_code, "is not registered" in refused.text) == (403, True)
    sent = said("ctl-1")
    assert basic.call("POST", f"{OWN}/observations", headers=mine, json=sent).status_code == 403
    assert basic.call("GET", MONITORS, "admin").json["monitors"] == []
    assert basic.call("DELETE", path, "admin").status_code == 404


def test_what_is_no_token_of_a_monitor_lets_nobody_in(basic: House) -> None:
    token = register(basic, "ctl-1")["monitor"]["token"]
    sealed = token.partition(":")[2]
    as_agent = tokens.agent_token("ctl-1", SECRET).partition(":")[2]
    for shown in (
        "monitor@", "monitor@ctl-1", "monitor@ctl-1:", f"monitor@ctl-2:{sealed}",
        f"monitor@ctl-1:{as_agent}", f"ctl-1:{sealed}", tokens.agent_token("monitor@ctl-1", SECRET),
    ):  # fmt: skip
        seen = body((UP, "none", ["cmp-1"]))
        answer = basic.call("PUT", f"{MONITORS}/ctl-1", headers={AGENT_HEADER: shown}, json=seen)
        assert answer.status_code == 401, shown


def test_a_role_or_user_that_is_called_monitor_makes_nobody_one(
    build: Build, tmp_path: Path
) -> None:
    config = basic_config(tmp_path)
    hashed = bcrypt.hashpw(b"monitor@ctl-1", bcrypt.gensalt(4)).decode()
    with (tmp_path / "htpasswd").open("a") as passwords:
        passwords.write(f"monitor@ctl-1:{hashed}\n")
    with (tmp_path / "users.yaml").open("a") as users:
        users.write("monitor@ctl-1: {project: blue, roles: [Monitor]}\n")
    house = build(config)
    register(house, "ctl-1")
    seen = body((UP, "none", ["cmp-1"]))
    answer = house.call("PUT", f"{MONITORS}/ctl-1", "monitor@ctl-1", json=seen)
    assert answer.status_code == 403


@pytest.mark.parametrize("name", ["", " ctl-1", "ctl-1 ", "a:b", "a/b", "agent@cmp-1", "x" * 129])
def test_a_name_that_cannot_be_registered_is_refused(basic: House, name: str) -> None:
    register(basic, name, 400)


def test_without_a_secret_registration_is_refused_with_the_next_step(
    basic: House,
) -> None:
    basic.conf.set_override("agent_secret_file", None, "auth")
    answer = basic.call("POST", MONITORS, "admin", json={"observer": "ctl-1"})
    assert answer.status_code == 409
    assert "openssl rand" in answer.text
    assert basic.call("GET", MONITORS, "admin").json["monitors"] == []


def test_the_service_role_reports_and_an_admin_reads(build: Build, tmp_path: Path) -> None:
    house = build(basic_config(tmp_path))
    sent = body((UP, "none", ["cmp-1"]))
    for user, code in (("member", 403), ("service", 204), ("admin", 204)):
        path = f"{MONITORS}/ctl-1"
        assert house.call("PUT", path, user, json=sent).status_code == code, user
    put(house, "ctl-1", sent)
    for path in (MONITORS, MATRIX, HEALTH, f"{OWN}/hosts/cmp-1/health"):
        for user, code in (("member", 403), ("admin", 200)):
            assert house.call("GET", path, user).status_code == code, (user, path)


def test_from_the_votes_of_two_to_the_story_of_a_recovery(build: Build) -> None:
    """Through the API alone, with a manager at work behind it."""
    house = build("[recovery]\nbring_back = false\n")
    north = make_segment(house)
    for number in range(1, 7):
        add_host(house, north["uuid"], f"cmp-{number}")
    others = [f"cmp-{number}" for number in range(1, 6)]
    house.services.sim().fail_host("cmp-6")
    slow: dict[str, Any] = {"heartbeat_s": 300}  # their word counts however long all of it takes
    put(house, "ctl-3", body((UP, "none", others), (BLIND, "undecided", ["cmp-6"]), **slow))
    for name in ("ctl-1", "ctl-2"):
        seen = (UP, "none", others), (NO_STORAGE, "recovery", ["cmp-6"])
        put(house, name, body(*seen, at=-1, **slow))
        vote(house, name, "cmp-6", "failed")
    found = wait(house, "recovered")
    assert "ctl-1" in found["seen"]
    assert "saw cmp-6 down on storage since" in found["seen"]
    assert found["reports"] == []
    told = house.call("GET", f"{OWN}/incidents/{found['id']}/explanation").json["explanation"]
    for part in (
        "saw it down on storage since",
        "ctl-3 could not see on storage.",
        "- ctl-1: storage down since",
        "about host cmp-6 of segment north",
    ):
        assert part in told["text"], told["text"]
    health = get(house, f"{OWN}/hosts/cmp-6/health")
    assert health["votes"]["for"] == ["ctl-1", "ctl-2"]
    assert health["status"]["state"] == "down"
    assert health["status"]["segment"] == "north"
    said = house.call("GET", f"{OWN}/observations", query_string="subject=host:cmp-6").json
    assert {observation["incident_id"] for observation in said["observations"]} == {found["id"]}


def wait(house: House, status: str) -> dict[str, Any]:
    """The one incident, when it stands so."""

    def there() -> str:
        (one,) = house.call("GET", f"{OWN}/incidents").json["incidents"] or [{"status": None}]
        assert one["status"] == status, one
        return str(one["id"])

    own = eventually(there)
    return dict(house.call("GET", f"{OWN}/incidents/{own}").json["incident"])
