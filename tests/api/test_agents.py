# SPDX-License-Identifier: Apache-2.0
"""Agents come by a token of their own, and speak for their own host only."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import bcrypt
import pytest
import sqlalchemy as sa

from holdfast.api import tokens
from holdfast.db.alarms import Wanted
from holdfast.db.tables import operations
from holdfast.model.errors import InvalidInput, Unauthorized, Unavailable
from holdfast.model.observation import AGENT_HEADER
from tests.api.conftest import Build
from tests.api.house import OWN, House, basic_config, when
from tests.api.rules import alarm_body
from tests.processes import eventually

SECRET, OLD = b"s" * 40, b"o" * 40


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "secret"
    path.write_bytes(SECRET + b"\n" + OLD + b"\n")
    return str(path)


def test_a_token_is_good_for_its_host_however_that_is_spelt(file: str) -> None:
    assert tokens.host_of(tokens.agent_token("CMP-7", SECRET), file) == "cmp-7"
    assert tokens.host_of(tokens.agent_token("cmp-7", OLD), file) == "cmp-7"


@pytest.mark.parametrize(
    "shown", ["", "cmp-7", "cmp-7:", "cmp-7:AAAA", ":", "cmp-7:\u00e4", "a b:c"]
)
def test_what_is_no_token_lets_nobody_in(file: str, shown: str) -> None:
    with pytest.raises(Unauthorized):
        tokens.host_of(shown, file)


def test_the_token_of_one_host_is_none_of_another(file: str) -> None:
    _name, _, sealed = tokens.agent_token("cmp-7", SECRET).partition(":")
    with pytest.raises(Unauthorized):
        tokens.host_of(f"cmp-8:{sealed}", file)


def test_a_secret_that_is_gone_takes_its_tokens_with_it(file: str) -> None:
    old = tokens.agent_token("cmp-7", OLD)
    Path(file).write_bytes(SECRET)
    with pytest.raises(Unauthorized):
        tokens.host_of(old, file)


def test_without_a_usable_secret_nobody_is_let_in(tmp_path: Path) -> None:
    with pytest.raises(Unauthorized, match="not set"):
        tokens.host_of(tokens.agent_token("cmp-7", SECRET), None)
    with pytest.raises(Unavailable, match="No such file"):
        tokens.host_of(tokens.agent_token("cmp-7", SECRET), str(tmp_path / "none"))
    short = tmp_path / "short"
    short.write_text("short\n")
    with pytest.raises(InvalidInput, match="32 characters"):
        tokens.secrets(str(short))


# over the wire


def seen(host: str, kind: str = "guest", **more: Any) -> dict[str, Any]:
    """As an agent reports it."""
    about = {"observer": f"agent@{host}", "subject": f"server:{uuid.uuid4()}", "kind": kind}
    evidence = {"host": host, "event": "stopped", "detail": "failed"}
    body = {**about, "state": "failed", "since": when(minutes=0), "evidence": evidence}
    return {**body, **more}


def site(build: Build, folder: Path, **people: list[str]) -> House:
    """Where agents are let in, and these people too."""
    config = basic_config(folder)
    (folder / "secret").write_bytes(SECRET)
    for name, roles in people.items():
        user = name.replace("_at_", "@")
        hashed = bcrypt.hashpw(user.encode(), bcrypt.gensalt(4)).decode()
        with (folder / "htpasswd").open("a") as passwords:
            passwords.write(f"{user}:{hashed}\n")
        with (folder / "users.yaml").open("a") as users:
            users.write(f"{user}: {{project: blue, roles: {roles}}}\n")
    return build(f"{config}agent_secret_file = {folder / 'secret'}\n")


@pytest.mark.parametrize("user", ["mallory", "agent@cmp6"])
@pytest.mark.parametrize("roles", [["agent"], ["Agent", "member"]])
def test_a_role_that_is_called_agent_makes_nobody_an_agent(
    build: Build, tmp_path: Path, user: str, roles: list[str]
) -> None:
    house = site(build, tmp_path, **{user.replace("@", "_at_"): roles})
    vote = {"observer": "ctl-1", "subject": "host:cmp-6", "kind": "host_health", "state": "failed"}
    votes = {**seen("cmp-6"), **vote}
    for body in (votes, seen("cmp-6"), seen("cmp6")):
        assert house.call("POST", f"{OWN}/observations", user, json=body).status_code == 403
    for path in ("hosts/cmp-6/expected", "agents/cmp-6/alarm-rules", "agents/cmp6/alarm-rules"):
        assert house.call("GET", f"{OWN}/{path}", user).status_code == 403, path


def test_whoever_may_report_by_another_role_may_have_that_one_too(
    build: Build, tmp_path: Path
) -> None:
    house = site(build, tmp_path, watcher=["service", "agent"])
    body = seen("cmp-6")
    assert house.call("POST", f"{OWN}/observations", "watcher", json=body).status_code == 202


def test_what_an_agent_reports_is_of_the_host_that_its_token_names(
    build: Build, tmp_path: Path
) -> None:
    """cmp-6 for short would be cmp-6.dc2 as well."""
    house = site(build, tmp_path)
    mine = {AGENT_HEADER: tokens.agent_token("cmp-6.dc1", SECRET)}

    def says(host: str, kind: str = "guest", **more: Any) -> Any:
        body = seen(host, kind, observer="agent@cmp-6.dc1", **more)
        return house.call("POST", f"{OWN}/observations", headers=mine, json=body)

    assert says("cmp-6").json["observation"]["evidence"]["host"] == "cmp-6.dc1"
    kept = says("CMP-6", "process", subject="process:cmp-6:nova-compute").json["observation"]
    assert kept["subject"] == "process:cmp-6.dc1:nova-compute"
    assert kept["evidence"]["host"] == "cmp-6.dc1"
    assert says("cmp-6.dc2").status_code == 403
    asked = house.call("GET", f"{OWN}/hosts/cmp-6/expected", headers=mine)
    assert asked.json["expected"]["host"] == "cmp-6.dc1"


def test_an_alarm_by_an_agents_token_is_kept_once_the_cloud_has_its_server_there(
    build: Build, tmp_path: Path
) -> None:
    house = site(build, tmp_path)
    (web,) = house.services.sim().world()["servers"]  # on cmp-6

    def raised(host: str) -> None:
        mine = {AGENT_HEADER: tokens.agent_token(host, SECRET)}
        about = {"project": web["project_id"], "host": host, "key": host}
        body = {**alarm_body(entity=web["id"], **about), "observer": f"agent@{host}"}
        answer = house.call("POST", f"{OWN}/observations", headers=mine, json=body)
        assert answer.status_code == 202, answer.text

    raised("cmp-5")
    raised("cmp-6")
    alarms = house.core.store.alarms
    eventually(lambda: len(alarms.list_all(Wanted())) == 1)
    store = house.core.store.database

    def asked() -> bool:
        open_ = sa.select(operations.c.id).where(
            operations.c.kind == "observation", operations.c.is_open.is_(True)
        )
        with store.read() as conn:
            return conn.execute(open_).first() is None

    eventually(asked)
    assert [row["host"] for row in alarms.list_all(Wanted())] == ["cmp-6"]


def test_an_alarm_about_a_host_is_shown_to_no_project_whatever_its_agent_says(
    build: Build, tmp_path: Path
) -> None:
    house = site(build, tmp_path)
    mine = {AGENT_HEADER: tokens.agent_token("cmp-1", SECRET)}
    body = alarm_body(kind="host", entity="cmp-1", project="blue")
    answer = house.call("POST", f"{OWN}/observations", headers=mine, json=body)
    assert answer.status_code == 202, answer.text
    assert [row["project_id"] for row in house.core.store.alarms.list_all(Wanted())] == [""]
    assert house.call("GET", f"{OWN}/alarms", "member").json["alarms"] == []


@pytest.mark.parametrize("wrong_s", [-600.0, 0.0, 600.0])
def test_dates_of_a_clock_that_is_wrong_are_kept_by_ours(house: House, wrong_s: float) -> None:
    """Else what dies soon after its recovery, by a clock that is slow, was recovered since."""
    now = datetime.now(UTC)
    died, sent = (now + timedelta(seconds=wrong_s + ago) for ago in (-30.0, 0.0))
    dates = {"since": died, "observed_at": died, "sent_at": sent}
    body = seen("cmp-6", **{name: value.isoformat() for name, value in dates.items()})
    answer = house.call("POST", f"{OWN}/observations", json=body)
    for name in ("since", "observed_at"):
        kept = datetime.fromisoformat(answer.json["observation"][name])
        assert abs(now - timedelta(seconds=30) - kept) < timedelta(seconds=60)
        assert wrong_s or kept == died  # what is right stays as it is


def test_reports_are_listed_by_host_kind_and_state(build: Build, tmp_path: Path) -> None:
    house = site(build, tmp_path)
    for host in ("cmp-6", "cmp-7"):
        mine = {AGENT_HEADER: tokens.agent_token(host, SECRET)}
        said = [
            seen(host, state="noted"),
            seen(host, state="well"),
            seen(host, "process", subject=f"process:{host}:libvirtd"),
        ]
        for body in said:
            answer = house.call("POST", f"{OWN}/observations", headers=mine, json=body)
            assert answer.status_code == 202, answer.json
        bad = seen(host, state="cleared")
        assert house.call("POST", f"{OWN}/observations", headers=mine, json=bad).status_code == 400

    def listed(query: str) -> list[str]:
        answer = house.call("GET", f"{OWN}/observations", "admin", query_string=query)
        found = answer.json["observations"]
        return sorted(f"{one['observer']} {one['state']}" for one in found)

    assert listed("host=CMP-6") == [f"agent@cmp-6 {state}" for state in ("failed", "noted", "well")]
    assert listed("host=cmp-6&kind=guest") == ["agent@cmp-6 noted", "agent@cmp-6 well"]
    assert listed("state=noted") == ["agent@cmp-6 noted", "agent@cmp-7 noted"]
    assert listed("host=cmp-8") == []
