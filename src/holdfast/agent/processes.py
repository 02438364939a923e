# SPDX-License-Identifier: Apache-2.0
"""Services of the host that are not there: started again a few times, then told.

    state, step = judge(service, state, why="no such process", now)
    step.restart      # now is the time for it
    step.told         # "failed" once the last restart did not help, "well" when it is back

Pure but for `look`, which does what was decided, each restart on a thread of its own: one that
hangs neither hides what becomes of others, nor is begun a second time. A service that is not there
when we come is as much amiss as one that dies before our eyes; one that the last permitted restart
brings back is well; one that dies again and again is not, though it runs in between. What was tried
is written down before it is tried: whoever dies over a restart does not begin to count anew.
"""

import functools
import logging
import os.path
import re
import shlex
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from holdfast.hostmonitor.matrix import InvalidDocument
from holdfast.model.errors import HoldfastError
from holdfast.runtime.documents import Followed, List, Node, Reading, Scalar, quoted, shown

# A service of a host that must run: how it is known, how it is looked at, how it is started.


Command = tuple[str, ...]


@dataclass(frozen=True)
class Service:
    """Commands are given word by word; no shell reads them.

    It is known by its process (`process`, `matching`, `pidfile`: at most one), or by systemd
    (`unit`). What else is said, `socket` and `probe`, must be true on top; if nothing is said at
    all a process of its own name has to be there. Without a restart it is only watched.
    """

    name: str
    process: str = ""  # name or path of its program, or of the script that its program runs
    matching: str = ""  # a regular expression, found somewhere in the command line
    pidfile: str = ""
    unit: str = ""  # of systemd's
    socket: str = ""  # a path at which somebody listens
    probe: Command = ()
    probe_s: float = 5.0
    restart: Command = ()
    before: Command = ()  # the restart; unless it ends well there is none
    after: Command = ()  # a restart that ended well
    restart_s: float = 60.0  # each of these commands gets so long
    as_root: bool = False
    tries: int = 3
    #: After a restart it gets so long to be there.
    patience_s: float = 10.0
    #: Running so long, it counts as well again: whatever dies sooner is still the same trouble.
    stable_s: float = 60.0
    #: Where it never ran, nobody misses it.
    if_seen: bool = False
    line: int = field(default=0, compare=False)  # of the file it was read from

    @property
    def known_by(self) -> str:
        """process nova-compute; unit libvirtd.service, socket /run/libvirt/libvirt-sock"""
        ways = ("process", "matching", "pidfile", "unit", "socket")
        said = [f"{way} {getattr(self, way)}" for way in ways if getattr(self, way)]
        if self.probe:
            said.append(f"command {' '.join(self.probe)}")
        return ", ".join(said) or f"process {self.name}"


# Files that name the services of a host, read so that every problem is named with its line.
#
#     services:
#       - {name: nova-compute, restart: [systemctl, restart, nova-compute]}
#       - {name: libvirtd, unit: libvirtd.service, socket: /run/libvirt/libvirt-sock}
#       - {name: vswitch, pidfile: /run/openvswitch/ovs-vswitchd.pid, check: [ovs-vsctl, show],
#          within: 3s, restart: [systemctl, restart, openvswitch-switch], tries: 2, if_seen: yes}
#
# masakari-monitors' process_list.yaml is a list and is taken as it is. Its commands are text, and
# are
# split as a shell would split them; no shell runs them.


#: How it is known; at most one of them.
WAYS: Final = ("process", "matching", "pidfile", "unit")
SPANS: Final = {
    "within": "probe_s",
    "restart_within": "restart_s",
    "patience": "patience_s",
    "stable": "stable_s",
}
KEYS: Final = ("name", *WAYS, "socket", "check", "restart", "tries", *SPANS, "if_seen")
#: masakari-monitors'. `id` is of its older files, and says nothing.
_COMMANDS: Final = tuple(
    f"{when}{what}_command" for what in ("start", "restart") for when in ("", "pre_", "post_")
)
MASAKARI: Final = ("id", "process_name", *_COMMANDS, "run_as_root")
MOST_TRIES: Final = 20
#: A name becomes part of what is reported.
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9@._+-]{0,99}")
_YES_NO: Final = {"yes": True, "true": True, "on": True, "no": False, "false": False, "off": False}
_INTERPRETER: Final = re.compile(r"(python|perl|ruby|sh|bash|dash|env)[0-9.]*")


class BadServices(InvalidDocument):
    """A file of services that cannot be used; `problems` are all that is wrong with it, by line."""

    code = "holdfast.services.invalid"
    title = "The file of services cannot be used"


def parse(data: str | bytes, source: str) -> tuple[Service, ...]:
    """The services, or BadServices with all that is wrong."""
    reading = _Reading()
    return reading.whole(data, reading.services, functools.partial(BadServices.because, source))


class _Reading(Reading):
    def services(self, tree: Node | None) -> tuple[Service, ...]:
        if tree is None or (isinstance(tree, Scalar) and not tree.text.strip()):
            self.say(0, "it is empty: write services, or do without a file")
            return ()
        if isinstance(tree, Scalar):
            self.say(tree.line, "a file of services begins with `services:`")
            return ()
        if isinstance(tree, List):
            found = [self._masakari(node) for node in self.items(tree, "processes")]
        else:
            fields = self.fields(tree, ("services",), needed=("services",))
            nodes = self.items(fields.get("services"), "services")
            found = [self._ours(node) for node in nodes]
        services = [one for one in found if one is not None]
        self._check_names(services)
        return tuple(services)

    def _check_names(self, services: Sequence[Service]) -> None:
        lines: dict[str, int] = {}
        for one in services:
            if one.name in lines:
                text = f"{one.name} is there already, in line {lines[one.name]}"
                self.say(one.line, f"{text}: give each a name of its own")
            lines.setdefault(one.name, one.line)

    # our own format

    def _ours(self, node: Node) -> Service | None:
        before = len(self.problems)
        fields = self.fields(node, KEYS, needed=("name",))
        name = self._name(fields.get("name"))
        known = {way: self._text(fields, way) for way in (*WAYS, "socket")}
        self._check_ways(fields, known)
        more: dict[str, Any] = {**known, "probe": self._command(fields, "check")}
        more["restart"] = self._command(fields, "restart") or _systemd(known["unit"])
        more |= {what: self.span(fields[key], 0.0) for key, what in SPANS.items() if key in fields}
        for key in ("within", "restart_within"):
            if key in fields and not more[SPANS[key]]:
                self.say(fields[key].line, f"`{key}` leaves no time at all: write some seconds")
        if "tries" in fields:
            more["tries"] = self._tries(fields["tries"])
        if "if_seen" in fields:
            more["if_seen"] = self._yes_no(fields["if_seen"], "if_seen")
        if len(self.problems) > before:
            return None
        return Service(name, **more, line=node.line)

    def _check_ways(self, fields: Mapping[str, Node], known: Mapping[str, str]) -> None:
        ways = [way for way in WAYS if way in fields]
        if len(ways) > 1:
            text = f"`{ways[1]}` besides `{ways[0]}`: it is known by one of them, keep that one"
            self.say(fields[ways[1]].line, text)
        if known["matching"]:
            try:
                re.compile(known["matching"])
            except (re.error, RecursionError, OverflowError) as error:
                what = f"{quoted(known['matching'])} is no regular expression"
                self.say(fields["matching"].line, f"{what}: {error}")
        for way in ("pidfile", "socket"):
            if known[way] and not known[way].startswith("/"):
                self.say(fields[way].line, f"`{way}` is {quoted(known[way])}: write a whole path")

    def _name(self, node: Node | None) -> str:
        if node is None:
            return ""
        text = node.text.strip() if isinstance(node, Scalar) else ""
        if not _NAME.fullmatch(text):
            what = "write letters, digits and @ . _ + -, a hundred at most"
            self.say(node.line, f"{shown(node)} is no name: {what}")
        return text

    def _text(self, fields: Mapping[str, Node], name: str) -> str:
        node = fields.get(name)
        if node is None:
            return ""
        if isinstance(node, Scalar) and node.text.strip():
            return node.text.strip()
        self.say(node.line, f"`{name}` is {shown(node)}: write one word, or leave it out")
        return ""

    def _command(self, fields: Mapping[str, Node], name: str) -> Command:
        """A list: what is not split cannot be split wrongly."""
        node = fields.get(name)
        if node is None:
            return ()
        if isinstance(node, Scalar):
            text = f"`{name}` is {shown(node)}: write its words as a list, [systemctl, restart, …]"
            self.say(node.line, text)
            return ()
        return self.words(node, name)

    def _tries(self, node: Node) -> int:
        text = node.text.strip() if isinstance(node, Scalar) else ""
        if not re.fullmatch("[0-9]{1,4}", text) or int(text) > MOST_TRIES:
            self.say(node.line, f"`tries` is {shown(node)}: write 0 to {MOST_TRIES}")
            return 0
        return int(text)

    def _yes_no(self, node: Node, name: str) -> bool:
        word = node.text.strip().lower() if isinstance(node, Scalar) else ""
        if word not in _YES_NO:
            self.say(node.line, f"`{name}` is {shown(node)}: write yes or no")
        return _YES_NO.get(word, False)

    # masakari-monitors'

    def _masakari(self, node: Node) -> Service | None:
        before = len(self.problems)
        said = self.fields(node, MASAKARI, needed=("process_name",))
        fields = {name: one for name, one in said.items() if not _is_empty(one)}
        if "process_name" in said and "process_name" not in fields:
            self.say(said["process_name"].line, "`process_name` is empty: write it as ps shows it")
        process = self._text(fields, "process_name")
        name = _named(process)
        if process and not _NAME.fullmatch(name):
            self.say(fields["process_name"].line, f"{quoted(process)} has no name to report")
        what = "restart" if "restart_command" in fields else "start"
        commands = [self._split(fields, f"{when}{what}_command") for when in ("pre_", "", "post_")]
        as_root = "run_as_root" in fields and self._yes_no(fields["run_as_root"], "run_as_root")
        if len(self.problems) > before:
            return None
        several = " " in process
        return Service(
            name,
            process="" if several else process,
            matching=re.escape(process) if several else "",
            before=commands[0],
            restart=commands[1],
            after=commands[2],
            as_root=as_root,
            patience_s=5.0,  # as there: an attempt every five seconds
            line=node.line,
        )

    def _split(self, fields: Mapping[str, Node], name: str) -> Command:
        text = self._text(fields, name)
        try:
            return tuple(shlex.split(text))
        except ValueError as error:
            self.say(fields[name].line, f"`{name}` cannot be split into words: {error}")
            return ()


def _systemd(unit: str) -> Command:
    return ("systemctl", "restart", unit) if unit else ()


def _is_empty(node: Node) -> bool:
    return isinstance(node, Scalar) and node.text.strip() in ("", "~", "null")


def _named(process: str) -> str:
    """nova-compute of /usr/bin/nova-compute, and of /usr/bin/python3 /usr/bin/nova-compute."""
    words = [os.path.basename(word) for word in process.split() if not word.startswith("-")]
    if len(words) > 1 and _INTERPRETER.fullmatch(words[0]):
        return words[1]
    return words[0] if words else ""


# The services of the host itself, as processes: is one there, and can it be started again.


class Processes(Protocol):
    """Threads may share it."""

    def runs(self, service: Service) -> str:
        """Why it does not run, "" if it does."""
        ...

    def restart(self, service: Service) -> str:
        """Why that could not be done, "" if it was; that it runs then is seen by looking."""
        ...


LOG = logging.getLogger(__name__)

FAILED: Final = "failed"
WELL: Final = "well"
#: So many are looked at side by side: one that hangs holds up no other.
AT_ONCE: Final = 8
#: What is restarted quickly is over before the next look.
QUICK_S: Final = 0.5
#: What outlives us of a state.
_KEPT: Final = ("tries", "told", "ran")


@dataclass(frozen=True, slots=True)
class State:
    """What is remembered of one service. Times are monotonic."""

    why: str = ""  # why it does not run
    since: float = 0.0  # of that, or of running
    tries: int = 0
    tried_at: float = float("-inf")  # when the last restart had ended
    told: bool = False
    seen: bool = False  # looked at before
    ran: bool = False  # ever


@dataclass(frozen=True, slots=True)
class Step:
    restart: bool = False
    told: str = ""
    sentence: str = ""


def judge(service: Service, state: State, why: str, now: float) -> tuple[State, Step]:
    """What it is now, and what is to be done."""
    if not state.seen or bool(why) != bool(state.why):
        state = replace(state, since=now, seen=True)
    state = replace(state, why=why, ran=state.ran or not why)
    if why:
        return _away(service, state, now)
    if now - state.since < service.stable_s:
        return state, Step()
    told = WELL if state.told else ""
    said = f"{service.name} runs again, since {now - state.since:.0f} s" if told else ""
    return replace(state, tries=0, told=False), Step(told=told, sentence=said)


def _away(service: Service, state: State, now: float) -> tuple[State, Step]:
    if state.told or (service.if_seen and not state.ran):
        return state, Step()
    if state.tries and now - state.tried_at < service.patience_s:
        return state, Step()
    if service.restart and state.tries < service.tries:
        state = replace(state, tries=state.tries + 1, tried_at=now)
        said = f"{service.name} does not run ({state.why}): restart {state.tries}/{service.tries}"
        return state, Step(restart=True, sentence=said)
    tried = f" after {state.tries} restarts" if state.tries else ""
    said = f"{service.name} does not run{tried}: {state.why}"
    return replace(state, told=True), Step(told=FAILED, sentence=said)


class ServicesFile(Followed[tuple[Service, ...]]):
    """The operator's list, followed as it changes; without a file none."""

    def __init__(self, path: str | None) -> None:
        super().__init__(path, "services", tuple, parse)

    @property
    def services(self) -> tuple[Service, ...]:
        return self.value


Keep = Callable[[Mapping[str, Any]], None]


class ProcessWatch:
    """All services of a host: those that are named, and those of the file, whose word counts.
    `keep` writes down what `remembered` says, and is called before anything is restarted."""

    def __init__(
        self,
        processes: Processes,
        services: Iterable[Service],
        file: ServicesFile | None = None,
        keep: Keep | None = None,
    ) -> None:
        self._processes = processes
        self._named = {one.name: one for one in services}
        self._file = file
        self._keep = keep
        self._under_way: dict[str, Future[str]] = {}  # restarts, by name
        self.states: dict[str, State] = {}

    @property
    def services(self) -> Sequence[Service]:
        filed = self._file.services if self._file else ()
        return tuple((self._named | {one.name: one for one in filed}).values())

    def check(self, now: float) -> list[tuple[Service, Step]]:
        """Look at each once, restart what has to be, and return what is to be told."""
        if self._file is not None:
            self._file.follow()
        before = self.remembered()
        services, states = self.services, self.states
        self.states = {one.name: states.get(one.name, State()) for one in services}
        self._end(now)
        told, due = [], []
        for service, why in zip(services, _each(self._processes.runs, services), strict=True):
            if why and service.name in self._under_way:
                continue  # that may help yet
            state, step = judge(service, self.states[service.name], why, now)
            self.states[service.name] = state
            if step.restart:
                LOG.warning("%s", step.sentence)
                due.append(service)
            if step.told:
                told.append((service, step))
        if due and self.remembered() != before:
            self._write()
        for service in due:
            self._under_way[service.name] = _begun(self._processes.restart, service)
        wait(self._under_way.values(), QUICK_S if due else 0)
        self._end(now)
        return told

    def _end(self, now: float) -> None:
        """Of restarts that are over: from now on they have their time to help."""
        for name, restart in [one for one in self._under_way.items() if one[1].done()]:
            del self._under_way[name]
            if name in self.states:
                self.states[name] = replace(self.states[name], tried_at=now)
            if why := restart.exception() or restart.result():
                LOG.error("%s could not be restarted: %s", name, why)

    def untell(self, told: Iterable[tuple[Service, Step]]) -> None:
        """It could not be told after all: the next look says it again."""
        for service, step in told:
            state = self.states[service.name]
            self.states[service.name] = replace(state, told=step.told != FAILED)

    def remembered(self) -> dict[str, Any]:
        """As plain values; of a service that was always well nothing but that it ran."""
        kept = {
            name: {word: getattr(state, word) for word in _KEPT}
            for name, state in self.states.items()
        }
        return {name: one for name, one in kept.items() if any(one.values())}

    def recall(self, said: Any, now: float) -> None:
        """What was remembered before us; patience with a restart begins anew."""
        try:
            self.states = {
                str(name): State(
                    tries=int(one["tries"]),
                    tried_at=now,
                    told=bool(one["told"]),
                    ran=bool(one["ran"]),
                )
                for name, one in (said or {}).items()
            }
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            LOG.warning("what was remembered of services cannot be read (%s): begun anew", error)

    def _write(self) -> None:
        if self._keep is None:
            return
        try:
            self._keep(self.remembered())
        except HoldfastError as error:  # a full disk is no reason to leave a service down
            LOG.error("that a restart is tried cannot be written down: %s", error.message)


def _begun(do: Callable[[Service], str], service: Service) -> Future[str]:
    """On a thread that nobody has to wait for."""
    made: Future[str] = Future()

    def run() -> None:
        try:
            made.set_result(do(service))
        except BaseException as error:  # the top of the thread: who looks gets it
            made.set_exception(error)

    threading.Thread(target=run, name=f"restart-{service.name}", daemon=True).start()
    return made


def _each(do: Callable[[Service], str], services: Sequence[Service]) -> list[str]:
    if len(services) < 2:
        return [do(one) for one in services]
    with ThreadPoolExecutor(min(AT_ONCE, len(services)), thread_name_prefix="service") as hands:
        return list(hands.map(do, services))
