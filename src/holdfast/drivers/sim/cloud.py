# SPDX-License-Identifier: Apache-2.0
"""The simulated cloud with all its ports."""

from typing import Any

from holdfast.drivers.sim.file import File
from holdfast.drivers.sim.hosts import SimHosts, SimServices
from holdfast.drivers.sim.pools import SimAddresses, SimFlavors, SimPools, SimSlots, SimVolumes
from holdfast.drivers.sim.servers import SimMoves, SimServers
from holdfast.drivers.sim.wire import Wire
from holdfast.ports import cloud as ports
from holdfast.runtime.clock import Clock


class SimCloud:
    """A `Cloud` on an SQLite file; safe from many threads and several processes.

    With a `seed`, the faults of a run of calls by one thread are the same every time.
    """

    def __init__(
        self,
        path: str,
        clock: Clock,
        *,
        call_timeout_s: float = 10.0,
        seed: int | None = None,
    ) -> None:
        self.call_timeout_s = call_timeout_s
        self._file = File(path, clock, seed)
        wire = Wire(self._file, clock, call_timeout_s, seed)
        self.hosts: ports.Hosts = SimHosts(wire)
        self.pools: ports.Pools = SimPools(wire)
        self.servers: ports.Servers = SimServers(wire)
        self.moves: ports.Moves = SimMoves(wire)
        self.services: ports.Services = SimServices(wire)
        self.flavors: ports.Flavors = SimFlavors(wire)
        self.slots: ports.Slots = SimSlots(wire)
        self.addresses: ports.Addresses = SimAddresses(wire)
        self.volumes: ports.Volumes = SimVolumes(wire)

    def close(self) -> None:
        self._file.close()


def connect(conf: Any, clock: Clock) -> SimCloud:
    """The entry point `sim` of `holdfast.cloud`."""
    return SimCloud(conf.sim.database, clock, call_timeout_s=conf.cloud.call_timeout_s)
