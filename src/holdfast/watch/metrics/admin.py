# SPDX-License-Identifier: Apache-2.0
"""What an agent answers about the numbers of its host (`watch/admin.py`): the last pass, once or
pass by pass, as a table or as it is recorded; and what leaves by its sinks."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from holdfast.model.errors import InvalidInput, Unavailable
from holdfast.ports.clock import Clock
from holdfast.ports.metric_sinks import Transition
from holdfast.ports.metrics import Snapshot
from holdfast.watch.admin import Handler, Items, only, text
from holdfast.watch.alarms import record
from holdfast.watch.metrics import top
from holdfast.watch.metrics.sink_lane import SinkLane

#: Those who watch are looked after so often.
TICK_S: Final = 0.25


class MetricsCommands:
    def __init__(
        self,
        last: Callable[[], Snapshot | None],
        clock: Clock,
        alarms: Callable[[], Sequence[Transition]] = tuple,
        sinks: Sequence[Any] = (),
    ) -> None:
        """`last`: the last pass. `alarms`: those that are not over. Any thread may call them."""
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
        return top.table(last, self._alarms(), sort, limit)

    def top(self, args: Mapping[str, Any]) -> Items:
        """A table for every pass, for as long as somebody reads."""
        sort, limit = _wish(args)
        for last in self._passes():
            yield None if last is None else top.table(last, self._alarms(), sort, limit)

    def record(self, args: Mapping[str, Any]) -> Items:
        """Every pass whole, as it is recorded (`watch/alarms/record.py`)."""
        only(args)
        for last in self._passes():
            yield None if last is None else {"line": record.line(last)}

    def _passes(self) -> Iterator[Snapshot | None]:
        """Each once, from the last on; None if there is no other yet."""
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
                {"name": one.name, **(asdict(one.tally) if isinstance(one, SinkLane) else {})}
                for one in self._sinks
            ]
        }


def _wish(args: Mapping[str, Any]) -> tuple[str, int]:
    only(args, "sort", "limit")
    limit = args.get("limit", 0)
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 0:
        raise InvalidInput("`limit` is a number, 0 for everybody")
    return text(args, "sort") or "cpu", limit
