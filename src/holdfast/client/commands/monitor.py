# SPDX-License-Identifier: Apache-2.0
"""holdfast monitor list"""

import argparse
from collections.abc import Iterator
from typing import Any

from holdfast.client.commands import ListCommand, Table, rows
from holdfast.client.commands.health_lines import Sights

COLUMNS = ("observer", "kind", "fresh", "seen_at", "networks", "hosts", "strategy", "trouble")


class List(ListCommand):
    """List the host monitors: when each was last heard of, and whether it sees at all.

    A network on which a monitor is blind is ○, with the reason: it then says nothing of hosts
    there. One that is not fresh has fallen silent and is not counted.
    """

    example = """  holdfast monitor list
  holdfast monitor list -f json -c observer -c fresh"""

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        return rows(COLUMNS, map(_row, self.client.monitors.list()))


def _row(monitor: dict[str, Any]) -> dict[str, Any]:
    return {
        **monitor,
        "networks": Sights(monitor["networks"]),
        "strategy": monitor["strategy_source"],
        "trouble": "; ".join(_troubles(monitor)),
    }


def _troubles(monitor: dict[str, Any]) -> Iterator[str]:
    """What somebody has to look after."""
    if monitor.get("problem"):
        yield monitor["problem"]
    if monitor.get("waiting"):
        yield f"{monitor['waiting']} reports wait to be delivered"
    if monitor.get("parked"):
        yield f"{monitor['parked']} reports were not taken, see its log"
