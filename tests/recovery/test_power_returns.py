# SPDX-License-Identifier: Apache-2.0
"""The power of a fenced host returns while its servers find no room elsewhere."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from holdfast import conf
from holdfast.model.errors import Conflict
from holdfast.model.incident_progress import plain
from holdfast.ports.cloud import Migration, Server
from holdfast.ports.fence import UNKNOWN
from holdfast.ports.recovery import ANSWERED, ONGOING, PENDING, STARTED, ServerMove
from holdfast.recovery import host_return
from tests.recovery.house import HealHouse
from tests.recovery.test_liveness import beat
from tests.recovery.test_observed import Agent
from tests.recovery.voters import GONE, voters

DEAD = "cmp-1"


def without_room(house: HealHouse, *, servers: int = 3) -> list[str]:
    """cmp-1 has servers that fit nowhere else."""
    house.segment(DEAD, "cmp-2")
    own = [house.sim.boot(f"big-{i}", "alpha", DEAD, 6, 30_000, 1).id for i in range(servers)]
    house.sim.boot("in the way", "alpha", "cmp-2", 30, 120_000, 10)
    return own


def dies(house: HealHouse) -> str:
    house.sim.fail_host(DEAD)
    return house.report(DEAD)


def cuts(house: HealHouse) -> int:
    return len(house.effects("fence.off"))


def named(house: HealHouse, name: str) -> str:
    (found,) = [server["id"] for server in house.sim.world()["servers"] if server["name"] == name]
    return str(found)


def service(house: HealHouse) -> tuple[bool, bool, str]:
    (found,) = [one for one in house.m.cloud.services.list() if one.host == DEAD]
    return found.enabled, found.forced_down, found.state


def check_runs_here(house: HealHouse, *servers: str) -> None:
    for one in servers:
        seen = house.server(one)
        assert (seen["host"], seen["status"], seen["task_state"]) == (DEAD, "ACTIVE", None)
        assert house.sim.running(one) == [DEAD]
    house.check_unlocked()
    house.check_never_twice()


def test_servers_that_found_no_room_start_in_place_when_power_returns(house: HealHouse) -> None:
    own = without_room(house)
    stopped = house.sim.boot("db", "alpha", DEAD, 6, 30_000, 1).id
    house.m.cloud.servers.stop(stopped)
    report = dies(house)
    house.run(minutes=1)
    assert {house.server(one)["status"] for one in own} == {"ERROR"}
    house.sim.recover_host(DEAD)
    house.run(minutes=2)
    incident = house.incident(report)
    assert (incident.status, house.reported(report)) == ("recovered", "finished"), incident
    assert incident.sentence.startswith("recovered in place: cmp-1: 0 of 4 servers moved")
    assert cuts(house) == 0
    check_runs_here(house, *own)
    assert house.server(stopped)["status"] == "SHUTOFF"
    house.run(minutes=2)
    assert service(house) == (True, False, "up")  # in use again
    (member,) = [member for member in house.m.store.segments.all_members() if member.name == DEAD]
    assert not member.on_maintenance


def test_a_host_whose_power_returns_is_cut_while_an_evacuation_is_under_way(
    house: HealHouse,
) -> None:
    (big,) = without_room(house, servers=1)
    first = {"HA_Enabled": "true"}
    small = house.sim.boot("small", "alpha", DEAD, 1, 512, 1, metadata=first).id
    house.recovery.parallel_moves = 1
    house.sim.change(action_s=200.0)
    report = dies(house)
    house.run(seconds=60)
    house.recovery.parallel_moves = 32
    house.sim.change(action_s=0.2)  # the small one is under way still
    house.run(seconds=20)
    assert house.server(big)["status"] == "ERROR"
    house.sim.recover_host(DEAD)
    house.run(seconds=60)
    assert cuts(house) == 1
    assert not plain(house.incident(report).details).get("power_returned")
    house.m.cloud.servers.delete(named(house, "in the way"))
    house.run(minutes=5)
    incident = house.incident(report)
    assert incident.sentence == "cmp-1: 2 of 2 servers moved", incident
    assert {house.server(one)["host"] for one in (big, small)} == {"cmp-2"}
    house.check_never_twice()
    house.check_unlocked()


def test_a_host_losing_its_power_again_is_evacuated_after_all(house: HealHouse) -> None:
    own = without_room(house)
    report = dies(house)
    house.run(minutes=1)
    house.sim.recover_host(DEAD)
    house.sim.cut_host(DEAD)  # it boots: nothing is heard of it yet
    house.run(minutes=1)
    assert plain(house.incident(report).details)["power_returned"]
    assert cuts(house) == 0
    house.sim.repair_host(DEAD)
    house.sim.fail_host(DEAD)
    house.m.cloud.servers.delete(named(house, "in the way"))
    house.run(minutes=5)
    incident = house.incident(report)
    assert incident.status == "recovered", incident
    assert {house.server(one)["host"] for one in own} == {"cmp-2"}
    assert {house.server(one)["status"] for one in own} == {"ACTIVE"}
    house.check_never_twice()
    house.check_unlocked()


def test_a_host_without_a_report_after_its_power_returned_is_cut(house: HealHouse) -> None:
    own = without_room(house)
    report = dies(house)
    house.run(minutes=1)
    house.sim.recover_host(DEAD)
    house.sim.cut_host(DEAD)
    house.run(seconds=host_return.BOOT_S - 60)
    assert cuts(house) == 0
    house.m.cloud.servers.delete(named(house, "in the way"))
    house.run(minutes=10)
    incident = house.incident(report)
    assert incident.status == "recovered", incident
    assert cuts(house) == 1
    assert {house.server(one)["host"] for one in own} == {"cmp-2"}
    house.check_never_twice()


def test_a_given_up_server_is_not_left_in_error(house: HealHouse) -> None:
    own = without_room(house)
    house.recovery.move_give_up_s = 60.0
    report = dies(house)
    house.run(minutes=5)
    assert house.incident(report).status == "failed"
    assert {house.server(one)["status"] for one in own} == {"ACTIVE"}
    house.check_unlocked()


def test_servers_of_a_failed_recovery_start_when_their_host_is_back(house: HealHouse) -> None:
    own = without_room(house)
    house.recovery.move_give_up_s = 60.0
    report = dies(house)
    house.run(minutes=5)
    assert house.incident(report).status == "failed"
    house.sim.recover_host(DEAD)
    house.run(minutes=4)
    incident = house.incident(report)
    assert (incident.status, house.reported(report)) == ("recovered", "finished"), incident
    assert incident.sentence.startswith("recovered in place")
    assert cuts(house) == 0
    check_runs_here(house, *own)
    assert service(house) == (True, False, "up")


def test_a_retry_on_a_host_that_is_in_use_again_starts_what_is_left_in_place(
    house: HealHouse,
) -> None:
    own = without_room(house)
    house.recovery.move_give_up_s = 60.0
    report = dies(house)
    house.run(minutes=5)
    house.sim.change(only_calls=["servers.start"], failure_rate=1.0)
    house.sim.recover_host(DEAD)
    house.run(minutes=30)
    incident = house.incident(report)
    assert incident.status == "failed", incident
    assert plain(incident.details)["back_at"]
    house.sim.change(only_calls=[], failure_rate=0.0)
    well = house.boot("came later", DEAD)
    house.m.store.incident_actions.retry(incident.id, "ann")
    house.run(minutes=3)
    incident = house.incident(report)
    assert incident.status == "recovered", incident
    assert cuts(house) == 0
    check_runs_here(house, *own, well)
    assert ("servers.stop", well) not in [(e.call, e.subject) for e in house.sim.effects()]
    with pytest.raises(Conflict, match="only what failed or was aborted"):
        house.m.store.incident_actions.retry(incident.id, "ann")


def test_a_retry_starts_servers_in_place_where_their_host_lives_and_is_not_in_use(
    house: HealHouse,
) -> None:
    own = without_room(house)
    house.recovery.move_give_up_s = 60.0
    house.recovery.bring_back = False
    report = dies(house)
    house.run(minutes=5)
    house.sim.recover_host(DEAD)
    house.run(minutes=5)
    incident = house.incident(report)
    assert (incident.status, service(house)[1]) == ("failed", True)
    house.m.store.incident_actions.retry(incident.id, "ann")
    house.run(minutes=3)
    incident = house.incident(report)
    assert incident.sentence.startswith("recovered in place"), incident
    assert cuts(house) == 0
    check_runs_here(house, *own)


def test_a_retry_evacuates_servers_whose_host_is_still_off(house: HealHouse) -> None:
    own = without_room(house)
    house.recovery.move_give_up_s = 60.0
    report = dies(house)
    house.run(minutes=5)
    house.m.cloud.servers.delete(named(house, "in the way"))
    house.m.store.incident_actions.retry(house.incident(report).id, "ann")
    house.run(minutes=3)
    assert house.incident(report).sentence == "cmp-1: 3 of 3 servers moved"
    assert {house.server(one)["host"] for one in own} == {"cmp-2"}
    assert {house.server(one)["status"] for one in own} == {"ACTIVE"}


# power_on_after


def fenced(house: HealHouse, rule: str, *servers: str) -> str:
    """cmp-1 is cut off in a segment with that rule, so that Holdfast takes its power; there is room
    for its servers."""
    segment = house.segment(DEAD, "cmp-2")
    name = next(
        member.segment.name
        for member in house.m.store.segments.all_members()
        if member.segment.uuid == segment
    )
    house.recovery.power_on_after = {name: rule}
    for server in servers or ("web",):
        house.boot(server, DEAD)
    house.sim.cut_host(DEAD)
    return house.report(DEAD)


def has_power(house: HealHouse) -> bool:
    (found,) = [host for host in house.sim.world()["hosts"] if host["name"] == DEAD]
    return bool(found["powered"])


def test_a_fenced_host_stays_off_unless_its_segment_wants_it_on(house: HealHouse) -> None:
    report = fenced(house, "never")
    house.run(minutes=60)
    assert house.incident(report).status == "recovered"
    assert not house.effects("fence.on")


def test_another_segments_rule_does_not_switch_a_host_on(house: HealHouse) -> None:
    report = fenced(house, "never")
    house.recovery.power_on_after = {"elsewhere": "empty"}
    house.run(minutes=60)
    assert house.incident(report).status == "recovered"
    assert not house.effects("fence.on")


@pytest.mark.parametrize("names", ["own", "star"])
def test_an_empty_fenced_host_is_switched_on(house: HealHouse, names: str) -> None:
    report = fenced(house, "empty", "web", "mail", "db")
    if names == "star":
        house.recovery.power_on_after = {"*": "empty"}
    house.run(minutes=5)
    assert house.incident(report).status == "recovered"
    assert len(house.effects("fence.on")) == 1
    assert service(house) == (True, False, "up")
    house.check_never_twice()


def test_a_host_with_a_server_left_is_not_empty(house: HealHouse) -> None:
    report = fenced(house, "empty", "web", "amphora-1")
    house.run(minutes=60)
    assert house.incident(report).status == "recovered"
    assert not house.effects("fence.on")


def test_a_fenced_host_is_switched_on_after_the_configured_minutes(house: HealHouse) -> None:
    report = fenced(house, "30")
    house.run(minutes=29)
    assert house.incident(report).status == "recovered"
    assert not has_power(house)
    house.run(minutes=3)
    assert has_power(house)
    assert len(house.effects("fence.on")) == 1


def test_servers_without_room_start_in_place_when_their_host_is_switched_on(
    house: HealHouse,
) -> None:
    own = without_room(house)
    house.recovery.power_on_after = {"*": "10"}
    house.sim.cut_host(DEAD)
    report = house.report(DEAD)
    house.run(minutes=9)
    assert not has_power(house)
    house.run(minutes=5)
    incident = house.incident(report)
    assert incident.sentence.startswith("recovered in place"), incident
    assert (len(house.effects("fence.on")), cuts(house)) == (1, 1)
    check_runs_here(house, *own)


def test_a_host_that_was_off_before_holdfast_acted_is_not_switched_on(house: HealHouse) -> None:
    house.segment(DEAD, "cmp-2")
    house.recovery.power_on_after = {"*": "empty"}
    house.boot("web", DEAD)
    report = dies(house)
    house.run(minutes=5)
    assert house.incident(report).status == "recovered"
    assert not house.effects("fence.off")
    assert not house.effects("fence.on")


def test_a_host_switched_off_by_hand_later_stays_off(house: HealHouse) -> None:
    fenced(house, "1")
    house.run(minutes=5)
    assert len(house.effects("fence.on")) == 1
    house.sim.fail_host(DEAD)
    house.run(minutes=30)
    assert len(house.effects("fence.on")) == 1


@pytest.mark.parametrize(
    "text", ["north:soon", "north:0", "north:-5", "north:1.5", "north:", "north"]
)
def test_an_unknown_power_on_rule_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "holdfast.conf"
    file.write_text(f"[recovery]\npower_on_after = {text}\n")
    with pytest.raises(ValueError, match="power_on_after"):
        _ = conf.load([], [str(file)]).recovery.power_on_after


# a power state that cannot be read


def test_a_fenced_host_whose_power_cannot_be_read_is_not_cut_again(house: HealHouse) -> None:
    own = without_room(house)
    report = dies(house)
    house.run(minutes=1)
    house.context.fence.power = lambda _host: UNKNOWN  # type: ignore[method-assign]
    house.run(minutes=5)
    assert cuts(house) == 0
    assert not plain(house.incident(report).details).get("power_returned")
    house.m.cloud.servers.delete(named(house, "in the way"))
    house.run(minutes=5)
    assert house.incident(report).status == "recovered"
    assert {house.server(one)["host"] for one in own} == {"cmp-2"}


def test_a_confirmation_against_a_fence_that_reads_on_does_not_count(house: HealHouse) -> None:
    house.segment(DEAD, "cmp-2")
    house.boot("web", DEAD)
    house.m.store.switches.pause("", "ann", "wait", None)
    house.sim.cut_host(DEAD)  # it has power
    report = house.report(DEAD)
    house.run(seconds=5)
    incident = house.incident(report)
    house.m.store.incident_actions.confirm_off(
        incident.id, "ann", "looks off"
    )  # the API could not read it
    house.m.store.switches.resume("", "ann")
    house.run(minutes=2)
    incident = house.incident(report)
    assert incident.status == "recovered", incident
    assert (plain(incident.details)["evidence"]["kind"], cuts(house)) == ("fenced", 1)
    said = [one.sentence for one in house.m.store.incident_queries.case(incident.id).timeline]
    assert any("ann says that cmp-1 is off, and its fence reads on" in one for one in said)
    house.check_never_twice()


def test_a_confirmation_despite_power_on_counts_against_the_fence(
    house: HealHouse,
) -> None:
    house.segment(DEAD, "cmp-2")
    house.m.cloud.servers.stop(house.boot("db", DEAD))
    house.m.store.switches.pause("", "ann", "wait", None)
    house.sim.cut_host(DEAD)
    report = house.report(DEAD)
    house.run(seconds=5)
    incident = house.incident(report)
    word = {"reads_on": True, "despite_power_on": True}
    house.m.store.incident_actions.confirm_off(incident.id, "ann", "plug pulled", **word)
    house.m.store.switches.resume("", "ann")
    house.run(minutes=2)
    incident = house.incident(report)
    assert (incident.status, cuts(house)) == ("recovered", 0), incident
    said = "ann says that cmp-1 is off although its fence reads on: plug pulled"
    assert plain(incident.details)["evidence"]["sentence"] == said


# decisions


def move(status: str = PENDING, **values: object) -> ServerMove:
    given = {"attempts": 1, "was": "ACTIVE", "not_before": datetime(2026, 1, 1, tzinfo=UTC)}
    return ServerMove("m", "i", "s", "web", DEAD, status, **{**given, **values})  # type: ignore[arg-type]


def migration(number: int, status: str) -> Migration:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    return Migration(str(number), "s", DEAD, None, "evacuation", status, at)


@pytest.mark.parametrize(
    ("moves", "migrations", "why"),
    [
        ([move(after_migration=6)], [migration(7, "failed")], ""),
        ([move(after_migration=6)], [migration(7, "running")], "under way"),
        ([move(after_migration=6)], [migration(7, "accepted")], "under way"),
        ([], [migration(7, "accepted")], "under way"),  # somebody else's
        ([move(ONGOING, after_migration=7)], [migration(7, "failed")], "not answered"),
        ([move(after_migration=7)], [migration(7, "failed")], "not answered"),
        ([move(after_migration=0)], [], "not answered"),
        ([move(after_migration=ANSWERED)], [], ""),  # Nova refused it
        ([move(attempts=0)], [], ""),  # its reservation has no other host
        ([move(attempts=0, not_before=None)], [], "can leave"),
    ],
)
def test_a_host_is_cut_again_only_while_an_evacuation_may_take_effect(
    moves: list[ServerMove], migrations: list[Migration], why: str
) -> None:
    said = host_return.why_cut(moves, migrations)
    assert why in said and bool(said) == bool(why)


@pytest.mark.parametrize(
    ("status", "task", "was", "after", "action"),
    [
        ("ERROR", None, "ACTIVE", ANSWERED, "reset"),
        ("ERROR", None, "ERROR", ANSWERED, "done"),
        ("ACTIVE", None, "ACTIVE", ANSWERED, "stop"),  # what Nova says is out of date
        ("SHUTOFF", None, "ACTIVE", ANSWERED, "start"),
        ("ACTIVE", None, "ACTIVE", STARTED, "done"),
        ("ACTIVE", "powering-on", "ACTIVE", STARTED, "wait"),
        ("ACTIVE", None, "SHUTOFF", ANSWERED, "stop"),
        ("SHUTOFF", None, "SHUTOFF", ANSWERED, "done"),
        ("SUSPENDED", None, "SUSPENDED", ANSWERED, "done"),
        ("VERIFY_RESIZE", None, "ACTIVE", ANSWERED, "reset"),
        ("VERIFY_RESIZE", None, "VERIFY_RESIZE", ANSWERED, "done"),
    ],
)
def test_each_server_returns_to_its_earlier_status(
    status: str, task: str | None, was: str, after: int, action: str
) -> None:
    server = Server("s", "web", "alpha", DEAD, status, task_state=task)
    assert host_return.next_action(server, move(was=was, after_migration=after)) == action


@pytest.mark.parametrize("who", ["agent", "monitors", "only Nova"])
def test_a_host_that_dies_again_while_its_servers_start_in_place(
    house: HealHouse, who: str
) -> None:
    """Its power reads on. A silent nova-compute alone proves no death."""
    own = without_room(house)
    ctls = voters(house, DEAD, "cmp-2") if who == "monitors" else []
    report = dies(house)
    house.run(minutes=1)
    house.sim.recover_host(DEAD)
    house.sim.change(action_s=60.0)  # their start takes long
    house.run(seconds=25)
    assert plain(house.incident(report).details)["power_returned"]
    if who == "agent":
        beat(house, DEAD)
    house.sim.hang_host(DEAD)
    for ctl in ctls:
        ctl.fails(DEAD, GONE)
    house.m.cloud.servers.delete(named(house, "in the way"))
    house.sim.change(action_s=0.2)
    house.run(minutes=5)
    if who == "only Nova":
        assert house.incident(report).status == "running"
        assert cuts(house) == 0
        return
    assert house.incident(report).sentence == "cmp-1: 3 of 3 servers moved"
    assert cuts(house) == 1
    assert {house.server(one)["host"] for one in own} == {"cmp-2"}
    house.check_never_twice()


def test_a_guest_that_dies_while_servers_start_in_place_is_not_forgotten(house: HealHouse) -> None:
    own = without_room(house)
    house.recovery.restart_all = True
    report = dies(house)
    house.run(minutes=1)
    house.sim.recover_host(DEAD)
    while not all(house.sim.running(one) for one in own):
        house.run(seconds=0.25)
    assert house.incident(report).is_open
    house.sim.crash_server(own[0])
    Agent(house, DEAD).lost(own[0])
    house.run(minutes=2)
    assert house.incident(report).status == "recovered"
    check_runs_here(house, *own)


def test_a_host_of_which_a_server_did_not_start_in_place_may_die_again(house: HealHouse) -> None:
    own = without_room(house)
    house.recovery.bring_back_after_s = 900.0
    report = dies(house)
    house.run(minutes=1)
    house.sim.recover_host(DEAD)
    house.recovery.move_give_up_s = 90.0
    house.sim.change(only_calls=["servers.start"], failure_rate=0.9)
    while house.incident(report).is_open:
        house.run(seconds=5)
    assert house.incident(report).status == "failed"
    runs = [one for one in own if house.sim.running(one)]
    assert runs != own
    house.sim.change(failure_rate=0.0)
    house.sim.hang_host(DEAD)
    house.m.cloud.servers.delete(named(house, "in the way"))
    second = house.report(DEAD)
    house.run(minutes=2)
    assert house.incident(second).status == "recovered"
    assert {house.server(one)["host"] for one in runs} <= {"cmp-2"}


def test_a_guest_reported_before_its_start_in_place_does_not_block_that_start(
    house: HealHouse,
) -> None:
    own = without_room(house)
    house.recovery.restart_all = True
    house.recovery.move_timeout_s = 30.0
    report = dies(house)
    house.run(minutes=1)
    house.sim.recover_host(DEAD)
    house.sim.cut_host(DEAD)  # it boots: nothing is heard of it yet
    house.run(seconds=20)
    assert plain(house.incident(report).details)["power_returned"]
    for one in own:
        Agent(house, DEAD).lost(one)
    house.run(minutes=2)
    house.sim.repair_host(DEAD)
    house.run(minutes=5)
    assert house.incident(report).status == "recovered", house.incident(report).sentence
    check_runs_here(house, *own)
