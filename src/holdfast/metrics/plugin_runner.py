# SPDX-License-Identifier: Apache-2.0
"""Plugin runner: gives snapshots to the plugins of a host and switches off misbehaving plugins.

    runner = PluginRunner(Limits(), reports, own)
    runner.add("hot", "acme_hot:Hot", {"limit": 0.9})
    runner.offer(snapshot)                # once per pass; never waits for a plugin
    runner.configure("hot", {"limit": 0.8}); runner.reload("hot"); runner.remove("hot")

The plugins are in a mapping that is replaced and never modified, so passes need no lock and
changes cost them nothing. A change of a plugin waits for that plugin alone.

Python cannot tell cheaply which plugin owns an object, so the runner limits the memory of the
whole process. Above the limit, the runner switches off the plugin during whose passes memory
grew most (the newest of equals). If memory keeps growing, the next plugin follows.
"""

import contextlib
import copy
import ctypes
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from holdfast.metrics import plugin_code
from holdfast.metrics.plugin_code import NAME, Callback, callbacks
from holdfast.metrics.plugin_input import SharedDicts
from holdfast.model.errors import Conflict, HoldfastError, InvalidInput, NotFound, Unavailable
from holdfast.ports.metric_plugins import Context, Note
from holdfast.ports.metrics import Snapshot

# Limits and counters.


LOADING: Final = "loading"
ON: Final = "on"
OFF: Final = "off"


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits for every plugin."""

    slow_s: float = 0.05
    strikes: int = 5
    within_s: float = 60.0
    hang_s: float = 5.0
    #: Time limit for an import, `configure` or `close`.
    change_s: float = 10.0
    cpu_s: float = 0.25  # CPU time per pass
    waiting: int = 2
    rss_bytes: int = 192 * 2**20
    plugins: int = 32


@dataclass(slots=True)
class Tally:
    """Counters of a plugin; only one thread writes each counter."""

    passes: int = 0
    dropped: int = 0
    calls: int = 0
    busy_s: float = 0.0
    cpu_s: float = 0.0
    slowest_s: float = 0.0
    notes: int = 0
    grew_bytes: int = 0
    last_pass: int = 0


class Waits(Protocol):
    """Source of a thread's wait time since its start, for causes outside the thread."""

    def seconds(self) -> float: ...

    def close(self) -> None: ...


class Own(Protocol):
    """Source of this process's resource use."""

    def rss(self) -> int:
        """Return resident memory in bytes."""
        ...

    def waits(self) -> Waits:
        """Return the wait time source of the calling thread."""
        ...


# Interruption of a plugin thread that hangs.


class CutOff(BaseException):
    """Raised inside a plugin thread to end the thread."""


def interrupt(thread: threading.Thread) -> None:
    """Raise `CutOff` in a thread, which ends a Python loop.

    A thread that waits in the kernel sees the exception only after the kernel call returns.
    """
    if thread.ident is not None and thread.is_alive():
        ident, error = ctypes.c_ulong(thread.ident), ctypes.py_object(CutOff)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, error)


# Thread of a plugin.


LOG = logging.getLogger(__name__)

Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Ear:
    """Callbacks of a plugin worker; called from any thread, and must not wait."""

    off: Callable[["PluginWorker", str], None]
    note: Callable[[Note], None]


@dataclass(slots=True)
class _Order:
    """Work for a plugin thread between two passes."""

    do: Callable[[], None]
    done: threading.Event = field(default_factory=threading.Event)
    error: HoldfastError | None = None


class PluginWorker:
    """Runs a plugin on a thread of its own, from import to `close`.

    Up to `Limits.waiting` snapshots (2) wait in a queue; a further snapshot drops the oldest,
    which is counted. The worker times every call. A slow call is a strike; so is a callback
    that raises in a pass, or a pass that takes too much of the CPU time that all threads share.

    A call that never returns is abandoned: its thread gets an exception, which ends a Python
    loop. A thread that waits in the kernel is lost.
    """

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
        """`make` returns the plugin; the worker calls `make` on the plugin's thread."""
        self.name = name
        self.state, self.why = LOADING, ""
        self.tally = Tally()
        self.calls: Sequence[Callback] = ()
        self.has: tuple[str, ...] = ()  # names of the callbacks
        self.config = dict(config)
        self.config_version = 0
        self.shadow = shadow
        self.retired = False
        self.tried = threading.Event()  # set after the pass in shadow
        self._make: Callable[[], object] | None = make
        self._plugin: object | None = None
        self._limits = limits
        self._ear = ear
        self._own = own
        self._strikes: deque[tuple[float, str]] = deque()
        self._busy: tuple[float, float, str] | None = None  # since, time limit, call
        self._bell = threading.Condition()
        self._waiting: deque[SharedDicts] = deque()
        self._orders: deque[_Order] = deque()
        self._offered = 0
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._forever, name=f"plugin-{name}"[:40])
        self._thread.daemon = True

    # called by other threads; a method waits for the plugin only if its docstring says so

    def start(self) -> None:
        self._thread.start()

    def wait_ready(self) -> None:
        """Wait until the plugin is on. HoldfastError says why the plugin failed to start."""
        if not self._ready.wait(self._limits.change_s):
            self.cut(f"it was not there after {self._limits.change_s:g} s")
        if self.state != ON:
            raise InvalidInput(f"plugin {self.name}: {self.why}")

    def offer(self, shared: SharedDicts) -> None:
        """Queue a snapshot without waiting."""
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
        """Configure the plugin between two passes, and wait. InvalidInput if the plugin refuses."""

        def do() -> None:
            self._configure(config)

        self._ask(do)

    def retire(self) -> None:
        """Accept no more snapshots; the thread ends after the queued snapshots.

        No report is sent.
        """
        with self._bell:
            self.retired = True
            self._bell.notify()

    def stop(self, why: str) -> None:
        """End the thread as soon as possible. No report is sent."""
        with self._bell:
            self.retired = True
            if self.state != OFF:
                self.state, self.why = OFF, why
            self._waiting.clear()
            self._bell.notify()

    def join(self, seconds: float) -> bool:
        """Wait up to `seconds` for the thread; return whether the thread has ended."""
        if self._thread.is_alive():
            self._thread.join(max(0.0, seconds))
        return not self._thread.is_alive()

    def cut(self, why: str, *, now: bool = True) -> None:
        """Switch the plugin off and report this if the plugin was on.

        With `now` a running call is interrupted; otherwise the thread ends after the call.
        """
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

    def maintain(self) -> None:
        """Cut off a call that hangs; interrupt a stopped thread again if it does not end."""
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
        """Return the reasons of the strikes within `Limits.within_s` seconds."""
        since = time.monotonic() - self._limits.within_s
        return [why for at, why in list(self._strikes) if at >= since]

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def _ask(self, do: Callable[[], None]) -> None:
        """Run `do` on the plugin's thread and wait for the result."""
        order = _Order(do)
        with self._bell:
            if self.state != ON:
                raise Conflict(f"plugin {self.name} is {self.state}: enable it first")
            self._orders.append(order)
            self._bell.notify()
        if not order.done.wait(self._limits.change_s):
            raise Unavailable(f"plugin {self.name} did not answer: look at `metric plugin list`")
        if order.error is not None:
            raise order.error

    def _interrupt(self) -> None:
        if self._busy is not None:
            interrupt(self._thread)

    # called on the plugin's thread

    def _forever(self) -> None:
        try:
            if self._begin():
                self._work()
            self._end()
        except CutOff:
            LOG.info("plugin %s: its thread has ended after all", self.name)
        except Exception as error:  # top of the thread: an error of Holdfast, not of the plugin
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
        """Call plugin code; any exception becomes InvalidInput."""
        self._busy = (time.monotonic(), self._limits.change_s, what)
        try:
            return call()
        except (CutOff, HoldfastError):
            raise
        except BaseException as error:  # foreign code: sys.exit() too
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

    def _pass(self, shared: SharedDicts, waits: Waits) -> None:
        """Call all callbacks with a snapshot; time spent to build the dicts does not count."""
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
        """Call a callback with each dict.

        The loop ends early if the plugin is switched off or its CPU time is used up.
        """
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
            except BaseException as error:  # foreign code: sys.exit() too
                if not raised:  # one strike per pass, however many guests there are
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
        """Count and log a strike; at the limit, switch the plugin off."""
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

    def _context(self, shared: SharedDicts) -> Context:
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
        """Pass a note on, unless the plugin runs in shadow or is off."""
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
        """Release every object that keeps the plugin's memory."""
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


MIB: Final = 2**20
#: A plugin with less growth is not the cause of high memory use.
LEAST_GROWTH: Final = 1 * MIB
#: Allowance above the current size, because freed memory returns late and only in part.
SLACK: Final = 8 * MIB
SETTLE_S: Final = 3.0
#: Largest number of hanging threads that a plugin may leave behind.
MOST_LOST: Final = 3


class Reports(Protocol):
    """Receiver of plugin events; called on any thread, and must not wait."""

    def off(self, plugin: str, why: str) -> None:
        """Report that a plugin was switched off."""
        ...

    def on(self, plugin: str) -> None:
        """Report that a plugin is on or was removed."""
        ...

    def note(self, note: Note) -> None: ...


@dataclass(eq=False)
class Slot:
    """A plugin by name: the worker of its current code, and of the code before."""

    name: str
    use: str
    kind: type
    lane: PluginWorker
    before: tuple[type, PluginWorker] | None = None
    trial: PluginWorker | None = None
    reloads: int = 0
    lost: list[PluginWorker] = field(default_factory=list)  # workers whose thread hung
    lock: threading.Lock = field(default_factory=threading.Lock)

    def offer(self, shared: SharedDicts) -> None:
        with self.lock:  # no thread waits while it holds the lock
            self.lane.offer(shared)
            if self.trial is not None:
                self.trial.offer(shared)

    @property
    def lanes(self) -> list[PluginWorker]:
        kept = [self.before[1]] if self.before else []
        trial = self.trial
        return [self.lane, *kept, *([trial] if trial is not None else []), *self.lost]


class PluginRunner:
    """Runs all plugins of a host; threads may share it, but only one thread calls `offer`."""

    def __init__(
        self,
        limits: Limits,
        reports: Reports,
        own: Own,
    ) -> None:
        self._limits = limits
        self._reports = reports
        self._own = own
        self._ear = Ear(self._off, reports.note)
        self._slots: Mapping[str, Slot] = {}
        self._leaving: tuple[PluginWorker, ...] = ()
        self._changing: set[str] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._mark = limits.rss_bytes
        self._settled = 0.0

    # passes

    def offer(self, snapshot: Snapshot) -> None:
        """Give a snapshot to all plugins without waiting."""
        self.maintain()  # before plugin threads wake: reading /proc would wait for them
        slots = self._slots
        if slots:
            shared = SharedDicts(snapshot)
            for slot in slots.values():
                slot.offer(shared)

    def maintain(self) -> None:
        """Cut off plugins that hang or use too much memory."""
        slots = self._slots
        if not slots and not self._leaving:
            return
        for slot in slots.values():
            for lane in slot.lanes:
                lane.maintain()
        if self._leaving:
            for lane in self._leaving:
                lane.maintain()
            with self._lock:
                self._leaving = tuple(one for one in self._leaving if one.is_alive)
        self._weigh([slot.lane for slot in slots.values() if slot.lane.state == ON])

    def _weigh(self, lanes: list[PluginWorker]) -> None:
        """Switch off the plugin with the largest growth if the process uses too much memory."""
        now = time.monotonic()
        if now < self._settled or not lanes:
            return
        rss = self._own.rss()
        if rss <= self._mark:
            if rss <= self._limits.rss_bytes:
                self._mark = self._limits.rss_bytes
            return
        self._settled, self._mark = now + SETTLE_S, rss + SLACK
        worst = max(reversed(lanes), key=lambda one: one.tally.grew_bytes)  # the newest of equals
        grew = worst.tally.grew_bytes
        if grew < LEAST_GROWTH:
            LOG.warning("the agent takes %d MiB, but no plugin grew", rss // MIB)
            return
        limit = self._limits.rss_bytes // MIB
        worst.cut(
            f"the agent takes {rss // MIB} MiB, more than {limit}, and grew by {grew // MIB} MiB "
            "while this plugin was at work",
            now=False,
        )

    def _off(self, lane: PluginWorker, why: str) -> None:
        LOG.error("plugin %s is off: %s", lane.name, why)
        if not lane.shadow and not lane.retired:
            self._reports.off(lane.name, why)

    # changes; the calling thread may wait

    def add(self, name: str, use: str, config: Config) -> None:
        """Add a plugin; return when the plugin is on.

        HoldfastError if the plugin fails to start; then nothing changed.
        """
        if not NAME.fullmatch(name):
            raise InvalidInput(f"{name!r} is no name: write a to z, digits, _ . and -")
        with self._change(name):
            if name in self._slots:
                raise Conflict(f"there is a plugin {name}: configure, reload or remove it")
            if len(self._slots) >= self._limits.plugins:
                raise Conflict(f"there are {self._limits.plugins} plugins: remove one first")
            kind, lane = self._load(name, plugin_code.find(use), config)
            self._reports.on(name)  # before its first pass, which could switch it off
            self._put(Slot(name, use, kind, lane))
        LOG.info("plugin %s (%s) is on: %s", name, use, ", ".join(lane.has))

    def configure(self, name: str, config: Config) -> None:
        """Configure a plugin; the change applies from its next pass on."""
        with self._change(name):
            self._slot(name).lane.configure(config)
        LOG.info("plugin %s is configured anew", name)

    def remove(self, name: str) -> None:
        """Remove a plugin and wait for its thread to end."""
        with self._change(name):
            slot = self._slot(name)
            self._put(None, name)
            self._dismiss(*slot.lanes)
            if not slot.lane.join(self._limits.change_s):
                LOG.warning("plugin %s is removed, but its thread does not end", name)
            for kind in (slot.kind, *(slot.before[:1] if slot.before else ())):
                plugin_code.forget(kind)
        self._reports.on(name)
        LOG.info("plugin %s is removed", name)

    def enable(self, name: str) -> None:
        """Restart a switched-off plugin with the code and configuration it had."""
        with self._change(name):
            slot = self._slot(name)
            old = slot.lane
            if old.state == ON:
                raise Conflict(f"plugin {name} is on already")
            slot.lost = [one for one in (*slot.lost, old) if one.is_alive]
            if len(slot.lost) >= MOST_LOST:
                raise Conflict(
                    f"plugin {name} left {len(slot.lost)} threads that do not end: mend it, and "
                    "restart the agent"
                )
            lane = self._begin(name, slot.kind, old.config)
            self._reports.on(name)
            slot.lane = lane
        LOG.info("plugin %s is on again", name)

    def reload(self, name: str) -> None:
        """Replace the plugin's code by the current code, after a pass of trial beside the old
        code."""
        with self._change(name):
            slot = self._slot(name)
            source, config = plugin_code.find(slot.use), slot.lane.config
            kind, lane = self._load(name, source, config, anew=True, shadow=True)
            try:
                self._try(slot, lane)
            except HoldfastError:
                self._dismiss(lane)
                plugin_code.forget(kind)
                raise
            finally:
                slot.trial = None
            self._swap(slot, kind, lane)
            slot.reloads += 1
        self._reports.on(name)
        LOG.info("plugin %s runs its new code", name)

    def roll_back(self, name: str) -> None:
        """Return to the code before the last reload; the old plugin object kept its state."""
        with self._change(name):
            slot = self._slot(name)
            if slot.before is None or slot.before[1].state != ON:
                raise Conflict(f"plugin {name} has no code before this one: reload it instead")
            kind, lane = slot.before
            if lane.config != slot.lane.config:
                lane.configure(slot.lane.config)
            self._swap(slot, kind, lane)
        self._reports.on(name)
        LOG.info("plugin %s runs its old code", name)

    def close(self) -> None:
        """Stop all plugins; wait up to 2 s for their threads."""
        with self._lock:
            self._closed = True
            lanes = [lane for slot in self._slots.values() for lane in slot.lanes]
            lanes += self._leaving
            self._slots, self._leaving = {}, ()
        for lane in lanes:
            lane.stop("the agent stops")
        until = time.monotonic() + 2.0
        for lane in lanes:
            lane.join(until - time.monotonic())

    # queries

    @property
    def names(self) -> list[str]:
        return list(self._slots)

    def rows(self) -> list[dict[str, Any]]:
        return [_row(slot) for slot in self._slots.values()]

    def row(self, name: str) -> dict[str, Any]:
        return _row(self._slot(name))

    # helpers

    @contextlib.contextmanager
    def _change(self, name: str) -> Iterator[None]:
        """Allow one change per plugin at a time."""
        with self._lock:
            if self._closed:
                raise Unavailable("the agent stops")
            if name in self._changing:
                raise Conflict(f"plugin {name} is being changed just now: try again in a moment")
            self._changing.add(name)
        try:
            yield
        finally:
            with self._lock:
                self._changing.discard(name)

    def _slot(self, name: str) -> Slot:
        found = self._slots.get(name)
        if found is None:
            there = ", ".join(self._slots) or "none"
            raise NotFound(f"there is no plugin {name}: there are {there}")
        return found

    def _put(self, slot: Slot | None, name: str = "") -> None:
        """Replace the mapping that passes read, with `slot` added or `name` removed."""
        with self._lock:
            if slot is None:
                self._slots = {key: one for key, one in self._slots.items() if key != name}
            elif self._closed:
                slot.lane.stop("the agent stops")
            else:
                self._slots = {**self._slots, slot.name: slot}

    def _load(
        self,
        name: str,
        source: plugin_code.Source,
        config: Config,
        *,
        anew: bool = False,
        shadow: bool = False,
    ) -> tuple[type, PluginWorker]:
        found: list[type] = []

        def make() -> object:
            found.append(source.read(anew))
            return found[0]()

        return self._started(
            PluginWorker(name, make, config, self._limits, self._ear, self._own, shadow=shadow),
            found,
        )

    def _begin(self, name: str, kind: type, config: Config) -> PluginWorker:
        return self._started(
            PluginWorker(name, kind, config, self._limits, self._ear, self._own), [kind]
        )[1]

    def _started(self, lane: PluginWorker, found: list[type]) -> tuple[type, PluginWorker]:
        lane.start()
        try:
            lane.wait_ready()
        except HoldfastError:
            self._dismiss(lane)
            raise
        return found[0], lane

    def _try(self, slot: Slot, lane: PluginWorker) -> None:
        """Wait for a pass in shadow. HoldfastError if the new code fails."""
        slot.trial = lane
        if not lane.tried.wait(self._limits.change_s):
            raise Unavailable(f"plugin {slot.name}: no pass was there to try it, the old goes on")
        problems = lane.strikes() or ([lane.why] if lane.state == OFF else [])
        if problems:
            raise InvalidInput(f"the old {slot.name} goes on, for the new {problems[0]}")

    def _swap(self, slot: Slot, kind: type, lane: PluginWorker) -> None:
        """Replace the worker of a slot.

        The slot's lock makes sure that each pass reaches exactly one worker.
        """
        with slot.lock:
            slot.trial, lane.shadow = None, False
            old, older = slot.lane, slot.before
            slot.before = (slot.kind, old)
            slot.kind, slot.lane = kind, lane
        if older is not None and older[1] is not lane:
            self._dismiss(older[1])
            plugin_code.forget(older[0])

    def _dismiss(self, *lanes: PluginWorker) -> None:
        """Retire workers, and watch their threads until they end."""
        for lane in lanes:
            lane.retire()
        with self._lock:
            self._leaving = (*self._leaving, *(one for one in lanes if one.is_alive))


def _row(slot: Slot) -> dict[str, Any]:
    lane, tally = slot.lane, slot.lane.tally
    passes = max(1, tally.passes)
    return {
        "name": slot.name,
        "use": slot.use,
        "state": lane.state,
        "why": lane.why,
        "callbacks": list(lane.has),
        "config": lane.config,
        "config_version": lane.config_version,
        "passes": tally.passes,
        "last_pass": tally.last_pass,
        "dropped": tally.dropped,
        "strikes": lane.strikes(),
        "mean_ms": round(tally.busy_s / passes * 1000, 3),
        "cpu_ms": round(tally.cpu_s / passes * 1000, 3),
        "slowest_ms": round(tally.slowest_s * 1000, 3),
        "grew_kib": tally.grew_bytes // 1024,
        "notes": tally.notes,
        "reloads": slot.reloads,
        "can_roll_back": slot.before is not None and slot.before[1].state == ON,
        "lost_threads": sum(one.is_alive for one in slot.lost),
    }
