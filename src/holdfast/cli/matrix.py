# SPDX-License-Identifier: Apache-2.0
"""holdfast matrix show | check | explain"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from holdfast.cli import Base, ListCommand, Table, arg, reading, rows, typed
from holdfast.cli.host import Hosts, Lasts, State, explained
from holdfast.hostmonitor import matrix
from holdfast.hostmonitor.matrix import ALERT, NETWORKS, RECOVERY, Answer, Matrix
from holdfast.runtime.documents import MAX_BYTES

SAID = ("action", "for_s", "rule")
SHOWN = ("action", "for_s", "hosts", "rule")


@typed
def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if wrong := matrix.wrong_networks(names):
        raise ValueError("; ".join(map(str, wrong)))
    return names


class Show(ListCommand):
    """Show the HA matrix in force: every combination, the action, and the hosts in it now.

    Below the combinations of up and down come combinations with an unknown network, if a host
    is in one. A warning names monitors with another HA matrix than most.
    """

    example = """  holdfast matrix show
  holdfast matrix show -f json"""

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        answer = self.client.monitors.matrix()
        if answer["ha_matrix"] is None:
            self.say("no monitor reported lately: see `holdfast monitor list`")
            return SHOWN, []
        ha_matrix = matrix.from_plain(answer["ha_matrix"])
        self.note(parsed_args, f"ha_matrix: {answer['source']}")
        if ha_matrix.warning:
            self.app.LOG.warning("%s: %s", answer["source"], ha_matrix.warning)
        for monitor in answer["differing"]:
            self.app.LOG.warning(
                "%s goes by another HA matrix, %s: make the files alike",
                monitor["observer"],
                monitor["source"],
            )
        drawn = [*answer["rows"], *answer["undecided"]]
        blind = answer.get("blind", ())
        return _drawn(ha_matrix.networks, SHOWN, (_row(ha_matrix, row, blind) for row in drawn))


class Check(ListCommand):
    """Check an HA matrix file and show the resulting table, without a server.

    The command accepts both formats. On errors it lists all of them with their lines and ends
    with 1. Rows missing in the file count as none: a warning names them.
    """

    example = """  holdfast matrix check matrix.yaml
  holdfast matrix check matrix.yaml --networks manage,storage"""
    arguments = (
        arg("file", help="an HA matrix in YAML, in Masakari's format or ours"),
        arg(
            "--networks",
            type=_names,
            default=NETWORKS,
            metavar="A,B,…",
            help=f"those that the monitors watch; default: {','.join(NETWORKS)}",
        ),
    )

    def take_action(self, parsed_args: argparse.Namespace) -> Table:
        name = parsed_args.file
        with reading(name), open(name, "rb") as file:
            ha_matrix = matrix.parse(file.read(MAX_BYTES + 1), parsed_args.networks, name)
        self.note(parsed_args, f"{name} is an HA matrix for {', '.join(ha_matrix.networks)}")
        if ha_matrix.warning:
            self.app.LOG.warning("%s: %s", name, ha_matrix.warning)
        return _drawn(ha_matrix.networks, SAID, _checked(ha_matrix))


class Explain(Base):
    """Explain the health of a host: each monitor's view, since when, action and rule."""

    example = "  holdfast matrix explain cmp-07"
    arguments = (arg("host", help="name, short or full"),)

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        health = self.client.monitors.host(parsed_args.host)
        self.app.stdout.write("\n".join(explained(health)) + "\n")


def _row(ha_matrix: Matrix, row: Mapping[str, Any], blind: Sequence[str]) -> dict[str, Any]:
    effect = _said(ha_matrix.answer(row["health"], blind))
    return {"health": row["health"], "hosts": Hosts(row["hosts"]), **effect}


def _checked(ha_matrix: Matrix) -> Iterator[dict[str, Any]]:
    for row in ha_matrix.table():
        health = dict(zip(ha_matrix.networks, row.health, strict=True))
        yield {"health": health, **_said(row.answer)}


def _said(answer: Answer) -> dict[str, Any]:
    acts = answer.action in (RECOVERY, ALERT)
    return {
        "action": answer.action,
        "for_s": Lasts(answer.for_s if acts else None),
        "rule": answer.sentence,
    }


def _drawn(
    networks: Sequence[str], columns: tuple[str, ...], table_rows: Iterator[dict[str, Any]]
) -> Table:
    """Return a table with a column for each network, then the other columns."""
    # A network may have the name of another column.
    called = {name: f"network {name}" if name in columns else name for name in networks}
    table = [
        {**row, **{called[name]: State(row["health"][name]) for name in networks}}
        for row in table_rows
    ]
    return rows((*called.values(), *columns), table)
