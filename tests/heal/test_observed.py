# SPDX-License-Identifier: Apache-2.0
"""What the agent of a host saw of its guests and services becomes recovery, once."""

import pytest

from holdfast.model.incident import Incident
from tests.heal.house import HealHouse
from tests.heal.test_guest import ha


class Agent:
    """Of one host: what it writes to the API ends here."""

    def __init__(self, house: HealHouse, host: str) -> None:
        self.house, self.host, self.said = house, host, 0

    def tells(self, subject: str, kind: str, state: str = "failed", **evidence: str) -> str:
        """Report it; the id of the report."""
        self.said += 1
        now = self.house.clock.now()
        values = {
            "observer": f"agent@{self.host}",
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

    def lost(self, server: str) -> str:
        about = {"event": "stopped", "detail": "failed"}
        return self.tells(f"server:{server}", "guest", **about)


def incidents(house: HealHouse) -> list[Incident]:
    store = house.m.store
    with store.database.read() as conn:
        ids = [row[0] for row in conn.exec_driver_sql("SELECT id FROM incidents")]
    return [store.incidents.incident(one) for one in ids]


def test_a_guest_that_the_agent_saw_die_is_started_again(house: HealHouse) -> None:
    house.segment("cmp-1", "cmp-2")
    server = ha(house)
    house.sim.crash_server(server)
    report = Agent(house, "cmp-1").lost(server)
    house.run(seconds=20)
    (incident,) = incidents(house)
    assert incident.status == "recovered"
    assert incident.cause == f"server {server}: stopped failed, says agent@cmp-1"
    assert incident.details["observed"]["detail"] == "failed"
    assert house.sim.running(server) == ["cmp-1"]
    rows = house.m.store.observations.list_all(subject=f"server:{server}")
    assert [(row["id"], row["incident_id"]) for row in rows] == [(report, incident.id)]


def test_agent_and_notification_about_one_death_are_one_incident(house: HealHouse) -> None:
    house.segment("cmp-1", "cmp-2")
    server = ha(house)
    house.sim.crash_server(server)
    agent = Agent(house, "cmp-1")
    agent.lost(server)
    house.report_guest("cmp-1", server)
    agent.lost(server)
    house.run(seconds=20)
    assert [one.status for one in incidents(house)] == ["recovered"]
    assert len(house.effects("servers.start")) == 1


def test_a_second_death_after_the_recovery_is_a_second_incident(house: HealHouse) -> None:
    house.segment("cmp-1", "cmp-2")
    server, agent = ha(house), Agent(house, "cmp-1")
    for _ in range(2):
        house.sim.crash_server(server)
        agent.lost(server)
        house.run(seconds=20)
    assert [one.status for one in incidents(house)] == ["recovered", "recovered"]


@pytest.mark.parametrize("where", ["elsewhere", "nowhere", "no segment", "only noted"])
def test_what_is_not_a_failure_of_this_host_leads_to_nothing(house: HealHouse, where: str) -> None:
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


def test_an_old_report_of_what_runs_again_since_is_explained_by_that(house: HealHouse) -> None:
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
