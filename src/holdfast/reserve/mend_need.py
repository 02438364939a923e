# SPDX-License-Identifier: Apache-2.0
"""What a reservation needs in the place of what failed, in words that hold for every resource type.

A type says it once (`Resource.need`); then one plan can weigh the needs of all of them together.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

from holdfast.model.host import Host
from holdfast.model.lease import Allocation, Window
from holdfast.reserve.conditions import Condition

#: Of hosts that are free, best first, those to take: beside the ones that are kept, and so many.
Arrange = Callable[[Sequence[Host], Sequence[Host], int], Sequence[Host]]


class How(Enum):
    """How the units of one reservation lie: never two on a host, all on one, or as it comes."""

    APART = "apart"
    TOGETHER = "together"
    ANYWHERE = "anywhere"


@dataclass(frozen=True)
class Need:
    """So many units for a time: whole hosts (`size` None), or slots that take `size` each."""

    held: Window
    units: int
    size: Mapping[str, int] | None = None
    where: tuple[Condition, ...] = ()
    how: How = How.APART
    besides: frozenset[int] = frozenset()  # where it has something already that it keeps
    arrange: Arrange | None = field(default=None, compare=False)  # spread or packed

    @cached_property
    def start(self) -> float:
        return self.held.start.timestamp()

    @cached_property
    def end(self) -> float:
        return self.held.end.timestamp()

    @property
    def spots(self) -> int:
        """On how many hosts it can be in the way of others, at most."""
        return 1 if self.how is How.TOGETHER else self.units

    @property
    def what(self) -> str:
        return "hosts" if self.size is None else "slots"

    def meets(self, other: "Need") -> bool:
        return self.start < other.end and other.start < self.end

    def allocations(self, chosen: Mapping[int, int]) -> tuple[Allocation, ...]:
        """What to hold, given how many units go to which host."""
        if self.size is None:
            return tuple(Allocation(host_id, self.held) for host_id in sorted(chosen))
        size = self.size.items()
        return tuple(
            Allocation(host_id, self.held, units, {name: units * n for name, n in size})
            for host_id, units in sorted(chosen.items())
        )
