# SPDX-License-Identifier: Apache-2.0
"""The simulated Pools, Flavors, Slots, Addresses and Volumes ports."""

import json
import re
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import replace

from holdfast.drivers.sim.file import failed
from holdfast.drivers.sim.wire import Wire
from holdfast.drivers.sim.world import World
from holdfast.model.errors import Conflict, InvalidInput, NotFound
from holdfast.ports.cloud import Address, Flavor, Inventory, Pool, ServerGroup, Subnet, Volume

_ID = re.compile(r"[1-9][0-9]{0,17}")


class SimPools:
    """The simulated Pools port: host aggregates without availability zones."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def list(self) -> Sequence[Pool]:
        with self._wire.read("pools.list") as world:
            members: dict[int, list[str]] = {}
            for row in world.all(
                "SELECT p.pool_id, h.name FROM pool_hosts p JOIN hosts h ON h.id = p.host_id"
                " ORDER BY h.name"
            ):
                members.setdefault(row["pool_id"], []).append(row["name"])
            rows = world.all("SELECT * FROM pools ORDER BY id")
            return [_pool(row, members.get(row["id"], ())) for row in rows]

    def find(self, name: str) -> Pool | None:
        with self._wire.read("pools.find") as world:
            row = world.one("SELECT * FROM pools WHERE name = ?", name)
            return pool_of(world, row) if row else None

    def create(self, name: str, metadata: Mapping[str, str]) -> Pool:
        with self._wire.call("pools.create", name) as world:
            return create_pool(world, name, metadata)

    def set_metadata(self, pool_id: str, metadata: Mapping[str, str]) -> None:
        with self._wire.call("pools.set_metadata", pool_id) as world:
            row = _pool_row(world, pool_id)
            world.subject = row["name"]
            body = _body(metadata)
            if body != row["metadata"]:
                world.run("UPDATE pools SET metadata = ? WHERE id = ?", body, row["id"])

    def resync(self, pool_id: str) -> None:
        """Check that the pool exists; the simulated scheduler never misses a change."""
        with self._wire.read("pools.resync") as world:
            _pool_row(world, pool_id)

    def add_host(self, pool_id: str, host: str) -> None:
        with self._wire.call("pools.add_host", f"{pool_id}/{host}") as world:
            pool, member = _pool_row(world, pool_id), world.host(host)
            world.subject = f"{pool['name']}/{member['name']}"
            world.run(
                "INSERT OR IGNORE INTO pool_hosts VALUES (?, ?)",
                *(pool["id"], member["id"]),
            )

    def remove_host(self, pool_id: str, host: str) -> None:
        with self._wire.call("pools.remove_host", f"{pool_id}/{host}") as world:
            member = world.host(host)
            pool = _find(world, pool_id)
            if pool is None:
                return
            world.subject = f"{pool['name']}/{member['name']}"
            world.run(
                "DELETE FROM pool_hosts WHERE pool_id = ? AND host_id = ?",
                *(pool["id"], member["id"]),
            )

    def rename(self, pool_id: str, name: str) -> None:
        with self._wire.call("pools.rename", pool_id) as world:
            row, taken = _pool_row(world, pool_id), "SELECT id FROM pools WHERE name = ?"
            world.subject = name
            if row["name"] == name:
                return
            if world.one(taken, name):
                raise Conflict(f"pool {name} exists already; use another name")
            world.run("UPDATE pools SET name = ? WHERE id = ?", name, row["id"])

    def delete(self, pool_id: str) -> None:
        with self._wire.call("pools.delete", pool_id) as world:
            row = _find(world, pool_id)
            if row is None:
                return
            world.subject = row["name"]
            hosts = pool_of(world, row).hosts
            if hosts:
                raise Conflict(
                    f"pool {row['name']} is not empty: {', '.join(hosts)}; take them out"
                )
            world.run("DELETE FROM pools WHERE id = ?", row["id"])


def create_pool(world: World, name: str, metadata: Mapping[str, str]) -> Pool:
    """Create a pool; also used for the demo world."""
    if world.one("SELECT id FROM pools WHERE name = ?", name):
        raise Conflict(f"pool {name} exists already; use that one or another name")
    world.run("INSERT INTO pools (name, metadata) VALUES (?, ?)", name, _body(metadata))
    row = world.all("SELECT * FROM pools WHERE name = ?", name)[0]
    return pool_of(world, row)


def _body(metadata: Mapping[str, str]) -> str:
    if "availability_zone" in metadata:
        raise InvalidInput(
            "availability_zone is no metadata of a pool: hosts could not come and go"
        )
    return json.dumps(dict(metadata), sort_keys=True)


def _find(world: World, pool_id: str) -> sqlite3.Row | None:
    # '01' or ' 1' is not the id of pool 1.
    if not _ID.fullmatch(pool_id):
        return None
    return world.one("SELECT * FROM pools WHERE id = ?", int(pool_id))


def _pool_row(world: World, pool_id: str) -> sqlite3.Row:
    row = _find(world, pool_id)
    if row is None:
        raise NotFound(f"simulated cloud: no pool with id {pool_id}")
    return row


def pool_of(world: World, row: sqlite3.Row) -> Pool:
    hosts = world.all(
        "SELECT h.name FROM pool_hosts p JOIN hosts h ON h.id = p.host_id"
        " WHERE p.pool_id = ? ORDER BY h.name",
        row["id"],
    )
    return _pool(row, [host["name"] for host in hosts])


def _pool(row: sqlite3.Row, hosts: Sequence[str]) -> Pool:
    return Pool(
        id=str(row["id"]),
        name=row["name"],
        hosts=tuple(hosts),
        metadata=json.loads(row["metadata"]),
    )


class SimFlavors:
    """The simulated Flavors port."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def list(self) -> Sequence[Flavor]:
        with self._wire.read("flavors.list") as world:
            rows = world.all("SELECT * FROM flavors ORDER BY name")
            return [replace(_flavor(world, row), projects=()) for row in rows]

    def show(self, flavor_id: str) -> Flavor:
        with self._wire.read("flavors.show") as world:
            return _flavor(world, _flavor_row(world, flavor_id))

    def create(self, flavor: Flavor) -> None:
        with self._wire.call("flavors.create", flavor.id) as world:
            create_flavor(world, flavor)

    def delete(self, flavor_id: str) -> None:
        with self._wire.call("flavors.delete", flavor_id) as world:
            world.run("DELETE FROM flavors WHERE id = ?", flavor_id)

    def add_access(self, flavor_id: str, project_id: str) -> None:
        subject = f"{flavor_id}/{project_id}"
        with self._wire.call("flavors.add_access", subject) as world:
            if _flavor_row(world, flavor_id)["public"]:
                raise Conflict(f"flavor {flavor_id} is public: all projects have it")
            world.run(
                "INSERT OR IGNORE INTO flavor_access VALUES (?, ?)",
                *(flavor_id, project_id),
            )

    def remove_access(self, flavor_id: str, project_id: str) -> None:
        subject = f"{flavor_id}/{project_id}"
        with self._wire.call("flavors.remove_access", subject) as world:
            world.run(
                "DELETE FROM flavor_access WHERE flavor_id = ? AND project_id = ?",
                *(flavor_id, project_id),
            )


def create_flavor(world: World, flavor: Flavor) -> None:
    """Create a flavor, or complete an equal flavor; also used for the demo world."""
    rows = world.all("SELECT * FROM flavors WHERE id = ? OR name = ?", flavor.id, flavor.name)
    if not rows:
        world.run(
            "INSERT INTO flavors VALUES (?, ?, ?, ?, ?, ?, '{}')",
            *(flavor.id, flavor.name, flavor.vcpus, flavor.memory_mb, flavor.disk_gb),
            flavor.public,
        )
    elif any(_shape(_flavor(world, row)) != _shape(flavor) for row in rows):
        raise Conflict(f"another flavor has the id {flavor.id} or the name {flavor.name}")
    _complete(world, flavor)


def _complete(world: World, flavor: Flavor) -> None:
    """Set extra specs and access; existing values leave no effect."""
    there = _flavor(world, _flavor_row(world, flavor.id))
    specs = {**there.extra_specs, **flavor.extra_specs}
    if specs != there.extra_specs:
        world.run("UPDATE flavors SET extra_specs = ? WHERE id = ?", json.dumps(specs), flavor.id)
    for project_id in flavor.projects:
        world.run("INSERT OR IGNORE INTO flavor_access VALUES (?, ?)", flavor.id, project_id)


def _shape(flavor: Flavor) -> Flavor:
    return replace(flavor, extra_specs={}, projects=())


def _flavor_row(world: World, flavor_id: str) -> sqlite3.Row:
    row = world.one("SELECT * FROM flavors WHERE id = ?", flavor_id)
    if row is None:
        raise NotFound(f"simulated cloud: no flavor with id {flavor_id}")
    return row


def _flavor(world: World, row: sqlite3.Row) -> Flavor:
    access = world.all(
        "SELECT project_id FROM flavor_access WHERE flavor_id = ? ORDER BY project_id",
        row["id"],
    )
    return Flavor(
        id=row["id"],
        name=row["name"],
        vcpus=row["vcpus"],
        memory_mb=row["memory_mb"],
        disk_gb=row["disk_gb"],
        public=bool(row["public"]),
        extra_specs=json.loads(row["extra_specs"]),
        projects=tuple(row_["project_id"] for row_ in access),
    )


PREFIX = "resources:"
_CUSTOM = re.compile(r"CUSTOM_[A-Z0-9_]{1,248}")


class SimSlots:
    """The simulated Slots port: inventories by generation, and server groups.

    A server uses a slot of a class if its flavor has the extra spec `resources:<class>`, both on
    its host and on the host it moves to.
    """

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def inventory(self, host: str, resource_class: str) -> Inventory:
        with self._wire.read("slots.inventory") as world:
            return _inventory(world, world.host(host), resource_class)

    def set_inventory(
        self, host: str, resource_class: str, total: int, generation: int
    ) -> Inventory:
        subject = f"{host}/{resource_class}"
        with self._wire.call("slots.set_inventory", subject) as world:
            row = world.host(host)
            world.subject = f"{row['name']}/{resource_class}"
            _check(_inventory(world, row, resource_class), total, generation)
            world.run(
                "DELETE FROM inventories WHERE host_id = ? AND resource_class = ?",
                *(row["id"], resource_class),
            )
            if total:
                world.run(
                    "INSERT INTO inventories VALUES (?, ?, ?)", row["id"], resource_class, total
                )
            world.run("UPDATE hosts SET generation = generation + 1 WHERE id = ?", row["id"])
            return _inventory(world, world.host(row["name"]), resource_class)

    def drop_class(self, resource_class: str) -> None:
        with self._wire.call("slots.drop_class", resource_class) as world:
            row = world.one(
                "SELECT h.name FROM inventories i JOIN hosts h ON h.id = i.host_id"
                " WHERE i.resource_class = ? ORDER BY h.name",
                resource_class,
            )
            if row:
                raise Conflict(f"host {row['name']} still has slots of {resource_class}")

    def create_group(self, name: str, policy: str, project_id: str) -> ServerGroup:
        with self._wire.call("slots.create_group", name) as world:
            if world.one(
                "SELECT id FROM server_groups WHERE name = ? AND project_id = ?",
                *(name, project_id),
            ):
                raise Conflict(f"project {project_id} has a server group {name} already")
            group = ServerGroup(world.new_id(), name, policy, project_id)
            world.run(
                "INSERT INTO server_groups VALUES (?, ?, ?, ?)",
                *(group.id, name, policy, project_id),
            )
            return group

    def check_role(self, project_id: str) -> None:
        """Answer as a cloud where Holdfast's user has a role in every project."""
        with self._wire.read("slots.check_role"):
            pass

    def without_role(self) -> Sequence[str]:
        with self._wire.read("slots.without_role"):
            return []

    def groups(self) -> Sequence[ServerGroup]:
        with self._wire.read("slots.groups") as world:
            rows = world.all("SELECT * FROM server_groups ORDER BY name")
            return [ServerGroup(*row) for row in rows]

    def delete_group(self, group_id: str) -> None:
        with self._wire.call("slots.delete_group", group_id) as world:
            world.run("DELETE FROM server_groups WHERE id = ?", group_id)


def missing(world: World, host: sqlite3.Row, flavor: str) -> str | None:
    """Return the slots that the host lacks for a server of the flavor; None if it has all."""
    for resource_class, amount in wanted(world, flavor).items():
        inventory = _inventory(world, host, resource_class)
        if inventory.used + amount > inventory.total:
            free = inventory.total - inventory.used
            return f"{amount} {resource_class} wanted, {free} free"
    return None


def wanted(world: World, flavor: str) -> dict[str, int]:
    """Return the custom resources that a flavor asks for."""
    return {
        key.removeprefix(PREFIX): int(amount)
        for key, amount in extra_specs(world, flavor).items()
        if key.startswith(f"{PREFIX}CUSTOM_")
    }


def extra_specs(world: World, flavor: str) -> dict[str, str]:
    """Return the extra specs of a flavor by id or name; empty for an unknown flavor."""
    row = world.one("SELECT extra_specs FROM flavors WHERE id = ?1 OR name = ?1", flavor)
    return dict(json.loads(row["extra_specs"])) if row else {}


def _inventory(world: World, host: sqlite3.Row, resource_class: str) -> Inventory:
    total = world.one(
        "SELECT total FROM inventories WHERE host_id = ? AND resource_class = ?",
        *(host["id"], resource_class),
    )
    servers = world.all(
        "SELECT flavor, COUNT(*) AS count FROM servers"
        " WHERE host_id = ?1 OR dest_host_id = ?1 GROUP BY flavor",
        host["id"],
    )
    return Inventory(
        host=host["name"],
        resource_class=resource_class,
        total=total["total"] if total else 0,
        generation=host["generation"],
        used=sum(
            row["count"] * wanted(world, row["flavor"]).get(resource_class, 0) for row in servers
        ),
    )


def _check(now: Inventory, total: int, generation: int) -> None:
    if not _CUSTOM.fullmatch(now.resource_class):
        raise failed(f"{now.resource_class} is no name of a custom class", retryable=False)
    now.check(total, generation)


# Floating IPs, their networks, and volumes


class SimAddresses:
    """The simulated Addresses port."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def list(self) -> Sequence[Address]:
        with self._wire.read("addresses.list") as world:
            return [_address(row) for row in world.all("SELECT * FROM addresses ORDER BY rowid")]

    def create(
        self, network_id: str, address: str, project_id: str, tags: Sequence[str]
    ) -> Address:
        with self._wire.call("addresses.create", address) as world:
            there = world.one(
                "SELECT * FROM addresses WHERE network_id = ? AND address = ?",
                *(network_id, address),
            )
            if there is not None:
                existing = _address(there)
                if tags and (existing.project_id, existing.tags) == (project_id, tuple(tags)):
                    return existing
                raise Conflict(f"address {address} of network {network_id} is taken")
            made = Address(world.new_id(), network_id, address, project_id, tags=tuple(tags))
            world.run(
                "INSERT INTO addresses (id, network_id, address, project_id, tags)"
                " VALUES (?, ?, ?, ?, ?)",
                *(made.id, network_id, address, project_id, json.dumps(made.tags)),
            )
            return made

    def delete(self, address_id: str) -> None:
        with self._wire.call("addresses.delete", address_id) as world:
            world.run("DELETE FROM addresses WHERE id = ?", address_id)

    def subnets(self, network_id: str) -> Sequence[Subnet]:
        with self._wire.read("addresses.subnets") as world:
            if world.one("SELECT id FROM networks WHERE id = ?", network_id) is None:
                raise NotFound(f"simulated cloud: no network {network_id}")
            rows = world.all(
                "SELECT * FROM subnets WHERE network_id = ? ORDER BY rowid", network_id
            )
            return [_subnet(row) for row in rows]


def add_subnet(
    world: World, network_id: str, cidr: str, gateway: str | None, pools: Sequence[tuple[str, str]]
) -> Subnet:
    """Add a subnet to a network; create the network if needed."""
    world.run("INSERT OR IGNORE INTO networks VALUES (?)", network_id)
    subnet = Subnet(world.new_id(), network_id, cidr, gateway, tuple(pools))
    world.run(
        "INSERT INTO subnets VALUES (?, ?, ?, ?, ?)",
        *(subnet.id, network_id, cidr, gateway, json.dumps(subnet.pools)),
    )
    return subnet


def _address(row: sqlite3.Row) -> Address:
    return Address(
        id=row["id"],
        network_id=row["network_id"],
        address=row["address"],
        project_id=row["project_id"],
        server_id=row["server_id"],
        tags=tuple(json.loads(row["tags"])),
    )


def _subnet(row: sqlite3.Row) -> Subnet:
    return Subnet(
        id=row["id"],
        network_id=row["network_id"],
        cidr=row["cidr"],
        gateway=row["gateway"],
        pools=tuple((first, last) for first, last in json.loads(row["pools"])),
    )


class SimVolumes:
    """The simulated Volumes port."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def list(self, *, server_id: str | None = None) -> Sequence[Volume]:
        with self._wire.read("volumes.list") as world:
            rows = world.all(
                "SELECT * FROM volumes v WHERE ?1 IS NULL OR EXISTS"
                " (SELECT 1 FROM attachments a"
                "  WHERE a.volume_id = v.id AND a.server_id = ?1) ORDER BY v.rowid",
                server_id,
            )
            return [volume_of(world, row) for row in rows]


def volume_of(world: World, row: sqlite3.Row) -> Volume:
    attached = world.all(
        "SELECT server_id FROM attachments WHERE volume_id = ? ORDER BY server_id",
        row["id"],
    )
    return Volume(
        id=row["id"],
        name=row["name"],
        project_id=row["project_id"],
        size_gb=row["size_gb"],
        server_ids=tuple(attachment["server_id"] for attachment in attached),
        status="in-use" if attached else "available",
    )
