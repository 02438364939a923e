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
    """List the host monitors: registered or not, last contact, and visible networks.

    Only registered monitors vote: `holdfast monitor register`. A network that a monitor cannot
    observe is ○, with the reason: the monitor then makes no statement about hosts there. A
    monitor that is not fresh has fallen silent and does not count. `trouble` is what an
    operator has to fix: a monitor that is not registered, a Consul cluster with fewer than 3
    servers, an unusable HA matrix file, undelivered reports.
    """

    example = """  holdfast monitor list
  holdfast monitor list -f json -c observer -c fresh"""

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        return rows(COLUMNS, map(_row, self.client.monitors.list()))


class Register(Base):
    """Register a host monitor as a voter, and print its token.

    The token goes into the file in the monitor's [hostmonitor] token_file. It is valid for this
    name only, and no other credential may report under this name any more. Registering a
    monitor again prints the same token. With 3 or more registered monitors, 2 must report a
    host as failed.
    """

    example = "  holdfast monitor register ctl-1 > ctl-1.token"

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("observer", metavar="NAME", help="its [hostmonitor] name, or hostname")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        sys.stdout.write(f"{self.client.monitors.register(parsed_args.observer)}\n")


class Unregister(Base):
    """Unregister host monitors: they no longer vote, and the API refuses their tokens."""

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
    """Yield the problems of a monitor that an operator has to fix."""
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
