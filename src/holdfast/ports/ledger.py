# SPDX-License-Identifier: Apache-2.0
"""Leases, hosts, durable work and retention in the database: stores and their values.

`Ledger` books hosts and leases for package `leases`, `Operations` serves the work runner,
`Tidy` removes old rows. SQL is their only implementation, so the names are the SQL classes for
the type checker; at run time no package of rules imports SQL.

Every write of the ledger is one transaction: it locks the rows of the hosts it uses, checks
that no other lease holds them in the window, and writes all or nothing. The ledger never raises
`NotEnoughHosts`; a lost race is a `StaleWrite`, and the caller reads and plans again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from holdfast.model.lease import Lease
from holdfast.model.operation import Operation

if TYPE_CHECKING:
    from holdfast.db import SqlLedger
    from holdfast.db.operations import OperationStore
    from holdfast.db.retention import TidyStore

    Ledger = SqlLedger
    Operations = OperationStore
    Tidy = TidyStore
else:
    Ledger = Operations = Tidy = object


@dataclass(frozen=True)
class Work:
    """Changes to the durable work of a subject, written in the same transaction as a save."""

    add: tuple[Operation, ...] = ()
    put: tuple[Operation, ...] = ()  # re-arms the row with the same key
    cancel: frozenset[str] = frozenset()  # kinds of operations


@dataclass(frozen=True)
class Change:
    """A step of a lease that is saved together with other steps."""

    old: Lease
    new: Lease
    work: Work | None = None
    say: str = ""


@dataclass(frozen=True)
class Obstacle:
    """A lease that holds a wanted host.

    For a lease of another project only its presence and end are known.
    """

    until: datetime
    hosts: int
    lease_id: str | None = None
    name: str | None = None


@dataclass(frozen=True)
class Limits:
    """Quota of a project for present and future leases; None means unlimited."""

    leases: int | None = None
    hosts: int | None = None
    host_hours: int | None = None


@dataclass(frozen=True)
class RightfulPool:
    """The expected members of the aggregate of a running reservation."""

    lease_id: str
    project_id: str
    hosts: frozenset[str]


@dataclass(frozen=True)
class Rightful:
    """The expected members of aggregates, except aggregates with a change under way.

    `reservations` holds pools of reservations by id, `free` the hosts of the free pool,
    `enrolled` the enrolled hosts, and `settled` the known hosts that are not moving between
    pools.
    """

    reservations: Mapping[str, RightfulPool]
    free: frozenset[str]
    enrolled: frozenset[str]
    settled: frozenset[str]
