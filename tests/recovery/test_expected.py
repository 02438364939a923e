# SPDX-License-Identifier: Apache-2.0
"""What a server's status means for its host; several who saw one death are one incident."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.model.incident import RECOVERED
from holdfast.ports.cloud import Server
from holdfast.recovery.expected import ExpectedOnHosts, of_server
from tests.recovery.house import HealHouse

HERE = "cmp-1"


def server(status: str, host: str | None = HERE, task: str | None = None) -> Server:
    return Server("u-1", "web", "blue", host, status, task_state=task)


@pytest.mark.parametrize(
    ("one", "state"),
    [
        (server("ACTIVE"), "runs"),
        (server("PAUSED"), "runs"),
        (server("RESCUE"), "runs"),
        (server("SHUTOFF"), "off"),
        (server("SUSPENDED"), "off"),
        (server("SOFT_DELETED"), "off"),
        (server("ACTIVE", "cmp-1.example.org"), "runs"),
        (server("ACTIVE", "cmp-2"), "elsewhere"),
        (server("SHUTOFF", "cmp-2"), "elsewhere"),
        (server("SHELVED_OFFLOADED", None), "elsewhere"),
        (server("DELETED"), "unknown"),
        (server("BUILD"), "busy"),
        (server("BUILD", None), "busy"),
        (server("ACTIVE", None), "busy"),
        (server("ERROR"), "busy"),
        (server("VERIFY_RESIZE"), "busy"),
        (server("SOMETHING_NEW"), "busy"),
        (server("ACTIVE", task="migrating"), "busy"),
        (server("ACTIVE", "cmp-2", task="migrating"), "busy"),
        (server("ACTIVE", task="deleting"), "busy"),
        (server("SHUTOFF", task="powering-on"), "busy"),
    ],
)
def test_the_expected_state_of_a_server_on_a_host(one: Server, state: str) -> None:
    assert of_server(one, HERE, ()).state == state


def test_a_server_with_an_open_incident_is_busy() -> None:
    assert of_server(server("ACTIVE"), HERE, {"server:u-1"}).state == "busy"
    assert of_server(server("ACTIVE"), HERE, {"host:cmp-1"}).state == "busy"
    assert of_server(server("ACTIVE"), HERE, {"server:u-2", "process:cmp-1:x"}).state == "runs"


@pytest.fixture
def town(house: HealHouse) -> HealHouse:
    house.recovery.restart_all = True
    house.segment(HERE, "cmp-2", "cmp-3")
    return house


def reported(house: HealHouse, server_id: str, event: str, detail: str, observer: str) -> str:
    """Of an agent, or another that saw it; the id of what is kept."""
    values: dict[str, Any] = {
        "observer": observer,
        "subject": f"server:{server_id}",
        "kind": "guest",
        "state": "failed",
        "since": house.clock.now(),
        "key": f"{server_id}/{event}/{observer}",
        "evidence": {"host": HERE, "event": event, "detail": detail},
    }
    row, _new = house.m.store.observations.add(house.new_id(), values)
    return str(row["id"])


def test_an_event_and_the_second_opinion_about_a_guest_share_an_incident(
    town: HealHouse,
) -> None:
    guest = town.boot("web", HERE)
    expected = ExpectedOnHosts(town.m.store.incidents, town.m.cloud)
    town.sim.crash_server(guest)
    first = reported(town, guest, "stopped", "failed", f"agent@{HERE}")
    town.clock.advance(0.5)
    second = reported(town, guest, "expectation", "stopped", f"agent@{HERE}")
    town.run(seconds=30)
    kept = {row["id"]: row["incident_id"] for row in town.m.store.observations.list_all()}
    assert kept[first] is not None
    assert kept[first] == kept[second]
    assert town.m.store.incidents.incident(kept[first]).status == RECOVERED
    assert town.sim.running(guest) == [HERE]
    (one,) = expected.expected(HERE).servers
    assert one.state == "runs"


def test_a_failure_known_only_to_the_second_opinion_is_recovered(town: HealHouse) -> None:
    guest = town.boot("web", HERE)
    town.sim.lose_server(guest)
    assert town.sim.running(guest) == []
    reported(town, guest, "expectation", "missing", f"agent@{HERE}")
    town.run(seconds=30)
    (incident,) = {row["incident_id"] for row in town.m.store.observations.list_all()}
    found = town.m.store.incidents.incident(incident)
    assert found.status == RECOVERED
    assert "expectation missing" in found.cause
    assert town.sim.running(guest) == [HERE]


def test_a_guest_in_recovery_is_expected_busy(town: HealHouse) -> None:
    guest = town.boot("web", HERE)
    town.sim.lose_server(guest)
    town.sim.change(action_s=5.0)
    reported(town, guest, "expectation", "missing", f"agent@{HERE}")
    town.run(seconds=1)
    expected = ExpectedOnHosts(town.m.store.incidents, town.m.cloud)
    (one,) = expected.expected(HERE).servers
    assert one.state == "busy"
    town.run(seconds=60)
    (one,) = expected.expected(HERE).servers
    assert (one.state, town.sim.running(guest)) == ("runs", [HERE])
