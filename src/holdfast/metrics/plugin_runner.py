# SPDX-License-Identifier: Apache-2.0
"""Plugin runner: gives snapshots to the plugins of a host and switches off misbehaving plugins.

    runner = PluginRunner(Limits(), reports)
    runner.add("hot", "acme_hot:Hot", {"limit": 0.9})
    runner.offer(snapshot)                # once per pass; never waits for a plugin
    runner.configure("hot", {"limit": 0.8}); runner.reload("hot"); runner.remove("hot")

All plugins run in one child process (`plugin_child`), one after the other. A thread of the
runner starts the process, sends it a snapshot when it has finished the one before, receives
reports, and ends the process when a plugin hangs. The runner then switches off this plugin and
starts the process again with the others. Nothing that a plugin does can hold a lock of the agent.
"""

import contextlib
import json
import logging
import select
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from holdfast.metrics import plugin_code
from holdfast.metrics.plugin_child import CALLS, MEMORY_EXIT
from holdfast.metrics.plugin_code import NAME
from holdfast.metrics.plugin_input import KINDS, Encoder
from holdfast.metrics.plugin_process import PluginProcess
from holdfast.model.errors import Conflict, HoldfastError, InvalidInput, NotFound, Unavailable
from holdfast.ports.metric_plugins import CALLBACKS, Context, Note
from holdfast.ports.metrics import Snapshot
from holdfast.runtime.clock import SystemClock
from holdfast.runtime.threads import Worker

LOG = logging.getLogger(__name__)
#: Log lines of plugins.
PLUGINS_LOG = logging.getLogger("holdfast.plugins")

ON: Final = "on"
OFF: Final = "off"
MIB: Final = 2**20
#: A plugin with less growth is not the cause of high memory use.
LEAST_GROWTH: Final = 1 * MIB
GATHER_S: Final = 0.003
#: Seconds between two checks of a call that has not returned, and of an idle process.
BUSY_S, IDLE_S = 0.1, 1.0
#: Pause before a restart after an end that no plugin caused: doubled each time, up to a minute.
PAUSE_S, MOST_PAUSE_S, FORGIVEN_S = 0.5, 60.0, 600.0
#: Most processes that all plugins together may have started.
MOST_PROCESSES: Final = 64
COUNT_S: Final = 0.5  # seconds between two counts
#: Time for the start of the process, on a loaded host.
START_S: Final = 30.0
#: Time for `close` of all plugins when the agent stops.
STOP_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits for every plugin."""

    slow_s: float = 0.05
    strikes: int = 5
    within_s: float = 60.0
    hang_s: float = 5.0
    #: Time limit for an import, `configure` or `close`.
    change_s: float = 10.0
    turn_s: float = 0.25  # all calls of a pass; CPU time per second of threads and processes
    waiting: int = 2
    memory_bytes: int = 192 * MIB  # of the process of all plugins
    plugins: int = 32


class Reports(Protocol):
    """Receiver of plugin events; called on any thread, and must not wait."""

    def off(self, plugin: str, why: str) -> None:
        """Report that a plugin was switched off."""
        ...

    def on(self, plugin: str) -> None:
        """Report that a plugin is on or was removed."""
        ...

    def note(self, note: Note) -> None: ...


Config = Mapping[str, Any]
ChildReply = Mapping[str, Any]


@dataclass(eq=False)
class Slot:
    """A plugin by name, with its counters; `number` names its current code in the process."""

    name: str
    use: str
    config: Config
    state: str = OFF
    why: str = ""
    number: int = 0
    callbacks: list[str] = field(default_factory=list)
    config_version: int = 0
    can_roll_back: bool = False
    reloads: int = 0
    strikes: deque[tuple[float, str]] = field(default_factory=deque)
    passes: int = 0
    last_pass: int = 0
    dropped: int = 0
    calls: int = 0
    busy_s: float = 0.0
    cpu_s: float = 0.0
    slowest_s: float = 0.0
    grew_bytes: int = 0
    notes: int = 0

    def use_code(self, reply: ChildReply) -> None:
        """Take the answer of the process after a change of code."""
        self.number, self.callbacks = (
            int(reply["number"]),
            [str(callback) for callback in reply["callbacks"]],
        )
        self.config_version, self.can_roll_back = int(reply["version"]), bool(reply["before"])

    def switch_on(self, reply: ChildReply) -> None:
        self.use_code(reply)
        self.state, self.why = ON, ""
        self.strikes.clear()

    def count(self, report: ChildReply) -> None:
        """Add the report of a pass to the counters."""
        self.passes += 1
        self.last_pass = int(report["passed"])
        self.calls += int(report["calls"])
        self.busy_s += float(report["busy_s"])
        self.cpu_s += float(report["cpu_s"])
        self.slowest_s = max(self.slowest_s, float(report["slowest_s"]))
        self.grew_bytes += int(report["grew"])
        self.notes += int(report["noted"])

    def strike(self, why: str, limits: Limits) -> int:
        """Add a strike; return the number of strikes within `Limits.within_s` seconds."""
        now = time.monotonic()
        self.strikes.append((now, why))
        while self.strikes[0][0] < now - limits.within_s:
            self.strikes.popleft()
        return len(self.strikes)


@dataclass(eq=False)
class _Request:
    """A message to the process with an answer. `then` runs on the runner's thread."""

    message: dict[str, Any]
    then: Callable[[ChildReply], None] = lambda _: None
    failed: Callable[[str], None] = lambda _: None
    is_ours: bool = False  # not repeated after a restart, and no thread waits for the answer
    done: threading.Event = field(default_factory=threading.Event)
    error: HoldfastError | None = None

    def fail(self, error: HoldfastError) -> None:
        self.error = error
        self.failed(error.message)
        self.done.set()


class _Thread(Worker):
    """Thread of the runner: repeats rounds, then closes the plugins.

    The process of the plugins ends with the thread that started it, so this thread closes them.
    """

    def __init__(
        self,
        turn: Callable[[], float | None],
        failed: Callable[[Exception], None],
        close: Callable[[], None],
    ) -> None:
        stop_s = STOP_S + START_S
        super().__init__("plugin-process", SystemClock(), turn, failed=failed, stop_s=stop_s)
        self._close = close

    def _forever(self) -> None:
        super()._forever()
        self._close()


class PluginRunner:
    """Runs all plugins of a host; threads may share it, but only one thread calls `offer`."""

    def __init__(self, limits: Limits, reports: Reports) -> None:
        self._limits = limits
        self._reports = reports
        self._lock = threading.RLock()
        self._slots: dict[str, Slot] = {}
        self._changing: set[str] = set()
        self._waiting: deque[Snapshot] = deque()
        self._requests: deque[_Request] = deque()
        self._sent: dict[int, _Request] = {}
        self._numbers = self._ids = 0  # of plugins, and of requests
        self._process: PluginProcess | None = None
        self._encoder = Encoder()
        self._passing: Snapshot | None = None  # the pass that the process works on
        self._watched: tuple[tuple[int, int, float], float] | None = None
        self._sent_at = self._counted_at = 0.0  # time of the last pass or tick, and count
        self._ends: deque[float] = deque()  # ends of the process that no plugin caused
        self._not_before = 0.0
        self.problem = ""
        self._nonsense = ""  # why a message of the process could not be used
        self._unclean = ""  # why the process has to be restarted after this pass
        self._closed = False
        self._woken, self._wake_event = socket.socketpair()
        self._woken.setblocking(False)
        self._wake_event.setblocking(False)
        self._thread: _Thread | None = None

    # passes

    def offer(self, snapshot: Snapshot) -> None:
        """Give a snapshot to all plugins without waiting."""
        if not self._slots:
            return
        waiting = self._waiting  # without the lock, which another thread may hold for long
        if len(waiting) >= self._limits.waiting:
            with contextlib.suppress(IndexError):  # the runner's thread has just taken the last
                self._count_dropped(waiting.popleft())
        waiting.append(snapshot)
        self._wake()

    def _count_dropped(self, lost: Snapshot) -> None:
        for slot in self._slots.values():
            slot.dropped += slot.state == ON and slot.last_pass < lost.pass_id

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
            slot = Slot(name, use, dict(config))

            def enter(reply: ChildReply) -> None:
                slot.switch_on(reply)
                self._slots = {**self._slots, name: slot}
                self._reports.on(name)

            self._request(self._loading(slot), enter)
        LOG.info("plugin %s (%s) is on: %s", name, use, ", ".join(slot.callbacks))

    def configure(self, name: str, config: Config) -> None:
        """Configure a plugin; the change applies from its next pass on."""
        with self._change(name):
            slot = self._slot(name)
            if slot.state != ON:
                raise Conflict(f"plugin {name} is off: enable it first")

            def then(reply: ChildReply) -> None:
                slot.config = dict(config)
                slot.use_code(reply)

            self._request({"do": "configure", "name": name, "config": dict(config)}, then)
        LOG.info("plugin %s is configured anew", name)

    def remove(self, name: str) -> None:
        """Remove a plugin; return when it is closed."""
        with self._change(name):
            self._slot(name)
            with self._lock:
                self._slots = {key: slot for key, slot in self._slots.items() if key != name}
            if self._process is not None:
                self._request({"do": "drop", "name": name})
        self._reports.on(name)
        LOG.info("plugin %s is removed", name)

    def enable(self, name: str) -> None:
        """Start a switched-off plugin anew with the configuration it had."""
        with self._change(name):
            slot = self._slot(name)
            if slot.state == ON:
                raise Conflict(f"plugin {name} is on already")
            self._request(self._loading(slot, anew=True), self._switching_on(slot))
        LOG.info("plugin %s is on again", name)

    def reload(self, name: str) -> None:
        """Replace the plugin's code by the current code, after a pass of trial beside the old
        code."""
        with self._change(name):
            slot = self._slot(name)
            message = {**self._loading(slot, anew=True), "do": "reload"}
            late = f"plugin {name}: no pass tried the new code in time, the old code goes on"
            self._request(message, self._switching_on(slot), self._limits.change_s, late)
            slot.reloads += 1
        LOG.info("plugin %s runs its new code", name)

    def roll_back(self, name: str) -> None:
        """Return to the code before the last reload; the old plugin object kept its state."""
        with self._change(name):
            slot = self._slot(name)
            if not slot.can_roll_back:
                raise Conflict(f"plugin {name} has no code before this one: reload it instead")
            message = {"do": "roll_back", "name": name, "config": dict(slot.config)}
            self._request(message, self._switching_on(slot))
        LOG.info("plugin %s runs its old code", name)

    def close(self) -> None:
        """Close all plugins and end their process."""
        with self._lock:
            self._closed = True
            self._slots = {}
        self._wake()
        if self._thread is not None:
            self._thread.stop()

    # queries

    @property
    def names(self) -> list[str]:
        return list(self._slots)

    @property
    def pid(self) -> int | None:
        """Return the process id of the plugins, or None while there is no process."""
        process = self._process
        return process.pid if process is not None else None

    def rows(self) -> list[dict[str, Any]]:
        return [self._row(slot) for slot in self._slots.values()]

    def row(self, name: str) -> dict[str, Any]:
        return self._row(self._slot(name))

    def _row(self, slot: Slot) -> dict[str, Any]:
        passes = max(1, slot.passes)
        since = time.monotonic() - self._limits.within_s
        return {
            "name": slot.name,
            "use": slot.use,
            "state": slot.state,
            "why": slot.why,
            "callbacks": slot.callbacks,
            "config": slot.config,
            "config_version": slot.config_version,
            "passes": slot.passes,
            "last_pass": slot.last_pass,
            "dropped": slot.dropped,
            "strikes": [why for at, why in list(slot.strikes) if at >= since],
            "mean_ms": round(slot.busy_s / passes * 1000, 3),
            "cpu_ms": round(slot.cpu_s / passes * 1000, 3),
            "slowest_ms": round(slot.slowest_s * 1000, 3),
            "grew_kib": slot.grew_bytes // 1024,
            "notes": slot.notes,
            "reloads": slot.reloads,
            "can_roll_back": slot.can_roll_back,
        }

    # helpers of changes

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
        slot = self._slots.get(name)
        if slot is None:
            there = ", ".join(self._slots) or "none"
            raise NotFound(f"there is no plugin {name}: there are {there}")
        return slot

    def _loading(self, slot: Slot, anew: bool = False) -> dict[str, Any]:
        """Return the message that loads a plugin's code. HoldfastError if there is none."""
        source = plugin_code.find(slot.use)
        with self._lock:
            self._numbers = self._numbers % 0xFFFF + 1
            number = self._numbers
        return {
            "do": "load",
            "name": slot.name,
            "number": number,
            "source": tuple(source),
            "anew": anew,
            "config": dict(slot.config),
        }

    def _switching_on(self, slot: Slot) -> Callable[[ChildReply], None]:
        def then(reply: ChildReply) -> None:
            slot.switch_on(reply)
            self._reports.on(slot.name)

        return then

    def _request(
        self,
        message: dict[str, Any],
        then: Callable[[ChildReply], None] = lambda _: None,
        seconds: float | None = None,
        late: str = "",
    ) -> None:
        """Send a request and wait for the answer. HoldfastError says why it failed."""
        request = _Request(message, then)
        with self._lock:
            if self._closed:
                raise Unavailable("the agent stops")
            if self._thread is None:
                self._thread = _Thread(self._round, self._restart, self._stop)
                self._thread.start()
            self._requests.append(request)
        self._wake()
        limits = self._limits
        if not request.done.wait(seconds or limits.change_s + limits.hang_s + START_S):
            self._withdraw(request)
        if not request.done.is_set():
            name = message["name"]
            text = f"plugin {name} did not answer: look at `metrics plugins list`"
            raise Unavailable(late or text)
        if request.error is not None:
            raise request.error

    def _withdraw(self, request: _Request) -> None:
        """Take back a request without answer, unless the answer has just arrived."""
        message = request.message
        with self._lock:
            if request in self._requests:
                self._requests.remove(request)
            elif self._sent.pop(message["id"], None) is not None and "number" in message:
                do = "abandon" if message["do"] == "reload" else "off"
                self._requests.append(_Request({"do": do, "name": message["name"]}, is_ours=True))

    # the runner's thread

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # full, so the thread wakes anyway; or closed
            self._wake_event.send(b"!")

    def _restart(self, _error: Exception) -> None:
        with self._lock:
            self._lose(None, "an error of the agent")

    def _round(self) -> float | None:
        if self._closed:
            return None  # `close` ends the thread
        self._sleep()
        with self._lock:
            process = self._process
            if process is not None:
                self._receive(process)
            if self._process is not None:
                self._watch(self._process)
            if self._unclean and self._passing is None:
                LOG.warning("%s: the process of the plugins is restarted", self._unclean)
                self._lose(None, self._unclean, expected=True)
            if self._process is None and self._is_wanted() and self._pause() <= 0:
                self._start()
            if self._process is not None:
                self._feed(self._process)
        return 0.0

    def _sleep(self) -> None:
        """Wait for a message, a request or a pass, or until it is time for a check."""
        process, pause_s = self._process, None
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        if process is not None:
            poll.register(process.control, select.POLLIN)
            pause_s = BUSY_S if self._passing or self._sent else IDLE_S
        elif self._is_wanted():
            pause_s = max(0.0, self._pause())
        poll.poll(None if pause_s is None else pause_s * 1000)
        if self._passing is not None:
            time.sleep(GATHER_S)  # reports of several plugins for one wake
        with contextlib.suppress(BlockingIOError):
            self._woken.recv(4096)

    def _pause(self) -> float:
        return self._not_before - time.monotonic()

    def _is_wanted(self) -> bool:
        return bool(self._requests) or any(slot.state == ON for slot in self._slots.values())

    def _start(self) -> None:
        """Start the process, and load the plugins that are on."""
        try:
            self._process = PluginProcess(self._limits.memory_bytes)
        except OSError as error:
            self._delay(f"the process of the plugins cannot be started: {error}")
            return
        self._encoder, self.problem, self._nonsense, self._unclean = Encoder(), "", "", ""
        begin = {"do": "begin", "path": sys.path, "memory": self._limits.memory_bytes}
        first = [_Request(begin, is_ours=True)]
        for slot in self._slots.values():
            slot.grew_bytes, slot.can_roll_back = 0, False
            if slot.state == ON:
                first += self._reloading(slot)
        self._requests.extendleft(reversed(first))

    def _reloading(self, slot: Slot) -> list[_Request]:
        """Return the request that loads a plugin after a restart of the process."""

        def failed(why: str) -> None:
            self._switch_off(slot, why)

        try:
            message = self._loading(slot)
        except HoldfastError as error:
            failed(error.message)
            return []
        slot.number = message["number"]
        return [_Request(message, slot.use_code, failed, is_ours=True)]

    def _feed(self, process: PluginProcess) -> None:
        """Send requests, and a snapshot if the process has finished the one before."""
        if self._unclean:
            return
        while self._requests:
            request = self._requests[0]
            self._ids += 1
            request.message["id"] = self._ids
            if not process.send(request.message):
                return
            self._sent[request.message["id"]] = self._requests.popleft()
        if self._passing is not None:
            return
        limits, now = self._limits, time.monotonic()
        message: dict[str, Any] = {"slow_s": limits.slow_s, "turn_s": limits.turn_s}
        if self._waiting:
            snapshot = self._waiting.popleft()
            data = self._encoder.encode(snapshot, self._kinds())
            process.write(data)
            # after the end of a process in this pass, some plugins have finished it
            finished = [
                slot.name for slot in self._slots.values() if slot.last_pass >= snapshot.pass_id
            ]
            process.send({"do": "pass", "size": len(data), "finished": finished, **message})
            self._passing, self._sent_at = snapshot, now
        elif now - self._sent_at > 1.5 * IDLE_S and process.send({"do": "tick", **message}):
            self._sent_at = now

    def _kinds(self) -> set[str]:
        """Return the kinds of entities that plugins want; all kinds for code on trial."""
        if any(request.message["do"] == "reload" for request in self._sent.values()):
            return set(KINDS.values())
        wanted = (slot.callbacks for slot in self._slots.values() if slot.state == ON)
        return {KINDS[name] for names in wanted for name in names if name in CALLBACKS}

    # messages of the process

    def _receive(self, process: PluginProcess) -> None:
        try:
            for data in process.receive():
                self._consume(data)
                if self._process is not process:
                    return
        except EOFError:
            self._ended(process)

    def _consume(self, data: bytes) -> None:
        """Handle a message. A plugin may have written it, so it is not believed unseen.

        The plugin whose report comes next has then run.
        """
        try:
            message = json.loads(data)
            if "reply" in message:
                self._answer(message)
            elif "turn" in message:
                self._count(message)
            elif "done" in message:
                self._passing = None
            elif "log" in message:
                PLUGINS_LOG.log(int(message["level"]), "%s: %s", message["name"], message["log"])
        except (ValueError, KeyError, TypeError) as error:
            self._nonsense = f"it wrote to the socket of the process: {error!r:.200}"

    def _answer(self, message: dict[str, Any]) -> None:
        request = self._sent.pop(int(message["reply"]), None)
        if request is not None and "error" in message:
            kind = {"NotFound": NotFound, "Conflict": Conflict}.get(message["kind"], InvalidInput)
            request.fail(kind(str(message["error"])))
        elif request is not None:
            request.then(message)
            request.done.set()
        if message.get("left"):
            self._unclean = f"a plugin left {int(message['left'])} threads or processes behind"

    def _count(self, message: dict[str, Any]) -> None:
        number = int(message["turn"])
        slot = next((slot for slot in self._slots.values() if slot.number == number), None)
        if slot is None or slot.state != ON:
            return
        if "passed" in message:
            slot.count(message)
            if self._nonsense:
                self._lose(number, self._nonsense)
                return
        if self._passing is not None:
            self._pass_on(slot, self._passing, message.get("notes", ()))
        for why, trace in message.get("strikes", ()):
            self._strike(slot, str(why), str(trace))

    def _pass_on(self, slot: Slot, snapshot: Snapshot, notes: Any) -> None:
        """Report the notes of a plugin, checked once more; a note that cannot be is a strike."""
        times = (snapshot.pass_id, snapshot.at, snapshot.monotonic, snapshot.elapsed_s)
        ctx = Context(slot.name, snapshot.host, *times, 0, False, self._reports.note)
        try:
            for sentence, about, severity, value, threshold in notes:
                ctx.report(
                    sentence, about=about, severity=severity, value=value, threshold=threshold
                )
        except (ValueError, TypeError) as error:
            self._strike(slot, f"a note cannot be used: {error}", "")

    def _strike(self, slot: Slot, why: str, trace: str) -> None:
        """Count and log a strike; at the limit, switch the plugin off."""
        count = slot.strike(why, self._limits)
        trace = f"\n{trace}" if trace else ""
        LOG.warning("plugin %s: %s (strike %d)%s", slot.name, why, count, trace)
        if count >= self._limits.strikes and slot.state == ON:
            within = f"{self._limits.within_s:g} s"
            self._switch_off(slot, f"{count} strikes within {within}, the last: {why}")
            self._requests.append(_Request({"do": "off", "name": slot.name}, is_ours=True))

    def _switch_off(self, slot: Slot, why: str) -> None:
        slot.state, slot.why = OFF, why
        LOG.error("plugin %s is off: %s", slot.name, why)
        self._reports.off(slot.name, why)

    # plugins that hang, and the end of the process

    def _watch(self, process: PluginProcess) -> None:
        """End the process if a call does not return, or there are too many processes."""
        busy = process.at_work()
        if busy is None:
            self._watched = None
        elif self._watched is None or self._watched[0] != busy:
            self._watched = (busy, process.waited_s())
        else:
            number, call, since = busy
            is_pass = CALLS[call] in CALLBACKS
            most_s = self._limits.hang_s if is_pass else self._limits.change_s
            took_s = time.monotonic() - since - (process.waited_s() - self._watched[1])
            if took_s > most_s:
                self._lose(number, f"{CALLS[call]} did not come back within {most_s:g} s")
                return
        now = time.monotonic()
        if now - self._counted_at < COUNT_S:
            return
        self._counted_at = now
        if len(process.descendants(MOST_PROCESSES)) >= MOST_PROCESSES:
            culprit = busy[0] if busy is not None else self._most_strikes()
            self._lose(culprit, f"plugins started {MOST_PROCESSES} processes or more")

    def _most_strikes(self) -> int | None:
        """Return the plugin that was told last to have too many or too busy processes."""
        struck = [slot for slot in self._slots.values() if slot.strikes and slot.state == ON]
        return max(struck, key=lambda slot: slot.strikes[-1][0]).number if struck else None

    def _ended(self, process: PluginProcess) -> None:
        """Find out why the process ended: by its exit code, and the plugin that was at work."""
        busy = process.at_work()
        process.kill()
        code = process.code
        text = f"exit code {code}" if code is None or code >= 0 else signal.Signals(-code).name
        if code == MEMORY_EXIT:
            self._lose(*self._largest())
        elif busy is not None and code not in (-signal.SIGKILL, -signal.SIGTERM):
            self._lose(busy[0], f"{CALLS[busy[1]]} ended the process of the plugins ({text})")
        else:
            self._lose(None, f"the process of the plugins ended ({text})")

    def _largest(self) -> tuple[int | None, str]:
        """Return the plugin during whose passes the process grew most, the newest of equals."""
        limit = self._limits.memory_bytes // MIB
        on = [slot for slot in self._slots.values() if slot.state == ON]
        worst = max(reversed(on), key=lambda slot: slot.grew_bytes, default=None)
        if worst is None or worst.grew_bytes < LEAST_GROWTH:
            return None, f"the plugins take more than {limit} MiB, but no plugin grew"
        grew = worst.grew_bytes // MIB
        text = f"the plugins take more than {limit} MiB, {grew} MiB of them during its passes"
        return worst.number, text

    def _lose(self, culprit: int | None, why: str, expected: bool = False) -> None:
        """End the process. Switch the culprit off; the next process runs the other plugins."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        if self._passing is not None and culprit is not None:
            self._waiting.appendleft(self._passing)  # for plugins that have not finished it
        elif self._passing is not None:
            self._count_dropped(self._passing)
        self._passing = self._watched = None
        sent, self._sent = list(self._sent.values()), {}
        slot = next((slot for slot in self._slots.values() if slot.number == culprit), None)
        again = []
        for request in sent:
            mine = culprit is not None and request.message.get("number") == culprit
            if mine or (slot is not None and request.message.get("name") == slot.name):
                request.fail(InvalidInput(f"plugin {request.message['name']}: {why}"))
            elif not request.is_ours:
                again.append(request)
        self._requests = deque(
            (*again, *(request for request in self._requests if not request.is_ours))
        )
        if slot is not None and slot.state == ON:
            self._switch_off(slot, why)
        if culprit is None and not expected:
            self._delay(why)

    def _delay(self, why: str) -> None:
        """Delay the next start, by twice as much after each end that no plugin caused."""
        now = time.monotonic()
        self._ends.append(now)
        while self._ends[0] < now - FORGIVEN_S:
            self._ends.popleft()
        pause_s = min(MOST_PAUSE_S, PAUSE_S * 2 ** (len(self._ends) - 1))
        self._not_before = now + pause_s
        self.problem = f"{why}; it is started again after {pause_s:g} s"
        LOG.error("%s", self.problem)

    def _stop(self) -> None:
        """Close the plugins and end the process; fail the requests that are left."""
        with self._lock:
            process, self._process = self._process, None
            left = [*self._sent.values(), *self._requests]
            self._sent, self._requests = {}, deque()
        if process is not None:
            process.send({"do": "stop"})
            if not process.wait(STOP_S):
                process.kill()
        for request in left:
            request.fail(Unavailable("the agent stops"))
        self._woken.close()
        self._wake_event.close()
