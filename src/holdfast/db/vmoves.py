# SPDX-License-Identifier: Apache-2.0
"""Moves of servers off a host: `ports.recovery.ServerMoves` in SQL.

One transaction at a time decides, for all incidents together, which moves start: it locks the
row `moves` (LOCK) of table `resource_locks`.
"""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from holdfast.db import switches, timeline
from holdfast.db.booking import portions
from holdfast.db.engine import Database
from holdfast.db.operations import apply_work, update_claimed
from holdfast.db.rows import Mapper
from holdfast.db.tables import incidents, operations, resource_locks, vmoves
from holdfast.model import incident as model
from holdfast.model.errors import NotFound
from holdfast.model.host import same
from holdfast.model.incident_progress import HostProgress, read
from holdfast.model.operation import Claim
from holdfast.ports.ledger import Work
from holdfast.ports.recovery import (
    ANSWERED,
    FAILED,
    FOUND,
    IGNORED,
    ONGOING,
    PENDING,
    STARTED,
    SUCCEEDED,
    Limits,
    MoveWork,
    ServerMove,
)
from holdfast.recovery.timeline import MoveEnded, MovePostponed

v, i, o = vmoves.c, incidents.c, operations.c
_MOVE = Mapper(ServerMove, vmoves, without=["message"])  # NULL in the table means no message
#: Lock key of transactions that start moves or revert that; see `claim_move`.
LOCK = "moves"

# Statements of every pass are built once, because building costs more than running.
_ANY_PENDING = sa.select(v.id).where(v.status == PENDING).limit(1)
_ONGOING = sa.select(sa.func.count()).where(v.status == ONGOING)
_IN_ORDER = sa.select(vmoves).order_by(v.incident_id, v.position, v.id)
_OF = _IN_ORDER.where(v.incident_id == sa.bindparam("its_incident"))
_TO = _IN_ORDER.where(v.dest_host == sa.bindparam("host"), v.status == ONGOING)
_ONE = _IN_ORDER.where(v.uuid == sa.bindparam("its_uuid"))
_restarted = (
    sa.exists()
    .where(
        o.subject == sa.literal("server:").concat(v.server_id),
        o.kind == "recovery_guest",
        o.is_open.is_(True),
    )
    .correlate(vmoves)
)


class VMoveStore:
    def __init__(self, database: Database) -> None:
        self._db = database

    def plan(self, incident_id: str, moves: Sequence[ServerMove], claim: Claim) -> None:
        def action(conn: Connection) -> None:
            now = self._ours(conn, claim)
            mine = sa.select(v.server_id).where(v.incident_id == incident_id)
            known = set(conn.execute(mine).scalars())
            query = sa.select(i.details).where(i.id == incident_id)
            report = _progress(conn.execute(query).scalar_one()).report
            fresh = _carried_on(
                conn, [server_move for server_move in moves if server_move.server_id not in known]
            )
            rows = [_row(server_move, incident_id, report, now) for server_move in fresh]
            if rows:
                conn.execute(sa.insert(vmoves), rows)

        self._db.retry(action)

    def of(self, incident_id: str) -> Sequence[ServerMove]:
        with self._db.read() as conn:
            return moves_of(conn, incident_id)

    def to(self, host: str) -> Sequence[ServerMove]:
        return self._list(_TO, host=host)

    def leaving(self, host: str) -> Sequence[ServerMove]:
        with self._db.read() as conn:
            return leaving(conn, host)

    def move(self, uuid: str) -> ServerMove:
        for server_move in self._list(_ONE, its_uuid=uuid):
            return server_move
        raise NotFound(f"no move {uuid}")

    def begin(self, limits: Limits, work: MoveWork) -> int:
        if not self._might_begin(limits):
            return 0  # found out without the lock

        def action(conn: Connection) -> int:
            claim_move(conn, LOCK)
            now = self._db.now(conn)
            free = limits.all - conn.execute(_ONGOING).scalar_one()
            if free <= 0:
                return 0
            chosen = _next(conn, now)[:free]
            for server_move in chosen:
                begun = {"status": ONGOING, "dest_host": None, "updated_at": now}
                begun["started_at"] = server_move.started_at or now
                operation = work(server_move, now)
                begun["operation_id"] = operation.id
                conn.execute(sa.update(vmoves).where(v.uuid == server_move.uuid).values(**begun))
                apply_work(conn, operation.subject, Work(put=(operation,)), now)
            return len(chosen)

        return self._db.retry(action)

    def aim(self, uuid: str, host: str | None, after: int, limits: Limits, claim: Claim) -> bool:
        def action(conn: Connection) -> bool:
            if host is not None:
                claim_move(conn, LOCK)
            now = self._ours(conn, claim)
            if not _evacuates(conn, uuid):
                return False
            others = sa.select(sa.func.count()).where(
                v.dest_host == host, v.status == ONGOING, v.uuid != uuid
            )
            if host is not None and conn.execute(others).scalar_one() >= limits.per_target:
                return False
            values = {
                "dest_host": host,
                "attempts": v.attempts + 1,
                "after_migration": after,
                "updated_at": now,
            }
            conn.execute(sa.update(vmoves).where(v.uuid == uuid).values(**values))
            return True

        return self._db.retry(action)

    def note(self, uuid: str, claim: Claim, **values: Any) -> ServerMove:
        self._write(uuid, claim, values)
        return self.move(uuid)

    def end(self, uuid: str, claim: Claim, status: str, message: str) -> None:
        def action(conn: Connection) -> None:
            now = self._ours(conn, claim)
            values = {"status": status, "message": message, "ended_at": now, "updated_at": now}
            ours = v.uuid == uuid, v.status == ONGOING
            if conn.execute(sa.update(vmoves).where(*ours).values(**values)).rowcount:
                query = sa.select(vmoves).where(v.uuid == uuid)
                row = conn.execute(query).mappings().one()
                ended = MoveEnded(row["server_id"], status, message)
                timeline.write(conn, now, row["incident_id"], ended)

        self._db.retry(action)

    def put_back(self, uuid: str, claim: Claim, message: str, pause_s: float) -> None:
        def action(conn: Connection) -> None:
            now = self._ours(conn, claim)
            values = {
                "status": PENDING,
                "message": message,
                "dest_host": None,
                "not_before": now + timedelta(seconds=pause_s),
                "updated_at": now,
            }
            ours = v.uuid == uuid, v.status == ONGOING
            if conn.execute(sa.update(vmoves).where(*ours).values(**values)).rowcount:
                row = conn.execute(sa.select(vmoves).where(v.uuid == uuid)).mappings().one()
                postponed = MovePostponed(row["server_id"], pause_s, message)
                timeline.write(conn, now, row["incident_id"], postponed)

        self._db.retry(action)

    def _write(self, uuid: str, claim: Claim, values: Mapping[str, Any]) -> None:
        def action(conn: Connection) -> None:
            now = self._ours(conn, claim)
            conn.execute(sa.update(vmoves).where(v.uuid == uuid).values(**values, updated_at=now))

        self._db.retry(action)

    def _might_begin(self, limits: Limits) -> bool:
        with self._db.read() as conn:
            if conn.execute(_ANY_PENDING).first() is None:
                return False
            return bool(conn.execute(_ONGOING).scalar_one() < limits.all)

    def _list(self, query: sa.Select[Any], **bound: Any) -> list[ServerMove]:
        with self._db.read() as conn:
            return [_move(row) for row in conn.execute(query, bound).mappings()]

    def _ours(self, conn: Connection, claim: Claim) -> datetime:
        now = self._db.now(conn)
        update_claimed(conn, claim, updated_at=now)
        return now


def moves_of(conn: Connection, incident_id: str) -> list[ServerMove]:
    return [_move(row) for row in conn.execute(_OF, {"its_incident": incident_id}).mappings()]


def leaving(conn: Connection, host: str) -> list[ServerMove]:
    """Return the unfinished moves off the host, of all incidents."""
    query = _IN_ORDER.where(v.status.in_([PENDING, ONGOING]))
    moves = (_move(row) for row in conn.execute(query).mappings())
    return [server_move for server_move in moves if same(server_move.source_host, host)]


def keep(conn: Connection, incident_id: str, now: datetime) -> None:
    """Mark the evacuations of the incident's servers as answered, and make the moves due now."""
    mine = v.incident_id == incident_id, v.status.in_([PENDING, ONGOING])
    values = {"after_migration": ANSWERED, "not_before": now, "updated_at": now}
    conn.execute(sa.update(vmoves).where(*mine).values(**values))


def unkeep(conn: Connection, incident_id: str, now: datetime) -> None:
    """Reset servers that were started in place to wait for evacuation."""
    mine = v.incident_id == incident_id, v.after_migration.in_((STARTED, FOUND))
    ended = *mine, v.status == IGNORED
    again = {"status": PENDING, "not_before": None, "ended_at": None, "attempts": 0}
    conn.execute(sa.update(vmoves).where(*ended).values(**again, updated_at=now))
    conn.execute(sa.update(vmoves).where(*mine).values(after_migration=ANSWERED, updated_at=now))


def failed_again(conn: Connection, incident_id: str, now: datetime) -> int:
    """Reset the failed moves of the incident to pending; return their number."""
    mine = v.incident_id == incident_id, v.status == FAILED
    values = {"status": PENDING, "not_before": None, "ended_at": None, "updated_at": now}
    return conn.execute(sa.update(vmoves).where(*mine).values(**values, attempts=0)).rowcount


def _evacuates(conn: Connection, uuid: str) -> bool:
    """Tell whether the move's incident may evacuate.

    The incident must be open, must prove that its host is off, and must not keep its servers in
    place. The incident's row is locked, so that these decisions exclude each other.
    """
    own = sa.select(v.incident_id).where(v.uuid == uuid).scalar_subquery()
    row = conn.execute(sa.select(i.status, i.details).where(i.id == own).with_for_update()).first()
    if row is None or row.status not in model.LIVING:
        return False
    known = _progress(row.details)
    return bool(known.evidence) and not known.power_returned


def give_up(conn: Connection, incident_id: str, message: str, now: datetime) -> None:
    """End the moves of an incident that have not started."""
    mine = v.incident_id == incident_id, v.status == PENDING
    values = {"status": IGNORED, "message": message, "ended_at": now, "updated_at": now}
    conn.execute(sa.update(vmoves).where(*mine).values(**values))


def try_again(conn: Connection, incident_id: str, now: datetime) -> None:
    """Reset failed and ignored moves of the incident to pending.

    Moves that never started are deleted: the planner finds their servers on the host and
    decides again.
    """
    mine = v.incident_id == incident_id
    unbegun = mine, v.status == IGNORED, v.started_at.is_(None)
    conn.execute(sa.delete(vmoves).where(*unbegun))
    values = {"status": PENDING, "not_before": None, "ended_at": None, "updated_at": now}
    again = mine, v.status.in_([FAILED, IGNORED])
    conn.execute(sa.update(vmoves).where(*again).values(**values, attempts=0))


def claim_move(conn: Connection, key: str) -> None:
    """Lock the row of this key until the commit; other callers wait."""
    t = resource_locks.c
    mine = sa.update(resource_locks).where(t.key == key).values(generation=t.generation + 1)
    if not conn.execute(mine).rowcount:
        conn.execute(sa.insert(resource_locks).values(key=key, generation=1))


def _carried_on(conn: Connection, moves: Sequence[ServerMove]) -> list[ServerMove]:
    """Keep the original server state for servers whose earlier move has not succeeded.

    A server may be on its way off another host already, or may have reached this host in an
    unfinished move when this host died. Its state before the first move is the state to
    restore.
    """
    latest: dict[str, ServerMove] = {}
    for ids in portions([server_move.server_id for server_move in moves]):
        query = sa.select(vmoves).where(v.server_id.in_(ids)).order_by(v.id)
        latest |= {row["server_id"]: _move(row) for row in conn.execute(query).mappings()}
    server_moves = []
    for move in moves:
        old = latest.get(move.server_id)
        if old is not None and (
            old.status in (PENDING, ONGOING)
            or (old.status != SUCCEEDED and same(old.dest_host or "", move.source_host))
        ):
            server_moves.append(replace(move, was=old.was, locked_before=old.locked_before))
        else:
            server_moves.append(move)
    return server_moves


def _next(conn: Connection, now: datetime) -> list[ServerMove]:
    """Return the moves to start: older incidents first, each in its own order.

    A server has at most one move under way, and none while it is being restarted.
    """
    ready = sa.or_(v.not_before.is_(None), v.not_before <= now)
    query = (
        sa.select(vmoves, i.details["segment"].as_string().label("segment"))
        .join(incidents, i.id == v.incident_id)
        .where(v.status == PENDING, ready, i.status == model.RUNNING, ~_restarted)
        .order_by(i.opened_at, i.id, v.position, v.id)
    )
    rows = conn.execute(query).mappings().all()
    segments = {row["segment"] or "" for row in rows}
    paused = {segment for segment in segments if switches.pauses_for(conn, segment, now)}
    free = [row for row in rows if (row["segment"] or "") not in paused]
    under_way = set(conn.execute(sa.select(v.server_id).where(v.status == ONGOING)).scalars())
    first = {row["server_id"]: _move(row) for row in reversed(free)}
    return [
        server_move
        for server_move in map(_move, free)
        if server_move.server_id not in under_way
        and first[server_move.server_id].uuid == server_move.uuid
    ]


def _progress(details: Mapping[str, Any] | None) -> HostProgress:
    return read(HostProgress, details or {})


def _row(move: ServerMove, incident_id: str, report: str, now: datetime) -> dict[str, Any]:
    return {
        **_MOVE.row(move),
        "uuid": move.uuid or str(uuid.uuid4()),
        "incident_id": incident_id,
        "notification_uuid": report,
        "type": "evacuation",
        "message": move.message or None,
        "ended_at": now if move.status in (IGNORED, FAILED, SUCCEEDED) else None,
        "created_at": now,
    }


def _move(row: RowMapping) -> ServerMove:
    return _MOVE.named(row, message=row["message"] or "")
