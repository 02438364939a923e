# SPDX-License-Identifier: Apache-2.0
"""Incidents and the guards' verdicts: `ports.recovery.Incidents` in SQL.

The key of an open incident is its subject, so that a subject has at most one open incident.
Closing adds the incident's id to the key.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.db import observations, switches, timeline
from holdfast.db.agents import all_beat_since, beat_of
from holdfast.db.engine import Database
from holdfast.db.incident_rows import (
    before,
    domain_of,
    first,
    fleet_of,
    incident_of,
    judged,
    larger,
    not_back,
    row_of,
    starts_of,
    steps_of,
    still_out,
    subjects_on,
)
from holdfast.db.notifications import (
    again,
    attach,
    end,
    failure_reports,
    lost_compute,
    recovered_since,
    runs_again,
    superseded,
)
from holdfast.db.observations import (
    belong,
    failed_by,
    guest_recovered_since,
    ingest_asked_alarm,
    observation,
)
from holdfast.db.operations import apply_work, put, update_claimed
from holdfast.db.segments import SegmentStore, set_member
from holdfast.db.tables import (
    allocations,
    hosts,
    incidents,
    leases,
    notifications,
    reservations,
    segment_hosts,
    steps,
)
from holdfast.db.vmoves import LOCK, claim_move, failed_again, give_up, keep, leaving, unkeep
from holdfast.hoststatus.status import USABLE
from holdfast.model import incident as model
from holdfast.model import state_machines
from holdfast.model.errors import NotFound
from holdfast.model.host import same
from holdfast.model.incident import Incident, append_attempt, append_votes
from holdfast.model.incident_progress import (
    Entry,
    HostProgress,
    PowerReturned,
    Progress,
    plain,
    reset,
)
from holdfast.model.observation import Observed
from holdfast.model.operation import Claim, Operation
from holdfast.model.segment import SegmentHost
from holdfast.ports.ledger import Work
from holdfast.ports.recovery import (
    Account,
    AgentBeat,
    Change,
    IntakeResult,
    Report,
    ServerMove,
    Situation,
)
from holdfast.recovery.liveness import SETTLING_S, FailureReport
from holdfast.recovery.timeline import Opened, StatusChanged

i, n, h, r, a = incidents.c, notifications.c, hosts.c, reservations.c, allocations.c
m = segment_hosts.c
_LIVING = i.status.in_(model.LIVING)
#: Details of an attempt that do not count when the remaining servers start in place.
ENDS_IN_PLACE = ("verified_at", "no_room", "aborted")
#: Details that do not count after the host rebooted and died again.
START_OVER = ("power_returned", "started_at", "sources")
#: In `reservations.made`: failed hosts without a replacement.
LOST = "lost"
_HELD_NOW = (
    sa.select(r.made, h.id, h.service_host, h.state, r.id.label("reservation"))
    .join(leases, leases.c.id == r.lease_id)
    .join(allocations, a.reservation_id == r.id)
    .join(hosts, h.id == a.host_id)
    .where(
        leases.c.status == "ACTIVE",
        a.held_from <= sa.bindparam("now"),
        a.held_until > sa.bindparam("now"),
    )
)
# Statements of every step are built once, because building costs more than running.
_ONE = sa.select(incidents).where(i.id == sa.bindparam("its_id"))
_ONE_LOCKED = _ONE.with_for_update()
_OPEN = sa.select(incidents).where(i.key == sa.bindparam("about"))
_OPEN_LOCKED = _OPEN.with_for_update()
_CHANGE = sa.update(incidents).where(i.id == sa.bindparam("its_id"))
_REPORT = sa.select(notifications).where(n.uuid == sa.bindparam("its_uuid"))


class IncidentStore:
    def __init__(self, database: Database) -> None:
        self._db = database
        self._segments = SegmentStore(database)

    def now(self) -> datetime:
        return self._db.now()

    # reports

    def report(self, uuid: str) -> Report:
        with self._db.read() as conn:
            row = conn.execute(_REPORT, {"its_uuid": uuid}).mappings().first()
            if row is None:
                raise NotFound(f"no notification {uuid}")
            is_superseded = superseded(conn, row)
        return Report(
            uuid=row["uuid"],
            type=row["type"],
            payload=row["payload"],
            generated_at=row["generated_time"],
            status=row["status"],
            member=self._segments.by_uuid(row["segment_host_uuid"]),
            received_at=row["created_at"],
            reporter=row["reporter"] or "",
            is_superseded=is_superseded,
        )

    def answer(self, uuid: str, status: str, message: str, claim: Claim) -> None:
        def action(conn: Connection) -> None:
            now = self._ours(conn, claim)
            attach(conn, self._db.publisher, uuid, None, status, message, now)

        self._db.retry(action)

    def ingest(
        self,
        account: Account,
        work: Operation,
        claim: Claim,
        told: Callable[[Incident], Sequence[Operation]] = lambda _new: (),
    ) -> IntakeResult:
        def action(conn: Connection) -> IntakeResult:
            now = self._ours(conn, claim)
            taken, status = self._join_or_open(conn, account, work, told, now)
            if account.notification:
                about = account.notification, taken.incident_id, status, taken.sentence
                attach(conn, self._db.publisher, *about, now)
            belong(conn, account.observations, taken.incident_id, now)
            if account.payload is not None:
                payload = {**account.payload, "incident": taken.incident_id}
                update_claimed(conn, claim, payload=payload)
            return taken

        return self._db.retry(action)

    def _join_or_open(
        self,
        conn: Connection,
        account: Account,
        work: Operation,
        told: Callable[[Incident], Sequence[Operation]],
        now: datetime,
    ) -> tuple[IntakeResult, str]:
        """Return the outcome of an account, and its status in the instance HA contract."""
        meaning = account.meaning
        incident = self._open(conn, meaning.subject, lock=True)
        if meaning.kind == model.GUEST and incident is None:
            host = self._open(conn, f"{model.HOST}:{account.member.key}", lock=True)
            incident = host if host is not None and _handles(conn, host, meaning.subject) else None
        if incident is not None:
            if isinstance(account.details, HostProgress):
                joined = _joined(account.details, now)
                if joined(incident.progress) != incident.progress:
                    self._write(conn, incident, Change(edit=joined), now)
            return IntakeResult(
                incident.id, f"joined incident {incident.id}: {incident.cause}"
            ), "running"
        since = recovered_since(conn, meaning.subject, account.at)
        if since is None and not account.notification:
            since = still_out(conn, account) or not_back(conn, account)
        if since is not None:
            return IntakeResult(*since), "finished"
        new = first(account, work.payload["incident"], now)
        conn.execute(sa.insert(incidents).values(**row_of(new), created_at=now))
        put(conn, (work, *told(new)), now)
        timeline.write(conn, now, new.id, Opened(new.cause))
        return IntakeResult(new.id, f"opened incident {new.id}"), "running"

    def observed(self, id_: str) -> Observed:
        with self._db.read() as conn:
            return observation(conn, id_)

    def recovered_since(self, subject: str, at: datetime) -> str | None:
        with self._db.read() as conn:
            since = recovered_since(conn, subject, at)
        return since[0] if since else None

    def ingest_alarm(self, id_: str, claim: Claim, *, is_there: bool) -> bool:
        def action(conn: Connection) -> bool:
            now = self._ours(conn, claim)
            return ingest_asked_alarm(conn, self._db.publisher, id_, now, is_there=is_there)

        return self._db.retry(action)

    def guest_recovered_since(
        self, subject: str, host: str, *, observer: str = "", incident_id: str = ""
    ) -> str:
        mine = sa.select(n.generated_time, n.created_at).where(n.incident_id == incident_id)
        with self._db.read() as conn:
            reported = [min(row) for row in conn.execute(mine)] if incident_id else []
            observers = failed_by(conn, incident_id) if incident_id else [observer]
            return guest_recovered_since(conn, subject, reported, host=host, observers=observers)

    def witness(
        self, incident_id: str, seen: Sequence[Mapping[str, Any]], ids: Sequence[str], claim: Claim
    ) -> None:
        def action(conn: Connection) -> None:
            now = self._ours(conn, claim)
            old = self._one(conn, incident_id, lock=True)
            if old.is_open:
                voted = _joined(HostProgress(seen=tuple(seen)), now)
                self._write(conn, old, Change(edit=voted), now)
            belong(conn, ids, incident_id, now)

        self._db.retry(action)

    def _explain(self, conn: Connection, host: Incident, now: datetime) -> None:
        """Close incidents of guests on a host whose recovery begins, which explains them.

        Work that was started for these guests is cancelled. Before, nothing is certain: the host
        may be healthy, and its guests then need their own recovery.
        """
        guests = sa.select(incidents).where(i.kind == model.GUEST, _LIVING)
        for row in conn.execute(guests).mappings().all():
            guest = incident_of(row)
            if not same(guest.host, host.host):
                continue
            apply_work(conn, guest.subject, Work(cancel=frozenset({"recovery_guest"})), now)
            sentence = f"explained by incident {host.id}: {host.cause}"
            conn.execute(
                sa.update(notifications)
                .where(n.incident_id == guest.id)
                .values(incident_id=host.id, message=sentence, updated_at=now)
            )
            closed = self._close(conn, guest, Change(model.EXPLAINED, sentence), now)
            put(conn, self._db.publisher.incident("incident.explained", closed, now), now)

    # incidents

    def incident(self, incident_id: str) -> Incident:
        with self._db.read() as conn:
            return self._one(conn, incident_id)

    def dead_guests(self, host: str) -> set[str]:
        with self._db.read() as conn:
            found = subjects_on(conn, host)
        return {one.removeprefix("server:") for one in found if one.startswith("server:")}

    def failure_reports(self, incident: Incident) -> Sequence[FailureReport]:
        type_ = model.COMPUTE_HOST if incident.kind == model.HOST else model.PROCESS_REPORT
        with self._db.read() as conn:
            reports = failure_reports(conn, incident.id, type_)
            if incident.kind == model.PROCESS:
                reports += observations.failure_reports(conn, incident.id)
            return reports

    def runs_again(self, incident: Incident) -> bool:
        since = max((r.received_at for r in self.failure_reports(incident)), default=None)
        member = self._segments.member(incident.host)  # first: one connection at a time
        if since is None:
            return True
        with self._db.read() as conn:
            if observations.runs_again(conn, incident.subject, since):
                return True
            return member is not None and runs_again(conn, member.uuid, model.NOVA_COMPUTE, since)

    def remember(self, payload: Mapping[str, Any], claim: Claim) -> None:
        self._db.retry(lambda conn: update_claimed(conn, claim, payload=dict(payload)))

    def agent(self, host: str) -> AgentBeat | None:
        with self._db.read() as conn:
            return beat_of(conn, host)

    def open_about(self, subject: str) -> Incident | None:
        with self._db.read() as conn:
            return self._open(conn, subject)

    def open_on(self, host: str) -> set[str]:
        with self._db.read() as conn:
            return subjects_on(conn, host)

    def situation(self, incident: Incident, since: datetime) -> Situation:
        member = self._segments.member(incident.host)  # first: one connection at a time
        with self._db.read() as conn:
            now = self._db.now(conn)
            fleet = conn.execute(sa.select(h.name, h.rack, h.zone, h.state)).all()
            lately = i.kind != model.ALARM, sa.or_(_LIVING, i.closed_at > since)
            rows = conn.execute(sa.select(incidents).where(*lately)).mappings()
            others = [incident_of(row) for row in rows]
            domain = domain_of(incident.host, fleet)
            return Situation(
                now=now,
                member=member,
                lost_compute=member is not None and lost_compute(conn, member),
                pauses=switches.pauses_for(conn, incident.segment, now),
                maintenance_windows=switches.windows_for(conn, incident, now),
                larger=larger(incident, others),
                domain=domain,
                fleet=fleet_of(fleet, others, incident),
                starts=starts_of(others, domain, incident),
                **self._domain(conn, incident, domain, others, fleet),
                before=before(others, incident),
                approved=switches.approved(conn, domain, now),
            )

    def _domain(
        self,
        conn: Connection,
        mine: Incident,
        domain: str,
        others: Sequence[Incident],
        fleet: Sequence[Any],
    ) -> dict[str, Any]:
        """Return when open incidents of this outage were opened, and whether other hosts live.

        An incident opened more than the settling time before this incident is another outage.
        All other hosts of the domain must show signs of life. Hosts without rack and zone are a
        domain too.
        """
        names = [row.name for row in fleet if domain == (row.rack or row.zone or "")]
        failed = [
            incident
            for incident in (*others, mine)
            if incident.kind == model.HOST
            and incident.is_open
            and any(same(incident.host, name) for name in names)
        ]
        began = mine.opened_at - timedelta(seconds=SETTLING_S)
        outage = {
            incident.id: incident.opened_at
            for incident in (*failed, mine)
            if incident.opened_at >= began
        }
        opened = sorted(outage.values())
        rest = [name for name in names if not any(same(name, incident.host) for incident in failed)]
        return {"domain_opened": opened, "domain_alive": all_beat_since(conn, rest, opened[0])}

    def change(
        self, incident_id: str, change: Change, claim: Claim, then: Sequence[Operation] = ()
    ) -> Incident:
        def action(conn: Connection) -> Incident:
            now = self._ours(conn, claim, change.sentence)
            put(conn, then, now)
            return self._write(conn, self._one(conn, incident_id, lock=True), change, now)

        return self._db.retry(action)

    def close(
        self, incident_id: str, change: Change, claim: Claim, then: Sequence[Operation] = ()
    ) -> Incident:
        def action(conn: Connection) -> Incident:
            now = self._ours(conn, claim, change.sentence)
            old = self._one(conn, incident_id, lock=True)
            if not old.is_open:
                return old
            put(conn, then, now)
            return self._close(conn, old, change, now)

        return self._db.retry(action)

    # members and reservations

    def members(self, segment: str) -> Sequence[SegmentHost]:
        return self._segments.members(segment)

    def member(self, host: str) -> SegmentHost | None:
        return self._segments.member(host)

    def set_member(
        self,
        uuid: str,
        claim: Claim,
        *,
        reserved: bool | None = None,
        on_maintenance: bool | None = None,
    ) -> None:
        def action(conn: Connection) -> None:
            now = self._ours(conn, claim)
            flags = {"reserved": reserved, "on_maintenance": on_maintenance}
            set_member(conn, uuid, self._db.publisher, **flags, now=now)

        self._db.retry(action)

    def use_spare(self, incident_id: str, uuid: str, claim: Claim) -> None:
        def action(conn: Connection) -> None:
            now = self._ours(conn, claim)
            if not self._is_spare(conn, uuid):
                return
            set_member(conn, uuid, self._db.publisher, reserved=False, on_maintenance=None, now=now)
            old = self._one(conn, incident_id, lock=True)

            def used(one: HostProgress) -> HostProgress:
                return replace(one, spares=tuple(sorted({*one.spares, uuid})))

            self._write(conn, old, Change(edit=used), now)

        self._db.retry(action)

    def _is_spare(self, conn: Connection, uuid: str) -> bool:
        """Tell whether the host is a spare, or was a spare until another open incident used it.

        In the second case moves on their way to the host continue.
        """
        if conn.execute(sa.select(m.reserved).where(m.uuid == uuid)).scalar():
            return True
        open_ = sa.select(incidents).where(i.kind == model.HOST, _LIVING)
        found = map(incident_of, conn.execute(open_).mappings())
        return any(uuid in incident.host_progress.spares for incident in found)

    def start(
        self, incident_id: str, change: Change, seen: Sequence[datetime], claim: Claim
    ) -> Incident | None:
        begun = change.edit(HostProgress())
        assert isinstance(begun, HostProgress)
        domain, looked_at = begun.domain, begun.started_at

        def action(conn: Connection) -> Incident | None:
            claim_move(conn, "recoveries")
            now = self._ours(conn, claim)
            old = self._one(conn, incident_id, lock=True)
            lately = sa.or_(i.status == model.RUNNING, i.closed_at >= looked_at)
            started = sa.select(incidents).where(i.kind == model.HOST, lately)
            others = [incident_of(row) for row in conn.execute(started).mappings()]
            if Counter(starts_of(others, domain, old)) - Counter(seen):
                return None
            self._ours(conn, claim, change.sentence)
            return self._write(conn, old, change, now)

        return self._db.retry(action)

    def keep_in_place(
        self, incident_id: str, change: Change, seen: Sequence[ServerMove], claim: Claim
    ) -> Incident | None:
        known = {server_move.uuid: server_move.attempts for server_move in seen}

        def action(conn: Connection) -> Incident | None:
            now = self._ours(conn, claim)
            old = self._one(conn, incident_id, lock=True)
            asked = any(
                server_move.attempts != known.get(server_move.uuid, 0)
                for server_move in leaving(conn, old.host)
            )
            if asked or not old.is_open:
                return None
            keep(conn, old.id, now)
            return self._write(conn, old, change, now)

        return self._db.retry(action)

    def leave_again(
        self, incident_id: str, sentence: str, claim: Claim, *, silent: bool
    ) -> Incident:
        def action(conn: Connection) -> Incident:
            now = self._ours(conn, claim)
            old = self._one(conn, incident_id, lock=True)
            unkeep(conn, old.id, now)

            def leaves(one: HostProgress) -> HostProgress:
                quiet = silent or one.silent_after_return
                left = replace(one, power_returned=None, moving_at=now)
                return replace(left, silent_after_return=quiet)

            return self._write(conn, old, Change(None, sentence, leaves), now)

        return self._db.retry(action)

    def start_over(self, incident_id: str, sentence: str, claim: Claim) -> Incident:
        def action(conn: Connection) -> Incident:
            now = self._ours(conn, claim)
            old = self._one(conn, incident_id, lock=True)
            attempts = append_attempt(old, steps_of(conn, old.id), START_OVER, "Holdfast")
            unkeep(conn, old.id, now)
            conn.execute(sa.delete(steps).where(steps.c.operation_id == claim.operation_id))

            def afresh(one: HostProgress) -> HostProgress:
                return replace(reset(one, START_OVER), attempts=attempts)

            return self._write(conn, old, Change(model.OPEN, sentence, afresh), now)

        return self._db.retry(action)

    def reopen_in_place(self, incident_id: str, sentence: str, claim: Claim) -> Incident | None:
        def action(conn: Connection) -> Incident | None:
            claim_move(conn, LOCK)
            now = self._ours(conn, claim)
            old = self._one(conn, incident_id)
            if old.status != model.FAILED or self._open(conn, old.subject):
                return None
            attempts = append_attempt(old, steps_of(conn, old.id), ENDS_IN_PLACE, "Holdfast")
            return self._reopen_in_place(conn, old, sentence, attempts, now)

        return self._db.retry(action)

    def _reopen_in_place(
        self,
        conn: Connection,
        old: Incident,
        sentence: str,
        attempts: tuple[Entry, ...],
        now: datetime,
    ) -> Incident | None:
        """Start servers that failed to leave a host in use again on this host.

        Recovery does not fence, force down or move anything. Returns None if there are no such
        servers.
        """
        if not failed_again(conn, old.id, now):
            return None
        work = model.recovery_of(old.id, old.kind, old.subject, now)
        apply_work(conn, work.subject, Work(put=(work,)), now)
        old = self._one(conn, old.id, lock=True)
        again(conn, self._db.publisher, old.id, sentence, now)

        def reopened(one: HostProgress) -> HostProgress:
            power = PowerReturned(now, in_use=True)
            kept = replace(reset(one, ENDS_IN_PLACE), attempts=attempts, power_returned=power)
            return replace(kept, moving_at=now, reopened_at=now)

        change = Change(model.OPEN, sentence, reopened)
        new = self._write(conn, old, change, now, key=old.subject, closed_at=None)
        put(conn, self._db.publisher.incident("incident.retried", new, now), now)
        return new

    def hosts_of(self, reservation: str) -> Sequence[str]:
        query = _HELD_NOW.where(r.id == reservation, h.state.in_(USABLE)).order_by(h.name)
        with self._db.read() as conn:
            rows = conn.execute(query, {"now": self._db.now(conn)}).all()
        return [row.service_host for row in rows]

    def awaits_repair(self, host: str) -> bool:
        with self._db.read() as conn:
            rows = conn.execute(_HELD_NOW, {"now": self._db.now(conn)}).all()
        return any(
            same(row.service_host, host) and row.id not in (row.made or {}).get(LOST, ())
            for row in rows
        )

    # inside

    def _ours(self, conn: Connection, claim: Claim, sentence: str | None = None) -> datetime:
        """Check the claim; write `sentence` to the operation in the same commit as the incident.

        A reader that sees a held incident then sees the reason at the waiting step too.
        """
        now = self._db.now(conn)
        changes = {} if sentence is None else {"sentence": sentence}
        update_claimed(conn, claim, updated_at=now, **changes)
        return now

    def _one(self, conn: Connection, incident_id: str, *, lock: bool = False) -> Incident:
        query = _ONE_LOCKED if lock else _ONE
        row = conn.execute(query, {"its_id": incident_id}).mappings().first()
        if row is None:
            raise NotFound(f"no incident {incident_id}")
        return incident_of(row)

    def _open(self, conn: Connection, subject: str, *, lock: bool = False) -> Incident | None:
        """Return the open incident of the subject; `lock` keeps it open until the commit."""
        query = _OPEN_LOCKED if lock else _OPEN
        row = conn.execute(query, {"about": subject}).mappings().first()
        return None if row is None else incident_of(row)

    def _write(
        self, conn: Connection, old: Incident, change: Change, now: datetime, **more: Any
    ) -> Incident:
        status = change.status or old.status
        state_machines.check(f"incident {old.id}", state_machines.INCIDENT, old.status, status)
        sentence = old.sentence if change.sentence is None else change.sentence
        details = plain(change.edit(old.details))
        if change.verdicts is not None:
            judged(conn, old.id, change.verdicts, now)
        if (status, sentence) != (old.status, old.sentence):
            timeline.write(conn, now, old.id, StatusChanged(status, sentence))
        new = {"status": status, "sentence": sentence, "details": details, "updated_at": now}
        conn.execute(_CHANGE, {"its_id": old.id, **new, **more})
        written = self._one(conn, old.id)
        begins = written.status == model.RUNNING and old.status != model.RUNNING
        if begins and written.kind == model.HOST:
            self._explain(conn, written, now)
        return written

    def _close(self, conn: Connection, old: Incident, change: Change, now: datetime) -> Incident:
        assert change.status is not None
        key = f"{old.subject[:218]}#{old.id}"
        new = self._write(conn, old, change, now, key=key, closed_at=now)
        give_up(conn, old.id, f"not begun before its incident was {new.status}", now)
        reported = model.REPORTED[change.status]
        end(conn, self._db.publisher, old.id, reported, new.sentence, now)
        return new


def _handles(conn: Connection, host: Incident, subject: str) -> bool:
    """Tell whether the recovery of the host takes this server away, or starts it in place."""
    if host.takes_guests or host.status != model.RUNNING:
        return host.takes_guests
    moves = leaving(conn, host.host)
    return any(f"server:{server_move.server_id}" == subject for server_move in moves)


def _joined(new: HostProgress, now: datetime) -> Callable[[Progress], Progress]:
    """Return the change of an incident that a report about its host joins.

    Votes are added. The reporter has read Nova's service row for longer than the incident. Its
    reads count if both read the same row (same `updated_at`), or if the incident has none.
    """

    def join(old: Progress) -> Progress:
        if not isinstance(old, HostProgress):
            return old
        is_same = old.nova is None or (new.nova and old.nova.updated_at == new.nova.updated_at)
        return replace(
            old,
            seen=append_votes(old.seen, new.seen, now),
            monitors=new.monitors or old.monitors,
            nova=(new.nova if is_same else None) or old.nova,
        )

    return join
