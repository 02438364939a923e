# SPDX-License-Identifier: Apache-2.0
"""`holdfast rule list | show | set | rollback | delete | test`: central alarm rules, and the rules
in force on this machine."""

import argparse
from collections.abc import Mapping
from typing import Any

from holdfast.alarms import preview, rules_file
from holdfast.alarms.rules import RuleSet
from holdfast.alarms.tracks import Change
from holdfast.cli import (
    ActOnEach,
    ListCommand,
    ShowCommand,
    Table,
    arg,
    one,
    reading,
    rows,
)
from holdfast.cli.guest import RECORDING, AgentCommand
from holdfast.client import admin
from holdfast.client.errors import BadRequest
from holdfast.model.errors import InvalidInput
from holdfast.model.host import normalise
from holdfast.runtime.documents import MAX_BYTES

_DOCUMENT = ("name", "scope", "version", "rules", "author", "created_at")
_HOST = ("host", "fresh", "in_force", "central", "wanted", "error")
_RULE = ("id", "source", "on", "field", "when", "for_s", "severity", "actions")


class List(AgentCommand, ListCommand):
    """List the central documents of alarm rules, or the rules of hosts.

    With --hosts, the list holds every host whose agent has reported: `central` is the version
    of the central rules on the host, `wanted` the version it should have; `error` says why it
    has not. With --here, the list holds the rules in force on this machine, and their source:
    `file` or `central`.
    """

    example = """  holdfast rule list
  holdfast rule list --hosts
  holdfast rule list --here"""
    arguments = (
        *AgentCommand.arguments,
        arg("--here", action="store_true", help="list the rules of the agent on this machine"),
        arg("--hosts", action="store_true", help="list the rules of each host instead"),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        if parsed_args.here:
            return self._here(parsed_args)
        if parsed_args.hosts:
            agents = self.client.agents.list()
            return rows(_HOST, [{**agent, **_held(agent["rules"])} for agent in agents])
        return rows(_DOCUMENT, self.client.alarm_rules.list())

    def _here(self, args: argparse.Namespace) -> Table:
        answer = admin.ask(self.place(args), "metrics.rules.list")
        self.note(args, f"rules {answer['version']} are in force")
        for source in answer["sources"]:
            if source["error"]:
                self.note(args, f"refused from {source['source']}: {source['error']}")
        return rows(_RULE, answer["rules"])


class Show(ShowCommand):
    """Show a document of alarm rules, current or an older version.

    With --history, the command shows its versions; with --host, the merged rules for this host.
    """

    example = """  holdfast rule show base
  holdfast rule show base --at 3 -f value -c text
  holdfast rule show --host cmp-07"""
    arguments = (
        arg("name", nargs="?", help="of the document"),
        arg("--at", type=int, metavar="VERSION", help="show this version"),
        arg("--history", action="store_true", help="list the versions"),
        arg("--host", help="merged rules of this host"),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        args, client = parsed_args, self.client
        if bool(args.name) == bool(args.host):
            self.parser.error("name a document, or a host with --host")
        if args.host:
            return one(client.agents.rules(args.host))
        if args.history:
            versions = client.alarm_rules.history(args.name)
            return one({f"version {each['version']}": _past(each) for each in versions})
        return one(client.alarm_rules.show(args.name, args.at))


class Set(ShowCommand):
    """Create or replace a document of alarm rules; hosts apply it within a heartbeat.

    Holdfast checks the document first: on errors it lists them with their lines, and nothing
    changes. Rules of a host override rules of a group, and these override rules for all; rules
    of a project are added. To change the rules of a single host, use `--scope host:NAME`, or
    the host's own rules file ([metrics] rules_file).
    """

    example = """  holdfast rule set base alarms.yaml
  holdfast rule set gpus gpu.yaml --scope group:gpu
  holdfast rule set cmp-07 one-host.yaml --scope host:cmp-07"""
    arguments = (
        arg("name", help="of the document"),
        arg("file", help="alarm rules in YAML or JSON"),
        arg("--scope", metavar="SCOPE", help="all, host:NAME, group:NAME or project:ID"),
        arg("--replaces", type=int, metavar="N", help="refuse if the current version is another"),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        args = parsed_args
        text = read_text(args.file)
        more = {"scope": args.scope, "replaces": args.replaces}
        given = {name: value for name, value in more.items() if value is not None}
        try:
            return one(self.client.alarm_rules.set(args.name, text, **given))
        except BadRequest as error:
            raise InvalidInput(_problems(args.file, error)) from error


class Rollback(ShowCommand):
    """Roll back a document of alarm rules to the previous or any version."""

    example = """  holdfast rule rollback base
  holdfast rule rollback base --to 3"""
    arguments = (
        arg("name", help="of the document"),
        arg(
            "--to", type=int, metavar="N", help="version to restore; default: the previous version"
        ),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        return one(self.client.alarm_rules.roll_back(parsed_args.name, parsed_args.to))


class Delete(ActOnEach):
    """Delete documents of alarm rules. `holdfast rule rollback` restores a document."""

    example = "  holdfast rule delete gpus"
    arguments = (arg("refs", nargs="+", metavar="name", help="of the document"),)

    def act(self, ref: str, args: argparse.Namespace) -> str:
        self.client.alarm_rules.delete(ref)
        return f"rules {ref} deleted"


def read_text(name: str) -> str:
    with reading(name), open(name, "rb") as file:
        return file.read(MAX_BYTES + 1).decode()


def _held(rules: Mapping[str, Any]) -> dict[str, Any]:
    return {"in_force": rules["version"], **{k: rules[k] for k in ("central", "wanted", "error")}}


def _past(row: Mapping[str, Any]) -> str:
    change = "deleted" if row["removed"] else row["scope"]
    return f"{row['created_at']} by {row['author']}: {change}"


def _problems(file: str, error: BadRequest) -> str:
    """Format all problems, a line each; other errors as the server sent them."""
    problems = error.details.get("problems")
    if not isinstance(problems, list):
        return error.message
    return "\n".join(f"{file}:{problem['line']}: {problem['text']}" for problem in problems)


# holdfast rule test: evaluates alarm rules on recorded samples, on the last hour of hosts, or
# on the current values


_CHANGE = ("at", "rule", "on", "name", "before", "state", "value", "threshold", "reason")
_NOTIFICATION = ("at", "event", "rule", "on", "name", "project", "severity", "value", "threshold")
_HOUR = ("at", "host", "rule", "on", "name", "before", "state", "value", "threshold", "reason")
_TRIAL = ("rule", "selected", "holds", "unknown")


class Test(AgentCommand, ListCommand):
    """Replay recorded samples through a file of alarm rules, and show how alarms would change.

    A recording has a JSON object per line, each a pass: `holdfast metric record` writes it,
    docs/concepts/alarms.md describes it. The command asks no server. With --notifications, it
    shows the notifications that would leave the host: grouped, damped, and capped in a storm.

    Without a recording the command asks the agent on this machine to evaluate the rules on its
    last pass: how many entities each rule selects, for how many the rule holds, and for how
    many the result is unknown. Nothing is changed.

    With --host, the command uses the last hour of this host in the central store. An agent
    sends its samples only on request. This command requests them, so the first time they arrive
    ten seconds later.
    """

    example = """  holdfast rule test alarms.yaml monday.jsonl
  holdfast rule test alarms.yaml monday.jsonl --notifications -f json
  holdfast rule test alarms.yaml
  holdfast rule test alarms.yaml --host cmp-07"""
    arguments = (
        *AgentCommand.arguments,
        arg("file", help="alarm rules in YAML or JSON"),
        arg("recording", nargs="?", help="of `holdfast metric record`"),
        arg(
            "--host",
            action="append",
            default=[],
            metavar="NAME",
            help="evaluate the last hour of this host",
        ),
        arg(
            "--notifications",
            action="store_true",
            help="show notifications instead of alarm changes",
        ),
        arg("--group", action="append", default=[], metavar="NAME", help="group of the host"),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        args = parsed_args
        rules = rules_of(args.file)
        if args.host:
            return self._looked_back(args)
        if args.recording is None:
            given = {"text": read_text(args.file)}
            answer = admin.ask(self.place(args), "metrics.rules.test", given)
            return rows(_TRIAL, answer["trials"])
        return self._replayed(args, rules)

    def _looked_back(self, args: argparse.Namespace) -> Table:
        if args.recording is not None or args.notifications or args.group:
            raise InvalidInput(
                "--host goes with neither a recording nor --notifications nor --group"
            )
        agents = self.client.agents
        for host in args.host:
            agents.want_samples(host)
        seen = self.client.alarm_rules.preview(read_text(args.file), args.host)
        for host in sorted({*map(normalise, args.host)} - {*seen["hosts"]}):
            self.say(f"{host}: no samples yet; the manager has requested samples, retry in 10 s")
        for rule, lacks in seen["silent"].items():
            self.say(f"{rule}: no result, the store does not keep {', '.join(lacks)} for an hour")
        if seen["hosts"] and not seen["stories"]:
            self.say("no alarm would have changed: no rule held")
        return rows(_HOUR, [row for story in seen["stories"] for row in _story(story)])

    def _replayed(self, args: argparse.Namespace, rules: RuleSet) -> Table:
        name, shown = args.recording, list[dict[str, Any]]()
        with reading(name, RECORDING), open(name, encoding="utf-8") as file:
            for each in preview.replay(preview.read(file, name), rules, args.group):
                changes = [change for group in each.groups for change in group.changes]
                shown += [
                    _row(change) for change in (changes if args.notifications else each.changes)
                ]
        if not shown:
            self.say("no alarm would change: no rule holds")
        return rows(_NOTIFICATION if args.notifications else _CHANGE, shown)


def _story(story: dict[str, Any]) -> list[dict[str, Any]]:
    about = {
        "host": story["host"],
        "rule": story["rule"],
        "on": story["kind"],
        "name": story["name"],
    }
    return [
        {**about, **each, "value": "" if each["value"] is None else round(each["value"], 6)}
        for each in story["changes"]
    ]


def rules_of(name: str) -> RuleSet:
    with reading(name):
        return rules_file.parse(read_text(name), name)


def _row(change: Change) -> dict[str, Any]:
    return {
        "at": change.at.isoformat(),
        "event": change.event,
        "rule": change.rule,
        "on": change.kind,
        "name": change.name or change.entity,
        "project": change.project,
        "severity": change.severity,
        "before": change.before,
        "state": change.state,
        "value": "" if change.value is None else round(change.value, 6),
        "threshold": change.threshold,
        "reason": change.reason,
    }
