# SPDX-License-Identifier: Apache-2.0
"""`holdfast guests filters`: what a filter file means, and what it would have made of a day."""

import argparse
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from holdfast.client.commands import ListCommand, Table, rows
from holdfast.client.commands.matrix import listed
from holdfast.model import guest_filter_file
from holdfast.model.errors import InvalidInput
from holdfast.model.guest_filter import BadFilter, Filter, Rule
from holdfast.model.yaml_lines import MAX_BYTES
from holdfast.watch import guest_record
from holdfast.watch.guests import Happening

_RULE = ("line", "event", "detail", "reason", "disk", "guest", "rate", "after_s", "do")
_TOLD = ("told_at", "guest", "state", "event", "detail", "reason", "disk", "rule")


class Check(ListCommand):
    """Check a filter file and list its rules in their order, without asking any server.

    What none of its rules fits is judged by the default set, whose rules follow; without a file
    these are all there is. What is wrong is listed with its lines, all of it, and the command ends
    with 1.
    """

    example = """  holdfast guests filters check
  holdfast guests filters check /etc/holdfast/guest-filters.yaml"""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("file", nargs="?", help="a filter file in YAML")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        filters = filters_of(parsed_args.file)
        if parsed_args.file:
            self.tell(parsed_args, f"{parsed_args.file} can be used; of its rules the first counts")
        return rows(_RULE, [_rule(rule) for rule in filters.rules])


class Test(ListCommand):
    """Replay what was recorded of guests through a filter file, and show what would be told.

    A recording has one JSON object to a line, each an event or a reading of all guests; see
    docs/guests.md. `failed` would be recovered, `noted` only told. Grace times go by the times in
    the recording.
    """

    example = """  holdfast guests filters test guest-filters.yaml monday.jsonl
  holdfast guests filters test default monday.jsonl -f json"""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("file", help="a filter file in YAML, or the word default")
        parser.add_argument("events", help="a recording, as lines of JSON")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        name = parsed_args.events
        filters = filters_of(None if parsed_args.file == "default" else parsed_args.file)
        try:
            with open(name, encoding="utf-8") as file:
                told = list(guest_record.replay(guest_record.read(file, name), filters))
        except UnicodeDecodeError as error:
            raise InvalidInput(f"{name} is not UTF-8: record it as lines of JSON") from error
        except OSError as error:
            raise InvalidInput(f"cannot read {name}: {error.strerror}") from error
        if not told:
            self.say("nothing would be told: all of it is ordinary, or ignored by a rule")
        return rows(_TOLD, [_told(at, one) for at, one in told])


def filters_of(name: str | None) -> Filter:
    """Of a file, or the default set."""
    if name is None:
        return guest_filter_file.default()
    try:
        with open(name, "rb") as file:
            return guest_filter_file.parse(file.read(MAX_BYTES + 1), name)
    except OSError as error:
        raise InvalidInput(f"cannot read {name}: {error.strerror}") from error
    except BadFilter as error:
        raise InvalidInput("\n".join(listed(name, error))) from error


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


def _told(at: datetime, one: Happening) -> dict[str, Any]:
    said = {name: one.evidence[name] for name in ("event", "detail", "reason", "disk", "rule")}
    return {"told_at": at.isoformat(), "guest": one.name, "state": one.state, **said}
