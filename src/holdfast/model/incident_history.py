# SPDX-License-Identifier: Apache-2.0
"""What an incident keeps and never rewrites: what each monitor saw and when it first said so, each
request to a fence device with its answer, and the attempts before a retry. Values in, values out.

A list has a longest length. Beyond it the entries in the middle are dropped and counted in one
entry, {"left_out": 7}: the beginning tells what happened, the end tells how it stands.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any

from holdfast.model.incident import Incident
from holdfast.model.votes import FOR

Entry = Mapping[str, Any]
#: The longest lists. One attempt may have as many requests to its fence device as stated here.
MOST_VOTES, MOST_FENCE_REQUESTS, MOST_ATTEMPTS = 50, 20, 10
LEFT_OUT = "left_out"


def append(kept: Sequence[Entry] | None, new: Sequence[Entry], most: int) -> list[Entry]:
    """Add entries at the end; of more than `most` the middle is dropped and counted."""
    found, dropped = [*entries(kept), *new], left_out(kept)
    half = most // 2
    over = max(0, len(found) - most)
    if not over and not dropped:
        return found
    return [*found[:half], {LEFT_OUT: dropped + over}, *found[half + over :]]


def entries(kept: Sequence[Entry] | None) -> list[Entry]:
    """All but the entry that counts those dropped."""
    return [one for one in kept or () if LEFT_OUT not in one]


def left_out(kept: Sequence[Entry] | None) -> int:
    """How many entries were dropped."""
    return sum(int(one.get(LEFT_OUT, 0)) for one in kept or ())


# what monitors saw


def append_votes(
    kept: Sequence[Entry] | None, votes: Sequence[Entry], now: datetime
) -> list[Entry]:
    """Add each vote that differs from the last one of the same monitor, with the time (`said_at`)
    at which Holdfast first counted it. A monitor that was restarted adds a vote of its own."""
    last = {str(one["observer"]): _essence(one) for one in entries(kept)}
    at = now.isoformat()
    new = [{**one, "said_at": at} for one in votes if last.get(one["observer"]) != _essence(one)]
    return append(kept, new, MOST_VOTES)


def _essence(vote: Entry) -> tuple[Any, ...]:
    """What makes a vote another one: how it counted, since when, and the networks' health."""
    networks = (vote.get("evidence") or {}).get("networks")
    health = [
        (name, said.get("health"))
        for name, said in (networks.items() if isinstance(networks, Mapping) else ())
        if isinstance(said, Mapping)
    ]
    return vote["vote"], vote["why"], vote.get("since"), sorted(health, key=str)


def counted_together(kept: Sequence[Entry] | None) -> Iterator[tuple[str, list[Entry]]]:
    """Votes that were first counted at the same time, with that time, in order."""
    for at, votes in groupby(entries(kept), key=lambda one: str(one.get("said_at", ""))):
        yield at, list(votes)


def votes_of(kept: Sequence[Entry] | None) -> list[Entry]:
    """One vote of each monitor: its first one for recovery, or else its last one."""
    found: dict[str, Entry] = {}
    for one in entries(kept):
        name = str(one["observer"])
        if name not in found or found[name]["vote"] != FOR:
            found[name] = one
    return list(found.values())


# what was asked of the fence device


def fence_asked(requests: Sequence[Entry] | None, at: datetime) -> list[Entry]:
    """Add that the device is asked to switch the host off."""
    return append(requests, [{"at": at.isoformat(), "asked": True}], MOST_FENCE_REQUESTS)


def fence_refused(requests: Sequence[Entry] | None, why: str) -> list[Entry]:
    """Complete the last request: the device did not take it."""
    *before, last = requests or ({},)
    return [*before, {**last, "refused": why}]


def fence_failed(requests: Sequence[Entry] | None, at: datetime, why: str) -> list[Entry]:
    """Add what went wrong, unless the last request says it already."""
    known = entries(requests)
    if known and known[-1].get("refused") == why:
        return list(requests or ())
    return append(requests, [{"at": at.isoformat(), "failed": why}], MOST_FENCE_REQUESTS)


def fenced_at(details: Mapping[str, Any]) -> tuple[str, bool] | None:
    """When a fence device last took the request to switch the host off in this incident, and
    whether that was in the present attempt; None: it never did."""
    earlier = [one.get("fence_requests") for one in reversed(entries(details.get("attempts")))]
    for place, requests in enumerate((details.get("fence_requests"), *earlier)):
        for one in reversed(entries(requests)):
            if one.get("asked") and not one.get("refused"):
                return str(one["at"]), place == 0
    return None


def last_refusal(details: Mapping[str, Any]) -> str:
    """What the device answered to the last request that it did not take in this attempt."""
    refusals = [
        one["refused"] for one in entries(details.get("fence_requests")) if "refused" in one
    ]
    return str(refusals[-1]) if refusals else ""


# attempts before a retry


def append_attempt(
    old: Incident, steps: Sequence[Entry], forgotten: Sequence[str], author: str
) -> list[Entry]:
    """Add the attempt that ended: how it ended, its steps, who aborted it, who had it tried again,
    and those of the details named by `forgotten`, which the next attempt clears."""
    details = old.details
    again = (details.get("retried_at") or "", details.get("reopened_at") or "")
    attempt: dict[str, Any] = {
        "began_at": max(old.opened_at.isoformat(), *again),
        "ended_at": old.closed_at.isoformat() if old.closed_at else None,
        "status": old.status,
        "sentence": old.sentence,
        "tried_again_by": author,
        "steps": [
            {
                "name": one["name"],
                "at": one["finished_at"].isoformat() if one["finished_at"] else None,
                "sentence": one["sentence"],
            }
            for one in steps
        ],
    }
    attempt |= {name: details[name] for name in forgotten if details.get(name)}
    return append(details.get("attempts"), [attempt], MOST_ATTEMPTS)
