# SPDX-License-Identifier: Apache-2.0
"""Operator actions on incidents: retry, abort, confirm a host off, approve a mass failure.

Each action is one transaction and needs no manager, so that it works during a mass failure too.

    store.incident_actions.abort(incident_id, author="alice", reason="a drill")

Rows are locked in the order in which recovery locks them: the moves' lock, work, incident.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.db import timeline
from holdfast.db.incident_rows import steps_of
from holdfast.db.incidents import ENDS_IN_PLACE, IncidentStore
from holdfast.db.notifications import again
from holdfast.db.operations import apply_work, put
from holdfast.db.repairs import RepairStore
from holdfast.db.tables import hosts, incidents, operations, vmoves
from holdfast.db.vmoves import LOCK, claim_move, give_up, try_again
from holdfast.model import incident as model
from holdfast.model.errors import Conflict, NotFound
from holdfast.model.incident import Incident, append_attempt, recovery_of
from holdfast.model.incident_progress import (
    ConfirmedOff,
    Details,
    Entry,
    HostProgress,
    OperatorWord,
    Progress,
    of_attempt,
    reset,
)
from holdfast.model.operation import RUNNING
from holdfast.ports.ledger import Work
from holdfast.ports.recovery import ONGOING, Change
from holdfast.recovery import timeline as events

i, o, h, v = incidents.c, operations.c, hosts.c, vmoves.c
#: The approval that repair and recovery of a failure domain wait for, and how long it is valid.
REPAIR = "repair"
APPROVED = timedelta(hours=1)


@dataclass(frozen=True)
class Approval:
    """An approval of a mass failure; an empty `domain` means everywhere.

    `held` counts the held incidents whose guards are evaluated again at once.
    """

    domain: str
    author: str
    reason: str
    expires_at: datetime
    held: int


class IncidentActionStore(IncidentStore):
    """Incidents, as far as operators write to them."""

    def retry(self, incident_id: str, author: str, reason: str = "") -> Incident:
        """Start a failed or aborted incident again: the guards decide, moved servers stay moved.

        Conflict if there is nothing to retry, or another incident about the subject is open.
        """

        def action(conn: Connection) -> Incident:
            claim_move(conn, LOCK)
            now = self._db.now(conn)
            old = self._one(conn, incident_id)
            _check_recovers(old)
            done = steps_of(conn, old.id)
            work = recovery_of(old.id, old.kind, old.subject, now)
            apply_work(conn, work.subject, Work(put=(work,)), now)
            old = self._one(conn, incident_id, lock=True)
            self._check_retry(conn, old)
            sentence = f"tried again by {author}" + (f": {reason}" if reason else "")
            if back := old.host_progress.back_at:
                attempts = append_attempt(old, done, ENDS_IN_PLACE, author)
                return self._retry_in_place(conn, old, back, sentence, attempts, now)
            try_again(conn, old.id, now)
            again(conn, self._db.publisher, old.id, sentence, now)
            attempts = append_attempt(old, done, of_attempt(old.details), author)
            change = Change(
                model.OPEN, sentence, lambda progress: _retried(progress, attempts, now)
            )
            new = self._write(conn, old, change, now, key=old.subject, closed_at=None)
            put(conn, self._db.publisher.incident("incident.retried", new, now), now)
            return new

        return self._db.retry(action)

    def _check_retry(self, conn: Connection, old: Incident) -> None:
        if old.is_open:
            raise Conflict(f"incident {old.id} is {old.status}: it is being worked on already")
        if old.status not in (model.FAILED, model.ABORTED):
            raise Conflict(
                f"incident {old.id} is {old.status}: only what failed or was aborted can be tried"
                " again; if it died again, report it again"
            )
        left = sa.select(sa.func.count()).where(v.incident_id == old.id, v.status == ONGOING)
        if count := conn.execute(left).scalar_one():
            raise Conflict(
                f"{count} servers of incident {old.id} are still on their way: try again when they"
                " have arrived, as holdfast incident show tells"
            )
        if other := self._open(conn, old.subject):
            raise Conflict(f"incident {other.id} about the same is {other.status}: follow that one")

    def _retry_in_place(
        self,
        conn: Connection,
        old: Incident,
        back: datetime,
        sentence: str,
        attempts: tuple[Entry, ...],
        now: datetime,
    ) -> Incident:
        """Start the remaining servers on the returned host, without fencing the host."""
        new = self._reopen_in_place(conn, old, sentence, attempts, now)
        if new is None:
            raise Conflict(
                f"{old.host} came back and is in use again since {back:%Y-%m-%d %H:%M:%S} UTC:"
                " nothing is left to try; if it died again, report it again"
            )
        return new

    def abort(self, incident_id: str, author: str, reason: str) -> Incident:
        """Abort an incident: nothing more is started; servers on their way arrive.

        Conflict if the incident is closed.
        """

        def action(conn: Connection) -> Incident:
            claim_move(conn, LOCK)
            now = self._db.now(conn)
            old = self._one(conn, incident_id)
            if old.kind in model.WORK:
                work = recovery_of(old.id, old.kind, old.subject, now)
                apply_work(conn, work.subject, Work(cancel=frozenset({work.kind})), now)
            old = self._one(conn, incident_id, lock=True)
            if not old.is_open:
                raise Conflict(f"incident {old.id} is {old.status} already: nothing is left of it")
            sentence = f"aborted by {author}: {reason}"
            give_up(conn, old.id, sentence, now)
            change = Change(model.ABORTED, sentence + _stays(old), _aborted(author, reason, now))
            closed = self._close(conn, old, change, now)
            put(conn, self._db.publisher.incident("incident.aborted", closed, now), now)
            return closed

        return self._db.retry(action)

    def confirm_off(
        self,
        incident_id: str,
        author: str,
        reason: str,
        *,
        reads_on: bool = False,
        despite_power_on: bool = False,
    ) -> Incident:
        """Record an operator's confirmation that the host is off; it counts like a fence's proof.

        Conflict if the incident is not about a host, or is closed. `reads_on`: the fence read
        the power state "on".
        """

        def action(conn: Connection) -> Incident:
            now = self._db.now(conn)
            _expedite(conn, [incident_id], now)
            old = self._one(conn, incident_id, lock=True)
            if old.kind != model.HOST:
                raise Conflict(f"incident {old.id} is of kind {old.kind}, not about a host")
            if not old.is_open:
                raise Conflict(f"incident {old.id} is {old.status}: nothing waits for that word")
            word = ConfirmedOff(author, reason, now, reads_on, despite_power_on)

            def confirmed(progress: HostProgress) -> HostProgress:
                return replace(progress, confirmed_off=word)

            new = self._write(conn, old, Change(edit=confirmed), now)
            event = events.ConfirmedOff(author, old.host, reason, reads_on)
            timeline.write(conn, now, old.id, event)
            return new

        return self._db.retry(action)

    def approve(self, author: str, reason: str, domain: str = "") -> Approval:
        """Approve a mass failure in a domain or everywhere: repair and recovery continue.

        NotFound if no host is in this rack or zone.
        """
        repairs = RepairStore(self._db)
        if domain:
            self._check_domain(domain)
        until = self._db.now() + APPROVED
        repairs.approve(f"{REPAIR}:{domain}" if domain else REPAIR, author, reason, until)
        repairs.expedite(REPAIR)
        return Approval(domain, author, reason, until, self.expedite_held())

    def expedite_held(self, segment: str = "") -> int:
        """Evaluate the guards of held incidents again at once; return the number of incidents.

        With `segment` only incidents of this segment.
        """
        held = sa.select(i.id).where(i.status == model.HELD)
        if segment:
            held = held.where(i.details["segment"].as_string() == segment)

        def action(conn: Connection) -> int:
            return _expedite(conn, conn.execute(held).scalars().all(), self._db.now(conn))

        return self._db.retry(action)

    def _check_domain(self, domain: str) -> None:
        with self._db.read() as conn:
            rows = conn.execute(sa.select(h.rack, h.zone).distinct()).all()
        known = sorted({name for row in rows for name in row if name})
        if domain not in known:
            names = ", ".join(known[:20]) or "none"
            raise NotFound(f"no host is in {domain!r}; racks and zones known: {names}")


def _expedite(conn: Connection, ids: Sequence[str], now: datetime) -> int:
    """Make the work of these incidents due at once; return the number of operations.

    A manager that runs an operation evaluates it again afterwards. An operation with a call
    that may still be under way waits for the end of its claim.
    """
    keys = [f"recovery/{incident_id}" for incident_id in ids]
    mine = o.key.in_(keys), o.is_open.is_(True)
    busy = sa.update(operations).where(*mine, o.status == RUNNING)
    rests = sa.or_(o.claim_until.is_(None), o.claim_until <= now)
    resting = sa.update(operations).where(*mine, o.status != RUNNING, rests)
    return (
        conn.execute(busy.values(due_at=now)).rowcount
        + conn.execute(resting.values(next_try_at=now)).rowcount
    )


def _retried(old: Progress, attempts: tuple[Entry, ...], now: datetime) -> Progress:
    """Return the progress of a new attempt; the findings of the last attempt are in `attempts`.

    They do not count any more: the host may have come back since. Servers that our migrations
    moved off the host (`last_migration`) stay recorded.
    """
    new = replace(reset(old, of_attempt(old)), attempts=attempts, retried_at=now, moving_at=now)
    if not isinstance(old, HostProgress) or not isinstance(new, HostProgress):
        return new
    read_off = old.evidence is not None and old.evidence.kind in ("fenced", "power_off")
    forced_down_at = old.forced_down_at or (now if old.evidence else None)
    return replace(new, was_off=read_off or old.was_off, forced_down_at=forced_down_at)


def _aborted(author: str, reason: str, now: datetime) -> Callable[[Details], Details]:
    def abort(progress: Details) -> Details:
        word = OperatorWord(author, reason, now)
        return replace(progress, aborted=word) if isinstance(progress, Progress) else progress

    return abort


def _check_recovers(old: Incident) -> None:
    if old.kind not in model.WORK:
        raise Conflict(
            f"incident {old.id} is of an {old.kind}: nothing is recovered for it, so nothing can be"
            f" tried again; holdfast alarm show {old.id} tells how it stands"
        )


def _may_be_told(old: Incident) -> bool:
    """Tell whether Nova may know already that the host is down.

    The force-down follows the proof at once, and may have been under way at the abort.
    """
    return bool(old.host_progress.forced_down_at or old.host_progress.evidence)


def _stays(old: Incident) -> str:
    """Describe the state in which recovery left the host, and the command to change that."""
    if not _may_be_told(old):
        return ""
    verb = "stays" if old.host_progress.forced_down_at else "may be"
    return (
        f"; {old.host} {verb} forced down, disabled and on maintenance: holdfast incident retry"
        f" {old.id}, or put it into use by hand (docs/concepts/recovery.md, Abort)"
    )
