# SPDX-License-Identifier: Apache-2.0
"""State machines as tables: a move that the table does not hold raises IllegalMove.

>>> check("lease 4f2c", LEASE, "PENDING", "STARTING")
"""

from collections.abc import Mapping

from holdfast.model.errors import IllegalMove

Table = Mapping[str, frozenset[str]]


def table(**moves: str) -> Table:
    """Write a table as `PENDING="STARTING UPDATING DELETING"`."""
    return {state: frozenset(targets.split()) for state, targets in moves.items()}


LEASE: Table = table(
    CREATING="PENDING DELETING",
    PENDING="STARTING UPDATING DELETING",
    STARTING="ACTIVE ERROR DELETING",
    ACTIVE="TERMINATING UPDATING DELETING",
    TERMINATING="TERMINATED ERROR DELETING",
    TERMINATED="UPDATING DELETING",
    ERROR="TERMINATING UPDATING DELETING",
    UPDATING="PENDING ACTIVE TERMINATED ERROR DELETING",
    DELETING="ERROR",
)

RESERVATION: Table = table(
    pending="active deleted error",
    active="deleted error",
    error="deleted",
    deleted="",
)

OPERATION: Table = table(
    waiting="running cancelled",
    running="waiting retrying done error cancelled",
    retrying="running cancelled",
    done="",
    error="",
    cancelled="",
)


def check(who: str, moves: Table, old: str, new: str) -> None:
    """Let a legal move pass; staying where one is is legal too (commands are repeated)."""
    if new != old and new not in moves.get(old, ()):
        raise IllegalMove(f"{who} is {old} and cannot become {new}")
