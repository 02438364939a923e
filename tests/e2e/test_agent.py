# SPDX-License-Identifier: Apache-2.0
"""The agent of a host as its own program: it tells what died, by its own token, once, whatever
happens to it."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast.client import Client, Forbidden, Unauthorized
from holdfast.drivers.cloud.sim import Simulator
from holdfast.ports.clock import SystemClock
from holdfast.watch.spool import Spool
from tests.e2e.deployment import all_in_one, write_config
from tests.processes import Program, eventually, script

HOST = "cmp-13"


@dataclass
class Town:
    folder: Path
    client: Client
    sim: Simulator
    config: Path

    def agent(self) -> Program:
        command = [script("holdfast-agent"), "--config-file", self.config]
        return Program(command, self.folder, name="agent")

    def knows(self, server: str) -> None:
        """Wait until the agent has written down that this guest is there."""

        def so() -> bool:
            with contextlib.closing(Spool(str(self.folder / "agent.spool"))) as spool:
                return server in str(spool.note("guests"))

        eventually(so, 15)

    def guests(self) -> list[str]:
        servers = self.sim.world()["servers"]
        return [one["id"] for one in servers if one["host"] == HOST]

    def incidents(self, server: str) -> list[dict[str, Any]]:
        found = self.client.incidents.list(kind="guest")
        return [one for one in found if one["subject"] == f"server:{server}"]

    def recovered(self, server: str, times: int = 1) -> None:
        def so() -> bool:
            statuses = [one["status"] for one in self.incidents(server)]
            assert statuses == ["recovered"] * times, statuses
            return True

        eventually(so, 30)
        assert self.sim.running(server) == [HOST]


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    folder = tmp_path_factory.mktemp("town")
    secret = folder / "secret"
    secret.write_text("a secret of at least 32 characters\n")
    options = {"auth": {"agent_secret_file": secret}, "recovery": {"restart_all": True}}
    with all_in_one(folder, options) as (_program, client), contextlib.ExitStack() as stack:
        eventually((folder / "state" / "populated").exists, 30.0)
        file = folder / "state" / "sim.db"
        sim = stack.enter_context(contextlib.closing(Simulator(str(file), SystemClock())))
        central = write_config(folder / "central.conf", options)
        made = subprocess.run(
            [script("holdfast"), "agent", "token", HOST, "--config", central],
            check=True,
            capture_output=True,
            text=True,
        )
        (folder / "token").write_text(made.stdout)
        about = {
            "host": HOST,
            "guests": "sim",
            "guests_address": f"{HOST}@{file}",
            "spool": folder / "agent.spool",
            "api_url": client.url,
            "token_file": folder / "token",
        }
        yield Town(folder, client, sim, write_config(folder / "agent.conf", {"agent": about}))


def test_a_guest_that_dies_is_started_again(town: Town) -> None:
    server = town.guests()[0]
    with town.agent():
        town.knows(server)
        town.sim.crash_server(server)
        town.recovered(server)
    (incident,) = town.incidents(server)
    assert f"says agent@{HOST}" in incident["cause"]


def test_what_died_while_the_agent_was_dead_is_told_when_it_is_back(town: Town) -> None:
    server = town.guests()[1]
    agent = town.agent()
    with agent:
        town.knows(server)
        agent.kill()
        town.sim.crash_server(server)
        agent.start()
        town.recovered(server)
        agent.kill()
        agent.start()
        time.sleep(2)
        town.recovered(server)  # and not told a second time


def test_its_token_is_good_for_its_own_host_and_nothing_else(town: Town) -> None:
    token = (town.folder / "token").read_text().strip()
    mine = Client(town.client.url, agent=token)
    body = {
        "observer": f"agent@{HOST}",
        "subject": f"process:{HOST}:sshd",
        "kind": "process",
        "state": "failed",
        "since": "2026-01-01T00:00:00+00:00",
        "evidence": {"host": HOST},
    }

    def post(**other: Any) -> Any:
        return mine.wire.call("POST", "/holdfast/v1/observations", body={**body, **other})

    assert post()["observation"]["observer"] == f"agent@{HOST}"
    other = {"subject": "process:cmp-14:sshd", "evidence": {"host": "cmp-14"}}
    with pytest.raises(Forbidden, match="cannot speak for cmp-14"):
        post(**other)
    with pytest.raises(Forbidden, match="not as ctl-1"):
        post(observer="ctl-1")
    with pytest.raises(Forbidden, match="nothing else"):
        post(kind="host_health", subject=f"host:{HOST}")
    with pytest.raises(Forbidden):
        mine.leases.list()
    stranger = Client(town.client.url, agent=token[:-2] + "AA")
    with pytest.raises(Unauthorized, match="agent token"):
        stranger.wire.call("POST", "/holdfast/v1/observations", body=body)
