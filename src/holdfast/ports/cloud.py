# SPDX-License-Identifier: Apache-2.0
"""Ports to the cloud (Nova, Placement, Neutron, Cinder), and the values these ports exchange.

The drivers are in `drivers/sim` (simulated), `drivers/nova` and `drivers/libvirt`.

Rules for every driver:
- A failure is a `DriverError` with `retryable` set. A missing object is `NotFound`. A request
  that the cloud refuses in its present state is `Conflict`. No foreign exception escapes.
- A call returns or fails within `Cloud.call_timeout_s`.
- Adding an object that exists and removing an object that is gone both succeed, because callers
  repeat calls after a crash.
- Drivers compare host names with `model.host.same`.
"""

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import UnionType
from typing import Any, Protocol, get_args, get_origin, get_type_hints

from holdfast.model import host as hosts
from holdfast.model.errors import Conflict

# Cloud objects, as frozen values that the ports below return and accept.

_UNKEEPABLE = re.compile("[\x00\ud800-\udfff]")
#: Numbers beyond this cannot be stored in the database.
_LARGEST = 2**31


@functools.cache
def _hints(kind: type) -> Sequence[tuple[str, Any, Any, Sequence[Any]]]:
    hints = get_type_hints(kind).items()
    return tuple((name, hint, get_origin(hint), get_args(hint)) for name, hint in hints)


def _fits(value: Any, hint: Any, origin: Any, inner: Sequence[Any]) -> bool:
    """Tell whether a value can be stored and has the type, with its elements."""
    if origin is UnionType:
        return any(_is_plain(value, one) for one in inner)
    if origin is None:
        return _is_plain(value, hint)
    if not isinstance(value, origin):
        return False
    if origin is Mapping:
        return all(_is_plain(k, inner[0]) and _is_plain(v, inner[1]) for k, v in value.items())
    return all(_fits(each, inner[0], get_origin(inner[0]), get_args(inner[0])) for each in value)


def _is_plain(value: Any, kind: Any) -> bool:
    if isinstance(value, str):
        return kind is str and not _UNKEEPABLE.search(value)
    if isinstance(value, int) and kind is int:
        return not isinstance(value, bool) and -_LARGEST < value < _LARGEST
    return isinstance(value, kind)


class Checked:
    """Base of cloud objects: a value of another type, from an answer of the cloud, is a TypeError.

    The drivers turn a TypeError into a DriverError.
    """

    def __post_init__(self) -> None:
        kind: type = self.__class__
        for name, hint, origin, inner in _hints(kind):
            if not _fits(getattr(self, name), hint, origin, inner):
                raise TypeError(f"{kind.__name__}.{name}: {getattr(self, name)!r:.80}")


@dataclass(frozen=True)
class CloudHost(Checked):
    """A hypervisor as the cloud lists it.

    `inventories` and `traits` are those of the hypervisor's own resource provider in Placement,
    without our slots and without child providers (devices). Both are empty if the host comes
    from `list` instead of `find`.
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
class Pool(Checked):
    """A host aggregate without an availability zone of its own."""

    id: str
    name: str
    hosts: tuple[str, ...] = ()  # service host names
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Server(Checked):
    id: str
    name: str
    project_id: str
    host: str | None  # service host; None when shelved or not placed
    # ACTIVE SHUTOFF SHELVED_OFFLOADED SUSPENDED PAUSED ERROR BUILD …; a task under way does not
    # change the status.
    status: str
    vcpus: int = 1
    memory_mb: int = 512
    disk_gb: int = 1
    task_state: str | None = None
    locked: bool = False
    locked_reason: str = ""
    flavor: str = ""
    preemptible: bool = False  # set by the flavor: the server gives way to a reservation
    metadata: Mapping[str, str] = field(default_factory=dict)
    extra_specs: Mapping[str, str] = field(default_factory=dict)  # of the flavor, if readable
    image_id: str = ""  # empty: booted from a volume
    user_id: str = ""  # the user that created the server
    created_at: datetime | None = None
    powered: bool = False  # the guest had power at the host's last report
    live: bool = False  # `powered` comes from the hypervisor now, not from a stored record


@dataclass(frozen=True)
class Service(Checked):
    """The nova-compute service of one host, as the cloud knows the service."""

    host: str
    state: str  # up | down
    enabled: bool = True
    disabled_reason: str = ""
    forced_down: bool = False
    # Time of the last heartbeat or of the last change; forcing the service down moves this time
    # too. If the time of a forced-down service moves while no client writes, the service is
    # alive.
    updated_at: datetime | None = None


@dataclass(frozen=True)
class Migration(Checked):
    """A Nova migration record: the only proof of how an evacuation ended."""

    id: str
    server_id: str
    source_host: str
    dest_host: str | None
    type: str  # evacuation | migration | live-migration
    status: str  # accepted | running | done | failed
    created_at: datetime


@dataclass(frozen=True)
class Flavor(Checked):
    id: str
    name: str
    vcpus: int
    memory_mb: int
    disk_gb: int
    public: bool = True
    extra_specs: Mapping[str, str] = field(default_factory=dict)
    projects: tuple[str, ...] = ()


@dataclass(frozen=True)
class Inventory(Checked):
    """Slots of one resource class on one host; `generation` guards every write.

    The generation covers all resource classes of the host and may move whenever a server takes
    a slot. A class that the host never had has a total of 0; its generation is still needed.
    """

    host: str
    resource_class: str
    total: int
    generation: int
    used: int = 0  # slots that servers have

    def check(self, total: int, generation: int) -> None:
        """Raise Conflict unless a caller that read `generation` may write `total`."""
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
class ServerGroup(Checked):
    id: str
    name: str
    policy: str  # affinity | anti-affinity
    project_id: str


@dataclass(frozen=True)
class Address(Checked):
    """A floating IP."""

    id: str
    network_id: str
    address: str
    project_id: str
    server_id: str | None = None
    tags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Subnet(Checked):
    """An address range of a network.

    The cloud itself allocates addresses from `pools`; each pool is a first and a last address.
    """

    id: str
    network_id: str
    cidr: str
    gateway: str | None
    pools: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Volume(Checked):
    """A volume and the servers with an attachment to the volume."""

    id: str
    name: str
    project_id: str
    size_gb: int
    server_ids: tuple[str, ...] = ()
    status: str = "available"


class Hosts(Protocol):
    def list(self) -> Sequence[CloudHost]:
        """Return all hosts, without inventories and traits: a cloud returns these host by host."""
        ...

    def find(self, name: str) -> CloudHost:
        """Return the host with this short name, full name or uuid, with inventories and traits.

        Inventories and traits are empty if the host never reported any. Raises NotFound.
        """
        ...


class Pools(Protocol):
    def list(self) -> Sequence[Pool]: ...

    def find(self, name: str) -> Pool | None: ...

    def create(self, name: str, metadata: Mapping[str, str]) -> Pool:
        """Create an aggregate; Conflict if the name is taken. Names are keys: call `find` first."""
        ...

    def set_metadata(self, pool_id: str, metadata: Mapping[str, str]) -> None:
        """Replace all metadata of the aggregate, and notify the scheduler.

        The scheduler is notified even if the metadata is the same already.
        """
        ...

    def resync(self, pool_id: str) -> None:
        """Send the state of the aggregate to the scheduler again: an earlier update may be lost."""
        ...

    def add_host(self, pool_id: str, host: str) -> None: ...

    def remove_host(self, pool_id: str, host: str) -> None: ...

    def rename(self, pool_id: str, name: str) -> None:
        """Rename the aggregate, and notify the scheduler; Conflict if the name is taken."""
        ...

    def delete(self, pool_id: str) -> None:
        """Delete the aggregate; Conflict while hosts are members."""
        ...


class Servers(Protocol):
    """Server actions. The cloud accepts an action at once and finishes the action later.

    A second action is a Conflict while a first is under way (`task_state`), and in a state that
    does not fit, such as stopping a stopped server.
    """

    def list(
        self, *, host: str | None = None, project_id: str | None = None, placed: bool = True
    ) -> Sequence[Server]:
        """Return the servers of all projects.

        With `host`: servers on this host and, unless `placed` is False, servers placed there that
        have no host yet; not servers on another host that are about to move here. Raises NotFound
        if the host does not exist.
        """
        ...

    def show(self, server_id: str) -> Server: ...

    def delete(self, server_id: str) -> None:
        """Request deletion in any state; the server is gone some time later (show: NotFound).

        A server on a dead host whose service still looks up stays `deleting`. Delete the server
        again when the host is known to be down; nothing else finishes the deletion.
        """
        ...

    def stop(self, server_id: str) -> None: ...

    def start(self, server_id: str) -> None: ...

    def suspend(self, server_id: str) -> None: ...

    def shelve(self, server_id: str) -> None:
        """Shelve the server: the cloud stores an image and frees the host."""
        ...

    def unshelve(self, server_id: str, host: str | None = None) -> None:
        """Unshelve the server onto a host.

        The server stays shelved if no host accepts the server, or if the named host does not.
        """
        ...

    def snapshot(self, server_id: str, name: str) -> str:
        """Create an image of the server, owned by the server's project; return the image id.

        The image content follows later.
        """
        ...

    def images(self, server_id: str, name: str) -> Sequence[str]:
        """Return ids of the images with this name made from the server."""
        ...

    def image_properties(self, image_ids: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
        """Return properties by image id; a deleted image is left out."""
        ...

    def lock(self, server_id: str, reason: str) -> None:
        """Lock the server against the users, not against this service.

        An empty reason keeps the present reason.
        """
        ...

    def unlock(self, server_id: str) -> None: ...

    def reset(self, server_id: str, *, active: bool = False) -> None:
        """Set the server to ERROR and end the task under way, as an operator does (os-resetState).

        A stuck server can then be evacuated again. The call takes effect at once; NotFound if
        the server is gone. With `active` the server counts as ACTIVE instead, running or not; a
        resized server counts as confirmed.

        A move under way counts as failed. The host that runs the move is not notified: the host
        gives up when it reaches the task, and may leave the server `rebuilding` once more.
        Reset the server again then.
        """
        ...


class Moves(Protocol):
    """Moves of servers off a dead host, or off a host that is to be emptied."""

    def evacuate(
        self,
        server_id: str,
        host: str | None = None,
        *,
        as_it_was: bool = False,
        last_read: Server | None = None,
    ) -> None:
        """Evacuate a server; Conflict while the source service looks up or an evacuation runs.

        `last_read`: the server as the caller read it a moment ago, for a cloud that does not itself
        refuse a second evacuation.

        The server ends stopped. With `as_it_was`, a server that ran ends running, which is
        quicker than starting the server afterwards. A server in ERROR (as after a failed
        evacuation) ends running. If no host accepts the server, or the named host does not, the
        migration fails and the server is in ERROR.
        """
        ...

    def live_migrate(self, server_id: str, host: str | None = None) -> None:
        """Live-migrate a running server; accepted at once, `migrating` until done.

        Conflict unless the server is ACTIVE, no task is under way and the service of its host
        looks up. If no host accepts the server, or the named host does not, the migration fails
        and the server stays on its host.
        """
        ...

    def migrations(
        self, *, source_host: str, kind: str = "evacuation", after: int = 0
    ) -> Sequence[Migration]:
        """Return `evacuation` or `live-migration` records off the host, oldest first.

        With `after`: all records with a higher number. Only a `done` migration proves where a
        server is.
        """
        ...


class Services(Protocol):
    def list(self) -> Sequence[Service]: ...

    def disable(self, host: str, reason: str) -> None:
        """Disable the compute service: the scheduler places no more servers on the host.

        The call for a dead host that looks up ends in a timeout, although the service is
        disabled: force the service down first.
        """
        ...

    def enable(self, host: str) -> None:
        """Enable the compute service; effective at once only if the service looks up.

        Clear forced_down first (`unforce`).
        """
        ...

    def force_down(self, host: str) -> None: ...

    def unforce(self, host: str) -> None:
        """Clear forced_down.

        Conflict while evacuation records exist and the host has not restarted.
        """
        ...


class Flavors(Protocol):
    def list(self) -> Sequence[Flavor]:
        """Return all public and private flavors, without `projects`: read flavor by flavor."""
        ...

    def show(self, flavor_id: str) -> Flavor:
        """Return the flavor with the projects that have access; NotFound."""
        ...

    def create(self, flavor: Flavor) -> None:
        """Create the flavor: sizes first, then extra specs, access last.

        This order keeps projects from using a half-made flavor. The call completes an existing
        flavor with the same id, name and size, because an earlier call may have died in the
        middle; other values of that flavor stay. Conflict if another flavor has the id or the
        name.
        """
        ...

    def delete(self, flavor_id: str) -> None: ...

    def add_access(self, flavor_id: str, project_id: str) -> None:
        """Give the project access; Conflict if the flavor is public, NotFound if it is gone."""
        ...

    def remove_access(self, flavor_id: str, project_id: str) -> None: ...


class Slots(Protocol):
    """Counted capacity for slot reservations: inventories and server groups."""

    def inventory(self, host: str, resource_class: str) -> Inventory:
        """Return the slots of the host; NotFound if the host does not exist."""
        ...

    def set_inventory(
        self, host: str, resource_class: str, total: int, generation: int
    ) -> Inventory:
        """Write the total, creating a missing resource class; 0 removes the class from the host.

        Conflict if the host's generation moved since the caller read the inventory, or if
        servers use more slots than would be left. A class name is `CUSTOM_` and capitals,
        digits and underscores.
        """
        ...

    def drop_class(self, resource_class: str) -> None:
        """Delete the resource class; Conflict while a host has slots of this class."""
        ...

    def create_group(self, name: str, policy: str, project_id: str) -> ServerGroup:
        """Create a server group in the project; project members may use the group for new servers.

        Conflict if the project has a group of this name. Names are keys: call `groups` first.
        """
        ...

    def check_role(self, project_id: str) -> None:
        """Raise Conflict unless server groups can be created in the project."""
        ...

    def without_role(self) -> Sequence[str]:
        """Return the names of the projects in which no server groups can be created."""
        ...

    def groups(self) -> Sequence[ServerGroup]:
        """Return the server groups of all projects."""
        ...

    def delete_group(self, group_id: str) -> None: ...


class Addresses(Protocol):
    def list(self) -> Sequence[Address]:
        """Return the floating IPs of all projects."""
        ...

    def create(
        self, network_id: str, address: str, project_id: str, tags: Sequence[str]
    ) -> Address:
        """Create this floating IP of the network for the project; Conflict if the address is taken.

        If an earlier call for the same project and tags created the address, this call
        completes and returns that floating IP, because the earlier call may have died in the
        middle. Without tags the driver cannot tell who owns the address.
        """
        ...

    def delete(self, address_id: str) -> None:
        """Delete the floating IP; a server that uses the address loses it."""
        ...

    def subnets(self, network_id: str) -> Sequence[Subnet]:
        """Return the subnets of the network; NotFound if the network does not exist."""
        ...


class Volumes(Protocol):
    def list(self, *, server_id: str | None = None) -> Sequence[Volume]:
        """Return the volumes of all projects, or the volumes attached to the server."""
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
