# SPDX-License-Identifier: Apache-2.0
"""holdfast alarm list | show | ack | mute | end"""

import argparse
from datetime import timedelta

from holdfast import cli
from holdfast.cli import ListCommand, ShowCommand, Table, one, rows

COLUMNS = (
    *("id", "severity", "state", "rule", "host", "name", "value", "threshold", "fired_at"),
    *("acked_by", "silent_until"),
)
STATES = ("firing", "no_data", "ok")


class List(ListCommand):
    """List the current alarms, newest first.

    You see the alarms of your project's servers; administrators see the alarms of all hosts and
    servers.
    """

    example = """  holdfast alarm list
  holdfast alarm list --host cmp-07 --all"""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        add = parser.add_argument
        add("--host", help="seen on this host")
        add("--rule", metavar="ID", help="of this rule")
        add("--project", metavar="ID", help="of this project's servers; for administrators")
        add("--state", choices=STATES, help="only in this state")
        add("--all", action="store_true", help="also those that are over")
        add("--limit", type=int, metavar="N", help="so many at most; default: 100")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        names = ("host", "rule", "project", "state", "all", "limit")
        wanted = {name: getattr(parsed_args, name) for name in names}
        return rows(COLUMNS, self.client.alarms.list(**wanted))


class _One(ShowCommand):
    """A command for a single alarm."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("alarm", help="its id")
        return parser


class Show(_One):
    """Show an alarm, with all details from the agent."""

    example = "  holdfast alarm show 9b1e54b0-5c1a-4b9e-9a6f-1d2c3e4f5a6b"

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        return one(self.client.alarms.show(parsed_args.alarm))


class Ack(_One):
    """Acknowledge an alarm: Holdfast sends no more notifications until the alarm is over."""

    example = "  holdfast alarm ack 9b1e54b0-5c1a-4b9e-9a6f-1d2c3e4f5a6b"

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        return one(self.client.alarms.acknowledge(parsed_args.alarm))


class Mute(_One):
    """Mute an alarm for a while.

    Holdfast sends no notifications and runs no actions for the alarm, nor for the next alarms
    of the same rule about the same entity. If an alarm still lasts after the mute, Holdfast
    sends the notification and runs the actions.
    """

    example = """  holdfast alarm mute 9b1e54b0-5c1a-4b9e-9a6f-1d2c3e4f5a6b --for 4h
  holdfast alarm mute 9b1e54b0-5c1a-4b9e-9a6f-1d2c3e4f5a6b --end"""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        end = parser.add_mutually_exclusive_group(required=True)
        end.add_argument("--for", dest="lasts", type=cli.span, metavar="LENGTH", help="2h, 1d")
        end.add_argument("--end", action="store_true", help="let it be told again")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        lasts = timedelta() if parsed_args.end else parsed_args.lasts
        return one(self.client.alarms.mute(parsed_args.alarm, lasts))


class End(_One):
    """End an alarm that its agent does not end, for example of a removed host.

    Holdfast notifies the recipients of the alarm, closes its incident, and lets the host be
    used again. An agent that still reports the alarm raises it again.
    """

    example = "  holdfast alarm end 9b1e54b0-5c1a-4b9e-9a6f-1d2c3e4f5a6b"

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        return one(self.client.alarms.end(parsed_args.alarm))
