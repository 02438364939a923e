# SPDX-License-Identifier: Apache-2.0
"""Documents of alarm rules: read, written, and brought back to what they were. What rules would
have said of the last hour is `rules_preview`'s."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from holdfast.alarms import scopes
from holdfast.alarms.preview import Preview, Story, preview
from holdfast.alarms.rules import BadRules, Rule
from holdfast.alarms.scopes import ALL, Document, Scope
from holdfast.api.holdfast_v1 import agents, alarm_rules
from holdfast.api.request import Request, Response
from holdfast.console import api_calls, format, metrics
from holdfast.console.metrics import Spark, is_known
from holdfast.console.pages import PREFIX, away, by_line, entered, page, part
from holdfast.metrics.history import Hour
from holdfast.model.errors import HoldfastError, InvalidInput, NotFound
from holdfast.model.host import normalise
from holdfast.runtime.documents import MAX_BYTES

#: What a form makes of a text of the largest size.
MOST_BYTES = 3 * MAX_BYTES + 4096
_NEW = """\
rules:
  - id: guest-busy
    on: guest
    field: util_ratio
    when: "> 95%"
    for: 2m
    severity: warning
"""


@dataclass(frozen=True)
class Draft:
    """A document as somebody writes it; `version` is what it replaces, 0: nothing."""

    name: str
    scope: str
    text: str
    version: int

    @property
    def command(self) -> list[str]:
        words = ["holdfast", "rules", "set", self.name or "NAME", "rules.yaml"]
        return [*words, "--scope", self.scope or ALL, "--replaces", str(self.version)]


def show(request: Request) -> Response:
    return page(request, "rules.html", title="Alarm rules", documents=_documents(request))


def rows(request: Request) -> Response:
    return part(request, "rules_rows.html", documents=_documents(request))


def document(request: Request) -> Response:
    """As it is, or was at ?version=; with all its versions."""
    return page(
        request,
        "rules_document.html",
        title=f"Rules {request.path['rules_name']}",
        **_told(request),
    )


def state(request: Request) -> Response:
    """What of that changes."""
    return part(request, "rules_state.html", **_told(request))


def _told(request: Request) -> dict[str, Any]:
    name = request.path["rules_name"]
    versions = api_calls.call(request, alarm_rules.history, path=request.path)["versions"]
    asked = str(request.query.get("version", ""))
    wanted = [one for one in versions if str(one["version"]) == asked or not asked]
    if not wanted:
        raise NotFound(f"of rules {name} there is no version {asked[:40]}")
    return {
        "document": wanted[0],
        "versions": versions,
        "latest": versions[0],
        "asked": wanted[0]["version"] if asked else "",
    }


def new(request: Request) -> Response:
    return editor(request, Draft("", ALL, _NEW, 0))


def edit(request: Request) -> Response:
    one = api_calls.call(request, alarm_rules.show, path=request.path)["alarm_rules"]
    return editor(request, Draft(one["name"], one["scope"], one["text"], one["version"]))


def save(request: Request) -> Response:
    """What was written comes back with whatever kept it from being saved; for our script, which
    has it still, the reason alone."""
    draft = drafted(request)
    path = {"rules_name": draft.name}
    body = {"text": draft.text, "scope": draft.scope, "replaces": draft.version}
    try:
        kept = api_calls.call(request, alarm_rules.put, path=path, body=body)["alarm_rules"]
    except HoldfastError as error:
        if request.body.get("part"):
            return part(request, "rules_preview.html", seen=None, **problems(draft.text, error))
        return editor(request, draft, error)
    said = f"rules {kept['name']} are at version {kept['version']}; hosts take them up now"
    return away(_place(kept["name"]), said=said)


def roll_back(request: Request) -> Response:
    asked = str(request.body.get("version", ""))
    body = {"version": int(asked)} if asked.isdecimal() and len(asked) < 10 else {}
    kept = api_calls.call(request, alarm_rules.roll_back, path=request.path, body=body)[
        "alarm_rules"
    ]
    said = f"what version {asked} said is in force again, as version {kept['version']}"
    return away(_place(kept["name"]), said=said)


def delete(request: Request) -> Response:
    name = request.path["rules_name"]
    api_calls.call(request, alarm_rules.delete, path=request.path)
    return away(f"{PREFIX}/rules", said=f"rules {name} are gone; a roll back brings them again")


# for who writes


def drafted(request: Request) -> Draft:
    """What a form says."""
    said: Mapping[str, str] = request.body
    version = said.get("version", "0")
    return Draft(
        said.get("name", "").strip(),
        said.get("scope", "").strip() or ALL,
        entered(said.get("text", "")),
        int(version) if version.isdecimal() and len(version) < 10 else 0,
    )


def editor(
    request: Request, draft: Draft, error: HoldfastError | None = None, **more: Any
) -> Response:
    title = f"Rules {draft.name}" if draft.version else "New rules"
    shown = {"draft": draft, **problems(draft.text, error), "seen": None, **more}
    known = bool(draft.version and draft.name)
    here = f"{_place(draft.name)}/edit" if known else f"{PREFIX}/rules/new"
    status = error.status if error else 200
    return page(request, "rules_edit.html", title=title, status=status, here=here, **shown)


def problems(text: str, error: HoldfastError | None) -> dict[str, Any]:
    """Each with its line, as a number and as it stands there; or one sentence."""
    if not isinstance(error, BadRules) or not error.problems:
        return {"problems": [], "why": error.message if error else ""}
    return {"problems": by_line(text, error), "why": ""}


def _documents(request: Request) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api_calls.call(request, alarm_rules.index)["alarm_rules"]
    return found


def _place(name: str) -> str:
    return f"{PREFIX}/rules/of/{name}"


# What a draft of alarm rules would have said of the last hour, on hosts whose numbers are there.
# Where none are, some hosts are asked for theirs: that is why it is a form, and changes nothing
# else.


#: Lines of all hosts together: about two seconds of work.
MOST_LINES: Final = 1_000
#: So many hosts at least are asked for numbers, if there are so many.
ASKED: Final = 6
#: Hosts whose numbers are used.
MOST_HOSTS: Final = 20
MOST_STORIES: Final = 40
Hours = Mapping[str, Hour]


@dataclass(frozen=True)
class AlarmLine:
    """One story with its picture, and its changes in words: when, from, to, at what."""

    story: Story
    spark: Spark | None
    changes: Sequence[tuple[Any, str, str, str]]


@dataclass(frozen=True)
class Shown:
    told: Sequence[AlarmLine]
    left_out: int  # stories that are not shown
    quiet: Sequence[str]  # rules that would have said nothing
    silent: Mapping[str, Sequence[str]]
    hosts: Sequence[str]
    asked: Sequence[str]  # hosts whose numbers are waited for
    simulated: bool

    @property
    def fired(self) -> int:
        return sum(one.story.raised for one in self.told)


def show_preview(request: Request) -> Response:
    """The piece for our script; the whole editor for who has none."""
    draft, error, seen = drafted(request), None, None
    try:
        seen = _previewed(request, draft)
    except InvalidInput as found:
        error = found
    if request.body.get("part"):
        said: HoldfastError | None = error
        return part(request, "rules_preview.html", seen=seen, **problems(draft.text, said))
    return editor(request, draft, error, seen=seen)


def _previewed(request: Request, draft: Draft) -> Shown:
    scope = scopes.scope(draft.scope)
    document = Document(scopes.name(draft.name or "draft"), scope, draft.version, draft.text)
    scopes.check(document)
    groups = {one["host"]: one["groups"] for one in api_calls.call(request, agents.index)["agents"]}
    hours = _hours(request, scope, groups)
    asked = _asked(request, scope, groups, hours)
    for host in {*hours, *asked}:
        api_calls.call(request, agents.want_samples, path={"host": host})
    text = draft.text
    if scope.kind == scopes.PROJECT:  # its rules are about the project's guests alone
        text = scopes.merged([document], "", ()).text
    return shown(preview(text, hours, groups), hours, asked)


def _hours(request: Request, scope: Scope, groups: Mapping[str, Sequence[str]]) -> Hours:
    """Of hosts for which the document holds, as many as can be worked through while one waits."""
    store, lines = request.services.store.samples, 0
    found: dict[str, Hour] = {}
    for host in store.there(MOST_HOSTS):
        if not scope.holds(host, groups.get(host, ())):
            continue
        hour = store.samples_of(host).hour
        lines += len(hour.lines)
        if found and lines > MOST_LINES:
            break
        found[host] = hour
    return found


def _asked(
    request: Request, scope: Scope, groups: Mapping[str, Sequence[str]], hours: Hours
) -> Sequence[str]:
    """The host somebody named, if there is one of that name: who types is not done with it yet. And
    where numbers of few are there, some that could have them."""
    named = normalise(request.body.get("host", ""))[:255]
    first = [named] if named and named not in hours and is_known(request, named) else []
    more = (one for one in _could(request, scope, groups) if one not in hours and one not in first)
    return [*first, *islice(more, max(0, ASKED - len(hours)))]


def _could(request: Request, scope: Scope, groups: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Hosts with an agent; in a simulated cloud every host, the fullest first."""
    names = sorted(groups)
    if request.services.sim is not None:
        found = [one for one in request.services.sim().world()["hosts"] if one["powered"]]
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
        [
            _rules_preview_told(one, rules.get(one.rule), hours[one.host])
            for one in stories[:MOST_STORIES]
        ],
        max(0, len(stories) - MOST_STORIES),
        [rule for rule in rules if rule not in spoke and rule not in seen.silent],
        seen.silent,
        list(hours),
        asked,
        any(hour.simulated for hour in hours.values()),
    )


def _rules_preview_told(story: Story, rule: Rule | None, hour: Hour) -> AlarmLine:
    field = rule.conditions[0].field if rule is not None else ""
    line = next((x for x in hour.lines if (x.kind, x.id) == (story.kind, story.entity)), None)
    spark = None
    if line is not None and field in line.values:
        place = metrics.anchor("story", story.host, story.rule, story.entity)
        spark = metrics.draw_spark(
            place, field, line.values[field], hour, metrics.mark_text(story, rule)
        )
    changes = [(one.at, one.before, one.state, said(rule, one.value)) for one in story.changes]
    return AlarmLine(story, spark, changes)


def said(rule: Rule | None, value: float | None) -> str:
    """How much it was; a share of a contract, a rate and a time to full are no value as read."""
    if value is None or rule is None or len(rule.conditions) != 1:
        return "" if value is None else f"{value:.3g}"
    one = rule.conditions[0]
    if one.contract:
        return f"{format.said('_ratio', value)} of its contract"
    if one.measure != "value":
        return f"{value:.3g} {'per second' if one.measure == 'rate' else 's until it is full'}"
    return format.said(one.field, value)
