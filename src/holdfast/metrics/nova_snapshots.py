# SPDX-License-Identifier: Apache-2.0
"""Snapshots built from nova-compute's monitor messages and the kernel.

    snapshots = NovaSnapshots(host.read, qemus.read, clock)
    snapshot = snapshots.snapshot(Message.of(json.loads(line)))

If Nova's driver reports CPU counters, these count. Memory, load, pressure and the guests'
process values come from the kernel. Nova reports the UUIDs of all servers on the host. A server
without a QEMU process here (stopped, or on another hypervisor) gets a stale reading without
values.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from holdfast.metrics import collector
from holdfast.ports.metrics import GUEST, HOST, Entity, Process, Reading, Snapshot, Table
from holdfast.runtime.clock import Clock

NO_PROCESS: Final = "no process"
_PROCESS: Final = frozenset({"cpu_time_ns", "cpu_user_ns", "cpu_system_ns", "rss_kib"})
_STEAL: Final = ("cpu_steal_ns", "cpu_steal_ratio")

Processes = Callable[[Collection[str]], Mapping[str, Process]]


@dataclass(frozen=True, slots=True)
class Message:
    """A message of nova-compute's monitor (`holdfast.nova.compute_monitor`)."""

    host: str
    at: datetime
    cpu: Mapping[str, float]
    promised: Mapping[str, float]
    guests: tuple[str, ...]

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> "Message":
        """Build the message from parsed JSON."""
        at = datetime.fromtimestamp(body["at"], UTC)
        return cls(body["host"], at, body["cpu"], body["promised"], tuple(body["guests"]))


def of_driver(now: Mapping[str, float], before: Mapping[str, float] | None) -> collector.Made:
    """Compute host rates from the CPU counters of Nova's driver, without steal time.

    Nova's driver reports no steal time, and the kernel's steal time would not fit the driver's
    other counters.
    """
    made = collector.host_rates(_without(now), _without(before) if before is not None else None)
    values = {name: value for name, value in made.values.items() if name not in _STEAL}
    return collector.Made(values, made.missing | {_STEAL[1]})


def _without(values: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in values.items() if name not in _STEAL}


class NovaSnapshots:
    """Builds snapshots from Nova messages; only one thread may use an instance."""

    def __init__(
        self, read_host: Callable[[], Mapping[str, float]], processes: Processes, clock: Clock
    ) -> None:
        self._read_host = read_host
        self._processes = processes
        self._clock = clock
        self._host: Mapping[str, float] | None = None
        self._before: Mapping[str, Process] = {}
        self._guests: Mapping[str, Entity] = {}
        self._at: float | None = None
        self._passes = 0

    def snapshot(self, message: Message) -> Snapshot:
        now = self._clock.monotonic()
        elapsed_s = now - self._at if self._at is not None else 0.0
        self._at, self._passes = now, self._passes + 1
        host = Table(HOST, [self._of_host(message)])
        guests = Table(GUEST, self._of_guests(message.guests))
        return Snapshot(
            message.host,
            self._passes,
            message.at,
            now,
            elapsed_s,
            {HOST: host, GUEST: guests},
        )

    def _of_host(self, message: Message) -> Reading:
        values = {**self._read_host(), **message.cpu}
        made = (
            of_driver(values, self._host)
            if message.cpu
            else collector.host_rates(values, self._host)
        )
        self._host = values
        all_values = {**made.values, **message.promised}
        return Reading(Entity(HOST, message.host, message.host), all_values, made.missing)

    def _of_guests(self, uuids: tuple[str, ...]) -> list[Reading]:
        processes = self._processes(uuids)
        readings = []
        for uuid in uuids:
            entity = self._guest(uuid, processes.get(uuid))
            if uuid not in processes:
                readings.append(Reading(entity, {}, _PROCESS | collector.PROCESS_RATES, NO_PROCESS))
                continue
            made = collector.process_rates(processes[uuid], self._before.get(uuid), 1)
            readings.append(Reading(entity, made.values, made.missing))
        self._before = processes
        self._guests = {reading.entity.id: reading.entity for reading in readings}
        return readings

    def _guest(self, uuid: str, process: Process | None) -> Entity:
        """Return the entity of a guest, the same object until something changes.

        Nova reports only the UUID.
        """
        vcpus = len(process.vcpus) if process is not None else 0
        about = {"flavor_vcpus": str(vcpus)} if vcpus else {}
        entity = self._guests.get(uuid)
        return (
            entity if entity and entity.about == about else Entity(GUEST, uuid, uuid, about=about)
        )
