# SPDX-License-Identifier: Apache-2.0
"""The book of hosts, leases and allocations as the reserve package needs it.

Every write is one transaction: it takes the rows of the hosts it uses, checks that nobody holds
them in the window, and writes all or nothing. `NotEnoughHosts` never comes from here; a lost race
is a `StaleWrite` and the caller looks again.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from holdfast.model.host import Host
from holdfast.model.lease import Lease, Window
from holdfast.model.operation import Claim, Operation
from holdfast.ports.cloud import CloudHost


@dataclass(frozen=True)
class Work:
    """What a save does to the durable work of its subject."""

    add: tuple[Operation, ...] = ()
    put: tuple[Operation, ...] = ()  # the row of the same key is armed again
    cancel: frozenset[str] = frozenset()  # kinds


class Ledger(Protocol):
    def now(self) -> datetime: ...

    # leases
    def lease(self, lease_id: str) -> Lease: ...

    def book(self, lease: Lease, work: Work) -> None:
        """Write a new lease with its allocations and its work."""
        ...

    def save(
        self,
        old: Lease,
        new: Lease,
        *,
        work: Work | None = None,
        claim: Claim | None = None,
        say: str = "",
    ) -> Lease:
        """Write the step from old to new; under a claim, only while it is ours."""
        ...

    def erase(self, lease: Lease, *, claim: Claim, say: str, work: Work | None = None) -> None:
        """Remove a lease and all it held; its story stays in the audit."""
        ...

    # hosts
    def host(self, ref: str) -> Host:
        """An enrolled host by id, uuid or name; NotFound."""
        ...

    def free_hosts(
        self,
        window: Window,
        *,
        besides: str | None = None,
        keys: Collection[str] = (),
    ) -> Sequence[tuple[Host, bool]]:
        """Reservable hosts, each with whether it is free in the window (`besides` a lease).

        Of the capabilities, only those named by `keys` are read.
        """
        ...

    def not_given_back(self, ids: Collection[int], *, besides: str) -> Collection[str]:
        """Names of leases that are over and whose end has not returned these hosts yet."""
        ...

    def enrol(
        self, host: CloudHost, region: str, extras: Mapping[str, str], work: Work
    ) -> Host: ...

    def describe(self, host_id: int, extras: Mapping[str, str | None]) -> None:
        """Set extra capabilities, remove those that are None; Conflict if one is in use."""
        ...

    def set_reservable(self, host_id: int, reservable: bool, *, claim: Claim) -> None: ...

    def withdraw(self, host_id: int, work: Work) -> None:
        """Take a host out of reservation; HostInUse while a lease holds or will hold it."""
        ...

    def set_property(self, name: str, private: bool) -> None: ...
