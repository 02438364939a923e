# SPDX-License-Identifier: Apache-2.0
"""Hosts in reservation: enrol, withdraw, return after a failure, and refresh from the cloud.

Rows change at once; host aggregates (pools) change in durable steps.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from holdfast.jobs.job import Kind, NotYet, Run, Step
from holdfast.leases.lifecycle import LeaseContext
from holdfast.leases.resources.base import ensure_pool
from holdfast.model.errors import Conflict, HostInUse, InvalidInput, NotFound
from holdfast.model.host import RESERVED_NAMES, Host, same
from holdfast.model.operation import Operation
from holdfast.nova.names import KEPT, KEPT_POOL, OWNER, SERVER, SLOTS
from holdfast.ports.cloud import Cloud
from holdfast.ports.ledger import Work

ENROL, WITHDRAW, RETURN = "host_enrol", "host_withdraw", "host_return"
#: Seconds between checks of a failed host: at first, and at most.
POLL_S, RARELY_S = 10.0, 300.0
#: Seconds that the claim must cover for a write.
HOLD_S = 10.0
LONGEST_KEY = 64
LONGEST_VALUE = 4096


class Hosts:
    def __init__(self, context: LeaseContext, new_id: Callable[[], str], region: str) -> None:
        self._context = context
        self._new_id = new_id
        self._region = region

    def enrol(self, name: str, capabilities: Mapping[str, str]) -> tuple[int, str]:
        """Start to enrol a host of the cloud; return its id, and the key of the operation."""
        check_capabilities(capabilities)
        cloud_host = self._context.cloud.hosts.find(name)
        servers = self._context.in_the_way(self._context.cloud, cloud_host.service_host)
        if servers:
            raise HostInUse(
                f"host {cloud_host.hypervisor_hostname} has {len(servers)} servers;"
                " move them away before it can be reserved"
            )
        work = Work(
            put=self._operations(ENROL, cloud_host.uuid, cloud_host.service_host),
            cancel=frozenset({WITHDRAW, RETURN}),
        )
        host = self._context.ledger.enrol(cloud_host, self._region, capabilities, work)
        return host.id, f"{ENROL}/{cloud_host.uuid}"

    def describe(self, host_id: int, capabilities: Mapping[str, str | None]) -> None:
        if not capabilities:
            raise InvalidInput("No data to update: name at least one capability")
        check_capabilities(capabilities)
        self._context.ledger.host(str(host_id))
        self._context.ledger.describe(host_id, capabilities)

    def withdraw(self, host_id: int) -> str:
        """Start to withdraw a host; return the key of the operation."""
        host = self._context.ledger.host(str(host_id))
        work = Work(
            put=self._operations(WITHDRAW, host.uuid, host.service_host),
            cancel=frozenset({ENROL, RETURN}),
        )
        self._context.ledger.withdraw(host.id, work)
        return f"{WITHDRAW}/{host.uuid}"

    def keep_back(self, hosts: Iterable[Host], hold: Callable[[float], None]) -> None:
        """Block failed hosts for booking until they are healthy and empty."""
        for host in hosts:
            hold(HOLD_S)
            work = self._operations(RETURN, host.uuid, host.service_host)
            self._context.ledger.keep_back(host.id, Work(put=work))

    def let_back(self, hosts: Iterable[Host], hold: Callable[[float], None]) -> None:
        """Expedite the return of blocked hosts: healthy hosts need not wait for the next check."""
        for host in hosts:
            hold(HOLD_S)
            self._context.ledger.expedite(f"{RETURN}/{host.uuid}")

    def set_property(self, name: str, private: bool) -> None:
        self._context.ledger.set_property(name, private)

    def _operations(self, kind: str, uuid: str, service_host: str) -> tuple[Operation, ...]:
        now = self._context.ledger.now()
        return (
            Operation(
                id=self._new_id(),
                kind=kind,
                subject=f"host:{uuid}",
                key=f"{kind}/{uuid}",
                due_at=now,
                next_try_at=now,
                payload={"service_host": service_host},
            ),
        )


def check_capabilities(capabilities: Mapping[str, str | None]) -> None:
    for key, value in capabilities.items():
        if not key or len(key) > LONGEST_KEY:
            raise InvalidInput(f"Extra capability key too long: {key[:80]!r} (at most 64)")
        if key in RESERVED_NAMES:
            raise InvalidInput(f"{key}: is a column of the host, not an extra capability")
        if value is not None and len(value) > LONGEST_VALUE:
            raise InvalidInput(f"{key}: the value is longer than {LONGEST_VALUE} characters")


class _HostWork:
    name = ""
    retry_forever = False

    def __init__(self, context: LeaseContext) -> None:
        self.context = context

    def keep(self, run: Run) -> str:
        """Close the host to ordinary servers for as long as it is enrolled."""
        return self._add(run, KEPT_POOL, {KEPT: "yes"})

    def release(self, run: Run) -> str:
        return self._remove(run, KEPT_POOL, {KEPT: "yes"})

    def join(self, run: Run) -> str:
        return self._add(run, self.context.freepool, {})

    def leave(self, run: Run) -> str:
        return self._remove(run, self.context.freepool, {})

    def _add(self, run: Run, pool_name: str, metadata: Mapping[str, str]) -> str:
        pools, name = self.context.effects(run).cloud.pools, run.operation.payload["service_host"]
        pools.add_host(ensure_pool(pools, pool_name, metadata).id, name)
        return f"{name}: add_host {pool_name}"

    def _remove(self, run: Run, pool_name: str, metadata: Mapping[str, str]) -> str:
        pools, name = self.context.effects(run).cloud.pools, run.operation.payload["service_host"]
        pools.remove_host(ensure_pool(pools, pool_name, metadata).id, name)
        return f"{name}: remove_host {pool_name}"

    def if_there(self, step: Callable[[Run], str]) -> Callable[[Run], str]:
        def tried(run: Run) -> str:
            try:
                return step(run)
            except NotFound as gone:
                return f"nothing to leave: {gone.message}"

        return tried

    def give_up_at(self, operation: Operation) -> datetime | None:
        return None

    def failed(self, run: Run, why: str) -> None:
        """Write nothing: an enrolled host that never joined stays not reservable."""


class HostEnrol(_HostWork):
    name = ENROL

    def steps(self) -> Sequence[Step]:
        return (
            Step("keep", self.keep),
            Step("join", self.join),
            Step("open", self.open),
        )

    def open(self, run: Run) -> str:
        """Make the host reservable once it has no servers.

        The host is closed by now. A server that arrived since the first check must leave first,
        because the end of a lease would delete it.
        """
        name = run.operation.payload["service_host"]
        if servers := self.context.in_the_way(self.context.effects(run).cloud, name):
            raise NotYet(f"{name} has {len(servers)} servers that came before it joined", 5.0)
        host = self.context.ledger.host(run.operation.subject.removeprefix("host:"))
        self.context.ledger.set_reservable(host.id, True, claim=run.claim)
        return f"{host.hypervisor_hostname} can be reserved"


class HostReturn(_HostWork):
    """Job kind: return a failed host to reservation when healthy and empty.

    The host leaves the free pool, and the pools of reservations that got another host as soon
    as their servers are gone.
    """

    name = RETURN
    retry_forever = True

    def steps(self) -> Sequence[Step]:
        return (
            Step("leave", self.if_there(self.leave)),
            Step("wait", self.wait, recorded=False),
            Step("join", self.join_if_free, recorded=False),
            Step("open", self.open),
        )

    def wait(self, run: Run) -> str:
        """Wait until the host is healthy and empty.

        Servers of a reservation that still holds the host do not block: they are where they
        belong.
        """
        host, name = self._host(run), run.operation.payload["service_host"]
        cloud, holders = self.context.effects(run).cloud, self.context.ledger.holders(host.id)
        try:
            there = cloud.servers.list(host=name)
        except NotFound as gone:
            raise NotYet(f"{name} has failed: {gone.message}", RARELY_S) from gone
        left = ""
        for pool in cloud.pools.list():
            whole = OWNER in pool.metadata and not pool.metadata.keys() & {SLOTS, SERVER}
            mine = any(same(name, member) for member in pool.hosts)
            theirs = any(s.project_id == pool.metadata.get(OWNER) for s in there)
            if not whole or not mine or pool.name in holders:
                continue
            if theirs:  # of a reservation that got another host and still has servers here
                left = f"servers of reservation {pool.name} are on it"
            else:
                cloud.pools.remove_host(pool.id, name)
        if not host.usable:
            raise NotYet(f"{name} has failed and is not healthy yet", self._pause(run))
        if not holders and (servers := [s for s in there if self.context.stays(s)]):
            left = left or f"{len(servers)} servers are on it"
        if left:
            raise NotYet(f"{name} is healthy, but {left}", self._pause(run))
        return f"{name} is healthy again"

    def _pause(self, run: Run) -> float:
        """Return the pause: longer the longer the failure lasts; `let_back` expedites the job."""
        age = (self.context.ledger.now() - run.operation.due_at).total_seconds()
        return min(max(POLL_S, age / 10), RARELY_S)

    def join_if_free(self, run: Run) -> str:
        if any(self.context.ledger.holders(self._host(run).id).values()):
            return "its reservation has it"
        return self.join(run)

    def open(self, run: Run) -> str:
        host = self._host(run)
        self.context.ledger.set_reservable(host.id, True, claim=run.claim)
        return f"{host.hypervisor_hostname} can be reserved again"

    def _host(self, run: Run) -> Host:
        return self.context.ledger.host(run.operation.subject.removeprefix("host:"))


class HostWithdraw(_HostWork):
    """Job kind: withdraw a host; retried until success.

    Once the host is out of the list, no person can request the withdrawal again.
    """

    name = WITHDRAW
    retry_forever = True

    def steps(self) -> Sequence[Step]:
        return (
            Step("leave", self.if_there(self.leave)),
            Step("release", self.if_there(self.release)),
        )


def host_kinds(context: LeaseContext) -> dict[str, Kind]:
    made: list[Kind] = [HostEnrol(context), HostReturn(context), HostWithdraw(context)]
    return {kind.name: kind for kind in made}


# Refresh: read enrolled hosts again from the cloud, because sizes, zones, inventories and
# traits change.
#
# A periodic job, so that one manager at a time runs it. It reads hosts one after the other, in
# short turns: never more than one call is under way, and a manager that stops waits for one
# turn only. If a host becomes smaller, existing bookings on it stay.


LOG = logging.getLogger(__name__)

REFRESH = "hosts_refresh"
#: Length of a turn.
TURN = timedelta(seconds=5)
#: Hosts read from the database at a time.
PORTION = 200
#: Seconds between checks of the option while the refresh is off.
OFF_S = 60.0


class Settings(Protocol):
    """The `[reservation]` options, read anew at every use."""

    host_refresh_s: float


@dataclass
class _Round:
    """The progress of this manager; another manager that takes over starts its own round."""

    after: int = 0
    seen: int = 0
    changed: int = 0

    def __str__(self) -> str:
        return f"{self.seen} hosts read again, {self.changed} of them changed"


class HostsRefresh:
    name = REFRESH
    retry_forever = True

    def __init__(self, context: LeaseContext, settings: Settings, region: str) -> None:
        self._context = context
        self._settings = settings
        self._region = region
        self._round = _Round()

    def steps(self) -> Sequence[Step]:
        return (Step("read", self.read, recorded=False),)

    def read(self, run: Run) -> str:
        """Continue the round; always ends with NotYet."""
        if not self._settings.host_refresh_s:
            raise NotYet("hosts are not read again: [reservation] host_refresh_s is 0", OFF_S)
        ledger, cloud = self._context.ledger, self._context.effects(run).cloud
        until = ledger.now() + TURN
        while some := ledger.enrolled(after=self._round.after, most=PORTION):
            for host in some:  # at least one host, however long the query took
                # Set first: a host that always fails must not stop the others.
                self._round.after = host.id
                self._read_one(cloud, host)
                if ledger.now() >= until:
                    raise NotYet(f"{self._round} so far", 0.1)
        sentence, self._round = str(self._round), _Round()
        raise NotYet(sentence, self._settings.host_refresh_s)

    def _read_one(self, cloud: Cloud, host: Host) -> None:
        """Read a host from the cloud; after a DriverError the next run continues with the next
        host."""
        try:
            cloud_host = cloud.hosts.find(host.hypervisor_hostname)
        except (NotFound, Conflict) as lost:
            LOG.warning("host %s: not read again: %s", host.hypervisor_hostname, lost.message)
            return
        if cloud_host.uuid != host.uuid:
            LOG.warning(
                "host %s is another one now (%s, not %s): withdraw it and enrol it again",
                *(host.hypervisor_hostname, cloud_host.uuid, host.uuid),
            )
            return
        self._round.seen += 1
        if self._context.ledger.refresh(host.id, cloud_host, self._region):
            self._round.changed += 1
            LOG.info("host %s: the cloud describes it anew", host.hypervisor_hostname)

    def give_up_at(self, operation: Operation) -> datetime | None:
        return None

    def failed(self, run: Run, why: str) -> None:
        LOG.error("%s: %s", run.operation.key, why)


def refresh_kinds(context: LeaseContext, settings: Settings, region: str) -> dict[str, Kind]:
    return {REFRESH: HostsRefresh(context, settings, region)}
