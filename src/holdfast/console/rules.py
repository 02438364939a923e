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
from holdfast.console.pages import PREFIX, away, by_line, entered, page, part, whole_number
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
        **_versions(request),
    )


def state(request: Request) -> Response:
    """Render only the changing part, for the refresh of an open page."""
    return part(request, "rules_state.html", **_versions(request))


def _versions(request: Request) -> dict[str, Any]:
    name = request.path["rules_name"]
    versions = api_calls.call(request, alarm_rules.history, path=request.path)["versions"]
    number = str(request.query.get("version", ""))
    chosen = [row for row in versions if str(row["version"]) == number or not number]
    if not chosen:
        raise NotFound(f"rules {name} have no version {number[:40]}")
    return {
        "document": chosen[0],
        "versions": versions,
        "latest": versions[0],
        "version": chosen[0]["version"] if number else "",
    }


def new(request: Request) -> Response:
    return editor(request, Draft("", ALL, _NEW, 0))


def edit(request: Request) -> Response:
    row = api_calls.call(request, alarm_rules.show, path=request.path)["alarm_rules"]
    return editor(request, Draft(row["name"], row["scope"], row["text"], row["version"]))


def save(request: Request) -> Response:
    """Save a document.

    On an error the editor comes back with the entered text. The script still has the text, so
    the script gets only the reason.
    """
    draft = drafted(request)
    path = {"rules_name": draft.name}
    body = {"text": draft.text, "scope": draft.scope, "replaces": draft.version}
    try:
        saved = api_calls.call(request, alarm_rules.put, path=path, body=body)["alarm_rules"]
    except HoldfastError as error:
        if request.body.get("part"):
            return part(request, "rules_preview.html", result=None, **problems(draft.text, error))
        return editor(request, draft, error)
    message = f"rules {saved['name']}: version {saved['version']} saved; agents load it now"
    return away(_url(saved["name"]), message=message)


def roll_back(request: Request) -> Response:
    number = whole_number(str(request.body.get("version", "")), 9)
    body = {} if number is None else {"version": number}
    answer = api_calls.call(request, alarm_rules.roll_back, path=request.path, body=body)
    saved = answer["alarm_rules"]
    message = f"rules {saved['name']}: version {number} restored as version {saved['version']}"
    return away(_url(saved["name"]), message=message)


def delete(request: Request) -> Response:
    name = request.path["rules_name"]
    api_calls.call(request, alarm_rules.delete, path=request.path)
    return away(f"{PREFIX}/rules", message=f"rules {name} deleted; a rollback restores them")


# The editor


def drafted(request: Request) -> Draft:
    """Read the draft from the form."""
    form: Mapping[str, str] = request.body
    return Draft(
        form.get("name", "").strip(),
        form.get("scope", "").strip() or ALL,
        entered(form.get("text", "")),
        whole_number(form.get("version", ""), 9) or 0,
    )


def editor(
    request: Request, draft: Draft, error: HoldfastError | None = None, **more: Any
) -> Response:
    title = f"Rules {draft.name}" if draft.version else "New rules"
    shown = {"draft": draft, **problems(draft.text, error), "result": None, **more}
    exists = bool(draft.version and draft.name)
    here = f"{_url(draft.name)}/edit" if exists else f"{PREFIX}/rules/new"
    status = error.status if error else 200
    return page(request, "rules_edit.html", title=title, status=status, here=here, **shown)


def problems(text: str, error: HoldfastError | None) -> dict[str, Any]:
    """Return the errors, each with line number and line text; or a single sentence."""
    if not isinstance(error, BadRules) or not error.problems:
        return {"problems": [], "why": error.message if error else ""}
    return {"problems": by_line(text, error), "why": ""}


def _documents(request: Request) -> list[dict[str, Any]]:
    documents: list[dict[str, Any]] = api_calls.call(request, alarm_rules.index)["alarm_rules"]
    return documents


def _url(name: str) -> str:
    return f"{PREFIX}/rules/of/{name}"


# The preview of a draft: the alarms it would have raised in the last hour, on hosts with
# metrics. If too few hosts have metrics, the preview asks some hosts to send theirs. So the
# preview is a form, and it changes nothing else.


#: The most lines of all hosts together: about two seconds of work.
MOST_LINES: Final = 1_000
#: The preview requests metrics until this many hosts have some.
REQUESTED: Final = 6
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
class PreviewResult:
    """The result of a preview."""

    alarms: Sequence[AlarmLine]
    left_out: int  # the number of stories not shown
    quiet: Sequence[str]  # rules that would have raised no alarm
    missing_fields: Mapping[str, Sequence[str]]  # by rule: no history, so no preview
    hosts: Sequence[str]
    requested: Sequence[str]  # hosts whose metrics the preview requested
    simulated: bool

    @property
    def fired(self) -> int:
        return sum(alarm.story.raised for alarm in self.alarms)


def show_preview(request: Request) -> Response:
    """Render the preview: a piece for the script, or the whole editor without scripts."""
    draft = drafted(request)
    error: HoldfastError | None = None
    result = None
    try:
        result = _preview(request, draft)
    except InvalidInput as refusal:
        error = refusal
    if request.body.get("part"):
        return part(request, "rules_preview.html", result=result, **problems(draft.text, error))
    return editor(request, draft, error, result=result)


def _preview(request: Request, draft: Draft) -> PreviewResult:
    scope = scopes.scope(draft.scope)
    document = Document(scopes.name(draft.name or "draft"), scope, draft.version, draft.text)
    scopes.check(document)
    rows = api_calls.call(request, agents.index)["agents"]
    groups = {row["host"]: row["groups"] for row in rows}
    hours = _hours(request, scope, groups)
    requested = _to_request(request, scope, groups, hours)
    for host in {*hours, *requested}:
        api_calls.call(request, agents.want_samples, path={"host": host})
    text = draft.text
    if scope.kind == scopes.PROJECT:  # its rules apply to the project's guests only
        text = scopes.merged([document], "", ()).text
    return preview_result(preview(text, hours, groups), hours, requested)


def _hours(request: Request, scope: Scope, groups: Mapping[str, Sequence[str]]) -> Hours:
    """Return the metrics of hosts in the document's scope.

    Takes as many hosts as the preview can evaluate while the user waits.
    """
    store, lines = request.services.store.samples, 0
    hours: dict[str, Hour] = {}
    for host in store.there(MOST_HOSTS):
        if not scope.holds(host, groups.get(host, ())):
            continue
        hour = store.samples_of(host).hour
        lines += len(hour.lines)
        if hours and lines > MOST_LINES:
            break
        hours[host] = hour
    return hours


def _to_request(
    request: Request, scope: Scope, groups: Mapping[str, Sequence[str]], hours: Hours
) -> Sequence[str]:
    """Return the hosts whose metrics the preview requests.

    The named host comes first, but only if it is known: the user may still be typing. If few
    hosts have metrics, more hosts follow.
    """
    named = normalise(request.body.get("host", ""))[:255]
    first = [named] if named and named not in hours and is_known(request, named) else []
    covered = {*hours, *first}
    more = (host for host in _candidates(request, scope, groups) if host not in covered)
    return [*first, *islice(more, max(0, REQUESTED - len(hours)))]


def _candidates(
    request: Request, scope: Scope, groups: Mapping[str, Sequence[str]]
) -> Iterator[str]:
    """Yield hosts in scope with an agent; in a simulated cloud every host, the fullest first."""
    names = sorted(groups)
    if request.services.sim is not None:
        hosts = [host for host in request.services.sim().world()["hosts"] if host["powered"]]
        hosts.sort(key=lambda host: -host["servers"])
        names += [normalise(host["name"]) for host in hosts]
    for name in dict.fromkeys(names):
        if scope.holds(name, groups.get(name, ())):
            yield name


# The result as the template shows it. Pure.


def preview_result(tested: Preview, hours: Hours, requested: Sequence[str] = ()) -> PreviewResult:
    """Build the result: stories that fired come first."""
    rules = tested.rules.by_id
    stories = sorted(tested.stories, key=lambda story: not story.raised)
    with_story = {story.rule for story in stories}
    return PreviewResult(
        [
            _alarm_line(story, rules.get(story.rule), hours[story.host])
            for story in stories[:MOST_STORIES]
        ],
        max(0, len(stories) - MOST_STORIES),
        [rule for rule in rules if rule not in with_story and rule not in tested.silent],
        tested.silent,
        list(hours),
        requested,
        any(hour.simulated for hour in hours.values()),
    )


def _alarm_line(story: Story, rule: Rule | None, hour: Hour) -> AlarmLine:
    field = rule.conditions[0].field if rule is not None else ""
    line = next((x for x in hour.lines if (x.kind, x.id) == (story.kind, story.entity)), None)
    spark = None
    if line is not None and field in line.values:
        spark_id = metrics.anchor("story", story.host, story.rule, story.entity)
        spark = metrics.draw_spark(
            spark_id, field, line.values[field], hour, metrics.open_spans(story, rule)
        )
    changes = [
        (change.at, change.before, change.state, change_value(rule, change.value))
        for change in story.changes
    ]
    return AlarmLine(story, spark, changes)


def change_value(rule: Rule | None, value: float | None) -> str:
    """Format the value of a change.

    A share of a contract, a rate and a time to full are not values of the metric itself, so
    each has a format of its own.
    """
    if value is None or rule is None or len(rule.conditions) != 1:
        return "" if value is None else f"{value:.3g}"
    condition = rule.conditions[0]
    if condition.contract:
        return f"{format.metric('_ratio', value)} of its contract"
    if condition.measure != "value":
        return f"{value:.3g} {'per second' if condition.measure == 'rate' else 's until full'}"
    return format.metric(condition.field, value)
