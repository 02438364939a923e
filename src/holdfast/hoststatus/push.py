# SPDX-License-Identifier: Apache-2.0
"""What Nova says reaches the monitors that want it, in every manager; they share the messages.

A monitor that raises gets a message three times, then the message is set aside for people to look
at. News that is old is not believed: it makes us look instead.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, Protocol

from holdfast.hoststatus.poll import (
    NOT_LOADED,
    POLL,
    Monitor,
    MonitorWorker,
    Seen,
    Sightings,
    Tally,
    Watch,
    only_hears,
    wants,
)
from holdfast.model.errors import HoldfastError
from holdfast.model.nova_notification import Notice
from holdfast.ports.recovery import HostStatuses, SetAside
from holdfast.ports.reports import Notices
from holdfast.ports.reports import Tally as NoticeTally

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
        standings: HostStatuses,
        settings: Settings,
        look: Callable[[], None],
    ) -> None:
        self._watch = watch
        self._standings = standings
        self._settings = settings
        self._look = look
        self._lanes = [MonitorWorker(one, "hear", watch.tally) for one in watch.monitors]

    def hear(self, notice: Notice) -> None:
        seen: list[Seen] = []
        for lane, answer in self._told(notice):
            lane.fine()
            seen += answer
        sightings = self._watch.ingest(seen)  # of guests even if it is old: who acts on it looks
        if not self._is_fresh(notice):
            if sightings:
                self._look()
            return
        self._watch.hosts.see(sightings)

    def _is_fresh(self, notice: Notice) -> bool:
        age = abs((self._standings.now() - notice.at).total_seconds())
        return age <= self._settings.push_fresh_s or not self._settings.poll

    def _told(self, notice: Notice) -> list[tuple[MonitorWorker, Sightings]]:
        """All who want to hear it, at once; each as often as it takes, within the time there is."""
        answers: list[tuple[MonitorWorker, Sightings]] = []
        under_way: dict[Future[Sightings], tuple[MonitorWorker, int]] = {}
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
        lane: MonitorWorker,
        notice: Notice,
        tries: int,
        under_way: dict[Future[Sightings], tuple[MonitorWorker, int]],
    ) -> None:
        begun = lane.begin(lambda: lane.monitor.heard(notice))
        if begun is not None:
            under_way[begun] = lane, tries
        else:
            self._missed(lane, notice)  # it is stuck, and does not hear this

    def _missed(self, lane: MonitorWorker, notice: Notice) -> None:
        """A look shows it; where none does, people have it."""
        if only_hears(lane.monitor):
            self._set_aside(lane, notice, TimeoutError("it has not answered in time"), 1)
        else:
            self._look()

    def _set_aside(
        self, lane: MonitorWorker, notice: Notice, error: BaseException, tries: int
    ) -> None:
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


# The monitors' part of a manager: it listens when the configuration says so, for as long as it
# says so, and has the look round done early when that is due: the broker is back, a message was
# missed, or the configuration changed.


#: How often the configuration is looked at.
EVERY_S = 1.0

#: Makes a listener that counts with this; None where there is nothing to listen to.
Connect = Callable[[NoticeTally], Notices]


class Monitors:
    def __init__(
        self,
        watch: Watch,
        standings: HostStatuses,
        settings: Any,
        connect: Connect | None,
        wake: Callable[[], None],
    ) -> None:
        self._settings: Settings = settings
        self._standings = standings
        self._monitors = watch.monitors
        self._tally = watch.tally
        self._clock = watch.clock
        self._connect = connect
        self._wake = wake
        self._hearer = Hearer(watch, standings, settings, self.poll_soon)
        self._listening: Notices | None = None
        self._wanted = threading.Event()  # a look round
        self._bell = threading.Event()
        self._stop = watch.stop
        self._known: tuple[Any, ...] = self._facts()
        self._complained = ""
        self._in_vain: Sequence[str] = ()
        self._thread = threading.Thread(target=self._forever, name="monitors", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._bell.set()
        if self._thread.is_alive():
            self._thread.join()
        self._deaf()

    def poll_soon(self) -> None:
        self._wanted.set()
        self._bell.set()

    # the thread

    def _forever(self) -> None:
        while not self._stop.is_set():
            self._bell.clear()
            try:
                self.turn()
            except HoldfastError as error:
                self._complain(error.message)
            except Exception:  # the top of the thread: it must come round again
                LOG.exception("monitors: unforeseen")
            self._clock.wait(self._bell, EVERY_S)

    def turn(self) -> None:
        """Make it so as the configuration says now, and have somebody look if that is wanted."""
        facts = self._facts()
        if facts != self._known:
            self._known = facts
            self._wanted.set()
        if self._wanted.is_set():
            self._have_looked()
        if self._settings.push and self._connect is not None:
            self._listen(self._connect)
        else:
            self._deaf()
        self._complain_of_deafness()
        self._complained = ""

    def _have_looked(self) -> None:
        self._wanted.clear()
        try:
            due = self._standings.expedite(POLL)
        except HoldfastError:
            self._wanted.set()
            raise
        if due:
            self._wake()
        else:
            self._wanted.set()  # somebody looks now, or nobody can yet: again when that is over

    def _facts(self) -> tuple[Any, ...]:
        """What of the configuration makes a difference to when we look next."""
        settings: Any = self._settings
        return (settings.poll, settings.poll_interval_s, tuple(settings.enabled))

    def _listen(self, connect: Connect) -> None:
        """DriverError where that can never be, which is said once."""
        if self._listening is None:
            made = connect(_Tally(self))
            made.listen(self._hearer.hear)
            self._listening = made

    def _deaf(self) -> None:
        listening, self._listening = self._listening, None
        if listening is not None:
            listening.stop()
            self._tally.connected(False)
            LOG.info("monitors: no longer listening to Nova's notifications")

    def _complain_of_deafness(self) -> None:
        """Once, while somebody is to listen and cannot."""
        settings = self._settings
        ready = settings.push and self._connect is not None
        in_vain = [] if ready else [one.name for one in self._monitors if only_hears(one)]
        in_vain = [name for name in in_vain if name in settings.enabled]
        if in_vain and in_vain != self._in_vain:
            LOG.error(
                "[monitors] enabled names %s, which does nothing but listen to Nova, and nobody"
                " listens: set [monitors] push = true and [notifications] transport_url to the"
                " broker of nova.conf, with a [cloud] driver that is not simulated",
                ", ".join(in_vain),
            )
        self._in_vain = in_vain

    def _complain(self, why: str) -> None:
        if why != self._complained:
            LOG.warning("monitors: %s", why)
        self._complained = why


class _Tally:
    """What the listener tells; a broker that is there (again) is a reason to look."""

    def __init__(self, part: Monitors) -> None:
        self._part = part
        self._count = part._tally

    def heard(self, notice: Notice) -> None:
        self._count.message("heard")

    def not_understood(self) -> None:
        self._count.message("not understood")

    def failed(self, notice: Notice) -> None:
        self._count.message("failed")

    def put_off(self, notice: Notice) -> None:
        self._count.message("put off")

    def broker(self, there: bool) -> None:
        self._count.connected(there)
        if there:
            self._part.poll_soon()


def report(
    monitors: Sequence[Monitor], broken: dict[str, str], enabled: Sequence[str], tally: Tally
) -> None:
    """Say what could not be loaded and what was asked for in vain."""
    for name, why in broken.items():
        tally.failed(name, NOT_LOADED)
        LOG.error("monitor %s cannot be loaded, the others go on without it: %s", name, why)
    there = {one.name for one in monitors}
    for name in set(enabled) - there - broken.keys():
        LOG.error(
            "[monitors] enabled names %s, which is not installed; there are: %s",
            *(name, ", ".join(sorted(there)) or "none"),
        )
