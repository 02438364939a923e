# SPDX-License-Identifier: Apache-2.0
"""Monitors on several controllers report a host; what they say together opens one incident, or
none. The same house, cloud and managers as for every other recovery."""

import functools
import itertools
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.db.incident_queries import Wanted
from holdfast.model.errors import Conflict, Unavailable
from holdfast.model.incident import Incident
from holdfast.model.incident_progress import plain
from tests.leases.house import CLAIM_S, Killed, Points, copy
from tests.recovery.house import HealHouse
from tests.recovery.voters import DOWN, GONE, Voter, voters

HOSTS = ("cmp-1", "cmp-2", "cmp-3", "cmp-4", "cmp-5", "cmp-6")
DEAD = "cmp-1"


def incidents(house: HealHouse) -> list[Incident]:
    """The oldest first."""
    listed = house.m.store.incident_queries.list_all(Wanted())
    return [one.incident for one in reversed(listed)]


def host_state(house: HealHouse, host: str = DEAD) -> str:
    found = house.m.store.host_status.of(host)
    assert found is not None
    return found.status.state


def counting(house: HealHouse, host: str = DEAD) -> bool:
    """Whether its votes are still being counted."""
    with sqlite3.connect(house.path / "holdfast.db") as db:
        query = "SELECT is_open FROM operations WHERE key = ?"
        return any(bool(row[0]) for row in db.execute(query, [f"host_votes/{host}"]))


def evacuations(house: HealHouse) -> int:
    return sum(effect.call == "moves.evacuate" for effect in house.sim.effects())


@pytest.fixture
def ctls(house: HealHouse) -> list[Voter]:
    """Three monitors that see all well; cmp-1 runs a server."""
    house.segment(*HOSTS)
    house.boot("web", DEAD)
    house.recovery.bring_back = False
    return voters(house, *HOSTS)


def dies(house: HealHouse, *seen_by: Voter) -> None:
    house.sim.fail_host(DEAD)
    for one in seen_by:
        one.fails(DEAD)


def test_a_host_failed_by_most_votes_is_recovered_with_their_evidence(
    house: HealHouse, ctls: list[Voter]
) -> None:
    house.sim.fail_host(DEAD)
    said = [ctls[0].fails(DEAD), ctls[1].fails(DEAD)]
    ctls[2].sees(blind=[DEAD])
    house.run(seconds=1)
    assert host_state(house) == "down"
    house.run(minutes=1)
    (one,) = incidents(house)
    assert (one.status, one.subject) == ("recovered", f"host:{DEAD}")
    assert one.cause.startswith(f"ctl-1 and ctl-2 saw {DEAD} down on storage since ")
    votes = {vote["observer"]: vote for vote in plain(one.details)["seen"]}
    assert [votes[name]["vote"] for name in sorted(votes)] == ["for", "for", "abstain"]
    assert "own gossip" in votes["ctl-1"]["evidence"]["networks"]["storage"]["confirmed_by"]
    kept = {row["id"]: row for row in house.m.store.observations.list_all()}
    assert {kept[own]["incident_id"] for own in said} == {one.id}
    assert evacuations(house) == 1
    house.check_never_twice()
    assert [told.event_type for told in house.ear.heard] == [
        "incident.opened",
        "incident.recovered",
    ]


def test_a_single_monitor_against_two_changes_nothing(house: HealHouse, ctls: list[Voter]) -> None:
    ctls[0].fails(DEAD)
    house.run(minutes=5)
    assert incidents(house) == []
    assert host_state(house) == "up"


def test_who_was_outvoted_is_heard_when_the_others_see_nothing_any_more(
    house: HealHouse, ctls: list[Voter]
) -> None:
    unregister(house, ctls[2])
    ctls[0].fails(DEAD)
    house.run(minutes=1)
    assert incidents(house) == []  # one against one
    ctls[1].sees(blind=[DEAD])
    house.run(minutes=1)
    assert len(incidents(house)) == 1


def test_a_single_seeing_monitor_of_three_only_alerts_operators(
    house: HealHouse, ctls: list[Voter]
) -> None:
    ctls[1].sees(blind=[DEAD])
    ctls[2].sees(waiting=[DEAD])
    ctls[0].fails(DEAD)
    house.run(minutes=1)
    assert house.ear.heard == []  # the third may yet join it
    ctls[2].sees(blind=[DEAD])
    house.run(minutes=5)
    assert incidents(house) == []
    assert host_state(house) == "up"
    assert not house.effects("fence.off")
    (told,) = house.ear.heard
    assert told.event_type == "host.alert"
    assert "1 of the 2 votes that it takes" in told.payload["sentence"]
    unregister(house, *ctls[1:])
    house.run(minutes=1)
    assert len(incidents(house)) == 1


def test_the_vote_of_the_only_registered_monitor_is_enough(house: HealHouse) -> None:
    house.segment(*HOSTS)
    (only,) = voters(house, *HOSTS, count=1)
    house.sim.fail_host(DEAD)
    only.fails(DEAD)
    house.run(minutes=1)
    (one,) = incidents(house)
    assert one.status == "recovered"


def test_unregistered_observers_cannot_outvote_a_registered_monitor(
    house: HealHouse,
) -> None:
    """Neither that a host failed, nor that it is well."""
    house.segment(*HOSTS)
    house.boot("web", DEAD)
    (real,) = voters(house, *HOSTS, count=1)
    made_up = [Voter(house, name, registered=False) for name in ("evil-1", "evil-2")]
    for one in made_up:
        one.sees(well=HOSTS)
        one.fails(DEAD)
    house.run(minutes=5)
    assert incidents(house) == []
    assert host_state(house) == "up"
    assert not house.effects("fence.off")
    assert not counting(house)
    for one in made_up:
        one.recovers(DEAD)
    house.sim.fail_host(DEAD)
    real.fails(DEAD)
    house.run(minutes=1)
    (found,) = incidents(house)
    assert found.status == "recovered"
    assert [vote["observer"] for vote in plain(found.details)["seen"]] == ["ctl-1"]


def test_votes_from_before_the_registration_of_a_monitor_do_not_count(
    house: HealHouse,
) -> None:
    house.segment(*HOSTS)
    Voter(house, "ctl-1", registered=False).fails(DEAD)
    house.run(seconds=5)
    (real,) = voters(house, count=1)
    house.run(minutes=1)
    assert incidents(house) == []
    real.sees(failed=[DEAD])  # it has not reported it itself
    house.run(minutes=1)
    assert incidents(house) == []
    real.fails(DEAD)
    house.run(minutes=1)
    assert len(incidents(house)) == 1


def unregister(house: HealHouse, *voters: Voter) -> None:
    for voter in voters:
        house.m.store.monitors.unregister(voter.name)


def test_monitors_silent_for_long_do_not_count(house: HealHouse) -> None:
    house.segment(*HOSTS)
    Voter(house, "old-1", heartbeat_s=5.0).fails(DEAD)
    house.clock.advance(16)
    house.run(minutes=5)
    assert incidents(house) == []
    (new,) = voters(house, count=1)
    new.fails(DEAD)
    house.run(seconds=5)
    (one,) = incidents(house)
    assert [vote["vote"] for vote in plain(one.details)["seen"]] == ["for", "abstain"]


def test_silent_monitors_do_not_vote_against(house: HealHouse, ctls: list[Voter]) -> None:
    ctls[2].heartbeat_s = 5.0
    ctls[2].beat()
    unregister(house, ctls[1])
    ctls[0].fails(DEAD)
    house.run(seconds=10)
    assert incidents(house) == []
    house.run(minutes=1)
    assert len(incidents(house)) == 1


def test_a_recovery_needs_the_configured_number_of_votes(
    house: HealHouse, ctls: list[Voter]
) -> None:
    house.recovery.host_votes = 3
    for ctl in ctls[1:]:
        ctl.sees(blind=[DEAD])
    for ctl in ctls[:2]:
        ctl.fails(DEAD)
    house.run(minutes=1)
    assert incidents(house) == []
    ctls[2].fails(DEAD)
    house.run(minutes=1)
    assert len(incidents(house)) == 1


def test_a_monitor_with_a_pending_down_does_not_vote_against(
    house: HealHouse, ctls: list[Voter]
) -> None:
    ctls[2].sees(waiting=[DEAD])
    for ctl in ctls[:2]:
        ctl.fails(DEAD)
    house.run(seconds=2)
    assert len(incidents(house)) == 1


@pytest.mark.parametrize("seed", range(6))
def test_deliveries_in_any_order_to_two_managers_are_one_recovery(
    house: HealHouse, ctls: list[Voter], seed: int
) -> None:
    """Ten: three monitors, each three times, and a report of masakari-monitors."""
    dice, reports = random.Random(seed), list[str]()
    first, second = house.m, house.manager()
    house.sim.fail_host(DEAD)
    at = house.clock.now()
    for one in ctls:
        one.sees(failed=[DEAD])
    house.clock.advance(1.0)
    deliveries: list[Callable[[], object]] = [lambda: reports.append(_reported(house))]
    deliveries += [functools.partial(ctl.says, "failed", DEAD, at) for ctl in ctls * 3]
    dice.shuffle(deliveries)
    for deliver in deliveries:
        house.m = dice.choice((first, second))
        deliver()
        house.m = dice.choice((first, second))
        if dice.random() < 0.6:
            house.run(seconds=dice.choice((0.0, 0.5)))
    for number in range(60):
        house.m = (first, second)[number % 2]
        house.run(seconds=2)
    (one,) = incidents(house)
    assert one.status == "recovered", one
    for reported in filter(None, reports):
        assert house.incident(reported).id == one.id
        assert house.reported(reported) == "finished"
    assert evacuations(house) == 1
    assert sum(told.event_type == "incident.opened" for told in house.ear.heard) == 1
    house.check_never_twice()


def _reported(house: HealHouse) -> str:
    """Empty where it came too late to say anything new."""
    try:
        return house.report(DEAD)
    except Conflict:
        return ""


@pytest.mark.parametrize("how", ["kill", "lose"])
def test_a_manager_that_dies_after_any_write_of_counting_is_followed_by_another(
    heal_template: Path, tmp_path: Path, how: str
) -> None:
    """Recovery is paused, so that what is done is counting and opening, and no more."""
    stage = tmp_path / "stage"
    house = HealHouse(copy(heal_template, stage))
    house.segment(*HOSTS)
    for voter in voters(house, *HOSTS):
        voter.fails(DEAD)
    house.m.store.switches.pause("", "ann", "wait", None)
    house.close()
    quiet = Points(how=how, statements=True)
    wanted = _opened(copy(stage, tmp_path / "peace"), quiet)
    guards = quiet.passed.index("after sql SELECT pauses")
    writes = [at for at, what in enumerate(quiet.passed[:guards], 1) if "SELECT" not in what]
    assert len(writes) > 12
    for at in writes:
        points = Points(at=at, how=how, statements=True)
        assert _opened(copy(stage, tmp_path / "house"), points) == wanted, points.where


def _opened(path: Path, points: Points) -> object:
    """What came of the votes: incidents, votes that belong to one, standings, who was told."""
    house = HealHouse(path, ids_from=1000)
    try:
        house.manager(points)
        try:
            house.run(seconds=1)
        except (Killed, Unavailable):
            points.armed = False
            house.clock.advance(CLAIM_S + 1)
            house.manager()
        house.run(seconds=CLAIM_S + 2)
        points.armed = False
        kept = house.m.store.observations.list_all()
        return (
            [
                (incident.subject, incident.status, len(plain(incident.details)["seen"]))
                for incident in incidents(house)
            ],
            sorted((row["observer"], row["incident_id"] is not None) for row in kept),
            host_state(house),
            {(told.event_type, told.payload["host"]) for told in house.ear.heard},
        )
    finally:
        house.close()


def test_a_late_vote_does_not_replace_a_newer_vote(house: HealHouse, ctls: list[Voter]) -> None:
    (one,) = ctls[:1]
    before = house.clock.now()
    house.clock.advance(20.0)
    for two in ctls:
        two.recovers(DEAD)
    values = {"observer": one.name, "subject": f"host:{DEAD}", "kind": "host_health"}
    late = {"state": "failed", "since": before, "observed_at": before, "key": "k", "evidence": {}}
    house.m.store.observations.add(house.new_id(), values | late)
    house.run(minutes=1)
    assert incidents(house) == []
    assert not counting(house)


def test_one_failure_is_recovered_once_however_often_monitors_are_started_anew(
    house: HealHouse, ctls: list[Voter]
) -> None:
    house.recovery.bring_back = True
    dies(house, *ctls)
    house.run(minutes=1)
    for one in itertools.chain(ctls, ctls):
        one.restarts(DEAD)
        house.run(minutes=1)
    for ctl in ctls:  # all at once: for a moment nobody says that it is down
        ctl.hosts = {}
        ctl.sees(waiting=[DEAD])
    house.run(minutes=2)
    for ctl in ctls:
        ctl.fails(DEAD)
    house.run(minutes=5)
    (only,) = incidents(house)
    assert only.status == "recovered"
    assert evacuations(house) == 1
    assert host_state(house) == "down"


def test_a_single_wrong_well_of_a_monitor_starts_no_second_recovery(
    house: HealHouse, ctls: list[Voter]
) -> None:
    """The episode ends, and another one begins before the host came back into use."""
    house.recovery.bring_back = True
    dies(house, *ctls)
    house.run(minutes=1)
    for ctl in ctls:
        ctl.recovers(DEAD)
    house.run(seconds=10)
    assert not counting(house)
    for ctl in ctls:
        ctl.fails(DEAD)
    house.run(minutes=5)
    (only,) = incidents(house)
    assert only.status == "recovered"
    assert counting(house)


def test_a_host_that_came_back_and_failed_again_is_another_incident(
    house: HealHouse, ctls: list[Voter]
) -> None:
    house.recovery.bring_back = True
    dies(house, *ctls)
    house.run(minutes=1)
    house.sim.recover_host(DEAD)
    for ctl in ctls:
        ctl.recovers(DEAD)
    house.run(minutes=3)
    assert host_state(house) == "returning"
    assert not counting(house)
    house.boot("again", DEAD)
    dies(house, *ctls)
    house.run(minutes=1)
    first, second = incidents(house)
    assert plain(first.details)["back_at"]
    assert (first.status, second.status) == ("recovered", "recovered")
    assert evacuations(house) == 2


def test_a_host_still_voted_down_is_not_brought_back(house: HealHouse, ctls: list[Voter]) -> None:
    house.recovery.bring_back = True
    dies(house, *ctls)
    house.run(minutes=1)
    house.sim.recover_host(DEAD)  # nova-compute speaks; its storage does not work
    house.run(minutes=10)
    service = next(s for s in house.m.cloud.services.list() if s.host == DEAD)
    assert (service.enabled, service.forced_down) == (False, True)
    assert host_state(house) == "down"
    back = house.m.store.operations.by_key(f"host_back/{DEAD}")
    assert "ctl-1, ctl-2 and ctl-3 saw cmp-1 down on storage" in back.sentence
    for ctl in ctls:
        ctl.recovers(DEAD)
    house.run(minutes=3)
    assert host_state(house) == "returning"
    service = next(s for s in house.m.cloud.services.list() if s.host == DEAD)
    assert (service.enabled, service.forced_down) == (True, False)


def test_a_report_of_masakari_monitors_joins_and_is_joined(
    house: HealHouse, ctls: list[Voter]
) -> None:
    house.m.store.switches.pause("", "ann", "wait", None)
    house.sim.fail_host(DEAD)
    reported = house.report(DEAD)
    house.run(seconds=2)
    for ctl in ctls:
        ctl.fails(DEAD)
    house.run(seconds=2)
    again = house.report(DEAD, cluster_status="ONLINE")
    house.run(seconds=2)
    (only,) = incidents(house)
    assert house.incident(reported).id == house.incident(again).id == only.id
    assert [vote["vote"] for vote in plain(only.details)["seen"]] == ["for", "for", "for"]
    house.m.store.switches.resume("", "ann")
    house.run(minutes=1)
    assert {house.reported(one) for one in (reported, again)} == {"finished"}
    assert evacuations(house) == 1


def test_a_dead_host_is_recovered_when_its_maintenance_ends(
    house: HealHouse, ctls: list[Voter]
) -> None:
    maintain(house, True)
    dies(house, *ctls)
    house.run(minutes=5)
    assert incidents(house) == []
    assert "on maintenance" in house.m.store.operations.by_key(f"host_votes/{DEAD}").sentence
    maintain(house, False)
    house.run(minutes=1)
    (one,) = incidents(house)
    assert one.status == "recovered"


def maintain(house: HealHouse, on: bool) -> None:
    member = house.m.store.segments.member(DEAD)
    assert member is not None
    values = {"on_maintenance": on}
    house.m.store.segments.change_host(member.segment.uuid, member.uuid, values)


def test_a_dead_host_is_recovered_when_its_maintenance_window_ends(
    house: HealHouse, ctls: list[Voter]
) -> None:
    until = house.at(minutes=5)
    silence = {"id": house.new_id(), "matcher": {"host": DEAD}, "author": "ann", "reason": "so"}
    house.m.store.switches.add_window({**silence, "expires_at": until})
    dies(house, *ctls)
    house.run(minutes=4)
    (one,) = incidents(house)
    assert one.status == "ignored"
    house.run(minutes=3)
    assert [incident.status for incident in incidents(house)] == ["ignored", "recovered"]


@pytest.mark.parametrize("reported", [False, True])
def test_a_held_incident_ends_when_monitors_see_the_host_well(
    house: HealHouse, ctls: list[Voter], reported: bool
) -> None:
    """A switch that was away for a while must not have its hosts fenced when it is back."""
    house.m.store.switches.pause("", "ann", "wait", None)
    for one in ctls:
        one.fails(DEAD)
    house.run(seconds=5)
    (one,) = incidents(house)
    assert one.status == "held"
    if reported:
        house.report(DEAD)
        house.run(seconds=5)
    for two in ctls:
        two.recovers(DEAD)
    house.run(minutes=1)
    house.m.store.switches.resume("", "ann")
    house.run(minutes=1)
    (one,) = incidents(house)
    assert one.status == ("held" if reported else "ignored")
    assert not house.effects("fence.off")
    assert "ctl-1, ctl-2 and ctl-3 saw it well" in one.sentence
    if not reported:
        dies(house, *ctls)
        house.run(minutes=1)
        assert [two.status for two in incidents(house)] == ["ignored", "recovered"]


def test_an_aborted_incident_is_not_begun_again(house: HealHouse, ctls: list[Voter]) -> None:
    house.m.store.switches.pause("", "ann", "wait", None)
    dies(house, *ctls)
    house.run(seconds=5)
    (one,) = incidents(house)
    house.m.store.incident_actions.abort(one.id, "ann", "a drill")
    house.m.store.switches.resume("", "ann")
    house.run(minutes=5)
    assert [incident.status for incident in incidents(house)] == ["aborted"]


def test_the_reservations_of_a_host_in_no_segment_are_repaired_and_nothing_else(
    house: HealHouse,
) -> None:
    house.enrol("cmp-1", "cmp-2")
    lease = house.create(minutes=(None, 600))
    house.run(seconds=5)
    ctls = voters(house, "cmp-1", "cmp-2")
    house.sim.fail_host(DEAD)
    for ctl in ctls:
        ctl.fails(DEAD)
    house.run(minutes=1)
    assert house.held(lease) == [["cmp-2"]]
    assert incidents(house) == []
    assert "no segment" in house.m.store.operations.by_key(f"host_votes/{DEAD}").sentence
    house.segment(*HOSTS)
    house.run(minutes=1)
    assert len(incidents(house)) == 1  # it is dead still, and now somebody wants it recovered


def test_an_unknown_host_changes_nothing_and_its_votes_are_kept(
    house: HealHouse, ctls: list[Voter]
) -> None:
    for ctl in ctls:
        ctl.fails("stranger")
    house.run(minutes=5)
    assert incidents(house) == []
    assert {host_state(house, name) for name in HOSTS} == {"up"}
    kept = house.m.store.observations.list_all(subject="host:stranger")
    assert [row["incident_id"] for row in kept] == [None] * 3


def test_people_are_alerted_once_and_nothing_is_touched(
    house: HealHouse, ctls: list[Voter]
) -> None:
    before = len(house.sim.effects())
    for ctl in ctls:
        ctl.says("alert", DEAD)
        ctl.hosts[DEAD] = (DOWN, "alert")
        ctl.beat()
        house.run(minutes=1)
    house.manager()
    house.run(minutes=5)
    (told,) = house.ear.heard
    assert told.event_type == "host.alert"
    assert (told.payload["host"], told.payload["status"]) == (DEAD, "alert")
    assert "ctl-1" in told.payload["sentence"]
    assert incidents(house) == []
    assert host_state(house) == "up"
    assert len(house.sim.effects()) == before
    for ctl in ctls:
        ctl.recovers(DEAD)
    house.run(seconds=10)
    assert not counting(house)
    ctls[0].says("alert", DEAD)
    for ctl in ctls[1:]:
        ctl.sees(blind=[DEAD])
    house.run(seconds=10)
    assert [one.event_type for one in house.ear.heard] == ["host.alert"] * 2


def test_a_host_lost_on_all_networks_is_announced_while_the_quorum_of_one_is_lost(
    house: HealHouse, ctls: list[Voter]
) -> None:
    """And recovered once two monitors see that network again, though the third does not."""
    house.sim.fail_host(DEAD)
    before = len(house.sim.effects())
    for ctl in ctls:
        ctl.says("alert", DEAD, undecided=True)
        ctl.hosts[DEAD] = (("down", "down", "unknown"), "undecided")
        ctl.beat()
    house.run(minutes=5)
    assert [one.event_type for one in house.ear.heard] == ["host.alert"]
    assert incidents(house) == []
    assert len(house.sim.effects()) == before
    for ctl in ctls[:2]:
        ctl.fails(DEAD, GONE)
    house.run(minutes=2)
    assert [incident.status for incident in incidents(house)] == ["recovered"]


def test_a_host_seen_on_any_network_is_not_proven_off_even_where_monitors_are_trusted(
    house: HealHouse,
) -> None:
    house.segment(*HOSTS, trust_host_status=True)
    house.unfenced = {DEAD}
    ctls = voters(house, *HOSTS)
    for one in ctls:
        one.fails(DEAD)
    house.run(minutes=1)
    (one,) = incidents(house)
    assert (one.status, "nothing proves" in one.sentence) == ("held", True)


def test_a_host_down_on_all_networks_counts_as_off_in_a_trusting_segment(
    house: HealHouse,
) -> None:
    house.segment(*HOSTS, trust_host_status=True)
    house.unfenced = {DEAD}
    house.recovery.bring_back = False
    ctls = voters(house, *HOSTS)
    house.sim.fail_host(DEAD)
    for one in ctls:
        one.sees(failed=[DEAD], health=GONE)
        one.fails(DEAD, health=GONE)
    house.run(minutes=1)
    (one,) = incidents(house)
    assert one.status == "recovered"


def test_monitors_that_are_taken_away_for_good_do_not_keep_a_host_down(
    house: HealHouse, ctls: list[Voter]
) -> None:
    dies(house, *ctls)
    house.run(minutes=1)
    for ctl in ctls:
        ctl.forget(DEAD)
    house.run(minutes=9)
    assert counting(house)
    house.run(minutes=3)
    assert not counting(house)


def test_a_long_silent_monitor_with_a_down_vote_counts_again(
    house: HealHouse,
) -> None:
    """It does not repeat what was taken from it before."""
    house.segment(*HOSTS)
    one = Voter(house, "ctl-1", heartbeat_s=5.0)
    one.says("failed", DEAD)
    house.run(minutes=30)
    assert not counting(house)
    assert incidents(house) == []
    one.heartbeat_s = 1e6
    one.sees(failed=[DEAD])
    house.run(minutes=1)
    assert len(incidents(house)) == 1


def test_votes_counted_too_early_are_counted_again_after_later_votes(
    house: HealHouse,
) -> None:
    """The others saw it well when it was reported, and do not report what they cannot see."""
    house.segment(*HOSTS)
    one, two = voters(house, DEAD, count=2)
    one.says("failed", DEAD)
    house.run(seconds=1)
    assert incidents(house) == []
    one.forget(DEAD)
    house.clock.advance(2)
    one.beat()
    house.run(minutes=1)
    assert not counting(house)
    two.sees(blind=[DEAD])
    one.sees(failed=[DEAD])
    house.run(seconds=5)
    assert len(incidents(house)) == 1


def test_names_of_monitors_may_be_longer_or_shorter_than_ours(house: HealHouse) -> None:
    house.segment("cmp-1.example.org", "cmp-2.example.org", "cmp-3.example.org")
    ctls = voters(house, "CMP-1", count=2)
    house.sim.fail_host("cmp-1.example.org")
    for one in ctls:
        one.sees(failed=["CMP-1"])
        one.says("failed", "cmp-1")
    house.run(minutes=1)
    (one,) = incidents(house)
    assert one.subject == "host:cmp-1.example.org"
    assert host_state(house, "cmp-1.example.org") == "down"


@pytest.mark.parametrize("how", ["unregistered", "one changes its mind"])
def test_a_lost_majority_does_not_cut_a_host_when_the_pause_ends(
    house: HealHouse, how: str
) -> None:
    """Heartbeats travel over another network: they contradict no report of lost storage."""
    house.segment(*HOSTS)
    house.boot("web", DEAD)
    house.recovery.heartbeat_network = "manage"
    one, two = voters(house, *HOSTS, count=2)
    house.m.store.switches.pause("", "ann", "wait", None)
    one.fails(DEAD)
    two.fails(DEAD)
    house.run(seconds=5)
    assert [incident.status for incident in incidents(house)] == ["held"]
    if how == "unregistered":
        house.m.store.monitors.unregister(one.name)
        house.m.store.monitors.unregister(two.name)
    else:
        two.recovers(DEAD)
    house.m.store.switches.resume("", "ann")
    house.run(minutes=1)
    (incident,) = incidents(house)
    assert incident.status == ("ignored" if how == "unregistered" else "held"), incident.sentence
    assert not house.effects("fence.off")
    if how == "unregistered":
        return
    assert "contradicted: ctl-1 saw cmp-1 down" in incident.sentence
    two.fails(DEAD)
    house.run(minutes=1)
    assert house.effects("fence.off") == [DEAD]
