# SPDX-License-Identifier: Apache-2.0
"""What Nova says reaches the monitors that want it, in every manager; they share the messages.

A monitor that raises gets a message three times, then the message is set aside for people to look
at. News that is old is not believed: it makes us look instead.
"""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Protocol

from holdfast.model.notice import Notice
from holdfast.ports.standings import SetAside, Standings
from holdfast.watch.lane import Lane, Sightings
from holdfast.watch.monitor import Seen, only_hears, wants
from holdfast.watch.poll import Watch

LOG = logging.getLogger(__name__)

TRIES = 3


class Settings(Protocol):
    """[monitors], read anew each time."""

    enabled: Sequence[str]
    poll: bool
    push: bool
    push_timeout_s: float
    push_fresh_s: float


class Hearer:
    """`look` asks for a look round, soon. What `hear` raises, the listener understands: a message
    that could not be written down now comes again."""

    def __init__(
        self,
        watch: Watch,
        standings: Standings,
        settings: Settings,
        look: Callable[[], None],
    ) -> None:
        self._watch = watch
        self._standings = standings
        self._settings = settings
        self._look = look
        self._lanes = [Lane(one, "hear", watch.tally) for one in watch.monitors]

    def hear(self, notice: Notice) -> None:
        seen: list[Seen] = []
        for lane, answer in self._told(notice):
            lane.fine()
            seen += answer
        sightings = self._watch.take(seen)  # of guests even if it is old: who acts on it looks
        if not self._is_fresh(notice):
            if sightings:
                self._look()
            return
        self._watch.hosts.see(sightings)

    def _is_fresh(self, notice: Notice) -> bool:
        age = abs((self._standings.now() - notice.at).total_seconds())
        return age <= self._settings.push_fresh_s or not self._settings.poll

    def _told(self, notice: Notice) -> list[tuple[Lane, Sightings]]:
        """All who want to hear it, at once; each as often as it takes, within the time there is."""
        answers: list[tuple[Lane, Sightings]] = []
        under_way: dict[Future[Sightings], tuple[Lane, int]] = {}
        for lane in self._lanes:
            if lane.monitor.name in self._settings.enabled and wants(
                lane.monitor, notice.event_type
            ):
                self._tell(lane, notice, 1, under_way)
        until = self._watch.clock.monotonic() + self._settings.push_timeout_s
        while under_way:
            left = until - self._watch.clock.monotonic()
            done, _ = wait(under_way, max(0.0, left), FIRST_COMPLETED)
            if not done:
                for lane, _tries in under_way.values():
                    lane.late(self._settings.push_timeout_s)
                    self._missed(lane, notice)
                break
            for one in done:
                lane, tries = under_way.pop(one)
                error = one.exception()
                if error is None:
                    answers.append((lane, one.result()))
                    continue
                lane.raised(error)
                if tries < TRIES:
                    self._tell(lane, notice, tries + 1, under_way)
                else:
                    self._set_aside(lane, notice, error, tries)
        return answers

    def _tell(
        self,
        lane: Lane,
        notice: Notice,
        tries: int,
        under_way: dict[Future[Sightings], tuple[Lane, int]],
    ) -> None:
        begun = lane.begin(lambda: lane.monitor.heard(notice))
        if begun is not None:
            under_way[begun] = lane, tries
        else:
            self._missed(lane, notice)  # it is stuck, and does not hear this

    def _missed(self, lane: Lane, notice: Notice) -> None:
        """A look shows it; where none does, people have it."""
        if only_hears(lane.monitor):
            self._set_aside(lane, notice, TimeoutError("it has not answered in time"), 1)
        else:
            self._look()

    def _set_aside(self, lane: Lane, notice: Notice, error: BaseException, tries: int) -> None:
        self._watch.tally.message("set aside")
        LOG.error(
            "%s %s: monitor %s failed (tries: %d), the message is set aside"
            " (holdfast notifications set-aside): %r",
            *(notice.event_type, notice.message_id, lane.monitor.name, tries, error),
        )
        self._standings.set_aside(
            SetAside(
                at=self._standings.now(),
                monitor=lane.monitor.name,
                message_id=notice.message_id,
                event_type=notice.event_type,
                why=f"{type(error).__name__}: {error}",
                message=notice.data,
            )
        )
