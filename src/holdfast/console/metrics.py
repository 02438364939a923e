# SPDX-License-Identifier: Apache-2.0
"""Hosts with their agents and numbers, and the last hour of one of them. Its agent sends that only
while somebody looks, which the page says by a form: to look at a page changes nothing."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from holdfast.api.ask import Ask, Reply
from holdfast.api.holdfast_v1 import agents, hosts, samples
from holdfast.console import alarms as alarm_pages
from holdfast.console import inside, marks, numbers
from holdfast.console.hosts import agent
from holdfast.console.marks import Marks
from holdfast.console.pages import PREFIX, away, page, part
from holdfast.model import alarm_rules_file
from holdfast.model import alarm_rules_scope as scopes
from holdfast.model.alarm_rules import Rule
from holdfast.model.alarm_rules_scope import Document
from holdfast.model.errors import NotFound
from holdfast.model.host import normalise
from holdfast.model.samples import EVERY_S, Hour
from holdfast.store.alarms import Wanted
from holdfast.store.samples import MOST_HOSTS, Looked
from holdfast.watch.alarms.preview import Story, preview

SAMPLES = "holdfast:host:samples"
#: Of more hosts these are shown; the rest is found by name.
MOST_ROWS = 100
MOST_ALARMS = 500
_MOST_PAGES = 1_000
#: Hosts, and ways in which rules are put together: an hour of a full host takes some megabytes.
REMEMBERED = 16


def show(ask: Ask) -> Reply:
    """For who may not look at hosts, what they may: their alarms."""
    if not ask.may(SAMPLES):
        return alarm_pages.show(ask)
    return page(ask, "metrics.html", title="Metrics", **_hosts(ask))


def rows(ask: Ask) -> Reply:
    return part(ask, "metrics_rows.html", **_hosts(ask))


def host(ask: Ask) -> Reply:
    name = _known(ask)
    shown = {**_numbers(ask, name), "agent": agent(ask, name)}
    return page(ask, "metrics_host.html", title=f"Numbers of {name}", **shown)


def figures(ask: Ask) -> Reply:
    return part(ask, "metrics_figures.html", **_numbers(ask, normalise(ask.path["host"])))


def look(ask: Ask) -> Reply:
    """Somebody looks: the host's agent is asked for numbers."""
    name = _known(ask)
    inside.call(ask, samples.want, path={"host": name})
    return away(f"{PREFIX}/metrics/{quote(name, safe='')}")


def _known(ask: Ask) -> str:
    name = normalise(ask.path["host"])
    if not is_known(ask, name):
        raise NotFound(f"no host {name[:80]} is known")
    return name


def is_known(ask: Ask, name: str) -> bool:
    """Whether anybody knows of it; of others no numbers are asked for."""
    store = ask.services.store
    seen = store.standings.of(name) or store.wall.agent(name)
    return seen is not None or store.samples.look(name).at is not None


# all hosts


def _hosts(ask: Ask) -> dict[str, Any]:
    wanted = str(ask.query.get("q", "")).strip()
    known = {normalise(one["name"]) for one in inside.call(ask, hosts.index)["hosts"]}
    lives = {one["host"]: one for one in inside.call(ask, agents.index)["agents"]}
    own = None if ask.caller.is_admin else ask.caller.project_id
    counts = Counter(ask.services.store.alarms.counts(own))
    store = ask.services.store.samples
    there, asked = set(store.there(MOST_HOSTS)), store.wanted()
    names = [one for one in {*known, *lives, *counts, *there} if wanted.lower() in one]
    names.sort(key=lambda one: (-counts[one], one not in lives, one not in there, one))
    found = [
        {
            "name": one,
            "agent": lives.get(one),
            "alarms": counts[one],
            "numbers": "live" if one in there and one in asked else "kept" if one in there else "",
        }
        for one in names[:MOST_ROWS]
    ]
    return {"hosts": found, "count": len(names), "q": wanted}


# one host


def _numbers(ask: Ask, name: str) -> dict[str, Any]:
    looked = ask.services.store.samples.look(name)
    found, worked_out = _marks(ask, looked)
    wanted = str(ask.query.get("q", "")).strip()
    laid = numbers.laid(looked.hour, found, wanted, _page(ask))
    return {
        "host": name,
        "looked": looked,
        "laid": laid,
        "q": wanted,
        "worked_out": worked_out,
        "begin": _at(looked.hour.begin),
        "end": _at(looked.hour.end - 1),
    }


def _page(ask: Ask) -> int:
    said = str(ask.query.get("page", "1"))
    return min(int(said), _MOST_PAGES) if said.isdecimal() and len(said) < 9 else 1


def _at(slot: int) -> datetime:
    return datetime.fromtimestamp(max(0, slot) * EVERY_S, UTC)


def _marks(ask: Ask, looked: Looked) -> tuple[Marks, bool]:
    """Where alarms stood. A simulated host has no agent that could have raised one: what its rules
    would have said is worked out."""
    store = ask.services.store
    groups = tuple(agents.groups_of(ask, looked.host))
    text, rules = _rules(tuple(store.alarm_rules.documents()), looked.host, groups)
    wanted = Wanted(host=looked.host, standing=False, limit=MOST_ALARMS)
    told = store.alarms.list_all(wanted)
    found = marks.of_alarms(told, rules, _at(looked.hour.begin))
    if not looked.hour.simulated or not rules:
        return found, False
    stories = _stories(_Worked(looked.host, text, looked.at, looked.hour.end, looked.hour))
    return {**marks.of_stories(stories, rules), **found}, True


# everybody who looks at a host, and every refresh until numbers come, would work out the same


@dataclass(frozen=True)
class _Worked:
    host: str
    rules: str
    at: datetime | None
    end: int
    hour: Hour = field(compare=False)  # what came then and ends there is the same


@lru_cache(maxsize=REMEMBERED)
def _stories(of: _Worked) -> Sequence[Story]:
    return preview(of.rules, {of.host: of.hour}).stories


@lru_cache(maxsize=REMEMBERED)
def _rules(
    documents: tuple[Document, ...], host: str, groups: tuple[str, ...]
) -> tuple[str, Mapping[str, Rule]]:
    """Those that hold there, as one text and by id."""
    text = scopes.merged(documents, host, groups).text
    return text, alarm_rules_file.parse(text, "rules").by_id
