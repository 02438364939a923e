#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the state machines of model/state_machines.py into docs/reference/states.md.

tools/draw_states.py          write the page
tools/draw_states.py --check  fail if it is not what would be written
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.model import state_machines

PAGE = Path(__file__).parent.parent / "docs/reference/states.md"
_HEAD = """\
# States

Drawn from `src/holdfast/model/state_machines.py` by `tools/draw_states.py`; do not edit. A move
that is not in a table raises `IllegalMove`. A move to the same state is always legal,
because commands are repeated.
"""


@dataclass(frozen=True)
class Machine:
    """A table, what its states mean, and what there is to know about it."""

    title: str
    first: str
    table: state_machines.Table
    says: Mapping[str, str]
    about: str
    gone: str = ""  # the state it vanishes from, if that leads elsewhere too


MACHINES = (
    Machine(
        "A lease",
        "PENDING",
        state_machines.LEASE,
        state_machines.LEASE_SAYS,
        "Every arrow is one transaction (`Ledger.save`).",
        gone="DELETING",
    ),
    Machine(
        "A reservation of a lease",
        "pending",
        state_machines.RESERVATION,
        state_machines.RESERVATION_SAYS,
        "A reservation moves in the same transaction as its lease.",
    ),
    Machine(
        "An incident",
        "open",
        state_machines.INCIDENT,
        state_machines.INCIDENT_SAYS,
        "A subject has at most one open incident. An operator can retry a failed or aborted"
        " incident.",
    ),
    Machine(
        "An operation: durable work",
        "waiting",
        state_machines.OPERATION,
        state_machines.OPERATION_SAYS,
        "An operation requested again under the same key starts at `waiting`.",
    ),
    Machine(
        "An event: the operations of a lease in the reservation contract",
        "UNDONE",
        state_machines.EVENT,
        state_machines.EVENT_SAYS,
        "Events are a view and not stored. Start and end events follow the lease's status, which is"
        " written first.\nWork prepared ahead of time is still `UNDONE`. The before-end event of a"
        " prolonged lease starts again\nat `UNDONE`.",
    ),
)


def draw(machine: Machine) -> str:
    """One machine as a section: picture, then a line per state."""
    arrows = [f"    [*] --> {machine.first}"]
    for state, targets in machine.table.items():
        arrows += [f"    {state} --> {target}" for target in machine.table if target in targets]
        if not targets or state == machine.gone:
            arrows.append(f"    {state} --> [*]")
    rows = [f"| `{state}` | {machine.says[state]} |" for state in machine.table]
    return "\n".join(
        [
            f"## {machine.title}",
            "",
            machine.about,
            "",
            "```mermaid",
            "stateDiagram-v2",
            *arrows,
            "```",
            "",
            "| state | meaning |",
            "|---|---|",
            *rows,
            "",
        ]
    )


def page() -> str:
    return "\n".join([_HEAD, *map(draw, MACHINES)])


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only say whether it is fresh")
    wanted = page()
    if not parser.parse_args(arguments).check:
        PAGE.write_text(wanted)
        return 0
    if PAGE.exists() and PAGE.read_text() == wanted:
        return 0
    sys.stderr.write(f"docs/reference/{PAGE.name} is stale: run tools/draw_states.py\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
