# SPDX-License-Identifier: Apache-2.0
"""The auditor: SQL written by hand, none of our code between it and the tables.

    found = Audit(url, {"VCPU": 16, "MEMORY_MB": 65536, "DISK_GB": 1000}).findings()
    assert found == []

Each query finds rows that must not be there. What the clients of a race were told is compared with
what the tables hold (`told`): every accepted lease is there, no refused one left a trace.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from tests.races.journal import Told

#: Two spans of time that have a moment in common.
MEET = "a.held_from < b.held_until AND b.held_from < a.held_until"

#: What is found -> the query that finds it. `{number:column:key}` is a number within JSON.
QUERIES: Mapping[str, str] = {
    "a host held as a whole is held by somebody else at the same time": f"""
        SELECT a.host_id, a.reservation_id, b.reservation_id, a.held_from, b.held_from
        FROM allocations a JOIN allocations b ON a.host_id = b.host_id AND a.id <> b.id AND {MEET}
        WHERE a.slots IS NULL""",
    "a thing is held twice at the same time": f"""
        SELECT a.thing, a.reservation_id, b.reservation_id, a.held_from, b.held_from
        FROM allocations a JOIN allocations b ON a.thing = b.thing AND a.id < b.id AND {MEET}""",
    "an allocation holds neither a host nor a thing": """
        SELECT id FROM allocations WHERE host_id IS NULL AND thing IS NULL""",
    "an allocation is over before it begins": """
        SELECT id FROM allocations WHERE held_until <= held_from""",
    "an allocation has no reservation": """
        SELECT a.id FROM allocations a LEFT JOIN reservations r ON r.id = a.reservation_id
        WHERE r.id IS NULL""",
    "an allocation holds a host that cannot be reserved": """
        SELECT a.id, a.host_id FROM allocations a LEFT JOIN hosts h ON h.id = a.host_id
        WHERE a.host_id IS NOT NULL AND (h.id IS NULL OR NOT h.enrolled)""",
    "a reservation has no lease": """
        SELECT r.id FROM reservations r LEFT JOIN leases l ON l.id = r.lease_id
        WHERE l.id IS NULL""",
    "a lease has no reservation": """
        SELECT l.id FROM leases l LEFT JOIN reservations r ON r.lease_id = l.id
        WHERE r.id IS NULL""",
    "an allocation does not last as long as its lease": """
        SELECT a.id, l.id FROM allocations a JOIN reservations r ON r.id = a.reservation_id
        JOIN leases l ON l.id = r.lease_id
        WHERE l.status = 'PENDING' AND (a.held_from > l.start_date OR a.held_until < l.end_date)""",
    "a lease lacks its start or its end": """
        SELECT l.id, count(o.id) FROM leases l LEFT JOIN operations o ON o.subject = l.id
        AND o.kind IN ('lease_start', 'lease_end') AND o.status <> 'cancelled'
        WHERE l.status <> 'DELETING' GROUP BY l.id HAVING count(o.id) <> 2""",
    "work waits for a lease that is not there": """
        SELECT o.key, o.status FROM operations o LEFT JOIN leases l ON l.id = o.subject
        WHERE o.is_open AND o.kind LIKE 'lease!_%' ESCAPE '!' AND l.id IS NULL""",
    "a reservation of whole hosts has too few or too many": """
        SELECT id, has FROM (SELECT r.id AS id, {number:r.spec:min} AS low, {number:r.spec:max} AS
        high, (SELECT count(*) FROM allocations a WHERE a.reservation_id = r.id AND a.slots IS NULL)
        AS has FROM reservations r WHERE r.resource_type = 'physical:host'
        AND r.status = 'pending') AS counted WHERE has < low OR has > high""",
    "a reservation of slots has too few or too many": """
        SELECT id, has FROM (SELECT r.id AS id, {number:r.spec:amount} AS wanted, (SELECT
        coalesce(sum(a.slots), 0) FROM allocations a WHERE a.reservation_id = r.id) AS has
        FROM reservations r WHERE r.resource_type IN ('virtual:instance', 'flavor:instance')
        AND r.status = 'pending') AS counted WHERE has <> wanted""",
    "a reservation of addresses has too few or too many": """
        SELECT id, has FROM (SELECT r.id AS id, {number:r.spec:amount} AS wanted, (SELECT
        count(a.thing) FROM allocations a WHERE a.reservation_id = r.id) AS has FROM reservations r
        WHERE r.resource_type = 'virtual:floatingip' AND r.status = 'pending') AS counted
        WHERE has <> wanted""",
    "slots take something else than their size": """
        SELECT a.id, a.slots FROM allocations a JOIN reservations r ON r.id = a.reservation_id
        WHERE r.resource_type = 'virtual:instance' AND (a.slots IS NULL
        OR coalesce({number:a.takes:VCPU}, -1) <> a.slots * {number:r.spec:vcpus}
        OR coalesce({number:a.takes:MEMORY_MB}, -1) <> a.slots * {number:r.spec:memory_mb}
        OR coalesce({number:a.takes:DISK_GB}, -1) <> a.slots * {number:r.spec:disk_gb})""",
}

#: The most that is taken is taken at the moment when some hold begins.
OVER_CAPACITY = """
    SELECT a.host_id, a.held_from, sum({number:b.takes:CLASS}) FROM allocations a
    JOIN allocations b ON b.host_id = a.host_id AND b.slots IS NOT NULL
    AND b.held_from <= a.held_from AND a.held_from < b.held_until
    WHERE a.slots IS NOT NULL GROUP BY a.id, a.host_id, a.held_from
    HAVING sum({number:b.takes:CLASS}) > CAPACITY"""

_NUMBER = {
    "sqlite": "CAST(json_extract({0}, '$.{1}') AS INTEGER)",
    "mysql": "CAST(json_value({0}, '$.{1}') AS SIGNED)",
    "postgresql": "CAST({0} ->> '{1}' AS INTEGER)",
}


class Audit:
    """One database, looked at from outside; `capacity` is what each host has, by class."""

    def __init__(self, url: str, capacity: Mapping[str, int]) -> None:
        self._engine = sa.create_engine(url, poolclass=sa.pool.NullPool)
        self._capacity = capacity

    def findings(self) -> list[str]:
        """Everything that must not be, one sentence each."""
        found = []
        queries = dict(QUERIES)
        for name, most in self._capacity.items():
            queries[f"more {name} is taken of a host than the {most} it has"] = (
                OVER_CAPACITY.replace("CLASS", name).replace("CAPACITY", str(most))
            )
        with self._engine.connect() as conn:
            for what, query in queries.items():
                rows = conn.execute(sa.text(self._written(query))).fetchmany(5)
                found += [f"{what}: {', '.join(map(str, row))}" for row in rows]
        return found

    def told(self, told: Told) -> list[str]:
        """Where the tables do not hold what the clients were told."""
        found = []
        with self._engine.connect() as conn:
            rows = conn.execute(sa.text("SELECT id, start_date, end_date, status FROM leases"))
            there = {row[0]: (str(row[1])[:19], str(row[2])[:19], row[3]) for row in rows}
            subjects = {row[0] for row in conn.execute(sa.text("SELECT subject FROM operations"))}
        for lease_id in sorted(told.refused & (there.keys() | subjects)):
            found.append(f"lease {lease_id} was refused and is there")
        for lease_id in sorted(told.deleted & there.keys()):
            found.append(f"lease {lease_id} was deleted and is there: {there[lease_id]}")
        for lease_id, windows in told.accepted.items():
            if lease_id not in there:
                found.append(f"lease {lease_id} was accepted and is not there")
            elif there[lease_id][:2] not in windows:
                found.append(f"lease {lease_id} is {there[lease_id]}, its owner knows {windows}")
        for lease_id in sorted(there.keys() - told.accepted.keys() - told.deleted - told.unsure):
            found.append(f"lease {lease_id} is there and nobody was told")
        return found

    def count(self, query: str) -> int:
        with self._engine.connect() as conn:
            return int(conn.execute(sa.text(query)).scalar_one())

    def run(self, statement: str, **values: Any) -> None:
        """Change something behind everybody's back, rules or no rules: to see that it is found."""
        with self._engine.begin() as conn:
            if conn.dialect.name == "postgresql":
                conn.execute(sa.text("SET LOCAL session_replication_role = replica"))
            if conn.dialect.name == "mysql":
                conn.execute(sa.text("SET foreign_key_checks = 0"))
            conn.execute(sa.text(statement), values)

    def drop_exclusions(self) -> None:
        """PostgreSQL refuses overlaps by itself; take that away, to plant one."""
        if self._engine.dialect.name != "postgresql":
            return
        with self._engine.begin() as conn:
            found = conn.execute(sa.text("SELECT conname FROM pg_constraint WHERE contype = 'x'"))
            for (name,) in found.fetchall():
                conn.execute(sa.text(f"ALTER TABLE allocations DROP CONSTRAINT {name}"))

    def _written(self, query: str) -> str:
        """The query in this database's words."""
        number = _NUMBER[self._engine.dialect.name]
        head, *parts = query.split("{number:")
        return head + "".join(
            number.format(*word.split(":")) + rest
            for word, _, rest in (part.partition("}") for part in parts)
        )
