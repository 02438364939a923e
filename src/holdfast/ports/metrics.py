# SPDX-License-Identifier: Apache-2.0
"""Metrics of a host and its guests: snapshots for plugins and alarms, and the hypervisor port.

    Snapshot("cmp-7", 41, at, monotonic, 1.0, {
        GUEST: Table(GUEST, (Reading(web1, {"util_ratio": 0.97, "cpu_time_ns": 81_000_000}),)),
    })

A collector makes a snapshot in every pass and never changes it. Metric names carry the unit
(`_ns`, `_bytes`, `_kib`, `_per_s`, `_ratio`); counters are stored as read, with rates beside
them. An unknown metric is absent and named in `missing`, for example the rate after a counter
stepped back. If an entity could not be read (a suspended guest, or a guest whose QEMU hangs),
its reading is `stale` and says why: its numbers are the last known, and they raise no alarm.

A metric that is read less often keeps its number in the passes between, and is then not
`fresh`. The collector drops a number older than two of its intervals. An `Entity` has to be the
same object in every pass as long as nothing about it changes, because that makes passes cheap.
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
#: Why an entity appeared or disappeared: live migration to or from this host.
MIGRATED: Final = "migrated"
NAN: Final = math.nan


@dataclass(frozen=True, slots=True)
class Entity:
    """A measured object. `id` stays the same on every host.

    The id is the name of a host, the uuid of a guest, uuid/vda of a disk, uuid/port (or
    uuid/tap… if there is no port) of an interface.
    """

    kind: str
    id: str
    name: str = ""
    project: str = ""
    project_name: str = ""
    flavor: str = ""
    guest: str = ""  # the guest that owns the disk or interface
    #: The owner's limits, by the name of the limited metric: {"tx_bps": 5e9}.
    contracts: Mapping[str, float] = field(default_factory=dict)
    came: str = ""  # "migrated" in the first pass after a live migration to this host
    #: Text attributes for plugins: target, path, volume, ifname, mac, port.
    about: Mapping[str, str] = field(default_factory=dict)


class Reading(NamedTuple):
    """The metrics read of an entity in a pass."""

    entity: Entity
    values: Mapping[str, float]
    missing: frozenset[str] = frozenset()
    stale: str = ""  # why: suspended, no answer


class Table:
    """All readings of a kind of entity.

    The table builds a column (one metric of all entities) on demand, because few metrics are
    used.
    """

    def __init__(
        self, kind: str, readings: Sequence[Reading], fresh: frozenset[str] | None = None
    ) -> None:
        """Make a table; `fresh` names the metrics read in this pass, None means all."""
        self.kind = kind
        self.readings = tuple(readings)
        self.entities = tuple(reading.entity for reading in self.readings)
        self.fresh = fresh
        self._rows = [reading.values for reading in self.readings]
        self._stale = [row for row, reading in enumerate(self.readings) if reading.stale]
        self._columns: dict[str, Sequence[float]] = {}

    def is_fresh(self, field: str) -> bool:
        return self.fresh is None or field in self.fresh

    def column(self, field: str) -> Sequence[float]:
        """Return a metric of all entities, in the order of `entities`; NaN if unknown now."""
        if field not in self._columns:
            self.prepare((field,))
        return self._columns[field]

    def prepare(self, fields: Collection[str]) -> None:
        """Build several columns in a single pass over the rows, which is cheaper."""
        names = [name for name in fields if name not in self._columns]
        if not names:
            return
        # an itemgetter with one name returns the value itself, not a tuple
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
        """Return the same entities with all readings marked stale."""
        readings = [
            Reading(reading.entity, reading.values, reading.missing, why)
            for reading in self.readings
        ]
        return Table(self.kind, readings, self.fresh)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The metrics of a pass. `pass_id` only grows while the agent runs.

    `elapsed_s` is the time since the pass before. A kind that could not be read at all is
    absent from `tables`.
    """

    host: str
    pass_id: int
    at: datetime
    monotonic: float
    elapsed_s: float
    tables: Mapping[str, Table]
    gone: Mapping[str, str] = field(default_factory=dict)  # entities that left, and why


# Raw counters of a host and its guests, and the roster of guests, as a driver reads them.
#
# The driver reads the kernel in every pass (`read`), on the caller's thread; the kernel always
# answers. A thread of the driver asks the hypervisor now and then; the driver keeps the last
# answers (`said`) with their time, so that one guest that does not answer does not delay the
# others. Package `metrics` makes a `Snapshot` of both.


#: The state of a running guest; in any other state the guest's numbers stand still.
RUNNING: Final = "running"

Contracts = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Disk:
    target: str  # vda
    path: str = ""
    volume: str = ""  # Cinder's id
    #: By the name of the limited metric: iops, rd_bytes_per_s, …
    contracts: Contracts = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Nic:
    ifname: str  # on the host; "" if there is none on the host (SR-IOV)
    mac: str = ""
    port: str = ""  # Neutron's id
    #: The host's end of a tap sends the guest's received traffic; a macvtap counts as the guest
    #: does.
    swapped: bool = True
    contracts: Contracts = field(default_factory=dict)  # rx_bps, tx_bps

    @property
    def key(self) -> str:
        """Return the key of the interface within its guest."""
        return self.ifname or self.port or self.mac


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about a guest that do not change while the guest runs, read once at its start."""

    uuid: str
    name: str
    project: str = ""
    project_name: str = ""
    flavor: str = ""
    vcpus: int = 1
    memory_kib: int = 0
    balloon_kib: int = 0  # the guest's memory after the last balloon change
    disk_bytes: int | None = None  # the flavor's disk size
    disks: Sequence[Disk] = ()
    nics: Sequence[Nic] = ()
    #: Whether the guest reports its memory use; a guest that does not is not asked.
    tells_memory: bool = False


@dataclass(frozen=True, slots=True)
class Guest:
    """A guest with a process on this host. `came` is "migrated" after a live migration."""

    facts: Facts
    state: str = RUNNING
    reason: str = ""
    came: str = ""


@dataclass(frozen=True, slots=True)
class Roster:
    """The guests of a host. A roster never changes: after an event there is a new roster.

    Before the driver has read all guests for the first time, the roster is empty and not
    `whole`: a guest missing from it is not gone.
    """

    guests: Mapping[str, Guest] = field(default_factory=dict)  # by uuid; guests with a process
    defined: Mapping[str, Facts] = field(default_factory=dict)  # all guests, stopped guests too
    left: Mapping[str, str] = field(default_factory=dict)  # guests that left lately, and why
    whole: bool = True


class Vcpu(NamedTuple):
    number: int
    time_ns: int
    delay_ns: int  # time runnable without running


class Process(NamedTuple):
    """A guest's process as the kernel sees it."""

    at: float  # monotonic
    started: int  # start time; identifies the process together with its pid
    cpu_ns: int
    user_ns: int
    system_ns: int
    rss_kib: int
    vcpus: Sequence[Vcpu]


class Link(NamedTuple):
    """Counters of a network interface on the host."""

    rx_bytes: int
    rx_pkts: int
    rx_errs: int
    rx_drop: int
    tx_bytes: int
    tx_pkts: int
    tx_errs: int
    tx_drop: int


class HostCounters(NamedTuple):
    """Kernel counters read at a moment; a missing guest or interface could not be read."""

    at: float
    host: Mapping[str, float]
    processes: Mapping[str, Process]  # by uuid
    links: Mapping[str, Link]  # by name
    links_at: float


class Stats(NamedTuple):
    """The hypervisor's statistics of a guest, under libvirt's names: block.0.rd.reqs."""

    at: float
    values: Mapping[str, float | str]


@dataclass(frozen=True, slots=True)
class PolledStats:
    """The hypervisor's last answers. `round` grows with new answers.

    `silent` says why a guest has no answer.
    """

    round: int = 0
    stats: Mapping[str, Stats] = field(default_factory=dict)  # by uuid
    silent: Mapping[str, str] = field(default_factory=dict)
    interval_s: float = 30.0


class Measures(Protocol):
    def start(self) -> None:
        """Start the driver and return at once; the driver reconnects until `close`."""
        ...

    def close(self) -> None: ...

    def roster(self) -> Roster: ...

    def polled(self) -> PolledStats: ...

    def read(self, roster: Roster) -> HostCounters:
        """Read the kernel now: tens of microseconds per guest, without waiting."""
        ...
