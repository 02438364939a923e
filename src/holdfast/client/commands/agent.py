# SPDX-License-Identifier: Apache-2.0
"""holdfast agent list"""

import argparse
from typing import Any

from holdfast.client.agents import Agents
from holdfast.client.commands import ListCommand, Table, rows

COLUMNS = (
    "host",
    "lives",
    "seen_at",
    "started_at",
    "program",
    "rules",
    "deaf",
    "firing",
    "waiting",
)


class List(ListCommand):
    """List the agents of hosts: which live and since when, by which alarm rules they go, whether
    they hear of their guests, and how many alarms stand there.

    One that lives says so every ten seconds. `rules` has a `!` where an agent does not hold the
    rules that it should: `holdfast rules list --hosts` says why.
    """

    example = "  holdfast agent list"

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        found = Agents(self.client.wire).list()
        silent = [each["host"] for each in found if not each["fresh"]]
        if silent:
            self.tell(parsed_args, f"not heard of lately: {', '.join(silent)}")
        return rows(COLUMNS, [_row(each) for each in found])


def _row(agent: dict[str, Any]) -> dict[str, Any]:
    rules = agent["rules"]
    mark = "" if rules["central"] == rules["wanted"] else " !"
    return {
        **agent,
        "lives": "yes" if agent["fresh"] else "no",
        "rules": rules["version"] + mark,
        "deaf": agent["deaf"] or "no",
    }
