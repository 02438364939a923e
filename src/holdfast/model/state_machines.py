# SPDX-License-Identifier: Apache-2.0
"""State machines as tables: a transition missing from its table raises IllegalMove.

tools/draw_states.py draws docs/states.md from these tables.

>>> check("lease 4f2c", LEASE, "PENDING", "STARTING")
"""

from collections.abc import Mapping

from holdfast.model.errors import IllegalMove

Table = Mapping[str, frozenset[str]]


def table(**moves: str) -> Table:
    """Build a table from keywords such as `PENDING="STARTING UPDATING DELETING"`."""
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

INCIDENT: Table = table(
    open="held running recovered failed ignored aborted explained",
    held="open running ignored failed aborted explained",
    running="open recovered failed ignored aborted explained",  # open: rebooted, failed again
    recovered="",
    failed="open",
    ignored="",
    aborted="open",
    explained="",
)

#: How the reservation contract names the states of a due operation.
EVENT_OF: Mapping[str, str] = {
    "waiting": "UNDONE",
    "running": "IN_PROGRESS",
    "retrying": "IN_PROGRESS",
    "done": "DONE",
    "error": "ERROR",
    "cancelled": "UNDONE",
}


def view(moves: Table, names: Mapping[str, str]) -> Table:
    """Rename the states of a table, and merge states with the same new name."""
    seen: dict[str, set[str]] = {name: set() for name in names.values()}
    for state, targets in moves.items():
        seen[names[state]] |= {names[target] for target in targets} - {names[state]}
    return {state: frozenset(targets) for state, targets in seen.items()}


EVENT: Table = view(OPERATION, EVENT_OF)

#: A sentence for each state, shown to people.
LEASE_SAYS: Mapping[str, str] = {
    "CREATING": "It is being made; nothing happens for it yet.",
    "PENDING": "It holds what it will need and waits for its start.",
    "STARTING": "Its start is due, its resources are being made usable.",
    "ACTIVE": "Its owner can use it.",
    "TERMINATING": "Its end is due, what it held is being given back.",
    "TERMINATED": "It is over; it holds nothing.",
    "ERROR": "Its start failed for good. What it holds it keeps until its end or its deletion.",
    "UPDATING": "It is being changed.",
    "DELETING": "Its owner wants it gone; it vanishes once everything was given back.",
}
RESERVATION_SAYS: Mapping[str, str] = {
    "pending": "It holds its resources and waits for the lease's start.",
    "active": "Its resources are usable.",
    "error": "Its resources could not be made usable.",
    "deleted": "Its resources were given back.",
}
OPERATION_SAYS: Mapping[str, str] = {
    "waiting": "Its time, or its turn after an earlier one of the same subject, has not come.",
    "running": "A manager has claimed it; when the claim expires, another one goes on.",
    "retrying": "It failed, or the world needs more time: it is tried again later.",
    "done": "It did what it was for.",
    "error": "This run failed; its sentence says why. Only other work or a person runs it again.",
    "cancelled": "It is no longer wanted.",
}
INCIDENT_SAYS: Mapping[str, str] = {
    "open": "Something was reported; the guards were not asked yet. One of an alarm stays so.",
    "held": "A guard says not now; its sentence says why, and what lifts it.",
    "running": "The guards said yes: the steps of its recovery are being done.",
    "recovered": "What died runs again, here or elsewhere; an alarm is over.",
    "failed": "Not all could be done; its sentence says what is left for people.",
    "ignored": "A guard said no for good, or there is nothing to recover any more.",
    "aborted": "An operator ended it.",
    "explained": "Something larger is the cause of it: that one is dealt with.",
}
EVENT_SAYS: Mapping[str, str] = {
    "UNDONE": "It has not happened yet, or never will because it is no longer wanted.",
    "IN_PROGRESS": "Its time has come and it is under way.",
    "DONE": "It happened.",
    "ERROR": "It failed for good.",
}


def check(who: str, moves: Table, old: str, new: str) -> None:
    """Check a transition; staying in a state is legal, because commands are repeated."""
    if new != old and new not in moves.get(old, ()):
        raise IllegalMove(f"{who} is {old} and cannot become {new}")
