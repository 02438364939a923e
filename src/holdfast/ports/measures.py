# SPDX-License-Identifier: Apache-2.0
"""What a hypervisor knows of its host and guests, before anything is made of it: counters as they
were read, in two tiers, and who is there.

The kernel is asked every pass (`look`), on the caller's thread, and always answers. The hypervisor
is asked now and then by a thread of the driver's own; what it said last is kept (`said`), with the
time at which it did: one guest that does not answer takes nothing from the others.
`watch/metrics/` makes a `ports.metrics.Snapshot` of both.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

#: A guest's own word for its state while it runs; in any other its numbers stand still.
RUNNING: Final = "running"

Contracts = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Disk:
    target: str  # vda
    path: str = ""
    volume: str = ""  # Cinder's id
    #: Under the names of what they limit: iops, rd_bytes_per_s, …
    contracts: Contracts = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Nic:
    ifname: str  # on the host; "" if it has none there (SR-IOV)
    mac: str = ""
    port: str = ""  # Neutron's id
    #: The host's end of a tap sends what the guest receives; a macvtap counts as the guest does.
    swapped: bool = True
    contracts: Contracts = field(default_factory=dict)  # rx_bps, tx_bps

    @property
    def key(self) -> str:
        """What tells it from the others of its guest."""
        return self.ifname or self.port or self.mac


@dataclass(frozen=True, slots=True)
class Facts:
    """What does not change while a guest runs, read once when it starts."""

    uuid: str
    name: str
    project: str = ""
    project_name: str = ""
    flavor: str = ""
    vcpus: int = 1
    memory_kib: int = 0
    balloon_kib: int = 0  # what the balloon leaves it, as of the last change of that
    disk_bytes: int | None = None  # what its flavor promises
    disks: Sequence[Disk] = ()
    nics: Sequence[Nic] = ()
    #: Whether it tells what it does with its memory; who does not is not asked.
    tells_memory: bool = False


@dataclass(frozen=True, slots=True)
class Guest:
    """One that has a process here. `came`: migrated, if that is how it got here."""

    facts: Facts
    state: str = RUNNING
    reason: str = ""
    came: str = ""


@dataclass(frozen=True, slots=True)
class Roster:
    """Who is here. Never changed: there is a new one when something happened. Before all have been
    read for the first time it is not `whole`, and nobody is in it: who is not in it is not gone."""

    guests: Mapping[str, Guest] = field(default_factory=dict)  # by uuid; those with a process
    defined: Mapping[str, Facts] = field(default_factory=dict)  # everybody, stopped ones too
    left: Mapping[str, str] = field(default_factory=dict)  # why, of those that left lately
    whole: bool = True


class Vcpu(NamedTuple):
    number: int
    time_ns: int
    delay_ns: int  # it wanted to run and could not


class Process(NamedTuple):
    """The kernel's word on a guest's process."""

    at: float  # monotonic
    started: int  # with the process id, who it is
    cpu_ns: int
    user_ns: int
    system_ns: int
    rss_kib: int
    vcpus: Sequence[Vcpu]


class Link(NamedTuple):
    """A network interface as the host counts."""

    rx_bytes: int
    rx_pkts: int
    rx_errs: int
    rx_drop: int
    tx_bytes: int
    tx_pkts: int
    tx_errs: int
    tx_drop: int


class Look(NamedTuple):
    """One look at the kernel. Who is not in it could not be seen."""

    at: float
    host: Mapping[str, float]
    processes: Mapping[str, Process]  # by uuid
    links: Mapping[str, Link]  # by name
    links_at: float


class Stats(NamedTuple):
    """What the hypervisor said of one guest, under its own names: block.0.rd.reqs."""

    at: float
    values: Mapping[str, float | str]


@dataclass(frozen=True, slots=True)
class Said:
    """The last answers. `round` grows when new ones are in; `silent` says why there is none."""

    round: int = 0
    stats: Mapping[str, Stats] = field(default_factory=dict)  # by uuid
    silent: Mapping[str, str] = field(default_factory=dict)
    every_s: float = 30.0


class Measures(Protocol):
    def start(self) -> None:
        """Returns at once. What is lost is found again, for ever, until `close`."""
        ...

    def close(self) -> None: ...

    def roster(self) -> Roster: ...

    def said(self) -> Said: ...

    def look(self, roster: Roster) -> Look:
        """Now. Takes tens of microseconds for each guest, and waits for nothing."""
        ...
