# SPDX-License-Identifier: Apache-2.0
"""What an agent saw on its host, a guest that died or a service that does not run, becomes an
incident by the same road as every other report.

An agent speaks of its own host only; that the guest is there is asked of the cloud: a report about
a server that was moved, deleted or never was there leads to nothing.
"""

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta

from holdfast.heal.desk import Desk
from holdfast.heal.intake import take_in
from holdfast.model.errors import Conflict, NotFound
from holdfast.model.host import same
from holdfast.model.incident import GUEST, NOVA_COMPUTE, PROCESS, RECOVER, Meaning
from holdfast.model.observed import FAILED, OBSERVATION, Observed
from holdfast.model.operation import Operation
from holdfast.ports.recovery import Account
from holdfast.work.kind import Kind, Run, Step

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
        if meaning.kind == GUEST and (why := self._not_there(run, seen)):
            return why
        details = {"observed": dict(seen.evidence), "payload": seen.payload()}
        account = Account(meaning, member, seen.since, details, observations=[seen.id])
        taken = take_in(desk, account, run.claim, desk.incidents.now())
        LOG.info("%s: %s", seen.subject, taken.sentence)
        return taken.sentence

    def _not_there(self, run: Run, seen: Observed) -> str:
        """Why the cloud does not think that it is that host's guest; empty if it does."""
        try:
            server = self._desk.hands(run).servers.show(seen.name)
        except NotFound:
            return f"the cloud knows no server {seen.name}"
        if same(server.host or "", seen.host):
            return ""
        return f"the cloud says that server {seen.name} is on {server.host or 'no host'}"

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
