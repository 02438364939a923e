# SPDX-License-Identifier: Apache-2.0
"""Alarm rules change while the real agent runs, by centre and file, and survive the agent.

The agent sends metrics while a viewer watches the host.
"""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.client import admin
from holdfast.client.client import Client
from holdfast.client.errors import BadRequest, Forbidden, NotReachable
from tests.e2e.deployment import write_config
from tests.e2e.town import HOST, Town, a_town
from tests.processes import PATIENCE_S, Program, script

HOT = "rules:\n  - {{id: hot, on: guest, field: util_ratio, when: '> {level}%', for: 1m}}\n"
#: A host of one of the tests, which any other may find.
REAL = "real-1"


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    with a_town(tmp_path_factory.mktemp("town")) as made:
        about = dict(
            line.split(" = ", 1) for line in made.config.read_text().splitlines() if " = " in line
        )
        rules = {"rules_file": made.folder / "rules.yaml", "groups": "gpu"}
        (made.folder / "rules.yaml").write_text(HOT.format(level=95))
        write_config(made.config, {"agent": about, "metrics": rules})
        yield made


def holdfast(town: Town, *words: str, code: int = 0) -> str:
    command = [script("holdfast"), "--url", town.client.url, *words]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == code, (words, done.stdout, done.stderr)
    return done.stdout or done.stderr


def here(town: Town) -> dict[str, tuple[float, str]]:
    """Level and source of each rule in force."""
    try:
        answer = admin.ask(str(town.folder / "agent.sock"), "metrics.rules.list")
    except NotReachable:
        return {}
    return {
        rule["id"]: (float(rule["when"].split()[1]), rule["source"]) for rule in answer["rules"]
    }


def beaten(town: Town) -> dict[str, Any]:
    (agent,) = [one for one in town.client.agents.list() if one["host"] == HOST]
    return agent


@pytest.mark.slow("new rules come with the next heartbeat, ten seconds away")
def test_file_and_centre_change_a_level_that_survives_kill_nine(town: Town) -> None:
    socket = str(town.folder / "agent.sock")
    file = town.folder / "rules.yaml"
    agent = town.agent()
    with agent:
        # the file, which is watched
        agent.wait_until(lambda: here(town) == {"hot": (0.95, "file")})
        file.write_text(HOT.format(level=90))
        agent.wait_until(lambda: here(town) == {"hot": (0.9, "file")})
        # the centre: hosts of this group
        (town.folder / "gpu.yaml").write_text(HOT.format(level=80))
        document = str(town.folder / "gpu.yaml")
        holdfast(town, "rule", "set", "gpus", document, "--scope", "group:gpu")
        agent.wait_until(lambda: here(town) == {"hot": (0.8, "central")})
        agent.signal(signal.SIGHUP)  # the next heartbeat, at once
        agent.wait_until(
            lambda: beaten(town)["rules"]["central"] == beaten(town)["rules"]["wanted"], PATIENCE_S
        )
        agent.kill()
        agent.start()
        agent.wait_until(lambda: here(town) == {"hot": (0.8, "central")})
        # an invalid file changes nothing; without the document the file's level counts again
        file.write_text("rules: [{id: hot")
        agent.signal(signal.SIGHUP)
        listing = ("rule", "list", "--here", "--socket", socket)
        agent.wait_until(lambda: "refused from file" in holdfast(town, *listing))
        assert here(town) == {"hot": (0.8, "central")}
        holdfast(town, "rule", "delete", "gpus")
        agent.signal(signal.SIGHUP)
        agent.wait_until(lambda: here(town) == {"hot": (0.9, "file")})
    listed = json.loads(holdfast(town, "rule", "list", "--hosts", "-f", "json"))
    assert {one["host"] for one in listed} - {REAL} == {HOST}


def test_the_manager_refuses_invalid_rules_with_the_line_of_each_error(town: Town) -> None:
    with pytest.raises(BadRequest) as refused:
        town.client.alarm_rules.set("bad", "rules:\n  - {id: x}\n  - {on: guest}\n")
    lines = {problem["line"] for problem in refused.value.details["problems"]}
    assert lines == {2, 3}


def test_an_agents_token_reads_no_rules_but_its_own(town: Town) -> None:
    token = (town.folder / "token").read_text().strip()
    mine = Client(town.client.url, agent=token).agents
    assert mine.rules(HOST)["version"]
    with pytest.raises(Forbidden):
        mine.rules("cmp-14")


def test_a_host_sends_metrics_while_a_viewer_watches(town: Town) -> None:
    host, central = REAL, town.folder / "central.conf"
    token = town.folder / "real.token"
    token.write_text(holdfast(town, "agent", "token", host, "--config", str(central)))
    about = {
        "host": host,
        "guests": "libvirt",
        "guests_address": "test:///default",  # no guests to measure there, but this machine
        "outbox": town.folder / "real.outbox",
        "socket": town.folder / "real.sock",
        "api_url": town.client.url,
        "token_file": token,
    }
    config = write_config(town.folder / "real.conf", {"agent": about})
    command = [script("holdfast-agent"), "--config-file", config]
    wire, where = town.client.wire, f"/holdfast/v1/hosts/{host}/samples"

    def seen(agent: Program) -> dict[str, Any]:
        agent.signal(signal.SIGHUP)  # the next heartbeat, at once
        found: dict[str, Any] = wire.call("GET", where, key="samples")
        return found

    with Program(command, town.folder, name="real") as agent:
        agent.wait_until((town.folder / "real.sock").exists)
        agent.wait_until(lambda: host in {one["host"] for one in town.client.agents.list()})
        assert seen(agent)["points"] == 0
        wire.call("POST", where)
        agent.wait_until(lambda: seen(agent)["points"] > 0)
        (line, *_) = seen(agent)["lines"]
        assert (line["kind"], line["id"]) == ("host", host)
        assert not seen(agent)["simulated"]
