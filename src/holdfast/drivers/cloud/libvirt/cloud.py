# SPDX-License-Identifier: Apache-2.0
"""Plain libvirt as the service sees it: all ports behind one connection to each host."""

from holdfast.drivers.cloud.libvirt.book import Book
from holdfast.drivers.cloud.libvirt.deeds import Deeds
from holdfast.drivers.cloud.libvirt.file import File
from holdfast.drivers.cloud.libvirt.hosts import LibvirtHosts
from holdfast.drivers.cloud.libvirt.looks import Looks
from holdfast.drivers.cloud.libvirt.moves import LibvirtMoves
from holdfast.drivers.cloud.libvirt.place import Rooms
from holdfast.drivers.cloud.libvirt.refusing import (
    NoAddresses,
    NoFlavors,
    NoPools,
    NoSlots,
    NoVolumes,
)
from holdfast.drivers.cloud.libvirt.servers import LibvirtServers
from holdfast.drivers.cloud.libvirt.services import LibvirtServices
from holdfast.drivers.cloud.libvirt.settings import Settings
from holdfast.ports import cloud as ports
from holdfast.ports.clock import Clock


class LibvirtCloud:
    """A `Cloud` on the libvirt of a few hosts; safe from many threads, and from several processes
    of one machine. Nothing is asked of a host before the first call."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.call_timeout_s = settings.call_timeout_s
        self._file = File(settings.state)
        names = [one.name for one in settings.hosts]
        self._looks = Looks(settings, Book(self._file, clock, names))
        deeds, rooms = Deeds(self._looks), Rooms(self._looks)
        servers = LibvirtServers(deeds, rooms)
        self.hosts: ports.Hosts = LibvirtHosts(self._looks)
        self.servers: ports.Servers = servers
        self.moves: ports.Moves = LibvirtMoves(deeds, servers, rooms)
        self.services: ports.Services = LibvirtServices(self._looks)
        self.pools: ports.Pools = NoPools()
        self.flavors: ports.Flavors = NoFlavors()
        self.slots: ports.Slots = NoSlots()
        self.addresses: ports.Addresses = NoAddresses()
        self.volumes: ports.Volumes = NoVolumes()

    def close(self) -> None:
        """What is under way goes on in the hosts; the next manager finds out how it ended."""
        self._looks.close()
        self._file.close()
