# SPDX-License-Identifier: Apache-2.0
"""The plugins of a host: who gets the snapshots, and what becomes of those that misbehave.

    runner = PluginRunner(Limits(), reports, own)
    runner.add("hot", "acme_hot:Hot", {"limit": 0.9})
    runner.offer(snapshot)                # once for each pass; never waits for a plugin
    runner.configure("hot", {"limit": 0.8}); runner.reload("hot"); runner.remove("hot")

Who is there is one mapping that is never changed but replaced, so that passes need no lock and
changes cost them nothing. What changes a plugin waits for that plugin alone.

Nobody can tell cheaply whose an object is, so memory is judged by the whole process: past the limit
that plugin is switched off during whose passes it grew most, the newest of equals; then, if it goes
on growing, the next one.
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

# How far plugins may go, what is counted of one, and by what it is judged.


LOADING: Final = "loading"
ON: Final = "on"
OFF: Final = "off"


@dataclass(frozen=True, slots=True)
class Limits:
    slow_s: float = 0.05
    strikes: int = 5
    within_s: float = 60.0
    hang_s: float = 5.0
    #: For an import, a `configure` or `close`.
    change_s: float = 10.0
    cpu_s: float = 0.25  # of the processor, in one pass
    waiting: int = 2
    rss_bytes: int = 192 * 2**20
    plugins: int = 32


@dataclass(slots=True)
class Tally:
    """What is counted; one thread writes each."""

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
    """For how long a thread has waited for what is not in its hands, since it began."""

    def seconds(self) -> float: ...

    def close(self) -> None: ...


class Own(Protocol):
    """What this process takes."""

    def rss(self) -> int:
        """Bytes of memory."""
        ...

    def waits(self) -> Waits:
        """Of the thread that asks."""
        ...


# The end of a thread that does not come back by itself.


class CutOff(BaseException):
    """Raised in such a thread."""


def interrupt(thread: threading.Thread) -> None:
    """Ends a loop in Python. What waits in the kernel does not see it before it comes back."""
    if thread.ident is not None and thread.is_alive():
        ident, error = ctypes.c_ulong(thread.ident), ctypes.py_object(CutOff)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, error)


# One plugin on a thread of its own: everything of it runs there, from import to `close`.
#
# Snapshots wait in a queue of two; a third one pushes the oldest out, which is counted. What the
# plugin does is timed. A slow call is a strike, and so is a callback that raises in a pass, or a
# pass that burns too much of the processor that all share. A call that never returns is left
# alone:
# its thread gets an exception, which ends a loop; what waits in the kernel is never heard of
# again.


LOG = logging.getLogger(__name__)

Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Ear:
    """Whom a lane tells; called from any thread, and must not wait."""

    off: Callable[["PluginWorker", str], None]
    note: Callable[[Note], None]


@dataclass(slots=True)
class _Order:
    """What the thread shall do between two passes."""

    do: Callable[[], None]
    done: threading.Event = field(default_factory=threading.Event)
    error: HoldfastError | None = None


class PluginWorker:
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
        self._waiting: deque[SharedDicts] = deque()
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

    def offer(self, shared: SharedDicts) -> None:
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

    def maintain(self) -> None:
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

    def _pass(self, shared: SharedDicts, waits: Waits) -> None:
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


MIB: Final = 2**20
#: A plugin that grew by less is not why we are too large.
LEAST_GROWTH: Final = 1 * MIB
#: Memory is not given back at once, nor all of it.
SLACK: Final = 8 * MIB
SETTLE_S: Final = 3.0
#: Threads that one plugin may leave behind.
MOST_LOST: Final = 3


class Reports(Protocol):
    """Who is told; on any thread, and must not wait."""

    def off(self, plugin: str, why: str) -> None:
        """It was switched off."""
        ...

    def on(self, plugin: str) -> None:
        """It is on, or removed."""
        ...

    def note(self, note: Note) -> None: ...


@dataclass(eq=False)
class Slot:
    """A plugin, by its name; the code it runs, and the one before that."""

    name: str
    use: str
    kind: type
    lane: PluginWorker
    before: tuple[type, PluginWorker] | None = None
    trial: PluginWorker | None = None
    reloads: int = 0
    lost: list[PluginWorker] = field(default_factory=list)  # that hung
    lock: threading.Lock = field(default_factory=threading.Lock)

    def offer(self, shared: SharedDicts) -> None:
        with self.lock:  # nobody waits while holding it
            self.lane.offer(shared)
            if self.trial is not None:
                self.trial.offer(shared)

    @property
    def lanes(self) -> list[PluginWorker]:
        kept = [self.before[1]] if self.before else []
        trial = self.trial
        return [self.lane, *kept, *([trial] if trial is not None else []), *self.lost]


class PluginRunner:
    """Threads may share it; `offer` is for one."""

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
        self.maintain()  # before they wake: whoever reads a file then has to wait for them
        slots = self._slots
        if slots:
            shared = SharedDicts(snapshot)
            for slot in slots.values():
                slot.offer(shared)

    def maintain(self) -> None:
        """Cut off what hangs, or makes us too large."""
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

    # changes, each by a thread that may wait

    def add(self, name: str, use: str, config: Config) -> None:
        """On when this returns; HoldfastError if it cannot be, and nothing changed."""
        if not NAME.fullmatch(name):
            raise InvalidInput(f"{name!r} is no name: write a to z, digits, _ . and -")
        with self._change(name):
            if name in self._slots:
                raise Conflict(f"there is a plugin {name}: configure, reload or remove it")
            if len(self._slots) >= self._limits.plugins:
                raise Conflict(f"there are {self._limits.plugins} plugins: remove one first")
            kind, lane = self._load(name, plugin_code.find(use), config)
            self._reports.on(name)  # before it has a pass in which it could be switched off
            self._put(Slot(name, use, kind, lane))
        LOG.info("plugin %s (%s) is on: %s", name, use, ", ".join(lane.has))

    def configure(self, name: str, config: Config) -> None:
        """From its next pass on."""
        with self._change(name):
            self._slot(name).lane.configure(config)
        LOG.info("plugin %s is configured anew", name)

    def remove(self, name: str) -> None:
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
        """One that is off begins anew, with the code and configuration it had."""
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
        """Its code as it is now: for one pass beside the old, then in its place."""
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
        """To the code before the last reload, which has kept what it knew."""
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

    # what there is

    @property
    def names(self) -> list[str]:
        return list(self._slots)

    def rows(self) -> list[dict[str, Any]]:
        return [_row(slot) for slot in self._slots.values()]

    def row(self, name: str) -> dict[str, Any]:
        return _row(self._slot(name))

    # how

    @contextlib.contextmanager
    def _change(self, name: str) -> Iterator[None]:
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
        """Replaces the mapping that passes look at."""
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
        slot.trial = lane
        if not lane.tried.wait(self._limits.change_s):
            raise Unavailable(f"plugin {slot.name}: no pass was there to try it, the old goes on")
        problems = lane.strikes() or ([lane.why] if lane.state == OFF else [])
        if problems:
            raise InvalidInput(f"the old {slot.name} goes on, for the new {problems[0]}")

    def _swap(self, slot: Slot, kind: type, lane: PluginWorker) -> None:
        """Each pass is heard by one of them."""
        with slot.lock:
            slot.trial, lane.shadow = None, False
            old, older = slot.lane, slot.before
            slot.before = (slot.kind, old)
            slot.kind, slot.lane = kind, lane
        if older is not None and older[1] is not lane:
            self._dismiss(older[1])
            plugin_code.forget(older[0])

    def _dismiss(self, *lanes: PluginWorker) -> None:
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
