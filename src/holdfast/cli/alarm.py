# SPDX-License-Identifier: Apache-2.0
"""holdfast alarm list | show | ack | mute | end"""

import argparse
from datetime import timedelta

from holdfast import cli
from holdfast.cli import ListObjects, ShowObject, arg, either
from holdfast.client.client import Object, Objects

ALARM = arg("ref", metavar="alarm", help="its id")
STATES = ("firing", "no_data", "ok")


class List(ListObjects):
    """List the current alarms, newest first.

    You see the alarms of your project's servers; administrators see the alarms of all hosts and
    servers.
    """

    example = """  holdfast alarm list
  holdfast alarm list --host cmp-07 --all"""
    columns = (
        *("id", "severity", "state", "rule", "host", "name", "value", "threshold", "fired_at"),
        *("acked_by", "muted_until"),
    )
    filters = (
        arg("--host", help="seen on this host"),
        arg("--rule", metavar="ID", help="of this rule"),
        arg("--project", metavar="ID", help="of this project's servers; for administrators"),
        arg("--state", choices=STATES, help="only in this state"),
        arg("--all", action="store_true", help="also those that are over"),
        arg("--limit", type=int, metavar="N", help="maximum number of rows; default: 100"),
    )
    most = 100

    def fetch(self, args: argparse.Namespace, wanted: Object) -> Objects:
        return self.client.alarms.list(**wanted)


class Show(ShowObject):
    """Show an alarm, with all details from the agent."""

    example = "  holdfast alarm show 9b1e54b0-5c1a-4b9e-9a6f-1d2c3e4f5a6b"
    arguments = (ALARM,)

    def fetch(self, ref: str, args: argparse.Namespace) -> Object:
        return self.client.alarms.show(ref)


class Ack(ShowObject):
    """Acknowledge an alarm: Holdfast sends no more notifications until the alarm is over."""

    example = "  holdfast alarm ack 9b1e54b0-5c1a-4b9e-9a6f-1d2c3e4f5a6b"
    arguments = (ALARM,)

    def fetch(self, ref: str, args: argparse.Namespace) -> Object:
        return self.client.alarms.acknowledge(ref)


class Mute(ShowObject):
    """Mute an alarm for a while.

    Holdfast sends no notifications and runs no actions for the alarm, nor for the next alarms
    of the same rule about the same entity. If an alarm still lasts after the mute, Holdfast
    sends the notification and runs the actions.
    """

    example = """  holdfast alarm mute 9b1e54b0-5c1a-4b9e-9a6f-1d2c3e4f5a6b --for 4h
  holdfast alarm mute 9b1e54b0-5c1a-4b9e-9a6f-1d2c3e4f5a6b --end"""
    arguments = (
        ALARM,
        either(
            arg("--for", dest="lasts", type=cli.span, metavar="LENGTH", help="2h, 1d"),
            arg("--end", action="store_true", help="send its notifications again"),
            required=True,
        ),
    )

    def fetch(self, ref: str, args: argparse.Namespace) -> Object:
        return self.client.alarms.mute(ref, timedelta() if args.end else args.lasts)


class End(ShowObject):
    """End an alarm that its agent does not end, for example of a removed host.

    Holdfast notifies the recipients of the alarm, closes its incident, and lets the host be
    used again. An agent that still reports the alarm raises it again.
    """

    example = "  holdfast alarm end 9b1e54b0-5c1a-4b9e-9a6f-1d2c3e4f5a6b"
    arguments = (ALARM,)

    def fetch(self, ref: str, args: argparse.Namespace) -> Object:
        return self.client.alarms.end(ref)
