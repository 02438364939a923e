# SPDX-License-Identifier: Apache-2.0
"""A compute host: the row shared by reservation, monitoring and recovery."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from holdfast.hoststatus.status import USABLE


def normalise(name: str) -> str:
    """Return a host name in stored form: lower case, no trailing dot."""
    return name.strip().rstrip(".").lower()


def short(name: str) -> str:
    """Return the first label of a host name."""
    return normalise(name).split(".", 1)[0]


def same(name: str, other: str) -> bool:
    """Whether two names mean the same host: equal, or one the short form of the other."""
    a, b = normalise(name), normalise(other)
    return a == b or (("." not in a or "." not in b) and short(a) == short(b))


@dataclass(frozen=True, slots=True)
class Inventory:
    """The amount of a resource class on a host, as Placement counts it."""

    total: int
    reserved: int = 0
    ratio: float = 1.0
    most: int | None = None  # the most that one server may take

    @property
    def capacity(self) -> int:
        return max(0, int((self.total - self.reserved) * self.ratio))


@dataclass(frozen=True, slots=True)
class Size:
    """CPU, memory and disk of a host, or of several hosts together."""

    vcpus: int = 0
    memory_mb: int = 0
    local_gb: int = 0

    def __add__(self, other: "Size") -> "Size":
        return Size(
            self.vcpus + other.vcpus,
            self.memory_mb + other.memory_mb,
            self.local_gb + other.local_gb,
        )


#: Wire names of a host's own columns.
_COLUMNS = {
    "id": "id",
    "vcpus": "vcpus",
    "memory_mb": "memory_mb",
    "local_gb": "local_gb",
    "cpu_info": "cpu_info",
    "hypervisor_hostname": "hypervisor_hostname",
    "hypervisor_type": "hypervisor_type",
    "hypervisor_version": "hypervisor_version",
    "service_name": "service_host",
    "availability_zone": "zone",
    "region": "region",
    "rack": "rack",
}
#: Columns that an extra capability of the same name replaces in conditions.
_REPLACEABLE = frozenset(["rack", "region"])
#: Amounts left for servers: resource classes, and the column to use while no inventory is
#: known.
AMOUNTS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "cpu_cores": (("VCPU", "PCPU"), "vcpus"),
    "free_ram_mb": (("MEMORY_MB",), "memory_mb"),
    "free_disk_gb": (("DISK_GB",), "local_gb"),
}
Fact = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Host:
    """A host in the database.

    `generation` counts the bookings that touched it.
    """

    id: int
    uuid: str
    name: str
    hypervisor_hostname: str
    service_host: str
    hypervisor_type: str = ""
    hypervisor_version: int = 0
    cpu_info: str = "{}"
    region: str = ""
    zone: str = ""
    rack: str = ""
    vcpus: int = 0
    memory_mb: int = 0
    local_gb: int = 0
    enrolled: bool = False
    reservable: bool = False
    state: str = "up"  # hoststatus/status.py decides it
    generation: int = 0
    created_at: datetime | None = None
    updated_at: datetime | None = None
    capabilities: Mapping[str, str] = field(default_factory=dict)
    inventories: Mapping[str, Inventory] = field(default_factory=dict)
    traits: frozenset[str] = frozenset()

    @property
    def usable(self) -> bool:
        """Whether the host is not known to have failed; only a usable host takes reservations."""
        return self.state in USABLE

    def capacity(self) -> Mapping[str, int]:
        """Return the capacity for slots, by resource class."""
        return {name: inventory.capacity for name, inventory in self.inventories.items()}

    def fact(self, name: str) -> Fact | None:
        """Return a fact of the host by name; None when the host has no such fact."""
        column, extra = _COLUMNS.get(name), self.capabilities.get(name)
        if column is not None and (extra is None or name not in _REPLACEABLE):
            fact: Fact = getattr(self, column)
            return fact
        return extra if extra is not None or name not in AMOUNTS else self.amount(name)

    def amount(self, name: str) -> int:
        """Return the amount available to servers: from Placement inventories when they are
        known."""
        classes, column = AMOUNTS[name]
        inventories = [self.inventories[class_] for class_ in classes if class_ in self.inventories]
        if not inventories:
            return int(getattr(self, column))
        return max(0, sum(inventory.total - inventory.reserved for inventory in inventories))

    def facts(self) -> dict[str, Fact]:
        """Return all facts for property expressions: columns, amounts and extra capabilities."""
        amounts = {name: self.amount(name) for name in AMOUNTS}
        columns = {name: getattr(self, column) for name, column in _COLUMNS.items()}
        replaced = {k: v for k, v in self.capabilities.items() if k in _REPLACEABLE}
        return {**amounts, **self.capabilities, **columns, **replaced}


#: Names that an extra capability may not have: they are the host's own columns on the wire.
RESERVED_NAMES = frozenset(
    [
        "id",
        "uuid",
        "name",
        "vcpus",
        "cpu_info",
        "hypervisor_type",
        "hypervisor_version",
        "hypervisor_hostname",
        "service_name",
        "memory_mb",
        "local_gb",
        "status",
        "availability_zone",
        "trust_id",
        "reservable",
        "created_at",
        "updated_at",
    ]
)
