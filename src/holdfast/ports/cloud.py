# SPDX-License-Identifier: Apache-2.0
"""The cloud, as several small ports; each has a simulated side and (from Nova on) a real one.

Rules every driver keeps:
- a failure is a `DriverError` with `retryable` set; what is not there is `NotFound`; what the cloud
  refuses in its present state is `Conflict`; nothing foreign escapes;
- a call ends, one way or the other, within `Cloud.call_timeout_s`;
- adding what is there and removing what is gone succeed: callers repeat themselves after a crash;
- host names are compared by `model.host.same`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol


@dataclass(frozen=True)
class CloudHost:
    """A hypervisor as the cloud lists it."""

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
    status: str  # ACTIVE SHUTOFF SHELVED_OFFLOADED SUSPENDED PAUSED ERROR BUILD DELETED
    vcpus: int = 1
    memory_mb: int = 512
    disk_gb: int = 1
    task_state: str | None = None
    locked: bool = False
    locked_reason: str = ""
    flavor: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Service:
    """The compute service of one host, as the cloud knows it."""

    host: str
    state: str  # up | down
    enabled: bool = True
    disabled_reason: str = ""
    forced_down: bool = False
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
    """Slots of one resource class on one host; `generation` guards every write."""

    host: str
    resource_class: str
    total: int
    generation: int


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
class Volume:
    """A volume and who has it attached."""

    id: str
    name: str
    project_id: str
    size_gb: int
    server_ids: tuple[str, ...] = ()
    status: str = "available"


class Hosts(Protocol):
    def list(self) -> Sequence[CloudHost]: ...

    def find(self, name: str) -> CloudHost:
        """The host of that name, short or full, or of that uuid; NotFound."""
        ...


class Pools(Protocol):
    def list(self) -> Sequence[Pool]: ...

    def find(self, name: str) -> Pool | None: ...

    def create(self, name: str, metadata: Mapping[str, str]) -> Pool:
        """Conflict if the name is taken: look first, names are keys."""
        ...

    def set_metadata(self, pool_id: str, metadata: Mapping[str, str]) -> None: ...

    def add_host(self, pool_id: str, host: str) -> None: ...

    def remove_host(self, pool_id: str, host: str) -> None: ...

    def delete(self, pool_id: str) -> None:
        """Conflict while hosts are in it."""
        ...


class Servers(Protocol):
    def list(
        self, *, host: str | None = None, project_id: str | None = None
    ) -> Sequence[Server]: ...

    def show(self, server_id: str) -> Server: ...

    def delete(self, server_id: str) -> None:
        """Accepted at once; the server is gone some time later (show raises NotFound)."""
        ...

    def stop(self, server_id: str) -> None: ...

    def start(self, server_id: str) -> None: ...

    def suspend(self, server_id: str) -> None: ...

    def shelve(self, server_id: str) -> None: ...

    def unshelve(self, server_id: str, host: str | None = None) -> None: ...

    def snapshot(self, server_id: str, name: str) -> str:
        """Make an image of that name from the server; the image's id."""
        ...

    def images(self, server_id: str, name: str) -> Sequence[str]:
        """Ids of the images of that name made from that server."""
        ...

    def lock(self, server_id: str, reason: str) -> None: ...

    def unlock(self, server_id: str) -> None: ...


class Moves(Protocol):
    """Servers leaving a host that died."""

    def evacuate(self, server_id: str, host: str | None = None) -> None:
        """Refused (Conflict) while the source's service looks up; the server ends stopped."""
        ...

    def migrations(self, *, source_host: str) -> Sequence[Migration]: ...


class Services(Protocol):
    def list(self) -> Sequence[Service]: ...

    def disable(self, host: str, reason: str) -> None: ...

    def enable(self, host: str) -> None: ...

    def force_down(self, host: str) -> None: ...

    def unforce(self, host: str) -> None:
        """Conflict while evacuations from the host are recorded and it has not restarted."""
        ...


class Flavors(Protocol):
    def list(self) -> Sequence[Flavor]: ...

    def show(self, flavor_id: str) -> Flavor: ...

    def create(self, flavor: Flavor) -> None: ...

    def delete(self, flavor_id: str) -> None: ...

    def add_access(self, flavor_id: str, project_id: str) -> None: ...

    def remove_access(self, flavor_id: str, project_id: str) -> None: ...


class Slots(Protocol):
    """Counted capacity for reservations of slots: inventories and server groups."""

    def inventory(self, host: str, resource_class: str) -> Inventory: ...

    def set_inventory(
        self, host: str, resource_class: str, total: int, generation: int
    ) -> Inventory:
        """Write the total; Conflict if the host's generation moved since it was read."""
        ...

    def create_group(self, name: str, policy: str, project_id: str) -> ServerGroup: ...

    def groups(self) -> Sequence[ServerGroup]: ...

    def delete_group(self, group_id: str) -> None: ...


class Addresses(Protocol):
    def list(self) -> Sequence[Address]: ...

    def create(
        self, network_id: str, address: str, project_id: str, tags: Sequence[str]
    ) -> Address: ...

    def delete(self, address_id: str) -> None: ...


class Volumes(Protocol):
    def list(self, *, server_id: str | None = None) -> Sequence[Volume]: ...


class Cloud(Protocol):
    """All ports of one cloud, behind one connection."""

    call_timeout_s: float

    @property
    def hosts(self) -> Hosts: ...

    @property
    def pools(self) -> Pools: ...

    @property
    def servers(self) -> Servers: ...

    @property
    def moves(self) -> Moves: ...

    @property
    def services(self) -> Services: ...

    @property
    def flavors(self) -> Flavors: ...

    @property
    def slots(self) -> Slots: ...

    @property
    def addresses(self) -> Addresses: ...

    @property
    def volumes(self) -> Volumes: ...

    def close(self) -> None: ...
