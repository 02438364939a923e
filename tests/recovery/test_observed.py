# SPDX-License-Identifier: Apache-2.0
"""What the agent of a host saw of its guests and services becomes recovery, once."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from holdfast.model.errors import DriverError
from holdfast.model.incident import Incident
from holdfast.model.incident_progress import plain
from tests.recovery.house import HealHouse
from tests.recovery.test_guest import ha


class Agent:
    """Of one host: what it writes to the API ends here."""

    def __init__(self, house: HealHouse, host: str) -> None:
        self.house, self.host, self.said = house, host, 0
        self.name = f"agent@{host}"

    def tells(
        self, subject: str, kind: str, state: str = "failed", ago_s: float = 0.0, **evidence: Any
    ) -> str:
        """Report it; the id of the report."""
        self.said += 1
        now = self.house.clock.now() - timedelta(seconds=ago_s)
        values = {
            "observer": self.name,
            "subject": subject,
            "kind": kind,
            "state": state,
            "since": now,
            "observed_at": now,
            "key": f"{subject}/{self.said}",
            "evidence": {"host": self.host, **evidence},
        }
        row, _new = self.house.m.store.observations.add(self.house.new_id(), values)
        return str(row["id"])

    def lost(self, server: str, ago_s: float = 0.0) -> str:
        about = {"event": "stopped", "detail": "failed"}
        return self.tells(f"server:{server}", "guest", ago_s=ago_s, **about)

    def runs(self, server: str, ago_s: float = 0.0) -> str:
        about = {"event": "running", "detail": "again"}
        return self.tells(f"server:{server}", "guest", "well", ago_s=ago_s, **about)

    def misses(self, server: str, ago_s: float = 0.0) -> str:
        """By comparison with what should run there."""
        about = {"event": "expectation", "detail": "stopped", "reason": "crashed"}
        return self.tells(f"server:{server}", "guest", ago_s=ago_s, **about)


def incidents(house: HealHouse) -> list[Incident]:
    store = house.m.store
    with store.database.read() as conn:
        ids = [row[0] for row in conn.exec_driver_sql("SELECT id FROM incidents")]
    return [store.incidents.incident(one) for one in ids]


def test_a_guest_reported_dead_by_its_agent_is_started_again(house: HealHouse) -> None:
    house.segment("cmp-1", "cmp-2")
    server = ha(house)
    house.sim.crash_server(server)
    report = Agent(house, "cmp-1").lost(server)
    house.run(seconds=20)
    (incident,) = incidents(house)
    assert incident.status == "recovered"
    assert incident.cause == f"server {server}: stopped failed, says agent@cmp-1"
    assert plain(incident.details)["observed"]["detail"] == "failed"
    assert house.sim.running(server) == ["cmp-1"]
    rows = house.m.store.observations.list_all(subject=f"server:{server}")
    assert [(row["id"], row["incident_id"]) for row in rows] == [(report, incident.id)]


def test_agent_and_notification_about_the_same_death_share_an_incident(house: HealHouse) -> None:
    house.segment("cmp-1", "cmp-2")
    server = ha(house)
    house.sim.crash_server(server)
    agent = Agent(house, "cmp-1")
    agent.lost(server)
    house.report_guest("cmp-1", server)
    agent.lost(server)
    house.run(seconds=20)
    assert [incident.status for incident in incidents(house)] == ["recovered"]
    assert len(house.effects("servers.start")) == 1


def test_a_second_death_after_the_recovery_is_a_second_incident(house: HealHouse) -> None:
    house.segment("cmp-1", "cmp-2")
    server, agent = ha(house), Agent(house, "cmp-1")
    for _ in range(2):
        house.sim.crash_server(server)
        agent.lost(server)
        house.run(seconds=20)
    assert [incident.status for incident in incidents(house)] == ["recovered", "recovered"]


@pytest.mark.parametrize("where", ["elsewhere", "nowhere", "no segment", "only noted"])
def test_an_observation_without_a_failure_of_this_host_leads_to_nothing(
    house: HealHouse, where: str
) -> None:
    house.segment("cmp-1", "cmp-2")
    server = ha(house, host="cmp-2" if where == "elsewhere" else "cmp-1")
    agent = Agent(house, "cmp-3" if where == "no segment" else "cmp-1")
    if where == "nowhere":
        server = "00000000-0000-4000-8000-000000000000"
    state = "noted" if where == "only noted" else "failed"
    agent.tells(f"server:{server}", "guest", state, event="stopped")
    house.run(seconds=20)
    assert incidents(house) == []
    assert not house.effects("servers.stop")


@pytest.mark.parametrize("wish", ["suspend", "shelve"])
def test_a_guest_stopped_by_its_owner_stays_off(house: HealHouse, wish: str) -> None:
    """Of one that was suspended or shelved after it crashed libvirt says `crashed` as before."""
    house.segment("cmp-1", "cmp-2")
    server = ha(house)
    getattr(house.m.cloud.servers, wish)(server)
    house.run(seconds=5)
    Agent(house, "cmp-1").lost(server)
    house.run(minutes=6)
    assert incidents(house) == []
    for call in ("stop", "start", "unshelve"):
        assert not house.effects(f"servers.{call}")


def test_a_death_without_a_time_counts_only_while_nova_shows_active(
    house: HealHouse,
) -> None:
    """What an agent finds when it first comes may be off for weeks."""
    house.segment("cmp-1", "cmp-2")
    server, agent = ha(house), Agent(house, "cmp-1")
    subject, found = f"server:{server}", {"event": "stopped", "detail": "failed"}
    house.m.cloud.servers.stop(server)
    house.run(seconds=5)
    agent.tells(subject, "guest", still=["ACTIVE"], **found)
    house.run(seconds=20)
    assert incidents(house) == []
    house.m.cloud.servers.start(server)
    house.run(seconds=5)
    house.sim.change(action_s=60.0)
    house.sim.crash_server(server)
    house.sim.change(action_s=0.2)
    agent.tells(subject, "guest", still=["ACTIVE"], **found)
    house.run(seconds=20)
    assert [incident.status for incident in incidents(house)] == ["recovered"]
    assert house.sim.running(server) == ["cmp-1"]


def test_nova_compute_that_does_not_run_closes_its_host_and_other_services_do_not(
    house: HealHouse,
) -> None:
    house.segment("cmp-1", "cmp-2")
    agent = Agent(house, "cmp-1")
    agent.tells("process:cmp-1:libvirtd", "process", sentence="libvirtd does not run")
    house.run(seconds=5)
    assert incidents(house) == []
    agent.tells("process:cmp-1:nova-compute", "process", sentence="it does not run")
    house.run(seconds=20)
    (incident,) = incidents(house)
    assert (incident.kind, incident.host) == ("process", "cmp-1")
    assert house.effects("services.disable")


def test_an_old_report_about_a_restarted_guest_is_explained(house: HealHouse) -> None:
    house.segment("cmp-1", "cmp-2")
    server, agent = ha(house), Agent(house, "cmp-1")
    house.sim.crash_server(server)
    late = house.clock.now()
    agent.lost(server)
    house.run(seconds=20)
    values = {"event": "stopped", "detail": "failed", "host": "cmp-1"}
    house.m.store.observations.add(
        house.new_id(),
        {
            "observer": "agent@cmp-1",
            "subject": f"server:{server}",
            "kind": "guest",
            "state": "failed",
            "since": late,
            "observed_at": late,
            "key": "late",
            "evidence": values,
        },
    )
    house.run(seconds=20)
    assert len(incidents(house)) == 1


def test_reports_by_a_clock_that_is_ahead_are_about_one_death_all_the_same(
    house: HealHouse,
) -> None:
    house.segment("cmp-1", "cmp-2")
    server, agent = ha(house), Agent(house, "cmp-1")
    house.sim.crash_server(server)
    agent.lost(server, ago_s=-300)
    agent.misses(server, ago_s=-300)
    house.run(seconds=30)
    assert [incident.status for incident in incidents(house)] == ["recovered"]
    assert len(house.effects("servers.start")) == 1


def test_a_crash_that_a_second_observer_dates_in_the_future_is_not_recovered_twice(
    house: HealHouse,
) -> None:
    house.segment("cmp-1", "cmp-2")
    server, agent, nova = ha(house), Agent(house, "cmp-1"), Agent(house, "cmp-1")
    nova.name = "nova"
    house.sim.crash_server(server)
    agent.lost(server)
    house.run(seconds=20)
    nova.lost(server, ago_s=-60)
    house.run(minutes=2)
    assert [incident.status for incident in incidents(house)] == ["recovered"]
    assert len(house.effects("servers.start")) == 1
    house.sim.change(action_s=10.0)
    house.sim.crash_server(server)
    nova.lost(server, ago_s=-60)  # which is a new one: the cloud sees it, a little later
    house.run(minutes=2)
    assert [incident.status for incident in incidents(house)] == ["recovered"] * 2


def test_what_an_agent_says_again_is_a_new_failure_only_if_it_was_brought_back_since(
    house: HealHouse,
) -> None:
    """An agent that was started anew cannot know; `told_before` is when it told it first."""
    house.segment("cmp-1", "cmp-2")
    server, agent = ha(house), Agent(house, "cmp-1")
    subject, about = f"server:{server}", {"event": "stopped", "detail": "failed"}

    def again(first: datetime) -> None:
        agent.tells(subject, "guest", **about, told_before=first.isoformat())
        house.run(seconds=20)

    house.sim.crash_server(server)
    first = house.clock.now()
    agent.lost(server)
    agent.tells(subject, "guest", **about, told_before=first.isoformat())  # not yet brought back
    house.run(seconds=20)
    assert [incident.status for incident in incidents(house)] == ["recovered"]
    house.sim.crash_server(server)  # nobody was there to see it
    second = house.clock.now()
    again(first)
    assert [incident.status for incident in incidents(house)] == ["recovered"] * 2
    house.recovery.guest_max_recoveries = 0
    house.sim.crash_server(server)
    again(second)
    again(second + timedelta(seconds=20))  # as it was told last
    assert [incident.status for incident in incidents(house)] == [*["recovered"] * 2, "failed"]


def test_a_death_after_the_guest_was_seen_to_run_again_does_not_vanish_in_the_old_incident(
    house: HealHouse,
) -> None:
    house.segment("cmp-1", "cmp-2")
    server, agent = ha(house), Agent(house, "cmp-1")
    house.sim.crash_server(server)
    agent.lost(server)
    died = []
    close = house.m.store.incidents.close

    def dies_first(*words: Any, **more: Any) -> Any:
        if not died:
            died.append(house.clock.now())
            house.clock.advance(0.1)
            house.sim.crash_server(server)
            agent.lost(server)
            raise DriverError("store", "not just now", retryable=True)
        return close(*words, **more)

    house.m.store.incidents.close = dies_first  # type: ignore[method-assign]
    house.run(seconds=40)
    assert died
    assert [incident.status for incident in incidents(house)] == ["recovered"] * 2
    assert house.sim.running(server) == ["cmp-1"]


#: Just after these a guest that runs again dies once more.
MOMENTS = ("it was asked to start", "start was seen", "confirm was seen")


def dies_again(house: HealHouse, when: str, die: Callable[[], None]) -> list[str]:
    """Once, at that moment; what is in the list then."""
    died: list[str] = []

    def now(moment: str) -> None:
        if moment == when and not died:
            died.append(moment)
            house.clock.advance(0.1)
            die()

    start, step_done = house.m.cloud.servers.start, house.m.store.operations.step_done

    def asked(server: str) -> None:
        start(server)
        now("it was asked to start")

    def step(claim: Any, position: int, name: str, *more: Any) -> Any:
        done = step_done(claim, position, name, *more)
        now(f"{name} was seen")
        return done

    house.m.cloud.servers.start = asked  # type: ignore[method-assign]
    house.m.store.operations.step_done = step  # type: ignore[method-assign]
    return died


@pytest.mark.parametrize("who", ["agent", "notification"])
@pytest.mark.parametrize("shows_s", [0.0, 15.0])
@pytest.mark.parametrize("when", MOMENTS)
def test_a_death_soon_after_the_restart_is_a_second_one_however_long_the_cloud_says_active(
    house: HealHouse, when: str, shows_s: float, who: str
) -> None:
    house.segment("cmp-1", "cmp-2")
    server, agent = ha(house), Agent(house, "cmp-1")

    def lost() -> None:
        if who == "agent":
            agent.lost(server)
        else:
            house.report_guest("cmp-1", server)

    def die() -> None:
        house.sim.change(action_s=shows_s)
        house.sim.crash_server(server)
        house.sim.change(action_s=0.0)
        lost()

    house.sim.crash_server(server)
    lost()
    died = dies_again(house, when, die)
    house.run(seconds=90)
    assert died
    known_off = when == MOMENTS[0] and not shows_s  # the incident itself sees that it must go on
    assert [incident.status for incident in incidents(house)] == ["recovered"] * (
        1 if known_off else 2
    )
    assert house.sim.running(server) == ["cmp-1"]
    assert len(house.effects("servers.start")) == 2
    assert not house.effects("servers.shelve")


def test_a_guest_dying_at_every_start_is_left_to_operators_after_its_budget(
    house: HealHouse,
) -> None:
    house.segment("cmp-1", "cmp-2")
    house.recovery.guest_max_recoveries = 3
    server, agent = ha(house), Agent(house, "cmp-1")
    start = house.m.cloud.servers.start

    def starts(server: str) -> None:
        start(server)
        house.clock.advance(0.1)
        house.sim.change(action_s=15.0)
        house.sim.crash_server(server)
        house.sim.change(action_s=0.0)
        agent.lost(server)

    house.m.cloud.servers.start = starts  # type: ignore[method-assign]
    house.sim.crash_server(server)
    agent.lost(server)
    house.run(minutes=5)
    found = incidents(house)
    assert sorted(one.status for one in found) == ["failed", *["recovered"] * 3]
    assert len(house.effects("servers.start")) == 3
