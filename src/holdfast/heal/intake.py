# SPDX-License-Identifier: Apache-2.0
"""A report comes in: it joins the incident it belongs to, opens one, or is answered at once."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from holdfast.heal import host_liveness
from holdfast.heal.desk import INTAKE, Desk
from holdfast.heal.guards import ASK_AGAIN_S
from holdfast.heal.host_liveness import NovaReads
from holdfast.heal.server_location import crashed_at, server_of, why_not_there
from holdfast.model import liveness
from holdfast.model.incident import (
    GUEST,
    HOST,
    NOTE,
    RECOVER,
    Incident,
    Meaning,
    meaning,
    recovery_of,
)
from holdfast.model.liveness import FailureReport
from holdfast.model.operation import Claim, Operation
from holdfast.model.votes import count
from holdfast.ports.cloud import Service
from holdfast.ports.recovery import Account, Report, Taken
from holdfast.work.kind import Kind, NotYet, Run, Step

LOG = logging.getLogger(__name__)
SOON_S = 0.5
#: An old report is dropped if its host shows life for so long after the receipt.
LASTING = timedelta(seconds=60)


def wait_for_the_last(desk: Desk, account: Account) -> None:
    """One that died anew, after it was ordered to run again, is not the business of the incident
    that is just being closed: NotYet until it is. What begins then is a recovery of its own, which
    the budget counts. If it is not closed but orders once more, that is about this death too."""
    known = desk.incidents.open_about(account.meaning.subject)
    ordered = known and (known.details.get("verified_at") or known.details.get("down_at"))
    if known is not None and ordered and datetime.fromisoformat(ordered) < account.at:
        raise NotYet(f"incident {known.id} is about to end", SOON_S)


def take_in(desk: Desk, account: Account, claim: Claim, now: datetime) -> Taken:
    """The one road by which failures become incidents."""
    told = account.meaning
    work = recovery_of(desk.new_id(), told.kind, told.subject, now)

    def news(new: Incident) -> Sequence[Operation]:
        return desk.announce("incident.opened", new, now)

    taken = desk.incidents.take_in(account, work, claim, news)
    desk.ring()
    return taken


class Intake:
    """Tried until it succeeds; a report that nobody could take in for a day has failed."""

    name = INTAKE
    stubborn = True

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def steps(self) -> Sequence[Step]:
        return (Step("sort", self.sort, kept=False),)

    def sort(self, run: Run) -> str:
        incidents = self._desk.incidents
        report = incidents.report(run.operation.subject.removeprefix("notification:"))
        if report.status != "new":
            return f"it is {report.status} already"
        if report.member is None:
            said = "its host is in no segment any more"
            incidents.answer(report.uuid, "ignored", said, run.claim)
            return said
        told = meaning(report.type, report.member.key, report.payload)
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
        wait_for_the_last(self._desk, account)
        if told.kind == GUEST:
            dates = report.generated_at, report.received_at
            account = replace(account, at=crashed_at(self._desk, run, told.subject, *dates))
        return take_in(self._desk, account, run.claim, now).sentence

    def _elsewhere(self, run: Run, report: Report, told: Meaning) -> str:
        """Why a report about a guest leads to nothing: the cloud has the server on another host,
        or its people want it off. A dead host explains all its guests, so then nobody asks."""
        assert report.member is not None
        host = report.member
        if told.kind != GUEST or self._desk.incidents.open_about(f"{HOST}:{host.key}") is not None:
            return ""
        server_id = told.subject.removeprefix("server:")
        server = server_of(self._desk, run, server_id)
        return why_not_there(server_id, server, host.name)

    def _doubted(self, run: Run, report: Report, told: Meaning) -> str:
        """Why an old report about a host opens no incident; empty if it does, or is not old. An
        outage may have delayed it, so all other sources are asked; NotYet until they can say. The
        last signs of life of a dead host may come in after the report, so it is dropped only if
        they go on. A report dated before a STARTED of its own source counts as old."""
        age_s = (report.received_at - report.generated_at).total_seconds()
        is_old = report.is_superseded or age_s > self._desk.settings.report_max_age_s
        if told.kind != HOST or not is_old:
            return ""
        assert report.member is not None
        desk, host, now = self._desk, report.member.name, self._desk.incidents.now()
        service = host_liveness.service_of(desk.hands(run).services.list(), host)
        reads = self._read_nova(run, service, now)
        votes = count(desk.votes.ballot(host), desk.settings.host_votes)
        seen = host_liveness.signs(desk, host, service, reads)
        well = votes.sentence() if votes.is_over else ""
        mine = [FailureReport(report.reporter or "a notification", report.received_at)]
        found = liveness.judge(mine, seen, now, seen_well=well)
        old = f"the report is {age_s:.0f} s old"
        if found.state == liveness.REBOOTED:
            return ""
        if found.state != liveness.STANDS and host_liveness.is_off(run, desk, host):
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
            self._desk.incidents.remember({"nova": reads.plain()}, run.claim)
        run.memo["nova"] = reads and reads.plain()
        return reads

    def give_up_at(self, operation: Operation) -> datetime | None:
        return operation.due_at + timedelta(seconds=self._desk.settings.give_up_s)

    def failed(self, run: Run, why: str) -> None:
        uuid = run.operation.subject.removeprefix("notification:")
        self._desk.incidents.answer(uuid, "failed", why, run.claim)


def kinds(desk: Desk) -> dict[str, Kind]:
    return {INTAKE: Intake(desk)}
