# SPDX-License-Identifier: Apache-2.0
"""The simulated Addresses and Volumes ports: floating IPs, their networks, and volumes."""

import json
import sqlite3
from collections.abc import Sequence

from holdfast.drivers.sim.wire import Wire
from holdfast.drivers.sim.world import World
from holdfast.model.errors import Conflict, NotFound
from holdfast.ports.cloud import Address, Subnet, Volume


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
                found = _address(there)
                if tags and (found.project_id, found.tags) == (project_id, tuple(tags)):
                    return found
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
        server_ids=tuple(one["server_id"] for one in attached),
        status="in-use" if attached else "available",
    )
