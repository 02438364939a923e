# SPDX-License-Identifier: Apache-2.0
"""A town for agents: all of Holdfast in one process, a simulated cloud, and one of its hosts."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.agent.outbox import Outbox
from holdfast.client.client import Client
from holdfast.drivers.sim.simulator import Simulator
from holdfast.runtime.clock import SystemClock
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
            with contextlib.closing(Outbox(str(self.folder / "agent.outbox"))) as outbox:
                return server in str(outbox.note("guests"))

        eventually(so)

    def guests(self) -> list[str]:
        servers = self.sim.world()["servers"]
        return [server["id"] for server in servers if server["host"] == HOST]

    def incidents(self, server: str) -> list[dict[str, Any]]:
        found = self.client.incidents.list(kind="guest")
        return [one for one in found if one["subject"] == f"server:{server}"]

    def recovered(self, server: str, times: int = 1) -> None:
        def so() -> bool:
            statuses = [incident["status"] for incident in self.incidents(server)]
            assert statuses == ["recovered"] * times, statuses
            return True

        eventually(so)
        assert self.sim.running(server) == [HOST]


@contextlib.contextmanager
def a_town(folder: Path) -> Iterator[Town]:
    """All of Holdfast on a simulated cloud, and the configuration of one host's agent."""
    secret = folder / "secret"
    secret.write_text("a secret of at least 32 characters\n")
    agents = {"agent_secret_file": secret, "agent_groups": f"gpu: {HOST}"}
    options = {"auth": agents, "recovery": {"restart_all": True}}
    with all_in_one(folder, options) as (_program, client), contextlib.ExitStack() as stack:
        eventually((folder / "state" / "populated").exists)
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
            "outbox": folder / "agent.outbox",
            "socket": folder / "agent.sock",
            "api_url": client.url,
            "token_file": folder / "token",
        }
        yield Town(folder, client, sim, write_config(folder / "agent.conf", {"agent": about}))
