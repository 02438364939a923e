# SPDX-License-Identifier: Apache-2.0
"""The commands that must answer now. In process or by RPC, the interface is this one.

Arguments and results are plain values; errors are `model.errors`. Reads are not commands: the API
takes them straight from the database. A command carries ids chosen by the caller, so that the same
command sent twice is one command.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from holdfast.model.caller import Caller


@dataclass(frozen=True)
class NewReservation:
    resource_type: str
    spec: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class NewLease:
    """`start` None means now, `end` None too (an update's "end it now")."""

    id: str
    name: str
    start: datetime | None
    end: datetime | None
    before_end: datetime | None = None
    reservations: tuple[NewReservation, ...] = ()


@dataclass(frozen=True)
class LeaseChange:
    """What an update names; None leaves a thing as it is."""

    name: str | None = None
    start: datetime | None = None
    start_now: bool = False
    end: datetime | None = None
    end_now: bool = False
    before_end: datetime | None = None
    reservations: Mapping[str, dict[str, Any]] = field(default_factory=dict)


class Manager(Protocol):
    def ping(self) -> str:
        """The answering manager's name."""
        ...

    def create_lease(self, caller: Caller, lease: NewLease) -> None: ...

    def update_lease(self, caller: Caller, lease_id: str, change: LeaseChange) -> None: ...

    def delete_lease(self, caller: Caller, lease_id: str) -> None: ...

    def enrol_host(self, caller: Caller, name: str, capabilities: Mapping[str, str]) -> int:
        """The new host's id."""
        ...

    def describe_host(
        self, caller: Caller, host_id: int, capabilities: Mapping[str, str | None]
    ) -> None: ...

    def withdraw_host(self, caller: Caller, host_id: int) -> None: ...

    def set_property(self, caller: Caller, name: str, private: bool) -> None: ...
