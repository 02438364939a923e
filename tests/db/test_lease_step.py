# SPDX-License-Identifier: Apache-2.0
"""A step of a lease in the name of a claim: all of it or nothing, on every database."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from holdfast.db import Store, leases
from holdfast.db.audit import REPAIR, Wanted
from holdfast.db.tables import audit
from holdfast.leases.lifecycle import lease_work
from holdfast.model.errors import ClaimLost, NotFound, StaleWrite
from holdfast.model.lease import START, Lease, Reservation
from holdfast.model.operation import DONE, Claim, Operation
from holdfast.ports.ledger import Change, Work

NOW = datetime(2030, 1, 1, tzinfo=UTC)
TTL = timedelta(minutes=5)


def book(store: Store, parts: int = 2) -> tuple[Lease, Claim]:
    """A lease, and the claim of whoever starts it."""
    id_ = str(uuid.uuid4())
    spec = {"min": 1, "max": 1}
    held = tuple(Reservation(f"{id_[:-1]}{n}", "acme:none", spec=spec) for n in range(parts))
    lease = Lease(id_, "one", "u", "p", NOW, NOW + timedelta(hours=1), reservations=held)
    row = lease_work(str(uuid.uuid4()), id_, START, store.database.now())
    store.ledger.book(lease, Work(add=(row,)))
    (taken,) = store.operations.claim_due("m", 10, TTL, (START,))
    return store.ledger.lease(id_), Claim(taken.id, "m", taken.epoch)


def started(lease: Lease) -> Lease:
    return replace(lease, status="ACTIVE").move_reservations("active")


def sentences(store: Store, lease: Lease) -> list[Any]:
    query = sa.select(audit.c.sentence, audit.c.project_id, audit.c.actor, audit.c.request_id)
    with store.database.read() as conn:
        rows = conn.execute(query.where(audit.c.subject == lease.id).order_by(audit.c.id))
        return [tuple(row) for row in rows][1:]  # after the booking


@contextmanager
def statements(store: Store) -> Iterator[list[str]]:
    """What the database is asked meanwhile."""
    seen: list[str] = []

    def note(_conn: Any, _cursor: Any, sql: str, *_rest: Any) -> None:
        seen.append(sql)

    sa.event.listen(store.database.engine, "before_cursor_execute", note)
    yield seen
    sa.event.remove(store.database.engine, "before_cursor_execute", note)


@pytest.mark.parametrize("parts", [0, 1, 2, leases.MOST_PARTS + 1])
def test_a_step_is_written_with_its_sentence(store: Store, parts: int) -> None:
    lease, claim = book(store, parts)
    saved = store.ledger.save(lease, started(lease), claim=claim, say="it runs")
    found = store.ledger.lease(lease.id)
    assert (found.status, found.version) == ("ACTIVE", lease.version + 1)
    assert [part.status for part in found.reservations] == ["active"] * parts
    assert (found.version, found.updated_at) == (saved.version, saved.updated_at)
    assert sentences(store, lease) == [("it runs", "p", "holdfast", "")]


def test_an_audit_line_has_the_new_state_or_the_repair_as_its_kind(store: Store) -> None:
    lease, claim = book(store)
    active = store.ledger.save(lease, started(lease), claim=claim, say="it runs")
    degraded = replace(active, degraded=True)
    degraded = store.ledger.save(active, degraded, claim=claim, say="a host failed", is_repair=True)
    renamed = store.ledger.save(degraded, replace(degraded, name="two"), say="renamed")
    whole = replace(renamed, degraded=False)
    store.ledger.save_many([Change(renamed, whole, say="whole again")])
    lines = store.audit.list_all(Wanted(subject=lease.id))
    assert [line["kind"] for line in lines] == [REPAIR, "", REPAIR, "ACTIVE", "PENDING"]
    (active_line,) = store.audit.list_all(Wanted(subject=lease.id, kind="ACTIVE"))
    assert active_line["sentence"] == "it runs"


def test_a_step_that_only_changes_states_is_one_statement_of_postgresql(store: Store) -> None:
    if store.database.dialect != "postgresql":
        pytest.skip("the others have no statement that writes to several tables")
    lease, claim = book(store)
    store.database.now()
    with statements(store) as seen:
        store.ledger.save(lease, started(lease), claim=claim, say="it runs")
    assert len(seen) == 1


def test_a_step_after_somebody_else_s_is_refused_and_leaves_nothing(store: Store) -> None:
    lease, claim = book(store)
    renamed = store.ledger.save(lease, replace(lease, name="two"), claim=claim)
    with pytest.raises(StaleWrite):
        store.ledger.save(lease, started(lease), claim=claim, say="it runs")
    found = store.ledger.lease(lease.id)
    assert (found.name, found.status, found.version) == ("two", "PENDING", renamed.version)
    assert {part.status for part in found.reservations} == {"pending"}
    assert sentences(store, lease) == []


@pytest.mark.parametrize("how", ["epoch", "owner", "closed"])
def test_a_step_without_its_claim_is_refused_and_leaves_nothing(store: Store, how: str) -> None:
    lease, claim = book(store)
    if how == "closed":
        store.operations.finish(claim, DONE, "")
    else:
        claim = replace(claim, **{how: 7 if how == "epoch" else "another"})
    with pytest.raises(ClaimLost):
        store.ledger.save(lease, started(lease), claim=claim, say="it runs")
    assert store.ledger.lease(lease.id) == lease
    assert sentences(store, lease) == []


def test_what_brings_work_along_is_written_with_it(store: Store) -> None:
    lease, claim = book(store)
    more: Operation = lease_work(str(uuid.uuid4()), lease.id, "lease_end", lease.end)
    store.ledger.save(lease, started(lease), claim=claim, work=Work(add=(more,)), say="it runs")
    assert store.ledger.lease(lease.id).status == "ACTIVE"
    assert store.operations.by_key(more.key).due_at == lease.end


def test_a_lease_that_is_not_there_is_not_found(store: Store) -> None:
    with pytest.raises(NotFound):
        store.ledger.lease(str(uuid.uuid4()))
