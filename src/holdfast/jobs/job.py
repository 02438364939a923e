# SPDX-License-Identifier: Apache-2.0
"""Durable jobs: the interface of job kinds and steps, and the claim guard for cloud calls.

A step reads the current state before it acts, so running it twice has the effect of running it
once. A step returns a sentence that says what it did, `Skipped` if it had nothing to do, or
raises NotYet when the cloud needs more time.
"""

import functools
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, ParamSpec, Protocol, TypeVar

from holdfast.model.errors import DriverError
from holdfast.model.operation import Claim, Operation
from holdfast.ports.cloud import (
    Addresses,
    Cloud,
    Flavors,
    Hosts,
    Moves,
    Pools,
    Servers,
    Services,
    Slots,
    Volumes,
)


class NotYet(Exception):
    """The job is not finished and nothing failed: the runner tries again after `seconds`."""

    def __init__(self, sentence: str, seconds: float = 0.5) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.seconds = seconds


@dataclass(frozen=True)
class Run:
    """A manager's attempt at an operation.

    `hold(seconds)` ensures that the claim lasts at least `seconds` more. It raises ClaimLost
    when another manager owns the operation.
    """

    operation: Operation
    claim: Claim
    hold: Callable[[float], None]
    memo: dict[str, Any] = field(default_factory=dict)  # state shared by the steps of this attempt


@dataclass(frozen=True)
class Step:
    name: str
    run: Callable[[Run], str]
    recorded: bool = True  # record the step in the database; False where its effect is itself a row
    pre_due: bool = False  # run before the operation is due; skip once it is due


class Kind(Protocol):
    name: str
    retry_forever: bool  # retry after every failure, not only after transient ones

    def steps(self) -> Sequence[Step]: ...

    def give_up_at(self, operation: Operation) -> datetime | None:
        """Return the time after which the runner neither retries nor waits; None: no limit."""
        ...

    def failed(self, run: Run, why: str) -> bool | None:
        """Record the failure; the runner closes the operation afterwards.

        True means that another attempt follows by itself. Any other value means that nothing
        retries it.
        """
        ...


_NAMES = uuid.UUID("0d5c5a52-7a53-4b39-8f57-3c2b1c1f6f0a")


def never_ending(kind: str, now: datetime) -> Operation:
    """Make the single row of a periodic job, which reschedules itself with NotYet.

    Because all managers share the row, one manager at a time runs the job.
    """
    return Operation(
        id=str(uuid.uuid5(_NAMES, kind)),
        kind=kind,
        subject=kind,
        key=kind,
        due_at=now,
        next_try_at=now,
    )


# Cloud calls under a claim.
#
# The epoch stops a late writer at the database, but it cannot stop a cloud call that is already
# on its way. Therefore no call starts unless the claim is sure to last until the call has
# ended, with success or by timeout.


#: Added to the call's timeout: the time until the operating system schedules the thread again.
MARGIN_S = 1.0


def guarded(cloud: Cloud, hold: Callable[[float], None]) -> Cloud:
    """Wrap a cloud: every call of every port first renews the claim to outlast the call."""
    return _GuardedCloud(cloud, _Guard(cloud, hold))


P = ParamSpec("P")
R = TypeVar("R")


class _Guard:
    """Wraps a method of a port: the call first renews the claim.

    The classes below name every method of every port. mypy refuses `guarded` as soon as a port has
    a method that its class here does not wrap.
    """

    def __init__(self, cloud: Cloud, hold: Callable[[float], None]) -> None:
        self._cloud = cloud
        self._hold = hold

    def __call__(self, method: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(method)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            self._hold(self._cloud.call_timeout_s + MARGIN_S)
            return method(*args, **kwargs)

        return call


#: How often a call is repeated that failed at once; slower failures are timeouts.
REPEATS, AT_ONCE = 3, timedelta(seconds=1)


def repeated(cloud: Cloud, now: Callable[[], datetime]) -> Cloud:
    """Wrap a cloud: a call that failed at once is repeated.

    Only for steps whose every call may run twice.
    """
    return _GuardedCloud(cloud, _Repeater(cloud, now))


class _Repeater(_Guard):
    """Wraps a method of a port: the call is repeated after a transient failure."""

    def __init__(self, cloud: Cloud, now: Callable[[], datetime]) -> None:
        super().__init__(cloud, lambda _seconds: None)
        self._now = now

    def __call__(self, method: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(method)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            for _ in range(REPEATS):
                began = self._now()
                try:
                    return method(*args, **kwargs)
                except DriverError as error:
                    if not error.retryable or self._now() - began > AT_ONCE:
                        raise
            return method(*args, **kwargs)

        return call


class _GuardedCloud:
    def __init__(self, cloud: Cloud, guard: _Guard) -> None:
        self.call_timeout_s = cloud.call_timeout_s
        self.close = guard(cloud.close)
        self._cloud = cloud
        self._guard = guard

    @property
    def hosts(self) -> Hosts:
        return _GuardedHosts(self._cloud.hosts, self._guard)

    @property
    def pools(self) -> Pools:
        return _GuardedPools(self._cloud.pools, self._guard)

    @property
    def servers(self) -> Servers:
        return _GuardedServers(self._cloud.servers, self._guard)

    @property
    def moves(self) -> Moves:
        return _GuardedMoves(self._cloud.moves, self._guard)

    @property
    def services(self) -> Services:
        return _GuardedServices(self._cloud.services, self._guard)

    @property
    def flavors(self) -> Flavors:
        return _GuardedFlavors(self._cloud.flavors, self._guard)

    @property
    def slots(self) -> Slots:
        return _GuardedSlots(self._cloud.slots, self._guard)

    @property
    def addresses(self) -> Addresses:
        return _GuardedAddresses(self._cloud.addresses, self._guard)

    @property
    def volumes(self) -> Volumes:
        return _GuardedVolumes(self._cloud.volumes, self._guard)


class _GuardedHosts:
    def __init__(self, hosts: Hosts, guard: _Guard) -> None:
        self.list = guard(hosts.list)
        self.find = guard(hosts.find)


class _GuardedPools:
    def __init__(self, pools: Pools, guard: _Guard) -> None:
        self.list = guard(pools.list)
        self.find = guard(pools.find)
        self.create = guard(pools.create)
        self.set_metadata = guard(pools.set_metadata)
        self.resync = guard(pools.resync)
        self.add_host = guard(pools.add_host)
        self.remove_host = guard(pools.remove_host)
        self.rename = guard(pools.rename)
        self.delete = guard(pools.delete)


class _GuardedServers:
    def __init__(self, servers: Servers, guard: _Guard) -> None:
        self.list = guard(servers.list)
        self.show = guard(servers.show)
        self.delete = guard(servers.delete)
        self.stop = guard(servers.stop)
        self.start = guard(servers.start)
        self.suspend = guard(servers.suspend)
        self.shelve = guard(servers.shelve)
        self.unshelve = guard(servers.unshelve)
        self.snapshot = guard(servers.snapshot)
        self.images = guard(servers.images)
        self.image_properties = guard(servers.image_properties)
        self.lock = guard(servers.lock)
        self.unlock = guard(servers.unlock)
        self.reset = guard(servers.reset)


class _GuardedMoves:
    def __init__(self, moves: Moves, guard: _Guard) -> None:
        self.evacuate = guard(moves.evacuate)
        self.live_migrate = guard(moves.live_migrate)
        self.migrations = guard(moves.migrations)


class _GuardedServices:
    def __init__(self, services: Services, guard: _Guard) -> None:
        self.list = guard(services.list)
        self.disable = guard(services.disable)
        self.enable = guard(services.enable)
        self.force_down = guard(services.force_down)
        self.unforce = guard(services.unforce)


class _GuardedFlavors:
    def __init__(self, flavors: Flavors, guard: _Guard) -> None:
        self.list = guard(flavors.list)
        self.show = guard(flavors.show)
        self.create = guard(flavors.create)
        self.delete = guard(flavors.delete)
        self.add_access = guard(flavors.add_access)
        self.remove_access = guard(flavors.remove_access)


class _GuardedSlots:
    def __init__(self, slots: Slots, guard: _Guard) -> None:
        self.inventory = guard(slots.inventory)
        self.set_inventory = guard(slots.set_inventory)
        self.drop_class = guard(slots.drop_class)
        self.create_group = guard(slots.create_group)
        self.check_role = guard(slots.check_role)
        self.without_role = guard(slots.without_role)
        self.groups = guard(slots.groups)
        self.delete_group = guard(slots.delete_group)


class _GuardedAddresses:
    def __init__(self, addresses: Addresses, guard: _Guard) -> None:
        self.list = guard(addresses.list)
        self.create = guard(addresses.create)
        self.delete = guard(addresses.delete)
        self.subnets = guard(addresses.subnets)


class _GuardedVolumes:
    def __init__(self, volumes: Volumes, guard: _Guard) -> None:
        self.list = guard(volumes.list)
