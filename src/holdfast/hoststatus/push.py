# SPDX-License-Identifier: Apache-2.0
"""Delivery of Nova's notifications to monitors, in every manager; managers share the messages.

If a monitor raises, it gets the message three times; then the manager parks the message for
people. An old notification is not trusted: the manager polls instead. `Monitors` connects to
the broker as configured.
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
    Report,
    Reports,
    Tally,
    Watch,
    wants,
)
from holdfast.model.errors import HoldfastError
from holdfast.model.nova_notification import Notice
from holdfast.ports.recovery import HostStatuses, ParkedMessage
from holdfast.ports.reports import Notices
from holdfast.ports.reports import Tally as NoticeTally
from holdfast.runtime.threads import Worker

LOG = logging.getLogger(__name__)

TRIES = 3


class Settings(Protocol):
    """The options of [monitors], read again at every access."""

    enabled: Sequence[str]
    poll: bool
    push: bool
    push_timeout_s: float
    push_fresh_s: float


class Dispatcher:
    """Passes a notification to all monitors which want it.

    `poll_soon` requests a poll. The listener handles errors of `dispatch`: a message that could
    not be written now is delivered again.
    """

    def __init__(
        self,
        watch: Watch,
        host_status: HostStatuses,
        settings: Settings,
        poll_soon: Callable[[], None],
    ) -> None:
        self._watch = watch
        self._host_status = host_status
        self._settings = settings
        self._poll_soon = poll_soon
        self._workers = [
            MonitorWorker(monitor, "notify", watch.tally) for monitor in watch.monitors
        ]

    def dispatch(self, notice: Notice) -> None:
        reports: list[Report] = []
        for worker, answer in self._answers(notice):
            worker.fine()
            reports += answer
        status_reports = self._watch.ingest(
            reports
        )  # guest reports even if old: recovery checks them
        if not self._is_fresh(notice):
            if status_reports:
                self._poll_soon()
            return
        self._watch.hosts.see(status_reports)

    def _is_fresh(self, notice: Notice) -> bool:
        age = abs((self._host_status.now() - notice.at).total_seconds())
        return age <= self._settings.push_fresh_s or not self._settings.poll

    def _answers(self, notice: Notice) -> list[tuple[MonitorWorker, Reports]]:
        """Call all monitors which want the message at once, each up to TRIES times.

        The calls share the timeout `push_timeout_s`.
        """
        answers: list[tuple[MonitorWorker, Reports]] = []
        under_way: dict[Future[Reports], tuple[MonitorWorker, int]] = {}
        for worker in self._workers:
            if worker.monitor.name in self._settings.enabled and wants(
                worker.monitor, notice.event_type
            ):
                self._call(worker, notice, 1, under_way)
        until = self._watch.clock.monotonic() + self._settings.push_timeout_s
        while under_way:
            left = until - self._watch.clock.monotonic()
            done, _ = wait(under_way, max(0.0, left), FIRST_COMPLETED)
            if not done:
                for worker, _tries in under_way.values():
                    worker.late(self._settings.push_timeout_s)
                    self._missed(worker, notice)
                break
            for call in done:
                worker, tries = under_way.pop(call)
                error = call.exception()
                if error is None:
                    answers.append((worker, call.result()))
                    continue
                worker.raised(error)
                if tries < TRIES:
                    self._call(worker, notice, tries + 1, under_way)
                else:
                    self._park(worker, notice, error, tries)
        return answers

    def _call(
        self,
        worker: MonitorWorker,
        notice: Notice,
        tries: int,
        under_way: dict[Future[Reports], tuple[MonitorWorker, int]],
    ) -> None:
        begun = worker.begin(lambda: worker.monitor.heard(notice))
        if begun is not None:
            under_way[begun] = worker, tries
        else:
            self._missed(worker, notice)  # the worker is stuck and misses this message

    def _missed(self, worker: MonitorWorker, notice: Notice) -> None:
        """Request a poll for a missed message; park it if the monitor is never polled."""
        if worker.monitor.push_only:
            self._park(worker, notice, TimeoutError("it has not answered in time"), 1)
        else:
            self._poll_soon()

    def _park(
        self, worker: MonitorWorker, notice: Notice, error: BaseException, tries: int
    ) -> None:
        self._watch.tally.message("set aside")
        LOG.error(
            "%s %s: monitor %s failed (tries: %d), the message is set aside"
            " (holdfast notification parked): %r",
            *(notice.event_type, notice.message_id, worker.monitor.name, tries, error),
        )
        self._host_status.park(
            ParkedMessage(
                at=self._host_status.now(),
                monitor=worker.monitor.name,
                message_id=notice.message_id,
                event_type=notice.event_type,
                why=f"{type(error).__name__}: {error}",
                message=notice.data,
            )
        )


#: Seconds between two reads of the configuration.
EVERY_S = 1.0

#: Creates a listener with this tally; None if there is no broker to listen to.
Connect = Callable[[NoticeTally], Notices]


class Monitors:
    """The monitors of a manager: connects to Nova's broker as long as the configuration says.

    The thread expedites the next poll when the broker is back, a message was missed, or the
    configuration changed.
    """

    def __init__(
        self,
        watch: Watch,
        host_status: HostStatuses,
        settings: Any,
        connect: Connect | None,
        wake: Callable[[], None],
    ) -> None:
        self._settings: Settings = settings
        self._host_status = host_status
        self._monitors = watch.monitors
        self._tally = watch.tally
        self._clock = watch.clock
        self._connect = connect
        self._wake = wake
        self._dispatcher = Dispatcher(watch, host_status, settings, self.poll_soon)
        self._listening: Notices | None = None
        self._wanted = threading.Event()  # a poll is requested
        self._stop = watch.stop
        self._applied: tuple[Any, ...] = self._facts()
        self._complained = ""
        self._in_vain: Sequence[str] = ()
        self._worker = Worker(
            "monitors", watch.clock, self.turn, retry_s=EVERY_S, failed=self._failed, stop_s=None
        )

    def start(self) -> None:
        self._worker.start()

    def stop(self) -> None:
        self._stop.set()
        self._worker.stop()
        self._disconnect()

    def poll_soon(self) -> None:
        self._wanted.set()
        self._worker.wake()

    # the thread

    def turn(self) -> float:
        """Apply the current configuration and expedite a poll if requested."""
        facts = self._facts()
        if facts != self._applied:
            self._applied = facts
            self._wanted.set()
        if self._wanted.is_set():
            self._expedite_poll()
        if self._settings.push and self._connect is not None:
            self._listen(self._connect)
        else:
            self._disconnect()
        self._warn_of_missing_broker()
        self._complained = ""
        return EVERY_S

    def _expedite_poll(self) -> None:
        self._wanted.clear()
        try:
            due = self._host_status.expedite(POLL)
        except HoldfastError:
            self._wanted.set()
            raise
        if due:
            self._wake()
        else:
            self._wanted.set()  # a poll runs now, or cannot run yet: try again later

    def _facts(self) -> tuple[Any, ...]:
        """The options with influence on the time of the next poll."""
        settings: Any = self._settings
        return (settings.poll, settings.poll_interval_s, tuple(settings.enabled))

    def _listen(self, connect: Connect) -> None:
        """Connect to the broker; DriverError if this can never work, which is logged once."""
        if self._listening is None:
            made = connect(_Tally(self))
            made.listen(self._dispatcher.dispatch)
            self._listening = made

    def _disconnect(self) -> None:
        listening, self._listening = self._listening, None
        if listening is not None:
            listening.stop()
            self._tally.connected(False)
            LOG.info("monitors: no longer listening to Nova's notifications")

    def _warn_of_missing_broker(self) -> None:
        """Log once if an enabled monitor needs notifications and none are received."""
        settings = self._settings
        ready = settings.push and self._connect is not None
        in_vain = [] if ready else [monitor.name for monitor in self._monitors if monitor.push_only]
        in_vain = [name for name in in_vain if name in settings.enabled]
        if in_vain and in_vain != self._in_vain:
            LOG.error(
                "[monitors] enabled names %s, which does nothing but listen to Nova, and nobody"
                " listens: set [monitors] push = true and [notifications] transport_url to the"
                " broker of nova.conf, with a [cloud] driver that is not simulated",
                ", ".join(in_vain),
            )
        self._in_vain = in_vain

    def _failed(self, error: Exception) -> None:
        """Log a known error once until it changes."""
        if isinstance(error, HoldfastError) and error.message != self._complained:
            LOG.warning("monitors: %s", error.message)
            self._complained = error.message


class _Tally:
    """Tally of the listener; a new connection to the broker requests a poll."""

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
    """Log monitors which could not be loaded, and enabled monitors which are not installed."""
    for name, why in broken.items():
        tally.failed(name, NOT_LOADED)
        LOG.error("monitor %s cannot be loaded, the others go on without it: %s", name, why)
    there = {monitor.name for monitor in monitors}
    for name in set(enabled) - there - broken.keys():
        LOG.error(
            "[monitors] enabled names %s, which is not installed; there are: %s",
            *(name, ", ".join(sorted(there)) or "none"),
        )
