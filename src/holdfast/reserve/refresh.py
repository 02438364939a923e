# SPDX-License-Identifier: Apache-2.0
"""Enrolled hosts are read again from the cloud: sizes, zones, inventories and traits change.

One row of durable work that never ends, so that of all managers one does it. Hosts come one after
the other, in short turns: never more than one call is on its way, and a manager that is to stop
waits for one turn only. What a host has already promised stays promised if it becomes smaller.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from holdfast.model.errors import Conflict, NotFound
from holdfast.model.host import Host
from holdfast.model.operation import Operation
from holdfast.ports.cloud import Cloud
from holdfast.reserve.due import Desk
from holdfast.work.kind import Kind, NotYet, Run, Step

LOG = logging.getLogger(__name__)

REFRESH = "hosts_refresh"
#: How long a turn lasts.
TURN = timedelta(seconds=5)
#: How many hosts are taken from the book at a time.
PORTION = 200
#: Switched off, it looks so often whether it has been switched on.
OFF_S = 60.0


class Settings(Protocol):
    """[reservation], read anew each time."""

    host_refresh_s: float


@dataclass
class _Round:
    """How far this manager has come; another one that takes over begins its own."""

    after: int = 0
    seen: int = 0
    changed: int = 0

    def __str__(self) -> str:
        return f"{self.seen} hosts read again, {self.changed} of them changed"


class HostsRefresh:
    name = REFRESH
    stubborn = True

    def __init__(self, desk: Desk, settings: Settings) -> None:
        self._desk = desk
        self._settings = settings
        self._round = _Round()

    def steps(self) -> Sequence[Step]:
        return (Step("read", self.read, kept=False),)

    def read(self, run: Run) -> str:
        """Go on with the round; it never ends but by NotYet."""
        if not self._settings.host_refresh_s:
            raise NotYet("hosts are not read again: [reservation] host_refresh_s is 0", OFF_S)
        ledger, cloud = self._desk.ledger, self._desk.hands(run).cloud
        until = ledger.now() + TURN
        while some := ledger.enrolled(after=self._round.after, most=PORTION):
            for host in some:  # one at least, however long the look took
                self._round.after = host.id  # first: one that always fails must not stop the others
                self._read_one(cloud, host)
                if ledger.now() >= until:
                    raise NotYet(f"{self._round} so far", 0.1)
        said, self._round = str(self._round), _Round()
        raise NotYet(said, self._settings.host_refresh_s)

    def _read_one(self, cloud: Cloud, host: Host) -> None:
        """DriverError if the cloud does not answer: later goes on with the next host."""
        try:
            found = cloud.hosts.find(host.hypervisor_hostname)
        except (NotFound, Conflict) as lost:
            LOG.warning("host %s: not read again: %s", host.hypervisor_hostname, lost.message)
            return
        if found.uuid != host.uuid:
            LOG.warning(
                "host %s is another one now (%s, not %s): withdraw it and enrol it again",
                *(host.hypervisor_hostname, found.uuid, host.uuid),
            )
            return
        self._round.seen += 1
        if self._desk.ledger.refresh(host.id, found):
            self._round.changed += 1
            LOG.info("host %s: the cloud describes it anew", host.hypervisor_hostname)

    def give_up_at(self, operation: Operation) -> datetime | None:
        return None

    def failed(self, run: Run, why: str) -> None:
        LOG.error("%s: %s", run.operation.key, why)


def kinds(desk: Desk, settings: Settings) -> dict[str, Kind]:
    return {REFRESH: HostsRefresh(desk, settings)}
