# SPDX-License-Identifier: Apache-2.0
"""holdfast maintenance add | list | remove"""

import argparse
from typing import Any

from holdfast import cli
from holdfast.cli import Base, ListCommand, ShowCommand, Table, one, rows
from holdfast.cli.repair import Wrapped
from holdfast.client import dates
from holdfast.model.incident import WORK

COLUMNS = ("id", "what", "starts_at", "expires_at", "author", "reason")


class Add(ShowCommand):
    """Add a maintenance window: Holdfast notes failures in the window and does not recover them.

    All given options must match. A maintenance window ends by itself, after 30 days at most.
    Without --host, --segment, --server and --kind it would cover everything: use `holdfast
    recovery pause` instead.
    """

    example = """  holdfast maintenance add --host cmp-07 --for 2h --reason 'new memory'
  holdfast maintenance add --segment north --kind guest --from '2027-01-31 18:00' --for 4h \\
      --reason 'guests are being patched'"""

    def get_epilog(self) -> str:
        return super().get_epilog() + "\n" + cli.DATES

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        add = parser.add_argument
        add("--host", help="a host, and guests on it; by name, short or full")
        add("--segment", metavar="NAME|ID", help="everything in this segment")
        add("--server", metavar="ID", help="a guest")
        add("--kind", choices=sorted(WORK), help="only hosts, guests or processes")
        add("--from", dest="starts", type=cli.date, metavar="DATE", help="default: now")
        end = parser.add_mutually_exclusive_group(required=True)
        end.add_argument("--for", dest="lasts", type=cli.span, metavar="LENGTH", help="2h, 1d")
        end.add_argument("--until", type=cli.date, metavar="DATE", help="when it ends")
        add("--reason", required=True, metavar="TEXT", help="why; shown to those who ask")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        args, now = parsed_args, dates.now()
        names = ("kind", "host", "segment", "server")
        matcher = {name: getattr(args, name) for name in names if getattr(args, name)}
        if not matcher:
            self.parser.error(
                "say what is under maintenance: --host, --segment, --server or --kind"
            )
        when: dict[str, Any] = {}
        try:
            if args.starts is not None:
                when["starts_at"] = args.starts.at(now).isoformat()
            if args.until is not None:
                when["expires_at"] = args.until.at(now).isoformat()
            else:
                when["duration_s"] = int(args.lasts.total_seconds())
        except ValueError as error:
            self.parser.error(str(error))
        return one(_row(self.client.maintenance.add(matcher, args.reason, **when)))


class List(ListCommand):
    """List maintenance windows, current and future."""

    example = "  holdfast maintenance list"

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        found = [_row(each) for each in self.client.maintenance.list()]
        return rows(COLUMNS, ({**each, "reason": Wrapped(each["reason"])} for each in found))


class Remove(Base):
    """End maintenance windows early."""

    example = "  holdfast maintenance remove 9b1e54b0-5c1a-4b9e-9a6f-1d2c3e4f5a6b"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("windows", nargs="+", metavar="window", help="its id")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        def do(ref: str) -> None:
            self.client.maintenance.remove(ref)
            self.say(f"maintenance window {ref} removed")

        self.each(parsed_args.windows, do)


def _row(window: dict[str, Any]) -> dict[str, Any]:
    """Replace the matcher by text: host=cmp-07, segment=north"""
    matcher = dict(window["matcher"])
    if "segment" in matcher and window["segment"]:
        matcher["segment"] = window["segment"]
    what = ", ".join(f"{name}={value}" for name, value in sorted(matcher.items()))
    kept = {name: window[name] for name in window if name not in ("matcher", "segment")}
    return {"id": kept.pop("id"), "what": what, **kept}
