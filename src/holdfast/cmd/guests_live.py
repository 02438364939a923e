# SPDX-License-Identifier: Apache-2.0
"""`holdfast guests list | watch | simulate | status`: what the agent of this host sees, live. They
ask the agent itself, by its socket, and no server."""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from cliff.command import Command
from oslo_config import cfg

from holdfast import conf as configuration
from holdfast.client import admin, clock
from holdfast.client.commands import Base, Lines, ListCommand, Table, rows, typed
from holdfast.client.errors import NotReachable
from holdfast.cmd import guests_lines
from holdfast.model.errors import HoldfastError, InvalidInput
from holdfast.ports.guests import KINDS

#: A program that dies of something else ends with 1, so that is nobody's answer.
DEAF, AWAY = 10, 2
_GUEST = (
    *("name", "uuid", "life", "reason", "since_at", "project", "flavor", "ha", "heartbeat"),
    "trouble",
)
_TOLD = ("after_s", "guest", "state", "event", "detail", "reason", "disk", "rule")


def add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config-file",
        "--config",
        dest="config",
        metavar="FILE",
        action="append",
        help="the agent's configuration file (default: holdfast.conf in /etc/holdfast or "
        "~/.holdfast)",
    )


class Asking(Base):
    """Knows where the agent is."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--socket", metavar="PATH", help="the agent's socket; default: [agent] socket"
        )
        add_config(parser)
        return parser

    def place(self, args: argparse.Namespace) -> str:
        if args.socket:
            return str(args.socket)
        try:
            return str(configuration.load([], args.config).agent.socket)
        except cfg.Error as error:
            raise InvalidInput(f"{error}: name the agent's socket with --socket") from error


class Troubles(Lines):
    def line(self, value: Any) -> str:
        return guests_lines.trouble(value)


class List(Asking, ListCommand):
    """List the guests of this host as its agent knows them, and what it thinks of them.

    `trouble` is what is not over: what it is, and whether it was told or in how many seconds it
    will be. JSON and YAML have everything, with the rules, the traces and the metadata.
    """

    example = """  holdfast guests list
  holdfast guests list -f json --socket /run/holdfast/agent.sock"""

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        said = admin.ask(self.place(parsed_args), "guests.list", timeout_s=10.0)
        for warning in guests_lines.warnings(said):
            self.app.LOG.warning(warning)
        self.say(guests_lines.spool(said["spool"]))
        found = [{**one, "since_at": one.pop("since")} for one in said["guests"]]
        if parsed_args.formatter in ("json", "yaml"):
            return rows((*_GUEST, "persistent", "metadata"), found)
        columns, values = rows(_GUEST, found)
        return columns, [(*row[:-1], Troubles(row[-1].machine_readable())) for row in values]


class Watch(Asking, Command):
    """Show what happens to the guests of this host while it happens, until Ctrl-C.

    A line for each event, each reading of all guests, each verdict of the filters, all that is
    told and each try to deliver it. With --json the events and readings alone, as lines that
    `holdfast guests filters test` replays; the first is how things stood. Who reads too slowly
    misses some, which is said. Ends with 1 if the agent ends.
    """

    example = """  holdfast guests watch
  holdfast guests watch --guest web-1 --for 60
  holdfast guests watch --json > monday.jsonl"""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--for", dest="seconds", type=_seconds, metavar="SECONDS", help="end after so long"
        )
        parser.add_argument("--guest", metavar="NAME|UUID", help="of this guest alone")
        parser.add_argument("--json", action="store_true", help="a recording, as lines of JSON")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        until = None
        if parsed_args.seconds is not None:
            until = clock.monotonic() + parsed_args.seconds
        args = {"guest": parsed_args.guest} if parsed_args.guest else {}
        for item in admin.stream(self.place(parsed_args), "guests.watch", args):
            if item is not None:
                self._show(item, parsed_args)
            if until is not None and clock.monotonic() >= until:
                return

    def _show(self, item: Mapping[str, Any], asked: argparse.Namespace) -> None:
        if item["what"] == "missed":
            count = item["count"]
            self.app.LOG.warning("%d things were missed here: they came faster than we read", count)
            return
        if item["what"] == "standing" and asked.guest and not item["record"]["guests"]:
            self.say(f"the agent knows no guest {asked.guest} yet")
        if not asked.json:
            line = guests_lines.news(item, clock.now())
        elif "record" in item:
            line = json.dumps(item["record"])
        else:
            return
        print(line, file=self.app.stdout, flush=True)


class Simulate(Asking, ListCommand):
    """Show what would be told if something happened to a guest now, and by which rule.

    The agent asks its filters with a copy of what it remembers: nothing changes and nobody is told.
    With --for-real Holdfast is told, at once and marked as simulated, and does what it does about a
    failure; of the guest it asks the cloud as always. What the agent remembers stays as it is.
    """

    example = """  holdfast guests simulate --guest web-1 --event lifecycle --detail crashed
  holdfast guests simulate --guest web-1 '{"kind": "io_error", "detail": "pause", "disk": "vda"}'
  holdfast guests simulate monday.jsonl
  holdfast guests simulate --guest web-1 --event watchdog --detail poweroff --for-real"""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        add = parser.add_argument
        add(
            "record",
            nargs="?",
            help="an event as JSON, or a file with one to a line (- is stdin), as docs/guests.md "
            "says; time, uuid and name may be left out",
        )
        add("--guest", metavar="NAME|UUID", help="to whom it happens")
        add("--event", choices=KINDS, help="what kind of event")
        for name in ("detail", "reason", "disk", "path"):
            add(f"--{name}", help=f"its {name}")
        how = parser.add_mutually_exclusive_group()
        how.add_argument("--dry-run", action="store_true", help="change nothing (the default)")
        how.add_argument("--for-real", action="store_true", help="tell Holdfast")
        add("--yes", action="store_true", help="do not ask before Holdfast is told")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        place = self.place(parsed_args)
        args: dict[str, Any] = {"records": _records(parsed_args)}
        if parsed_args.guest:
            args["guest"] = parsed_args.guest
        said = admin.ask(place, "guests.simulate", args, timeout_s=10.0)
        if parsed_args.for_real and said["told"]:
            self._confirm(parsed_args, said["told"])
            said = admin.ask(place, "guests.simulate", {**args, "for_real": True}, timeout_s=10.0)
            self.say(f"Holdfast is told, as simulated on {said['host']}: `holdfast incident list`")
        for line in guests_lines.why_nothing(said):
            self.say(line)
        return rows(_TOLD, said["told"])

    def _confirm(self, asked: argparse.Namespace, told: Sequence[Mapping[str, Any]]) -> None:
        if asked.yes:
            return
        for one in told:
            what = "would be recovered" if one["state"] == "failed" else "would be noted"
            self.app.LOG.warning("%s %s", one["guest"], what)
        if not sys.stdin.isatty():
            raise InvalidInput("Holdfast would act on this; say --yes if you mean it")
        if input("Tell Holdfast, which acts on it? [y/N] ").strip().lower() not in ("y", "yes"):
            raise InvalidInput("nothing was told")


class Status(Asking, Command):
    """Say whether the agent of this host runs and hears the hypervisor, within 5 seconds.

    Reports that wait to be delivered are counted, with the age of the oldest, and so are those that
    Holdfast did not take and the agent put aside; they do not change the exit code.

    Exit code: 0 it does, 10 it runs but hears nothing or cannot go on, 2 it cannot be reached. With
    --quiet only the exit code and what is wrong.
    """

    example = """  holdfast guests status
  holdfast -q guests status --socket /run/holdfast/agent.sock"""

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        try:
            said = admin.ask(self.place(parsed_args), "status")
        except (NotReachable, HoldfastError) as error:
            self.exit_code = AWAY
            self.app.LOG.error("%s", error)
            return
        for line in guests_lines.undelivered(said):
            self.app.LOG.warning("%s", line)
        if said["deaf"] or said["stuck"]:
            self.exit_code = DEAF
            for line in guests_lines.warnings(said):
                self.app.LOG.error("%s", line)
            return
        for line in guests_lines.losses(said):
            self.app.LOG.warning("%s", line)
        if self.app.options.verbose_level > 0:
            self.app.stdout.write(guests_lines.well(said) + "\n")


def _records(asked: argparse.Namespace) -> list[Any]:
    fields = {name: getattr(asked, name) for name in ("detail", "reason", "disk", "path")}
    given = {name: value for name, value in fields.items() if value}
    if asked.event:
        if asked.record:
            raise InvalidInput("an event is described by options or by JSON, not by both")
        return [{"kind": asked.event, **given}]
    if not asked.record or given:
        raise InvalidInput("say what happens: --event KIND, or an event as JSON")
    found = []
    for number, line in enumerate(_lines(asked.record), 1):
        try:
            if line.strip():
                found.append(json.loads(line))
        except (ValueError, RecursionError) as error:
            raise InvalidInput(f"line {number} is no JSON: {error}") from error
    return found


def _lines(said: str) -> Sequence[str]:
    if said.lstrip().startswith("{"):
        return [said]
    try:
        if said == "-":
            return sys.stdin.read().splitlines()
        with open(said, encoding="utf-8") as file:
            return file.read().splitlines()
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{said} is not UTF-8: record it as lines of JSON") from error
    except OSError as error:
        raise InvalidInput(f"cannot read {said}: {error.strerror}") from error


@typed
def _seconds(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 < found < float("inf"):
        raise ValueError(f"{text!r} is no time: write seconds, more than 0")
    return found
