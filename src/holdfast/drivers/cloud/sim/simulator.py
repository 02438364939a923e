# SPDX-License-Identifier: Apache-2.0
"""The operator's hand on the simulated world: what no cloud API offers.

It breaks and mends hosts, makes users' servers, changes the settings and tells what is really
true. It goes round the faults: its own calls never fail by chance, and none is counted in
`calls()`. Its effects are recorded as `sim.…`.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from holdfast.drivers.cloud.sim import addresses, demo, hosts, outage, picture
from holdfast.drivers.cloud.sim.file import File
from holdfast.drivers.cloud.sim.placement import Order, boot
from holdfast.drivers.cloud.sim.servers import server_of
from holdfast.drivers.cloud.sim.settings import Settings
from holdfast.drivers.cloud.sim.volumes import volume_of
from holdfast.drivers.cloud.sim.world import Effect, World, moment, open_world
from holdfast.model.errors import InvalidInput
from holdfast.model.host import Inventory
from holdfast.ports.clock import Clock
from holdfast.ports.cloud import CloudHost, Server, Subnet, Volume

#: What of a host can become different without it being another host.
CHANGEABLE = frozenset({"zone", "rack", "vcpus", "memory_mb", "local_gb", "inventories", "traits"})


class Simulator:
    """Works on the file of a SimCloud, in the same process or another."""

    def __init__(self, path: str, clock: Clock) -> None:
        self.path = path
        self._clock = clock
        self._file = File(path, clock)

    def close(self) -> None:
        self._file.close()

    # What is

    def world(self) -> dict[str, Any]:
        """Everything as plain data: settings, hosts, servers, pools, images, migrations."""
        with self._open("world") as world:
            return picture.draw(world)

    def settings(self) -> Settings:
        with self._open("settings") as world:
            return world.settings

    def running(self, server_id: str) -> list[str]:
        """The hosts on which the server really runs. More than one is a catastrophe."""
        with self._open("running") as world:
            rows = world.all(
                "SELECT h.name FROM domains d JOIN hosts h ON h.id = d.host_id"
                " WHERE d.server_id = ? ORDER BY h.name",
                server_id,
            )
            return [row["name"] for row in rows]

    def calls(self) -> dict[str, int]:
        """How often each port call came in, answered or not."""
        with self._open("calls") as world:
            rows = world.all("SELECT name, count FROM calls ORDER BY name")
            return {row["name"]: row["count"] for row in rows}

    def effects(self, call: str | None = None, subject: str | None = None) -> list[Effect]:
        """What changed, oldest first; a call that found its work done left none."""
        with self._open("effects") as world:
            rows = world.all(
                "SELECT * FROM effects WHERE (?1 IS NULL OR call = ?1)"
                " AND (?2 IS NULL OR subject = ?2) ORDER BY id",
                *(call, subject),
            )
            return [Effect(moment(r["at"]), r["call"], r["subject"]) for r in rows]

    # What people do

    def change(self, **settings: Any) -> Settings:
        """Set some settings; the next call of any process obeys. InvalidInput names a bad one."""
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
        """A new host, switched on. Conflict if that name, short or full, exists."""
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
        """New sizes, zone, rack, inventories (all that are not by the sizes) or traits."""
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
        """A user's server, running. Conflict 'No valid host' if it does not fit."""
        size = (vcpus, memory_mb, disk_gb)
        order = Order(name, project_id, *size, flavor, metadata or {}, user_id)
        with self._open("boot", name) as world:
            world.subject = boot(world, order, host)
            return server_of(world.server(world.subject))

    def set_image(self, server_id: str, properties: Mapping[str, str]) -> None:
        """The server was made from an image with these properties."""
        with self._open("set_image", server_id) as world:
            name, value = f"image:{world.server(server_id)['id']}", json.dumps(dict(properties))
            world.run("INSERT OR REPLACE INTO meta VALUES (?, ?)", name, value)

    def add_volume(
        self, name: str, project_id: str, size_gb: int, server_id: str | None = None
    ) -> Volume:
        """A volume, attached to the server if one is given."""
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
        """Addresses of a network, made if need be; the cloud hands out those of `pools`."""
        with self._open("add_subnet", network_id) as world:
            return addresses.add_subnet(world, network_id, cidr, gateway, pools)

    def seed_demo(self) -> None:
        """Make the demo world, once."""
        with self._open("seed_demo") as world:
            demo.seed(world)

    # What fate does

    def fail_host(self, name: str) -> None:
        """Power loss. The cloud says its servers are ACTIVE and, for a while, its service up."""
        with self._open("fail_host", name) as world:
            outage.power_off(world, name)

    def cut_host(self, name: str) -> None:
        """Cut off, not dead: the cloud sees what it sees of a host without power, and its servers
        run on. Evacuated before somebody takes its power, they run twice (`running`)."""
        with self._open("cut_host", name) as world:
            outage.cut_off(world, name)

    def hang_host(self, name: str) -> None:
        """Its kernel hangs: its servers are dead, it is silent, and its BMC reads on. A
        `recover_host` reboots it."""
        with self._open("hang_host", name) as world:
            outage.hang(world, name)

    def mend_host(self, name: str) -> None:
        """The host that was cut off is heard again, as if nothing had been. Conflict if it has lost
        its power since."""
        with self._open("mend_host", name) as world:
            outage.reach_again(world, name)

    def cut_network(self, name: str, network: str) -> None:
        """The host is not heard on that network any more, by the sim driver of membership."""
        with self._open("cut_network", name) as world:
            outage.unplug(world, name, network)

    def mend_network(self, name: str, network: str) -> None:
        with self._open("mend_network", name) as world:
            outage.plug(world, name, network)

    def recover_host(self, name: str) -> None:
        """Power and service back; a service forced down may now be un-forced."""
        with self._open("recover_host", name) as world:
            outage.power_on(world, name)

    def resize_server(self, id_or_name: str) -> None:
        """Its user has resized it, to the size it has, and neither confirmed nor reverted that.
        Conflict if it does not run."""
        with self._open("resize_server", id_or_name) as world:
            outage.resize(world, id_or_name)

    def crash_server(self, id_or_name: str) -> None:
        """The guest dies now; the cloud says SHUTOFF `action_s` later."""
        with self._open("crash_server", id_or_name) as world:
            outage.crash(world, id_or_name)

    def lose_server(self, id_or_name: str) -> None:
        """Its guest is removed from its host, and the cloud does not notice."""
        with self._open("lose_server", id_or_name) as world:
            outage.lose(world, id_or_name)

    def _open(self, what: str, subject: str = "") -> AbstractContextManager[World]:
        return open_world(self._file, self._clock, f"sim.{what}", subject)
