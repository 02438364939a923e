# SPDX-License-Identifier: Apache-2.0
"""The whole simulated world as plain data, for the console and for people."""

import dataclasses
from typing import Any

from holdfast.drivers.cloud.sim.placement import ROOM
from holdfast.drivers.cloud.sim.pools import pool_of
from holdfast.drivers.cloud.sim.servers import server_of
from holdfast.drivers.cloud.sim.world import SERVERS, World, moment


def draw(world: World) -> dict[str, Any]:
    """Everything, JSON-able."""
    settings = dataclasses.asdict(world.settings)
    return {
        "time": moment(world.now).isoformat(),
        "settings": settings | {"only_calls": list(world.settings.only_calls)},
        "hosts": _hosts(world),
        "servers": _servers(world),
        "pools": [
            dataclasses.asdict(pool_of(world, row))
            for row in world.all("SELECT * FROM pools ORDER BY id")
        ],
        "images": [
            {"id": row["id"], "name": row["name"], "server_id": row["server_id"]}
            for row in world.all("SELECT * FROM images ORDER BY rowid")
        ],
        "migrations": {
            row["status"]: row["count"]
            for row in world.all("SELECT status, COUNT(*) AS count FROM migrations GROUP BY status")
        },
    }


def _hosts(world: World) -> list[dict[str, Any]]:
    member_of: dict[int, list[str]] = {}
    for row in world.all(
        "SELECT m.host_id, p.name FROM pool_hosts m JOIN pools p ON p.id = m.pool_id"
        " ORDER BY p.name"
    ):
        member_of.setdefault(row["host_id"], []).append(row["name"])
    cut: dict[int, list[str]] = {}
    for row in world.all("SELECT host_id, network FROM cuts ORDER BY network"):
        cut.setdefault(row["host_id"], []).append(row["network"])
    return [
        {
            "name": row["name"],
            "uuid": row["uuid"],
            "hypervisor_hostname": row["hypervisor_hostname"],
            "zone": row["zone"],
            "rack": row["rack"],
            "vcpus": row["vcpus"],
            "memory_mb": row["memory_mb"],
            "local_gb": row["local_gb"],
            "powered": bool(row["powered"]),
            "restarted_at": row["restarted_at"] and moment(row["restarted_at"]).isoformat(),
            "service": {
                "state": "up" if world.looks_up(row) else "down",
                "enabled": bool(row["enabled"]),
                "disabled_reason": row["disabled_reason"],
                "forced_down": bool(row["forced_down"]),
            },
            "cut": cut.get(row["id"], []),
            "pools": member_of.get(row["id"], []),
            "servers": row["servers"],
            "used": {
                "vcpus": row["used_vcpus"],
                "memory_mb": row["used_memory_mb"],
                "disk_gb": row["used_disk_gb"],
            },
        }
        for row in world.all(f"{ROOM} GROUP BY h.id ORDER BY h.name")
    ]


def _servers(world: World) -> list[dict[str, Any]]:
    runs_on: dict[str, list[str]] = {}
    for row in world.all(
        "SELECT d.server_id, h.name FROM domains d JOIN hosts h ON h.id = d.host_id ORDER BY h.name"
    ):
        runs_on.setdefault(row["server_id"], []).append(row["name"])
    pictures = []
    for row in world.all(f"{SERVERS} ORDER BY s.name, s.id"):
        running = runs_on.get(row["id"], [])
        off = "crashed" if row["crashed"] else "shutdown"
        pictures.append(
            dataclasses.asdict(server_of(row))
            | {"created_at": moment(row["created_at"]).isoformat()}
            | {"running_on": running, "power_state": "running" if running else off}
        )
    return pictures
