# SPDX-License-Identifier: Apache-2.0
"""What an operator orders, on the simulated cloud: try again, leave it, the host is off, go on."""

import pytest
import sqlalchemy as sa

from holdfast.db.tables import hosts
from holdfast.model.errors import Conflict, NotFound
from holdfast.model.incident import STEPS
from holdfast.model.incident_progress import plain
from holdfast.recovery.guest import GuestRecovery
from holdfast.recovery.host import HostRecovery, ProcessRecovery
from tests.recovery.house import HealHouse

HOSTS = ("cmp-1", "cmp-2", "cmp-3", "cmp-4", "cmp-5", "cmp-6", "cmp-7", "cmp-8")


def dead(house: HealHouse, host: str = "cmp-1", servers: int = 3) -> str:
    """A host with servers dies and is reported."""
    for number in range(servers):
        house.boot(f"web-{number}", host)
    house.sim.fail_host(host)
    return house.report(host)


def where(house: HealHouse) -> set[str]:
    return {str(server["host"]) for server in house.sim.world()["servers"]}


def test_the_shown_steps_are_the_steps_of_the_recovery(house: HealHouse) -> None:
    for kind in (HostRecovery, GuestRecovery, ProcessRecovery):
        named = {"recovery_host": "host", "recovery_guest": "guest", "recovery_process": "process"}
        found = tuple(step.name for step in kind(house.context).own())
        assert found == STEPS[named[kind.name]]


def test_an_aborted_incident_begins_nothing_more_and_can_be_retried(house: HealHouse) -> None:
    house.segment(*HOSTS)
    house.recovery.parallel_moves = 1
    house.sim.change(action_s=5.0)
    report = dead(house)
    house.run(seconds=4)
    orders, incident = house.m.store.incident_actions, house.incident(report)
    aborted = orders.abort(incident.id, "ann", "a drill")
    assert aborted.status == "aborted"
    assert aborted.closed_at is not None
    assert "cmp-1 stays forced down" in aborted.sentence
    assert house.reported(report) == "failed"
    house.run(seconds=60)
    assert [move.status for move in house.moves(report)] == ["succeeded", "ignored", "ignored"]
    assert house.moves(report)[1].message == "aborted by ann: a drill"
    house.check_unlocked()
    with pytest.raises(Conflict, match="aborted already"):
        orders.abort(incident.id, "ann", "again")
    again = orders.retry(incident.id, "bob", "no drill")
    assert (again.status, again.closed_at, house.reported(report)) == ("open", None, "running")
    house.run(minutes=2)
    incident = house.incident(report)
    assert (incident.status, house.reported(report)) == ("recovered", "finished"), incident
    assert {move.status for move in house.moves(report)} == {"succeeded"}
    assert "cmp-1" not in where(house)
    house.check_never_twice()
    house.check_unlocked()


def test_a_retried_incident_continues_with_its_remaining_servers(house: HealHouse) -> None:
    house.segment("cmp-1", "cmp-2")
    house.recovery.move_give_up_s = 20.0
    big = house.sim.boot("big", "alpha", "cmp-1", 20, 100_000, 10).id
    small = house.boot("small", "cmp-1")
    blocker = house.sim.boot("in the way", "alpha", "cmp-2", 20, 100_000, 10).id
    house.sim.fail_host("cmp-1")
    report = house.report("cmp-1")
    house.run(seconds=90)
    incident = house.incident(report)
    assert incident.status == "failed"
    house.m.cloud.servers.delete(blocker)
    house.run(seconds=10)
    house.m.store.incident_actions.retry(incident.id, "bob")
    house.run(seconds=60)
    incident = house.incident(report)
    assert (incident.status, house.reported(report)) == ("recovered", "finished"), incident
    assert {house.server(one)["host"] for one in (big, small)} == {"cmp-2"}
    evacuations = house.m.cloud.moves.migrations(source_host="cmp-1")
    done = [evacuation.server_id for evacuation in evacuations if evacuation.status == "done"]
    assert sorted(done) == sorted([big, small])
    house.check_unlocked()


def test_a_server_staying_by_a_rule_stays_at_a_retry(house: HealHouse) -> None:
    house.segment(*HOSTS)
    house.recovery.evacuate_all = False
    house.recovery.parallel_moves = 1
    house.sim.change(action_s=5.0)
    for name in ("ha-1", "ha-2"):
        house.sim.boot(name, "alpha", "cmp-1", 1, 512, 1, metadata={"HA_Enabled": "True"})
    plain = house.boot("plain", "cmp-1")
    house.sim.fail_host("cmp-1")
    report = house.report("cmp-1")
    house.run(seconds=4)
    incident = house.incident(report)
    house.m.store.incident_actions.abort(incident.id, "ann", "not now")
    house.run(seconds=30)
    assert [move.status for move in house.moves(report)] == ["succeeded", "ignored", "ignored"]
    house.m.store.incident_actions.retry(incident.id, "ann")
    house.run(seconds=60)
    assert house.incident(report).status == "recovered"
    assert {move.server_name: move.status for move in house.moves(report)} == {
        "ha-1": "succeeded",
        "ha-2": "succeeded",
        "plain": "ignored",
    }
    assert house.server(plain)["host"] == "cmp-1"


def test_a_retry_needs_new_proof_of_power_off(house: HealHouse) -> None:
    house.segment(*HOSTS)
    house.unfenced.add("cmp-1")
    house.recovery.parallel_moves = 1
    house.sim.change(action_s=5.0)
    report = dead(house)
    house.run(seconds=3)
    orders, incident = house.m.store.incident_actions, house.incident(report)
    assert incident.status == "held"
    orders.confirm_off(incident.id, "ann", "plug pulled")
    house.run(seconds=1)  # at once: by themselves the guards look every 5 s
    assert plain(house.incident(report).details)["evidence"]["kind"] == "said"
    orders.abort(incident.id, "ann", "a drill")
    house.run(seconds=20)
    orders.retry(incident.id, "ann")
    house.run(seconds=20)
    held = house.incident(report)
    assert (held.status, "confirm-off" in held.sentence) == ("held", True)
    assert "cmp-1" in where(house)
    orders.confirm_off(incident.id, "ann", "it is off still")
    house.run(minutes=2)
    assert house.incident(report).status == "recovered"
    assert "cmp-1" not in where(house)
    house.check_never_twice()


def test_a_watchdogs_time_that_passed_before_is_no_proof_when_tried_again(
    house: HealHouse,
) -> None:
    house.segment(*HOSTS)
    house.unfenced.add("cmp-1")
    house.recovery.watchdog_s = 30.0
    report = dead(house)
    house.run(seconds=5)
    incident = house.incident(report)
    house.m.store.incident_actions.abort(incident.id, "ann", "a drill")
    house.run(minutes=2)
    house.m.store.incident_actions.retry(incident.id, "ann")
    house.run(seconds=20)
    assert house.incident(report).status == "held"
    assert where(house) == {"cmp-1"}


def test_a_recovered_or_open_incident_cannot_be_retried(house: HealHouse) -> None:
    house.segment(*HOSTS)
    house.sim.change(action_s=5.0)
    report = dead(house, servers=1)
    house.run(seconds=1)
    orders, incident = house.m.store.incident_actions, house.incident(report)
    with pytest.raises(Conflict, match="being worked on already"):
        orders.retry(incident.id, "ann")
    house.run(seconds=30)
    with pytest.raises(Conflict, match="only what failed or was aborted"):
        orders.retry(incident.id, "ann")
    with pytest.raises(NotFound):
        orders.retry("no such", "ann")


def test_a_retry_names_another_open_incident_about_the_same_subject(house: HealHouse) -> None:
    house.segment(*HOSTS)
    house.m.store.switches.pause("", "ann", "wait", None)
    first = dead(house, servers=1)
    house.run(seconds=3)
    orders, incident = house.m.store.incident_actions, house.incident(first)
    orders.abort(incident.id, "ann", "a drill")
    second = house.report("cmp-1")
    house.run(seconds=3)
    other = house.incident(second)
    assert other.id != incident.id
    with pytest.raises(Conflict, match=other.id):
        orders.retry(incident.id, "ann")
    assert house.incident(first).status == "aborted"


def test_a_host_that_is_in_use_again_is_not_taken_down_by_a_retry(house: HealHouse) -> None:
    house.segment("cmp-1", "cmp-2")
    house.recovery.move_give_up_s = 20.0
    house.sim.boot("big", "alpha", "cmp-1", 20, 100_000, 10)
    house.sim.boot("in the way", "alpha", "cmp-2", 20, 100_000, 10)
    house.sim.fail_host("cmp-1")
    report = house.report("cmp-1")
    house.run(seconds=90)
    assert house.incident(report).status == "failed"
    house.sim.recover_host("cmp-1")
    house.run(minutes=3)
    incident = house.incident(report)
    assert plain(incident.details).get("back_at"), incident.details
    assert incident.sentence.startswith("recovered in place"), incident
    with pytest.raises(Conflict, match="only what failed or was aborted"):
        house.m.store.incident_actions.retry(incident.id, "ann")
    assert not house.effects("fence.off")


def test_a_guest_that_could_not_be_restarted_is_tried_again_from_the_start(
    house: HealHouse,
) -> None:
    house.segment("cmp-1", "cmp-2")
    house.recovery.restart_all = True
    house.recovery.stop_timeout_s = house.recovery.start_timeout_s = 5.0
    house.recovery.move_timeout_s = 10.0
    server = house.boot("web", "cmp-1")
    house.sim.change(failure_rate=1.0, only_calls=["servers.start", "servers.shelve"])
    house.sim.crash_server(server)
    report = house.report_guest("cmp-1", server)
    house.run(minutes=2)
    incident = house.incident(report)
    assert incident.status == "failed", incident
    house.sim.change(failure_rate=0.0, only_calls=[])
    house.m.store.incident_actions.retry(incident.id, "ann", "it was us")
    house.run(minutes=1)
    incident = house.incident(report)
    assert (incident.status, house.reported(report)) == ("recovered", "finished"), incident
    assert house.server(server)["status"] == "ACTIVE"


def test_the_confirmation_that_a_host_is_off_needs_an_open_incident_of_a_host(
    house: HealHouse,
) -> None:
    house.segment(*HOSTS)
    house.recovery.restart_all = True
    house.m.store.switches.pause("", "ann", "wait", None)
    server = house.boot("web", "cmp-2")
    guest = house.report_guest("cmp-2", server)
    report = dead(house, servers=0)
    house.run(seconds=3)
    orders = house.m.store.incident_actions
    with pytest.raises(Conflict, match="not about a host"):
        orders.confirm_off(house.incident(guest).id, "ann", "off")
    orders.abort(house.incident(report).id, "ann", "a drill")
    with pytest.raises(Conflict, match="nothing waits for that word"):
        orders.confirm_off(house.incident(report).id, "ann", "off")


def test_an_approval_lets_a_held_rack_go_on_at_once(house: HealHouse) -> None:
    house.segment(*HOSTS)
    racks = {name: "rack-a" if name < "cmp-6" else "rack-b" for name in HOSTS}
    with house.m.store.database.write() as conn:
        for name, rack in racks.items():
            conn.execute(sa.update(hosts).where(hosts.c.name == name).values(rack=rack))
    reports = [dead(house, host, servers=1) for host in ("cmp-1", "cmp-2", "cmp-3", "cmp-4")]
    house.run(seconds=6)
    held = [report for report in reports if house.incident(report).status == "held"]
    assert held, [house.incident(report).sentence for report in reports]
    orders = house.m.store.incident_actions
    with pytest.raises(NotFound, match="rack-a, rack-b"):
        orders.approve("ann", "it is so", "rack-z")
    made = orders.approve("ann", "it is so", "rack-a")
    assert (made.domain, made.held) == ("rack-a", len(held))
    house.run(minutes=1)
    assert {house.incident(report).status for report in reports} == {"recovered"}
    house.check_never_twice()
