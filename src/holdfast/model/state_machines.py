# SPDX-License-Identifier: Apache-2.0
"""State machines as tables: a transition missing from its table raises IllegalMove.

tools/reference draws docs/reference/states.md from these tables.

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
    renamed: dict[str, set[str]] = {name: set() for name in names.values()}
    for state, targets in moves.items():
        renamed[names[state]] |= {names[target] for target in targets} - {names[state]}
    return {state: frozenset(targets) for state, targets in renamed.items()}


EVENT: Table = view(OPERATION, EVENT_OF)

#: A sentence for each state, shown to people.
LEASE_SAYS: Mapping[str, str] = {
    "CREATING": "The manager creates the lease; no resource changes yet.",
    "PENDING": "The lease holds its resources and waits for its start.",
    "STARTING": "The start is due; the manager makes the resources usable.",
    "ACTIVE": "The owner can use the resources.",
    "TERMINATING": "The end is due; the manager gives the resources back.",
    "TERMINATED": "The lease is over and holds nothing.",
    "ERROR": "The start failed for good; the lease keeps its resources until its end or deletion.",
    "UPDATING": "The manager changes the lease.",
    "DELETING": "The owner deleted the lease; the row goes when all resources are given back.",
}
RESERVATION_SAYS: Mapping[str, str] = {
    "pending": "The reservation holds its resources and waits for the lease's start.",
    "active": "The resources are usable.",
    "error": "The manager could not make the resources usable.",
    "deleted": "The manager gave the resources back.",
}
OPERATION_SAYS: Mapping[str, str] = {
    "waiting": "The operation is not due, or an earlier operation of the same subject runs first.",
    "running": "A manager holds the claim; when the claim expires, another manager continues.",
    "retrying": "The operation failed or waits for the cloud; a manager tries again later.",
    "done": "The operation reached its goal.",
    "error": "This run failed; its sentence says why. Other work or an operator may repeat it.",
    "cancelled": "The operation is no longer wanted.",
}
INCIDENT_SAYS: Mapping[str, str] = {
    "open": "A failure was reported; no guard has run yet. The incident of an alarm stays open.",
    "held": "A guard holds the recovery; the sentence names the reason and the remedy.",
    "running": "Every guard passed; the manager runs the recovery steps.",
    "recovered": "The failed servers run again, or the alarm is over.",
    "failed": "Part of the recovery failed; the sentence names the work left for operators.",
    "ignored": "A guard refused for good, or nothing is left to recover.",
    "aborted": "An operator ended the recovery.",
    "explained": "A larger incident is the cause, and recovery continues there.",
}
EVENT_SAYS: Mapping[str, str] = {
    "UNDONE": "The event is still to come, or was cancelled.",
    "IN_PROGRESS": "The event is due and under way.",
    "DONE": "The event happened.",
    "ERROR": "The event failed for good.",
}


def check(subject: str, moves: Table, old: str, new: str) -> None:
    """Check a transition; staying in a state is legal, because commands are repeated."""
    if new != old and new not in moves.get(old, ()):
        raise IllegalMove(f"{subject} is {old} and cannot become {new}")
