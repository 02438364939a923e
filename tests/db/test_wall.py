# SPDX-License-Identifier: Apache-2.0
"""All hosts at one look, and what people search for, on every database."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from holdfast.db import Store
from holdfast.db.tables import allocations, hosts, incidents, leases, reservations

HOUR = timedelta(hours=1)


def furnish(store: Store) -> datetime:
    """cmp-1 is held by blue and later by red; cmp-2 by slots of both; cmp-3 is down and fenced."""
    now = store.database.now()
    with store.database.write() as conn:
        conn.execute(sa.insert(hosts), [_host(number, now) for number in (1, 2, 3)])
        _lease(conn, "run_1", "blue", (1, now - HOUR, now + HOUR, None))
        _lease(conn, "Next%run", "red", (1, now + HOUR, now + 2 * HOUR, None))
        _lease(conn, "slots-b", "blue", (2, now - HOUR, now + HOUR, 2))
        _lease(conn, "slots-r", "red", (2, now - HOUR, now + HOUR, 1))
        for number, (key, status) in enumerate((("old", "recovered"), ("new", "recovered"))):
            conn.execute(sa.insert(incidents).values(**_incident(key, status, number, now)))
    return now


def _host(number: int, now: datetime) -> dict[str, Any]:
    name = f"cmp-{number}"
    named = {"id": number, "uuid": f"u-{number}", "name": name, "service_host": name.upper()}
    state = {"state": "down", "state_since": now, "status": {"why": "so"}} if number == 3 else {}
    about = {"hypervisor_hostname": name, "cpu_info": "{}", "rack": "r", "touched_at": now}
    plain = {"state": "up", "state_since": None, "status": None}
    return {**named, **about, "created_at": now, "enrolled": True, **plain, **state}


def _lease(conn: Any, name: str, project: str, hold: tuple[int, datetime, datetime, Any]) -> None:
    host, start, end, slots = hold
    own, born = f"{name}-id".lower(), {"created_at": start}
    who = {"user_id": "u", "project_id": project, "status": "ACTIVE"}
    dates = {"start_date": start, "end_date": end}
    conn.execute(sa.insert(leases).values(id=own, name=name, **who, **dates, **born))
    kind = {"resource_type": "physical:host", "status": "active", "spec": {}, "made": {}}
    conn.execute(sa.insert(reservations).values(id=own, lease_id=own, **kind, **born))
    held = {"held_from": start, "held_until": end, "slots": slots}
    conn.execute(sa.insert(allocations).values(reservation_id=own, host_id=host, **held))


def _incident(key: str, status: str, number: int, now: datetime) -> dict[str, Any]:
    evidence = {"kind": "fenced", "sentence": key, "at": "2027-01-31T12:00:00+00:00"}
    return {
        "id": f"{key}-incident",
        "key": key,
        "subject": "host:cmp-3",
        "kind": "host",
        "cause": "it died",
        "status": status,
        "opened_at": now + timedelta(seconds=number),
        "sentence": "done",
        "details": {"host": "CMP-3", "evidence": evidence},
        "created_at": now,
    }


def test_a_snapshot_has_every_host_and_its_current_holders(store: Store) -> None:
    furnish(store)
    look = store.wall.snapshot()
    assert [row.service_host for row in look.hosts] == ["CMP-1", "CMP-2", "CMP-3"]
    assert {host: [one.lease for one in held] for host, held in look.held.items()} == {
        1: ["run_1"],
        2: ["slots-b", "slots-r"],
    }
    assert [one.slots for one in look.held[2]] == [2, 1]
    assert look.bad[3][1] == "so" and 1 not in look.bad
    assert look.last["host:cmp-3"].id == "new-incident" and not look.open
    (only,) = store.wall.snapshot(2).hosts
    assert only.id == 2 and list(store.wall.snapshot(2).held) == [2]


def test_a_project_sees_what_it_holds_and_nobody_else(store: Store) -> None:
    furnish(store)
    look = store.wall.own("red")
    assert [row.id for row in look.hosts] == [2]
    assert [one.lease for one in look.held[2]] == ["slots-r"]
    assert not look.bad and not look.alarms and not store.wall.own("green").hosts


def test_who_holds_a_host_now_comes_before_who_does_next(store: Store) -> None:
    furnish(store)
    assert [row["name"] for row in store.wall.ahead(1, 10)] == ["run_1", "Next%run"]
    assert [row["name"] for row in store.wall.ahead(1, 1)] == ["run_1"]
    assert not store.wall.ahead(3, 10) and store.wall.agent("cmp-1") is None


def test_letters_are_found_in_capitals_or_not_and_mean_themselves(store: Store) -> None:
    furnish(store)

    def named(text: str, project: str | None = None) -> list[str]:
        return [row["name"] for row in store.search.leases(text, project, 10)]

    assert named("RUN") == ["Next%run", "run_1"] and named("run", "blue") == ["run_1"]
    assert (
        named("%") == ["Next%run"] and named("_") == ["run_1"] and named("slots-b-") == ["slots-b"]
    )
    assert [row["name"] for row in store.search.hosts("cmp-2", 10)] == ["CMP-2"]
    assert len(store.search.hosts("cmp", 2)) == 2
    found = [row["id"] for row in store.search.incidents("Cmp-3", 10)]
    assert found == ["new-incident", "old-incident"]
    assert [row["id"] for row in store.search.incidents("old-", 10)] == ["old-incident"]
