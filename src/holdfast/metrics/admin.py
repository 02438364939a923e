# SPDX-License-Identifier: Apache-2.0
"""Metrics commands of the agent's admin socket (`agent/admin.py`).

The commands return the last metrics snapshot as a table of guests, stream one table or one
recorded line per pass, and list the counters of the metric sinks.
"""

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from holdfast.agent.admin import Handler, Items, only, text
from holdfast.alarms import preview
from holdfast.metrics.sinks.worker import SinkWorker
from holdfast.model.errors import InvalidInput, Unavailable
from holdfast.ports.metric_plugins import Transition
from holdfast.ports.metrics import DISK, GUEST, HOST, NIC, Reading, Snapshot
from holdfast.runtime.clock import Clock

# Guest table: one row per guest, the busiest guest first. Pure functions.
#
# An unknown value is None, never 0. The rates of a guest's disks are added up, and so are those
# of its interfaces; unknown values are skipped. If a guest has several contracts, `contract` is
# the share of the contract that is used most.


#: Columns that rows can be sorted by: numbers with the largest first, words from a to z.
NUMBERS: Final = (
    *("cpu", "steal", "mem", "mem_ratio", "rd_bytes", "wr_bytes", "rd_iops", "wr_iops"),
    *("rx_bps", "tx_bps", "contract", "alarms"),
)
WORDS: Final = ("name", "project")
_SUMS: Final = {
    DISK: (
        ("rd_bytes", "rd_bytes_per_s"),
        ("wr_bytes", "wr_bytes_per_s"),
        ("rd_iops", "rd_iops"),
        ("wr_iops", "wr_iops"),
    ),
    NIC: (("rx_bps", "rx_bps"), ("tx_bps", "tx_bps")),
}
Row = dict[str, Any]


def table(
    snapshot: Snapshot, alarms: Iterable[Transition], sort: str = "cpu", limit: int = 0
) -> Row:
    """Return the host's values and guest rows, sorted by column `sort`.

    `limit` is the largest number of guest rows; 0 means all guests. InvalidInput lists the
    columns if `sort` is unknown.
    """
    if sort not in (*NUMBERS, *WORDS):
        there = ", ".join((*NUMBERS, *WORDS))
        raise InvalidInput(f"there is nothing called {sort[:80]!r} to sort by: there are {there}")
    alarms = list(alarms)
    guests = rows(snapshot, alarms)
    guests.sort(key=lambda row: _place(row, sort))
    return {
        "host": snapshot.host,
        "at": snapshot.at.isoformat(),
        "pass_id": snapshot.pass_id,
        "total": len(guests),
        "alarms": sum(transition.state in ("firing", "no_data") for transition in alarms),
        "node": _node(snapshot),
        "guests": guests[:limit] if limit else guests,
    }


def rows(snapshot: Snapshot, alarms: Sequence[Transition]) -> list[Row]:
    """Build an unsorted row per guest, with the number of its firing or no-data alarms."""
    parts = {kind: _by_guest(snapshot, kind) for kind in (DISK, NIC)}
    raised = Counter(
        transition.entity.partition("/")[0]
        for transition in alarms
        if transition.kind != HOST and transition.state in ("firing", "no_data")
    )
    return [
        {**_row(reading, {kind: by.get(reading.entity.id, []) for kind, by in parts.items()}),
         "alarms": raised.get(reading.entity.id, 0)}
        for reading in _readings(snapshot, GUEST)
    ]  # fmt: skip


def _row(reading: Reading, parts: Mapping[str, Sequence[Reading]]) -> Row:
    """Build the row of a guest from its reading and the readings of its disks and NICs."""
    entity, values = reading.entity, reading.values
    row: Row = {
        "uuid": entity.id,
        "name": entity.name,
        "project": entity.project_name or entity.project,
        "flavor": entity.flavor,
        "stale": reading.stale,
        **dict.fromkeys(NUMBERS),
    }
    if not reading.stale:
        row["cpu"], row["steal"] = values.get("util_ratio"), values.get("steal_ratio")
        row["mem"], row["mem_ratio"] = _memory(values)
    for kind, sums in _SUMS.items():
        current = [part.values for part in parts[kind] if not part.stale]
        for name, field in sums:
            row[name] = _sum(current, field)
    row["contract"] = max(
        (ratio for source in (reading, *parts[DISK], *parts[NIC]) for ratio in _used(source)),
        default=None,
    )
    return row


def _memory(values: Mapping[str, float]) -> tuple[float | None, float | None]:
    """Return used memory in bytes and as a ratio.

    If the guest's balloon driver reports memory, both values come from the guest. Otherwise the
    bytes are the resident memory of the QEMU process and the ratio is None.
    """
    ratio, available = values.get("used_ratio"), values.get("available_kib")
    if ratio is not None and available is not None:
        return ratio * available * 1024, ratio
    rss = values.get("rss_kib")
    return (None if rss is None else rss * 1024), None


def _used(reading: Reading) -> Iterable[float]:
    """Yield used share of each contract (upper limit) of a guest, disk or NIC.

    The memory size (`balloon_current_kib`) is left out: it is a fixed size, not a rate.
    """
    if reading.stale:
        return
    for field, limit in reading.entity.contracts.items():
        value = reading.values.get(field)
        if value is not None and limit > 0 and field != "balloon_current_kib":
            yield value / limit


def _sum(rows: Sequence[Mapping[str, float]], field: str) -> float | None:
    numbers = [values[field] for values in rows if field in values]
    return sum(numbers) if numbers else None


def _by_guest(snapshot: Snapshot, kind: str) -> dict[str, list[Reading]]:
    readingses: dict[str, list[Reading]] = defaultdict(list)
    for reading in _readings(snapshot, kind):
        readingses[reading.entity.guest].append(reading)
    return readingses


def _readings(snapshot: Snapshot, kind: str) -> Sequence[Reading]:
    table = snapshot.tables.get(kind)
    return table.readings if table is not None else ()


def _node(snapshot: Snapshot) -> Row:
    names = ("cpu_util_ratio", "load1", "mem_total_bytes", "mem_free_bytes", "vms_running")
    values: Mapping[str, float] = {}
    for reading in _readings(snapshot, HOST):
        values = reading.values
    return {name: values.get(name) for name in names}


def _place(row: Row, sort: str) -> tuple[Any, ...]:
    """Return the sort key of a row; rows with an unknown value sort last."""
    value = row[sort]
    if sort in WORDS:
        return (value, row["name"], row["uuid"])
    return (value is None, -(value or 0.0), row["name"], row["uuid"])


#: Seconds between two checks for a new snapshot while a client streams.
TICK_S: Final = 0.25


class MetricsCommands:
    """Handlers for the `metrics.*` commands of the admin socket."""

    def __init__(
        self,
        last: Callable[[], Snapshot | None],
        clock: Clock,
        alarms: Callable[[], Sequence[Transition]] = tuple,
        sinks: Sequence[Any] = (),
    ) -> None:
        """`last` returns the last snapshot, `alarms` the standing alarms; any thread may call
        both."""
        self._last = last
        self._clock = clock
        self._alarms = alarms
        self._sinks = sinks

    def commands(self) -> Mapping[str, Handler]:
        return {
            "metrics.snapshot": self.snapshot,
            "metrics.top": self.top,
            "metrics.record": self.record,
            "metrics.sinks": self.sinks,
        }

    def snapshot(self, args: Mapping[str, Any]) -> dict[str, Any]:
        sort, limit = _wish(args)
        last = self._last()
        if last is None:
            raise Unavailable("no pass was made yet: try again in a moment")
        return table(last, self._alarms(), sort, limit)

    def top(self, args: Mapping[str, Any]) -> Items:
        """Stream a table per pass for as long as the client reads."""
        sort, limit = _wish(args)
        for last in self._passes():
            yield None if last is None else table(last, self._alarms(), sort, limit)

    def record(self, args: Mapping[str, Any]) -> Items:
        """Stream every snapshot as a line of a recording (`alarms/preview.py`)."""
        only(args)
        for last in self._passes():
            yield None if last is None else {"line": preview.line(last)}

    def _passes(self) -> Iterator[Snapshot | None]:
        """Yield each new snapshot once, beginning with the last; None while there is none."""
        never, shown = threading.Event(), -1
        while True:
            last = self._last()
            if last is not None and last.pass_id != shown:
                shown = last.pass_id
                yield last
            else:
                yield None
                self._clock.wait(never, TICK_S)

    def sinks(self, args: Mapping[str, Any]) -> dict[str, Any]:
        only(args)
        return {
            "sinks": [
                {"name": sink.name, **(asdict(sink.tally) if isinstance(sink, SinkWorker) else {})}
                for sink in self._sinks
            ]
        }


def _wish(args: Mapping[str, Any]) -> tuple[str, int]:
    """Return `sort` and `limit` of the arguments. InvalidInput if `limit` is not a number."""
    only(args, "sort", "limit")
    limit = args.get("limit", 0)
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 0:
        raise InvalidInput("`limit` is a number, 0 for everybody")
    return text(args, "sort") or "cpu", limit
