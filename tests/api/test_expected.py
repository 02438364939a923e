# SPDX-License-Identifier: Apache-2.0
"""What should run on a host: asked of the cloud, by its own agent or an administrator."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from holdfast.api import tokens
from holdfast.drivers.sim.simulator import Simulator
from holdfast.model.observation import AGENT_HEADER
from tests.api.cases import write_incident
from tests.api.conftest import Build
from tests.api.house import OWN, House, basic_config

SECRET = b"s" * 40


def sim(house: House) -> Simulator:
    assert house.services.sim is not None
    made: Simulator = house.services.sim()
    return made


def ask(house: House, host: str = "cmp-6", **kwargs: Any) -> dict[str, tuple[str, str]]:
    answer = house.call("GET", f"{OWN}/hosts/{host}/expected", **kwargs)
    assert answer.status_code == 200, answer.text
    said = answer.json["expected"]
    assert said["host"] == host.lower()
    return {server["id"]: (server["name"], server["state"]) for server in said["servers"]}


def boot(house: House, name: str, host: str = "cmp-6") -> str:
    return sim(house).boot(name, "blue", host, 1, 512, 1).id


def web_1(house: House) -> str:
    (found,) = [
        server["id"] for server in sim(house).world()["servers"] if server["name"] == "web-1"
    ]
    return str(found)


def test_it_is_what_the_cloud_says_of_the_hosts_servers(house: House) -> None:
    web, off = web_1(house), boot(house, "off")
    house.manager.cloud.servers.stop(off)
    boot(house, "far", "cmp-5")
    assert ask(house) == {web: ("web-1", "runs"), off: ("off", "off")}
    assert ask(house, "CMP-6") == ask(house)
    assert ask(house, "cmp-4") == {}


def test_what_is_under_way_is_busy(house: House) -> None:
    sim(house).change(action_s=60.0)
    house.manager.cloud.servers.stop(web_1(house))
    assert ask(house) == {web_1(house): ("web-1", "busy")}


@pytest.mark.parametrize("subject", ["host:cmp-6", "server"])
def test_a_server_with_an_open_incident_is_busy(house: House, subject: str) -> None:
    web, kind = web_1(house), subject.partition(":")[0]
    about = f"server:{web}" if kind == "server" else subject
    kind = "guest" if kind == "server" else "host"
    other = boot(house, "other")
    write_incident(house, host="cmp-6", kind=kind, subject=about, status="running")
    said = {one: state for one, (_, state) in ask(house).items()}
    assert said == {web: "busy", other: "busy" if kind == "host" else "runs"}


def test_an_incident_of_another_host_or_one_that_is_over_is_none_of_it(house: House) -> None:
    web = web_1(house)
    write_incident(house, host="cmp-5", subject="host:cmp-5")
    write_incident(house, host="cmp-6", subject=f"server:{web}", kind="guest", status="recovered")
    assert ask(house) == {web: ("web-1", "runs")}


def test_guests_that_run_there_can_be_asked_about_by_id(house: House) -> None:
    far, nobody = boot(house, "far", "cmp-5"), str(uuid.uuid4())
    also = ",".join([far, nobody, web_1(house)])
    assert ask(house, params={"also": also}) == {
        web_1(house): ("web-1", "runs"),
        far: ("far", "elsewhere"),
        nobody: ("", "unknown"),
    }


@pytest.mark.parametrize("also", ["x", "1,2", ",".join([str(uuid.uuid4())] * 51)], ids=range(3))
def test_what_is_no_id_or_too_many_of_them_is_refused(shared: House, also: str) -> None:
    answer = shared.call("GET", f"{OWN}/hosts/cmp-6/expected", params={"also": also})
    assert answer.status_code == 400


def test_a_host_that_the_cloud_does_not_have_is_not_found(shared: House) -> None:
    assert shared.call("GET", f"{OWN}/hosts/cmp-99/expected").status_code == 404


def test_a_cloud_that_cannot_be_asked_is_a_503_and_no_empty_list(house: House) -> None:
    sim(house).change(down=True)
    answer = house.call("GET", f"{OWN}/hosts/cmp-6/expected")
    assert answer.status_code == 503
    assert list(answer.json) == ["errors"]


def test_an_agent_asks_for_its_own_host_only(build: Build, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(SECRET)
    config = basic_config(tmp_path)
    house = build(f"{config}agent_secret_file = {file}\n")
    mine = {AGENT_HEADER: tokens.agent_token("cmp-6", SECRET)}
    assert ask(house, headers=mine) == {web_1(house): ("web-1", "runs")}
    refused = house.call("GET", f"{OWN}/hosts/cmp-5/expected", headers=mine)
    assert refused.status_code == 403
    assert "agent of cmp-6 cannot speak for cmp-5" in refused.text
    strange = {AGENT_HEADER: tokens.agent_token("cmp-6", b"x" * 40)}
    assert house.call("GET", f"{OWN}/hosts/cmp-6/expected", headers=strange).status_code == 401
    for user, status in {"member": 403, "service": 200, "admin": 200}.items():
        answer = house.call("GET", f"{OWN}/hosts/cmp-5/expected", user)
        assert answer.status_code == status, user
