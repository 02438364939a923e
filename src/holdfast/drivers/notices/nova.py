# SPDX-License-Identifier: Apache-2.0
"""The listener: reads Nova's notifications from the broker, on one thread, and hands them on.

It speaks AMQP itself, by the library below oslo.messaging, and not by oslo.messaging's listener,
because that one cannot keep the promises of `ports/notices.py` (18.3): a message whose priority is
no text is requeued 500 times a second for ever; a message that came twice is neither heard nor
acknowledged and blocks its place; acknowledgements wait up to five seconds; start and stop wait for
a broker that is away; the queue is not bounded; and durability must be set as Nova's is, or nothing
is read.

>>> notices = NovaNotices(conf, SystemClock())
>>> notices.listen(print)
>>> notices.stop()
"""

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Sequence

import amqp
from oslo_config import cfg

from holdfast.drivers.notices.broker import AWAY, PREFETCH, Broker, body, close
from holdfast.model.errors import DriverError, HoldfastError
from holdfast.model.notice import Notice, NotUnderstood, parse
from holdfast.ports.clock import Clock
from holdfast.ports.notices import Hear, NoTally, Tally, later

LOG = logging.getLogger(__name__)

#: How often the thread looks up from the socket: for the stop sign, for heartbeats.
LOOK_S = 0.25
#: Pauses between tries to reach the broker, and to hand on what could not be taken.
FIRST_PAUSE_S, MOST_RECONNECT_S, MOST_RETRY_S = 1.0, 5.0, 30.0
#: So long a message that we cannot take stays with us; then others may try.
HOLD_S = 300.0
#: A stop takes no longer, whatever the broker does.
STOP_S = 10.0
#: Sentences about messages that make no sense: at most one in so many seconds.
QUIET_S = 60.0


class _GiveBack(Exception):
    """We could not take these for a long time: back to the queue with them."""


class NovaNotices:
    """A `ports.notices.Notices`. `shared` False listens to a copy that ends with the connection."""

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        clock: Clock,
        tally: Tally | None = None,
        *,
        shared: bool = True,
        topics: Sequence[str] = (),
    ) -> None:
        self.broker = Broker(conf, topics)
        self._clock = clock
        self._tally: Tally = tally or NoTally()
        self._shared = shared
        self._hear: Hear = lambda notice: None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._forever, name="notices", daemon=True)
        self._there = False
        self._heard_at: float | None = None
        self._complained: set[str] = set()
        self._strange = _Seldom(clock)
        self._failures = 0
        self._failing_since = 0.0
        self._resume_at = 0.0

    def listen(self, hear: Hear) -> None:
        self._hear = hear
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(STOP_S)
        if self._thread.is_alive():
            LOG.warning("notifications: a monitor has not returned within %d s", STOP_S)

    @property
    def connected(self) -> bool:
        return self._there

    def age_s(self) -> float | None:
        """How long ago the last notice was heard; None before the first."""
        return None if self._heard_at is None else self._clock.monotonic() - self._heard_at

    # the thread

    def _forever(self) -> None:
        pause = FIRST_PAUSE_S
        while not self._stop.is_set():
            try:
                self._session()
            except _GiveBack:
                LOG.warning("notifications: not taken for %d s, given back to the queue", HOLD_S)
            except DriverError as error:
                self._lost(error, error.message)
            except AWAY as error:
                self._lost(error, f"{type(error).__name__}: {error}")
            except Exception as error:  # the top of the thread: it must come round again
                LOG.exception("notifications: unforeseen")
                self._lost(error, "a defect of ours")
            was_there, self._there = self._there, False
            if was_there:
                self._tally.broker(False)
                pause = FIRST_PAUSE_S
            self._clock.wait(self._stop, pause)
            pause = min(pause * 2, MOST_RECONNECT_S)

    def _session(self) -> None:
        """From one connection to its end."""
        connection = self.broker.connect()
        try:
            queue = (
                self.broker.shared_queue(connection)
                if self._shared
                else self.broker.own_queue(connection)
            )
            waiting: deque[amqp.Message] = deque()
            channel = connection.channel()
            channel.basic_qos(0, PREFETCH, False)
            channel.basic_consume(queue, callback=waiting.append)
            self._reached(queue)
            self._read(connection, waiting)
        finally:
            close(connection)

    def _read(self, connection: amqp.Connection, waiting: deque[amqp.Message]) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(TimeoutError):
                connection.drain_events(timeout=self._patience(waiting))
            connection.heartbeat_tick()
            look_up = self._clock.monotonic() + LOOK_S
            while waiting and self._resume_at <= self._clock.monotonic() < look_up:
                if self._stop.is_set():
                    return
                if self._take(waiting[0]):
                    message = waiting.popleft()
                    message.channel.basic_ack(message.delivery_tag)

    def _patience(self, waiting: deque[amqp.Message]) -> float:
        """How long the socket may be listened to; not at all while there is something to do."""
        if not waiting:
            return LOOK_S
        return min(LOOK_S, max(0.001, self._resume_at - self._clock.monotonic()))

    # one message

    def _take(self, message: amqp.Message) -> bool:
        """Hand it on; whether we are done with it."""
        try:
            notice = parse(body(message))
        except NotUnderstood as error:
            self._let_go(error.message)
            return True
        try:
            self._hear(notice)
        except HoldfastError as error:
            if later(error):
                self._put_off(notice, error)
                return False
            LOG.error("%s %s: %s", notice.event_type, notice.message_id, error.message)
            self._tally.failed(notice)
        except Exception:  # a monitor's defect must not end the listening
            LOG.exception("%s %s: a monitor failed", notice.event_type, notice.message_id)
            self._tally.failed(notice)
        else:
            self._tally.heard(notice)
        self._heard_at = self._clock.monotonic()
        if self._failures:
            LOG.info("notifications: taken again, after %d tries", self._failures)
            self._failures = 0
        return True

    def _put_off(self, notice: Notice, error: HoldfastError) -> None:
        now = self._clock.monotonic()
        if not self._failures:
            self._failing_since = now
            LOG.warning(
                "%s %s cannot be taken now, and waits: %s",
                notice.event_type,
                notice.message_id,
                error.message,
            )
        self._tally.put_off(notice)
        self._resume_at = now + min(FIRST_PAUSE_S * 2.0 ** min(self._failures, 10), MOST_RETRY_S)
        self._failures += 1
        if now - self._failing_since > HOLD_S:
            self._failing_since = now
            raise _GiveBack

    def _let_go(self, why: str) -> None:
        """Acknowledged and forgotten: it would make no more sense the second time."""
        self._tally.not_understood()
        others = self._strange.may_say()
        if others is not None:
            more = f" (and {others} more since the last such line)" if others else ""
            LOG.warning("notifications: let go, not understood: %s%s", why, more)

    # what becomes of the broker: a line per change

    def _reached(self, queue: str) -> None:
        self._there = True
        self._complained.clear()
        self._tally.broker(True)
        LOG.info("listening to Nova's notifications at %s, queue %s", self.broker.shown, queue)

    def _lost(self, error: Exception, why: str) -> None:
        """Said once per kind of trouble until all is well again."""
        kind = type(error).__name__
        if kind in self._complained:
            return
        self._complained.add(kind)
        LOG.warning("not listening to Nova's notifications at %s: %s", self.broker.shown, why)


class _Seldom:
    """Keeps a sentence from flooding the log."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._next = clock.monotonic()
        self._unsaid = 0

    def may_say(self) -> int | None:
        """None: not now; else how many went unsaid before."""
        now = self._clock.monotonic()
        if now < self._next:
            self._unsaid += 1
            return None
        self._next = now + QUIET_S
        unsaid, self._unsaid = self._unsaid, 0
        return unsaid
