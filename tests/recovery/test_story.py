# SPDX-License-Identifier: Apache-2.0
"""The story of an incident is true: evidence is never rewritten, a fence is named only where one
was used, and a list says why servers wait and until when."""

import logging
from datetime import datetime

import pytest

from holdfast.api.holdfast_v1 import explanation
from holdfast.api.holdfast_v1.incidents import view
from holdfast.console.incidents import events
from holdfast.model import incident as history
from holdfast.model.incident import Incident
from holdfast.model.incident_progress import plain
from tests.recovery.house import HealHouse
from tests.recovery.test_guest import ha
from tests.recovery.test_observed import Agent
from tests.recovery.voters import voters

DEAD = "cmp-1"
HOSTS = (DEAD, "cmp-2", "cmp-3", "cmp-4", "cmp-5", "cmp-6")


def story(house: HealHouse, incident_id: str) -> str:
    case = house.m.store.incident_queries.case(incident_id)
    return explanation.text(explanation.story(case, house.clock.now()))


def only(house: HealHouse) -> Incident:
    with house.m.store.database.read() as conn:
        (row,) = conn.exec_driver_sql("SELECT id FROM incidents").all()
    return house.m.store.incidents.incident(row[0])


def dead(house: HealHouse, servers: int = 1) -> str:
    """A host with servers is not heard any more, has power, and is reported."""
    house.segment(*HOSTS)
    for number in range(servers):
        house.boot(f"web-{number}", DEAD)
    house.sim.cut_host(DEAD)
    return house.report(DEAD)


# evidence


def test_a_restarted_monitor_does_not_rewrite_the_times_of_its_votes(house: HealHouse) -> None:
    house.segment(*HOSTS)
    house.boot("web", DEAD)
    house.sim.change(only_calls=["fence.off"], failure_rate=1.0)  # it stays open
    one, two, _three = voters(house, *HOSTS)
    house.sim.cut_host(DEAD)
    one.fails(DEAD)
    two.fails(DEAD)
    house.run(seconds=5)
    before = plain(only(house).details)["seen"]
    first = {vote["observer"]: vote["since"] for vote in before if vote["vote"] == "for"}
    house.run(minutes=2)
    one.restarts(DEAD)
    house.run(minutes=1)
    after = plain(only(house).details)["seen"]
    assert after[: len(before)] == before
    (added,) = after[len(before) :]
    assert (added["observer"], added["vote"]) == ("ctl-1", "for")
    assert added["since"] > first["ctl-1"]
    told = story(house, only(house).id)
    assert f"since {first['ctl-1'][11:19]}" in told
    assert f"since {added['since'][11:19]}" in told


def vote(name: str, since: int = 0, **more: str) -> dict[str, str]:
    at = f"2027-01-01T10:00:{since:02d}+00:00"
    return {"observer": name, "vote": "for", "why": "saw it down", "since": at, **more}


NOW = datetime.fromisoformat("2027-01-01T10:01:00+00:00")


def test_the_same_vote_is_kept_once_and_one_vote_of_each_monitor_counts() -> None:
    kept = history.append_votes((), [vote("a", 1), vote("b", 2, vote="abstain")], NOW)
    kept = history.append_votes(kept, [vote("a", 1), vote("b", 3)], NOW)
    assert [(one["observer"], one["vote"]) for one in kept] == [
        ("a", "for"),
        ("b", "abstain"),
        ("b", "for"),
    ]
    kept = history.append_votes(kept, [vote("a", 9)], NOW)
    assert [one["since"][17:19] for one in history.votes_of(kept)] == ["01", "03"]


def test_of_too_many_votes_the_middle_is_dropped_and_counted() -> None:
    kept: tuple[history.Entry, ...] = ()
    for second in range(60):
        kept = history.append_votes(kept, [vote("a", second)], NOW)
    assert history.left_out(kept) == 10
    seconds = [int(entry["since"][17:19]) for entry in history.entries(kept)]
    assert seconds == [*range(25), *range(35, 60)]


def test_failed_fences_and_who_aborted_stay_after_a_retry(house: HealHouse) -> None:
    report = dead(house)
    house.sim.change(only_calls=["fence.off"], failure_rate=1.0)
    house.run(minutes=1)
    orders, own = house.m.store.incident_actions, house.incident(report).id
    asked = plain(house.incident(report).details)["fence_requests"]
    assert asked[0]["asked"]
    assert asked[0]["refused"]
    orders.abort(own, "ann", "a drill")
    aborted_at = plain(house.incident(report).details)["aborted"]["at"]
    house.run(seconds=30)
    house.sim.change(failure_rate=0.0)
    orders.retry(own, "bob", "no drill")
    house.run(minutes=3)
    incident = house.incident(report)
    assert incident.status == "recovered", incident
    (attempt,) = plain(incident.details)["attempts"]
    assert attempt["fence_requests"] == asked
    assert attempt["status"] == "aborted"
    told = story(house, own)
    assert f"{aborted_at[11:19]}: ann aborted it: a drill." in told
    assert "Attempt 1" in told
    assert "bob had it tried again" in told
    for entry in asked:
        assert entry["at"][11:19] in told
    assert asked[0]["refused"] in told
    assert "guards: all guards say yes" in told.split("What was done")[0]


def test_each_retry_adds_an_attempt_and_changes_none(house: HealHouse) -> None:
    report = dead(house)
    house.unfenced.add(DEAD)
    house.run(seconds=30)
    orders, own = house.m.store.incident_actions, house.incident(report).id
    known: list[history.Entry] = []
    for number in range(3):
        orders.abort(own, f"person-{number}", "not now")
        house.run(seconds=5)
        orders.retry(own, "bob")
        house.run(seconds=5)
        found = plain(house.incident(report).details)["attempts"]
        assert found[:-1] == known
        assert found[-1]["aborted"]["author"] == f"person-{number}"
        known = found


# was it fenced


def test_a_host_switched_off_by_holdfast_was_fenced(house: HealHouse) -> None:
    report = dead(house)
    house.run(minutes=1)
    evidence = plain(house.incident(report).details)["evidence"]
    assert evidence["kind"] == "fenced"
    assert evidence["sentence"] == f"{DEAD} was fenced: its power reads off"
    assert house.effects("fence.off")


def test_a_host_already_off_was_not_fenced(house: HealHouse) -> None:
    house.segment(*HOSTS)
    house.boot("web", DEAD)
    house.sim.fail_host(DEAD)
    report = house.report(DEAD)
    house.run(minutes=1)
    incident = house.incident(report)
    assert incident.status == "recovered", incident
    assert not house.effects("fence.off")
    assert plain(incident.details)["evidence"]["kind"] == "power_off"
    told = story(house, incident.id)
    assert f"{DEAD} was not fenced: its power reads off already" in told
    assert "was fenced" not in told
    house.check_never_twice()


def test_a_host_switched_off_by_hand_after_a_failed_fence_was_not_fenced(
    house: HealHouse,
) -> None:
    report = dead(house)
    house.sim.change(only_calls=["fence.off"], failure_rate=1.0)
    house.run(minutes=1)
    house.sim.fail_host(DEAD)
    house.run(minutes=2)
    incident = house.incident(report)
    assert incident.status == "recovered", incident
    assert plain(incident.details)["evidence"]["kind"] == "power_off"
    assert "was fenced" not in story(house, incident.id)


def test_a_host_fenced_in_an_earlier_attempt_says_when(house: HealHouse) -> None:
    report = dead(house, servers=3)
    house.recovery.parallel_moves = 1
    house.sim.change(action_s=5.0)
    house.run(seconds=4)
    own = house.incident(report).id
    at = plain(house.incident(report).details)["fence_requests"][0]["at"]
    house.m.store.incident_actions.abort(own, "ann", "not now")
    house.run(seconds=30)
    house.m.store.incident_actions.retry(own, "ann")
    house.run(minutes=2)
    evidence = plain(house.incident(report).details)["evidence"]
    assert evidence["kind"] == "fenced"
    assert f"was fenced at {at[:10]} {at[11:19]} UTC, in an earlier attempt" in evidence["sentence"]
    assert len(house.effects("fence.off")) == 1


# a guest


def test_a_guests_story_has_its_name_the_evidence_when_it_died_and_when_it_ran_again(
    house: HealHouse,
) -> None:
    house.segment(DEAD, "cmp-2")
    server, agent = ha(house, "shop"), Agent(house, DEAD)
    house.sim.crash_server(server)
    died = house.clock.now()
    house.clock.advance(2)
    about = {"event": "stopped", "detail": "failed", "domain_name": "instance-00000007"}
    agent.tells(f"server:{server}", "guest", ago_s=2.0, **about)
    house.run(seconds=20)
    incident = only(house)
    assert incident.status == "recovered"
    ran = datetime.fromisoformat(plain(incident.details)["ran_again_at"])
    assert died < ran <= house.clock.now()
    agent.runs(server)
    told = story(house, incident.id)
    assert f"about server shop ({server}) on {DEAD}" in told
    reported = f"agent@{DEAD} on {DEAD} reported failed: stopped failed at {died:%H:%M:%S}"
    assert f"{reported}, domain instance-00000007." in told
    assert f"{died:%H:%M:%S}: server shop ({server}) died on {DEAD}." in told
    assert f"{ran:%H:%M:%S}: server shop ({server}) ran again." in told
    assert f"agent@{DEAD} on {DEAD} reported well: running again" in told
    assert "Until it ran again: " in told


# what is final


def test_a_retried_move_did_not_fail_for_good(
    house: HealHouse, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    without_room(house)
    house.recovery.move_give_up_s = 20.0
    house.run(seconds=10)
    said = [record.getMessage() for record in caplog.records]
    assert not [one for one in said if "for good" in one]
    assert [one for one in said if "another one follows" in one]
    house.run(minutes=2)
    assert only(house).status == "failed"
    said = [record.getMessage() for record in caplog.records]
    assert len([one for one in said if "for good" in one]) == 3  # each server once


# lists


def without_room(house: HealHouse) -> str:
    """Three servers of a dead host that fit nowhere; the other host has 2 vCPU and 8 GiB."""
    house.segment(DEAD, "cmp-2")
    for number in range(3):
        house.sim.boot(f"big-{number}", "alpha", DEAD, 4, 8192, 1)
    house.sim.boot("in the way", "alpha", "cmp-2", 30, 131072 - 8192, 10)
    house.sim.fail_host(DEAD)
    return house.report(DEAD)


def test_servers_without_room_state_their_need_the_free_capacity_and_the_next_try(
    house: HealHouse,
) -> None:
    report = without_room(house)
    house.run(seconds=12)
    said = house.incident(report).sentence
    first = min(move.not_before for move in house.moves(report) if move.not_before)
    need = "no room: 3 servers need 12 vCPU and 24 GiB, 2 vCPU and 8 GiB are free"
    assert said == f"{need}; next try at {first:%H:%M:%S} UTC"


def test_the_moved_servers_are_named_before_the_reason_of_the_waiting(house: HealHouse) -> None:
    house.segment(DEAD, "cmp-2")
    house.sim.boot("small", "alpha", DEAD, 1, 1024, 1)
    house.sim.boot("big", "alpha", DEAD, 20, 1024, 1)
    house.sim.boot("in the way", "alpha", "cmp-2", 30, 1024, 10)
    house.sim.fail_host(DEAD)
    report = house.report(DEAD)
    house.run(seconds=12)
    said = house.incident(report).sentence
    assert said.startswith("1 of 2 servers moved; no room: 1 server needs 20 vCPU and 1 GiB, 1 v")


def test_free_room_in_pieces_is_no_room(house: HealHouse) -> None:
    house.segment(DEAD, "cmp-2", "cmp-3")
    house.sim.boot("big", "alpha", DEAD, 6, 1024, 1)
    for host in ("cmp-2", "cmp-3"):
        house.sim.boot(f"on {host}", "alpha", host, 28, 1024, 1)
    house.sim.fail_host(DEAD)
    report = house.report(DEAD)
    house.run(seconds=12)
    said = house.incident(report).sentence
    assert "1 server needs 6 vCPU and 1 GiB, 8 vCPU and 254 GiB are free, on no host enough" in said


def test_without_known_capacity_the_errors_of_the_tries_are_shown(house: HealHouse) -> None:
    report = without_room(house)
    house.run(seconds=1)
    house.sim.change(only_calls=["hosts.find"], failure_rate=1.0)
    house.run(seconds=12)
    said = house.incident(report).sentence
    assert said.startswith("3 servers wait: the cloud could not move it to any host; next try at ")


def test_the_free_capacity_is_queried_once_per_try(house: HealHouse) -> None:
    report = without_room(house)
    before = house.sim.calls().get("hosts.find", 0)
    house.run(minutes=5)
    tries = max(move.attempts for move in house.moves(report))
    assert 1 < house.sim.calls().get("hosts.find", 0) - before <= 3 * tries
    lines = house.m.store.incident_queries.case(house.incident(report).id).timeline
    said = [line.sentence for line in lines if "no room" in line.sentence]
    assert 1 < len(said) <= 3 * tries
    assert len(said) == len(set(said))


# the console


def test_the_console_shows_attempts_before_a_retry_in_order(house: HealHouse) -> None:
    report = dead(house)
    house.sim.change(only_calls=["fence.off"], failure_rate=1.0)
    house.run(minutes=1)
    own = house.incident(report).id
    house.m.store.incident_actions.abort(own, "ann", "a drill")
    house.run(seconds=30)
    house.sim.change(failure_rate=0.0)
    house.m.store.incident_actions.retry(own, "bob")
    house.run(minutes=3)
    found = events(view(house.m.store.incident_queries.case(own)), ())
    said = [one.sentence for one in found]

    def place(text: str) -> int:
        return next(number for number, one in enumerate(said) if text in one)

    assert place("asked to switch it off and answered") < place("aborted by ann: a drill")
    assert place("aborted by ann: a drill") < place("was fenced")
