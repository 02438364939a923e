# SPDX-License-Identifier: Apache-2.0
"""Guests die behind the back of a real Nova; what it says of them is enough to get them back.

They live on a host of these tests' own.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.client.client import Pauses
from tests.lab.house import House, house
from tests.lab.mortal import MortalHost, mortal_host
from tests.lab.test_monitors import drop_queue
from tests.processes import eventually

if TYPE_CHECKING:
    from lab.cloud import Lab

H = "/holdfast/v1"
RECOVERED_S = 180.0


@dataclass
class Town:
    lab: Lab
    home: House
    host: MortalHost
    wire: Any
    owner: Any  # a project's connection

    def observations(self, server: str) -> list[dict[str, Any]]:
        query = {"subject": f"server:{server}"}
        found: list[dict[str, Any]] = self.wire.call(
            "GET", f"{H}/observations", query=query, key="observations"
        )
        return found

    def incidents(self, server: str) -> list[dict[str, Any]]:
        found = self.wire.call("GET", f"{H}/incidents", key="incidents")
        return [one for one in found if one["subject"] == f"server:{server}"]

    def recovered(self, server: str) -> dict[str, Any]:
        """The incident, when it is over; there is one."""

        def over() -> dict[str, Any]:
            found = self.incidents(server)
            assert [one["status"] for one in found] == ["recovered"], found
            return found[0]

        found = eventually(over, RECOVERED_S, 0.2)
        assert self.host.is_running(server)
        shown = self.host.shown(server)
        assert (shown.status, shown.task_state) == ("ACTIVE", None)
        return found

    def agent_says(self, server: str) -> None:
        """What the host's agent would report of the same death."""
        now = datetime.now(UTC).isoformat()
        about = {"event": "stopped", "detail": "failed", "host": self.host.name}
        body = {
            "observer": f"agent@{self.host.name}",
            "subject": f"server:{server}",
            "kind": "guest",
            "state": "failed",
            "since": now,
            "key": f"{server}/{now}",
            "evidence": about,
        }
        self.wire.call("POST", f"{H}/observations", body=body)


@pytest.fixture(scope="module")
def town(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    with contextlib.ExitStack() as stack:
        folder = tmp_path_factory.mktemp("words")
        extra = {
            "monitors": {
                "enabled": "compute, guests",
                "push": True,
                "poll": False,
                "guest_power_offs": "recover",
            },
            "notifications": {"pool": f"words-{uuid.uuid4().hex[:8]}", "keep_days": 1},
            "recovery": {"restart_all": True},
        }
        home = stack.enter_context(house(lab, folder, cloud="nova", managers=2, extra=extra))
        stack.callback(drop_queue, folder / "manager-0.conf")
        host = stack.enter_context(mortal_host(lab, tmp_path_factory.mktemp("mortal")))
        owner = stack.enter_context(contextlib.closing(lab.connect("blue-member", "blue")))
        client = home.client()
        home.commands(
            ["segment", "create", "words", "auto", "COMPUTE"],
            ["segment", "host", "create", host.name, "KVM", "none", "words"],
        )
        yield Town(lab, home, host, client.wire, owner)


@pytest.mark.slow("Nova takes its time to find a guest switched off")
def test_a_guest_shut_down_from_inside_runs_again_with_a_single_incident(town: Town) -> None:
    server = town.host.boot(town.owner, "off")
    pauses = Pauses(town.wire)
    pauses.pause("both are to be heard: one alone would be enough to have it running at once")
    town.host.guest(server, "shutdown")
    town.agent_says(server)
    eventually(
        lambda: {"nova"} <= {observation["observer"] for observation in town.observations(server)}
    )
    pauses.resume()
    incident = town.recovered(server)
    said = town.observations(server)
    assert {one["observer"] for one in said} == {"nova", f"agent@{town.host.name}"}
    eventually(
        lambda: (
            {observation["incident_id"] for observation in town.observations(server)}
            == {incident["id"]}
        )
    )


def test_a_guest_that_nova_finds_crashed_runs_again(town: Town) -> None:
    server = town.host.boot(town.owner, "crashed")
    town.host.guest(server, "crashed")
    town.recovered(server)
    (word,) = town.observations(server)
    assert (word["observer"], word["evidence"]["event"]) == ("nova", "crashed")


def test_a_guest_that_nova_itself_puts_into_error_runs_again(town: Town) -> None:
    """A machine was switched off and on, and its nova-compute cannot resume the guest."""
    server = town.host.boot(town.owner, "error")
    town.host.compute.kill()
    town.host.guest(server, "shutdown")
    town.host.start()
    incident = town.recovered(server)
    assert incident["cause"] == f"server {server}: error, says nova"
    (word,) = town.observations(server)
    assert word["evidence"]["old_state"] == "active"


@pytest.mark.slow("Nova does one action after the other")
def test_actions_requested_by_the_owner_create_no_observations(town: Town) -> None:
    for _ in range(3):
        server = ask_for_all(town)
        if stops(town, server) == 1:
            break
        # Nova read the guest's power before the start and its row after it, as happens on a busy
        # machine: it stopped the server by itself, which nobody asked for
    other = town.host.boot(town.owner, "last")  # what is said of it comes after all of that
    town.host.guest(other, "crashed")
    town.recovered(other)
    assert stops(town, server) == 1
    town.owner.compute.delete_server(server)
    time.sleep(2)
    assert town.observations(server) == []
    assert town.incidents(server) == []


def ask_for_all(town: Town) -> str:
    """Have a server stopped, started, set to error and back, and rebooted; its id."""
    host, owner = town.host, town.owner.compute
    server = host.boot(town.owner, "asked")
    owner.stop_server(server)
    owner.wait_for_server(
        owner.get_server(server), status="SHUTOFF", wait=RECOVERED_S, interval=0.3
    )
    owner.start_server(server)
    owner.wait_for_server(owner.get_server(server), wait=RECOVERED_S, interval=0.3)
    host.admin.compute.reset_server_state(server, "error")
    eventually(lambda: host.shown(server).status == "ERROR")
    host.admin.compute.reset_server_state(server, "active")
    owner.reboot_server(server, "HARD")
    eventually(
        lambda: (host.shown(server).status, host.shown(server).task_state) == ("ACTIVE", None)
    )
    return server


def stops(town: Town, server: str) -> int:
    """How often the server was stopped, by whomever."""
    found = town.host.admin.compute.get(f"/servers/{server}/os-instance-actions").json()
    return sum(instanceAction["action"] == "stop" for instanceAction in found["instanceActions"])
