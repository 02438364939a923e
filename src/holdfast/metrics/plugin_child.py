# SPDX-License-Identifier: Apache-2.0
"""Process of the metric plugins: loads the plugins of a host and runs them one after the other.

`plugin_process.PluginProcess` starts this module and talks to it over a socket, a message per
packet, and over a memory file that both processes share:

    to here    marshal    begin, load, configure, off, drop, reload, roll_back, pass, tick, stop
    from here  JSON       replies, a report per plugin and pass, log lines

The first page of the memory file has one word: which plugin is at work on what, and since when.
The plugin runner reads the word to find a plugin that hangs, and ends this process then. The rest
of the file has the snapshot of the pass.

A plugin runs nowhere else: this process has limits on memory and files, a low priority, and no
access to the agent's memory. It imports little, because it runs beside every agent.
"""

import contextlib
import copy
import ctypes
import gc
import importlib
import importlib.machinery
import importlib.util
import inspect
import json
import logging
import marshal
import math
import mmap
import os
import re
import resource
import secrets
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType, ModuleType
from typing import Any, Final

from holdfast.metrics.plugin_input import Decoder, SharedDicts
from holdfast.model.errors import Conflict, HoldfastError, InvalidInput, NotFound
from holdfast.ports.metric_plugins import CALLBACKS, Context, Note

# Code of a plugin: load the class, list its callbacks.


def read_class(source: Sequence[str], anew: bool) -> type:
    """Load class `name` of a module or file (`plugin_code.Source`), which runs foreign code.

    A file is loaded again on every read. A module is imported in the usual way; with `anew` it is
    loaded under another name beside the old module, which stays unchanged.
    """
    use, module, path, name = source
    if path:
        stem = re.sub(r"\W", "_", os.path.basename(path).removesuffix(".py"))
        return _class(_fresh(f"holdfast_metric_plugin_{stem}", path, use), name, use)
    if not anew:
        return _class(importlib.import_module(module), name, use)
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        raise InvalidInput(f"{use} is no Python file that could be read anew: restart")
    return _class(_fresh(module, spec.origin, use), name, use)


#: Part of the name of a module that was loaded beside another.
_MARK: Final = "__read"


class _Anew(importlib.machinery.SourceFileLoader):
    """Loader without bytecode cache.

    Cached bytecode may belong to an older file with a timestamp of the same second.
    """

    def get_code(self, fullname: str) -> CodeType:
        code: CodeType = self.source_to_code(self.get_data(self.path), self.path)
        return code


def _fresh(name: str, path: str, use: str) -> ModuleType:
    """Load a file under a unique name, in the same package, so that relative imports work."""
    unique = f"{name}{_MARK}{secrets.token_hex(4)}"
    spec = importlib.util.spec_from_file_location(unique, path, loader=_Anew(unique, path))
    if spec is None or spec.loader is None:
        raise InvalidInput(f"{use}: {path} cannot be read as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[unique] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(unique, None)
        raise
    return module


def _class(module: ModuleType, name: str, use: str) -> type:
    """Return the named class of the module, or its only plugin class."""
    if name:
        value: Any = module
        for part in name.split("."):
            value = getattr(value, part, None)
        if not inspect.isclass(value):
            raise NotFound(f"{use}: there is no class {name} in it")
        return value
    ours = [
        var
        for var in vars(module).values()
        if inspect.isclass(var)
        and var.__module__ == module.__name__
        and any(hasattr(var, callback) for callback in CALLBACKS)
    ]
    if len(ours) != 1:
        there = ", ".join(our.__name__ for our in ours) or "none"
        raise InvalidInput(f"{use}: the plugin classes are {there}: name one, FILE:Class")
    return ours[0]


@dataclass(frozen=True, slots=True)
class Callback:
    """A plugin method that is called in every pass."""

    name: str
    call: Callable[..., Any]
    wants_ctx: bool


def callbacks(plugin: object) -> Sequence[Callback]:
    """List the callbacks of a plugin.

    InvalidInput if there are none, or a callback is not a plain method.
    """
    methods = []
    for name in CALLBACKS:
        call = getattr(plugin, name, None)
        if call is None:
            continue
        if not callable(call) or inspect.iscoroutinefunction(call):
            raise InvalidInput(f"{name} is not a plain method: write `def {name}(self, d)`")
        methods.append(Callback(name, call, _takes_two(name, call)))
    if not methods:
        raise InvalidInput(f"the plugin has no callback: write one of {', '.join(CALLBACKS)}")
    return methods


def _takes_two(name: str, call: Callable[..., Any]) -> bool:
    """Tell whether a callback accepts `ctx`.

    The callback does if its second parameter is named `ctx` or is required.
    """
    try:
        parameters = inspect.signature(call).parameters.values()
    except (TypeError, ValueError):  # written in C: call with `d` only
        return False
    places = [
        param
        for param in parameters
        if param.kind in (param.POSITIONAL_ONLY, param.POSITIONAL_OR_KEYWORD)
    ]
    must = [place for place in places if place.default is place.empty]
    several = any(param.kind is param.VAR_POSITIONAL for param in parameters)
    if len(must) > 2 or not (places or several):
        raise InvalidInput(f"{name} takes d, or d and ctx: write `def {name}(self, d, ctx)`")
    return len(must) == 2 or (len(places) > 1 and places[1].name == "ctx")


# The word in the shared memory file.


#: Calls of a plugin, by their number in the word.
CALLS: Final = ("its code", "configure", "close", *CALLBACKS)
#: The snapshot begins here in the memory file.
DATA_AT: Final = mmap.PAGESIZE
_WORD: Final = struct.Struct("<Q")
_MS_BITS: Final = 40
_MS: Final = 2**_MS_BITS - 1


def read_word(memory: mmap.mmap) -> tuple[int, int, float] | None:
    """Return number of the plugin at work, index in CALLS, monotonic time since; None if idle."""
    (value,) = _WORD.unpack_from(memory)
    if not value:
        return None
    return value >> 48, value >> _MS_BITS & 0xFF, (value & _MS) / 1000


# Resource use of this process.


class Waits:
    """Time that the main thread waited for a processor or for other threads of this process."""

    def __init__(self) -> None:
        self._file = -1
        with contextlib.suppress(OSError):  # a kernel without schedstat
            self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def seconds(self) -> float:
        """Return seconds that the thread waited for a CPU, plus the CPU time of other threads.

        The CPU time of other threads counts because they may have held the interpreter lock.
        """
        others_s = time.process_time() - time.thread_time()
        if self._file < 0:
            return others_s
        return others_s + int(os.pread(self._file, 128, 0).split()[1]) / 1e9


class Rss:
    """Resident memory of this process."""

    def __init__(self) -> None:
        self._page = os.sysconf("SC_PAGE_SIZE")
        self._file = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)

    def __call__(self) -> int:
        return int(os.pread(self._file, 128, 0).split()[1]) * self._page


def tasks(pid: int) -> Iterator[tuple[str, list[int]]]:
    """Yield the threads of a process, as folders, and the processes that each has started."""
    folder = f"/proc/{pid}/task"
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            with contextlib.suppress(OSError), open(f"{folder}/{name}/children") as file:
                yield f"{folder}/{name}", [int(pid_text) for pid_text in file.read().split()]


_TASKS: Final = "/proc/self/task"
_TICKS: Final = os.sysconf("SC_CLK_TCK")


def cpu_s(folder: str) -> float:
    """Return CPU time of a thread or process and its ended children; 0 if it has ended."""
    try:
        with open(f"{folder}/stat", "rb") as file:
            ticks = file.read().rpartition(b")")[2].split()[11:15]
    except OSError:
        return 0.0
    own = 2 if "/task/" in folder else 4  # a thread's numbers include children of the process
    return sum(map(int, ticks[:own])) / _TICKS


# The plugins.


#: Most notes of a plugin in a pass, and most notes in a message.
MOST_NOTES: Final = 1_000
NOTES_AT_ONCE: Final = 32
#: Most strikes in a report.
MOST_STRIKES: Final = 8
#: Most log lines of plugins per pass.
MOST_LINES: Final = 100
#: Most threads and processes of a plugin.
MOST_TASKS: Final = 32
#: Threads of a plugin that is closed get so much time to end.
END_S: Final = 0.5
#: Exit codes: memory is used up; the socket is gone.
MEMORY_EXIT: Final = 71
SOCKET_EXIT: Final = 72
#: The process may use so much CPU time between two messages; the kernel ends it after that.
CPU_S: Final = 30


@dataclass(eq=False)
class Plugin:
    """A plugin object with its callbacks. `number` names the plugin in the word."""

    name: str
    number: int
    kind: type = object
    shadow: bool = False
    made: Any = None
    config: dict[str, Any] = field(default_factory=dict)
    calls: Sequence[Callback] = ()
    config_version: int = 0
    strikes: list[tuple[str, str]] = field(default_factory=list)  # of this pass, with a traceback
    notes: dict[str, tuple[Any, ...]] = field(default_factory=dict)  # of this pass, by subject
    noted: int = 0
    tasks: dict[str, float] = field(default_factory=dict)  # folders in /proc, with their CPU time

    def note(self, note: Note) -> None:
        self.noted += 1
        if len(self.notes) < MOST_NOTES or note.about in self.notes:
            row = (note.sentence, note.about, note.severity, note.value, note.threshold)
            self.notes[note.about] = row


@dataclass(eq=False)
class Place:
    """A plugin by name: its current code, the code before, and code on trial for a reload."""

    current: Plugin | None = None
    before: Plugin | None = None
    trial: Plugin | None = None
    request_id: int = 0  # of the reload


class Child:
    """The main loop; all plugins run on its thread."""

    def __init__(self, control: socket.socket, memory: int) -> None:
        self._control = control
        self._memory = memory
        self._word = mmap.mmap(memory, DATA_AT)
        self._pid = os.getpid()
        self._places: dict[str, Place] = {}
        self._decoder = Decoder()
        self._waits, self._rss = Waits(), Rss()
        self._started = os.open(f"{_TASKS}/{self._pid}/children", os.O_RDONLY | os.O_CLOEXEC)
        self._is_alone = False
        self._tasks: set[str] = set()
        self._accounted = time.monotonic()
        self._lines = 0
        self._most_bytes = 0
        self._note_tasks(None)
        self._handlers: Mapping[str, Callable[[dict[str, Any]], dict[str, Any] | None]] = {
            "begin": self._begin,
            "load": self._load,
            "configure": self._configure,
            "off": self._off,
            "drop": self._drop,
            "reload": self._reload,
            "abandon": self._abandon,
            "roll_back": self._roll_back,
            "pass": self._pass,
            "tick": self._tick,
        }

    def serve(self) -> None:
        """Handle messages until `stop` or the end of the agent."""
        while True:
            data = self._control.recv(2**20)
            message = marshal.loads(data) if data else {"do": "stop"}
            if message["do"] == "stop":
                break
            self._lines = 0
            _renew_cpu_limit()
            self._handle(message)
        for place in self._places.values():
            self._close(place.current, place.before, place.trial)

    def _handle(self, message: dict[str, Any]) -> None:
        try:
            reply = self._handlers[message["do"]](message)
        except HoldfastError as error:
            reply = {"error": error.message, "kind": type(error).__name__, **error.details}
            self._send(reply=message["id"], **reply)
        else:
            if reply is not None:
                self._send(reply=message["id"], **reply)

    def _send(self, **message: Any) -> None:
        """Send a message. The process ends if a plugin has closed the socket.

        So does a copy of the process, if a plugin has forked.
        """
        if os.getpid() != self._pid:
            os._exit(0)
        data = json.dumps(message, ensure_ascii=False, default=str).encode(errors="replace")
        try:
            self._control.send(data)
        except OSError:
            os._exit(SOCKET_EXIT)

    def log(self, level: int, name: str, text: str) -> None:
        """Pass a log line of a plugin on, up to a limit."""
        self._lines += 1
        if self._lines <= MOST_LINES and os.getpid() == self._pid:
            self._send(log=text[:4000], level=level, name=name[:100])

    # changes

    def _begin(self, message: dict[str, Any]) -> dict[str, Any]:
        sys.path[:] = message["path"]
        self._most_bytes = message["memory"]
        gc.freeze()  # objects that exist now stay
        return {}

    def _load(self, message: dict[str, Any]) -> dict[str, Any]:
        place = self._places.get(message["name"]) or Place()
        place.current = self._loaded(message)
        self._places[message["name"]] = place
        return _about(place)

    def _loaded(self, message: dict[str, Any], shadow: bool = False) -> Plugin:
        """Load and configure a plugin."""
        source, number = message["source"], message["number"]
        plugin = Plugin(message["name"], number, shadow=shadow)
        try:
            plugin.kind = self._call(
                number, "its code", lambda: read_class(source, message["anew"])
            )
            plugin.made = self._call(number, "its code", plugin.kind)
            plugin.calls = callbacks(plugin.made)
            self._set_up(plugin, message["config"])
        except HoldfastError as error:
            self._note_tasks(plugin)
            error.details["left"] = self._close(plugin)
            raise
        self._note_tasks(plugin)
        return plugin

    def _set_up(self, plugin: Plugin, config: dict[str, Any]) -> None:
        apply = getattr(plugin.made, "configure", None)
        if apply is None and config:
            raise InvalidInput("the plugin takes no configuration: it has no `configure`")
        if apply is not None:
            self._call(plugin.number, "configure", lambda: apply(copy.deepcopy(config)))
        plugin.config, plugin.config_version = config, plugin.config_version + 1

    def _configure(self, message: dict[str, Any]) -> dict[str, Any]:
        place = self._place(message)
        assert place.current is not None
        self._set_up(place.current, message["config"])
        self._note_tasks(place.current)
        return _about(place)

    def _off(self, message: dict[str, Any]) -> dict[str, Any]:
        """Close the current code; the code before can still be rolled back to."""
        place = self._places.get(message["name"]) or Place()
        left = self._close(place.current)
        place.current = None
        return {**_about(place), "left": left}

    def _drop(self, message: dict[str, Any]) -> dict[str, Any]:
        place = self._places.pop(message["name"], None) or Place()
        return {"left": self._close(place.current, place.before, place.trial)}

    def _reload(self, message: dict[str, Any]) -> None:
        """Load new code beside the old; the next pass tries it, and answers the request."""
        place = self._places.setdefault(message["name"], Place())
        place.trial, place.request_id = self._loaded(message, shadow=True), message["id"]

    def _abandon(self, message: dict[str, Any]) -> dict[str, Any]:
        place = self._places.get(message["name"]) or Place()
        trial, place.trial = place.trial, None
        return {"left": self._close(trial)}

    def _judge(self, place: Place, trial: Plugin) -> None:
        """Replace the current code by the code on trial, unless that had a strike."""
        place.trial, trial.shadow = None, False
        if trial.strikes:
            why = trial.strikes[0][0]
            text = f"the old code of {trial.name} goes on, because the new code failed: {why}"
            left = self._close(trial)
            self._send(reply=place.request_id, error=text, kind="InvalidInput", left=left)
            return
        left = self._close(place.before)
        place.current, place.before = trial, place.current
        self._send(reply=place.request_id, **_about(place), left=left)

    def _roll_back(self, message: dict[str, Any]) -> dict[str, Any]:
        place = self._place(message)
        if place.before is None:
            raise Conflict(f"plugin {message['name']} has no code before this one: reload it")
        if message["config"] != place.before.config:
            self._set_up(place.before, message["config"])
        place.current, place.before = place.before, place.current
        return _about(place)

    def _place(self, message: dict[str, Any]) -> Place:
        place = self._places.get(message["name"])
        if place is None:
            raise Conflict(f"plugin {message['name']} is off: enable it first")
        return place

    def _close(self, *plugins: Plugin | None) -> int:
        """Close plugins; return how many threads and processes they leave behind."""
        mine = [plugin for plugin in plugins if plugin is not None]
        for plugin in mine:
            close = getattr(plugin.made, "close", None)
            if close is not None:
                try:
                    self._call(plugin.number, "close", close)
                except HoldfastError as error:
                    self.log(logging.WARNING, f"plugin {plugin.name}", error.message)
            plugin.made, plugin.calls = None, ()
            _forget(plugin)
        if mine:
            gc.collect()
        ends = time.monotonic() + END_S
        while True:
            left = sum(os.path.exists(task) for plugin in mine for task in plugin.tasks)
            if not left or time.monotonic() > ends:
                return left
            time.sleep(0.01)

    def _call(self, number: int, call_name: str, call: Callable[[], Any]) -> Any:
        """Call plugin code between passes; any exception becomes InvalidInput."""
        self._at_work(number, call_name)
        try:
            return call()
        except HoldfastError:
            raise
        except BaseException as error:  # foreign code: sys.exit() too
            raise InvalidInput(f"{call_name}: {_describe(error)}") from error
        finally:
            self._rest()

    def _at_work(self, number: int, call_name: str) -> None:
        base = number << 48 | CALLS.index(call_name) << _MS_BITS
        _WORD.pack_into(self._word, 0, base | int(time.monotonic() * 1000) & _MS)

    def _rest(self) -> None:
        _WORD.pack_into(self._word, 0, 0)

    # passes

    def _pass(self, message: dict[str, Any]) -> None:
        """Run all plugins with a snapshot, then answer requests to reload."""
        data = os.pread(self._memory, message["size"], DATA_AT)
        shared = SharedDicts(self._decoder.decode(data))
        self._note_tasks(self._only_starter())
        for name, place in self._places.items():
            current = None if name in message["finished"] else place.current
            for plugin in filter(None, (current, place.trial)):
                self._turn(plugin, shared, message["slow_s"], message["turn_s"])
            if place.trial is not None:
                self._judge(place, place.trial)
        self._tick(message)
        self._send(done=shared.snapshot.pass_id)

    def _turn(self, plugin: Plugin, shared: SharedDicts, slow_s: float, turn_s: float) -> None:
        """Call all callbacks of a plugin and report; building the dicts does not count."""
        plugin.strikes, plugin.notes, plugin.noted = [], {}, 0
        snapshot = shared.snapshot
        times = (snapshot.pass_id, snapshot.at, snapshot.monotonic, snapshot.elapsed_s)
        version, shadow = plugin.config_version, plugin.shadow
        ctx = Context(plugin.name, snapshot.host, *times, version, shadow, plugin.note)
        turn = Turn(plugin, ctx, slow_s, turn_s)
        for callback in plugin.calls:
            dicts = shared.of(callback.name)
            rss, cpu_s = self._rss(), time.thread_time()
            self._each(turn, callback, dicts)
            turn.cpu_s += time.thread_time() - cpu_s
            turn.grew += self._rss() - rss
            if turn.own_s > turn_s:
                turn.strike(f"a pass took {turn.own_s * 1000:.0f} ms")
                break
        self._note_tasks(plugin)
        self._report(turn)
        self._rest()

    def _each(self, turn: "Turn", callback: Callback, dicts: Sequence[Any]) -> None:
        """Call a callback with each dict, until the plugin has used up its time in this pass."""
        call, wants_ctx, name, ctx = callback.call, callback.wants_ctx, callback.name, turn.ctx
        base = turn.plugin.number << 48 | CALLS.index(name) << _MS_BITS
        pack, memory, monotonic = _WORD.pack_into, self._word, time.monotonic
        left_s, slow_s, raised = turn.turn_s - turn.own_s, turn.slow_s, False
        first_s = waited_s = self._waits.seconds()
        began = before = monotonic()
        for d in dicts:
            pack(memory, 0, base | int(before * 1000) & _MS)
            try:
                if wants_ctx:
                    call(d, ctx)
                else:
                    call(d)
            except BaseException as error:  # foreign code: sys.exit() too
                if not raised:  # one strike per pass, however many guests there are
                    raised = True
                    turn.strike(f"{name} raised {_describe(error)}", _trace(error))
            now = monotonic()
            turn.calls += 1
            took_s = now - before
            if took_s > slow_s:
                waits_s, waited_s = self._waits.seconds() - waited_s, self._waits.seconds()
                took_s = max(0.0, took_s - waits_s)
                if took_s > slow_s:
                    turn.strike(f"{name} took {took_s * 1000:.0f} ms")
            turn.slowest_s = max(turn.slowest_s, took_s)
            before = now
            if now - began > left_s and now - began - self._waits.seconds() + first_s > left_s:
                break
        turn.busy_s += before - began
        turn.own_s += max(0.0, before - began - self._waits.seconds() + first_s)

    def _report(self, turn: "Turn") -> None:
        """Report a turn. The process ends if the plugins use too much memory."""
        plugin = turn.plugin
        notes = [] if plugin.shadow else list(plugin.notes.values())
        for start in range(NOTES_AT_ONCE, len(notes), NOTES_AT_ONCE):
            self._send(turn=plugin.number, notes=notes[start : start + NOTES_AT_ONCE])
        self._send(
            turn=plugin.number,
            passed=turn.ctx.pass_id,
            calls=turn.calls,
            busy_s=turn.busy_s,
            cpu_s=turn.cpu_s,
            slowest_s=turn.slowest_s,
            grew=turn.grew,
            noted=0 if plugin.shadow else plugin.noted,
            notes=notes[:NOTES_AT_ONCE],
            strikes=plugin.strikes[:MOST_STRIKES],
        )
        if self._rss() > self._most_bytes:
            raise MemoryError

    # threads and processes that plugins start

    def _note_tasks(self, plugin: Plugin | None) -> None:
        """Attribute new threads and processes to the plugin that has just run."""
        is_alone = os.stat(_TASKS).st_nlink == 3  # a link for each thread, and two more
        if is_alone and self._is_alone and not os.pread(self._started, 64, 0):
            return  # the usual case, at a tenth of the cost
        self._is_alone = is_alone
        current = set()
        for folder, started in tasks(self._pid):
            current.add(folder)
            current.update(f"/proc/{pid}" for pid in started)
        new, self._tasks = current - self._tasks, current
        if plugin is not None and new:
            plugin.tasks.update((folder, cpu_s(folder)) for folder in new)

    def _only_starter(self) -> Plugin | None:
        """Return the plugin with threads or processes of its own, if it is the only one."""
        plugins = [
            place.current
            for place in self._places.values()
            if place.current and place.current.tasks
        ]
        return plugins[0] if len(plugins) == 1 else None

    def _tick(self, message: dict[str, Any]) -> None:
        """Report plugins whose threads and processes are many, or use much CPU time."""
        now = time.monotonic()
        since_s, self._accounted = max(1.0, now - self._accounted), now
        for place in self._places.values():
            for plugin in filter(None, (place.current, place.before)):
                why = _greed(plugin, message["turn_s"] * since_s) if plugin.tasks else ""
                if why:
                    self._send(turn=plugin.number, strikes=[(why, "")])


@dataclass(slots=True)
class Turn:
    """A plugin's work in a pass: its limits and what it has used."""

    plugin: Plugin
    ctx: Context
    slow_s: float
    turn_s: float
    calls: int = 0
    busy_s: float = 0.0
    own_s: float = 0.0  # without the time that the thread waited for others
    cpu_s: float = 0.0
    slowest_s: float = 0.0
    grew: int = 0

    def strike(self, why: str, trace: str = "") -> None:
        self.plugin.strikes.append((why, trace))


def _about(place: Place) -> dict[str, Any]:
    """Return the state of a plugin after a change, for the plugin runner."""
    reply: dict[str, Any] = {"before": place.before is not None}
    if place.current is not None:
        reply["number"], reply["version"] = place.current.number, place.current.config_version
        reply["callbacks"] = [callback.name for callback in place.current.calls]
    return reply


def _greed(plugin: Plugin, most_s: float) -> str:
    """Return why the threads and processes of a plugin are too many or too busy, or ""."""
    before = plugin.tasks
    plugin.tasks = {folder: cpu_s(folder) for folder in before if os.path.exists(folder)}
    used_s = sum(now_s - before[folder] for folder, now_s in plugin.tasks.items())
    if len(plugin.tasks) > MOST_TASKS:
        return f"it has {len(plugin.tasks)} threads and processes, more than {MOST_TASKS}"
    if used_s > most_s:
        return f"its threads and processes took {used_s * 1000:.0f} ms of processor time"
    return ""


def _forget(plugin: Plugin) -> None:
    """Remove a module that was loaded under a unique name from `sys.modules`."""
    if _MARK in plugin.kind.__module__:
        sys.modules.pop(plugin.kind.__module__, None)


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:300]


def _trace(error: BaseException) -> str:
    return "".join(traceback.format_exception(error, limit=-8))[-2000:]


# Limits of the process.


PR_SET_PDEATHSIG: Final = 1
PR_SET_CHILD_SUBREAPER: Final = 36
#: Files that plugins may have open.
MOST_FILES: Final = 256
#: Memory beyond the limit of resident memory, for thread stacks and freed memory.
SPARE_BYTES: Final = 64 * 2**20


class _Lines(logging.Handler):
    """Passes log lines of plugins to the agent."""

    def __init__(self, child: Child) -> None:
        super().__init__()
        self._child = child

    def emit(self, record: logging.LogRecord) -> None:
        self._child.log(record.levelno, record.name, self.format(record))


def _renew_cpu_limit() -> None:
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(time.process_time()) + CPU_S, hard))


def _confine(parent: int, memory: int) -> None:
    """Limit this process. It ends with the agent's thread that started it."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # processes of plugins stay below this process
    if os.getppid() != parent:
        os._exit(0)
    # a copy that a plugin forks ends with this process
    os.register_at_fork(after_in_child=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (memory + SPARE_BYTES, memory + SPARE_BYTES))
    resource.setrlimit(resource.RLIMIT_NOFILE, (MOST_FILES, MOST_FILES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(NICE)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("500")  # the kernel ends this process before guests or the agent


NICE: Final = 5


def main(control: int, memory: int, parent: int, most_bytes: int) -> None:
    _confine(parent, most_bytes)
    os.set_inheritable(control, False)
    os.set_inheritable(memory, False)
    child = Child(socket.socket(fileno=control), memory)
    logging.basicConfig(level=logging.INFO, handlers=[_Lines(child)], format="%(message)s")
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in range(3):  # output that plugins print is dropped
        os.dup2(nothing, number)
    try:
        child.serve()
    except MemoryError:
        os._exit(MEMORY_EXIT)
    except BaseException:
        child.log(logging.ERROR, __name__, traceback.format_exc())
        os._exit(SOCKET_EXIT)
    os._exit(0)  # threads of plugins do not keep the process


if __name__ == "__main__":
    main(*map(int, sys.argv[1:5]))
