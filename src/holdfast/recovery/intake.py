# SPDX-License-Identifier: Apache-2.0
"""A report comes in: it joins the incident it belongs to, opens one, or is answered at once."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from holdfast.jobs.job import Kind, NotYet, Run, Step
from holdfast.model.errors import Conflict, NotFound
from holdfast.model.host import same
from holdfast.model.incident import (
    GUEST,
    HOST,
    NOTE,
    NOVA_COMPUTE,
    PROCESS,
    RECOVER,
    Classification,
    Incident,
    classify,
    recovery_of,
)
from holdfast.model.observation import ALARM, FAILED, OBSERVATION, Observed
from holdfast.model.operation import Claim, Operation
from holdfast.model.votes import count
from holdfast.ports.cloud import Server, Service
from holdfast.ports.recovery import Account, IntakeResult, Report
from holdfast.recovery import host_liveness, liveness
from holdfast.recovery.context import INTAKE, RecoveryContext
from holdfast.recovery.guards import ASK_AGAIN_S, LEAVE_IT
from holdfast.recovery.host_liveness import NovaReads
from holdfast.recovery.liveness import FailureReport

# What the cloud says of a guest that was reported dead: whether it has the guest on the host that
# reports it, and whether the guest is one that was recovered already.


#: While one of these tasks is under way, the guest may be on either host.
MOVING: Final = ("migrating", "resize_prep", "resize_migrating", "resize_migrated", "resize_finish")
#: Nobody but its people makes a server so: whatever was found of its guest, it shall be off.
#: SHUTOFF is not among them, for so the cloud calls what died as well.
OFF_BY_WISH: Final = ("SUSPENDED", "SHELVED", "SHELVED_OFFLOADED", "SOFT_DELETED", "DELETED")
#: How long Nova may call a guest ACTIVE that died: nova-compute itself waits 15 s.
NOVA_LAG_S: Final = 20.0
#: How far the clocks of a sender and of the database differ without being wrong.
CLOCK_ERROR: Final = timedelta(seconds=1)
LOOK_S, BUSY_S = 2.0, 2.0


def server_of(context: RecoveryContext, run: Run, server_id: str) -> Server | None:
    """None: the cloud knows no such server."""
    try:
        return context.guarded_cloud(run).servers.show(server_id)
    except NotFound:
        return None


def why_not_there(server_id: str, server: Server | None, host: str) -> str:
    """Why a report from that host about the server leads to nothing; empty if the cloud has the
    server there. NotYet while the server moves: a guest that is gone on one of the two hosts may
    run on the other."""
    if server is None:
        return f"the cloud knows no server {server_id}"
    if server.status in OFF_BY_WISH:
        return f"the cloud says that server {server_id} shall be off: it is {server.status}"
    if server.task_state in MOVING:
        raise NotYet(f"server {server_id} is {server.task_state}: where it will be decides", BUSY_S)
    return why_elsewhere(server, host)


def why_elsewhere(server: Server, host: str) -> str:
    """Empty if the cloud has the server on that host."""
    if same(server.host or "", host):
        return ""
    return f"the cloud says that server {server.id} is on {server.host or 'no host'}"


def crashed_at(
    context: RecoveryContext, run: Run, subject: str, dated: datetime, received_at: datetime
) -> datetime:
    """When the crash happened that a report tells of. A date in the future is cut to the time of
    receipt.

    A sender whose clock is ahead cannot say whether it tells of a crash that was recovered since or
    of a new one. If a recovery of the guest was verified lately, the cloud decides: a new crash
    shows within NOVA_LAG_S (NotYet until then). If it does not, the report is dated before that
    recovery.
    """
    if dated <= received_at + CLOCK_ERROR:
        return min(dated, received_at)
    incidents, settings = context.incidents, context.settings
    window = max(dated - received_at, timedelta(seconds=settings.duplicate_interval_s))
    if incidents.recovered_since(subject, received_at - window) is None:
        return received_at
    server = server_of(context, run, subject.removeprefix("server:"))
    if server is None or server.status != "ACTIVE" or (server.live and not server.powered):
        return received_at
    if not server.live and incidents.now() < received_at + timedelta(seconds=NOVA_LAG_S):
        said = f"the report is dated {(dated - received_at).total_seconds():.0f} s in the future"
        raise NotYet(f"{said}: does the cloud see the guest die again?", LOOK_S)
    return received_at - window


LOG = logging.getLogger(__name__)
SOON_S = 0.5
#: An old report is dropped if its host shows life for so long after the receipt.
LASTING = timedelta(seconds=60)


def wait_for_the_last(context: RecoveryContext, account: Account) -> None:
    """One that died anew, after it was ordered to run again, is not the business of the incident
    that is just being closed: NotYet until it is. What begins then is a recovery of its own, which
    the budget counts. If it is not closed but orders once more, that is about this death too."""
    known = context.incidents.open_about(account.meaning.subject)
    ordered = known and (known.details.get("verified_at") or known.details.get("down_at"))
    if known is not None and ordered and datetime.fromisoformat(ordered) < account.at:
        raise NotYet(f"incident {known.id} is about to end", SOON_S)


def ingest(context: RecoveryContext, account: Account, claim: Claim, now: datetime) -> IntakeResult:
    """The one road by which failures become incidents."""
    told = account.meaning
    work = recovery_of(context.new_id(), told.kind, told.subject, now)

    def news(new: Incident) -> Sequence[Operation]:
        return context.announce("incident.opened", new, now)

    taken = context.incidents.ingest(account, work, claim, news)
    context.wake()
    return taken


class Intake:
    """Tried until it succeeds; a report that nobody could take in for a day has failed."""

    name = INTAKE
    retry_forever = True

    def __init__(self, context: RecoveryContext) -> None:
        self._context = context

    def steps(self) -> Sequence[Step]:
        return (Step("sort", self.sort, recorded=False),)

    def sort(self, run: Run) -> str:
        incidents = self._context.incidents
        report = incidents.report(run.operation.subject.removeprefix("notification:"))
        if report.status != "new":
            return f"it is {report.status} already"
        if report.member is None:
            said = "its host is in no segment any more"
            incidents.answer(report.uuid, "ignored", said, run.claim)
            return said
        told = classify(report.type, report.member.key, report.payload)
        if told.verdict != RECOVER:
            status = "finished" if told.verdict == NOTE else "ignored"
            incidents.answer(report.uuid, status, told.cause, run.claim)
            LOG.info("report %s: %s: %s", report.uuid, status, told.cause)
            return told.cause
        if why := self._doubted(run, report, told) or self._elsewhere(run, report, told):
            incidents.answer(report.uuid, "ignored", why, run.claim)
            LOG.warning("report %s: ignored: %s", report.uuid, why)
            return why
        now = incidents.now()
        details = {"report": report.uuid, "payload": dict(report.payload)}
        if reads := run.memo.get("nova"):
            details["nova"] = reads  # the incident does not wait for Nova again
        at = min(report.generated_at, report.received_at)
        account = Account(told, report.member, at, details, notification=report.uuid)
        wait_for_the_last(self._context, account)
        if told.kind == GUEST:
            dates = report.generated_at, report.received_at
            account = replace(account, at=crashed_at(self._context, run, told.subject, *dates))
        return ingest(self._context, account, run.claim, now).sentence

    def _elsewhere(self, run: Run, report: Report, told: Classification) -> str:
        """Why a report about a guest leads to nothing: the cloud has the server on another host,
        or its people want it off. A dead host explains all its guests, so then nobody asks."""
        assert report.member is not None
        host = report.member
        if (
            told.kind != GUEST
            or self._context.incidents.open_about(f"{HOST}:{host.key}") is not None
        ):
            return ""
        server_id = told.subject.removeprefix("server:")
        server = server_of(self._context, run, server_id)
        return why_not_there(server_id, server, host.name)

    def _doubted(self, run: Run, report: Report, told: Classification) -> str:
        """Why an old report about a host opens no incident; empty if it does, or is not old. An
        outage may have delayed it, so all other sources are asked; NotYet until they can say. The
        last signs of life of a dead host may come in after the report, so it is dropped only if
        they go on. A report dated before a STARTED of its own source counts as old."""
        age_s = (report.received_at - report.generated_at).total_seconds()
        is_old = report.is_superseded or age_s > self._context.settings.report_max_age_s
        if told.kind != HOST or not is_old:
            return ""
        assert report.member is not None
        context, host, now = self._context, report.member.name, self._context.incidents.now()
        service = host_liveness.service_of(context.guarded_cloud(run).services.list(), host)
        reads = self._read_nova(run, service, now)
        votes = count(context.votes.ballot(host), context.settings.host_votes)
        seen = host_liveness.signs(context, host, service, reads)
        well = votes.sentence() if votes.is_over else ""
        mine = [FailureReport(report.reporter or "a notification", report.received_at)]
        found = liveness.judge(mine, seen, now, seen_well=well)
        old = f"the report is {age_s:.0f} s old"
        if found.state == liveness.REBOOTED:
            return ""
        if found.state != liveness.STANDS and host_liveness.is_off(run, context, host):
            return ""
        if found.state == liveness.WAITS:
            raise NotYet(f"{old}: {found.sentence}", min(found.again_s, ASK_AGAIN_S))
        last = max([one.at for one in seen if one.at is not None], default=report.received_at)
        lasts = (now if well else last) >= report.received_at + LASTING
        if found.state == liveness.CONTRADICTED and not lasts:
            raise NotYet(f"{old}: {found.sentence}", ASK_AGAIN_S)
        if found.state != liveness.STANDS:
            return f"{old}, and {host} is {found.sentence}"
        is_down = service is not None and service.state != "up"
        if seen or is_down or votes.is_enough:
            return ""
        return f"{old}, and neither an agent nor Nova nor a monitor says that {host} failed"

    def _read_nova(self, run: Run, service: Service | None, now: datetime) -> NovaReads | None:
        """One more read of the host's service; kept for the next one, by whichever manager."""
        known = NovaReads.of(run.operation.payload.get("nova"))
        reads = host_liveness.read_nova(known, service, now)
        if reads is not None and reads != known:
            self._context.incidents.remember({"nova": reads.plain()}, run.claim)
        run.memo["nova"] = reads and reads.plain()
        return reads

    def give_up_at(self, operation: Operation) -> datetime | None:
        return operation.due_at + timedelta(seconds=self._context.settings.give_up_s)

    def failed(self, run: Run, why: str) -> None:
        uuid = run.operation.subject.removeprefix("notification:")
        self._context.incidents.answer(uuid, "failed", why, run.claim)


# What an agent saw on its host, a guest that died or a service that does not run, becomes an
# incident by the same road as every other report.
#
# An agent speaks of its own host only; that the guest is there is asked of the cloud: a report
# about
# a server that was moved, deleted, suspended, shelved or never was there leads to nothing. Nor
# does
# old news about a server that the cloud shows otherwise by now (`still`), or that runs again as
# its
# agent says (state well).


class Sort:
    """Tried until it succeeds, a day at most."""

    name = OBSERVATION
    retry_forever = True

    def __init__(self, context: RecoveryContext) -> None:
        self._context = context

    def steps(self) -> Sequence[Step]:
        return (Step("sort", self.sort, recorded=False),)

    def sort(self, run: Run) -> str:
        context = self._context
        try:
            seen = context.incidents.observed(run.operation.payload["observation"])
        except NotFound:
            return "the report was tidied away"
        if seen.kind == ALARM:
            return self._alarm(run, seen)
        if seen.state != FAILED:
            return "it is only told"
        meaning = _meaning(seen)
        if meaning is None:
            return f"nothing is done about {seen.subject}"
        try:
            member = context.incidents.member(seen.host)
        except Conflict as several:
            return several.message
        if member is None:
            return f"{seen.host} is in no segment"
        if meaning.kind == GUEST and (why := self._over(seen) or self._not_there(run, seen)):
            return why
        details = {"observed": dict(seen.evidence), "payload": seen.payload()}
        # by a clock that is ahead everything would be later than what was done about it
        received_at = run.operation.due_at
        at = min(seen.since, received_at)
        account = Account(
            *(meaning, member, at, details),
            observations=[seen.id],
            told_before=min(seen.told_before or at, at) if seen.told_before else None,
        )
        wait_for_the_last(context, account)
        if meaning.kind == GUEST:
            crashed = crashed_at(context, run, meaning.subject, seen.since, received_at)
            account = replace(account, at=crashed)
        taken = ingest(context, account, run.claim, context.incidents.now())
        LOG.info("%s: %s", seen.subject, taken.sentence)
        return taken.sentence

    def _alarm(self, run: Run, seen: Observed) -> str:
        """An agent's token speaks for its host only: an alarm about a server that the cloud has
        elsewhere leads to nothing."""
        server = server_of(self._context, run, seen.name)
        why = _why_not_its(seen, server)
        if self._context.incidents.ingest_alarm(seen.id, run.claim, is_there=not why):
            self._context.wake()
            return "the alarm is taken in"
        if server is not None and server.task_state:
            raise NotYet(f"{why}, and it is {server.task_state}", BUSY_S)
        LOG.warning("%s: alarm of %s leads to nothing: %s", seen.observer, seen.subject, why)
        return why

    def _over(self, seen: Observed) -> str:
        """That it runs again by now, if somebody says so: what was held up on its way, or waited
        for a manager, is old."""
        if seen.over_since:
            return f"it runs again since {seen.over_since}, says {seen.observer}: {LEAVE_IT}"
        incidents = self._context.incidents
        said = incidents.guest_recovered_since(seen.subject, seen.host, observer=seen.observer)
        return f"{said}: {LEAVE_IT}" if said else ""

    def _not_there(self, run: Run, seen: Observed) -> str:
        """Why the cloud does not think that it is that host's guest; empty if it does."""
        server = server_of(self._context, run, seen.name)
        why = why_not_there(seen.name, server, seen.host)
        if server is None or why:
            return why
        if seen.still and not seen.still & {server.status, server.task_state}:
            return f"the cloud says that server {seen.name} is {server.status} now"
        return ""

    def give_up_at(self, operation: Operation) -> datetime | None:
        return operation.due_at + timedelta(seconds=self._context.settings.give_up_s)

    def failed(self, run: Run, why: str) -> None:
        LOG.error("%s leads to nothing: %s", run.operation.subject, why)


def _why_not_its(seen: Observed, server: Server | None) -> str:
    """Why an alarm about a server is not for the agent of that host to raise; empty if it is."""
    if server is None:
        return f"the cloud knows no server {seen.name}"
    project = str(seen.evidence.get("project", ""))
    if project and project != server.project_id:
        return f"the cloud says that server {seen.name} is of another project than {project[:80]}"
    return why_elsewhere(server, seen.host)


def _meaning(seen: Observed) -> Classification | None:
    if seen.kind == GUEST:
        return Classification(
            GUEST, seen.subject, RECOVER, f"server {seen.name}: {seen.what}, says {seen.observer}"
        )
    if seen.kind == PROCESS and seen.name == NOVA_COMPUTE:
        subject = f"{PROCESS}:{seen.host}:{seen.name}"
        return Classification(
            PROCESS, subject, RECOVER, f"{seen.name} stopped on {seen.host}, says {seen.observer}"
        )
    return None


def kinds(context: RecoveryContext) -> dict[str, Kind]:
    return {INTAKE: Intake(context), OBSERVATION: Sort(context)}
