# SPDX-License-Identifier: Apache-2.0
"""The usage monitor: Nova's periodic usage notifications, for metric plugins of a manager.

The monitor reports no failures. It is off unless [monitors] enabled names it. Nova sends these
notifications only if nova.conf sets volume_usage_poll_interval, instance_usage_audit and
compute_monitors.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Generic, TypeVar

from holdfast.hoststatus.status import StatusReport
from holdfast.metrics import collector
from holdfast.metrics.nova_snapshots import of_driver
from holdfast.model.nova_notification import Notice, ServerNotice
from holdfast.ports.cloud import Cloud
from holdfast.ports.metrics import DISK, GUEST, HOST, Entity, Reading, Snapshot, Table
from holdfast.runtime.clock import Clock

VOLUME: Final = "volume.usage"
EXISTS: Final = "instance.exists"
METRICS: Final = "metrics.update"
#: Maximum number of remembered objects of each kind; the least recent ones are dropped.
MOST: Final = 20_000
_DISK: Final = {
    "reads": "rd_reqs",
    "read_bytes": "rd_bytes",
    "writes": "wr_reqs",
    "write_bytes": "wr_bytes",
}
_HOST: Final = {
    "cpu.user.time": "cpu_user_ns",
    "cpu.kernel.time": "cpu_kernel_ns",
    "cpu.idle.time": "cpu_idle_ns",
    "cpu.iowait.time": "cpu_iowait_ns",
    "cpu.frequency": "cpu_mhz",
}
_GUEST: Final = (
    collector.PROCESS_RATES | collector.RAM | {"cpu_time_ns", "cpu_user_ns", "cpu_system_ns"}
)

_T = TypeVar("_T")


class Usage:
    """Turns Nova's usage notifications into metric snapshots; for use by a single thread.

    Notifications: volume.usage (volumes of a server), metrics.update (processors of a host),
    instance.exists (a server).

        usage = Usage(clock)
        snapshot = usage.snapshot(notice)      # None if the notification says nothing new

    Each notification becomes its own snapshot, of its host and its object. Managers share
    Nova's notifications, so one manager does not receive all of them: rates cover the time
    since the previous notification, and there are no sums.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._counted: _Last[tuple[datetime, Mapping[str, float]]] = _Last()
        self._guests: _Last[Entity] = _Last()
        self._passes = 0

    def snapshot(self, notice: Notice) -> Snapshot | None:
        if notice.event_type == VOLUME:
            return self._volume(notice)
        if notice.event_type == METRICS:
            return self._host(notice)
        if notice.event_type == EXISTS and isinstance(notice, ServerNotice):
            return self._server(notice)
        return None

    def _volume(self, notice: Notice) -> Snapshot | None:
        data = notice.data
        volume, server = str(data["volume_id"]), str(data.get("instance_uuid") or "")
        guest = self._guests.get(server)
        entity = Entity(
            DISK,
            f"{server}/{volume}" if server else volume,
            f"{guest.name}/{volume}" if guest else volume,
            project=str(data.get("project_id") or ""),
            flavor=guest.flavor if guest else "",
            guest=server,
            about={"cinder_volume_id": volume},
        )
        at = _time(data.get("last_refreshed")) or notice.at
        now = {ours: float(data[name]) for name, ours in _DISK.items()}
        before = self._before(f"volume {volume}", at, now)
        if before is None:
            return None
        made = collector.disk_rates(now, before[1], before[0])
        return self._made(_publisher(notice), at, before[0], DISK, entity, made)

    def _host(self, notice: Notice) -> Snapshot | None:
        host = str(notice.data["host"])
        metrics = {metric["name"]: metric["value"] for metric in _objects(notice.data["metrics"])}
        now = {
            ours: float(metrics[name])
            for name, ours in _HOST.items()
            if metrics.get(name) is not None
        }
        before = self._before(f"host {host}/{notice.data.get('nodename')}", notice.at, now)
        if before is None:
            return None
        made = of_driver(now, before[1])
        return self._made(host, notice.at, before[0], HOST, Entity(HOST, host, host), made)

    def _server(self, notice: ServerNotice) -> Snapshot:
        (flavor,) = _objects([notice.data["flavor"]])
        vcpus, memory_kib = int(flavor["vcpus"]), int(flavor["memory_mb"]) * 1024
        entity = Entity(
            GUEST,
            notice.server_id,
            notice.name or notice.server_id,
            project=notice.project_id or "",
            flavor=str(flavor["name"]),
            contracts={"balloon_current_kib": float(memory_kib)},
            about={"flavor_vcpus": str(vcpus)},
        )
        self._guests.put(notice.server_id, entity)
        values = {"vcpus": float(vcpus), "balloon_maximum_kib": float(memory_kib)}
        made = collector.Made(values, _GUEST - values.keys())
        host = notice.host or _publisher(notice)
        return self._made(host, notice.at, 0.0, GUEST, entity, made, _stale(notice))

    def _before(
        self, key: str, at: datetime, now: Mapping[str, float]
    ) -> tuple[float, Mapping[str, float] | None] | None:
        """Seconds since the previous values of this key, and these values.

        None if the notification is a duplicate or out of order.
        """
        last = self._counted.get(key)
        if last is not None and at <= last[0]:
            return None
        self._counted.put(key, (at, now))
        return (0.0, None) if last is None else ((at - last[0]).total_seconds(), last[1])

    def _made(
        self,
        host: str,
        at: datetime,
        elapsed_s: float,
        kind: str,
        entity: Entity,
        made: collector.Made,
        stale: str = "",
    ) -> Snapshot:
        self._passes += 1
        table = Table(kind, [Reading(entity, made.values, made.missing, stale)])
        now = self._clock.monotonic()
        return Snapshot(host, self._passes, at, now, elapsed_s, {kind: table})


class _Last(Generic[_T]):
    """The most recent values by key, up to MOST keys."""

    def __init__(self) -> None:
        self._values: OrderedDict[str, _T] = OrderedDict()

    def get(self, key: str) -> _T | None:
        return self._values.get(key)

    def put(self, key: str, value: _T) -> None:
        self._values[key] = value
        self._values.move_to_end(key)
        if len(self._values) > MOST:
            self._values.popitem(last=False)


def _stale(notice: ServerNotice) -> str:
    """Why the values are not of a running server; "" if the server runs."""
    return "" if notice.power_state in (None, "running") else str(notice.power_state)


def _publisher(notice: Notice) -> str:
    """The host of a publisher id: `cmp-7` of `nova-compute:cmp-7`."""
    return notice.publisher.partition(":")[2] or notice.publisher


def _objects(wrapped: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [object_["nova_object.data"] for object_ in wrapped]


def _time(text: str | None) -> datetime | None:
    if not text:
        return None
    at = datetime.fromisoformat(text)
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


class UsageMonitor:
    """Monitor which passes usage snapshots to metric plugins."""

    name = "usage"
    topics: Sequence[str] = ("versioned_notifications",)
    event_types: Sequence[str] = (VOLUME, EXISTS, METRICS)
    push_only = True

    def __init__(self, offer: Callable[[Snapshot], None], clock: Clock) -> None:
        """Create the monitor; `offer` must not block."""
        self._offer = offer
        self._usage = Usage(clock)

    def heard(self, notice: Notice) -> Sequence[StatusReport]:
        snapshot = self._usage.snapshot(notice)
        if snapshot is not None:
            self._offer(snapshot)
        return []

    def states(self, cloud: Cloud, at: datetime) -> Sequence[StatusReport]:
        return []
