# SPDX-License-Identifier: Apache-2.0
"""What is in a cloud, as values: what the ports of `ports/cloud.py` give and take."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from holdfast.model import host as hosts
from holdfast.model.errors import Conflict


@dataclass(frozen=True)
class CloudHost:
    """A hypervisor as the cloud lists it.

    `inventories` and `traits` are the hypervisor's own, as Placement has them: neither our slots
    nor what a device below it has. Empty where the host was listed, not found.
    """

    uuid: str
    hypervisor_hostname: str
    service_host: str
    zone: str = ""
    rack: str = ""
    vcpus: int = 0
    memory_mb: int = 0
    local_gb: int = 0
    hypervisor_type: str = ""
    hypervisor_version: int = 0
    cpu_info: str = "{}"
    state: str = "up"  # up | down, as the cloud sees it
    inventories: Mapping[str, hosts.Inventory] = field(default_factory=dict)  # by resource class
    traits: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Pool:
    """A host aggregate, never with an availability zone of its own."""

    id: str
    name: str
    hosts: tuple[str, ...] = ()  # service host names
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Server:
    id: str
    name: str
    project_id: str
    host: str | None  # service host; None when shelved or not placed
    # ACTIVE SHUTOFF SHELVED_OFFLOADED SUSPENDED PAUSED ERROR BUILD …; what is under way does not
    # change it
    status: str
    vcpus: int = 1
    memory_mb: int = 512
    disk_gb: int = 1
    task_state: str | None = None
    locked: bool = False
    locked_reason: str = ""
    flavor: str = ""
    preemptible: bool = False  # its flavor says that it gives way to a reservation
    metadata: Mapping[str, str] = field(default_factory=dict)
    extra_specs: Mapping[str, str] = field(default_factory=dict)  # of its flavor, if we may see it
    image_id: str = ""  # empty: it was made from a volume
    user_id: str = ""  # who made it
    created_at: datetime | None = None
    powered: bool = False  # its guest had power when its host last said so
    live: bool = False  # that is what its hypervisor says now, not what a cloud remembers of it


@dataclass(frozen=True)
class Service:
    """The compute service of one host, as the cloud knows it."""

    host: str
    state: str  # up | down
    enabled: bool = True
    disabled_reason: str = ""
    forced_down: bool = False
    # When it last said that it lives, or somebody changed it: forcing it down moves this too. A
    # service that is forced down and speaks is one whose time moves while nobody writes.
    updated_at: datetime | None = None


@dataclass(frozen=True)
class Migration:
    """The trace of a move: the only proof of how an evacuation ended."""

    id: str
    server_id: str
    source_host: str
    dest_host: str | None
    type: str  # evacuation | migration | live-migration
    status: str  # accepted | running | done | failed
    created_at: datetime


@dataclass(frozen=True)
class Flavor:
    id: str
    name: str
    vcpus: int
    memory_mb: int
    disk_gb: int
    public: bool = True
    extra_specs: Mapping[str, str] = field(default_factory=dict)
    projects: tuple[str, ...] = ()


@dataclass(frozen=True)
class Inventory:
    """Slots of one resource class on one host; `generation` guards every write.

    It counts for all classes of the host together, and may move with every server that takes a
    slot. A class the host never had has a total of 0: its generation is still needed.
    """

    host: str
    resource_class: str
    total: int
    generation: int
    used: int = 0  # slots that servers have

    def check(self, total: int, generation: int) -> None:
        """Conflict unless a caller who read that generation may write that total."""
        if self.generation != generation:
            raise Conflict(
                f"host {self.host}: its inventories are at generation"
                f" {self.generation}, not {generation}; read again"
            )
        if self.used > total:
            raise Conflict(
                f"host {self.host}: servers have {self.used} slots of {self.resource_class};"
                f" it cannot be left with {total}"
            )


@dataclass(frozen=True)
class ServerGroup:
    id: str
    name: str
    policy: str  # affinity | anti-affinity
    project_id: str


@dataclass(frozen=True)
class Address:
    """A floating IP."""

    id: str
    network_id: str
    address: str
    project_id: str
    server_id: str | None = None
    tags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Subnet:
    """A range of addresses of a network. The cloud itself hands out those of `pools`, of which each
    is a first and a last address."""

    id: str
    network_id: str
    cidr: str
    gateway: str | None
    pools: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Volume:
    """A volume and who has it attached."""

    id: str
    name: str
    project_id: str
    size_gb: int
    server_ids: tuple[str, ...] = ()
    status: str = "available"
