# SPDX-License-Identifier: Apache-2.0
"""Everything that happened in an incident, in its order: what was seen, decided, done and moved,
what became of reservations, how the host came back. Values in, values out."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from holdfast.console import hearsay
from holdfast.console.phases import LONGEST
from holdfast.console.words import read_time
from holdfast.model.incident import GUEST
from holdfast.model.incident_history import entries
from holdfast.model.observed import Observed

SEEN, DECIDED, DONE, MOVED, REPAIRED, HOST, PERSON = (
    "seen",
    "decided",
    "done",
    "moved",
    "repaired",
    "host",
    "person",
)
_LEASE: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}")
#: Beginnings of lines that say how the incident stands.
_STANDS: Final = re.compile(r"(\w+): ")
#: Lines about the move of one server: which, and what.
_MOVE: Final = re.compile(r"server (\S+) (.*)", re.DOTALL)
_BY_ITSELF: Final = "holdfast"


@dataclass(frozen=True)
class Event:
    at: datetime
    kind: str
    sentence: str
    lease: str = ""  # whose page tells more

    def after(self, begin: datetime) -> float:
        return (self.at - begin).total_seconds()


@dataclass(frozen=True)
class Sight:
    """What one monitor saw on one network, since when, who confirms it, and when it said so."""

    observer: str
    network: str
    health: str
    since: datetime | None
    confirmed: str
    said: datetime | None = None


def sights(votes: Any) -> Sequence[Sight]:
    """Of those who voted that it is down."""
    return [
        _sight(str(vote.get("observer", "")), name, said, hearsay.time(vote.get("said_at")))
        for vote in hearsay.votes(votes)
        for name, said in hearsay.networks(vote).items()
    ]


def _sight(observer: str, network: str, said: Mapping[str, Any], at: datetime | None) -> Sight:
    confirmed = said.get("confirmed_by")
    by = ", ".join(map(str, confirmed)) if isinstance(confirmed, list) else ""
    since = hearsay.time(said.get("since"))
    return Sight(observer, network, str(said.get("health", "")), since, by, at)


def events(
    case: Mapping[str, Any],
    lines: Sequence[Mapping[str, Any]],
    observed: Sequence[Mapping[str, Any]] = (),
) -> Sequence[Event]:
    """`lines` of the audit that are about its host; what was `observed` of it."""
    found = [
        *_seen(case),
        *_reported(case),
        *(_observed(one) for one in observed),
        *_written(case),
        *_steps(case),
        *_attempts(case),
        *_guest(case),
        *_moves(case),
        *_back(case),
        *(_line(one) for one in lines),
    ]
    return sorted(found, key=lambda one: one.at)


def _seen(case: Mapping[str, Any]) -> Iterator[Event]:
    for one in sights(case["details"].get("seen")):
        if one.since is not None and one.health == "down":
            by = f" ({one.confirmed})" if one.confirmed else ""
            yield Event(one.since, SEEN, f"{one.network} down, says {one.observer}{by}")


def _reported(case: Mapping[str, Any]) -> Iterator[Event]:
    """When it is said to have happened, if that was earlier, and when we heard of it."""
    for one in case["reports"]:
        came, made = read_time(one["received_at"]), hearsay.time(one.get("generated_at"))
        if made is not None and came - LONGEST <= made < came:
            yield Event(made, SEEN, f"it happened, says a {one['type']} report")
        said = f"a {one['type']} report came in: notification {one['id']}"
        yield Event(came, SEEN, said)


def _observed(row: Mapping[str, Any]) -> Event:
    """Since when it is so; of who has a wrong clock, when we heard of it."""
    names = ("id", "observer", "subject", "kind", "state", "since")
    one = Observed(**{name: row[name] for name in names}, evidence=hearsay.known(row["evidence"]))
    heard = row["created_at"]
    at = one.since if heard - LONGEST <= one.since <= heard else heard
    what = "" if one.what == one.state else f": {one.what}"
    return Event(at, SEEN, f"{one.kind} {one.state}, says {one.observer}{what}")


def _written(case: Mapping[str, Any]) -> Iterator[Event]:
    """What steps and moves say again is left to them; of moves that are tries in vain."""
    known = {one["sentence"] for one in case["steps"]}
    moves = {one["server"]: one for one in case["servers"]}
    for one in case["timeline"]:
        if tried := _MOVE.match(one["sentence"]):
            move = moves.get(tried[1], {"name": tried[1], "ended_at": None})
            if one["at"] != move["ended_at"]:
                yield Event(read_time(one["at"]), MOVED, f"{move['name']}: {tried[2]}")
            continue
        said = _STANDS.match(one["sentence"])
        rest = one["sentence"][said.end() :] if said else one["sentence"]
        if rest in known and said and said[1] == "running":
            continue
        kind = DECIDED if one["actor"] == _BY_ITSELF else PERSON
        yield Event(read_time(one["at"]), kind, one["sentence"])


def _steps(case: Mapping[str, Any]) -> Iterator[Event]:
    for one in case["steps"]:
        if one["finished_at"]:
            yield Event(read_time(one["finished_at"]), DONE, f"{one['name']}: {one['sentence']}")


def _attempts(case: Mapping[str, Any]) -> Iterator[Event]:
    """What was asked of the fence, now and in attempts before a retry, and the steps of those."""
    details = case["details"]
    before = entries(details.get("attempts"))
    for one in (*before, details):
        for entry in entries(one.get("fence_requests")):
            said = (
                "the fence was asked to switch it off" if entry.get("asked") else "fencing failed"
            )
            answer = entry.get("refused") or entry.get("failed")
            joined = " and answered: " if entry.get("asked") else ": "
            yield Event(read_time(entry["at"]), DONE, f"{said}{joined}{answer}" if answer else said)
    for number, one in enumerate(before, 1):
        for step in one["steps"]:
            if step["at"]:
                said = f"attempt {number}: {step['name']}: {step['sentence']}"
                yield Event(read_time(step["at"]), DONE, said)


def _guest(case: Mapping[str, Any]) -> Iterator[Event]:
    """When a guest died and when it ran again."""
    if case.get("kind") != GUEST:
        return
    name = case.get("server_name") or case.get("server") or "it"
    for key, kind, said in (("reported_at", SEEN, "failed"), ("ran_again_at", DONE, "ran again")):
        if (at := hearsay.time(case["details"].get(key))) is not None:
            yield Event(at, kind, f"{name} {said}")


def _moves(case: Mapping[str, Any]) -> Iterator[Event]:
    for one in case["servers"]:
        where = f"{one['from']} → {one['to']}" if one["to"] else one["from"]
        if one["started_at"]:
            now = f"{where}, under way" if not one["ended_at"] else f"leaves {one['from']}"
            yield Event(read_time(one["started_at"]), MOVED, f"{one['name']}: {now}")
        if one["ended_at"]:
            said = f"{one['name']}: {where}, {one['status']}: {one['message']}"
            yield Event(read_time(one["ended_at"]), MOVED, said)


def _back(case: Mapping[str, Any]) -> Iterator[Event]:
    if (at := hearsay.time(case["details"].get("back_at"))) is not None:
        yield Event(at, HOST, f"{case['host']} came back and is in use again")


def _line(line: Mapping[str, Any]) -> Event:
    lease = line["subject"] if _LEASE.fullmatch(line["subject"]) else ""
    return Event(line["at"], REPAIRED if lease else HOST, line["sentence"], lease)
