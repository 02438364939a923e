# SPDX-License-Identifier: Apache-2.0
"""`holdfast rules test`: what alarm rules would have made of recorded samples or of the last hour
of hosts, or make of now."""

import argparse
from typing import Any

from holdfast.client import admin
from holdfast.client.agents import Agents
from holdfast.client.commands import ListCommand, Table, rows
from holdfast.client.commands.matrix import listed
from holdfast.cmd.guests_live import Asking
from holdfast.cmd.rules import read_text
from holdfast.model import alarm_rules_file
from holdfast.model.alarm_rules import BadRules, RuleSet
from holdfast.model.errors import InvalidInput
from holdfast.model.host import normalise
from holdfast.watch.alarms import record
from holdfast.watch.alarms.change import Change

_CHANGE = ("at", "rule", "on", "name", "before", "state", "value", "threshold", "reason")
_TOLD = ("at", "event", "rule", "on", "name", "project", "severity", "value", "threshold")
_HOUR = ("at", "host", "rule", "on", "name", "before", "state", "value", "threshold", "reason")
_TRIAL = ("rule", "selected", "holds", "unknown")


class Test(Asking, ListCommand):
    """Replay recorded samples through a file of alarm rules, and show how alarms would change.

    A recording has one JSON object to a line, each a pass: `holdfast metrics record` writes one,
    docs/alarms.md says what is in it. No server is asked. With --told, what would leave the host:
    grouped, damped, and capped in a storm. Without a recording the agent of this machine is asked
    what the rules make of its last pass: how many each is about, for how many it holds, of how
    many it cannot be known. Nothing is changed.
    With --host, the last hour of that host as it is known centrally: its agent sends it while
    somebody looks, which is said by this, so that the first time it is there ten seconds later.
    """

    example = """  holdfast rules test alarms.yaml monday.jsonl
  holdfast rules test alarms.yaml monday.jsonl --told -f json
  holdfast rules test alarms.yaml
  holdfast rules test alarms.yaml --host cmp-07"""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("file", help="alarm rules in YAML or JSON")
        parser.add_argument("recording", nargs="?", help="of `holdfast metrics record`")
        parser.add_argument(
            "--host", action="append", default=[], metavar="NAME", help="on its last hour"
        )
        parser.add_argument("--told", action="store_true", help="only what would be told")
        parser.add_argument(
            "--group", action="append", default=[], metavar="NAME", help="that the host is in"
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        args = parsed_args
        rules = rules_of(args.file)
        if args.host:
            return self._looked_back(args)
        if args.recording is None:
            said = {"text": read_text(args.file)}
            found = admin.ask(self.place(args), "metrics.rules.test", said)
            return rows(_TRIAL, found["trials"])
        return self._replayed(args, rules)

    def _looked_back(self, args: argparse.Namespace) -> Table:
        if args.recording is not None or args.told or args.group:
            raise InvalidInput("--host goes with neither a recording nor --told nor --group")
        agents = Agents(self.client.wire)
        for host in args.host:
            agents.want_samples(host)
        seen = self.client.alarm_rules.preview(read_text(args.file), args.host)
        for host in sorted({*map(normalise, args.host)} - {*seen["hosts"]}):
            self.say(f"{host}: nothing is known yet; its agent was asked, try again in 10 s")
        for rule, lacks in seen["silent"].items():
            self.say(f"{rule}: nothing can be said, {', '.join(lacks)} is not kept for an hour")
        if seen["hosts"] and not seen["stories"]:
            self.say("nothing would have changed: no rule held for any of it")
        return rows(_HOUR, [row for one in seen["stories"] for row in _story(one)])

    def _replayed(self, args: argparse.Namespace, rules: RuleSet) -> Table:
        name, shown = args.recording, list[dict[str, Any]]()
        try:
            with open(name, encoding="utf-8") as file:
                for each in record.replay(record.read(file, name), rules, args.group):
                    told = [one for group in each.groups for one in group.changes]
                    shown += [_row(one) for one in (told if args.told else each.changes)]
        except UnicodeDecodeError as error:
            raise InvalidInput(f"{name} is not UTF-8: record it as lines of JSON") from error
        except OSError as error:
            raise InvalidInput(f"cannot read {name}: {error.strerror}") from error
        if not shown:
            self.say("nothing would change: no rule holds for any of it")
        return rows(_TOLD if args.told else _CHANGE, shown)


def _story(one: dict[str, Any]) -> list[dict[str, Any]]:
    about = {"host": one["host"], "rule": one["rule"], "on": one["kind"], "name": one["name"]}
    return [
        {**about, **each, "value": "" if each["value"] is None else round(each["value"], 6)}
        for each in one["changes"]
    ]


def rules_of(name: str) -> RuleSet:
    try:
        return alarm_rules_file.parse(read_text(name), name)
    except BadRules as error:
        raise InvalidInput("\n".join(listed(name, error))) from error


def _row(one: Change) -> dict[str, Any]:
    return {
        "at": one.at.isoformat(),
        "event": one.event,
        "rule": one.rule,
        "on": one.kind,
        "name": one.name or one.entity,
        "project": one.project,
        "severity": one.severity,
        "before": one.before,
        "state": one.state,
        "value": "" if one.value is None else round(one.value, 6),
        "threshold": one.threshold,
        "reason": one.reason,
    }
