# SPDX-License-Identifier: Apache-2.0
"""A compute host: the one row that reservation, monitoring and recovery share."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime


def normalise(name: str) -> str:
    """The form in which host names are kept: lower case, no trailing dot."""
    return name.strip().rstrip(".").lower()


def short(name: str) -> str:
    """The first label of a host name."""
    return normalise(name).split(".", 1)[0]


def same(one: str, other: str) -> bool:
    """Whether two names mean one host: equal, or one is the short form of the other."""
    a, b = normalise(one), normalise(other)
    return a == b or (("." not in a or "." not in b) and short(a) == short(b))


@dataclass(frozen=True)
class Host:
    """A host as Holdfast knows it. `generation` counts the bookings that touched it."""

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
    generation: int = 0
    created_at: datetime | None = None
    updated_at: datetime | None = None
    capabilities: Mapping[str, str] = field(default_factory=dict)

    def facts(self) -> dict[str, str | int | float | bool]:
        """What property expressions may ask about: columns and extra capabilities."""
        columns: dict[str, str | int | float | bool] = {
            "id": self.id,
            "vcpus": self.vcpus,
            "memory_mb": self.memory_mb,
            "local_gb": self.local_gb,
            "cpu_info": self.cpu_info,
            "hypervisor_hostname": self.hypervisor_hostname,
            "hypervisor_type": self.hypervisor_type,
            "hypervisor_version": self.hypervisor_version,
            "service_name": self.service_host,
            "availability_zone": self.zone,
            "region": self.region,
            "rack": self.rack,
        }
        return {**self.capabilities, **columns}


#: Names an extra capability may not take: they are the host's own columns on the wire.
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
        "region",
        "rack",
    ]
)
