# SPDX-License-Identifier: Apache-2.0
"""holdfast incident list | show | watch | explain | retry | abort | confirm-off | report"""

import argparse
import shutil
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, ClassVar

from holdfast import cli
from holdfast.cli import (
    ActOnEach,
    Arguments,
    Base,
    Lines,
    ListObjects,
    Moment,
    ShowCommand,
    Table,
    arg,
    either,
    one,
)
from holdfast.cli.recovery import paused_line, reason
from holdfast.cli.repair import Wrapped
from holdfast.client.client import Object, Objects
from holdfast.model.incident import KINDS
from holdfast.model.state_machines import INCIDENT

# An incident as text: a line for each guard, step and server; and the progress as a screen


OPEN = ("open", "held", "running")
#: End states that need an operator.
BAD = ("failed", "aborted")
_MARKS = {"done": "+", "skipped": "-", "under way": ">", "to come": " "}
#: The order of servers: failed and ongoing moves first.
_ORDER = ("failed", "ongoing", "pending", "ignored", "succeeded")


class Verdicts(Lines):
    """The verdict of a guard: yes paused: recovery is not paused"""

    def line(self, value: Any) -> str:
        return f"{'yes' if value['passed'] else 'NO '} {value['guard']}: {value['sentence']}"


class Steps(Lines):
    """A step: done 10:00:03 fence: cmp-7 was fenced: its power reads off"""

    def line(self, value: Any) -> str:
        at = f" {_clock(value['finished_at'])}" if value["finished_at"] else ""
        sentence = f": {value['sentence']}" if value["sentence"] else ""
        return f"{value['status']}{at} {value['name']}{sentence}"


class Servers(Lines):
    """A server: web-1 cmp-7 -> cmp-3 succeeded, 1 attempt: runs on cmp-3"""

    def line(self, value: Any) -> str:
        return server_line(value)


class Reports(Lines):
    """A report: 10:00:01 COMPUTE_HOST event=STOPPED, host_status=NORMAL (finished)"""

    def line(self, value: Any) -> str:
        payload = ", ".join(f"{k}={v}" for k, v in sorted(value["payload"].items()))
        return f"{_clock(value['received_at'])} {value['type']} {payload} ({value['status']})"


class Timeline(Lines):
    """A line of the timeline: 10:00:01 holdfast: opened: cmp-7 is reported to have stopped"""

    def line(self, value: Any) -> str:
        return f"{_clock(value['at'])} {value['actor']}: {value['sentence']}"


class Counts(Lines):
    """The counts of moves: 2 of 5 moved, 1 failed"""

    def human_readable(self) -> str:
        return counted(self._value)


def shown(incident: Object, *, everything: bool) -> Table:
    hidden = {"details"} if incident["status"] in OPEN else {"details", "work"}
    if everything:
        hidden = set()
    values = {name: value for name, value in incident.items() if name not in hidden}
    values["sentence"] = Wrapped(incident["sentence"])
    if values.get("work") and not everything:
        values["work"] = Lines([values["work"]])
    columns, data = one(
        values,
        moves=Counts,
        verdicts=Verdicts,
        steps=Steps,
        servers=Servers,
        reports=Reports,
        timeline=Timeline,
    )
    return columns, data


def counted(moves: dict[str, int]) -> str:
    total = sum(moves.values())
    if not total:
        return ""
    text = f"{moves['succeeded']} of {total} moved"
    for status, label in (("ongoing", "on the way"), ("failed", "failed"), ("ignored", "stay")):
        if moves[status]:
            text += f", {moves[status]} {label}"
    return text


def server_line(move: Object) -> str:
    way = f"{move['from']} -> {move['to']}" if move["to"] else move["from"]
    tries = f", {move['attempts']} attempts" if move["attempts"] > 1 else ""
    message = f": {move['message']}" if move["message"] else ""
    return f"{move['name']} {way} {move['status']}{tries}{message}"


def screen(incident: Object, width: int, height: int) -> Sequence[str]:
    """Return the progress of an incident, cut to the size of the terminal."""
    lines = list(_screen(incident))
    if len(lines) > height:
        left = len(lines) - height + 1
        lines = [*lines[: height - 1], f"… {left} more lines: holdfast incident show"]
    return [line[: max(1, width)] for line in lines]


def _screen(incident: Object) -> Iterator[str]:
    yield f"{incident['id']}  {incident['cause']}"
    yield f"{incident['status'].upper()}: {incident['sentence']}"
    for verdict in incident["verdicts"]:
        if not verdict["passed"]:
            yield f"  NO {verdict['guard']}: {verdict['sentence']}"
    for step in incident["steps"]:
        at = _clock(step["finished_at"]) if step["finished_at"] else " " * 8
        yield f"  {_MARKS[step['status']]} {at} {step['name']:<10} {step['sentence']}".rstrip()
    if moves := counted(incident["moves"]):
        yield f"  servers: {moves}"
    for move in sorted(incident["servers"], key=lambda server: _ORDER.index(server["status"])):
        yield f"    {server_line(move)}"


def progress_lines(incident: Object) -> Iterator[str]:
    """Yield the progress of an incident, line by line; the caller omits lines already printed."""
    for step in incident["steps"]:
        if step["finished_at"]:
            yield f"{_clock(step['finished_at'])} {step['name']}: {step['sentence']}"
    for move in incident["servers"]:
        if move["status"] in ("succeeded", "failed", "ignored"):
            yield server_line(move)
    yield f"{incident['status']}: {incident['sentence']}"


def _clock(moment: str | None) -> str:
    return Moment(moment).human_readable()[11:19]


POLL_S = 1.0
PATIENCE = 30  # failed polls in a row before watching gives up
_UP_AND_CLEAR = "\x1b[{}F\x1b[J"


INCIDENT_ID = arg("incident", help="its id, or the beginning of it")
STATUSES = sorted(INCIDENT)


class List(ListObjects):
    """List incidents, newest first: subject, status, and servers moved.

    If recovery is paused, a line above the table says so.
    """

    example = """  holdfast incident list --open
  holdfast incident list --host cmp-07 --since '2027-01-31 18:00'
  holdfast incident list --status failed -f json -c id -c sentence"""
    notes = (cli.DATES,)
    columns = ("id", "kind", "host", "status", "opened_at", "closed_at", "servers", "sentence")
    arguments = (
        either(
            arg("--open", action="store_true", help="only open incidents"),
            arg("--closed", action="store_true", help="only closed incidents"),
        ),
    )
    filters = (
        arg("--status", choices=STATUSES, metavar="STATUS", help=f"one of {', '.join(STATUSES)}"),
        arg("--kind", choices=sorted(KINDS), help="only of hosts, guests, processes or alarms"),
        arg("--host", help="only of this host, or of guests on it"),
        arg("--segment", metavar="NAME|ID", help="only in this segment"),
        arg("--since", type=cli.date, metavar="DATE", help="only incidents opened then or later"),
        arg("--limit", type=cli.count, metavar="N", help="at most N; default: 100"),
        arg("--marker", metavar="ID", help="only incidents older than this one"),
    )
    most = 100

    def fetch(self, args: argparse.Namespace, wanted: Object) -> Objects:
        which = True if args.open else False if args.closed else None
        incidents = self.client.incidents.list(open=which, **wanted)
        for pause in self.client.pauses.list():
            self.note(args, paused_line(pause))
        return incidents

    def row(self, incident: Object) -> Object:
        moves, sentence = Counts(incident["moves"]), Wrapped(incident["sentence"])
        return {**incident, "servers": moves, "sentence": sentence}


class _Watching(Base):
    """A command that can follow an incident to its end."""

    def follow(self, incident: Object, out: Any) -> Object:
        """Print the progress until the incident ends: a screen on a terminal, elsewhere lines."""
        draw = _Screen(out) if out.isatty() else _Log(out)
        while True:
            draw(incident)
            if incident["status"] not in OPEN:
                self.exit_code = int(incident["status"] in BAD)
                return incident
            show = partial(self.client.incidents.show, incident["id"])
            incident = self.poll(show, POLL_S, PATIENCE)


class _Screen:
    """Draws the progress in place on a terminal."""

    def __init__(self, out: Any) -> None:
        self._out = out
        self._drawn = 0

    def __call__(self, incident: Object) -> None:
        size = shutil.get_terminal_size()
        lines = screen(incident, size.columns - 1, size.lines - 2)
        clear = _UP_AND_CLEAR.format(self._drawn) if self._drawn else ""
        self._out.write(clear + "\n".join(lines) + "\n")
        self._out.flush()
        self._drawn = len(lines)


class _Log:
    """Prints each new line of the progress."""

    def __init__(self, out: Any) -> None:
        self._out = out
        self._said: set[str] = set()

    def __call__(self, incident: Object) -> None:
        for line in progress_lines(incident):
            if line not in self._said:
                self._said.add(line)
                self._out.write(line + "\n")
        self._out.flush()


class Show(_Watching, ShowCommand):
    """Show an incident: guards, steps, servers, reports and the timeline.

    With --watch the command follows the incident to its end, as `holdfast incident watch` does.
    """

    example = """  holdfast incident show 4f2c6b3e
  holdfast incident show 4f2c6b3e --watch
  holdfast incident show 4f2c6b3e -f json -c servers"""
    arguments = (
        INCIDENT_ID,
        arg("--watch", action="store_true", help="follow it until it is over"),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        incident = self.client.incidents.find(parsed_args.incident)
        table = parsed_args.formatter == "table"
        if parsed_args.watch:  # JSON and other formats get no progress on stdout
            incident = self.follow(incident, self.app.stdout if table else self.app.stderr)
        return shown(incident, everything=not table)


class Watch(_Watching):
    """Follow an incident to its end.

    On a terminal the command redraws the progress, elsewhere it prints new lines. Ends with 1
    if the incident failed or was aborted.
    """

    example = "  holdfast incident watch 4f2c6b3e"
    arguments = (INCIDENT_ID,)

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        self.follow(self.client.incidents.find(parsed_args.incident), self.app.stdout)


class Explain(Base):
    """Explain an incident: observations, decisions with reasons, and actions."""

    example = "  holdfast incident explain 4f2c6b3e"
    arguments = (INCIDENT_ID,)

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        incident = self.client.incidents.find(parsed_args.incident)
        self.app.stdout.write(self.client.incidents.explain(incident["id"])["text"] + "\n")


class _Order(ActOnEach):
    """A command that acts on incidents and prints the status of each."""

    arguments: ClassVar[Arguments] = (
        arg("refs", nargs="+", metavar="incident", help="its id, or the beginning of it"),
    )

    def order(self, incident_id: str, args: argparse.Namespace) -> Object:
        raise NotImplementedError

    def act(self, ref: str, args: argparse.Namespace) -> str:
        incident = self.order(self.client.incidents.find(ref)["id"], args)
        return f"incident {incident['id']} is {incident['status']}: {incident['sentence']}"


class Retry(_Order):
    """Retry incidents with status failed or aborted.

    Holdfast asks the guards again, and needs a new proof that the host is off. Servers that
    were moved stay where they are.
    """

    example = "  holdfast incident retry 4f2c6b3e && holdfast incident watch 4f2c6b3e"
    arguments = (*_Order.arguments, reason(required=False))

    def order(self, incident_id: str, args: argparse.Namespace) -> Object:
        return self.client.incidents.retry(incident_id, args.reason)


class Abort(_Order):
    """Abort incidents: Holdfast starts nothing more; moves under way finish.

    A host that was forced down stays forced down, because its servers may have been started
    elsewhere.
    """

    example = "  holdfast incident abort 4f2c6b3e --reason 'a drill, the host is well'"
    arguments = (*_Order.arguments, reason())

    def order(self, incident_id: str, args: argparse.Namespace) -> Object:
        return self.client.incidents.abort(incident_id, args.reason)


class ConfirmOff(_Order):
    """Confirm that the host of an incident is off, if nothing else can prove it.

    Holdfast starts the servers elsewhere on your word: if the host is not off, they run twice
    and destroy their disks. Look at the machine, or pull the plug, before you confirm. The API
    refuses if the host's fence reads on, and accepts if the fence cannot be read.
    """

    example = "  holdfast incident confirm-off 4f2c6b3e --reason 'plug pulled, I stand before it'"
    arguments = (
        *_Order.arguments,
        reason(),
        arg(
            "--despite-power-on",
            action="store_true",
            help="the host is off though its fence reads on; the incident's story says so",
        ),
    )

    def order(self, incident_id: str, args: argparse.Namespace) -> Object:
        despite = args.despite_power_on
        return self.client.incidents.confirm_off(incident_id, args.reason, despite_power_on=despite)


# holdfast incident report: the report of a monitor, sent by an operator


class Report(Base):
    """Report the failure of a host, or of a server or process on the host.

    Holdfast treats it like a report of a monitor: it asks the guards, and fences the host
    before it starts any server elsewhere. `incident list` shows the result.
    """

    example = """  holdfast incident report cmp-07
  holdfast incident report cmp-07 --server 3c0f4b9e-6d0a-4f3c-9a51-0b6f7d1f2a3b
  holdfast incident report cmp-07 --process nova-compute"""
    arguments = (
        arg("host", help="the host that died, or on which something did"),
        either(
            arg("--server", metavar="UUID", help="only this server on it died"),
            arg("--process", metavar="NAME", help="only this process on it died"),
        ),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        args = parsed_args
        made = self.client.incidents.report(args.host, server=args.server, process=args.process)
        self.say(
            f"reported as notification {made['notification_uuid']}; see `holdfast incident list`"
        )
