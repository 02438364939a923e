# SPDX-License-Identifier: Apache-2.0
"""What an agent saw on its host, a guest that died or a service that does not run, becomes an
incident by the same road as every other report.

An agent speaks of its own host only; that the guest is there is asked of the cloud: a report about
a server that was moved, deleted, suspended, shelved or never was there leads to nothing. Nor does
old news about a server that the cloud shows otherwise by now (`still`), or that runs again as its
agent says (state well).
"""

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta

from holdfast.heal.desk import Desk
from holdfast.heal.guards import LEAVE_IT
from holdfast.heal.intake import take_in, wait_for_the_last
from holdfast.model.errors import Conflict, NotFound
from holdfast.model.host import same
from holdfast.model.incident import GUEST, NOVA_COMPUTE, PROCESS, RECOVER, Meaning
from holdfast.model.observed import FAILED, OBSERVATION, Observed
from holdfast.model.operation import Operation
from holdfast.ports.recovery import Account
from holdfast.work.kind import Kind, Run, Step

LOG = logging.getLogger(__name__)
#: Nobody but its people makes a server so: whatever was found of its guest, it shall be off.
#: SHUTOFF is not among them, for so the cloud calls what died as well.
OFF_BY_WISH = ("SUSPENDED", "SHELVED", "SHELVED_OFFLOADED", "SOFT_DELETED", "DELETED")


class Sort:
    """Tried until it succeeds, a day at most."""

    name = OBSERVATION
    stubborn = True

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def steps(self) -> Sequence[Step]:
        return (Step("sort", self.sort, kept=False),)

    def sort(self, run: Run) -> str:
        desk = self._desk
        try:
            seen = desk.incidents.observed(run.operation.payload["observation"])
        except NotFound:
            return "the report was tidied away"
        if seen.state != FAILED:
            return "it is only told"
        meaning = _meaning(seen)
        if meaning is None:
            return f"nothing is done about {seen.subject}"
        try:
            member = desk.incidents.member(seen.host)
        except Conflict as several:
            return several.message
        if member is None:
            return f"{seen.host} is in no segment"
        if meaning.kind == GUEST and (why := self._over(seen) or self._not_there(run, seen)):
            return why
        details = {"observed": dict(seen.evidence), "payload": seen.payload()}
        # by a clock that is ahead everything would be later than what was done about it
        at = min(seen.since, run.operation.due_at)
        account = Account(
            *(meaning, member, at, details),
            observations=[seen.id],
            told_before=seen.told_before,
        )
        wait_for_the_last(desk, account)
        taken = take_in(desk, account, run.claim, desk.incidents.now())
        LOG.info("%s: %s", seen.subject, taken.sentence)
        return taken.sentence

    def _over(self, seen: Observed) -> str:
        """That it runs again by now, if somebody says so: what was held up on its way, or waited
        for a manager, is old."""
        if seen.over_since:
            return f"it runs again since {seen.over_since}, says {seen.observer}: {LEAVE_IT}"
        said = self._desk.incidents.risen(seen.subject)
        return f"{said}: {LEAVE_IT}" if said else ""

    def _not_there(self, run: Run, seen: Observed) -> str:
        """Why the cloud does not think that it is that host's guest; empty if it does."""
        try:
            server = self._desk.hands(run).servers.show(seen.name)
        except NotFound:
            return f"the cloud knows no server {seen.name}"
        if server.status in OFF_BY_WISH:
            return f"the cloud says that server {seen.name} shall be off: it is {server.status}"
        if not same(server.host or "", seen.host):
            return f"the cloud says that server {seen.name} is on {server.host or 'no host'}"
        if seen.still and not seen.still & {server.status, server.task_state}:
            return f"the cloud says that server {seen.name} is {server.status} now"
        return ""

    def give_up_at(self, operation: Operation) -> datetime | None:
        return operation.due_at + timedelta(seconds=self._desk.settings.give_up_s)

    def failed(self, run: Run, why: str) -> None:
        LOG.error("%s leads to nothing: %s", run.operation.subject, why)


def _meaning(seen: Observed) -> Meaning | None:
    if seen.kind == GUEST:
        return Meaning(
            GUEST, seen.subject, RECOVER, f"server {seen.name}: {seen.what}, says {seen.observer}"
        )
    if seen.kind == PROCESS and seen.name == NOVA_COMPUTE:
        subject = f"{PROCESS}:{seen.host}:{seen.name}"
        return Meaning(
            PROCESS, subject, RECOVER, f"{seen.name} stopped on {seen.host}, says {seen.observer}"
        )
    return None


def kinds(desk: Desk) -> dict[str, Kind]:
    return {OBSERVATION: Sort(desk)}
