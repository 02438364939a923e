# SPDX-License-Identifier: Apache-2.0
"""What Nova says of a server that nobody asked anything of becomes recovery: once, whoever else
says so, and not any more when the cloud shows otherwise."""

from __future__ import annotations

import itertools
from datetime import timedelta
from types import SimpleNamespace

import pytest

from holdfast.hoststatus.plugins.guests import GuestMonitor, GuestReportWriter
from tests.hoststatus.recorded import CRASHED, FAILED, OFF, notice
from tests.recovery.house import HealHouse
from tests.recovery.test_guest import ha
from tests.recovery.test_observed import Agent, incidents

SOURCES = ("agent", "expectation", "nova")


class Nova:
    """What it says ends in the store, by the monitor's own road."""

    def __init__(self, house: HealHouse, power_offs: str = "recover") -> None:
        options = SimpleNamespace(guest_errors="recover", guest_power_offs=power_offs)
        self.house = house
        self.monitor = GuestMonitor(SimpleNamespace(monitors=options))
        self.news = GuestReportWriter(house.m.store.observations, house.new_id, lambda: None)

    def says(self, what: str, server: str, host: str = "cmp-1", ago_s: float = 0) -> None:
        at = self.house.clock.now() - timedelta(seconds=ago_s)
        about = {"uuid": server, "host": host, "message_id": self.house.new_id()}
        heard = notice(what, **about, timestamp=at.replace(tzinfo=None).isoformat(" "))
        self.news.write(self.monitor.heard(heard))


def fails(house: HealHouse, what: str, server: str) -> None:
    """As the cloud shows it."""
    if what == FAILED:
        house.m.cloud.servers.reset(server, active=False)
    else:
        house.sim.crash_server(server)
        house.run(seconds=5)


@pytest.mark.parametrize("what", [FAILED, CRASHED, OFF])
def test_a_server_found_dead_by_nova_is_started_again(house: HealHouse, what: str) -> None:
    house.segment("cmp-1", "cmp-2")
    server = ha(house)
    fails(house, what, server)
    Nova(house).says(what, server)
    house.run(seconds=20)
    (incident,) = incidents(house)
    assert (incident.kind, incident.status) == ("guest", "recovered")
    assert incident.cause.endswith(", says nova")
    assert house.sim.running(server) == ["cmp-1"]


def test_three_sources_make_a_single_incident(house: HealHouse) -> None:
    house.segment("cmp-1", "cmp-2")
    server, agent, nova = ha(house), Agent(house, "cmp-1"), Nova(house)
    fails(house, OFF, server)
    nova.says(OFF, server)
    agent.lost(server)
    house.report_guest("cmp-1", server)
    nova.says(OFF, server)
    house.run(seconds=20)
    (incident,) = incidents(house)
    assert incident.status == "recovered"
    assert len(house.effects("servers.start")) == 1
    rows = house.m.store.observations.list_all(subject=f"server:{server}")
    assert {row["incident_id"] for row in rows} == {incident.id}
    assert {row["observer"] for row in rows} == {"nova", "agent@cmp-1"}


@pytest.mark.parametrize("shown", [True, False], ids=["shown by the cloud", "not shown yet"])
@pytest.mark.parametrize("pause_s", [0.0, 0.3, 25.0])
@pytest.mark.parametrize("order", [*itertools.permutations(SOURCES)])
def test_agent_expectation_and_nova_about_one_death_are_one_incident_in_every_order(
    house: HealHouse, order: tuple[str, ...], pause_s: float, shown: bool
) -> None:
    """Together, while it is being recovered, or late; each is dated by when it died."""
    house.segment("cmp-1", "cmp-2")
    server, agent, nova = ha(house), Agent(house, "cmp-1"), Nova(house)
    if not shown:
        house.sim.change(action_s=15.0)
    house.sim.crash_server(server)
    house.sim.change(action_s=0.2)
    if shown:
        house.run(seconds=1)
    died = house.clock.now()
    for who in order:
        ago_s = (house.clock.now() - died).total_seconds()
        if who == "nova":
            nova.says(OFF, server, ago_s=ago_s)
        else:
            (agent.lost if who == "agent" else agent.misses)(server, ago_s)
        house.run(seconds=pause_s)
    house.run(seconds=60)
    (incident,) = incidents(house)
    assert incident.status == "recovered"
    assert len(house.effects("servers.start")) == 1
    assert house.sim.running(server) == ["cmp-1"]
    rows = house.m.store.observations.list_all(subject=f"server:{server}")
    theirs = {row["incident_id"] for row in rows if row["observer"] != "nova"}
    assert theirs == {incident.id}


def test_a_notification_after_the_report_of_the_agent_changes_nothing(house: HealHouse) -> None:
    house.segment("cmp-1", "cmp-2")
    server, agent = ha(house), Agent(house, "cmp-1")
    fails(house, OFF, server)
    agent.lost(server)
    house.run(seconds=20)
    Nova(house).says(OFF, server, ago_s=20)
    house.run(seconds=20)
    assert [incident.status for incident in incidents(house)] == ["recovered"]
    assert len(house.effects("servers.stop")) <= 1


@pytest.mark.parametrize("what", [FAILED, CRASHED, OFF])
def test_a_server_that_runs_again_at_the_notification_is_left_alone(
    house: HealHouse, what: str
) -> None:
    house.segment("cmp-1", "cmp-2")
    server = ha(house)
    Nova(house).says(what, server, ago_s=600)
    house.run(seconds=20)
    assert incidents(house) == []
    assert not house.effects("servers.stop")


def test_a_server_moved_since_is_left_alone(house: HealHouse) -> None:
    house.segment("cmp-1", "cmp-2")
    server = ha(house, host="cmp-2")
    fails(house, FAILED, server)
    Nova(house).says(FAILED, server, host="cmp-1")
    house.run(seconds=20)
    assert incidents(house) == []


def test_an_unexplained_power_off_is_only_noted_by_default(
    house: HealHouse,
) -> None:
    house.segment("cmp-1", "cmp-2")
    server = ha(house)
    fails(house, OFF, server)
    Nova(house, power_offs="report").says(OFF, server)
    house.run(seconds=20)
    assert incidents(house) == []
    (row,) = house.m.store.observations.list_all(subject=f"server:{server}")
    assert (row["state"], row["incident_id"]) == ("noted", None)
