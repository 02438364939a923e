# SPDX-License-Identifier: Apache-2.0
"""Intake of failure reports: a report joins or opens an incident, or is answered at once.

`Intake` handles notifications of the instance HA API, `Sort` handles observations of agents.
Before a guest report opens an incident, Holdfast asks Nova whether the server is on the
reporting host, and whether the crash was already recovered.
"""

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
from holdfast.model.incident_progress import (
    GuestProgress,
    HostProgress,
    NovaReads,
    Progress,
    plain,
    read,
)
from holdfast.model.observation import ALARM, FAILED, OBSERVATION, Observed
from holdfast.model.operation import Claim, Operation
from holdfast.model.votes import count
from holdfast.ports.cloud import Server, Service
from holdfast.ports.recovery import Account, IntakeResult, Report
from holdfast.recovery import host_liveness, liveness
from holdfast.recovery.context import INTAKE, RecoveryContext
from holdfast.recovery.guards import ASK_AGAIN_S, LEAVE_IT
from holdfast.recovery.liveness import FailureReport

#: During one of these tasks the guest may be on either host.
MOVING: Final = ("migrating", "resize_prep", "resize_migrating", "resize_migrated", "resize_finish")
#: Statuses that only users set: the server is meant to be off, whatever was observed of its
#: guest. SHUTOFF is not among them, because Nova also shows it for a guest that died.
OFF_BY_WISH: Final = ("SUSPENDED", "SHELVED", "SHELVED_OFFLOADED", "SOFT_DELETED", "DELETED")
#: Seconds that Nova may show ACTIVE for a guest that died: nova-compute itself waits 15 s.
NOVA_LAG_S: Final = 20.0
#: Accepted difference between the clocks of a sender and of the database.
CLOCK_ERROR: Final = timedelta(seconds=1)
LOOK_S, BUSY_S = 2.0, 2.0


def server_of(context: RecoveryContext, run: Run, server_id: str) -> Server | None:
    """The server, or None if unknown to Nova."""
    try:
        return context.guarded_cloud(run).servers.show(server_id)
    except NotFound:
        return None


def why_not_there(server_id: str, server: Server | None, host: str) -> str:
    """Why a report of this host about the server is dropped; empty if Nova has the server there.

    NotYet while the server moves: a guest missing on one of the two hosts may run on the other.
    """
    if server is None:
        return f"the cloud knows no server {server_id}"
    if server.status in OFF_BY_WISH:
        return f"the cloud says that server {server_id} shall be off: it is {server.status}"
    if server.task_state in MOVING:
        raise NotYet(f"server {server_id} is {server.task_state}: where it will be decides", BUSY_S)
    return why_elsewhere(server, host)


def why_elsewhere(server: Server, host: str) -> str:
    """Describe the server's other host; empty if Nova has the server on this host."""
    if same(server.host or "", host):
        return ""
    return f"the cloud says that server {server.id} is on {server.host or 'no host'}"


def crashed_at(
    context: RecoveryContext, run: Run, subject: str, dated: datetime, received_at: datetime
) -> datetime:
    """The time of the crash in a report; a future date is cut to the time of receipt.

    A sender whose clock is wrong cannot tell a recovered crash from a new one. If a recovery of
    the guest was verified since the crash, by the sender's clock, or lately if that clock is
    ahead, Nova decides: a new crash shows within NOVA_LAG_S (NotYet until then). If none shows,
    the report is dated before that recovery.
    """
    incidents, settings = context.incidents, context.settings
    since = min(dated, received_at)
    if dated > received_at + CLOCK_ERROR:
        half = timedelta(seconds=settings.duplicate_interval_s)
        since = received_at - max(dated - received_at, half)
    if (
        incidents.recovered_since(subject, since) is None
        or incidents.recovered_since(subject, received_at) is not None
    ):
        return min(dated, received_at)
    server = server_of(context, run, subject.removeprefix("server:"))
    if server is None or server.status != "ACTIVE" or (server.live and not server.powered):
        return received_at
    if not server.live and incidents.now() < received_at + timedelta(seconds=NOVA_LAG_S):
        sentence = f"the report is dated {dated:%H:%M:%S} UTC, and the guest was recovered since"
        raise NotYet(f"{sentence}: does the cloud see the guest die again?", LOOK_S)
    return since


LOG = logging.getLogger(__name__)
SOON_S = 0.5
#: An old report is dropped if its host shows signs of life for this long after the receipt.
LASTING = timedelta(seconds=60)


def wait_for_open_recovery(context: RecoveryContext, account: Account) -> None:
    """Raise NotYet while an incident with a restart order before this crash is still open.

    A guest that died again after the restart order needs its own recovery, which the budget
    counts. If the open incident orders a restart once more instead of closing, this order
    covers the new crash too.
    """
    incident = context.incidents.open_about(account.meaning.subject)
    ordered = incident and (incident.verified_at or incident.guest_progress.down_at)
    if incident is not None and ordered and ordered < account.at:
        raise NotYet(f"incident {incident.id} is about to end", SOON_S)


def ingest(context: RecoveryContext, account: Account, claim: Claim, now: datetime) -> IntakeResult:
    """Record the failure, joining or opening an incident; all failures use this function."""
    classification = account.meaning
    work = recovery_of(context.new_id(), classification.kind, classification.subject, now)

    def news(new: Incident) -> Sequence[Operation]:
        return context.announce("incident.opened", new, now)

    taken = context.incidents.ingest(account, work, claim, news)
    context.wake()
    return taken


class Intake:
    """Work for a notification, retried for up to one day; then the report has failed."""

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
            sentence = "its host is in no segment any more"
            incidents.answer(report.uuid, "ignored", sentence, run.claim)
            return sentence
        classification = classify(report.type, report.member.key, report.payload)
        if classification.verdict != RECOVER:
            status = "finished" if classification.verdict == NOTE else "ignored"
            incidents.answer(report.uuid, status, classification.cause, run.claim)
            LOG.info("report %s: %s: %s", report.uuid, status, classification.cause)
            return classification.cause
        if why := self._doubted(run, report, classification) or self._elsewhere(
            run, report, classification
        ):
            incidents.answer(report.uuid, "ignored", why, run.claim)
            LOG.warning("report %s: ignored: %s", report.uuid, why)
            return why
        now = incidents.now()
        details: Progress = GuestProgress()
        if classification.kind != GUEST:  # Nova's answers save the incident a second wait for Nova
            details = HostProgress(nova=run.memo.get("nova"))
        details = replace(details, report=report.uuid, payload=dict(report.payload))
        at = min(report.generated_at, report.received_at)
        if classification.kind != GUEST and incidents.recovered_since(classification.subject, at):
            at = report.received_at  # every other source was asked: it failed again
        account = Account(classification, report.member, at, details, notification=report.uuid)
        wait_for_open_recovery(self._context, account)
        if classification.kind == GUEST:
            dates = report.generated_at, report.received_at
            account = replace(
                account, at=crashed_at(self._context, run, classification.subject, *dates)
            )
        return ingest(self._context, account, run.claim, now).sentence

    def _elsewhere(self, run: Run, report: Report, classification: Classification) -> str:
        """Why a report about a guest is dropped: server on another host, or meant to be off.

        While the host is recovered, Nova is not asked: a dead host explains all its guests.
        """
        assert report.member is not None
        host = report.member
        larger = self._context.incidents.open_about(f"{HOST}:{host.key}")
        if classification.kind != GUEST or (larger is not None and larger.takes_guests):
            return ""
        server_id = classification.subject.removeprefix("server:")
        server = server_of(self._context, run, server_id)
        return why_not_there(server_id, server, host.name)

    def _doubted(self, run: Run, report: Report, classification: Classification) -> str:
        """Why an old report opens no incident; empty if allowed, not old, or about a guest.

        An outage may have delayed the report, so Holdfast asks all other sources; NotYet until
        they answer. The last signs of life of a dead host may arrive after the report, so the
        report is dropped only if they continue. A report dated before a STARTED of its own
        source counts as old, and so does a report dated before a recovery of the host: the
        sender's clock may be behind. About nova-compute only Nova is asked.
        """
        age_s = (report.received_at - report.generated_at).total_seconds()
        is_old = report.is_superseded or age_s > self._context.settings.report_max_age_s
        is_old = is_old or self._may_be_recovered(report, classification.subject)
        if classification.kind == GUEST or not is_old:
            return ""
        is_host = classification.kind == HOST
        assert report.member is not None
        context, host, now = self._context, report.member.name, self._context.incidents.now()
        service = host_liveness.service_of(context.guarded_cloud(run).services.list(), host)
        reads = self._read_nova(run, service, now)
        votes = count(context.votes.ballot(host), context.settings.host_votes)
        life_signs = host_liveness.signs(context, host, service, reads)
        life_signs = [sign for sign in life_signs if is_host or sign.source == host_liveness.NOVA]
        well = votes.sentence() if votes.is_over and is_host else ""
        reports = [FailureReport(report.reporter or "a notification", report.received_at)]
        judgement = liveness.judge(reports, life_signs, now, seen_well=well)
        old = f"the report is {age_s:.0f} s old"
        if judgement.state == liveness.REBOOTED:
            return ""
        stands = judgement.state == liveness.STANDS
        if is_host and not stands and host_liveness.is_off(run, context, host):
            return ""
        if judgement.state == liveness.WAITS:
            raise NotYet(f"{old}: {judgement.sentence}", min(judgement.again_s, ASK_AGAIN_S))
        last = max(
            [life_sign.at for life_sign in life_signs if life_sign.at is not None],
            default=report.received_at,
        )
        lasts = (now if well else last) >= report.received_at + LASTING
        if judgement.state == liveness.CONTRADICTED and not lasts:
            raise NotYet(f"{old}: {judgement.sentence}", ASK_AGAIN_S)
        if not stands:
            return f"{old}, and {host} is {judgement.sentence}"
        is_down = service is not None and service.state != "up"
        if life_signs or is_down or votes.is_enough:
            return ""
        return f"{old}, and neither an agent nor Nova nor a monitor says that {host} failed"

    def _may_be_recovered(self, report: Report, subject: str) -> bool:
        """Whether a recovery ended after the report's date, but before its receipt."""
        recovered_since = self._context.incidents.recovered_since
        if recovered_since(subject, report.received_at) is not None:
            return False
        return recovered_since(subject, report.generated_at) is not None

    def _read_nova(self, run: Run, service: Service | None, now: datetime) -> NovaReads | None:
        """Read the host's compute service again and store the result for the next read.

        Any manager may do the next read.
        """
        before = run.operation.payload.get("nova")
        earlier = read(NovaReads, before) if before else None
        reads = host_liveness.read_nova(earlier, service, now)
        if reads is not None and reads != earlier:
            self._context.incidents.remember({"nova": plain(reads)}, run.claim)
        run.memo["nova"] = reads
        return reads

    def give_up_at(self, operation: Operation) -> datetime | None:
        return operation.due_at + timedelta(seconds=self._context.settings.give_up_s)

    def failed(self, run: Run, why: str) -> None:
        uuid = run.operation.subject.removeprefix("notification:")
        self._context.incidents.answer(uuid, "failed", why, run.claim)


class Sort:
    """Work for an observation of an agent, retried for up to one day.

    A guest that died or a service that does not run becomes an incident by `ingest`, like any
    other report. An agent speaks for its own host only, so Holdfast asks Nova whether the guest
    is there. A report about a server that was moved, deleted, suspended, shelved or never there
    is dropped. So is an old report about a server whose state in Nova has changed (`still`), or
    whose agent reports it running again.
    """

    name = OBSERVATION
    retry_forever = True

    def __init__(self, context: RecoveryContext) -> None:
        self._context = context

    def steps(self) -> Sequence[Step]:
        return (Step("sort", self.sort, recorded=False),)

    def sort(self, run: Run) -> str:
        context = self._context
        try:
            observed = context.incidents.observed(run.operation.payload["observation"])
        except NotFound:
            return "the report was tidied away"
        if observed.kind == ALARM:
            return self._alarm(run, observed)
        if observed.state != FAILED:
            return "the report is only published"
        meaning = _classified(observed)
        if meaning is None:
            return f"nothing is done about {observed.subject}"
        try:
            member = context.incidents.member(observed.host)
        except Conflict as several:
            return several.message
        if member is None:
            return f"{observed.host} is in no segment"
        if meaning.kind == GUEST and (
            why := self._over(observed) or self._not_there(run, observed)
        ):
            return why
        kind = GuestProgress if meaning.kind == GUEST else HostProgress
        details = kind(observed=dict(observed.evidence), payload=observed.payload())
        # a sender's clock that is ahead would date the crash after its recovery
        received_at = run.operation.due_at
        at = min(observed.since, received_at)
        account = Account(
            *(meaning, member, at, details),
            observations=[observed.id],
            told_before=min(observed.told_before or at, at) if observed.told_before else None,
        )
        wait_for_open_recovery(context, account)
        if meaning.kind == GUEST:
            crashed = crashed_at(context, run, meaning.subject, observed.since, received_at)
            account = replace(account, at=crashed)
        taken = ingest(context, account, run.claim, context.incidents.now())
        LOG.info("%s: %s", observed.subject, taken.sentence)
        return taken.sentence

    def _alarm(self, run: Run, observed: Observed) -> str:
        """Ingest an alarm of an agent, unless Nova has the server on another host.

        An agent's token speaks for its own host only.
        """
        server = server_of(self._context, run, observed.name)
        why = _why_not_its(observed, server)
        if self._context.incidents.ingest_alarm(observed.id, run.claim, is_there=not why):
            self._context.wake()
            return "the alarm is taken in"
        if server is not None and server.task_state:
            raise NotYet(f"{why}, and it is {server.task_state}", BUSY_S)
        LOG.warning(
            "%s: alarm of %s leads to nothing: %s", observed.observer, observed.subject, why
        )
        return why

    def _over(self, observed: Observed) -> str:
        """Describe the source which sees the guest run again; empty if none does.

        A report that was delayed, or waited for a manager, may be out of date.
        """
        if observed.over_since:
            return (
                f"it runs again since {observed.over_since}, says {observed.observer}: {LEAVE_IT}"
            )
        incidents = self._context.incidents
        source = incidents.guest_recovered_since(
            observed.subject, observed.host, observer=observed.observer
        )
        return f"{source}: {LEAVE_IT}" if source else ""

    def _not_there(self, run: Run, observed: Observed) -> str:
        """Why Nova does not confirm the report about a guest of this host; empty if Nova does."""
        server = server_of(self._context, run, observed.name)
        why = why_not_there(observed.name, server, observed.host)
        if server is None or why:
            return why
        if observed.still and not observed.still & {server.status, server.task_state}:
            return f"the cloud says that server {observed.name} is {server.status} now"
        return ""

    def give_up_at(self, operation: Operation) -> datetime | None:
        return operation.due_at + timedelta(seconds=self._context.settings.give_up_s)

    def failed(self, run: Run, why: str) -> None:
        LOG.error("%s leads to nothing: %s", run.operation.subject, why)


def _why_not_its(observed: Observed, server: Server | None) -> str:
    """Why the host's agent may not raise an alarm about the server; empty if allowed."""
    if server is None:
        return f"the cloud knows no server {observed.name}"
    project = str(observed.evidence.get("project", ""))
    if project and project != server.project_id:
        return (
            f"the cloud says that server {observed.name} is of another project than {project[:80]}"
        )
    return why_elsewhere(server, observed.host)


def _classified(observed: Observed) -> Classification | None:
    if observed.kind == GUEST:
        return Classification(
            GUEST,
            observed.subject,
            RECOVER,
            f"server {observed.name}: {observed.what}, says {observed.observer}",
        )
    if observed.kind == PROCESS and observed.name == NOVA_COMPUTE:
        subject = f"{PROCESS}:{observed.host}:{observed.name}"
        return Classification(
            PROCESS,
            subject,
            RECOVER,
            f"{observed.name} stopped on {observed.host}, says {observed.observer}",
        )
    return None


def kinds(context: RecoveryContext) -> dict[str, Kind]:
    return {INTAKE: Intake(context), OBSERVATION: Sort(context)}
