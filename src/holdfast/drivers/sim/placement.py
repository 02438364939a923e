# SPDX-License-Identifier: Apache-2.0
"""The simulated scheduler: chooses hosts like Nova's scheduler with Holdfast's pool filter.

Without a named host it offers no member of `freepool` and none of a reservation's pool, unless the
server has that reservation (metadata `reservation`, instead of the scheduler hint). A named host
is a wish, and the same rules decide. Only a user's `forced` host skips the pool rules, as when an
admin boots with `--availability-zone zone:host`.
"""

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.drivers.sim import pools as sim_pools
from holdfast.drivers.sim.hosts import inventories, traits
from holdfast.drivers.sim.world import World
from holdfast.model.errors import Conflict
from holdfast.model.host import Inventory
from holdfast.nova.admission import Pool, read_request, refusal
from holdfast.nova.names import HINT

#: Prefix of a flavor's extra spec for a trait that is `required` or `forbidden`.
TRAIT = "trait:"
#: Hosts with their used resources; a moving server counts on both hosts.
ROOM = """
    SELECT h.*, COUNT(s.id) AS servers,
           COALESCE(SUM(s.vcpus), 0) AS used_vcpus,
           COALESCE(SUM(CASE WHEN (
               SELECT json_extract(extra_specs, '$."hw:cpu_policy"') = 'dedicated' FROM flavors
               WHERE id = s.flavor OR name = s.flavor) THEN s.vcpus END), 0) AS used_pcpus,
           COALESCE(SUM(s.memory_mb), 0) AS used_memory_mb,
           COALESCE(SUM(s.disk_gb), 0) AS used_disk_gb
    FROM hosts h LEFT JOIN servers s ON s.host_id = h.id OR s.dest_host_id = h.id
"""


@dataclass(frozen=True)
class Order:
    """A request to place a server."""

    name: str
    project_id: str
    vcpus: int
    memory_mb: int
    disk_gb: int
    flavor: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    user_id: str = ""
    server_id: str | None = None  # of an existing server


def order_of(server: sqlite3.Row) -> Order:
    """Return the order by which an existing server would be placed again."""
    return Order(
        name=server["name"],
        project_id=server["project_id"],
        vcpus=server["vcpus"],
        memory_mb=server["memory_mb"],
        disk_gb=server["disk_gb"],
        flavor=server["flavor"],
        metadata=json.loads(server["metadata"]),
        user_id=server["user_id"],
        server_id=server["id"],
    )


def place(
    world: World,
    order: Order,
    host: str | None,
    avoid: int | None = None,
    *,
    forced: bool = False,
) -> int:
    """Return the id of the host to use; Conflict if no host fits.

    `avoid` is the id of the server's present host.
    """
    if host is None:
        return _any(world, order, avoid)
    host_id = int(world.host(host)["id"])
    row = world.all(f"{ROOM} WHERE h.id = ? GROUP BY h.id", host_id)[0]
    why = _unfit(world, row, order)
    if not forced and host_id not in _open_to(world, order):
        why = "its pools do not let the server in"
    if why:
        raise _no_host(order, f"{row['name']}: {why}")
    return host_id


def boot(world: World, order: Order, host: str | None) -> str:
    """Create a running server; return the server's id."""
    host_id = place(world, order, host, forced=True)
    server_id = world.new_id()
    world.run(
        "INSERT INTO servers (id, name, project_id, host_id, status, vcpus, memory_mb,"
        " disk_gb, flavor, metadata, user_id, created_at)"
        " VALUES (?, ?, ?, ?, 'ACTIVE', ?, ?, ?, ?, ?, ?, ?)",
        *(server_id, order.name, order.project_id, host_id),
        *(order.vcpus, order.memory_mb, order.disk_gb, order.flavor),
        *(json.dumps(dict(order.metadata)), order.user_id, world.now),
    )
    world.run("INSERT INTO domains VALUES (?, ?)", server_id, host_id)
    return server_id


def _any(world: World, order: Order, avoid: int | None) -> int:
    """Return the emptiest host with room; ties go by name, which makes runs reproducible."""
    open_to = _open_to(world, order)
    fitting = [
        row
        for row in world.all(f"{ROOM} GROUP BY h.id ORDER BY h.name")
        if row["id"] in open_to and row["id"] != avoid and _unfit(world, row, order) is None
    ]
    if not fitting:
        raise _no_host(order, "none that is open to it has room")
    best = max(fitting, key=lambda row: row["memory_mb"] - row["used_memory_mb"])
    return int(best["id"])


def _open_to(world: World, order: Order) -> set[int]:
    """Return the hosts whose pools admit the order, by the rule of Nova's scheduler."""
    named = order.metadata.get(HINT)
    hints = {} if named is None else {HINT: named}
    specs = sim_pools.extra_specs(world, order.flavor)
    size = (order.vcpus, order.memory_mb, order.disk_gb)
    request = read_request(order.project_id, hints, specs, server=order.server_id, size=size)
    pools: dict[int, list[Pool]] = {}
    for row in world.all("SELECT * FROM pools"):
        pool = Pool(row["name"], json.loads(row["metadata"]))
        for member in world.all("SELECT host_id FROM pool_hosts WHERE pool_id = ?", row["id"]):
            pools.setdefault(member["host_id"], []).append(pool)
    everybody = (row["id"] for row in world.all("SELECT id FROM hosts"))
    return {host_id for host_id in everybody if refusal(request, pools.get(host_id, ())) is None}


def _unfit(world: World, host: sqlite3.Row, order: Order) -> str | None:
    if not world.appears_up(host):
        return "its service is down"
    if not host["enabled"]:
        return "its service is disabled"
    specs = sim_pools.extra_specs(world, order.flavor)
    return (
        _too_small(host, order, dedicated=specs.get("hw:cpu_policy") == "dedicated")
        or _wrong_traits(host, specs)
        or sim_pools.missing(world, host, order.flavor)
    )


def _too_small(host: sqlite3.Row, order: Order, *, dedicated: bool) -> str | None:
    """Return the resource that the host lacks; dedicated cores come from PCPU, not VCPU."""
    shared = host["used_vcpus"] - host["used_pcpus"]
    wanted = {
        "PCPU" if dedicated else "VCPU": (
            "dedicated cores" if dedicated else "vCPUs",
            host["used_pcpus"] if dedicated else shared,
            order.vcpus,
        ),
        "MEMORY_MB": ("MiB of memory", host["used_memory_mb"], order.memory_mb),
        "DISK_GB": ("GB of disk", host["used_disk_gb"], order.disk_gb),
    }
    have = inventories(host)
    for resource_class, (resource, used, need) in wanted.items():
        inventory = have.get(resource_class, Inventory(0))
        free = inventory.capacity - used
        if need > free:
            return f"{need} {resource} wanted, {free} free"
        if inventory.most is not None and need > inventory.most:
            return f"{need} {resource} wanted, one server may have {inventory.most}"
    return None


def _wrong_traits(host: sqlite3.Row, specs: Mapping[str, str]) -> str | None:
    has = traits(host)
    for key, requirement in specs.items():
        trait = key.removeprefix(TRAIT)
        if not key.startswith(TRAIT) or (trait in has) == (requirement == "required"):
            continue
        return f"{trait} is {requirement}"
    return None


def _no_host(order: Order, why: str) -> Conflict:
    return Conflict(f"server {order.name}: No valid host was found: {why}")
