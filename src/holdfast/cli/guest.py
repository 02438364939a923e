# SPDX-License-Identifier: Apache-2.0
"""`holdfast guest`: guests of this host as seen by the agent, and checks of the agent's files.

`list`, `watch`, `simulate` and `status` ask the agent through its socket, and no server.
`expect` compares the cloud with the hypervisor and needs only the agent's configuration.
`filter check`, `filter test` and `service check` read files.
"""

import argparse
import contextlib
import json
import shlex
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, ClassVar, Final

from oslo_config import cfg

from holdfast import conf as configuration
from holdfast.agent import guest_filters, guest_store, processes
from holdfast.agent.expected import Difference, HostComparison, compare, differences
from holdfast.agent.guest_filters import Filter, Rule
from holdfast.agent.guest_state import GuestEvent
from holdfast.agent.processes import Service
from holdfast.app import agent
from holdfast.cli import (
    Arguments,
    Base,
    Lines,
    ListCommand,
    Table,
    arg,
    either,
    reading,
    rows,
    typed,
    values,
)
from holdfast.client import admin, dates
from holdfast.client.errors import ClientError, NotReachable
from holdfast.drivers import connect_guests
from holdfast.model.errors import HoldfastError, InvalidInput
from holdfast.model.host import normalise
from holdfast.ports.guests import KINDS, Guest
from holdfast.runtime.clock import SystemClock
from holdfast.runtime.documents import MAX_BYTES

# The agent's answers as lines of text


Answer = Mapping[str, Any]
#: A report that waits longer than this needs an operator.
LATE_S = 60.0


def fault_line(fault: Answer) -> str:
    """Format a fault of a guest: io_error pause vda: recover in 12 s"""
    what = _words(fault, "event", "detail", "reason", "disk")
    if fault["over"]:
        then = f"was {fault['reported']}, and is over"
    elif fault["due_s"] is not None:
        then = f"{fault['do']} in {fault['due_s']:.0f} s"
    else:
        then = f"reported as {fault['reported']}" if fault["reported"] else fault["do"]
    return f"{what}: {then}"


def warnings(status: Answer) -> Iterator[str]:
    host = status["host"]
    if status["deaf"]:
        yield f"the agent of {host} does not hear the hypervisor: {status['deaf']}"
    if status["stuck"]:
        yield f"the agent of {host} cannot go on: {status['stuck']}"
    if status["filters_problem"]:
        why = status["filters_problem"]
        yield f"the filter file is not in force, the previous rules are: {why}"
    yield from losses(status)


def losses(status: Answer) -> Iterator[str]:
    """Yield problems of metrics and alarms; older agents do not report any."""
    for name, why in sorted(status.get("troubles", {}).items()):
        yield f"{name} of the agent of {status['host']} does not work: {why}"
    if status.get("alarms_lost"):
        yield f"{status['alarms_lost']} alarms could not be written down and are lost"


def undelivered(status: Answer) -> Iterator[str]:
    """Yield a warning about reports in the outbox that are late or were rejected."""
    backlog = status["outbox"]
    if backlog["put_aside"] or (backlog["oldest_s"] or 0) > LATE_S:
        yield f"the agent of {status['host']}: {outbox_line(backlog)}"


def outbox_line(backlog: Answer) -> str:
    aside = f"; {backlog['put_aside']} were not taken and put aside" if backlog["put_aside"] else ""
    if not backlog["waits"]:
        return f"all is delivered{aside}"
    return (
        f"{backlog['waits']} reports wait, the oldest for {backlog['oldest_s'] or 0:.0f} s{aside}"
    )


def well(status: Answer) -> str:
    knows = (
        f"the agent of {status['host']} hears the hypervisor and knows {status['guests']} guests"
    )
    return f"{knows}; {outbox_line(status['outbox'])}"


def why_nothing(answer: Answer) -> Iterator[str]:
    """Yield the reason for each event without a report, if the agent would report nothing."""
    if answer["reports"]:
        return
    if not answer["judged"]:
        yield "nothing would be reported"
    for verdict in answer["judged"]:
        yield f"no report would follow about {verdict['guest']}: {_why_not(verdict)}"


def _why_not(judged: Answer) -> str:
    if not judged["sign"]:
        return f"this event has no effect on a guest in state {judged['life']}"
    if judged["reported"]:
        return f"already reported as {judged['reported']}, and not over"
    return f"{judged['sign']} is {_verdict(judged)}"


def _verdict(verdict: Answer) -> str:
    done = {"recover": "to be recovered", "report": "to be noted", "ignore": "ignored"}[
        verdict["do"]
    ]
    later = f" after {verdict['after_s']:g} s" if verdict["after_s"] else ""
    by = f" by {verdict['rule']}" if verdict["rule"] != "no rule" else ", because no rule matches"
    return f"{done}{later}{by}"


def event_lines(item: Answer, now: datetime) -> str:
    """Format an item of `guest watch`.

    12:00:00.123 report   web-1: failed: stopped failed, by defaults line 6: …
    """
    record = item.get("record", {})
    at = datetime.fromisoformat(record["at"]).astimezone(UTC) if record else now
    line = _LINES.get(item["what"], str)(item)
    return f"{at:%H:%M:%S}.{at.microsecond // 1000:03d} {item['what']:<8} {line}"


def _guest_list(item: Answer) -> str:
    return f"{item['host']}: {_guests(item['record']['guests'])}"


def _event(item: Answer) -> str:
    record = item["record"]
    return f"{record['name']}: {_words(record, 'kind', 'detail', 'reason', 'disk', 'path')}"


def _reading(item: Answer) -> str:
    return _guests(item["record"]["guests"])


def _guests(guests: list[Answer]) -> str:
    states = [guest["state"] for guest in guests]
    each = [f"{states.count(state)} {state}" for state in sorted(set(states))]
    return f"{len(guests)} guests" + (f": {', '.join(each)}" if each else "")


def _judged(item: Answer) -> str:
    return f"{item['guest']}: {item['sign']} is {_verdict(item)}"


def _report(item: Answer) -> str:
    what = _words(item, "event", "detail", "reason", "disk")
    marked = " (simulated)" if item["simulated"] else ""
    rule = f", by {item['rule']}" if item["rule"] else ""  # a report of recovery has no rule
    return f"{item['guest']}: {item['state']}{marked}: {what}{rule}"


def _delivery(item: Answer) -> str:
    why = f": {item['why']}" if item["why"] else ""
    return f"{item['guest'] or item['subject']}: {item['state']}: {item['outcome']}{why}"


_LINES: Mapping[str, Callable[[Answer], str]] = {
    "guests": _guest_list,
    "event": _event,
    "reading": _reading,
    "verdict": _judged,
    "report": _report,
    "delivery": _delivery,
}


def _words(record: Answer, *names: str) -> str:
    return " ".join(str(record[name]) for name in names if record.get(name))


#: Exit codes. 1 is not used, because a crashed program ends with 1.
DEAF, AWAY = 10, 2
_GUEST = (
    *("name", "uuid", "life", "reason", "since_at", "project", "flavor", "ha", "heartbeat"),
    "trouble",
)
_REPORT = ("after_s", "guest", "state", "event", "detail", "reason", "disk", "rule")


#: The advice for a recording in a wrong encoding.
RECORDING = "print events and readings as lines of JSON"
CONFIG = arg(
    "--config-file",
    "--config",
    dest="config",
    metavar="FILE",
    action="append",
    help="the agent's configuration file (default: holdfast.conf in /etc/holdfast or ~/.holdfast)",
)


class AgentCommand(Base):
    """A command that asks the agent of this host through its socket."""

    arguments: ClassVar[Arguments] = (
        arg("--socket", metavar="PATH", help="the agent's socket; default: [agent] socket"),
        CONFIG,
    )

    def place(self, args: argparse.Namespace) -> str:
        if args.socket:
            return str(args.socket)
        try:
            return str(configuration.load([], args.config).agent.socket)
        except cfg.Error as error:
            raise InvalidInput(f"{error}: name the agent's socket with --socket") from error


class Faults(Lines):
    """The faults of a guest, a line each."""

    def line(self, value: Any) -> str:
        return fault_line(value)


class List(AgentCommand, ListCommand):
    """List the guests of this host as its agent knows them, and their faults.

    `trouble` lists faults that are not over: the kind, and whether the agent has reported the
    fault or in how many seconds it will. JSON and YAML have everything, with the rules, the
    traces and the metadata.
    """

    example = """  holdfast guest list
  holdfast guest list -f json --socket /run/holdfast/agent.sock"""

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        answer = admin.ask(self.place(parsed_args), "guests.list", timeout_s=10.0)
        for warning in warnings(answer):
            self.app.LOG.warning(warning)
        self.say(outbox_line(answer["outbox"]))
        guests = [{**guest, "since_at": guest.pop("since")} for guest in answer["guests"]]
        if parsed_args.formatter in ("json", "yaml"):
            return rows((*_GUEST, "persistent", "metadata"), guests)
        columns, values = rows(_GUEST, guests)
        return columns, [(*row[:-1], Faults(row[-1].machine_readable())) for row in values]


@typed
def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise ValueError(f"{text!r} is no time: write seconds, more than 0")
    return seconds


class Watch(AgentCommand):
    """Show events of the guests of this host as they happen, until Ctrl-C.

    There is a line for each event, each reading of all guests, each verdict of the filters,
    each report and each delivery attempt. With --json the command prints only events and
    readings, as lines for `holdfast guest filter test` to replay; the first line is the
    initial state. A reader that is too slow misses events and gets a warning. Ends with 1 if
    the agent ends.
    """

    example = """  holdfast guest watch
  holdfast guest watch --guest web-1 --for 60
  holdfast guest watch --json > monday.jsonl"""
    arguments = (
        *AgentCommand.arguments,
        arg(
            "--for",
            dest="seconds",
            type=_seconds,
            metavar="SECONDS",
            help="end after this many seconds",
        ),
        arg("--guest", metavar="NAME|UUID", help="of this guest alone"),
        arg("--json", action="store_true", help="a recording, as lines of JSON"),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        until = None
        if parsed_args.seconds is not None:
            until = dates.monotonic() + parsed_args.seconds
        args = {"guest": parsed_args.guest} if parsed_args.guest else {}
        for item in admin.stream(self.place(parsed_args), "guests.watch", args):
            if item is not None:
                self._show(item, parsed_args)
            if until is not None and dates.monotonic() >= until:
                return

    def _show(self, item: Mapping[str, Any], asked: argparse.Namespace) -> None:
        if item["what"] == "missed":
            count = item["count"]
            self.app.LOG.warning("%d events are missing here: this reader was too slow", count)
            return
        if item["what"] == "guests" and asked.guest and not item["record"]["guests"]:
            self.say(f"the agent knows no guest {asked.guest} yet")
        if not asked.json:
            line = event_lines(item, dates.now())
        elif "record" in item:
            line = json.dumps(item["record"])
        else:
            return
        print(line, file=self.app.stdout, flush=True)


DETAILS = tuple(
    arg(f"--{name}", help=f"its {name}") for name in ("detail", "reason", "disk", "path")
)


class Simulate(AgentCommand, ListCommand):
    """Show the reports that an event of a guest would cause now, and the rule behind each.

    The agent asks its filters with a copy of its memory: nothing changes and nothing is
    reported. With --for-real the agent sends the report at once, marked as simulated, and
    Holdfast acts on it as on a failure; Holdfast asks the cloud about the guest as always. The
    agent's memory stays as it is.
    """

    example = """  holdfast guest simulate --guest web-1 --event lifecycle --detail crashed
  holdfast guest simulate --guest web-1 '{"kind": "io_error", "detail": "pause", "disk": "vda"}'
  holdfast guest simulate monday.jsonl
  holdfast guest simulate --guest web-1 --event watchdog --detail poweroff --for-real"""
    arguments = (
        *AgentCommand.arguments,
        arg(
            "record",
            nargs="?",
            help="an event as JSON, or a file with one to a line (- is stdin), as "
            "docs/concepts/guests.md says; time, uuid and name may be left out",
        ),
        arg("--guest", metavar="NAME|UUID", help="guest of the event"),
        arg("--event", choices=KINDS, help="kind of the event"),
        *DETAILS,
        either(
            arg("--dry-run", action="store_true", help="change nothing (the default)"),
            arg("--for-real", action="store_true", help="tell Holdfast"),
        ),
        arg("--yes", action="store_true", help="do not ask before the report is sent"),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        place = self.place(parsed_args)
        args: dict[str, Any] = {"records": _records(parsed_args)}
        if parsed_args.guest:
            args["guest"] = parsed_args.guest
        answer = admin.ask(place, "guests.simulate", args, timeout_s=10.0)
        if parsed_args.for_real and answer["reports"]:
            self._confirm(parsed_args, answer["reports"])
            answer = admin.ask(place, "guests.simulate", {**args, "for_real": True}, timeout_s=10.0)
            self.say(
                f"the report is sent to Holdfast, as simulated on {answer['host']}:"
                " `holdfast incident list`"
            )
        for line in why_nothing(answer):
            self.say(line)
        return rows(_REPORT, answer["reports"])

    def _confirm(self, asked: argparse.Namespace, reports: Sequence[Mapping[str, Any]]) -> None:
        if asked.yes:
            return
        for report in reports:
            what = "would be recovered" if report["state"] == "failed" else "would be noted"
            self.app.LOG.warning("%s %s", report["guest"], what)
        if not sys.stdin.isatty():
            raise InvalidInput("Holdfast would act on this report; confirm with --yes")
        if input("Send the report, so that Holdfast acts? [y/N] ").strip().lower() not in (
            "y",
            "yes",
        ):
            raise InvalidInput("nothing was sent")


class Status(AgentCommand):
    """Check within 5 seconds whether the agent of this host runs and hears the hypervisor.

    The command counts reports that wait for delivery, with the age of the oldest, and reports
    that Holdfast rejected and the agent put aside; they do not change the exit code.

    Exit code: 0 yes, 10 the agent runs but hears nothing or cannot go on, 2 the agent cannot be
    reached. With --quiet the command prints only errors.
    """

    example = """  holdfast guest status
  holdfast -q guest status --socket /run/holdfast/agent.sock"""

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        try:
            status = admin.ask(self.place(parsed_args), "status")
        except (NotReachable, HoldfastError) as error:
            self.exit_code = AWAY
            self.app.LOG.error("%s", error)
            return
        for line in undelivered(status):
            self.app.LOG.warning("%s", line)
        if status["deaf"] or status["stuck"]:
            self.exit_code = DEAF
            for line in warnings(status):
                self.app.LOG.error("%s", line)
            return
        for line in losses(status):
            self.app.LOG.warning("%s", line)
        if self.app.options.verbose_level > 0:
            self.app.stdout.write(well(status) + "\n")


def _records(asked: argparse.Namespace) -> list[Any]:
    given = {name: value for name, value in values(DETAILS, asked).items() if value}
    if asked.event:
        if asked.record:
            raise InvalidInput("an event is described by options or by JSON, not by both")
        return [{"kind": asked.event, **given}]
    if not asked.record or given:
        raise InvalidInput("name the event: --event KIND, or an event as JSON")
    records = []
    for number, line in enumerate(_lines(asked.record), 1):
        try:
            if line.strip():
                records.append(json.loads(line))
        except (ValueError, RecursionError) as error:
            raise InvalidInput(f"line {number} is no JSON: {error}") from error
    return records


def _lines(source: str) -> Sequence[str]:
    if source.lstrip().startswith("{"):
        return [source]
    with reading(source, RECORDING):
        if source == "-":
            return sys.stdin.read().splitlines()
        with open(source, encoding="utf-8") as file:
            return file.read().splitlines()


# holdfast guest expect: compares the cloud with the hypervisor of this host, on demand. The
# command needs no agent, only the agent's configuration.


#: Exit codes. 1 is not used, because a crashed program ends with 1.
DIFFERS, NOT_ASKED = 11, 2
GRACE_S: Final = 5.0
_SHOWN = ("name", "uuid", "difference", "found", "cloud_says")


class Expect(ListCommand):
    """Compare the servers the cloud expects on this host with the guests found there.

    The command asks Holdfast with the token of the host's agent, and the hypervisor in [agent]
    guests; the agent need not run. The list holds missing servers, servers that are off though
    nobody switched them off, and guests that run and should not. After a grace time the command
    checks differences again, because the cloud's data may be older than the hypervisor's.

    Exit code: 0 nothing differs, 11 something does, 2 one side could not be asked.
    """

    example = """  holdfast guest expect
  holdfast guest expect --config-file /etc/holdfast/holdfast.conf --grace 0 -f json"""
    arguments = (
        CONFIG,
        arg("--host", help="name of this host in the cloud; default: [agent] host"),
        arg(
            "--grace",
            metavar="SECONDS",
            type=float,
            default=GRACE_S,
            help="seconds until differences are checked again; 0: no second check (default: 5)",
        ),
    )

    def run(self, parsed_args: argparse.Namespace) -> int:
        try:
            return super().run(parsed_args)
        except BrokenPipeError:
            raise
        except Exception as error:  # the top level of a program
            if not isinstance(error, HoldfastError | ClientError | cfg.Error):
                self.app.LOG.debug("unforeseen", exc_info=True)
            self.app.LOG.error("the comparison failed: %s", error)
            return NOT_ASKED

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        settings = configuration.load([], parsed_args.config).agent
        host = normalise(parsed_args.host or settings.host or socket.gethostname())
        differing, last = compared(settings, host, parsed_args.grace)
        if not differing:
            running = sum(guest.state == "running" for guest in last.guests)
            self.say(f"nothing differs on {host}: {running} guests run as expected")
        self.exit_code = DIFFERS if differing else 0
        guests = {guest.uuid: guest for guest in last.guests}
        return rows(_SHOWN, [_row(difference, guests) for difference in differing])


def compared(
    settings: cfg.ConfigOpts, host: str, grace_s: float
) -> tuple[Sequence[Difference], HostComparison]:
    """Return the differences that persist after the grace time."""
    real = SystemClock()
    with (
        contextlib.closing(
            connect_guests(settings.guests, settings.guests_address, real)
        ) as guests,
        contextlib.closing(agent.expected(settings)) as cloud,
    ):
        last = compare(host, cloud, guests, real)
        differing = differences(last.expected, last.guests)
        if not differing or grace_s <= 0:
            return differing, last
        dates.sleep(grace_s)
        last = compare(host, cloud, guests, real)
        before = {(difference.uuid, difference.detail) for difference in differing}
        again = differences(last.expected, last.guests)
        return [
            difference for difference in again if (difference.uuid, difference.detail) in before
        ], last


def _row(difference: Difference, guests: Mapping[str, Guest]) -> dict[str, Any]:
    guest = guests.get(difference.uuid)
    state = f"{guest.state} {guest.reason}" if guest else "nothing"
    return {
        "name": difference.name,
        "uuid": difference.uuid,
        "difference": difference.detail,
        "found": state,
        "cloud_says": difference.why,
    }


# holdfast guest filter: check a filter file, and replay a recording through it


_RULE = ("line", "event", "detail", "reason", "disk", "guest", "rate", "after_s", "do")
_REPORTED = ("reported_at", "guest", "state", "event", "detail", "reason", "disk", "rule")


class FiltersCheck(ListCommand):
    """Check a filter file and list its rules in order, without a server.

    The default rules judge events that no rule of the file matches, so they follow in the list;
    without a file the list holds only them. On errors the command lists all of them with their
    lines and ends with 1.
    """

    example = """  holdfast guest filter check
  holdfast guest filter check /etc/holdfast/guest-filters.yaml"""
    arguments = (arg("file", nargs="?", help="a filter file in YAML"),)

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        filters = filters_of(parsed_args.file)
        if parsed_args.file:
            self.note(parsed_args, f"{parsed_args.file} is valid; the first matching rule counts")
        return rows(_RULE, [_rule(rule) for rule in filters.rules])


class FiltersTest(ListCommand):
    """Replay recorded guest events through a filter file, and show the resulting reports.

    A recording has a JSON object per line, each an event or a reading of all guests; see
    docs/concepts/guests.md. Holdfast would recover `failed` guests, and only record `noted` guests.
    Grace times follow the times in the recording.
    """

    example = """  holdfast guest filter test guest-filters.yaml monday.jsonl
  holdfast guest filter test default monday.jsonl -f json"""
    arguments = (
        arg("file", help="a filter file in YAML, or the word default"),
        arg("events", help="a recording, as lines of JSON"),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        name = parsed_args.events
        filters = filters_of(None if parsed_args.file == "default" else parsed_args.file)
        with reading(name, RECORDING), open(name, encoding="utf-8") as file:
            reports = list(guest_store.replay(guest_store.read(file, name), filters))
        if not reports:
            self.say("no report: every event is ordinary, or a rule ignores it")
        return rows(_REPORTED, [_reported(at, guest_event) for at, guest_event in reports])


def filters_of(name: str | None) -> Filter:
    """Return the filters of a file, or the default filters."""
    if name is None:
        return guest_filters.default()
    with reading(name), open(name, "rb") as file:
        return guest_filters.parse(file.read(MAX_BYTES + 1), name)


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "line": f"{rule.source}:{rule.line}",
        "event": rule.event or "any",
        "detail": ", ".join(rule.details),
        "reason": ", ".join(rule.reasons),
        "disk": ", ".join(rule.disks),
        "guest": ", ".join(_about(rule)),
        "rate": f"{rule.times} in {rule.within_s:g} s" if rule.times > 1 else "",
        "after_s": rule.after_s or "",
        "do": rule.do,
    }


def _about(rule: Rule) -> Iterator[str]:
    for name, wanted in rule.about:
        yield f"{name} {' or '.join(wanted)}"


def _reported(at: datetime, event: GuestEvent) -> dict[str, Any]:
    evidence = {
        name: event.evidence[name] for name in ("event", "detail", "reason", "disk", "rule")
    }
    return {"reported_at": at.isoformat(), "guest": event.name, "state": event.state, **evidence}


# holdfast guest service check: list the services in a services file


_SERVICE = ("line", "name", "known_by", "restart", "tries", "patience_s", "stable_s", "missed")


class ServicesCheck(ListCommand):
    """Check a services file and list the services to watch, without a server.

    The command accepts our own format and masakari-monitors' process_list.yaml. On errors it
    lists all of them with their lines and ends with 1. The command looks for no process and
    restarts nothing.
    """

    example = """  holdfast guest service check /etc/holdfast/services.yaml
  holdfast guest service check /etc/masakarimonitors/process_list.yaml"""
    arguments = (arg("file", help="a file of services in YAML"),)

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        name = parsed_args.file
        with reading(name), open(name, "rb") as file:
            services = processes.parse(file.read(MAX_BYTES + 1), name)
        self.note(parsed_args, f"{name} can be used")
        return rows(_SERVICE, [_service_row(service) for service in services])


def _service_row(service: Service) -> dict[str, Any]:
    commands = (service.before, service.restart, service.after)
    root = " (as root)" if service.as_root else ""
    restart = "; then ".join(shlex.join(command) for command in commands if command)
    return {
        "line": service.line,
        "name": service.name,
        "known_by": service.known_by,
        "restart": f"{restart}{root}" if restart else "never: watched only",
        "tries": service.tries if service.restart else "",
        "patience_s": service.patience_s if service.restart else "",
        "stable_s": service.stable_s,
        "missed": "if seen running before" if service.if_seen else "always",
    }
