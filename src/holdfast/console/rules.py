# SPDX-License-Identifier: Apache-2.0
"""/console/rules: documents of alarm rules, with editor, versions, rollback and preview.

The preview shows the alarms that a draft would have raised in the last hour.
"""

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

#: The size limit of a form: URL encoding can triple the size of the largest text.
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
    """A document in the editor; `version` is the version to replace, 0 for a new document."""

    name: str
    scope: str
    text: str
    version: int

    @property
    def command(self) -> list[str]:
        words = ["holdfast", "rule", "set", self.name or "NAME", "rules.yaml"]
        return [*words, "--scope", self.scope or ALL, "--replaces", str(self.version)]


def show(request: Request) -> Response:
    return page(request, "rules.html", title="Alarm rules", documents=_documents(request))


def rows(request: Request) -> Response:
    return part(request, "rules_rows.html", documents=_documents(request))


def document(request: Request) -> Response:
    """Render a document, current or at ?version=, with all its versions."""
    return page(
        request,
        "rules_document.html",
        title=f"Rules {request.path['rules_name']}",
        **_told(request),
    )


def state(request: Request) -> Response:
    """Render only the changing part, for the refresh of an open page."""
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
    """Save a document.

    On an error the editor comes back with the entered text. The script still has the text, so
    the script gets only the reason.
    """
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


# The editor


def drafted(request: Request) -> Draft:
    """Read the draft from the form."""
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
    """Return the errors, each with line number and line text; or a single sentence."""
    if not isinstance(error, BadRules) or not error.problems:
        return {"problems": [], "why": error.message if error else ""}
    return {"problems": by_line(text, error), "why": ""}


def _documents(request: Request) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api_calls.call(request, alarm_rules.index)["alarm_rules"]
    return found


def _place(name: str) -> str:
    return f"{PREFIX}/rules/of/{name}"


# The preview of a draft: the alarms it would have raised in the last hour, on hosts with
# metrics. If too few hosts have metrics, the preview asks some hosts to send theirs. So the
# preview is a form, and it changes nothing else.


#: The most lines of all hosts together: about two seconds of work.
MOST_LINES: Final = 1_000
#: The preview wants metrics of at least this many hosts, if there are as many.
ASKED: Final = 6
#: The most hosts whose metrics the preview uses.
MOST_HOSTS: Final = 20
MOST_STORIES: Final = 40
Hours = Mapping[str, Hour]


@dataclass(frozen=True)
class AlarmLine:
    """A story with its chart, and its changes as text: time, old state, new state, value."""

    story: Story
    spark: Spark | None
    changes: Sequence[tuple[Any, str, str, str]]


@dataclass(frozen=True)
class Shown:
    """The result of a preview."""

    told: Sequence[AlarmLine]
    left_out: int  # the number of stories not shown
    quiet: Sequence[str]  # rules that would have raised no alarm
    silent: Mapping[str, Sequence[str]]
    hosts: Sequence[str]
    asked: Sequence[str]  # hosts asked for metrics
    simulated: bool

    @property
    def fired(self) -> int:
        return sum(one.story.raised for one in self.told)


def show_preview(request: Request) -> Response:
    """Render the preview: a piece for the script, or the whole editor without scripts."""
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
    if scope.kind == scopes.PROJECT:  # its rules apply to the project's guests only
        text = scopes.merged([document], "", ()).text
    return shown(preview(text, hours, groups), hours, asked)


def _hours(request: Request, scope: Scope, groups: Mapping[str, Sequence[str]]) -> Hours:
    """Return the metrics of hosts in the document's scope.

    Takes as many hosts as the preview can evaluate while the user waits.
    """
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
    """Return the hosts to ask for metrics.

    The named host comes first, but only if it is known: the user may still be typing. If few
    hosts have metrics, more hosts follow.
    """
    named = normalise(request.body.get("host", ""))[:255]
    first = [named] if named and named not in hours and is_known(request, named) else []
    more = (one for one in _could(request, scope, groups) if one not in hours and one not in first)
    return [*first, *islice(more, max(0, ASKED - len(hours)))]


def _could(request: Request, scope: Scope, groups: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield hosts in scope with an agent; in a simulated cloud every host, the fullest first."""
    names = sorted(groups)
    if request.services.sim is not None:
        found = [one for one in request.services.sim().world()["hosts"] if one["powered"]]
        found.sort(key=lambda one: -one["servers"])
        names += [normalise(one["name"]) for one in found]
    for name in dict.fromkeys(names):
        if scope.holds(name, groups.get(name, ())):
            yield name


# The result as the template shows it. Pure.


def shown(seen: Preview, hours: Hours, asked: Sequence[str] = ()) -> Shown:
    """Build the result: stories that fired come first."""
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
    """Format the value of a change.

    A share of a contract, a rate and a time to full are not values of the metric itself, so
    each has a format of its own.
    """
    if value is None or rule is None or len(rule.conditions) != 1:
        return "" if value is None else f"{value:.3g}"
    one = rule.conditions[0]
    if one.contract:
        return f"{format.said('_ratio', value)} of its contract"
    if one.measure != "value":
        return f"{value:.3g} {'per second' if one.measure == 'rate' else 's until it is full'}"
    return format.said(one.field, value)
