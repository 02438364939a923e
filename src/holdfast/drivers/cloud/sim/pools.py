# SPDX-License-Identifier: Apache-2.0
"""The simulated side of the Pools port: host aggregates without availability zones."""

import json
import re
import sqlite3
from collections.abc import Mapping, Sequence

from holdfast.drivers.cloud.sim.wire import Wire
from holdfast.drivers.cloud.sim.world import World
from holdfast.model.errors import Conflict, InvalidInput, NotFound
from holdfast.ports.cloud import Pool

_ID = re.compile(r"[1-9][0-9]{0,17}")


class SimPools:
    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def list(self) -> Sequence[Pool]:
        with self._wire.look("pools.list") as world:
            members: dict[int, list[str]] = {}
            for row in world.all(
                "SELECT p.pool_id, h.name FROM pool_hosts p JOIN hosts h ON h.id = p.host_id"
                " ORDER BY h.name"
            ):
                members.setdefault(row["pool_id"], []).append(row["name"])
            rows = world.all("SELECT * FROM pools ORDER BY id")
            return [_pool(row, members.get(row["id"], ())) for row in rows]

    def find(self, name: str) -> Pool | None:
        with self._wire.look("pools.find") as world:
            row = world.one("SELECT * FROM pools WHERE name = ?", name)
            return pool_of(world, row) if row else None

    def create(self, name: str, metadata: Mapping[str, str]) -> Pool:
        with self._wire.call("pools.create", name) as world:
            return create(world, name, metadata)

    def set_metadata(self, pool_id: str, metadata: Mapping[str, str]) -> None:
        with self._wire.call("pools.set_metadata", pool_id) as world:
            row = _known(world, pool_id)
            world.subject = row["name"]
            body = _body(metadata)
            if body != row["metadata"]:
                world.run("UPDATE pools SET metadata = ? WHERE id = ?", body, row["id"])

    def tell(self, pool_id: str) -> None:
        """Nobody here ever misses the news."""
        with self._wire.look("pools.tell") as world:
            _known(world, pool_id)

    def add_host(self, pool_id: str, host: str) -> None:
        with self._wire.call("pools.add_host", f"{pool_id}/{host}") as world:
            pool, member = _known(world, pool_id), world.host(host)
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


def create(world: World, name: str, metadata: Mapping[str, str]) -> Pool:
    """A new pool; shared with the demo world."""
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


def _known(world: World, pool_id: str) -> sqlite3.Row:
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
