# SPDX-License-Identifier: Apache-2.0
"""The operator's control of the simulated world, beyond the cloud's API.

The simulator breaks and repairs hosts, creates users' servers, changes the settings and reports
the real state. It bypasses the faults: its own calls never fail by chance and are not counted in
`calls()`. Its effects are recorded as `sim.…`.
"""

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from holdfast.drivers.sim import hosts, outage, pools
from holdfast.drivers.sim.file import File
from holdfast.drivers.sim.placement import ROOM, Order, boot
from holdfast.drivers.sim.pools import add_subnet, pool_of, volume_of
from holdfast.drivers.sim.servers import server_of
from holdfast.drivers.sim.world import SERVERS, Effect, Settings, World, moment, open_world
from holdfast.model.errors import InvalidInput
from holdfast.model.host import Inventory
from holdfast.nova.names import FREEPOOL
from holdfast.ports.cloud import CloudHost, Flavor, Server, Subnet, Volume
from holdfast.runtime.clock import Clock

# The whole world as plain data, for the console and for operators.


def draw(world: World) -> dict[str, Any]:
    """Return the whole world as JSON-compatible data."""
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
                "state": "up" if world.appears_up(row) else "down",
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


# The demo world: three racks of eight hosts, two projects with 40 servers. In each rack the
# first four hosts stay empty, for enrolment; servers run on the other four. The network
# `public` hands out its upper half; addresses of the lower half can be enrolled.


RACKS = ("a", "b", "c")
PER_RACK = 8
EMPTY_PER_RACK = 4
DEMO_SERVERS = 40
PROJECTS = ("demo", "research")

#: (vCPUs, GiB of memory, GB of disk), by position in the rack.
SIZES = ((32, 128, 2000), (48, 192, 3000), (64, 256, 4000), (64, 256, 2000))

#: The network of floating IPs.
NETWORK, CIDR, GATEWAY = "public", "203.0.113.0/24", "203.0.113.1"
POOLS = (("203.0.113.128", "203.0.113.254"),)

#: Flavors of the servers, in turn.
FLAVORS = (
    Flavor("1", "m1.small", vcpus=2, memory_mb=4096, disk_gb=20),
    Flavor("2", "m1.medium", vcpus=4, memory_mb=8192, disk_gb=40),
    Flavor("3", "m1.large", vcpus=8, memory_mb=16384, disk_gb=80),
)
ROLES = ("web", "job", "db")


def seed(world: World) -> None:
    """Create the demo world once; a second call changes nothing and restores no deleted object."""
    if world.one("SELECT value FROM meta WHERE name = 'demo'"):
        return
    world.run("INSERT INTO meta VALUES ('demo', 'made')")
    for host in _demo_hosts():
        hosts.add(world, host)
    for flavor in FLAVORS:
        pools.create_flavor(world, flavor)
    if world.one("SELECT id FROM pools WHERE name = ?", FREEPOOL) is None:
        pools.create_pool(world, FREEPOOL, {})
    add_subnet(world, NETWORK, CIDR, GATEWAY, POOLS)
    homes = [
        f"cmp-{PER_RACK * rack + place:02d}"
        for place in range(EMPTY_PER_RACK + 1, PER_RACK + 1)
        for rack in range(len(RACKS))
    ]
    for number in range(DEMO_SERVERS):
        boot(world, _order(number), homes[number % len(homes)])


def _demo_hosts() -> list[CloudHost]:
    return [
        _host(PER_RACK * rack + place, letter, place)
        for rack, letter in enumerate(RACKS)
        for place in range(1, PER_RACK + 1)
    ]


def _host(number: int, letter: str, place: int) -> CloudHost:
    vcpus, memory_gb, disk_gb = SIZES[(place - 1) % len(SIZES)]
    model = "EPYC-Milan" if place % 2 else "EPYC-Rome"
    topology = {"sockets": 2, "cores": vcpus // 4, "threads": 2}
    return CloudHost(
        uuid="",
        hypervisor_hostname="",
        service_host=f"cmp-{number:02d}",
        zone=f"az-{letter}",
        rack=f"rack-{letter}",
        vcpus=vcpus,
        memory_mb=memory_gb * 1024,
        local_gb=disk_gb,
        hypervisor_type="QEMU",
        hypervisor_version=8002002,
        cpu_info=json.dumps(
            {"arch": "x86_64", "vendor": "AMD", "model": model, "topology": topology}
        ),
    )


def _order(number: int) -> Order:
    flavor = FLAVORS[number % len(FLAVORS)]
    role = ROLES[number % len(ROLES)]
    return Order(
        name=f"{role}-{number // len(ROLES) + 1:02d}",
        project_id=PROJECTS[number % len(PROJECTS)],
        vcpus=flavor.vcpus,
        memory_mb=flavor.memory_mb,
        disk_gb=flavor.disk_gb,
        flavor=flavor.name,
        metadata={"role": role},
        user_id=f"{PROJECTS[number % len(PROJECTS)]}-user",
    )


#: Fields of a host that may change.
CHANGEABLE = frozenset({"zone", "rack", "vcpus", "memory_mb", "local_gb", "inventories", "traits"})


class Simulator:
    """Controls the file of a SimCloud, in the same process or another."""

    def __init__(self, path: str, clock: Clock) -> None:
        self.path = path
        self._clock = clock
        self._file = File(path, clock)

    def close(self) -> None:
        self._file.close()

    # State

    def world(self) -> dict[str, Any]:
        """Return settings, hosts, servers, pools, images and migrations as plain data."""
        with self._open("world") as world:
            return draw(world)

    def settings(self) -> Settings:
        with self._open("settings") as world:
            return world.settings

    def running(self, server_id: str) -> list[str]:
        """Return the hosts on which the server really runs.

        More than a single host is a catastrophe.
        """
        with self._open("running") as world:
            rows = world.all(
                "SELECT h.name FROM domains d JOIN hosts h ON h.id = d.host_id"
                " WHERE d.server_id = ? ORDER BY h.name",
                server_id,
            )
            return [row["name"] for row in rows]

    def calls(self) -> dict[str, int]:
        """Return the number of calls per port method, answered or not."""
        with self._open("calls") as world:
            rows = world.all("SELECT name, count FROM calls ORDER BY name")
            return {row["name"]: row["count"] for row in rows}

    def effects(self, call: str | None = None, subject: str | None = None) -> list[Effect]:
        """Return recorded changes, oldest first; a call without a change leaves no effect."""
        with self._open("effects") as world:
            rows = world.all(
                "SELECT * FROM effects WHERE (?1 IS NULL OR call = ?1)"
                " AND (?2 IS NULL OR subject = ?2) ORDER BY id",
                *(call, subject),
            )
            return [Effect(moment(r["at"]), r["call"], r["subject"]) for r in rows]

    # Actions of operators and users

    def change(self, **settings: Any) -> Settings:
        """Change settings.

        The next call of any process uses them. InvalidInput names a bad field.
        """
        with self._open("change", ",".join(sorted(settings))) as world:
            world.change(**settings)
            return world.settings

    def add_host(
        self,
        name: str,
        *,
        hypervisor_hostname: str = "",
        zone: str = "",
        rack: str = "",
        vcpus: int = 32,
        memory_mb: int = 131072,
        local_gb: int = 2000,
        inventories: Mapping[str, Inventory] | None = None,
        traits: Iterable[str] = (),
    ) -> CloudHost:
        """Add a host with power on. Conflict if the name, short or full, exists."""
        host = CloudHost(
            uuid="",
            hypervisor_hostname=hypervisor_hostname,
            service_host=name,
            zone=zone,
            rack=rack,
            vcpus=vcpus,
            memory_mb=memory_mb,
            local_gb=local_gb,
            hypervisor_type="QEMU",
            inventories=inventories or {},
            traits=frozenset(traits),
        )
        with self._open("add_host", name) as world:
            return hosts.add(world, host)

    def change_host(self, name: str, **values: Any) -> CloudHost:
        """Change sizes, zone, rack, traits, or inventories other than the sizes."""
        unknown = values.keys() - CHANGEABLE
        if unknown:
            raise InvalidInput(f"host {name}: {', '.join(sorted(unknown))} cannot be changed")
        with self._open("change_host", name) as world:
            return hosts.change(world, name, values)

    def boot(
        self,
        name: str,
        project_id: str,
        host: str | None,
        vcpus: int,
        memory_mb: int,
        disk_gb: int,
        flavor: str = "",
        metadata: Mapping[str, str] | None = None,
        user_id: str = "",
    ) -> Server:
        """Create a running server of a user. Conflict 'No valid host' if no host fits."""
        size = (vcpus, memory_mb, disk_gb)
        order = Order(name, project_id, *size, flavor, metadata or {}, user_id)
        with self._open("boot", name) as world:
            world.subject = boot(world, order, host)
            return server_of(world.server(world.subject))

    def set_image(self, server_id: str, properties: Mapping[str, str]) -> None:
        """Set the properties of the image from which the server was made."""
        with self._open("set_image", server_id) as world:
            name, value = f"image:{world.server(server_id)['id']}", json.dumps(dict(properties))
            world.run("INSERT OR REPLACE INTO meta VALUES (?, ?)", name, value)

    def add_volume(
        self, name: str, project_id: str, size_gb: int, server_id: str | None = None
    ) -> Volume:
        """Create a volume, attached to the server if given."""
        with self._open("add_volume", name) as world:
            volume_id = world.new_id()
            world.run(
                "INSERT INTO volumes VALUES (?, ?, ?, ?)",
                *(volume_id, name, project_id, size_gb),
            )
            if server_id is not None:
                server = world.server(server_id)
                world.run("INSERT INTO attachments VALUES (?, ?)", volume_id, server["id"])
            rows = world.all("SELECT * FROM volumes WHERE id = ?", volume_id)
            return volume_of(world, rows[0])

    def add_subnet(
        self,
        network_id: str,
        cidr: str,
        gateway: str | None,
        pools: Sequence[tuple[str, str]],
    ) -> Subnet:
        """Add a subnet, and the network if needed; the cloud hands out the addresses in `pools`."""
        with self._open("add_subnet", network_id) as world:
            return add_subnet(world, network_id, cidr, gateway, pools)

    def seed_demo(self) -> None:
        """Create the demo world, once."""
        with self._open("seed_demo") as world:
            seed(world)

    # Failures and repairs

    def fail_host(self, name: str) -> None:
        """Cut the host's power.

        The cloud still reports its servers as ACTIVE and, for a while, its service as up.
        """
        with self._open("fail_host", name) as world:
            outage.power_off(world, name)

    def cut_host(self, name: str) -> None:
        """Cut the host off from all networks; its servers go on running.

        The cloud sees the same as after a power loss. If the servers are evacuated before the
        host's power is cut, they run twice (`running`).
        """
        with self._open("cut_host", name) as world:
            outage.cut_off(world, name)

    def hang_host(self, name: str) -> None:
        """Hang the host's kernel: its servers are dead, the host is silent, and its BMC answers.

        `recover_host` reboots the host.
        """
        with self._open("hang_host", name) as world:
            outage.hang(world, name)

    def repair_host(self, name: str) -> None:
        """Reconnect a host that was cut off. Conflict if the host has lost its power since."""
        with self._open("mend_host", name) as world:
            outage.reach_again(world, name)

    def cut_network(self, name: str, network: str) -> None:
        """Cut the host's cable on a network, as seen by the sim driver of membership."""
        with self._open("cut_network", name) as world:
            outage.unplug(world, name, network)

    def repair_network(self, name: str, network: str) -> None:
        with self._open("mend_network", name) as world:
            outage.plug(world, name, network)

    def recover_host(self, name: str) -> None:
        """Restore power and service; a service forced down may now be un-forced."""
        with self._open("recover_host", name) as world:
            outage.power_on(world, name)

    def resize_server(self, id_or_name: str) -> None:
        """Put the server into VERIFY_RESIZE, at an unchanged size. Conflict if it does not run."""
        with self._open("resize_server", id_or_name) as world:
            outage.resize(world, id_or_name)

    def crash_server(self, id_or_name: str) -> None:
        """Crash the guest now; the cloud reports SHUTOFF `action_s` later."""
        with self._open("crash_server", id_or_name) as world:
            outage.crash(world, id_or_name)

    def lose_server(self, id_or_name: str) -> None:
        """Remove the guest from its host without the cloud's knowledge."""
        with self._open("lose_server", id_or_name) as world:
            outage.lose(world, id_or_name)

    def _open(self, purpose: str, subject: str = "") -> AbstractContextManager[World]:
        return open_world(self._file, self._clock, f"sim.{purpose}", subject)
