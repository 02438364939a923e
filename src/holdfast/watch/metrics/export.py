# SPDX-License-Identifier: Apache-2.0
"""Which numbers are worth sending: those that changed, and each of them now and then. Pure.

    export = Export(Fields(["guest.util_ratio"]), Band(0.05, refresh_s=300))
    for sample in export.due(snapshot):
        export.sent(sample)

What was sent is compared with what is, so that one that could not be sent is due again. The
refreshes of many numbers are spread over their interval: not all come at once.
"""

import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from holdfast.model.metric_fields import Fields, has_changed, is_counter
from holdfast.ports.metric_sinks import Sample
from holdfast.ports.metrics import Reading, Snapshot, Table


@dataclass(frozen=True)
class Band:
    """A number is sent if it changed by more than `change` of itself, and every `refresh_s`."""

    change: float = 0.05
    refresh_s: float = 300.0


class _Sent(NamedTuple):
    value: float
    fresh_until: float


class Export:
    """One thread at a time."""

    def __init__(self, fields: Fields, band: Band) -> None:
        self._fields = fields
        self._band = band
        self._sent: dict[tuple[str, str], dict[str, _Sent]] = {}

    def due(self, snapshot: Snapshot) -> list[Sample]:
        """What was sent longest ago first, what never was before that."""
        found: list[tuple[float, Sample]] = []
        for kind, table in snapshot.tables.items():
            for reading in table.readings:
                found += self._of(snapshot, reading)
            self._forget(kind, table)
        found.sort(key=lambda one: one[0])
        return [sample for _, sample in found]

    def sent(self, sample: Sample) -> None:
        entity, now = sample.entity, sample.monotonic
        known = self._sent.setdefault((entity.kind, entity.id), {})
        again_s = self._band.refresh_s
        if sample.field not in known:
            again_s *= _share(f"{entity.id} {sample.field}")
        known[sample.field] = _Sent(sample.value, now + again_s)

    def _of(self, snapshot: Snapshot, reading: Reading) -> Iterator[tuple[float, Sample]]:
        entity, now = reading.entity, snapshot.monotonic
        if reading.stale:
            return
        known: Mapping[str, _Sent] = self._sent.get((entity.kind, entity.id), {})
        for field, value in reading.values.items():
            if not self._fields.has(entity.kind, field) or not math.isfinite(value):
                continue
            last = known.get(field)
            until = -math.inf if last is None else last.fresh_until
            if last is not None and now < until and self._is_near(field, value, last.value):
                continue
            step = None
            if last is not None and is_counter(field) and value >= last.value:
                step = value - last.value
            yield until, Sample(snapshot.host, entity, field, value, snapshot.at, now, step)

    def _is_near(self, field: str, value: float, last: float) -> bool:
        return not has_changed(field, value, last, self._band.change)

    def _forget(self, kind: str, table: Table) -> None:
        """Who is no longer there."""
        mine = [key for key in self._sent if key[0] == kind]
        if len(mine) <= len(table.entities):
            return
        there = {one.id for one in table.entities}
        for key in mine:
            if key[1] not in there:
                del self._sent[key]


def _share(text: str) -> float:
    """The same for the same text, anything from 0 to 1."""
    return zlib.crc32(text.encode(errors="replace")) / 2**32
