# SPDX-License-Identifier: Apache-2.0
"""What a draft of alarm rules would have said of the last hour, on hosts whose numbers are there.
Where none are, some hosts are asked for theirs: that is why it is a form, and changes nothing else.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from holdfast.api.ask import Ask, Reply
from holdfast.api.holdfast_v1 import agents, samples
from holdfast.console import fields, inside, marks, sparks
from holdfast.console.metrics import is_known
from holdfast.console.pages import part
from holdfast.console.rules import Draft, drafted, editor, problems
from holdfast.console.sparks import Spark
from holdfast.model import alarm_rules_scope as scopes
from holdfast.model.alarm_rules import Rule
from holdfast.model.alarm_rules_scope import Document, Scope
from holdfast.model.errors import HoldfastError, InvalidInput
from holdfast.model.host import normalise
from holdfast.model.samples import Hour
from holdfast.watch.alarms.preview import Preview, Story, preview

#: Lines of all hosts together: about two seconds of work.
MOST_LINES: Final = 1_000
#: So many hosts at least are asked for numbers, if there are so many.
ASKED: Final = 6
#: Hosts whose numbers are used.
MOST_HOSTS: Final = 20
MOST_STORIES: Final = 40
Hours = Mapping[str, Hour]


@dataclass(frozen=True)
class Told:
    """One story with its picture, and its changes in words: when, from, to, at what."""

    story: Story
    spark: Spark | None
    changes: Sequence[tuple[Any, str, str, str]]


@dataclass(frozen=True)
class Shown:
    told: Sequence[Told]
    left_out: int  # stories that are not shown
    quiet: Sequence[str]  # rules that would have said nothing
    silent: Mapping[str, Sequence[str]]
    hosts: Sequence[str]
    asked: Sequence[str]  # hosts whose numbers are waited for
    simulated: bool

    @property
    def fired(self) -> int:
        return sum(one.story.raised for one in self.told)


def show(ask: Ask) -> Reply:
    """The piece for our script; the whole editor for who has none."""
    draft, error, seen = drafted(ask), None, None
    try:
        seen = _previewed(ask, draft)
    except InvalidInput as found:
        error = found
    if ask.body.get("part"):
        said: HoldfastError | None = error
        return part(ask, "rules_preview.html", seen=seen, **problems(draft.text, said))
    return editor(ask, draft, error, seen=seen)


def _previewed(ask: Ask, draft: Draft) -> Shown:
    scope = scopes.scope(draft.scope)
    document = Document(scopes.name(draft.name or "draft"), scope, draft.version, draft.text)
    scopes.check(document)
    groups = {one["host"]: one["groups"] for one in inside.call(ask, agents.index)["agents"]}
    hours = _hours(ask, scope, groups)
    asked = _asked(ask, scope, groups, hours)
    for host in {*hours, *asked}:
        inside.call(ask, samples.want, path={"host": host})
    text = draft.text
    if scope.kind == scopes.PROJECT:  # its rules are about the project's guests alone
        text = scopes.merged([document], "", ()).text
    return shown(preview(text, hours, groups), hours, asked)


def _hours(ask: Ask, scope: Scope, groups: Mapping[str, Sequence[str]]) -> Hours:
    """Of hosts for which the document holds, as many as can be worked through while one waits."""
    store, lines = ask.services.store.samples, 0
    found: dict[str, Hour] = {}
    for host in store.there(MOST_HOSTS):
        if not scope.holds(host, groups.get(host, ())):
            continue
        hour = store.look(host).hour
        lines += len(hour.lines)
        if found and lines > MOST_LINES:
            break
        found[host] = hour
    return found


def _asked(
    ask: Ask, scope: Scope, groups: Mapping[str, Sequence[str]], hours: Hours
) -> Sequence[str]:
    """The host somebody named, if there is one of that name: who types is not done with it yet. And
    where numbers of few are there, some that could have them."""
    named = normalise(ask.body.get("host", ""))[:255]
    first = [named] if named and named not in hours and is_known(ask, named) else []
    more = (one for one in _could(ask, scope, groups) if one not in hours and one not in first)
    return [*first, *islice(more, max(0, ASKED - len(hours)))]


def _could(ask: Ask, scope: Scope, groups: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Hosts with an agent; in a simulated cloud every host, the fullest first."""
    names = sorted(groups)
    if ask.services.sim is not None:
        found = [one for one in ask.services.sim().world()["hosts"] if one["powered"]]
        found.sort(key=lambda one: -one["servers"])
        names += [normalise(one["name"]) for one in found]
    for name in dict.fromkeys(names):
        if scope.holds(name, groups.get(name, ())):
            yield name


# what is shown of it; values in, values out


def shown(seen: Preview, hours: Hours, asked: Sequence[str] = ()) -> Shown:
    """Those that fired first, the others after them."""
    rules = seen.rules.by_id
    stories = sorted(seen.stories, key=lambda one: not one.raised)
    spoke = {one.rule for one in stories}
    return Shown(
        [_told(one, rules.get(one.rule), hours[one.host]) for one in stories[:MOST_STORIES]],
        max(0, len(stories) - MOST_STORIES),
        [rule for rule in rules if rule not in spoke and rule not in seen.silent],
        seen.silent,
        list(hours),
        asked,
        any(hour.simulated for hour in hours.values()),
    )


def _told(story: Story, rule: Rule | None, hour: Hour) -> Told:
    field = rule.conditions[0].field if rule is not None else ""
    line = next((x for x in hour.lines if (x.kind, x.id) == (story.kind, story.entity)), None)
    spark = None
    if line is not None and field in line.values:
        place = sparks.anchor("story", story.host, story.rule, story.entity)
        spark = sparks.drawn(place, field, line.values[field], hour, marks.told(story, rule))
    changes = [(one.at, one.before, one.state, said(rule, one.value)) for one in story.changes]
    return Told(story, spark, changes)


def said(rule: Rule | None, value: float | None) -> str:
    """How much it was; a share of a contract, a rate and a time to full are no value as read."""
    if value is None or rule is None or len(rule.conditions) != 1:
        return "" if value is None else f"{value:.3g}"
    one = rule.conditions[0]
    if one.contract:
        return f"{fields.said('_ratio', value)} of its contract"
    if one.measure != "value":
        return f"{value:.3g} {'per second' if one.measure == 'rate' else 's until it is full'}"
    return fields.said(one.field, value)
