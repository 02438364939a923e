# SPDX-License-Identifier: Apache-2.0
"""Old rows go, and nothing else does, on every database."""

from __future__ import annotations

from datetime import datetime, timedelta

import sqlalchemy as sa

from holdfast.db import Store, timeline
from holdfast.db.operations import apply_work
from holdfast.db.retention import TidyStore
from holdfast.db.tables import audit, incidents, leases, notifications, operations, steps, verdicts
from holdfast.model.operation import CANCELLED, DONE, ERROR, OPEN, WAITING, Operation
from holdfast.ports.ledger import Work
from holdfast.recovery.timeline import Opened

DAY = timedelta(days=1)


def put(store: Store, name: str, subject: str, status: str, ended: datetime) -> None:
    """A row as it stands after it ended at that time; a finished step with it."""
    row = Operation(name, "kind", subject, name, ended, ended)
    with store.database.write() as conn:
        apply_work(conn, subject, Work(add=(row,)), ended)
        conn.execute(
            sa.update(operations)
            .where(operations.c.id == name)
            .values(status=status, is_open=status in OPEN, updated_at=ended)
        )
        conn.execute(
            sa.insert(steps).values(
                operation_id=name, name="s", position=0, status=DONE, sentence="said"
            )
        )


def add_lease(store: Store, lease_id: str) -> None:
    now = store.database.now()
    values = {"name": lease_id, "user_id": "ann", "project_id": "alpha", "status": "TERMINATED"}
    times = {"start_date": now - 90 * DAY, "end_date": now - 80 * DAY, "created_at": now - 90 * DAY}
    with store.database.write() as conn:
        conn.execute(sa.insert(leases).values(id=lease_id, degraded=False, **values, **times))


def names(store: Store) -> set[str]:
    with store.database.read() as conn:
        found = set(conn.execute(sa.select(operations.c.id)).scalars())
        assert found == set(conn.execute(sa.select(steps.c.operation_id)).scalars())
    return found


def test_work_that_ended_long_ago_goes_and_that_of_living_leases_stays(store: Store) -> None:
    now = store.database.now()
    add_lease(store, "lives")
    put(store, "old-done", "gone", DONE, now - 31 * DAY)
    put(store, "old-error", "gone", ERROR, now - 31 * DAY)
    put(store, "old-cancelled", "gone", CANCELLED, now - 31 * DAY)
    put(store, "old-open", "gone", WAITING, now - 31 * DAY)
    put(store, "fresh", "gone", DONE, now - 29 * DAY)
    put(store, "of-a-lease", "lives", DONE, now - 31 * DAY)
    tidy = TidyStore(store.database)
    assert tidy.operations(now - 30 * DAY, 100) == 3
    assert names(store) == {"old-open", "fresh", "of-a-lease"}
    assert tidy.operations(now - 30 * DAY, 100) == 0


def test_rows_go_in_portions(store: Store) -> None:
    now = store.database.now()
    for number in range(5):
        put(store, f"w{number}", "gone", DONE, now - 31 * DAY)
    tidy = TidyStore(store.database)
    assert [tidy.operations(now - 30 * DAY, 2) for _ in range(4)] == [2, 2, 1, 0]


def test_old_sentences_go_oldest_first(store: Store) -> None:
    now = store.database.now()
    with store.database.write() as conn:
        for days in (10, 400, 500, 364):
            row = {"at": now - days * DAY, "subject": "l1", "actor": "ann", "sentence": str(days)}
            conn.execute(sa.insert(audit).values(request_id="", **row))
    tidy = TidyStore(store.database)
    assert tidy.audit(now - 365 * DAY, 1) == 1
    with store.database.read() as conn:
        assert "500" not in set(conn.execute(sa.select(audit.c.sentence)).scalars())
    assert tidy.audit(now - 365 * DAY, 100) == 1
    with store.database.read() as conn:
        assert set(conn.execute(sa.select(audit.c.sentence)).scalars()) == {"10", "364"}


def test_old_reports_go_and_with_the_last_one_of_an_incident_all_of_it(store: Store) -> None:
    now = store.database.now()
    old, fresh = now - 31 * DAY, now - DAY
    with store.database.write() as conn:
        for name, closed in (("over", old), ("half", old), ("open", None)):
            conn.execute(
                sa.insert(incidents).values(
                    id=name,
                    key=name,
                    subject=name,
                    kind="host",
                    cause="c",
                    status="recovered" if closed else "running",
                    opened_at=old,
                    closed_at=closed,
                    sentence="s",
                    details={},
                    created_at=old,
                )
            )
            conn.execute(
                sa.insert(verdicts).values(
                    incident_id=name, guard="g", passed=True, sentence="s", at=old
                )
            )
            timeline.write(conn, old, name, Opened("c"))
        for name, incident, at in (
            ("a", "over", old),
            ("b", "half", old),
            ("c", "half", fresh),
            ("d", "open", old),
            ("e", None, old),
        ):
            conn.execute(
                sa.insert(notifications).values(
                    uuid=name,
                    type="VM",
                    segment_host_uuid="h",
                    generated_time=at,
                    payload={},
                    status="finished",
                    incident_id=incident,
                    created_at=at,
                    updated_at=at,
                )
            )
    assert TidyStore(store.database).reports(now - 30 * DAY, 100) == 3
    with store.database.read() as conn:
        assert set(conn.execute(sa.select(notifications.c.uuid)).scalars()) == {"c", "d"}
        assert set(conn.execute(sa.select(incidents.c.id)).scalars()) == {"half", "open"}
        assert set(conn.execute(sa.select(verdicts.c.incident_id)).scalars()) == {"half", "open"}
        assert [len(timeline.events_of(conn, one)) for one in ("over", "half", "open")] == [0, 1, 1]


def test_samples_of_hosts_without_viewers_are_deleted(store: Store) -> None:
    for host in ("cmp-1", "cmp-2", "cmp-3"):
        store.samples.want(host)
    tidy, now = TidyStore(store.database), store.database.now()
    assert tidy.samples(now, 10) == 0
    assert tidy.samples(now + DAY, 2) == 2
    assert tidy.samples(now + DAY, 2) == 1
    assert store.samples.wanted() == {}
