# SPDX-License-Identifier: Apache-2.0
"""The demo world: three racks of eight hosts, two projects with forty servers.

In each rack the first four hosts stay empty, to be enrolled for reservation; servers live on the
other four. The network `public` hands out its upper half; addresses of the lower can be enrolled.
"""

import json

from holdfast.drivers.cloud.sim import addresses, flavors, hosts, pools
from holdfast.drivers.cloud.sim.placement import Order, boot
from holdfast.drivers.cloud.sim.world import World
from holdfast.nova.names import FREEPOOL
from holdfast.ports.cloud import CloudHost, Flavor

RACKS = ("a", "b", "c")
PER_RACK = 8
EMPTY_PER_RACK = 4
SERVERS = 40
PROJECTS = ("demo", "research")

#: (vCPUs, GiB of memory, GB of disk), by position in the rack.
SIZES = ((32, 128, 2000), (48, 192, 3000), (64, 256, 4000), (64, 256, 2000))

#: Where floating addresses come from.
NETWORK, CIDR, GATEWAY = "public", "203.0.113.0/24", "203.0.113.1"
POOLS = (("203.0.113.128", "203.0.113.254"),)

#: What the servers are, in turn.
FLAVORS = (
    Flavor("1", "m1.small", vcpus=2, memory_mb=4096, disk_gb=20),
    Flavor("2", "m1.medium", vcpus=4, memory_mb=8192, disk_gb=40),
    Flavor("3", "m1.large", vcpus=8, memory_mb=16384, disk_gb=80),
)
ROLES = ("web", "job", "db")


def seed(world: World) -> None:
    """Make it once: a second call changes nothing, not even what people deleted since."""
    if world.one("SELECT value FROM meta WHERE name = 'demo'"):
        return
    world.run("INSERT INTO meta VALUES ('demo', 'made')")
    for host in _hosts():
        hosts.add(world, host)
    for flavor in FLAVORS:
        flavors.create(world, flavor)
    if world.one("SELECT id FROM pools WHERE name = ?", FREEPOOL) is None:
        pools.create(world, FREEPOOL, {})
    addresses.add_subnet(world, NETWORK, CIDR, GATEWAY, POOLS)
    homes = [
        f"cmp-{PER_RACK * rack + place:02d}"
        for place in range(EMPTY_PER_RACK + 1, PER_RACK + 1)
        for rack in range(len(RACKS))
    ]
    for number in range(SERVERS):
        boot(world, _order(number), homes[number % len(homes)])


def _hosts() -> list[CloudHost]:
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
