# SPDX-License-Identifier: Apache-2.0
"""One plugin on a thread of its own: everything of it runs there, from import to `close`.

Snapshots wait in a queue of two; a third one pushes the oldest out, which is counted. What the
plugin does is timed. A slow call is a strike, and so is a callback that raises in a pass, or a
pass that burns too much of the processor that all share. A call that never returns is left alone:
its thread gets an exception, which ends a loop; what waits in the kernel is never heard of again.
"""

import contextlib
import copy
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.model.errors import Conflict, HoldfastError, InvalidInput, Unavailable
from holdfast.ports.metric_plugins import Context, Note
from holdfast.watch.metrics.plugin_code import Callback, callbacks
from holdfast.watch.metrics.plugin_cut import CutOff, interrupt
from holdfast.watch.metrics.plugin_limits import LOADING, OFF, ON, Limits, Own, Tally, Waits
from holdfast.watch.metrics.shared import Shared

LOG = logging.getLogger(__name__)

Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Ear:
    """Whom a lane tells; called from any thread, and must not wait."""

    off: Callable[["Lane", str], None]
    note: Callable[[Note], None]


@dataclass(slots=True)
class _Order:
    """What the thread shall do between two passes."""

    do: Callable[[], None]
    done: threading.Event = field(default_factory=threading.Event)
    error: HoldfastError | None = None


class Lane:
    def __init__(
        self,
        name: str,
        make: Callable[[], object],
        config: Config,
        limits: Limits,
        ear: Ear,
        own: Own,
        *,
        shadow: bool = False,
    ) -> None:
        """`make`: returns the plugin; called on its thread."""
        self.name = name
        self.state, self.why = LOADING, ""
        self.tally = Tally()
        self.calls: Sequence[Callback] = ()
        self.has: tuple[str, ...] = ()  # their names
        self.config = dict(config)
        self.config_version = 0
        self.shadow = shadow
        self.retired = False
        self.tried = threading.Event()  # the pass in shadow is over
        self._make: Callable[[], object] | None = make
        self._plugin: object | None = None
        self._limits = limits
        self._ear = ear
        self._own = own
        self._strikes: deque[tuple[float, str]] = deque()
        self._busy: tuple[float, float, str] | None = None  # since, for how long at most, what
        self._bell = threading.Condition()
        self._waiting: deque[Shared] = deque()
        self._orders: deque[_Order] = deque()
        self._offered = 0
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._forever, name=f"plugin-{name}"[:40])
        self._thread.daemon = True

    # what others call; none of it waits for the plugin unless it says so

    def start(self) -> None:
        self._thread.start()

    def wait_ready(self) -> None:
        """Until it is on. HoldfastError says why it is not, and it is over then."""
        if not self._ready.wait(self._limits.change_s):
            self.cut(f"it was not there after {self._limits.change_s:g} s")
        if self.state != ON:
            raise InvalidInput(f"plugin {self.name}: {self.why}")

    def offer(self, shared: Shared) -> None:
        if self.state != ON or self.retired or (self.shadow and self._offered):
            return
        with self._bell:
            self._offered += 1
            self._waiting.append(shared)
            if len(self._waiting) > self._limits.waiting:
                self._waiting.popleft()
                self.tally.dropped += 1
            self._bell.notify()

    def configure(self, config: Config) -> None:
        """Between two passes; waits until it is done. InvalidInput if the plugin refuses."""

        def do() -> None:
            self._configure(config)

        self._ask(do)

    def retire(self) -> None:
        """It gets no more, and ends when it has seen what waits for it. Nobody is told."""
        with self._bell:
            self.retired = True
            self._bell.notify()

    def stop(self, why: str) -> None:
        """It ends as soon as it can. Nobody is told."""
        with self._bell:
            self.retired = True
            if self.state != OFF:
                self.state, self.why = OFF, why
            self._waiting.clear()
            self._bell.notify()

    def join(self, seconds: float) -> bool:
        """Whether it is over by then."""
        if self._thread.is_alive():
            self._thread.join(max(0.0, seconds))
        return not self._thread.is_alive()

    def cut(self, why: str, *, now: bool = True) -> None:
        """Off, whatever it does just now; told if it was on. Not `now`: after the call it is in."""
        with self._bell:
            if self.state == OFF:
                return
            was_on, self.state, self.why = self.state == ON, OFF, why
            self._waiting.clear()
            self._bell.notify()
        if now:
            self._interrupt()
        self._ready.set()
        if was_on:
            self._ear.off(self, why)

    def look_after(self) -> None:
        """Cut off what hangs. One that was stopped and does not end is interrupted again."""
        busy = self._busy
        if busy is None:
            return
        since, most_s, what = busy
        took_s = time.monotonic() - since
        if took_s <= most_s:
            return
        if self.state == OFF:
            self._interrupt()
        else:
            self.cut(f"{what} did not come back within {most_s:g} s")

    def strikes(self) -> list[str]:
        since = time.monotonic() - self._limits.within_s
        return [why for at, why in list(self._strikes) if at >= since]

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def _ask(self, do: Callable[[], None]) -> None:
        order = _Order(do)
        with self._bell:
            if self.state != ON:
                raise Conflict(f"plugin {self.name} is {self.state}: enable it first")
            self._orders.append(order)
            self._bell.notify()
        if not order.done.wait(self._limits.change_s):
            raise Unavailable(f"plugin {self.name} did not answer: look at `metrics plugins list`")
        if order.error is not None:
            raise order.error

    def _interrupt(self) -> None:
        if self._busy is not None:
            interrupt(self._thread)

    # the thread

    def _forever(self) -> None:
        try:
            if self._begin():
                self._work()
            self._end()
        except CutOff:
            LOG.info("plugin %s: its thread has ended after all", self.name)
        except Exception as error:  # the top of the thread: ours, not the plugin's
            LOG.exception("plugin %s: unforeseen", self.name)
            self.cut(f"something unforeseen of ours: {error}")
        finally:
            self._let_go()

    def _begin(self) -> bool:
        make, self._make = self._make, None
        assert make is not None
        try:
            self._plugin = self._call("its code", make)
            self.calls = callbacks(self._plugin)
            self.has = tuple(one.name for one in self.calls)
            self._configure(self.config)
        except HoldfastError as error:
            with self._bell:
                if self.state != OFF:
                    self.state, self.why = OFF, error.message
        with self._bell:
            if self.state == LOADING:
                self.state = ON
        self._ready.set()
        return self.state == ON

    def _configure(self, config: Config) -> None:
        apply = getattr(self._plugin, "configure", None)
        if apply is None and config:
            raise InvalidInput("it takes no configuration: it has no `configure`")
        if apply is not None:
            given = copy.deepcopy(dict(config))
            self._call("configure", lambda: apply(given))
        self.config, self.config_version = dict(config), self.config_version + 1

    def _call(self, what: str, call: Callable[[], Any]) -> Any:
        """Of somebody else's code; what it raises is InvalidInput."""
        self._busy = (time.monotonic(), self._limits.change_s, what)
        try:
            return call()
        except (CutOff, HoldfastError):
            raise
        except BaseException as error:  # sys.exit() too: it is somebody else's code
            LOG.info("plugin %s: %s", self.name, what, exc_info=True)
            raise InvalidInput(f"{what}: {_said(error)}") from error
        finally:
            self._busy = None

    def _work(self) -> None:
        with contextlib.closing(self._own.waits()) as waits:
            self._take_turns(waits)

    def _take_turns(self, waits: Waits) -> None:
        while True:
            with self._bell:
                while not (self._orders or self._waiting or self.retired or self.state != ON):
                    self._bell.wait()
                if self.state != ON or not (self._orders or self._waiting):
                    return
                order = self._orders.popleft() if self._orders else None
                shared = self._waiting.popleft() if order is None else None
            if order is not None:
                self._obey(order)
            elif shared is not None:
                self._pass(shared, waits)

    def _obey(self, order: _Order) -> None:
        try:
            order.do()
        except HoldfastError as error:
            order.error = error
        finally:
            order.done.set()

    def _pass(self, shared: Shared, waits: Waits) -> None:
        """That the dicts have to be made first is not the plugin's fault."""
        tally, ctx = self.tally, self._context(shared)
        before_s = tally.cpu_s
        for callback in self.calls:
            dicts = shared.of(callback.name)
            rss, cpu_s, began = self._own.rss(), time.thread_time(), time.monotonic()
            try:
                left_s = self._limits.cpu_s - (tally.cpu_s - before_s)
                self._each(callback, dicts, ctx, waits, cpu_s + left_s)
            finally:
                self._busy = None
            tally.busy_s += time.monotonic() - began
            tally.cpu_s += time.thread_time() - cpu_s
            tally.grew_bytes += self._own.rss() - rss
            burnt_s = tally.cpu_s - before_s
            if burnt_s > self._limits.cpu_s:
                self._strike(f"a pass took {burnt_s * 1000:.0f} ms of processor time")
                break
            if self.state != ON:
                break
        tally.passes += 1
        tally.last_pass = shared.snapshot.pass_id
        if self.shadow:
            self.tried.set()

    def _each(
        self,
        callback: Callback,
        dicts: Sequence[Any],
        ctx: Context,
        waits: Waits,
        cpu_until_s: float,
    ) -> None:
        """Calls it with each of them, unless it is switched off, or uses up its time, meanwhile."""
        call, wants_ctx, what = callback.call, callback.wants_ctx, callback.name
        limits, tally, raised = self._limits, self.tally, False
        waited_s = waits.seconds()
        began = before = time.monotonic()
        for d in dicts:
            self._busy = (before, limits.hang_s, what)
            try:
                if wants_ctx:
                    call(d, ctx)
                else:
                    call(d)
            except CutOff:
                raise
            except BaseException as error:  # sys.exit() too: it is somebody else's code
                if not raised:  # one strike for a pass, however many guests there are
                    raised = True
                    self._strike(f"{what} raised {_said(error)}", error)
            now = time.monotonic()
            took_s = now - before
            if took_s > limits.slow_s:
                excuse_s, waited_s = waits.seconds() - waited_s, waits.seconds()
                took_s = max(0.0, took_s - excuse_s)
                if took_s > limits.slow_s:
                    self._strike(f"{what} took {took_s * 1000:.0f} ms")
            tally.slowest_s = max(tally.slowest_s, took_s)
            tally.calls += 1
            before = now
            if self.state != ON:
                return
            if now - began > limits.cpu_s and time.thread_time() > cpu_until_s:
                return

    def _strike(self, why: str, error: BaseException | None = None) -> None:
        now, limits = time.monotonic(), self._limits
        self._strikes.append((now, why))
        while self._strikes and self._strikes[0][0] < now - limits.within_s:
            self._strikes.popleft()
        count = len(self._strikes)
        trace = (type(error), error, error.__traceback__) if error is not None else None
        LOG.warning("plugin %s: %s (strike %d)", self.name, why, count, exc_info=trace)
        if count < limits.strikes:
            return
        with self._bell:
            if self.state == OFF:
                return
            self.why = f"{count} strikes within {limits.within_s:g} s, the last: {why}"
            self.state = OFF
        self._ear.off(self, self.why)

    def _context(self, shared: Shared) -> Context:
        one = shared.snapshot
        return Context(
            self.name,
            one.host,
            one.pass_id,
            one.at,
            one.monotonic,
            one.elapsed_s,
            self.config_version,
            self.shadow,
            self._hear,
        )

    def _hear(self, note: Note) -> None:
        if self.shadow or self.state != ON:
            return
        self.tally.notes += 1
        self._ear.note(note)

    def _end(self) -> None:
        close = getattr(self._plugin, "close", None)
        if close is None:
            return
        try:
            self._call("close", close)
        except HoldfastError as error:
            LOG.warning("plugin %s: %s", self.name, error.message)

    def _let_go(self) -> None:
        """Of all that keeps its memory."""
        self.calls, self._plugin, self._busy = (), None, None
        with self._bell:
            self.state = OFF
            orders, self._orders = self._orders, deque()
            self._waiting.clear()
        for order in orders:
            order.error = Conflict(f"plugin {self.name} is off: {self.why}")
            order.done.set()
        self._ready.set()
        self.tried.set()


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:300]
