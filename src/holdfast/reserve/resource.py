# SPDX-License-Identifier: Apache-2.0
"""What a resource type must know: a third party adds one with this Protocol and one entry point.

    [project.entry-points."holdfast.resources"]
    "physical:host" = "holdfast.reserve.resources.host:HostResource"

`plan` is asked inside a loop that looks, plans and books until nobody was faster. The effects are
called from durable steps: each may run twice and must then do nothing the second time.
"""

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, Protocol

from holdfast.model.errors import DriverError, NotFound
from holdfast.model.lease import Allocation, Lease, Reservation, Window
from holdfast.ports.cloud import Cloud
from holdfast.ports.ledger import Ledger
from holdfast.reserve.plan import Order
from holdfast.reserve.pools import KnownPools
from holdfast.work.kind import NotYet


class Options(Protocol):
    """The settings resources read, each time anew."""

    before_end: str
    preemptibles: bool


@dataclass(frozen=True)
class Hands:
    """What an effect works with: the cloud (guarded by the claim), the book, parallel calls."""

    cloud: Cloud
    ledger: Ledger
    calls: Executor
    known: KnownPools
    freepool: str
    options: Options

    @contextlib.contextmanager
    def pool(self, name: str, metadata: Mapping[str, str] | None = None) -> Iterator[str]:
        """The id of the pool of that name, made if need be, remembered until it proves wrong."""
        remembered = name in self.known
        try:
            yield self.known.id_of(self.cloud.pools, name, metadata or {})
        except NotFound as gone:
            self.known.forget(name)
            if remembered:
                raise NotYet(f"pool {name} is not what it was: {gone.message}", 0.1) from gone
            raise DriverError("cloud", gone.message, retryable=True) from gone

    def each(self, action: Callable[[str], None], names: Iterable[str]) -> None:
        """Do it for every name at once; the first failure is raised after all have ended."""
        names = list(names)
        if len(names) == 1:
            action(names[0])
            return
        futures = [self.calls.submit(action, name) for name in names]
        errors = [error for future in futures if (error := future.exception())]
        if errors:
            raise errors[0]


class Resource(Protocol):
    type: str

    def validate(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        """The normalised spec of a reservation, or InvalidInput naming the field."""
        ...

    def plan(
        self,
        spec: Mapping[str, Any],
        held: Window,
        ledger: Ledger,
        *,
        lease: Lease | None = None,
        reservation: Reservation | None = None,
        taken: Collection[int] = (),
        order: Order = float,
    ) -> tuple[Allocation, ...]:
        """What to hold in the window; NotEnoughHosts says why not."""
        ...

    def prepare(self, hands: Hands, lease: Lease, reservation: Reservation) -> str:
        """Make what can be made before the start."""
        ...

    def start(self, hands: Hands, lease: Lease, reservation: Reservation) -> str:
        """Make it usable: as few calls as can be, the lease is active when they return."""
        ...

    def settle(self, hands: Hands, lease: Lease, reservation: Reservation) -> str:
        """What belongs to a start and can follow once the lease is active."""
        ...

    def before_end(self, hands: Hands, lease: Lease, reservation: Reservation) -> str: ...

    def end(self, hands: Hands, lease: Lease, reservation: Reservation) -> str:
        """Give everything back; NotYet while the cloud is still at it."""
        ...
