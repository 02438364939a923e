# SPDX-License-Identifier: Apache-2.0
"""The health of hosts for people: a dot for each network, and the same in words.

>>> dots({"manage": "up", "tenant": "unknown", "storage": "down"})
'●◌○'
>>> words({"manage": "up", "tenant": "unknown", "storage": "down"})
'tenant unknown, storage down'
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cliff.columns import FormattableColumn

from holdfast.client.commands import Moment
from holdfast.client.commands.lease_lines import MOST_NAMED
from holdfast.model.matrix import (
    ALERT,
    DOWN,
    NONE,
    UNDECIDED,
    UNKNOWN,
    UP,
    after,
)

DOTS = {UP: "●", DOWN: "○", UNKNOWN: "◌"}
#: Where the terminal has no such signs.
PLAIN = {UP: "+", DOWN: "-", UNKNOWN: "?"}
LEGEND = "● up, ○ down, ◌ unknown"

Health = Mapping[str, str]


def dots(health: Health, signs: Mapping[str, str] = DOTS) -> str:
    return "".join(signs[state] for state in health.values())


def words(health: Health) -> str:
    """What is not up; of a host that is well that it is."""
    bad = [f"{name} {state}" for name, state in health.items() if state != UP]
    return ", ".join(bad) or "up"


def signs() -> Mapping[str, str]:
    """The dots, if they can be shown where the output goes."""
    try:
        "".join(DOTS.values()).encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return PLAIN
    return DOTS


class Dots(FormattableColumn[Any]):
    """●●○ storage down"""

    def human_readable(self) -> str:
        return f"{dots(self._value, signs())} {words(self._value)}"


class State(FormattableColumn[str]):
    """○ down"""

    def human_readable(self) -> str:
        return f"{signs()[self._value]} {self._value}"


class Sights(FormattableColumn[Any]):
    """●○● tenant blind since 2027-01-31 12:00:03: no leader"""

    def human_readable(self) -> str:
        sees = {name: UP if one["sighted"] else DOWN for name, one in self._value.items()}
        blind = [
            f"{name} blind since {Moment(one['since']).human_readable()}: {one['why']}"
            for name, one in self._value.items()
            if not one["sighted"]
        ]
        return f"{dots(sees, signs())} " + ("\n".join(blind) or "sees all")


class Hosts(FormattableColumn[Any]):
    """12: cmp-1, cmp-2, cmp-3, cmp-4 and 8 more"""

    def human_readable(self) -> str:
        return f"{len(self._value)}: {named(self._value)}" if self._value else "0"


def named(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


class Lasts(FormattableColumn[Any]):
    """after 3 s; nothing where nothing is done"""

    def human_readable(self) -> str:
        return "" if self._value is None else after(self._value)


def explained(found: Mapping[str, Any]) -> Iterator[str]:
    """All that there is to say about the health of one host, a line each."""
    health = {name: seen["state"] for name, seen in found["networks"].items()}
    yield f"host {found['host']}: {dots(health, signs())} {words(health)}"
    width = max(map(len, health), default=0)
    for name, seen in found["networks"].items():
        yield f"  {name:<{width}}  {signs()[seen['state']]} {network_line(seen)}"
    yield f"row: [{', '.join(health.values())}]: {found['sentence']}"
    yield f"votes: {votes_line(found['votes'])}"
    if found["standing"]:
        yield f"standing: {standing_line(found['standing'])}"
    yield f"so: {consequence(found)}"


def network_line(seen: Mapping[str, Any]) -> str:
    """down since 2027-01-31 12:00:03, say ctl-1 and ctl-2; up, says ctl-3"""
    since = f" since {Moment(seen['since']).human_readable()} UTC" if seen["since"] else ""
    who: dict[str, list[str]] = {seen["state"]: []}
    for one in seen["seen_by"]:
        who.setdefault(one["state"], []).append(one["observer"])
    said = []
    for state, observers in who.items():
        words = state + since * (state == seen["state"])
        said.append(words + (f", {_say(observers)}" if observers else ", no monitor says more"))
    return "; ".join(said)


def votes_line(votes: Mapping[str, Any]) -> str:
    """2 for it (ctl-1, ctl-2), 1 against (ctl-3), needed 1"""
    sides = (("for", "that it failed"), ("against", "against"), ("abstain", "without an opinion"))
    said = [
        f"{len(votes[side])} {word} ({', '.join(votes[side])})"
        for side, word in sides
        if votes[side]
    ]
    return f"{', '.join(said) or 'nobody'}; it takes {votes['needed']}, and more than are against"


def standing_line(standing: Mapping[str, Any]) -> str:
    since = f" since {Moment(standing['since']).human_readable()} UTC" if standing["since"] else ""
    why = f": {standing['why']}" if standing["why"] else ""
    return f"{standing['state']}{since}{why}"


def consequence(found: Mapping[str, Any]) -> str:
    """What is done, or would be, and why."""
    action, votes = found["action"], found["votes"]
    yes, no, needed = len(votes["for"]), len(votes["against"]), votes["needed"]
    if found["incident_id"]:
        ref = found["incident_id"]
        return f"it is being recovered; `holdfast incident explain {ref}` tells how"
    if action == UNDECIDED:
        return "nothing is done while what is unknown decides; unknown is neither up nor down"
    if action == NONE:
        return "nothing is done"
    if action == ALERT:
        return f"people are told {after(found['for_s'])}; nothing is moved"
    if yes >= needed and yes > no:
        return "enough monitors say that it failed: an incident is opened, once for each failure"
    if not yes:
        return f"it is recovered if this lasts: {after(found['for_s'])} monitors vote for it"
    if yes < needed:
        return f"nothing is done yet: {yes} of the {needed} votes that it takes"
    return f"nothing is done: {no} against {yes}; those who are against look at the same host"


def _say(observers: Sequence[str]) -> str:
    if len(observers) == 1:
        return f"says {observers[0]}"
    return f"say {', '.join(observers[:-1])} and {observers[-1]}"
