# SPDX-License-Identifier: Apache-2.0
"""The life of a lease as people see it: through which states it came, where it is, what is next;
its flags, and what was done about them. Pure: the API's view of a lease and its history in,
sentences out."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from holdfast.console.words import many
from holdfast.model import moves

DONE, NOW, NEXT = "done", "now", "next"
#: What the audit says of a lease when something was done about its resources.
_HEALED: Final = (
    "got something else",
    "misses what failed",
    "is whole again",
    "was replaced",
    "not all joined",
    "its owner has seen",
    "its pools are put right",
)
_STRAIGHT: Final = ("PENDING", "STARTING", "ACTIVE", "TERMINATING", "TERMINATED")
#: What of its history says something of where it stands and of what was done about it.
TELLING: Final = (*(f" is {word}" for word in _STRAIGHT), " failed: ", *_HEALED)
#: Where a lease was before it came to a state beside the straight way, at least.
_AFTER: Final[Mapping[str, str]] = {
    "ERROR": "STARTING",
    "DELETING": "PENDING",
    "UPDATING": "PENDING",
}


@dataclass(frozen=True)
class Link:
    """One state of the chain; `at` is when it came to it, or should."""

    word: str
    how: str
    at: Any = None
    said: str = ""


def chain(lease: Mapping[str, Any], history: Sequence[Mapping[str, Any]]) -> Sequence[Link]:
    status = lease["status"]
    if status in _STRAIGHT:
        here = _STRAIGHT.index(status)
        return [
            _link(word, _how(place, here), lease, history) for place, word in enumerate(_STRAIGHT)
        ]
    return list(_aside(lease, history))


def _aside(lease: Mapping[str, Any], history: Sequence[Mapping[str, Any]]) -> Iterator[Link]:
    """A lease that left the straight way: as far as it came on it, and what it came to."""
    status = lease["status"]
    was_active = _when(history, " is ACTIVE") is not None
    last = "ACTIVE" if was_active and status != "ERROR" else _AFTER.get(status, "PENDING")
    for word in _STRAIGHT[: _STRAIGHT.index(last) + 1]:
        yield _link(word, DONE, lease, history)
    failed = next((line for line in history if " failed: " in line["sentence"]), None)
    told = failed["sentence"] if failed and status == "ERROR" else moves.LEASE_SAYS.get(status, "")
    yield Link(status, NOW, failed["at"] if failed else lease["updated_at"], told)
    if status == "ERROR":
        yield _link("TERMINATED", NEXT, lease, history)


def _how(place: int, here: int) -> str:
    return NOW if place == here else DONE if place < here else NEXT


def _link(
    word: str, how: str, lease: Mapping[str, Any], history: Sequence[Mapping[str, Any]]
) -> Link:
    said = moves.LEASE_SAYS[word] if how == NOW else ""
    if word == "PENDING":
        return Link(word, how, lease["created_at"], said or "booked")
    due = lease["start_date"] if word in ("STARTING", "ACTIVE") else lease["end_date"]
    happened = _when(history, f" is {word}") if how != NEXT else None
    announced = _announced(lease) if word == "TERMINATING" and how == NEXT else ""
    if word == "STARTING" and how != NEXT:
        due = max(due, lease["created_at"].replace(" ", "T"))  # one that begins at once
    return Link(word, how, happened or due, said or announced)


def _when(history: Sequence[Mapping[str, Any]], ending: str) -> Any:
    """When the audit says so last; it has the newest first."""
    return next((line["at"] for line in history if line["sentence"].endswith(ending)), None)


def _announced(lease: Mapping[str, Any]) -> str:
    for event in lease["events"]:
        if event["event_type"] == "before_end_lease":
            verb = "was" if event["status"] == "DONE" else "is"
            return f"its end {verb} announced {event['time'][:16].replace('T', ' ')} UTC"
    return ""


def flags(lease: Mapping[str, Any]) -> Sequence[str]:
    """What its owner should know, in sentences."""
    found = []
    for one in lease["reservations"]:
        what = f"Its reservation of {one['resource_type']}"
        if one["missing_resources"]:
            found.append(f"{what} misses something that failed; another is looked for.")
        if one["resources_changed"]:
            found.append(f"{what} got something else than it had, because that failed.")
    if lease["degraded"] and not found:
        found.append("It is degraded: not all that belongs to it is there.")
    return found


def healed(history: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """What was done about its resources, the first first."""
    told = [line for line in history if any(word in line["sentence"] for word in _HEALED)]
    return told[::-1]


def holds(lease: Mapping[str, Any]) -> str:
    """2 hosts; 3 slots on 2 hosts; 1 address"""
    return "; ".join(filter(None, (_holds(one) for one in lease["reservations"]))) or "nothing"


def _holds(reservation: Mapping[str, Any]) -> str:
    hosts = reservation.get("hosts") or ()
    slots = sum(host.get("slots") or 0 for host in hosts)
    found = []
    if hosts:
        told = many(len(hosts), "host")
        found.append(f"{many(slots, 'slot')} on {told}" if slots else told)
    if addresses := reservation.get("floatingips"):
        found.append(many(len(addresses), "address", "addresses"))
    if things := reservation.get("things"):
        found.append(many(len(things), "server"))
    return ", ".join(found)


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> Sequence[str]:
    """What a change would do to what is held."""
    found = []
    for was, will in zip(old["reservations"], new["reservations"], strict=False):
        had, has = ({host["name"] for host in one.get("hosts") or ()} for one in (was, will))
        if gone := sorted(had - has):
            found.append(f"{', '.join(gone)} would be given up")
        if come := sorted(has - had):
            found.append(f"{', '.join(come)} would be added")
        if had and had == has:
            found.append(f"it would keep {', '.join(sorted(had))}")
    return found


def asked(reservation: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    """What was asked for, as far as it says anything."""
    names = ("min", "max", "amount", "vcpus", "memory_mb", "disk_gb", "flavor_id", "server_id")
    more = ("resource_properties", "hypervisor_properties", "before_end", "network_id", "affinity")
    return [
        (name, str(reservation[name]))
        for name in (*names, *more)
        if reservation.get(name) not in (None, "", "[]")
    ]
