# SPDX-License-Identifier: Apache-2.0
"""The host monitor: watches all networks, judges hosts on changes, writes reports to the outbox.

The monitor updates its records only after a report is on disk, so it decides again about a
report that could not be written. `MatrixFile` follows the operator's HA matrix file.
"""

import functools
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Protocol

from holdfast.agent.outbox import Outbox
from holdfast.hostmonitor import health, matrix
from holdfast.hostmonitor.health import HealthRecords, Moment, Report, Sight
from holdfast.hostmonitor.matrix import Matrix
from holdfast.hostmonitor.network import NetworkWatch
from holdfast.runtime.clock import Clock
from holdfast.runtime.documents import Followed
from holdfast.runtime.threads import Worker

LOG = logging.getLogger(__name__)


class MatrixFile(Followed[Matrix]):
    """The HA matrix in force: the operator's file, reloaded after changes, or the default."""

    def __init__(self, path: str | None, networks: Sequence[str]) -> None:
        names = tuple(networks)
        super().__init__(
            path,
            "ha_matrix",
            functools.partial(matrix.default, names),
            lambda data, source: _parse(data, names, source),
        )

    @property
    def ha_matrix(self) -> Matrix:
        return self.value


def _parse(data: bytes, networks: Sequence[str], source: str) -> Matrix:
    """Read an HA matrix file and log the combinations without a rule."""
    ha_matrix = matrix.parse(data, networks, source)
    if ha_matrix.warning:
        LOG.warning("HA matrix file %s: %s", source, ha_matrix.warning)
    return ha_matrix


#: Kind of the reports.
KIND = "host_health"
#: Maximum seconds between two checks for changes by time alone.
TICK_S = 0.5
#: A delay of a turn by more seconds than this means that the process was stopped.
SLEPT_S = 2.0


class Settings(Protocol):
    """The options of [hostmonitor]."""

    heartbeat_s: float
    healthy_after_s: float


class HostMonitor:
    """The judging thread of a host monitor."""

    def __init__(
        self,
        observer: str,
        networks: Sequence[Callable[[Callable[[], None]], NetworkWatch]],
        ha_matrix: MatrixFile,
        outbox: Outbox,
        settings: Settings,
        clock: Clock,
        *,
        report_stored: Callable[[], None],
        changed: Callable[[], None],
    ) -> None:
        """Create a watch per network.

        `networks`: factories of watches; each receives the callback for news. `report_stored` is
        called after a report was written to the outbox, `changed` after the view changed.
        """
        self._observer = observer
        self._ha_matrix = ha_matrix
        self._outbox = outbox
        self._settings = settings
        self._clock = clock
        self._report_stored, self._changed = report_stored, changed
        self._worker = Worker("judge", clock, self._look, retry_s=TICK_S, stop_s=10.0)
        self._worker.make_essential()
        watches = [make(self._worker.wake) for make in networks]
        self._watches = {watch.network: watch for watch in watches}
        self._book = HealthRecords()
        self._judged: tuple[object, ...] = ()
        self._rows: list[dict[str, Any]] = []
        self._judged_at = clock.now()  # the time of `_rows`
        self._started_at = clock.now()
        self._alone = False
        self._lock = threading.Lock()
        self._before = clock.monotonic()  # when the thread judged last

    def start(self) -> None:
        for watch in self._watches.values():
            watch.start()
        self._before = self._clock.monotonic()
        self._worker.start()

    def stop(self) -> None:
        self._worker.stop()
        for watch in self._watches.values():
            watch.stop()

    def view(self) -> Mapping[str, Any]:
        """The current view of all hosts, in the format for Holdfast's API."""
        with self._lock:
            rows, at = self._rows, self._judged_at
        waiting, parked = self._outbox.counts()
        return {
            "kind": "host",
            "at": at.isoformat(),
            "started_at": self._started_at.isoformat(),
            "heartbeat_s": self._settings.heartbeat_s,
            "networks": {name: watch.state() for name, watch in self._watches.items()},
            "ha_matrix": self._ha_matrix.ha_matrix.to_plain(),
            "problem": self._ha_matrix.problem[:1000],
            "waiting": waiting,
            "parked": parked,
            "rows": rows,
        }

    # the thread

    def _look(self) -> float:
        """Judge the hosts; return the seconds until the next judgement is due."""
        now = self._clock.monotonic()
        if now - self._before > TICK_S + SLEPT_S:
            self._woke(now - self._before)
        self._before = now
        self.turn(now)
        return self._pause(now)

    def _pause(self, now: float) -> float:
        due = self._book.due
        return TICK_S if due is None else max(0.0, min(TICK_S, due - now))

    def _woke(self, after_s: float) -> None:
        LOG.warning("we were stopped for %.1f s: everything is looked at again", after_s)
        for watch in self._watches.values():
            watch.slept()

    def turn(self, at: float) -> None:
        """Read the sights, judge the hosts, write reports; skip if nothing can have changed."""
        if self._ha_matrix.follow():
            forgotten = {
                host: replace(track, health=(), since=())
                for host, track in self._book.tracks.items()
            }
            self._book = HealthRecords(forgotten, due=at)
        ha_matrix = self._ha_matrix.ha_matrix
        sights = [self._watches[name].sight() for name in ha_matrix.networks]
        seen = tuple(_gist(sight) for sight in sights)
        due = self._book.due
        moment = Moment(at, self._clock.now())
        if seen == self._judged and (due is None or due > at):
            with self._lock:
                self._judged_at = moment.now  # nothing has changed
            return
        book, reports = health.judge(
            self._book, sights, ha_matrix, moment, self._settings.healthy_after_s
        )
        if reports:
            self._outbox.put([self._item(report) for report in reports])
            self._report_stored()
        self._book, self._judged = book, seen
        self._publish(health.view(book, sights), sights, moment.now)

    def _item(self, report: Report) -> tuple[str, str, Mapping[str, Any]]:
        since = report.since.isoformat()
        subject = f"host:{report.host}"
        key = f"{subject}/{report.state}/{since}"
        LOG.warning("%s: %s since %s: %s", subject, report.state, since, report.evidence["rule"])
        return (
            subject,
            key,
            {
                "observer": self._observer,
                "subject": subject,
                "kind": KIND,
                "state": report.state,
                "since": since,
                "observed_at": self._clock.now().isoformat(),
                "key": key,
                "evidence": report.evidence,
            },
        )

    def _publish(self, rows: list[dict[str, Any]], sights: Sequence[Sight], now: datetime) -> None:
        alone = all(sight.why for sight in sights)
        if alone and not self._alone:
            LOG.error(
                "this monitor sees no member of any network: it reports nothing until it does"
            )
        self._alone = alone
        with self._lock:
            changed = rows != self._rows
            self._rows, self._judged_at = rows, now
        if changed:
            self._changed()


def _gist(sight: Sight) -> tuple[object, ...]:
    """The parts of a sight which can change a judgement."""
    return sight.states, sight.gossip, sight.why, sight.is_proven, sight.unanswered
