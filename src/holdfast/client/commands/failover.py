# SPDX-License-Identifier: Apache-2.0
"""holdfast failover, holdfast failover set"""

import argparse

from holdfast.client.commands import ListCommand, ShowCommand, Table, one, rows, typed
from holdfast.client.commands.repair import Wrapped

COLUMNS = (
    "segment",
    "kept",
    "members",
    "enrolled",
    "usable",
    "free",
    "least_free",
    "least_free_at",
    "short",
    "why",
)


@typed
def _number(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"{text!r} is not a number: write 0 or more")
    return int(text)


class List(ListCommand):
    """Show what each segment keeps free for the case that hosts fail, and whether it has it.

    `usable` hosts are enrolled, not failed and not on maintenance; `free` of them nobody holds now,
    `least_free` at the worst moment of the next 30 days. With --fail-on-short the command ends with
    1 if a segment has, or will have, fewer than it keeps.
    """

    example = """  holdfast failover
  holdfast failover --fail-on-short --quiet || mail -s 'spare hosts are short' ops"""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument(
            "--fail-on-short", action="store_true", help="end with 1 if any segment is short"
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        found = self.client.failover.list()
        if parsed_args.fail_on_short and any(each["short"] for each in found):
            self.exit_code = 1
        return rows(COLUMNS, ({**each, "why": Wrapped(each["why"] or "")} for each in found))


class Set(ShowCommand):
    """Say how many hosts of a segment may fail: so many are kept free at every booking.

    What is booked already stays. Repair and recovery may use what is kept; 0 keeps nothing.
    """

    example = "  holdfast failover set north 2"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("segment", help="name or id")
        parser.add_argument("hosts", type=_number, help="how many are kept free")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        known = self.client.failover.find(parsed_args.segment)
        return one(self.client.failover.keep(known["segment_id"], parsed_args.hosts))
