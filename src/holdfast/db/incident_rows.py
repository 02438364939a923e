# SPDX-License-Identifier: Apache-2.0
"""Conversion of incident rows to the model, and the facts that guards count from incidents."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from holdfast.db.tables import incidents, operations, steps, verdicts
from holdfast.hoststatus.status import USABLE
from holdfast.model import incident as model
from holdfast.model.host import same, short
from holdfast.model.incident import Incident, Verdict, append_votes, details_of
from holdfast.model.incident_progress import HostProgress, plain
from holdfast.ports.recovery import Account
from holdfast.recovery.mass_failure import FleetHost


def judged(conn: Connection, incident_id: str, given: Sequence[Verdict], now: datetime) -> None:
    """Replace the verdicts of the incident; an unchanged verdict keeps its time."""
    v = verdicts.c
    known = {
        (row.guard, row.passed, row.sentence): row.at
        for row in conn.execute(sa.select(verdicts).where(v.incident_id == incident_id))
    }
    conn.execute(sa.delete(verdicts).where(v.incident_id == incident_id))
    rows = [
        {
            "incident_id": incident_id,
            "guard": verdict.guard,
            "passed": verdict.passed,
            "sentence": verdict.sentence,
            "at": known.get((verdict.guard, verdict.passed, verdict.sentence), now),
        }
        for verdict in given
    ]
    if rows:
        conn.execute(sa.insert(verdicts), rows)


def first(account: Account, incident_id: str, now: datetime) -> Incident:
    """Return the incident that the account opens."""
    member, meaning = account.member, account.meaning
    details = replace(
        account.details,
        host=member.name,
        member=member.uuid,
        segment=member.segment.uuid,
        reported_at=account.at,
    )
    if isinstance(details, HostProgress):
        details = replace(details, seen=append_votes((), details.seen, now))
    return Incident(
        id=incident_id,
        subject=meaning.subject,
        kind=meaning.kind,
        cause=meaning.cause,
        status=model.OPEN,
        opened_at=now,
        sentence=meaning.cause,
        details=details,
    )


def still_out(conn: Connection, account: Account) -> tuple[str, str] | None:
    """Return the incident that took the host out of use, unless the host came back since.

    The second value is a sentence. Restarted monitors repeat their earlier reports. A host whose
    servers started in place is back.
    """
    key = f"host_back/{account.member.key}"[:255]
    waits = sa.select(operations.c.payload).where(
        operations.c.key == key, operations.c.is_open.is_(True)
    )
    payload = conn.execute(waits).scalar()
    its = sa.select(incidents).where(
        incidents.c.id == (payload or {}).get("incident"),
        incidents.c.subject == account.meaning.subject,
    )
    row = conn.execute(its).mappings().first()
    if row is None:
        return None
    incident = incident_of(row)
    if incident.host_progress.back_at or model.ended_in_place(incident):
        return None
    return row["id"], f"incident {row['id']} took it out of use, and it has not come back since"


def not_back(conn: Connection, account: Account) -> tuple[str, str] | None:
    """Return the incident about the earlier report, if the incident ended without recovery.

    The second value is a sentence. Restarted agents repeat their earlier reports.
    """
    before = account.told_before
    if before is None:
        return None
    its = sa.select(incidents).where(
        incidents.c.subject == account.meaning.subject, incidents.c.closed_at >= before
    )
    row = conn.execute(its.order_by(incidents.c.closed_at.desc())).mappings().first()
    verified_at = incident_of(row).verified_at if row is not None else None
    if row is None or (verified_at is not None and verified_at >= before):
        return None
    return row["id"], f"incident {row['id']} is about it, and it has not been brought back since"


def steps_of(conn: Connection, incident_id: str) -> list[dict[str, Any]]:
    """Return the finished steps of the recovery; its operation has the incident's id."""
    t = steps.c
    query = sa.select(t.name, t.status, t.finished_at, t.sentence).where(
        t.operation_id == incident_id
    )
    return [dict(row) for row in conn.execute(query.order_by(t.position)).mappings()]


def row_of(one: Incident) -> dict[str, Any]:
    return {
        "id": one.id,
        "key": one.subject,
        "subject": one.subject,
        "kind": one.kind,
        "cause": one.cause[:255],
        "status": one.status,
        "opened_at": one.opened_at,
        "sentence": one.sentence,
        "details": plain(one.details),
    }


def incident_of(row: RowMapping) -> Incident:
    names = ("id", "subject", "kind", "cause", "status", "opened_at", "closed_at", "sentence")
    values = {name: row[name] for name in names}
    return Incident(**values, details=details_of(row["kind"], row["details"]))


def domain_of(host: str, fleet: Sequence[Any]) -> str:
    return next((row.rack or row.zone for row in fleet if same(row.name, host)), "")


def fleet_of(rows: Sequence[Any], others: Sequence[Incident], mine: Incident) -> list[FleetHost]:
    """Return all hosts; a host is down by its status, or by an open incident.

    An incident that signs of life contradict does not count: false reports about many hosts must
    not hold the recovery of a dead host. It counts if `mine` was contradicted too: the signs of
    life of both hosts may have ended together.
    """
    hit: dict[str, list[str]] = {}
    for incident in (*others, mine):
        counts = mine.is_contradicted or not incident.is_contradicted
        if incident.kind == model.HOST and incident.is_open and counts:
            hit.setdefault(short(incident.host), []).append(incident.host)
    return [
        FleetHost(
            row.rack or row.zone,
            row.state not in USABLE or any(same(row.name, x) for x in hit.get(short(row.name), ())),
        )
        for row in rows
    ]


def subjects_on(conn: Connection, host: str) -> set[str]:
    """Return subjects of open incidents about the host or anything on the host.

    The subject of an incident that signs of life contradict counts as healthy.
    """
    living = sa.select(incidents).where(incidents.c.status.in_(model.LIVING))
    found = map(incident_of, conn.execute(living).mappings())
    troubled = (incident for incident in found if not incident.is_contradicted)
    return {incident.subject for incident in troubled if same(incident.host, host)}


def larger(incident: Incident, others: Sequence[Incident]) -> Incident | None:
    if incident.kind == model.HOST:
        return None
    return next(
        (
            other
            for other in others
            if other.kind == model.HOST and other.is_open and same(other.host, incident.host)
        ),
        None,
    )


def starts_of(others: Sequence[Incident], domain: str, mine: Incident) -> list[datetime]:
    starts = (
        incident.progress.started_at
        for incident in others
        if incident.kind == model.HOST
        and incident.id != mine.id
        and incident.host_progress.domain == domain
    )
    return sorted(at for at in starts if at)


def before(others: Sequence[Incident], mine: Incident) -> list[datetime]:
    """Return when recoveries of the same subject ended.

    A recovery that the guards refused never started and does not count.
    """
    return sorted(
        incident.closed_at
        for incident in others
        if incident.subject == mine.subject
        and incident.closed_at is not None
        and incident.status in (model.RECOVERED, model.FAILED)
        and incident.progress.started_at
    )
