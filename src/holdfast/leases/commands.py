# SPDX-License-Identifier: Apache-2.0
"""The Manager interface: each command, and how long it waits for its effect.

A command with an operation behind it (delete, enrol, withdraw) waits a while for that
operation, because callers expect to find it done. It does not fail when the cloud is slow: the
operation continues regardless.
"""

import math
import threading
from collections.abc import Callable, Mapping, Sequence

from holdfast.leases.booking import Leases
from holdfast.leases.hosts import Hosts
from holdfast.leases.repair import Repairs
from holdfast.leases.resources.floatingip import FloatingIps
from holdfast.model.errors import Conflict, NotFound, Unavailable
from holdfast.model.lease import LeaseChange, NewLease
from holdfast.model.observation import Expectation
from holdfast.model.operation import ERROR, OPEN
from holdfast.ports.ledger import Operations
from holdfast.ports.manager import Availability, AvailabilityQuery, Caller, Preview, RepairReport
from holdfast.ports.reports import ExpectedGuests
from holdfast.runtime.clock import Clock

#: Seconds to wait for the delete of a lease that has not begun: no server has to go.
UNUSED_S = 1.5


class Commands:
    def __init__(  # noqa: PLR0913  # one for each noun that has commands
        self,
        leases: Leases,
        hosts: Hosts,
        floatingips: FloatingIps,
        repairs: Repairs,
        operations: Operations,
        clock: Clock,
        *,
        name: str,
        wake: Callable[[], None],
        patience_s: Callable[[], float],
        know_host: Callable[[str], int],
        expected: ExpectedGuests,
    ) -> None:
        self._leases = leases
        self._hosts = hosts
        self._floatingips = floatingips
        self._repairs = repairs
        self._operations = operations
        self._clock = clock
        self._name = name
        self._wake = wake
        self._patience_s = patience_s
        self._know_host = know_host
        self._expected = expected

    def ping(self) -> str:
        return self._name

    def create_lease(self, caller: Caller, lease: NewLease) -> Preview | None:
        preview = self._leases.create(caller, lease)
        self._wake()
        return preview

    def update_lease(self, caller: Caller, lease_id: str, change: LeaseChange) -> Preview | None:
        preview = self._leases.update(caller, lease_id, change)
        self._wake()
        return preview

    def availability(self, caller: Caller, query: AvailabilityQuery) -> Availability:
        return self._leases.availability(caller, query)

    def replace_host(
        self, caller: Caller, lease_id: str, reservation_id: str, host_id: int
    ) -> None:
        self._leases.replace_host(caller, lease_id, reservation_id, host_id)

    def acknowledge(self, caller: Caller, lease_id: str) -> None:
        self._repairs.acknowledge(caller, lease_id)

    def plan_repair(
        self, caller: Caller, hosts: Sequence[str] = (), racks: Sequence[str] = ()
    ) -> RepairReport:
        return self._repairs.plan(hosts, racks)

    def run_repair(
        self, caller: Caller, approve: bool = False, reason: str = "", domain: str = ""
    ) -> RepairReport:
        """Plan a repair and make the repair job due; return the plan."""
        if approve:
            self._repairs.approve(caller, reason, domain)
        report = self._repairs.plan((), ())
        self._repairs.expedite()
        self._wake()
        return report

    def delete_lease(self, caller: Caller, lease_id: str) -> None:
        key, status = self._leases.delete(caller, lease_id)
        self._wait(key, UNUSED_S if status in ("PENDING", "STARTING") else math.inf)

    def enrol_host(self, caller: Caller, name: str, capabilities: Mapping[str, str]) -> int:
        host_id, key = self._hosts.enrol(name, capabilities)
        self._wait(key)
        return host_id

    def know_host(self, caller: Caller, name: str) -> int:
        return self._know_host(name)

    def expected(self, caller: Caller, host: str, also: Sequence[str] = ()) -> Expectation:
        return self._expected.expected(host, also)

    def describe_host(
        self, caller: Caller, host_id: int, capabilities: Mapping[str, str | None]
    ) -> None:
        self._hosts.describe(host_id, capabilities)

    def withdraw_host(self, caller: Caller, host_id: int) -> None:
        self._wait(self._hosts.withdraw(host_id))

    def set_property(self, caller: Caller, name: str, private: bool) -> None:
        self._hosts.set_property(name, private)

    def enrol_floatingip(self, caller: Caller, network_id: str, address: str) -> str:
        return self._floatingips.enrol(network_id, address)

    def withdraw_floatingip(self, caller: Caller, floatingip_id: str) -> None:
        self._floatingips.withdraw(floatingip_id)

    def _wait(self, key: str, most_s: float = math.inf) -> None:
        """Wait until the operation is done or the patience ends; raise Conflict if it failed."""
        self._wake()
        never = threading.Event()
        deadline = self._clock.monotonic() + min(self._patience_s(), most_s)
        pause = 0.005
        while self._clock.monotonic() < deadline:
            try:
                operation = self._operations.by_key(key)
            except NotFound:
                return
            except Unavailable:  # the operation is stored: the caller need not repeat the command
                self._clock.wait(never, pause)
                continue
            if operation.status == ERROR:
                raise Conflict(operation.sentence)
            if operation.status not in OPEN:
                return
            self._clock.wait(never, pause)
            pause = min(pause * 1.5, 0.2)
