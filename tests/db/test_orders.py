# SPDX-License-Identifier: Apache-2.0
"""Operators' orders about incidents, and incidents for people, on every database."""

from __future__ import annotations

import functools
import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from holdfast.db import Store
from holdfast.db.incident_queries import Wanted
from holdfast.db.operations import apply_work
from holdfast.db.tables import incidents, operations, steps, verdicts, vmoves
from holdfast.model.errors import ClaimLost, Conflict, NotFound
from holdfast.model.incident import Incident, recovery_of
from holdfast.model.incident_progress import OffEvidence, PowerReturned, plain
from holdfast.model.operation import Claim
from holdfast.ports.ledger import Work
from holdfast.ports.recovery import ANSWERED, STARTED, Change, Limits, ServerMove
from tests.db.test_floatingips import at_once

TTL = timedelta(minutes=10)  # longer than any test takes
NOON = datetime(2027, 1, 31, 12, tzinfo=UTC)
OFF = OffEvidence("fenced", "its power reads off", NOON)
KINDS = ["recovery_host", "recovery_guest", "recovery_process"]


def opened(store: Store, host: str = "cmp-1", **more: Any) -> Incident:
    """An incident with its durable work."""
    own, now = str(uuid.uuid4()), store.database.now()
    subject, kind = more.pop("subject", f"host:{host}"), more.pop("kind", "host")
    details = {"host": host, **more.pop("details", {})}
    work = recovery_of(own, kind, subject, now)
    with store.database.write() as conn:
        row = {"subject": subject, "kind": kind, "cause": "died", "sentence": "died"}
        base = {"status": "running", "opened_at": now, "created_at": now, "details": details}
        values = {"id": own, "key": subject, **row, **base, **more}
        conn.execute(sa.insert(incidents).values(**values))
        apply_work(conn, work.subject, Work(put=(work,)), now)
    return store.incidents.incident(own)


def claimed(store: Store, incident: Incident) -> Claim:
    """With all others that are due."""
    store.operations.claim_due("m1", 10, TTL, KINDS)
    one = store.operations.by_key(f"recovery/{incident.id}")
    assert (one.owner, one.status) == ("m1", "running")
    return Claim(one.id, "m1", one.epoch)


def test_who_is_at_it_when_it_is_aborted_cannot_write_any_more(store: Store) -> None:
    incident = opened(store)
    claim = claimed(store, incident)
    assert store.incident_actions.abort(incident.id, "ann", "a drill").status == "aborted"
    with pytest.raises(ClaimLost):
        store.incidents.change(incident.id, Change("running", "moving"), claim)
    with pytest.raises(ClaimLost):
        store.incidents.close(incident.id, Change("recovered", "all moved"), claim)
    assert store.incidents.incident(incident.id).status == "aborted"
    assert store.incidents.open_about(incident.subject) is None
    assert store.operations.by_key(f"recovery/{incident.id}").status == "cancelled"


def test_work_tried_again_waits_until_a_call_of_the_old_one_must_have_ended(store: Store) -> None:
    incident = opened(store)
    claimed(store, incident)
    store.incident_actions.abort(incident.id, "ann", "a drill")
    store.incident_actions.retry(incident.id, "ann")
    work = store.operations.by_key(f"recovery/{incident.id}")
    assert work.status == "waiting"
    assert work.next_try_at > store.database.now() + TTL / 2
    # an operator's word does not cut that short
    store.incident_actions.confirm_off(incident.id, "ann", "plug pulled")
    again = store.operations.by_key(f"recovery/{incident.id}")
    assert again.next_try_at == work.next_try_at
    store.incident_actions.approve("ann", "it is so")
    again = store.operations.by_key(f"recovery/{incident.id}")
    assert again.next_try_at == work.next_try_at


def test_what_is_held_is_asked_again_at_once_there_or_everywhere(store: Store) -> None:
    here = opened(store, status="held", details={"segment": "s1"})
    there = opened(store, "cmp-2", status="held", details={"segment": "s2"})
    running = opened(store, "cmp-3")
    later = store.database.now() + timedelta(hours=1)
    for one in (here, there, running):
        store.operations.put_off(claimed(store, one), "retrying", later, "not yet")

    def due(one: Incident) -> bool:
        return store.operations.by_key(f"recovery/{one.id}").next_try_at < later

    assert store.incident_actions.expedite_held("s1") == 1
    assert [due(one) for one in (here, there, running)] == [True, False, False]
    assert store.incident_actions.expedite_held() == 2
    assert [due(one) for one in (here, there, running)] == [True, True, False]


def test_an_action_during_a_pass_of_the_guards_makes_them_run_again(store: Store) -> None:
    incident = opened(store)
    claim = claimed(store, incident)
    due = store.operations.by_key(f"recovery/{incident.id}").due_at
    store.incident_actions.confirm_off(incident.id, "ann", "plug pulled")
    later = store.database.now() + timedelta(seconds=60)
    store.operations.put_off(claim, "retrying", later, "no proof", due_at=due)
    work = store.operations.by_key(f"recovery/{incident.id}")
    assert work.next_try_at < later
    known = store.incidents.change(incident.id, Change(), claimed(store, incident)).host_progress
    assert known.confirmed_off is not None
    assert known.confirmed_off.reason == "plug pulled"


@pytest.mark.parametrize(
    ("details", "said"),
    [
        ({}, ""),
        ({"evidence": plain(OFF)}, "cmp-1 may be forced down"),
        ({"forced_down_at": "2027-01-31T12:00:00+00:00"}, "cmp-1 stays forced down"),
    ],
)
def test_who_aborts_hears_what_is_left_of_the_host(
    store: Store, details: dict[str, Any], said: str
) -> None:
    incident = opened(store, details=details)
    sentence = store.incident_actions.abort(incident.id, "ann", "a drill").sentence
    assert said in sentence
    assert bool(said) == (f"holdfast incident retry {incident.id}" in sentence)
    again = store.incident_actions.retry(incident.id, "ann").host_progress
    assert bool(again.forced_down_at) == bool(said)
    assert again.evidence is None


@pytest.mark.parametrize("order", ["abort", "retry"])
def test_of_many_who_order_the_same_one_is_obeyed(store: Store, order: str) -> None:
    incident = opened(store)
    if order == "retry":
        store.incident_actions.abort(incident.id, "ann", "a drill")
    do = getattr(store.incident_actions, order)
    answers = at_once([lambda: do(incident.id, "ann", "so") for _ in range(6)])
    assert answers.count(Conflict) == 5, answers
    status = "aborted" if order == "abort" else "open"
    assert store.incidents.incident(incident.id).status == status


def test_moves_that_had_not_begun_are_left_and_planned_anew(store: Store) -> None:
    incident = opened(store)
    claim = claimed(store, incident)
    moves = [
        ServerMove("", "", f"s{number}", f"web-{number}", "cmp-1", position=number)
        for number in range(3)
    ]
    store.vmoves.plan(incident.id, moves, claim)

    def work(move: ServerMove, now: Any) -> Any:
        return recovery_of(str(uuid.uuid4()), "host", "", now)

    assert store.vmoves.begin(Limits(1, 1), work) == 1
    store.incident_actions.abort(incident.id, "ann", "a drill")
    assert [one.status for one in store.vmoves.of(incident.id)] == ["ongoing", "ignored", "ignored"]
    assert store.vmoves.begin(Limits(9, 9), work) == 0
    with pytest.raises(Conflict, match=r"1 servers of incident .* still on their way"):
        store.incident_actions.retry(incident.id, "ann")
    with store.database.write() as conn:
        ended = sa.update(vmoves).where(vmoves.c.status == "ongoing").values(status="failed")
        conn.execute(ended)
    store.incident_actions.retry(incident.id, "ann")
    assert [one.status for one in store.vmoves.of(incident.id)] == ["pending"]


def test_incidents_are_found_by_what_they_are_about(store: Store) -> None:
    make = {"recovery_method": "auto", "service_type": "COMPUTE"}
    north = store.segments.create(str(uuid.uuid4()), {"name": "north", **make}).uuid
    one = opened(store, "cmp-1.site", details={"segment": north})
    two = opened(store, "cmp-10", status="held")
    store.incident_actions.abort(one.id, "ann", "a drill")

    def found(**wanted: Any) -> set[str]:
        return {each.incident.id for each in store.incident_queries.list_all(Wanted(**wanted))}

    assert found() == {one.id, two.id}
    assert found(host="CMP-1") == found(segment=north) == found(is_open=False) == {one.id}
    assert found(host="cmp-1_") == found(host="%") == set()
    assert found(status="held") == found(is_open=True) == {two.id}
    assert found(since=store.database.now() + TTL) == set()
    assert len(found(limit=1)) == 1
    assert (
        store.incident_queries.segment_uuid("north")
        == store.incident_queries.segment_uuid(north)
        == north
    )
    with pytest.raises(NotFound):
        store.incident_queries.segment_uuid("south")


def test_a_case_has_all_that_was_written_down(store: Store) -> None:
    incident = opened(store)
    claim = claimed(store, incident)
    store.operations.step_done(claim, 0, "guards", "all say yes", TTL)
    with store.database.write() as conn:
        said = {"guard": "paused", "passed": True, "sentence": "no", "at": store.database.now()}
        conn.execute(sa.insert(verdicts).values(incident_id=incident.id, **said))
    store.vmoves.plan(incident.id, [ServerMove("", "", "s1", "web", "cmp-1")], claim)
    store.incident_actions.abort(incident.id, "ann", "a drill")
    case = store.incident_queries.case(incident.id)
    assert [row["name"] for row in case.done] == ["guards"]
    assert [row["guard"] for row in case.verdicts] == ["paused"]
    assert [server.server_name for server in case.servers] == ["web"]
    assert case.moves == {"ignored": 1}
    assert case.timeline[-1].sentence == "aborted: aborted by ann: a drill"
    with store.database.write() as conn:
        conn.execute(sa.delete(operations))
    assert store.incident_queries.case(incident.id).work is None


# power that returns


def leaving(store: Store, incident: Incident, count: int = 1) -> tuple[Claim, list[ServerMove]]:
    """Servers of the incident that are under way and were not asked to leave yet."""
    claim = claimed(store, incident)
    store.incidents.change(incident.id, Change(edit=lambda one: replace(one, evidence=OFF)), claim)
    planned = [
        ServerMove("", incident.id, f"server-{n}", f"web-{n}", incident.host, was="ACTIVE")
        for n in range(count)
    ]
    store.vmoves.plan(incident.id, planned, claim)
    return claim, list(store.vmoves.leaving(incident.host))


KEEP = Change(
    None, "its power returned", lambda one: replace(one, power_returned=PowerReturned(NOON))
)


def test_no_server_is_evacuated_from_a_host_that_keeps_its_servers(store: Store) -> None:
    incident = opened(store)
    claim, moves = leaving(store, incident)
    assert store.incidents.keep_in_place(incident.id, KEEP, moves, claim) is not None
    assert not store.vmoves.aim(moves[0].uuid, None, 0, Limits(9, 9), claim)
    assert not store.vmoves.aim(moves[0].uuid, "cmp-2", 0, Limits(9, 9), claim)
    (kept,) = store.vmoves.leaving("cmp-1.example.org")
    assert (kept.attempts, kept.after_migration) == (0, ANSWERED)
    again = store.incidents.leave_again(incident.id, "off again", claim, silent=False)
    assert not again.host_progress.power_returned
    assert store.vmoves.aim(moves[0].uuid, None, 0, Limits(9, 9), claim)


def test_no_server_is_evacuated_before_its_host_is_proven_to_be_off(store: Store) -> None:
    incident = opened(store)
    claim, moves = leaving(store, incident)
    store.incidents.change(incident.id, Change(edit=lambda one: replace(one, evidence=None)), claim)
    assert not store.vmoves.aim(moves[0].uuid, None, 0, Limits(9, 9), claim)


def test_a_recovery_that_starts_over_asks_its_guards_again(store: Store) -> None:
    incident = opened(store)
    claim, moves = leaving(store, incident)
    store.incidents.change(incident.id, Change("running", "guards said yes"), claim)
    store.operations.step_done(claim, 0, "guards", "yes", TTL)
    assert store.incidents.keep_in_place(incident.id, KEEP, moves, claim)
    again = store.incidents.start_over(incident.id, "silent again", claim)
    assert (again.status, again.host_progress.power_returned) == ("open", None)
    with store.database.read() as conn:
        assert not conn.execute(sa.select(steps)).all()


def test_a_host_does_not_keep_its_servers_once_one_was_asked_to_leave(store: Store) -> None:
    incident = opened(store)
    claim, moves = leaving(store, incident)
    assert store.vmoves.aim(moves[0].uuid, None, 0, Limits(9, 9), claim)
    assert store.incidents.keep_in_place(incident.id, KEEP, moves, claim) is None
    assert not plain(store.incidents.incident(incident.id).details).get("power_returned")


def test_of_an_evacuation_and_the_decision_against_it_one_happens(store: Store) -> None:
    other = claimed(store, opened(store, "cmp-9"))  # of the move: another row of work
    for number in range(5):
        incident = opened(store, f"cmp-1{number}")
        claim, moves = leaving(store, incident)
        uuid_, limits = moves[0].uuid, Limits(9, 9)
        evacuate = functools.partial(store.vmoves.aim, uuid_, None, 0, limits, other)
        keep = functools.partial(store.incidents.keep_in_place, incident.id, KEEP, moves, claim)
        assert sorted(map(bool, at_once([evacuate, keep]))) == [False, True]


def test_a_server_that_was_started_in_place_leaves_with_the_others(store: Store) -> None:
    incident = opened(store)
    claim, moves = leaving(store, incident, count=2)
    assert store.incidents.keep_in_place(incident.id, KEEP, moves, claim)
    with store.database.write() as conn:
        started = {"status": "ignored", "after_migration": STARTED}
        mine = vmoves.c.uuid == moves[0].uuid
        conn.execute(sa.update(vmoves).where(mine).values(**started))
    store.incidents.leave_again(incident.id, "off again", claim, silent=False)
    found = store.vmoves.of(incident.id)
    assert [(one.status, one.after_migration) for one in found] == [("pending", ANSWERED)] * 2


def test_only_a_failed_recovery_with_servers_left_is_opened_again(store: Store) -> None:
    incident = opened(store)
    claim, moves = leaving(store, incident, count=2)
    assert store.incidents.reopen_in_place(incident.id, "back", claim) is None  # it is open
    with store.database.write() as conn:
        rows = vmoves.c.uuid.in_([move.uuid for move in moves[:1]])
        conn.execute(sa.update(vmoves).where(rows).values(status="failed"))
    store.incidents.close(incident.id, Change("failed", "no room"), claim)
    again = store.incidents.reopen_in_place(incident.id, "it is back", claim)
    assert again is not None
    assert (again.status, plain(again.details)["power_returned"]["in_use"]) == ("open", True)
    found = {one.uuid: one.status for one in store.vmoves.of(incident.id)}
    assert found == {moves[0].uuid: "pending", moves[1].uuid: "ignored"}
    assert store.incidents.open_about(incident.subject) == again
