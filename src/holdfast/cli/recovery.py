# SPDX-License-Identifier: Apache-2.0
"""holdfast recovery pause | resume | approve, holdfast maintenance add | list | remove"""

import argparse
from datetime import timedelta
from typing import Any

from holdfast import cli
from holdfast.cli import (
    ActOnEach,
    Argument,
    Base,
    ListObjects,
    Moment,
    ShowCommand,
    Table,
    arg,
    either,
    one,
    typed,
    values,
)
from holdfast.cli.repair import Wrapped
from holdfast.client import dates
from holdfast.client.client import Object, Objects, given
from holdfast.model.incident import WORK

FOREVER = "forever"


def paused_line(pause: dict[str, Any]) -> str:
    """Format the notice of a pause, which every list of incidents shows."""
    name = pause["segment"] or pause["segment_id"]
    where = f"in segment {name}" if name else "everywhere"
    until = pause["expires_at"]
    lasts = f"until {Moment(until).human_readable()}" if until else "until it is resumed"
    option = f" --segment {name}" if name else ""
    return (
        f"RECOVERY IS PAUSED {where}, by {pause['author']}, {lasts}: {pause['reason']}"
        f" (end it: holdfast recovery resume{option})"
    )


@typed
def _lasts(text: str) -> timedelta | None:
    return None if text == FOREVER else dates.span(text)


def reason(*, required: bool = True) -> Argument:
    return arg(
        "--reason",
        metavar="TEXT",
        required=required,
        default="",
        help="why; the audit log keeps the reason",
    )


class Pause(Base):
    """Pause recovery, everywhere or in a segment: Holdfast starts nothing new.

    Holdfast still accepts and keeps reports, and finishes moves of servers already under way.
    The pause takes effect at once, even while managers or the broker are down. A new pause of
    the same place replaces the old one.
    """

    example = """  holdfast recovery pause --reason 'core switch is being replaced'
  holdfast recovery pause --segment north --for 4h --reason 'power test in north'
  holdfast recovery pause --for forever --reason 'until the fences are trusted'"""
    arguments = (
        arg("--segment", metavar="NAME|ID", help="only there; default: everywhere"),
        arg(
            "--for",
            dest="lasts",
            type=_lasts,
            default=timedelta(hours=1),
            metavar="LENGTH",
            help="45s, 30m, 2h, 1d, or forever: until it is resumed; default: 1h",
        ),
        reason(),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        args = parsed_args
        made = self.client.pauses.pause(args.reason, segment=args.segment or "", lasts=args.lasts)
        self.say(paused_line(made))


class Resume(Base):
    """Resume recovery: Holdfast checks waiting incidents again at once."""

    example = """  holdfast recovery resume
  holdfast recovery resume --segment north"""
    arguments = (arg("--segment", metavar="NAME|ID", help="there; default: everywhere"),)

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        self.client.pauses.resume(segment=parsed_args.segment or "")
        where = f"in segment {parsed_args.segment}" if parsed_args.segment else "everywhere"
        self.say(f"recovery is no longer paused {where}")
        for pause in self.client.pauses.list():
            self.say(paused_line(pause))


class Approve(Base):
    """Confirm that a mass failure is real: recovery held by the mass-failure guard continues.

    The approval lasts an hour, for the recovery of hosts and the repair of reservations alike.
    """

    example = (
        """  holdfast recovery approve --domain rack-b --reason 'rack-b has no power until noon'"""
    )
    arguments = (
        arg(
            "--domain", metavar="RACK|ZONE", help="only there; default: wherever something is held"
        ),
        reason(),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        args = parsed_args
        made = self.client.incidents.approve(args.reason, args.domain or "")
        where = f"in {made['domain']}" if made["domain"] else "everywhere"
        until = f"{made['expires_at'][:19].replace('T', ' ')} UTC"
        held = made["held"]
        incidents = "1 held incident is" if held == 1 else f"{held} held incidents are"
        self.say(f"approved {where} until {until}; {incidents} asked again")


# Maintenance windows


MATCHER = (
    arg("--host", help="a host, and guests on it; by name, short or full"),
    arg("--segment", metavar="NAME|ID", help="everything in this segment"),
    arg("--server", metavar="ID", help="a guest"),
    arg("--kind", choices=sorted(WORK), help="only hosts, guests or processes"),
)


class AddMaintenance(ShowCommand):
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
        arg("--reason", required=True, metavar="TEXT", help="why; shown with the window"),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        matcher = {name: value for name, value in values(MATCHER, parsed_args).items() if value}
        if not matcher:
            self.parser.error("name the scope of the window: --host, --segment, --server or --kind")
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


class ListMaintenance(ListObjects):
    """List maintenance windows, current and future."""

    example = "  holdfast maintenance list"
    columns = ("id", "what", "starts_at", "expires_at", "author", "reason")

    def fetch(self, args: argparse.Namespace, wanted: Object) -> Objects:
        return self.client.maintenance.list()

    def row(self, window: Object) -> Object:
        return {**_row(window), "reason": Wrapped(window["reason"])}


class RemoveMaintenance(ActOnEach):
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
    matched = ", ".join(f"{name}={value}" for name, value in sorted(matcher.items()))
    rest = {name: window[name] for name in window if name not in ("matcher", "segment")}
    return {"id": rest.pop("id"), "what": matched, **rest}
