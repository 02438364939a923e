# SPDX-License-Identifier: Apache-2.0
"""Where standings are kept, so that of several managers only one decides.

A `Change` is written only if the standing is still the `old` one. What takes a host out of use, or
back, is written together with the work that follows from it: both, or neither.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from holdfast.model.operation import Operation
from holdfast.model.standing import Standing

#: The work that follows when a host goes out of use or comes back: one row, armed again.
Repair = Callable[[datetime], Operation]


@dataclass(frozen=True, slots=True)
class Watched:
    """A host as far as watching goes."""

    id: int
    name: str  # of its service, normalised
    hypervisor_hostname: str
    standing: Standing


@dataclass(frozen=True, slots=True)
class Change:
    """One step of one host; `say` is its sentence in the audit, empty for none."""

    host_id: int
    old: Standing
    new: Standing
    say: str = ""


@dataclass(frozen=True, slots=True)
class SetAside:
    """A message that a monitor could not digest."""

    at: datetime
    monitor: str
    message_id: str
    event_type: str
    why: str
    message: Mapping[str, object]


class Standings(Protocol):
    def now(self) -> datetime:
        """The database's clock: the one that all managers share."""
        ...

    def watched(self) -> Sequence[Watched]:
        """All hosts, by id."""
        ...

    def change(self, changes: Sequence[Change], repair: Repair | None) -> set[int]:
        """Write these, all in one go; the ids of those that somebody else changed meanwhile, which
        are left out. Where a host goes out of use or comes back, `repair` is armed as well."""
        ...

    def by_state(self) -> Mapping[str, int]:
        """How many hosts stand how."""
        ...

    def hasten(self, key: str) -> bool:
        """Make the open work of that key due now; False while somebody is at it."""
        ...

    def set_aside(self, message: SetAside) -> None:
        """Keep it for people to look at; the oldest go when there are too many."""
        ...

    def all_set_aside(self, most: int) -> Sequence[SetAside]:
        """The newest first."""
        ...
