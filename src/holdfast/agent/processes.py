# SPDX-License-Identifier: Apache-2.0
"""Watches the services of a host: restarts a dead service a few times, then reports it as failed.

    state, step = judge(service, state, why="no such process", now)
    step.restart      # restart the service now
    step.report         # "failed" if the last restart did not help, "well" when it runs again

All functions are pure but `ProcessWatch.check`, which runs each restart on its own thread: a
restart that hangs does not delay other services and is not started twice. A service that does not
run when the agent starts is treated like one that dies later. A service that runs after its last
permitted restart is well. A service that dies again and again is failed, even though it runs in
between. The agent writes a restart to disk before it starts it, so that an agent that dies during a
restart does not count from zero again.

The module also parses the services file, in Holdfast's format and in masakari-monitors' format.
"""

import functools
import logging
import os.path
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from holdfast.model.errors import HoldfastError, InvalidDocument
from holdfast.runtime.documents import Followed, List, Node, Reading, Scalar, quoted, shown
from holdfast.runtime.threads import start_call

#: Restarts of a service before it is reported as failed.
TRIES: Final = 3
# A command is a list of words; no shell runs it.
Command = tuple[str, ...]


@dataclass(frozen=True)
class Service:
    """A service that must run on the host: how to check it, and how to restart it.

    The agent finds the service by at most one of `process`, `matching`, `pidfile` and `unit`
    (systemd). If `socket` or `probe` is set, it must succeed too. If nothing is set, a process with
    the service's name must exist. Without `restart` the agent only watches the service.
    """

    name: str
    process: str = ""  # name or path of its program, or of the script that the program runs
    matching: str = ""  # a regular expression, searched in the command line
    pidfile: str = ""
    unit: str = ""  # of systemd
    socket: str = ""  # path of a Unix socket that must accept connections
    probe: Command = ()
    probe_s: float = 5.0
    restart: Command = ()
    before: Command = ()  # runs before the restart; if it fails there is no restart
    after: Command = ()  # runs after a successful restart
    restart_s: float = 60.0  # time limit of each of these commands
    as_root: bool = False
    tries: int = TRIES
    #: Seconds that the service gets to come up after a restart.
    patience_s: float = 10.0
    #: The service is well again after it has run this long. A service that dies sooner is still in
    #: the same failure.
    stable_s: float = 60.0
    #: Do not report the service as failed if it never ran on this host.
    if_seen: bool = False
    line: int = field(default=0, compare=False)  # in the services file

    @property
    def known_by(self) -> str:
        """Describe the check: `unit libvirtd.service, socket /run/libvirt/libvirt-sock`."""
        ways = ("process", "matching", "pidfile", "unit", "socket")
        parts = [f"{way} {getattr(self, way)}" for way in ways if getattr(self, way)]
        if self.probe:
            parts.append(f"command {' '.join(self.probe)}")
        return ", ".join(parts) or f"process {self.name}"


# The services file. The parser names every problem with its line.
#
#     services:
#       - {name: nova-compute, restart: [systemctl, restart, nova-compute]}
#       - {name: libvirtd, unit: libvirtd.service, socket: /run/libvirt/libvirt-sock}
#       - {name: vswitch, pidfile: /run/openvswitch/ovs-vswitchd.pid, check: [ovs-vsctl, show],
#          within: 3s, restart: [systemctl, restart, openvswitch-switch], tries: 2, if_seen: yes}
#
# masakari-monitors' process_list.yaml is a list and is accepted unchanged. Its commands are text,
# which the parser splits as a shell would; no shell runs them.


#: Ways to find the service's process; at most one per service.
WAYS: Final = ("process", "matching", "pidfile", "unit")
SPANS: Final = {
    "within": "probe_s",
    "restart_within": "restart_s",
    "patience": "patience_s",
    "stable": "stable_s",
}
KEYS: Final = ("name", *WAYS, "socket", "check", "restart", "tries", *SPANS, "if_seen")
#: Keys of masakari-monitors' file. `id` is from its older versions and has no meaning.
_COMMANDS: Final = tuple(
    f"{when}{what}_command" for what in ("start", "restart") for when in ("", "pre_", "post_")
)
MASAKARI: Final = ("id", "process_name", *_COMMANDS, "run_as_root")
MOST_TRIES: Final = 20
#: A service name becomes part of the subject of a report.
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9@._+-]{0,99}")
_INTERPRETER: Final = re.compile(r"(python|perl|ruby|sh|bash|dash|env)[0-9.]*")


class BadServices(InvalidDocument):
    """A services file is invalid; `problems` lists every problem with its line."""

    code = "holdfast.services.invalid"
    title = "The file of services cannot be used"


def parse(data: str | bytes, source: str) -> tuple[Service, ...]:
    """Parse a services file; raise BadServices with all problems."""
    reading = _Reading()
    return reading.whole(data, reading.services, functools.partial(BadServices.because, source))


class _Reading(Reading):
    def services(self, tree: Node | None) -> tuple[Service, ...]:
        if isinstance(tree, List):
            parsed = [self._masakari(node) for node in self.items(tree, "processes")]
        else:
            empty = "write services, or do without a file"
            root = self.root(tree, empty, "a file of services begins with `services:`")
            fields = self.fields(root, ("services",), needed=("services",)) if root else {}
            parsed = [self._ours(node) for node in self.items(fields.get("services"), "services")]
        services = [service for service in parsed if service is not None]
        self._check_names(services)
        return tuple(services)

    def _check_names(self, services: Sequence[Service]) -> None:
        lines: dict[str, int] = {}
        for service in services:
            if service.name in lines:
                text = f"{service.name} is there already, in line {lines[service.name]}"
                self.say(service.line, f"{text}: give each a name of its own")
            lines.setdefault(service.name, service.line)

    # Holdfast's format

    def _ours(self, node: Node) -> Service | None:
        before = len(self.problems)
        fields = self.fields(node, KEYS, needed=("name",))
        name = self._name(fields.get("name"))
        known = {way: self.word(fields.get(way), way) for way in (*WAYS, "socket")}
        self._check_ways(fields, known)
        more: dict[str, Any] = {**known, "probe": self._command(fields, "check")}
        more["restart"] = self._command(fields, "restart") or _systemd(known["unit"])
        more |= {what: self.span(fields[key], 0.0) for key, what in SPANS.items() if key in fields}
        for key in ("within", "restart_within"):
            if key in fields and not more[SPANS[key]]:
                self.say(fields[key].line, f"`{key}` leaves no time at all: write some seconds")
        more["tries"] = self.whole_number(fields.get("tries"), "tries", 0, MOST_TRIES, TRIES)
        more["if_seen"] = self.yes_no(fields.get("if_seen"), "if_seen")
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
        problem = "{} is no name: write letters, digits and @ . _ + -, a hundred at most"
        return self.value(node, _service_name, "", problem)

    def _command(self, fields: Mapping[str, Node], name: str) -> Command:
        """Return a command, which must be a list: the parser then cannot split words wrongly."""
        node = fields.get(name)
        if node is None:
            return ()
        if isinstance(node, Scalar):
            text = f"`{name}` is {shown(node)}: write its words as a list, [systemctl, restart, …]"
            self.say(node.line, text)
            return ()
        return self.words(node, name)

    # masakari-monitors' format

    def _masakari(self, node: Node) -> Service | None:
        before = len(self.problems)
        given = self.fields(node, MASAKARI, needed=("process_name",))
        fields = {name: value for name, value in given.items() if not _is_empty(value)}
        if "process_name" in given and "process_name" not in fields:
            self.say(given["process_name"].line, "`process_name` is empty: write it as ps shows it")
        process = self.word(fields.get("process_name"), "process_name")
        name = _named(process)
        if process and not _NAME.fullmatch(name):
            self.say(fields["process_name"].line, f"{quoted(process)} has no name to report")
        what = "restart" if "restart_command" in fields else "start"
        commands = [self._split(fields, f"{when}{what}_command") for when in ("pre_", "", "post_")]
        as_root = self.yes_no(fields.get("run_as_root"), "run_as_root")
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
            patience_s=5.0,  # as in masakari-monitors: an attempt every five seconds
            line=node.line,
        )

    def _split(self, fields: Mapping[str, Node], name: str) -> Command:
        text = self.word(fields.get(name), name)
        if not text:
            return ()
        what = f"`{name}` cannot be split into words: "
        return tuple(self.attempt(fields[name].line, what, shlex.split, text) or ())


def _service_name(text: str) -> str | None:
    return text.strip() if _NAME.fullmatch(text.strip()) else None


def _systemd(unit: str) -> Command:
    return ("systemctl", "restart", unit) if unit else ()


def _is_empty(node: Node) -> bool:
    return isinstance(node, Scalar) and node.text.strip() in ("", "~", "null")


def _named(process: str) -> str:
    """Return nova-compute for /usr/bin/nova-compute and /usr/bin/python3 /usr/bin/nova-compute."""
    words = [os.path.basename(word) for word in process.split() if not word.startswith("-")]
    if len(words) > 1 and _INTERPRETER.fullmatch(words[0]):
        return words[1]
    return words[0] if words else ""


class Processes(Protocol):
    """Checks and restarts services on the host; thread-safe."""

    def runs(self, service: Service) -> str:
        """Return why the service does not run, or "" if it runs."""
        ...

    def restart(self, service: Service) -> str:
        """Return why the restart command failed, or "".

        Success does not mean that the service runs: call `runs` for that.
        """
        ...


LOG = logging.getLogger(__name__)

FAILED: Final = "failed"
WELL: Final = "well"
#: Number of services checked in parallel: a check that hangs does not delay the others.
AT_ONCE: Final = 8
#: `check` waits this long for the restarts it started: a quick restart then ends within the check.
QUICK_S: Final = 0.5
#: Fields of a state that the agent writes to disk.
_KEPT: Final = ("tries", "reported", "ran")


@dataclass(frozen=True, slots=True)
class State:
    """The state of a service. Times are monotonic."""

    why: str = ""  # why the service does not run
    since: float = 0.0  # start of the outage, or of running
    tries: int = 0
    tried_at: float = float("-inf")  # end of the last restart
    reported: bool = False  # reported as failed
    seen: bool = False  # checked before
    ran: bool = False  # ever


@dataclass(frozen=True, slots=True)
class Step:
    """The step for a service: a restart, a report, or nothing."""

    restart: bool = False
    report: str = ""
    sentence: str = ""


def judge(service: Service, state: State, why: str, now: float) -> tuple[State, Step]:
    """Return the new state of a service, and the step to take."""
    if not state.seen or bool(why) != bool(state.why):
        state = replace(state, since=now, seen=True)
    state = replace(state, why=why, ran=state.ran or not why)
    if why:
        return _away(service, state, now)
    if now - state.since < service.stable_s:
        return state, Step()
    change = WELL if state.reported else ""
    sentence = f"{service.name} runs again, since {now - state.since:.0f} s" if change else ""
    return replace(state, tries=0, reported=False), Step(report=change, sentence=sentence)


def _away(service: Service, state: State, now: float) -> tuple[State, Step]:
    if state.reported or (service.if_seen and not state.ran):
        return state, Step()
    if state.tries and now - state.tried_at < service.patience_s:
        return state, Step()
    if service.restart and state.tries < service.tries:
        state = replace(state, tries=state.tries + 1, tried_at=now)
        sentence = (
            f"{service.name} does not run ({state.why}): restart {state.tries}/{service.tries}"
        )
        return state, Step(restart=True, sentence=sentence)
    tried = f" after {state.tries} restarts" if state.tries else ""
    sentence = f"{service.name} does not run{tried}: {state.why}"
    return replace(state, reported=True), Step(report=FAILED, sentence=sentence)


class ServicesFile(Followed[tuple[Service, ...]]):
    """The operator's services file, reloaded when it changes; empty without a file."""

    def __init__(self, path: str | None) -> None:
        super().__init__(path, "services", tuple, parse)

    @property
    def services(self) -> tuple[Service, ...]:
        return self.value


Keep = Callable[[Mapping[str, Any]], None]


class ProcessWatch:
    """Checks all services of a host: the named ones, and the file's, which take precedence.

    `keep` writes the result of `remembered` to disk; the watch calls it before any restart.
    """

    def __init__(
        self,
        processes: Processes,
        services: Iterable[Service],
        file: ServicesFile | None = None,
        keep: Keep | None = None,
    ) -> None:
        self._processes = processes
        self._named = {service.name: service for service in services}
        self._file = file
        self._keep = keep
        self._under_way: dict[str, Future[str]] = {}  # restarts, by name
        self.states: dict[str, State] = {}

    @property
    def services(self) -> Sequence[Service]:
        filed = self._file.services if self._file else ()
        return tuple((self._named | {service.name: service for service in filed}).values())

    def check(self, now: float) -> list[tuple[Service, Step]]:
        """Check each service once, start the restarts that are due, and return the reports."""
        if self._file is not None:
            self._file.follow()
        before = self.remembered()
        services, states = self.services, self.states
        self.states = {service.name: states.get(service.name, State()) for service in services}
        self._end(now)
        reports, due = [], []
        for service, why in zip(services, _each(self._processes.runs, services), strict=True):
            if why and service.name in self._under_way:
                continue  # the restart under way may still help
            state, step = judge(service, self.states[service.name], why, now)
            self.states[service.name] = state
            if step.restart:
                LOG.warning("%s", step.sentence)
                due.append(service)
            if step.report:
                reports.append((service, step))
        if due and self.remembered() != before:
            self._write()
        for service in due:
            self._under_way[service.name] = start_call(
                f"restart-{service.name}", functools.partial(self._processes.restart, service)
            )
        wait(self._under_way.values(), QUICK_S if due else 0)
        self._end(now)
        return reports

    def _end(self, now: float) -> None:
        """Collect finished restarts; `patience_s` of their services starts now."""
        for name, restart in [item for item in self._under_way.items() if item[1].done()]:
            del self._under_way[name]
            if name in self.states:
                self.states[name] = replace(self.states[name], tried_at=now)
            if why := restart.exception() or restart.result():
                LOG.error("%s could not be restarted: %s", name, why)

    def forget_reports(self, reports: Iterable[tuple[Service, Step]]) -> None:
        """Undo reports that could not be written; the next check makes them again."""
        for service, step in reports:
            state = self.states[service.name]
            self.states[service.name] = replace(state, reported=step.report != FAILED)

    def remembered(self) -> dict[str, Any]:
        """Return the states as JSON values; a service that was always well only has `ran`."""
        kept = {
            name: {word: getattr(state, word) for word in _KEPT}
            for name, state in self.states.items()
        }
        return {name: saved for name, saved in kept.items() if any(saved.values())}

    def recall(self, saved: Any, now: float) -> None:
        """Load the states of the previous agent process; `patience_s` starts anew."""
        try:
            self.states = {
                str(name): State(
                    tries=int(state["tries"]),
                    tried_at=now,
                    reported=bool(state["reported"]),
                    ran=bool(state["ran"]),
                )
                for name, state in (saved or {}).items()
            }
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            LOG.warning("the stored state of services cannot be read (%s): it starts empty", error)

    def _write(self) -> None:
        if self._keep is None:
            return
        try:
            self._keep(self.remembered())
        except HoldfastError as error:  # restart the service even if the disk is full
            LOG.error("that a restart is tried cannot be written down: %s", error.message)


def _each(do: Callable[[Service], str], services: Sequence[Service]) -> list[str]:
    if len(services) < 2:
        return [do(service) for service in services]
    with ThreadPoolExecutor(min(AT_ONCE, len(services)), thread_name_prefix="service") as effects:
        return list(effects.map(do, services))
