# SPDX-License-Identifier: Apache-2.0
"""The look round: every monitor is asked how its hosts stand, by one of all managers at a time.

One row of durable work that never ends. A host that is suspect is looked at again soon, so that a
failure is found within the interval though one sample does not make one.
"""

import functools
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from holdfast.model.guest_word import GuestWord
from holdfast.model.operation import Operation
from holdfast.model.standing import Rules, Sighting
from holdfast.ports.clock import Clock
from holdfast.ports.cloud import Cloud
from holdfast.watch.hosts import HostWatch, Outcome
from holdfast.watch.lane import Lane, Sightings
from holdfast.watch.monitor import Monitor, Seen, Tally, only_hears
from holdfast.work.kind import Kind, NotYet, Run, Step

LOG = logging.getLogger(__name__)

POLL = "monitors_poll"
#: Switched off, it looks so often whether it has been switched on, and what time has ripened.
OFF_S = 5.0
#: How often the claim is looked after while monitors look.
BREATH_S = 1.0
#: How long the claim must last beyond a breath.
KEEP_S = 5.0


class Settings(Rules, Protocol):
    """[monitors], read anew each time."""

    enabled: Sequence[str]
    poll: bool
    poll_interval_s: float
    confirm_s: float
    poll_timeout_s: float


@dataclass(frozen=True)
class Watch:
    """What looking and hearing share."""

    hosts: HostWatch
    monitors: Sequence[Monitor]
    tally: Tally
    clock: Clock
    stop: threading.Event = field(default_factory=threading.Event)  # who waits for a monitor ends
    guests: Callable[[Sequence[GuestWord]], None] = lambda _words: None  # writes them down

    def take(self, seen: Sequence[Seen]) -> list[Sighting]:
        """Write down what is said of guests, count what is said of hosts, which is given back."""
        words = [one for one in seen if isinstance(one, GuestWord)]
        if words:
            self.guests(words)
        sightings = [one for one in seen if isinstance(one, Sighting)]
        for one in sightings:
            self.tally.sighted(one)
        return sightings


class MonitorsPoll:
    name = POLL
    stubborn = True

    def __init__(
        self, watch: Watch, cloud: Cloud, settings: Settings, now: Callable[[], datetime]
    ) -> None:
        self._watch = watch
        self._cloud = cloud
        self._settings = settings
        self._now = now
        looking = [one for one in watch.monitors if not only_hears(one)]
        self._lanes = [Lane(one, "look", watch.tally) for one in looking]

    def steps(self) -> Sequence[Step]:
        return (Step("look", self.look, kept=False),)

    def look(self, run: Run) -> str:
        """It never ends but by NotYet."""
        if not self._settings.poll:
            ripe = self._watch.hosts.ripen()
            raise NotYet(f"nobody looks: [monitors] poll is off; {ripe}", OFF_S)
        at, saw = self._now(), []
        for lane, seen in self._answers(run, at):
            sightings = self._watch.take(seen)
            saw.append((lane.monitor.name, self._watch.hosts.see(sightings, news=False)))
            self._watch.tally.polled(lane.monitor.name)
        said = "; ".join(f"{name}: {outcome}" for name, outcome in saw)
        raise NotYet(said or "no monitor has answered", self._pause([one for _, one in saw]))

    def _pause(self, saw: Sequence[Outcome]) -> float:
        """Soon again while somebody is suspect; else so that all samples fit into the interval."""
        settings = self._settings
        if any(one.suspects for one in saw):
            return settings.confirm_s
        more = settings.confirm_s * (settings.down_samples - 1)
        return max(settings.poll_interval_s - more, settings.poll_interval_s / 2)

    def _answers(self, run: Run, at: datetime) -> Iterator[tuple[Lane, Sightings]]:
        """Who is enabled and free looks, all at once; as they come back. ClaimLost ends it."""
        under_way: dict[Future[Sightings], Lane] = {}
        for lane in self._lanes:
            if lane.monitor.name in self._settings.enabled:
                begun = lane.begin(functools.partial(lane.monitor.states, self._cloud, at))
                if begun is not None:
                    under_way[begun] = lane
        until = self._watch.clock.monotonic() + self._settings.poll_timeout_s
        while under_way and not self._watch.stop.is_set():
            run.hold(BREATH_S + KEEP_S)
            left = until - self._watch.clock.monotonic()
            done, _ = wait(under_way, min(BREATH_S, max(0.0, left)), FIRST_COMPLETED)
            for one in done:
                lane = under_way.pop(one)
                if (error := one.exception()) is not None:
                    lane.raised(error)
                    continue
                lane.fine()
                yield lane, one.result()
            if not done and left <= 0:
                for lane in under_way.values():
                    lane.late(self._settings.poll_timeout_s)
                return

    def give_up_at(self, operation: Operation) -> datetime | None:
        return None

    def failed(self, run: Run, why: str) -> None:
        LOG.error("%s: %s", run.operation.key, why)


def kinds(
    watch: Watch, cloud: Cloud, settings: Settings, now: Callable[[], datetime]
) -> dict[str, Kind]:
    return {POLL: MonitorsPoll(watch, cloud, settings, now)}
