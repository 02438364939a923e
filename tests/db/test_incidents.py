# SPDX-License-Identifier: Apache-2.0
"""Reports join incidents and recoveries begin, one after the other, on every database."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as TooLate
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from holdfast.db import Store
from holdfast.db.tables import notifications
from holdfast.model.incident import Incident, classify, recovery_of
from holdfast.model.incident_progress import HostProgress
from holdfast.model.operation import Claim
from holdfast.ports.recovery import Account, Change
from tests.db.test_floatingips import at_once
from tests.db.test_orders import TTL, claimed, opened
from tests.db.test_segments import DOWN, admit, joined, new_id, now, report
from tests.processes import PATIENCE_S

RECOVERED = Change("recovered", "all moved")


def taken_in(store: Store, uuid: str) -> str:
    """What `recovery/intake` does with a report; the incident that it belongs to."""
    found = store.incidents.report(uuid)
    assert found.member is not None
    told = classify(found.type, found.member.key, found.payload)
    about = HostProgress(payload=DOWN)
    account = Account(told, found.member, found.generated_at, about, notification=uuid)
    work = recovery_of(new_id(), told.kind, told.subject, now(store))
    (mine,) = store.operations.claim_due("m2", 10, TTL, ["notification"])
    claim = Claim(mine.id, "m2", mine.epoch)
    return store.incidents.ingest(account, work, claim).incident_id


@contextmanager
def paused_at(store: Store, statement: str) -> Iterator[tuple[threading.Event, threading.Event]]:
    """The first transaction that comes to such a statement waits there: that it `is` there, and
    that it may `go` on."""
    there, go = threading.Event(), threading.Event()

    def wait(_conn: Any, _cursor: Any, said: str, *_more: Any) -> None:
        if said.startswith(statement) and not there.is_set():
            there.set()
            assert go.wait(PATIENCE_S)

    engine = store.database.engine
    event.listen(engine, "before_cursor_execute", wait)
    try:
        yield there, go
    finally:
        go.set()
        event.remove(engine, "before_cursor_execute", wait)


def waits(answer: Future[Any]) -> bool:
    try:
        answer.result(timeout=0.3)
    except TooLate:
        return True
    return False


def test_an_incident_is_not_closed_while_a_report_joins_it(store: Store) -> None:
    """It would be closed without that report, which then nobody would ever end."""
    member = joined(store)
    incident = opened(store, member.name, subject=f"host:{member.key}")
    claim = claimed(store, incident)
    late = admit(store, report(now(store)))
    with ThreadPoolExecutor(2) as pool, paused_at(store, "UPDATE notifications") as (there, go):
        joins = pool.submit(taken_in, store, late.uuid)
        assert there.wait(PATIENCE_S)
        closes = pool.submit(store.incidents.close, incident.id, RECOVERED, claim)
        assert waits(closes), "it was closed before the report belonged to it"
        go.set()
        assert joins.result(PATIENCE_S) == incident.id
        assert closes.result(PATIENCE_S).status == "recovered"
    assert store.notifications.notification(late.uuid).status == "finished"


def test_a_report_that_comes_while_an_incident_is_closed_does_not_join_it(store: Store) -> None:
    member = joined(store)
    incident = opened(store, member.name, subject=f"host:{member.key}")
    claim = claimed(store, incident)
    late = admit(store, report(now(store)))
    with ThreadPoolExecutor(2) as pool, paused_at(store, "UPDATE notifications") as (there, go):
        closes = pool.submit(store.incidents.close, incident.id, RECOVERED, claim)
        if not there.wait(PATIENCE_S):  # nothing of its reports was open: there is nothing to end
            pytest.fail("the incident was closed without a look at its reports")
        joins = pool.submit(taken_in, store, late.uuid)
        assert waits(joins), "it joined an incident that is being closed"
        go.set()
        closes.result(PATIENCE_S)
        other = joins.result(PATIENCE_S)
    assert other != incident.id
    assert store.incidents.incident(other).status == "open"
    assert store.notifications.notification(late.uuid).status == "running"


def test_of_many_reports_of_one_host_one_opens_the_incident(store: Store) -> None:
    joined(store)
    reports = [
        admit(store, report(now(store), payload={**DOWN, "cluster_status": word})).uuid
        for word in ("ONLINE", "OFFLINE")
    ]
    with store.database.write() as conn:  # as they are when two managers have claimed them
        conn.execute(sa.update(notifications).values(status="new"))
    claims = {
        one.subject.removeprefix("notification:"): Claim(one.id, "m1", one.epoch)
        for one in store.operations.claim_due("m1", 10, TTL, ["notification"])
    }

    def take(uuid: str) -> str:
        found = store.incidents.report(uuid)
        assert found.member is not None
        told = classify(found.type, found.member.key, found.payload)
        about = HostProgress()
        account = Account(told, found.member, found.generated_at, about, notification=uuid)
        work = recovery_of(new_id(), told.kind, told.subject, now(store))
        return store.incidents.ingest(account, work, claims[uuid]).incident_id

    said = at_once([lambda uuid=uuid: take(uuid) for uuid in reports])  # type: ignore[misc]
    assert len(set(said)) == 1


# how many recoveries of a failure domain begin


def begins(
    store: Store,
    incident: Incident,
    claim: Claim,
    seen: list[datetime],
    *,
    domain: str = "rack-a",
    looked_at: datetime | None = None,
) -> Incident | None:
    at = looked_at or now(store)
    change = Change("running", "yes", lambda one: replace(one, started_at=at, domain=domain))
    return store.incidents.start(incident.id, change, seen, claim)


def failed(store: Store, count: int) -> list[tuple[Incident, Claim]]:
    """Hosts of one rack that have died, each in the hands of somebody."""
    made = [opened(store, f"cmp-{number}", status="open") for number in range(count)]
    store.operations.claim_due("m1", 100, TTL, ["recovery_host"])
    return [(one, claimed(store, one)) for one in made]


def test_of_many_that_saw_nobody_begin_one_begins(store: Store) -> None:
    dead = failed(store, 5)
    said = at_once([lambda o=one, c=claim: begins(store, o, c, []) for one, claim in dead])  # type: ignore[misc]
    begun = [one for one in said if one is not None]
    assert len(begun) == 1, said
    assert begun[0].status == "running"  # type: ignore[attr-defined]


def test_the_next_one_counts_when_the_one_before_has_written(store: Store) -> None:
    (one, its), (two, others) = failed(store, 2)
    with ThreadPoolExecutor(2) as pool, paused_at(store, "UPDATE incidents") as (there, go):
        first = pool.submit(begins, store, one, its, [])
        assert there.wait(PATIENCE_S)
        second = pool.submit(begins, store, two, others, [])
        assert waits(second), "it counted before the other had written that it began"
        go.set()
        assert first.result(PATIENCE_S) is not None
        assert second.result(PATIENCE_S) is None


def test_who_has_counted_all_that_began_begins_too(store: Store) -> None:
    (one, its), (two, others) = failed(store, 2)
    first = begins(store, one, its, [])
    assert first is not None
    assert begins(store, two, others, []) is None
    assert store.incidents.incident(two.id).status == "open"
    started = first.progress.started_at
    assert started is not None
    seen = [started]
    second = begins(store, two, others, seen)
    assert second is not None and second.status == "running"


def test_another_rack_does_not_count(store: Store) -> None:
    (one, its), (two, others) = failed(store, 2)
    assert begins(store, one, its, []) is not None
    assert begins(store, two, others, [], domain="rack-b") is not None


def test_an_incident_that_began_and_ended_since_the_last_pass_counts(store: Store) -> None:
    looked_at = now(store) - timedelta(seconds=5)
    (one, its), (two, others) = failed(store, 2)
    assert begins(store, one, its, []) is not None
    store.incidents.close(one.id, RECOVERED, its)
    assert begins(store, two, others, [], looked_at=looked_at) is None
    later = now(store) + timedelta(seconds=5)
    assert begins(store, two, others, [], looked_at=later) is not None


def test_who_lost_his_claim_begins_nothing(store: Store) -> None:
    ((one, claim),) = failed(store, 1)
    with pytest.raises(Exception, match="claim of m1 ended"):
        begins(store, one, Claim(claim.operation_id, claim.owner, claim.epoch - 1), [])
    assert store.incidents.incident(one.id).status == "open"
