# SPDX-License-Identifier: Apache-2.0
"""What was measured of one host and its guests in one pass, the same for plugins and alarms.

    Snapshot("cmp-7", 41, at, monotonic, 1.0, {
        GUEST: Table(GUEST, (Reading(web1, {"util_ratio": 0.97, "cpu_time_ns": 81_000_000}),)),
    })

A collector makes one for every pass and never changes it. Numbers are under names that say their
unit (`_ns`, `_bytes`, `_kib`, `_per_s`, `_ratio`), counters as they were read and rates beside
them. What is not known is not there, and named in `missing`: after a counter stepped back that is
its rate. Of what could not be asked, a guest that is suspended or whose QEMU hangs, the reading
is `stale` and says why: its numbers are the last that were known, and no alarm comes of them.

What is read seldom keeps its number in the passes between, and is then not `fresh`; a collector
leaves it out when it is older than two of its intervals. An `Entity` is to be the same object
in every pass for as long as nothing about it changes: then passes are cheap.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from operator import itemgetter
from typing import Final, NamedTuple, Protocol, cast

HOST: Final = "host"
GUEST: Final = "guest"
DISK: Final = "disk"
NIC: Final = "nic"
KINDS: Final = (HOST, GUEST, DISK, NIC)
#: Why something is no longer there, or came: it moved here, or away, while it ran.
MIGRATED: Final = "migrated"
NAN: Final = math.nan


@dataclass(frozen=True, slots=True)
class Entity:
    """What is measured. `id` is the same wherever it runs: the name of a host, the uuid of a
    guest, uuid/vda of its disk, uuid/tap… or better uuid/port of its interface."""

    kind: str
    id: str
    name: str = ""
    project: str = ""
    project_name: str = ""
    flavor: str = ""
    guest: str = ""  # whose disk or interface it is
    #: What its owner may use at most, under the name of the number it limits: {"tx_bps": 5e9}.
    contracts: Mapping[str, float] = field(default_factory=dict)
    came: str = ""  # in the first pass that knows it: "migrated", if it did
    #: What is said of it in words, for plugins: target, path, volume, ifname, mac, port.
    about: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read of one entity."""

    entity: Entity
    values: Mapping[str, float]
    missing: frozenset[str] = frozenset()
    stale: str = ""  # why: suspended, no answer


class Table:
    """All readings of one kind. Columns, for whoever looks at one number of all of them, are made
    when they are asked for: few numbers are."""

    def __init__(
        self, kind: str, readings: Sequence[Reading], fresh: frozenset[str] | None = None
    ) -> None:
        """`fresh`: what was read in this pass; None: everything."""
        self.kind = kind
        self.readings = tuple(readings)
        self.entities = tuple(one.entity for one in self.readings)
        self.fresh = fresh
        self._rows = [one.values for one in self.readings]
        self._stale = [row for row, one in enumerate(self.readings) if one.stale]
        self._columns: dict[str, Sequence[float]] = {}

    def is_fresh(self, field: str) -> bool:
        return self.fresh is None or field in self.fresh

    def column(self, field: str) -> Sequence[float]:
        """One number of all, in the order of `entities`; NaN where it is not known now."""
        if field not in self._columns:
            self.prepare((field,))
        return self._columns[field]

    def prepare(self, fields: Collection[str]) -> None:
        """Make several columns at once, which is cheaper: every row is looked at once."""
        names = [name for name in fields if name not in self._columns]
        if not names:
            return
        # with one name an itemgetter gives the value itself, no tuple of it
        pick = itemgetter(*names, *names[:1]) if len(names) == 1 else itemgetter(*names)
        rows = []
        for values in self._rows:
            try:
                rows.append(pick(values))
            except KeyError:
                rows.append(tuple(values.get(name, NAN) for name in names))
        columns = zip(*rows, strict=False) if rows else [()] * len(names)
        for name, column in zip(names, columns, strict=False):
            self._columns[name] = self._known(column)

    def _known(self, column: Sequence[float | None]) -> Sequence[float]:
        made = [NAN if value is None else value for value in column] if None in column else column
        if not self._stale:
            return cast(Sequence[float], made)
        made = list(made)
        for row in self._stale:
            made[row] = NAN
        return cast(Sequence[float], made)

    def unread(self, why: str) -> "Table":
        """The same entities, of which nothing is known now."""
        readings = [Reading(one.entity, one.values, one.missing, why) for one in self.readings]
        return Table(self.kind, readings, self.fresh)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One pass. `pass_id` only grows while the agent runs; `elapsed_s` is since the pass before.
    A kind that could not be read at all is not in `tables`."""

    host: str
    pass_id: int
    at: datetime
    monotonic: float
    elapsed_s: float
    tables: Mapping[str, Table]
    gone: Mapping[str, str] = field(default_factory=dict)  # who left since, and why


# What a hypervisor knows of its host and guests, before anything is made of it: counters as they
# were read, in two tiers, and who is there.
#
# The kernel is asked every pass (`look`), on the caller's thread, and always answers. The
# hypervisor
# is asked now and then by a thread of the driver's own; what it said last is kept (`said`), with
# the
# time at which it did: one guest that does not answer takes nothing from the others.
# `watch/metrics/` makes a `ports.metrics.Snapshot` of both.


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


class HostCounters(NamedTuple):
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

    def read(self, roster: Roster) -> HostCounters:
        """Now. Takes tens of microseconds for each guest, and waits for nothing."""
        ...
