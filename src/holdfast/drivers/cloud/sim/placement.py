# SPDX-License-Identifier: Apache-2.0
"""Where a server may go: power of decision like Nova's scheduler with Blazar's filter.

Asked for any host, it offers no member of `freepool` and none of a reservation's pool, unless the
server came with that reservation (metadata `reservation`, standing for the scheduler hint). A host
that is named is a wish, and the same rules decide; only a user's `forced` one is not asked about
pools, as when an admin boots with `--availability-zone zone:host`.
"""

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.drivers.cloud.sim import slots
from holdfast.drivers.cloud.sim.world import World
from holdfast.model.errors import Conflict
from holdfast.nova.admission import Pool, ask, refusal
from holdfast.nova.names import HINT

#: Hosts with what is taken of them; a server on its way counts at both ends.
ROOM = """
    SELECT h.*, COUNT(s.id) AS servers,
           COALESCE(SUM(s.vcpus), 0) AS used_vcpus,
           COALESCE(SUM(s.memory_mb), 0) AS used_memory_mb,
           COALESCE(SUM(s.disk_gb), 0) AS used_disk_gb
    FROM hosts h LEFT JOIN servers s ON s.host_id = h.id OR s.dest_host_id = h.id
"""


@dataclass(frozen=True)
class Order:
    """A server somebody wants to have somewhere."""

    name: str
    project_id: str
    vcpus: int
    memory_mb: int
    disk_gb: int
    flavor: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)


def order_of(server: sqlite3.Row) -> Order:
    """The order an existing server would be placed by again."""
    return Order(
        name=server["name"],
        project_id=server["project_id"],
        vcpus=server["vcpus"],
        memory_mb=server["memory_mb"],
        disk_gb=server["disk_gb"],
        flavor=server["flavor"],
        metadata=json.loads(server["metadata"]),
    )


def place(
    world: World,
    order: Order,
    host: str | None,
    avoid: int | None = None,
    *,
    forced: bool = False,
) -> int:
    """The id of the host to use; Conflict if there is none. `avoid` is where it is now."""
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
    """A new server, running; its id."""
    host_id = place(world, order, host, forced=True)
    server_id = world.new_id()
    world.run(
        "INSERT INTO servers (id, name, project_id, host_id, status, vcpus, memory_mb,"
        " disk_gb, flavor, metadata) VALUES (?, ?, ?, ?, 'ACTIVE', ?, ?, ?, ?, ?)",
        *(server_id, order.name, order.project_id, host_id),
        *(order.vcpus, order.memory_mb, order.disk_gb, order.flavor),
        json.dumps(dict(order.metadata)),
    )
    world.run("INSERT INTO domains VALUES (?, ?)", server_id, host_id)
    return server_id


def _any(world: World, order: Order, avoid: int | None) -> int:
    """The emptiest host that fits; ties go by name, so that runs can be replayed."""
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
    """Hosts whose pools let the order in, by the rule that Nova's scheduler asks."""
    named = order.metadata.get(HINT)
    hints = {} if named is None else {HINT: named}
    request = ask(order.project_id, hints, slots.extra_specs(world, order.flavor))
    pools: dict[int, list[Pool]] = {}
    for row in world.all("SELECT * FROM pools"):
        pool = Pool(row["name"], json.loads(row["metadata"]))
        for member in world.all("SELECT host_id FROM pool_hosts WHERE pool_id = ?", row["id"]):
            pools.setdefault(member["host_id"], []).append(pool)
    everybody = (row["id"] for row in world.all("SELECT id FROM hosts"))
    return {one for one in everybody if refusal(request, pools.get(one, ())) is None}


def _unfit(world: World, host: sqlite3.Row, order: Order) -> str | None:
    if not world.looks_up(host):
        return "its service is down"
    if not host["enabled"]:
        return "its service is disabled"
    wanted = {
        "vCPUs": (host["vcpus"] - host["used_vcpus"], order.vcpus),
        "MiB of memory": (host["memory_mb"] - host["used_memory_mb"], order.memory_mb),
        "GB of disk": (host["local_gb"] - host["used_disk_gb"], order.disk_gb),
    }
    for what, (free, need) in wanted.items():
        if need > free:
            return f"{need} {what} wanted, {free} free"
    return slots.missing(world, host, order.flavor)


def _no_host(order: Order, why: str) -> Conflict:
    return Conflict(f"server {order.name}: No valid host was found: {why}")
