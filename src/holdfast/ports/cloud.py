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

from holdfast.model import host as hosts
from holdfast.model.errors import Conflict

# What is in a cloud, as values: what the ports of `ports/cloud.py` give and take.


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


class Hosts(Protocol):
    def list(self) -> Sequence[CloudHost]:
        """All, without inventories and traits: a cloud tells these one by one."""
        ...

    def find(self, name: str) -> CloudHost:
        """The host of that name, short or full, or of that uuid, with its inventories and traits
        (none if it never reported any); NotFound."""
        ...


class Pools(Protocol):
    def list(self) -> Sequence[Pool]: ...

    def find(self, name: str) -> Pool | None: ...

    def create(self, name: str, metadata: Mapping[str, str]) -> Pool:
        """Conflict if the name is taken: look first, names are keys."""
        ...

    def set_metadata(self, pool_id: str, metadata: Mapping[str, str]) -> None:
        """This and nothing else. Also when it is so already: who places servers is told again."""
        ...

    def resync(self, pool_id: str) -> None:
        """Say again, to who places servers, how the pool stands: news of it may have got lost."""
        ...

    def add_host(self, pool_id: str, host: str) -> None: ...

    def remove_host(self, pool_id: str, host: str) -> None: ...

    def delete(self, pool_id: str) -> None:
        """Conflict while hosts are in it."""
        ...


class Servers(Protocol):
    """Actions are accepted at once and done later; while one is under way (`task_state`), and in a
    state it does not fit (stop what is stopped), the next is a Conflict."""

    def list(self, *, host: str | None = None, project_id: str | None = None) -> Sequence[Server]:
        """Those of all projects. `host`: those on it, and those placed there that have no host yet;
        not those on another host that are about to move here. NotFound if there is no such host.
        """
        ...

    def show(self, server_id: str) -> Server: ...

    def delete(self, server_id: str) -> None:
        """Accepted at once, in any state; the server is gone some time later (show: NotFound).

        On a host that died and still looks up it stays `deleting`: delete it again when the host
        is known to be down, nothing else will.
        """
        ...

    def stop(self, server_id: str) -> None: ...

    def start(self, server_id: str) -> None: ...

    def suspend(self, server_id: str) -> None: ...

    def shelve(self, server_id: str) -> None:
        """Off its host, into an image."""
        ...

    def unshelve(self, server_id: str, host: str | None = None) -> None:
        """Back onto a host. If none is open to it, or the one named is not, it stays shelved."""
        ...

    def snapshot(self, server_id: str, name: str) -> str:
        """Make an image of that name from the server, for the server's project; the image's id.
        Its content follows."""
        ...

    def images(self, server_id: str, name: str) -> Sequence[str]:
        """Ids of the images of that name made from that server."""
        ...

    def image_properties(self, image_ids: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
        """Properties by the image's id; an image that is gone is left out."""
        ...

    def lock(self, server_id: str, reason: str) -> None:
        """Against its users, not against us. An empty reason keeps the one there is."""
        ...

    def unlock(self, server_id: str) -> None: ...

    def reset(self, server_id: str, *, active: bool = False) -> None:
        """In ERROR, and nothing under way any more, by an operator's word: what has stuck can be
        evacuated again. At once; NotFound if the server is gone. `active`: it counts as ACTIVE
        instead, whether it runs or not; one that was resized is as if that had been confirmed.

        A move that was under way has failed. The host that was to do it is not told: when it comes
        to it, it gives up, and may leave the server `rebuilding` once more. Reset it again then.
        """
        ...


class Moves(Protocol):
    """Servers leaving their host: one that died, or one that is to be emptied."""

    def evacuate(
        self,
        server_id: str,
        host: str | None = None,
        *,
        as_it_was: bool = False,
        seen: Server | None = None,
    ) -> None:
        """Refused (Conflict) while the source's service looks up, and while one is under way.

        `seen`: the server as the caller read it a moment ago, for a cloud that does not itself
        refuse a second evacuation.

        The server ends stopped; `as_it_was`, running if it ran, which is quicker than to start it
        afterwards. One that was in ERROR (as after a failed one) ends running. If no host
        is open to it, or the one named is not, the migration fails and the server is in ERROR.
        """
        ...

    def live_migrate(self, server_id: str, host: str | None = None) -> None:
        """Move a running server while it runs; accepted at once, `migrating` until it is there.

        Conflict unless it is ACTIVE, nothing is under way and its host's service looks up. If no
        host is open to it, or the one named is not, the migration fails and it stays where it is.
        """
        ...

    def migrations(self, *, source_host: str, kind: str = "evacuation") -> Sequence[Migration]:
        """Moves of that kind (`evacuation`, `live-migration`) from that host, oldest first. Only a
        `done` one proves where a server is."""
        ...


class Services(Protocol):
    def list(self) -> Sequence[Service]: ...

    def disable(self, host: str, reason: str) -> None:
        """No more servers come. Of a dead host that looks up it ends in a timeout, though done:
        force it down first."""
        ...

    def enable(self, host: str) -> None:
        """Servers may come again; at once only if the service looks up, so un-force first."""
        ...

    def force_down(self, host: str) -> None: ...

    def unforce(self, host: str) -> None:
        """Conflict while evacuations from the host are recorded and it has not restarted."""
        ...


class Flavors(Protocol):
    def list(self) -> Sequence[Flavor]:
        """All, public and private, without `projects`: a cloud tells these one by one."""
        ...

    def show(self, flavor_id: str) -> Flavor:
        """That flavor with the projects that have access; NotFound."""
        ...

    def create(self, flavor: Flavor) -> None:
        """Make it so: sizes first, then extra specs, access last, so that nobody can use half.

        A flavor of that id, name and size is completed, for a call may have died in the middle;
        what else it carries stays. Conflict if another has the id or the name.
        """
        ...

    def delete(self, flavor_id: str) -> None: ...

    def add_access(self, flavor_id: str, project_id: str) -> None:
        """Conflict if the flavor is public: all projects have it. NotFound if it is gone."""
        ...

    def remove_access(self, flavor_id: str, project_id: str) -> None: ...


class Slots(Protocol):
    """Counted capacity for reservations of slots: inventories and server groups."""

    def inventory(self, host: str, resource_class: str) -> Inventory:
        """How many slots the host has; NotFound if there is no such host."""
        ...

    def set_inventory(
        self, host: str, resource_class: str, total: int, generation: int
    ) -> Inventory:
        """Write the total, making the class if need be; 0 takes the class off the host.

        Conflict if the host's generation moved since it was read, or if servers have more slots
        than would be left. A class is named `CUSTOM_` and capitals, digits and underscores.
        """
        ...

    def drop_class(self, resource_class: str) -> None:
        """Forget the class; Conflict while a host has slots of it."""
        ...

    def create_group(self, name: str, policy: str, project_id: str) -> ServerGroup:
        """A group in that project, whose members may name it when they make servers.

        Conflict if the project has one of that name: look first, names are keys.
        """
        ...

    def groups(self) -> Sequence[ServerGroup]:
        """Those of all projects."""
        ...

    def delete_group(self, group_id: str) -> None: ...


class Addresses(Protocol):
    def list(self) -> Sequence[Address]:
        """Those of all projects."""
        ...

    def create(
        self, network_id: str, address: str, project_id: str, tags: Sequence[str]
    ) -> Address:
        """That very address of the network, for the project. Conflict if somebody has it.

        An earlier call for the same project and tags is no somebody: it may have died in the
        middle, so what it made is completed and returned. Without tags nothing tells whose it is.
        """
        ...

    def delete(self, address_id: str) -> None:
        """Whoever uses it does so no more."""
        ...

    def subnets(self, network_id: str) -> Sequence[Subnet]:
        """Those of the network; NotFound if there is no such network."""
        ...


class Volumes(Protocol):
    def list(self, *, server_id: str | None = None) -> Sequence[Volume]:
        """Those of all projects, or those attached to that server."""
        ...


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
