# SPDX-License-Identifier: Apache-2.0
"""holdfast recovery pause | resume | approve"""

import argparse
from datetime import timedelta
from typing import Any

from holdfast.cli import Argument, Base, Moment, arg, typed
from holdfast.client import dates

FOREVER = "forever"


def paused_line(pause: dict[str, Any]) -> str:
    """Format the notice of a pause, which every list of incidents shows."""
    name = pause["segment"] or pause["segment_id"]
    where = f"in segment {name}" if name else "everywhere"
    until = pause["expires_at"]
    lasts = f"until {Moment(until).human_readable()} UTC" if until else "until it is resumed"
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
        help="why; it is kept, and shown to those who ask",
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
