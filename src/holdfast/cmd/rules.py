# SPDX-License-Identifier: Apache-2.0
"""`holdfast rules list | show | set | rollback | delete`: alarm rules, of the cloud or, with
--here, of the agent on this machine."""

import argparse
from collections.abc import Mapping
from typing import Any

from holdfast.client import admin
from holdfast.client.agents import Agents
from holdfast.client.commands import Base, ListCommand, ShowCommand, Table, one, rows
from holdfast.client.errors import BadRequest
from holdfast.cmd.guests_live import Asking
from holdfast.model.errors import InvalidInput
from holdfast.model.yaml_lines import MAX_BYTES

_DOCUMENT = ("name", "scope", "version", "rules", "author", "created_at")
_HOST = ("host", "fresh", "in_force", "central", "wanted", "error")
_RULE = ("id", "source", "on", "field", "when", "for_s", "severity", "actions")


class _Here(Asking):
    """One that also goes to the agent of this machine."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--here", action="store_true", help="of the agent on this machine, by its socket"
        )
        return parser

    def agent(self, args: argparse.Namespace, command: str, **said: Any) -> dict[str, Any]:
        return admin.ask(self.place(args), f"metrics.rules.{command}", said)


class List(_Here, ListCommand):
    """List the documents of alarm rules that are kept centrally, or by which rules hosts go.

    With --hosts, every host whose agent was heard of: `central` is the version of our rules that it
    holds, `wanted` the one that it should; `error` says why it does not. With --here, the rules
    that are in force on this machine, and whether the file, the centre or the socket brought them.
    """

    example = """  holdfast rules list
  holdfast rules list --hosts
  holdfast rules list --here"""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("--hosts", action="store_true", help="by host instead")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        if parsed_args.here:
            return self._here(parsed_args)
        if parsed_args.hosts:
            found = Agents(self.client.wire).list()
            return rows(_HOST, [{**each, **_held(each["rules"])} for each in found])
        return rows(_DOCUMENT, self.client.alarm_rules.list())

    def _here(self, args: argparse.Namespace) -> Table:
        said = self.agent(args, "list")
        before = said["before"]
        back = f"; `holdfast rules rollback --here` goes back to {before[0]}" if before else ""
        self.tell(args, f"rules {said['version']} are in force{back}")
        for source in said["sources"]:
            if source["error"]:
                self.tell(args, f"not taken from {source['source']}: {source['error']}")
        return rows(_RULE, said["rules"])


class Show(ShowCommand):
    """Show a document of alarm rules as it is, or as it was.

    With --history, its versions; with --host, what all documents together amount to on that host.
    """

    example = """  holdfast rules show base
  holdfast rules show base --at 3 -f value -c text
  holdfast rules show --host cmp-07"""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("name", nargs="?", help="of the document")
        parser.add_argument("--at", type=int, metavar="VERSION", help="as it was then")
        parser.add_argument("--history", action="store_true", help="which versions there are")
        parser.add_argument("--host", help="what holds for this host, merged")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        args, client = parsed_args, self.client
        if bool(args.name) == bool(args.host):
            self.parser.error("name a document, or a host with --host")
        if args.host:
            return one(Agents(client.wire).rules(args.host))
        if args.history:
            versions = client.alarm_rules.history(args.name)
            return one({f"version {each['version']}": _past(each) for each in versions})
        return one(client.alarm_rules.show(args.name, args.at))


class Set(_Here, ShowCommand):
    """Make or replace a document of alarm rules; hosts take it up within one heartbeat.

    It is checked first: what is wrong is listed with its lines, and nothing changes. Rules of a
    host count before those of a group, and these before those of all; a project's are added. With
    --here there is no name: the agent of this machine takes the file at once, above its own file
    and above what is kept centrally, until it is told otherwise (`rules: []` takes it back).
    """

    example = """  holdfast rules set base alarms.yaml
  holdfast rules set gpus gpu.yaml --scope group:gpu
  holdfast rules set --here test.yaml"""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("name", nargs="?", help="of the document")
        parser.add_argument("file", help="alarm rules in YAML or JSON")
        parser.add_argument(
            "--scope", metavar="SCOPE", help="all, host:NAME, group:NAME or project:ID"
        )
        parser.add_argument(
            "--replaces", type=int, metavar="N", help="only if it is still at this version"
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        args = parsed_args
        if bool(args.name) == args.here:
            self.parser.error("name the document, or use --here, which has none")
        text = read_text(args.file)
        if args.here:
            return one(self.agent(args, "set", text=text))
        more = {"scope": args.scope, "replaces": args.replaces}
        given = {name: value for name, value in more.items() if value is not None}
        try:
            return one(self.client.alarm_rules.set(args.name, text, **given))
        except BadRequest as error:
            raise InvalidInput(_problems(args.file, error)) from error


class Rollback(_Here, ShowCommand):
    """Go back to the alarm rules before these, or to any version of a document.

    With --here, the agent of this machine goes back to what was in force before, and stays there
    until its file or the centre says something new.
    """

    example = """  holdfast rules rollback base
  holdfast rules rollback base --to 3
  holdfast rules rollback --here"""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("name", nargs="?", help="of the document")
        parser.add_argument("--to", type=int, metavar="N", help="a version that it had")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        args = parsed_args
        if bool(args.name) == args.here or (args.here and args.to is not None):
            self.parser.error("name the document, or use --here alone")
        if args.here:
            return one(self.agent(args, "rollback"))
        return one(self.client.alarm_rules.roll_back(args.name, args.to))


class Delete(Base):
    """Take documents of alarm rules away. `holdfast rules rollback` brings one back."""

    example = "  holdfast rules delete gpus"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("names", nargs="+", metavar="name", help="of the document")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        def do(name: str) -> None:
            self.client.alarm_rules.delete(name)
            self.say(f"rules {name} deleted")

        self.each(parsed_args.names, do)


def read_text(name: str) -> str:
    try:
        with open(name, "rb") as file:
            return file.read(MAX_BYTES + 1).decode()
    except OSError as error:
        raise InvalidInput(f"cannot read {name}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{name} is not UTF-8: save it as plain text") from error


def _held(rules: Mapping[str, Any]) -> dict[str, Any]:
    return {"in_force": rules["version"], **{k: rules[k] for k in ("central", "wanted", "error")}}


def _past(row: Mapping[str, Any]) -> str:
    what = "taken away" if row["removed"] else row["scope"]
    return f"{row['created_at']} by {row['author']}: {what}"


def _problems(file: str, error: BadRequest) -> str:
    """All of them, a line for each; what else was wrong as the server said it."""
    found = error.details.get("problems")
    if not isinstance(found, list):
        return error.message
    return "\n".join(f"{file}:{one['line']}: {one['text']}" for one in found)
