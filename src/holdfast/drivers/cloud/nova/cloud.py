# SPDX-License-Identifier: Apache-2.0
"""OpenStack as the service sees it: all ports behind one connection."""

from typing import Any

from holdfast.drivers.cloud.nova.addresses import NovaAddresses
from holdfast.drivers.cloud.nova.directory import Directory
from holdfast.drivers.cloud.nova.edge import Edge
from holdfast.drivers.cloud.nova.flavors import NovaFlavors
from holdfast.drivers.cloud.nova.hosts import NovaHosts
from holdfast.drivers.cloud.nova.moves import NovaMoves
from holdfast.drivers.cloud.nova.pools import NovaPools
from holdfast.drivers.cloud.nova.servers import NovaServers
from holdfast.drivers.cloud.nova.services import NovaServices
from holdfast.drivers.cloud.nova.slots import NovaSlots
from holdfast.drivers.cloud.nova.volumes import NovaVolumes
from holdfast.ports import cloud as ports
from holdfast.ports.clock import Clock


class NovaCloud:
    """A `Cloud` on an OpenStack; safe from many threads. Nothing is sent before the first call."""

    def __init__(self, conf: Any) -> None:
        self._edge = Edge(conf)
        directory = Directory()
        self.call_timeout_s = self._edge.call_timeout_s
        self.hosts: ports.Hosts = NovaHosts(self._edge)
        self.pools: ports.Pools = NovaPools(self._edge, directory)
        self.servers: ports.Servers = NovaServers(self._edge, directory)
        self.moves: ports.Moves = NovaMoves(self._edge, directory)
        self.services: ports.Services = NovaServices(self._edge, directory)
        self.flavors: ports.Flavors = NovaFlavors(self._edge)
        self.slots: ports.Slots = NovaSlots(self._edge, directory)
        self.addresses: ports.Addresses = NovaAddresses(self._edge)
        self.volumes: ports.Volumes = NovaVolumes(self._edge)

    def close(self) -> None:
        self._edge.close()


def connect(conf: Any, clock: Clock) -> NovaCloud:
    """The entry point `nova` of `holdfast.cloud`."""
    return NovaCloud(conf)
