# SPDX-License-Identifier: Apache-2.0
"""holdfast maintenance add | list | remove"""

import argparse
from typing import Any

from holdfast import cli
from holdfast.cli import ActOnEach, ListObjects, ShowCommand, Table, arg, either, one, values
from holdfast.cli.repair import Wrapped
from holdfast.client import dates
from holdfast.client.client import Object, Objects, given
from holdfast.model.incident import WORK

MATCHER = (
    arg("--host", help="a host, and guests on it; by name, short or full"),
    arg("--segment", metavar="NAME|ID", help="everything in this segment"),
    arg("--server", metavar="ID", help="a guest"),
    arg("--kind", choices=sorted(WORK), help="only hosts, guests or processes"),
)


class Add(ShowCommand):
    """Add a maintenance window: Holdfast notes failures in the window and does not recover them.

    All given options must match. A maintenance window ends by itself, after 30 days at most.
    Without --host, --segment, --server and --kind it would cover everything: use `holdfast
    recovery pause` instead.
    """

    example = """  holdfast maintenance add --host cmp-07 --for 2h --reason 'new memory'
  holdfast maintenance add --segment north --kind guest --from '2027-01-31 18:00' --for 4h \\
      --reason 'guests are being patched'"""
    notes = (cli.DATES,)
    arguments = (
        *MATCHER,
        arg("--from", dest="starts", type=cli.date, metavar="DATE", help="default: now"),
        either(
            arg("--for", dest="lasts", type=cli.span, metavar="LENGTH", help="2h, 1d"),
            arg("--until", type=cli.date, metavar="DATE", help="when it ends"),
            required=True,
        ),
        arg("--reason", required=True, metavar="TEXT", help="why; shown to those who ask"),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        matcher = {name: value for name, value in values(MATCHER, parsed_args).items() if value}
        if not matcher:
            self.parser.error(
                "say what is under maintenance: --host, --segment, --server or --kind"
            )
        try:
            when = _when(parsed_args)
        except ValueError as error:
            self.parser.error(str(error))
        return one(_row(self.client.maintenance.add(matcher, parsed_args.reason, **when)))


def _when(args: argparse.Namespace) -> dict[str, Any]:
    now, lasts = dates.now(), args.lasts
    when = {
        "starts_at": args.starts and args.starts.at(now).isoformat(),
        "expires_at": args.until and args.until.at(now).isoformat(),
        "duration_s": None if lasts is None else int(lasts.total_seconds()),
    }
    return given(when)


class List(ListObjects):
    """List maintenance windows, current and future."""

    example = "  holdfast maintenance list"
    columns = ("id", "what", "starts_at", "expires_at", "author", "reason")

    def fetch(self, args: argparse.Namespace, wanted: Object) -> Objects:
        return self.client.maintenance.list()

    def row(self, found: Object) -> Object:
        return {**_row(found), "reason": Wrapped(found["reason"])}


class Remove(ActOnEach):
    """End maintenance windows early."""

    example = "  holdfast maintenance remove 9b1e54b0-5c1a-4b9e-9a6f-1d2c3e4f5a6b"
    arguments = (arg("refs", nargs="+", metavar="window", help="its id"),)

    def act(self, ref: str, args: argparse.Namespace) -> str:
        self.client.maintenance.remove(ref)
        return f"maintenance window {ref} removed"


def _row(window: Object) -> Object:
    """Replace the matcher by text: host=cmp-07, segment=north"""
    matcher = dict(window["matcher"])
    if "segment" in matcher and window["segment"]:
        matcher["segment"] = window["segment"]
    what = ", ".join(f"{name}={value}" for name, value in sorted(matcher.items()))
    kept = {name: window[name] for name in window if name not in ("matcher", "segment")}
    return {"id": kept.pop("id"), "what": what, **kept}
