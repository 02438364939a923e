# SPDX-License-Identifier: Apache-2.0
"""holdfast monitor list | register | unregister"""

import argparse
import sys
from collections.abc import Iterator
from typing import Any

from holdfast.cli import Base, ListCommand, Table, rows
from holdfast.cli.host import Sights

COLUMNS = (
    "observer",
    "registered",
    "kind",
    "fresh",
    "seen_at",
    "networks",
    "hosts",
    "strategy",
    "trouble",
)


class List(ListCommand):
    """List the host monitors: which are registered, when each was last heard of, and whether it
    sees at all.

    Only registered monitors vote: `holdfast monitor register`. A network on which a monitor is
    blind is ○, with the reason: it then says nothing of hosts there. One that is not fresh has
    fallen silent and is not counted. Trouble is what somebody has to change: a monitor that is not
    registered, a Consul cluster with fewer than 3 servers, a strategy file that cannot be used,
    reports that are not delivered.
    """

    example = """  holdfast monitor list
  holdfast monitor list -f json -c observer -c fresh"""

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        return rows(COLUMNS, map(_row, self.client.monitors.list()))


class Register(Base):
    """Register a host monitor, so that it votes, and print its token.

    The token goes into the file that the monitor's [hostmonitor] token_file names. It is good for
    this name alone, and no other credential speaks under it any more. Registering a monitor again
    prints the same token. Where 3 or more monitors are registered, 2 must say that a host failed.
    """

    example = "  holdfast monitor register ctl-1 > ctl-1.token"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("observer", metavar="NAME", help="its [hostmonitor] name, or hostname")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        sys.stdout.write(f"{self.client.monitors.register(parsed_args.observer)}\n")


class Unregister(Base):
    """Unregister host monitors: they vote no more, and their tokens are refused."""

    example = "  holdfast monitor unregister ctl-3"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("observers", nargs="+", metavar="NAME", help="as `monitor list` has it")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        def do(observer: str) -> None:
            self.client.monitors.unregister(observer)
            self.say(f"monitor {observer} unregistered")

        self.each(parsed_args.observers, do)


def _row(monitor: dict[str, Any]) -> dict[str, Any]:
    return {
        **monitor,
        "networks": Sights(monitor["networks"]) if monitor["networks"] else "",
        "strategy": monitor["strategy_source"],
        "trouble": "; ".join(_troubles(monitor)),
    }


def _troubles(monitor: dict[str, Any]) -> Iterator[str]:
    """What somebody has to look after."""
    if monitor.get("hint"):
        yield monitor["hint"]
    for name, sight in monitor["networks"].items():
        if sight.get("warning"):
            yield f"{name}: {sight['warning']}"
    if monitor.get("problem"):
        yield monitor["problem"]
    if monitor.get("waiting"):
        yield f"{monitor['waiting']} reports wait to be delivered"
    if monitor.get("parked"):
        yield f"{monitor['parked']} reports were not taken, see its log"
