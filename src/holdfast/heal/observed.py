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
from dataclasses import replace
from datetime import datetime, timedelta

from holdfast.heal.desk import Desk
from holdfast.heal.guards import LEAVE_IT
from holdfast.heal.intake import take_in, wait_for_the_last
from holdfast.heal.server_location import (
    BUSY_S,
    crashed_at,
    server_of,
    why_elsewhere,
    why_not_there,
)
from holdfast.model.errors import Conflict, NotFound
from holdfast.model.incident import GUEST, NOVA_COMPUTE, PROCESS, RECOVER, Meaning
from holdfast.model.observed import ALARM, FAILED, OBSERVATION, Observed
from holdfast.model.operation import Operation
from holdfast.ports.cloud import Server
from holdfast.ports.recovery import Account
from holdfast.work.kind import Kind, NotYet, Run, Step

LOG = logging.getLogger(__name__)


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
        if seen.kind == ALARM:
            return self._alarm(run, seen)
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
        received_at = run.operation.due_at
        at = min(seen.since, received_at)
        account = Account(
            *(meaning, member, at, details),
            observations=[seen.id],
            told_before=min(seen.told_before or at, at) if seen.told_before else None,
        )
        wait_for_the_last(desk, account)
        if meaning.kind == GUEST:
            crashed = crashed_at(desk, run, meaning.subject, seen.since, received_at)
            account = replace(account, at=crashed)
        taken = take_in(desk, account, run.claim, desk.incidents.now())
        LOG.info("%s: %s", seen.subject, taken.sentence)
        return taken.sentence

    def _alarm(self, run: Run, seen: Observed) -> str:
        """An agent's token speaks for its host only: an alarm about a server that the cloud has
        elsewhere leads to nothing."""
        server = server_of(self._desk, run, seen.name)
        why = _why_not_its(seen, server)
        if self._desk.incidents.ingest_alarm(seen.id, run.claim, is_there=not why):
            self._desk.ring()
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
        incidents = self._desk.incidents
        said = incidents.risen(seen.subject, seen.host, observer=seen.observer)
        return f"{said}: {LEAVE_IT}" if said else ""

    def _not_there(self, run: Run, seen: Observed) -> str:
        """Why the cloud does not think that it is that host's guest; empty if it does."""
        server = server_of(self._desk, run, seen.name)
        why = why_not_there(seen.name, server, seen.host)
        if server is None or why:
            return why
        if seen.still and not seen.still & {server.status, server.task_state}:
            return f"the cloud says that server {seen.name} is {server.status} now"
        return ""

    def give_up_at(self, operation: Operation) -> datetime | None:
        return operation.due_at + timedelta(seconds=self._desk.settings.give_up_s)

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
