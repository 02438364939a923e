# SPDX-License-Identifier: Apache-2.0
"""A guest that failed and runs again, whoever saw to that, is not stopped for that failure."""

from dataclasses import replace
from typing import Any

import pytest

from holdfast.model.errors import DriverError
from holdfast.model.incident_progress import plain
from tests.recovery.house import HealHouse
from tests.recovery.test_guest import ha
from tests.recovery.test_observed import MOMENTS, Agent, dies_again, incidents


def by_hand(house: HealHouse, agent: Agent, server: str) -> None:
    """Somebody starts it, and its agent sees that."""
    house.m.cloud.servers.start(server)
    agent.runs(server)


def test_a_guest_that_was_started_by_hand_while_recovery_was_paused_is_left_alone(
    house: HealHouse,
) -> None:
    house.segment("cmp-1", "cmp-2")
    server, agent = ha(house), Agent(house, "cmp-1")
    house.m.store.switches.pause("", "ann", "storm", None)
    house.sim.crash_server(server)
    agent.lost(server)
    house.run(seconds=20)
    assert [incident.status for incident in incidents(house)] == ["held"]
    by_hand(house, agent, server)
    house.run(seconds=20)
    (incident,) = incidents(house)
    assert incident.status == "ignored"
    assert incident.sentence.startswith("it runs again since 20")
    assert incident.sentence.endswith("says agent@cmp-1: no action is needed")
    house.m.store.switches.resume("", "ann")
    house.run(minutes=10)
    assert not house.effects("servers.stop")
    assert len(house.effects("servers.start")) == 1  # by hand
    assert len(incidents(house)) == 1


def test_a_report_delayed_until_the_guest_runs_again_opens_nothing(house: HealHouse) -> None:
    """Its manager, or its API, was away for as long."""
    house.segment("cmp-1", "cmp-2")
    server, agent = ha(house), Agent(house, "cmp-1")
    agent.lost(server, ago_s=300)
    agent.runs(server, ago_s=200)
    house.run(seconds=20)
    agent.tells(f"server:{server}", "guest", ago_s=100, over_since="2030-01-01T00:00:00+00:00")
    house.run(seconds=20)
    assert incidents(house) == []
    assert not house.effects("servers.stop")


def test_a_guest_dying_after_its_restart_has_failed_anew(house: HealHouse) -> None:
    house.segment("cmp-1", "cmp-2")
    server, agent = ha(house), Agent(house, "cmp-1")
    agent.lost(server, ago_s=300)
    agent.runs(server, ago_s=200)
    house.run(seconds=5)
    for _ in range(2):
        house.sim.crash_server(server)
        agent.lost(server)
        house.run(seconds=20)
        agent.runs(server)  # as we ordered: nothing is closed for that, nor opened
        house.run(seconds=20)
    assert [incident.status for incident in incidents(house)] == ["recovered"] * 2
    assert house.sim.running(server) == ["cmp-1"]
    assert len(house.effects("servers.start")) == 2


@pytest.mark.parametrize("when", MOMENTS)
def test_a_running_guest_disturbs_no_recovery_under_way(house: HealHouse, when: str) -> None:
    house.segment("cmp-1", "cmp-2")
    server, agent = ha(house), Agent(house, "cmp-1")
    house.sim.crash_server(server)
    agent.lost(server)
    said = dies_again(house, when, lambda: agent.runs(server) and None)
    house.run(seconds=40)
    assert said
    assert [incident.status for incident in incidents(house)] == ["recovered"]
    assert len(house.effects("servers.start")) == 1


def test_a_guest_that_runs_again_while_the_cloud_cannot_be_asked_is_not_stopped(
    house: HealHouse,
) -> None:
    """The guards said yes, and then Nova was away until somebody had started it."""
    house.segment("cmp-1", "cmp-2")
    server, agent = ha(house), Agent(house, "cmp-1")
    house.sim.crash_server(server)
    agent.lost(server)
    show, away = house.m.cloud.servers.show, list[bool]()
    step_done = house.m.store.operations.step_done

    def asked(name: str) -> Any:
        if away:
            raise DriverError("nova", "it is away", retryable=True)
        return show(name)

    def step(claim: Any, position: int, name: str, *more: Any) -> Any:
        done = step_done(claim, position, name, *more)
        if name == "guards":
            away.append(True)
        return done

    house.m.cloud.servers.show = asked  # type: ignore[method-assign]
    house.m.store.operations.step_done = step  # type: ignore[method-assign]
    house.run(seconds=20)
    assert away
    by_hand(house, agent, server)
    away.clear()
    house.run(minutes=5)
    (incident,) = incidents(house)
    assert (incident.status, plain(incident.details).get("stop_by")) == ("ignored", None)
    assert not house.effects("servers.stop")


def test_of_several_reports_about_a_guest_the_latest_counts(house: HealHouse) -> None:
    house.segment("cmp-1", "cmp-2")
    server, agent = ha(house), Agent(house, "cmp-1")
    nova = Agent(house, "cmp-1")
    nova.name = "nova"
    house.m.store.switches.pause("", "ann", "storm", None)
    house.sim.crash_server(server)
    agent.lost(server, ago_s=60)
    agent.runs(server, ago_s=30)
    nova.lost(server)  # which is later: it died again
    house.run(seconds=10)
    assert [incident.status for incident in incidents(house)] == ["held"]
    house.clock.advance(1)
    agent.runs(server)
    house.run(seconds=10)
    assert [incident.status for incident in incidents(house)] == ["ignored"]


@pytest.mark.parametrize("lie", ["well", "failed and well"])
def test_the_agent_of_another_host_does_not_stop_the_recovery_of_a_guest(
    house: HealHouse, lie: str
) -> None:
    house.segment("cmp-1", "cmp-2")
    server, stranger = ha(house), Agent(house, "cmp-2")
    house.m.store.switches.pause("", "ann", "storm", None)
    house.sim.crash_server(server)
    Agent(house, "cmp-1").lost(server)
    house.run(seconds=10)
    if lie != "well":
        stranger.lost(server)
        house.run(seconds=10)
    stranger.runs(server)
    house.m.store.switches.resume("", "ann")
    house.run(seconds=30)
    assert [incident.status for incident in incidents(house)] == ["recovered"]
    assert house.sim.running(server) == ["cmp-1"]


def test_the_agent_of_another_host_does_not_have_a_guest_stopped_that_runs_again(
    house: HealHouse,
) -> None:
    house.segment("cmp-1", "cmp-2")
    server, agent = ha(house), Agent(house, "cmp-1")
    house.m.store.switches.pause("", "ann", "storm", None)
    house.sim.crash_server(server)
    agent.lost(server)
    house.run(seconds=5)
    by_hand(house, agent, server)
    house.clock.advance(5)
    Agent(house, "cmp-2").lost(server)
    house.m.store.switches.resume("", "ann")
    house.run(seconds=30)
    assert [incident.status for incident in incidents(house)] == ["ignored"]
    assert not house.effects("servers.stop")


def test_a_notification_of_a_guest_that_runs_again_since_is_answered_and_nothing_is_done(
    house: HealHouse,
) -> None:
    house.segment("cmp-1", "cmp-2")
    server, agent = ha(house), Agent(house, "cmp-1")
    died = house.clock.now()
    house.clock.advance(5)
    agent.runs(server)
    house.report_guest("cmp-1", server, at=died)
    house.run(seconds=10)
    assert [incident.status for incident in incidents(house)] == ["ignored"]
    house.clock.advance(1)
    house.sim.crash_server(server)
    house.report_guest("cmp-1", server, at=house.clock.now())
    house.run(seconds=20)
    assert [incident.status for incident in incidents(house)] == ["ignored", "recovered"]


def test_a_guest_deleted_during_its_recovery_leaves_nothing_open(
    house: HealHouse,
) -> None:
    house.segment("cmp-1", "cmp-2")
    server, agent = ha(house), Agent(house, "cmp-1")
    house.sim.crash_server(server)
    agent.lost(server)
    dies_again(house, MOMENTS[1], lambda: house.m.cloud.servers.delete(server))
    house.run(minutes=5)
    (incident,) = incidents(house)
    assert (incident.status, incident.sentence) == ("ignored", "the server was deleted meanwhile")


# what leads to nothing is told


def test_a_noted_guest_report_is_announced_once(house: HealHouse) -> None:
    house.segment("cmp-1", "cmp-2")
    server, agent = ha(house), Agent(house, "cmp-1")
    about = {"event": "io_error", "detail": "pause", "reason": "enospc", "domain_name": "web"}
    agent.tells(f"server:{server}", "guest", "noted", **about)
    agent.said -= 1  # the same again
    agent.tells(f"server:{server}", "guest", "noted", **about)
    house.run(seconds=5)
    (heard,) = house.ear.heard
    assert (heard.event_type, heard.publisher) == ("guest.noted", "holdfast.observation")
    assert heard.payload["sentence"] == "web on cmp-1: noted: io_error pause enospc"
    assert heard.payload["subject"] == f"server:{server}"
    assert heard.payload["evidence"]["reason"] == "enospc"


def test_services_that_fail_and_are_well_again_are_announced_in_their_order(
    house: HealHouse,
) -> None:
    house.segment("cmp-1", "cmp-2")
    agent = Agent(house, "cmp-1")
    for state in ("failed", "well", "failed"):
        agent.tells("process:cmp-1:libvirtd", "process", state, sentence=f"libvirtd: {state}")
        house.clock.advance(1)
    house.run(seconds=5)
    heard = [(one.event_type, one.payload["sentence"]) for one in house.ear.heard]
    assert heard == [
        ("process.failed", "cmp-1: libvirtd: failed"),
        ("process.well", "cmp-1: libvirtd: well"),
        ("process.failed", "cmp-1: libvirtd: failed"),
    ]
    assert incidents(house) == []


def test_a_failed_guest_is_published_by_its_incident_only(house: HealHouse) -> None:
    house.segment("cmp-1", "cmp-2")
    server, agent = ha(house), Agent(house, "cmp-1")
    house.sim.crash_server(server)
    agent.lost(server)
    house.run(seconds=20)
    agent.runs(server)
    house.run(seconds=5)
    assert {one.event_type for one in house.ear.heard} == {"incident.opened", "incident.recovered"}


# by the cloud's own look


@pytest.mark.parametrize("how", ["stopped", "monitor", "simulated"])
def test_nova_is_trusted_about_a_running_guest_and_not_about_a_hanging_guest(
    house: HealHouse, how: str
) -> None:
    """Of an agent of before there is no word that it runs again."""
    house.segment("cmp-1", "cmp-2")
    server, agent = ha(house), Agent(house, "cmp-1")
    show = house.m.cloud.servers.show
    live = lambda name: replace(show(name), live=True, powered=True)  # noqa: E731
    house.m.cloud.servers.show = live  # type: ignore[method-assign]
    event = "monitor" if how == "monitor" else "stopped"
    agent.tells(f"server:{server}", "guest", event=event, simulated=how == "simulated")
    house.run(seconds=20)
    (incident,) = incidents(house)
    if how == "stopped":
        said = "the cloud sees it run on cmp-1: no action is needed"
        assert (incident.status, incident.sentence) == ("ignored", said)
        assert not house.effects("servers.stop")
    else:
        assert incident.status == "recovered"
        assert len(house.effects("servers.stop")) == 1
