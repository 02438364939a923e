# SPDX-License-Identifier: Apache-2.0
"""A report comes in: it joins the incident it belongs to, opens one, or is answered at once."""

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta

from holdfast.heal.desk import INTAKE, Desk
from holdfast.model.incident import NOTE, RECOVER, Incident, meaning, recovery_of
from holdfast.model.operation import Claim, Operation
from holdfast.ports.recovery import Account, Taken
from holdfast.work.kind import Kind, NotYet, Run, Step

LOG = logging.getLogger(__name__)
SOON_S = 0.5


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
        now = incidents.now()
        details = {"report": report.uuid, "payload": dict(report.payload)}
        account = Account(
            told, report.member, report.generated_at, details, notification=report.uuid
        )
        wait_for_the_last(self._desk, account)
        return take_in(self._desk, account, run.claim, now).sentence

    def give_up_at(self, operation: Operation) -> datetime | None:
        return operation.due_at + timedelta(seconds=self._desk.settings.give_up_s)

    def failed(self, run: Run, why: str) -> None:
        uuid = run.operation.subject.removeprefix("notification:")
        self._desk.incidents.answer(uuid, "failed", why, run.claim)


def kinds(desk: Desk) -> dict[str, Kind]:
    return {INTAKE: Intake(desk)}
