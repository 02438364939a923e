# SPDX-License-Identifier: Apache-2.0
"""Votes of monitors on every database: written with the work that counts them, counted by one."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from holdfast.app.hostmonitor import register_own
from holdfast.db import Store
from holdfast.db.tables import incidents, monitors, observations, operations, registered_monitors
from holdfast.hostmonitor import matrix
from holdfast.model.errors import ClaimLost, NotFound, StaleWrite
from holdfast.model.incident import HOST, RECOVER, Classification, recovery_of
from holdfast.model.incident_progress import HostProgress
from holdfast.model.operation import DONE, Claim, Operation
from holdfast.model.segment import SegmentHost
from holdfast.model.votes import HOST_VOTES
from holdfast.ports.recovery import Account
from tests.db.test_floatingips import at_once
from tests.db.test_segments import admit, joined, now, report

TTL = timedelta(minutes=10)  # longer than any test takes
NETWORKS = ("storage",)
CMP = "cmp-1.site"


def body(**hosts: str) -> dict[str, Any]:
    """`body(well="cmp-1", failed="cmp-2")`"""
    sight = {"sighted": True, "leader": "x", "since": "2030-01-01T00:00:00+00:00", "why": ""}
    states = {"well": ("up", "none"), "failed": ("down", "recovery")}
    return {
        "kind": "host",
        "heartbeat_s": 5.0,
        "networks": {name: sight for name in NETWORKS},
        "ha_matrix": matrix.default(NETWORKS).to_plain(),
        "rows": [
            {"health": {"storage": states[how][0]}, "opinion": states[how][1], "hosts": [host]}
            for how, host in hosts.items()
        ],
    }


def say(store: Store, observer: str, state: str = "failed", **more: Any) -> Mapping[str, Any]:
    store.monitors.register(observer, "ann")
    at = now(store)
    values = {
        "observer": observer,
        "subject": f"host:{CMP}",
        "kind": "host_health",
        "state": state,
        "since": at,
        "observed_at": at,
        "key": str(uuid.uuid4()),
        "evidence": {},
    }
    return store.observations.add(str(uuid.uuid4()), values | more)[0]


def register(store: Store, *observers: str) -> None:
    for observer in observers:
        store.monitors.register(observer, "ann")


def claimed(store: Store, kind: str = HOST_VOTES, owner: str = "m") -> tuple[Operation, Claim]:
    (mine,) = store.operations.claim_due(owner, 1, TTL, [kind])
    return mine, Claim(mine.id, owner, mine.epoch)


def account(member: SegmentHost, at: datetime, **more: Any) -> Account:
    meaning = Classification(HOST, f"host:{member.key}", RECOVER, "it failed")
    return Account(meaning, member, at, **{"details": HostProgress(), **more})


def count(store: Store, table: sa.Table) -> int:
    with store.database.read() as conn:
        return int(conn.execute(sa.select(sa.func.count()).select_from(table)).scalar_one())


def test_many_votes_at_once_are_all_kept_and_counted_by_one_row(store: Store) -> None:
    joined(store, CMP)
    register(store, "ctl-0", "ctl-1", "ctl-2")
    jobs: list[Callable[[], object]] = [lambda i=i: say(store, f"ctl-{i % 3}") for i in range(12)]
    at_once(jobs)
    assert count(store, observations) == 12
    mine, _claim = claimed(store)
    assert (mine.key, mine.payload) == (f"host_votes/{CMP}", {"host": CMP})
    assert store.operations.claim_due("other", 9, TTL, [HOST_VOTES]) == []


def test_a_vote_that_comes_while_somebody_counts_is_counted(store: Store) -> None:
    say(store, "ctl-1")
    _mine, claim = claimed(store)
    say(store, "ctl-2")
    with pytest.raises(ClaimLost):
        store.operations.finish(claim, DONE, "nothing to do")
    again, fresh = claimed(store, owner="other")
    assert again.epoch > claim.epoch
    store.operations.finish(fresh, DONE, "nothing to do")
    say(store, "ctl-3", "well")
    assert store.operations.claim_due("m", 9, TTL, [HOST_VOTES]) == []
    say(store, "ctl-3")
    assert claimed(store)[0].payload == {"host": CMP}


def test_the_same_report_again_is_one_row_and_is_counted_again(store: Store) -> None:
    first = say(store, "ctl-1", key="same")
    _mine, claim = claimed(store)
    store.operations.finish(claim, DONE, "forgotten")
    assert say(store, "ctl-1", key="same")["id"] == first["id"]
    assert count(store, observations) == 1
    claimed(store)


def test_the_ballot_has_the_last_report_of_each_monitor_under_any_name_of_the_host(
    store: Store,
) -> None:
    joined(store, CMP)
    register(store, "ctl-1", "ctl-2")
    at = now(store)
    store.monitors.put("ctl-1", at, body(failed="cmp-1"))
    store.monitors.put("ctl-2", at, body(well=CMP))
    for seconds, state in ((3, "failed"), (1, "well"), (2, "alert")):
        late = at - timedelta(seconds=seconds)
        say(store, "ctl-1", state, subject="host:cmp-1", observed_at=late)
    say(store, "ctl-2", "failed", observed_at=at + timedelta(hours=1))  # a clock that is ahead
    ballot = store.votes.ballot("CMP-1")
    assert ballot.host == CMP
    assert {name: word.state for name, word in ballot.reports.items()} == {
        "ctl-1": "well",
        "ctl-2": "failed",
    }
    assert ballot.reports["ctl-2"].at <= now(store)
    assert [view.observer for view in ballot.fresh] == ["ctl-1", "ctl-2"]


def test_what_a_monitor_sees_is_written_when_it_changes_and_read_by_all(store: Store) -> None:
    register(store, "ctl-1")
    at = now(store)
    other = type(store.monitors)(store.database)
    store.monitors.put("ctl-1", at, body(well=CMP))
    store.monitors.put("ctl-1", at + timedelta(microseconds=1), body(well=CMP))
    _now, (view,) = other.views()
    assert view.picture.row(CMP) is not None
    store.monitors.put("ctl-1", at - timedelta(seconds=1), body(failed=CMP))
    _now, (view,) = other.views()
    assert not view.picture.bad()
    store.monitors.put("ctl-1", now(store), body(failed=CMP))
    _now, (view,) = other.views()
    assert view.picture.bad() == {CMP}
    assert other.views()[1][0].picture is view.picture  # not read again
    at_once([lambda i=i: store.monitors.put(f"m-{i % 2}", at, body(well=CMP)) for i in range(8)])
    assert count(store, monitors) == 3


def test_a_monitor_is_registered_once_however_many_do_so_at_once(store: Store) -> None:
    names = ["ctl-1", "CTL-1", "ctl-2"] * 4
    made = at_once([lambda name=name: store.monitors.register(name, "ann") for name in names])
    assert len({one.at for one in made if one.observer == "ctl-1"}) == 1  # type: ignore[attr-defined]
    assert count(store, registered_monitors) == 3
    store.monitors.unregister("CTL-1")
    assert store.monitors.is_registered("ctl-1")
    assert not store.monitors.is_registered("CTL-1")
    assert not store.monitors.is_registered("ctl-1 ")
    with pytest.raises(NotFound):
        store.monitors.unregister("CTL-1")


def test_a_machine_that_was_renamed_has_one_monitor_of_its_own_and_leaves_others_alone(
    store: Store,
) -> None:
    register(store, "ctl-9")
    for name in ("old", "old", "new", "ctl-9"):
        register_own(store, name)
        assert store.monitors.is_registered(name)
    assert [one.observer for one in store.monitors.listed(registered=True)[1]] == ["ctl-9"]


def test_only_what_registered_monitors_say_since_they_are_is_read_and_counted(
    store: Store,
) -> None:
    joined(store, CMP)
    at = now(store)
    values = {"subject": f"host:{CMP}", "kind": "host_health", "state": "failed", "since": at}
    for name in ("ctl-1", "ctl-2"):
        store.monitors.put(name, at, body(failed=CMP))
        own = {**values, "observer": name, "key": name, "evidence": {}}
        store.observations.add(str(uuid.uuid4()), own)
    assert store.operations.claim_due("m", 9, TTL, [HOST_VOTES]) == []
    assert store.monitors.views()[1] == []
    assert [one.observer for one in store.monitors.listed()[1]] == ["ctl-1", "ctl-2"]
    register(store, "ctl-1", "ctl-3")
    ballot = store.votes.ballot(CMP)
    assert (ballot.registered, ballot.views, ballot.reports) == (2, [], {})
    store.monitors.put("ctl-1", now(store), body(failed=CMP))
    claimed(store)
    assert [view.observer for view in store.votes.ballot(CMP).views] == ["ctl-1"]
    say(store, "ctl-1")
    assert list(store.votes.ballot(CMP).reports) == ["ctl-1"]


def test_votes_and_a_notification_at_once_open_one_incident(store: Store) -> None:
    member = joined(store, CMP)
    mine = [say(store, f"ctl-{i}")["id"] for i in range(2)]
    made = admit(store, report(now(store)))
    _votes, by_votes = claimed(store)
    _intake, by_report = claimed(store, "notification")
    at = now(store)
    payload = {"host": CMP, "down_at": at.isoformat()}
    voted = account(member, at, observations=mine, payload=payload)
    reported = account(member, at, details=HostProgress(report=made.uuid), notification=made.uuid)

    def take(one: Account, claim: Claim) -> Callable[[], object]:
        def action() -> object:
            new = recovery_of(str(uuid.uuid4()), HOST, one.meaning.subject, at)
            for _ in range(9):
                try:
                    return store.incidents.ingest(one, new, claim).incident_id
                except StaleWrite:
                    continue
            raise AssertionError("always slower")

        return action

    first, second = at_once([take(voted, by_votes), take(reported, by_report)])
    assert first == second
    incident = store.incidents.open_about(f"host:{CMP}")
    assert incident is not None
    assert incident.id == first
    assert incident.host_progress.seen == ()
    assert store.notifications.notification(made.uuid).incident_id == first
    kept = {row["id"]: row["incident_id"] for row in store.observations.list_all()}
    assert {kept[own] for own in mine} == {first}
    assert store.operations.by_key(f"host_votes/{CMP}").payload == {**payload, "incident": first}


def test_old_observations_go_and_with_the_last_one_of_an_incident_all_of_it(store: Store) -> None:
    member = joined(store, CMP)
    mine = say(store, "ctl-1")
    say(store, "ctl-2", subject="host:other")
    _work, claim = claimed(store)
    at = now(store)
    work = recovery_of(str(uuid.uuid4()), HOST, f"host:{CMP}", at)
    own = account(member, at, observations=[mine["id"]])
    store.incidents.ingest(own, work, claim)
    later = at + timedelta(days=1)
    assert store.tidy.observations(later, 100) == 0  # both hosts are being counted
    with store.database.write() as conn:
        conn.execute(sa.update(operations).values(is_open=False))
    assert store.tidy.observations(later, 100) == 1  # an incident is open
    with store.database.write() as conn:
        conn.execute(sa.update(incidents).values(closed_at=at, status="recovered"))
    assert store.tidy.observations(at - timedelta(days=1), 100) == 0
    assert store.tidy.observations(later, 100) == 1
    assert [count(store, table) for table in (observations, incidents)] == [0, 0]


def test_who_lost_its_claim_neither_opens_nor_remembers(store: Store) -> None:
    member = joined(store, CMP)
    say(store, "ctl-1")
    mine, claim = claimed(store)
    say(store, "ctl-2")
    at = now(store)
    work = recovery_of(str(uuid.uuid4()), HOST, f"host:{CMP}", at)
    with pytest.raises(ClaimLost):
        store.incidents.ingest(account(member, at, payload={"host": CMP}), work, claim)
    with pytest.raises(ClaimLost):
        store.votes.remember(claim, {"host": CMP, "down_at": "x"}, "said")
    assert store.incidents.open_about(f"host:{CMP}") is None
    assert store.operations.by_key(mine.key).payload == {"host": CMP}
    assert count(store, operations) == 1
