# SPDX-License-Identifier: Apache-2.0
"""holdfast host health"""

import argparse
from typing import Any

from holdfast.client.commands import Lines, ListCommand, Moment, Table, rows
from holdfast.client.commands.health_lines import Dots, State

COLUMNS = ("host", "health", "action", "since", "monitors")
OF_ONE = ("network", "state", "since", "seen_by")


class SeenBy(Lines):
    """ctl-1: down"""

    def line(self, value: Any) -> str:
        return f"{value['observer']}: {value['state']}"


class Health(ListCommand):
    """Show what the monitors see of hosts on each network: a dot each, ● up ○ down ◌ unknown.

    With a host, who sees what there. `action` is what the strategy says to that. Where monitors
    differ, what most of them see counts; `holdfast matrix explain HOST` tells what follows from it.
    """

    example = """  holdfast host health
  holdfast host health --bad
  holdfast host health cmp-07"""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser = super().get_parser(prog_name)
        parser.add_argument("host", nargs="?", help="only this one: name, short or full")
        parser.add_argument("--bad", action="store_true", help="those that are not up everywhere")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        if parsed_args.host is None:
            found = self.client.monitors.hosts(bad=parsed_args.bad)
            return rows(COLUMNS, map(_row, found))
        if parsed_args.bad:
            self.parser.error("--bad picks hosts: leave it out, or the host")
        one = self.client.monitors.host(parsed_args.host)
        self.tell(parsed_args, f"host {one['host']}: {one['sentence']}")
        return rows(OF_ONE, (_network(name, seen) for name, seen in one["networks"].items()))


def _row(found: dict[str, Any]) -> dict[str, Any]:
    return {**found, "health": Dots(found["health"]), "since": Moment(found["since"])}


def _network(name: str, seen: dict[str, Any]) -> dict[str, Any]:
    return {
        "network": name,
        "state": State(seen["state"]),
        "since": Moment(seen["since"]),
        "seen_by": SeenBy(seen["seen_by"]),
    }
