# SPDX-License-Identifier: Apache-2.0
"""Quotas of projects, counted within the transaction of a booking.

Bookings of one project queue at its row, so each counts what all before it have written, and two
that fit only one by one are never both let in. There is no sum that could go wrong: what a project
has is counted from its leases, so that whatever ends or is deleted is free again at once.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.engine import Connection

from holdfast.model.errors import QuotaExceeded
from holdfast.model.lease import Lease
from holdfast.ports.ledger import Limits
from holdfast.store.tables import allocations, leases, projects, reservations

#: Of these nothing is ahead any more.
OVER = ("TERMINATED", "DELETING")
HOUR = timedelta(hours=1)


@dataclass(frozen=True)
class Figures:
    """What a project, or one lease, has: now and ahead. Slots and things count as leases only."""

    leases: int = 0
    hosts: int = 0  # whole ones, of all leases together
    host_hours: float = 0.0  # of whole hosts, from now on


def check(
    conn: Connection,
    project_id: str,
    limits: Limits,
    now: datetime,
    *,
    old: Lease | None = None,
    new: Lease | None = None,
) -> None:
    """QuotaExceeded if the project has more than it may; to be called when all is written.

    Given the step from `old` to `new`, only what becomes more is judged: a project that is over a
    limit which came later can always give something back. Takes the project's row: after those of
    the lease, the hosts and the things, before those of the work.
    """
    _take(conn, project_id)
    has = figures(conn, project_id, now, hosts=_counts_hosts(limits))
    before = of_lease(old, now) if old else Figures()
    _judge(project_id, limits, has, before, of_lease(new, now) if new else None)


def foresee(
    conn: Connection, limits: Limits, now: datetime, *, old: Lease | None, new: Lease
) -> None:
    """The same before anything is written: what a dry run can know."""
    has = figures(conn, new.project_id, now, hosts=_counts_hosts(limits))
    before, after = of_lease(old, now) if old else Figures(), of_lease(new, now)
    would = Figures(
        has.leases - before.leases + after.leases,
        has.hosts - before.hosts + after.hosts,
        has.host_hours - before.host_hours + after.host_hours,
    )
    _judge(new.project_id, limits, would, before, after)


def _counts_hosts(limits: Limits) -> bool:
    return (limits.hosts, limits.host_hours) != (None, None)


def _judge(
    project_id: str, limits: Limits, has: Figures, before: Figures, after: Figures | None
) -> None:
    for name, what in _WORDS.items():
        most, count = getattr(limits, name), getattr(has, name)
        grows = after is None or getattr(after, name) > getattr(before, name)
        if most is not None and count > most and grows:
            raise QuotaExceeded(
                f"project {project_id} may have {most} {what} and would have {_said(count)}:"
                " delete or shorten one of its leases, ask for less, or have an administrator"
                f" raise [enforcement] max_{name} or the project's own quota",
                figure=name,
                limit=most,
                wanted=count,
            )


def figures(conn: Connection, project_id: str, now: datetime, *, hosts: bool = True) -> Figures:
    """What the project has at this moment, by this transaction; without `hosts` leases only."""
    bound = {"project": project_id, "now": now}
    count = conn.execute(_LEASES, bound).scalar_one()
    rows = conn.execute(_HOSTS, bound).all() if hosts else ()
    return Figures(
        leases=count,
        hosts=sum(row.hosts for row in rows),
        host_hours=sum(
            row.hosts * _hours(row.held_from, row.held_until, row.end_date, now) for row in rows
        ),
    )


def of_lease(lease: Lease, now: datetime) -> Figures:
    """What one lease adds to its project's figures."""
    if lease.status in OVER or lease.end <= now:
        return Figures()
    held = [
        one.held
        for reservation in lease.reservations
        if reservation.status != "deleted"
        for one in reservation.allocations
        if one.host_id is not None and one.slots is None and one.held.end > now
    ]
    hours: Iterable[float] = (_hours(one.start, one.end, lease.end, now) for one in held)
    return Figures(1, len(held), sum(hours))


def _hours(start: datetime, until: datetime, end: datetime, now: datetime) -> float:
    """From now on, and without the time in which a host is cleaned after the lease."""
    return max(timedelta(0), min(until, end) - max(start, now)) / HOUR


def _take(conn: Connection, project_id: str) -> None:
    """Own the project's row until the commit: the queue in which its bookings stand."""
    mine = sa.update(projects).where(projects.c.id == project_id)
    mine = mine.values(generation=projects.c.generation + 1)
    if conn.execute(mine).rowcount == 0:
        conn.execute(_new(conn.dialect.name), {"id": project_id, "generation": 0})
        conn.execute(mine)  # somebody else's row, perhaps: then we wait for them here


def _new(dialect: str) -> Any:
    """A row, unless there is one; a second one at the same moment waits for the first."""
    if dialect == "postgresql":
        return postgresql.insert(projects).on_conflict_do_nothing()
    if dialect == "sqlite":
        return sqlite.insert(projects).on_conflict_do_nothing()
    return mysql.insert(projects).prefix_with("IGNORE")


_WORDS = {
    "leases": "leases that are not over",
    "hosts": "hosts in its leases",
    "host_hours": "host hours ahead",
}

_AHEAD = (
    leases.c.project_id == sa.bindparam("project"),
    leases.c.end_date > sa.bindparam("now"),
    leases.c.status.not_in(OVER),
)
_LEASES = sa.select(sa.func.count()).select_from(leases).where(*_AHEAD)
_HOSTS = (
    sa.select(
        allocations.c.held_from,
        allocations.c.held_until,
        leases.c.end_date,
        sa.func.count().label("hosts"),
    )
    .select_from(leases.join(reservations).join(allocations))
    .where(
        *_AHEAD,
        reservations.c.status != "deleted",
        allocations.c.host_id.is_not(None),
        allocations.c.slots.is_(None),
        allocations.c.held_until > sa.bindparam("now"),
    )
    .group_by(allocations.c.held_from, allocations.c.held_until, leases.c.end_date)
)


def _said(count: float) -> str:
    """Rounded up: what is too much must look like too much."""
    return f"{math.ceil(count * 10) / 10:g}"
