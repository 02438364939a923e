# SPDX-License-Identifier: Apache-2.0
"""/console/incidents: the list of incidents, open first, and the page of an incident.

The page of an incident shows the phases from the first missed sample until closing, the
timeline, and the actions that an operator can take now. The sections below build the actions,
the phases and the timeline as pure functions. The last sections render the pages and run the
actions.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any, Final
from urllib.parse import quote

from holdfast.api.holdfast_v1 import incidents, switches
from holdfast.api.request import Request, Response
from holdfast.console import api_calls
from holdfast.console import switches as switch_pages
from holdfast.console.format import LENGTHS, address, read_time
from holdfast.console.pages import PREFIX, again, away, page, part
from holdfast.model.errors import Conflict, HoldfastError
from holdfast.model.incident import (
    ABORTED,
    FAILED,
    GUEST,
    HELD,
    HOST,
    KINDS,
    LIVING,
    RUNNING,
    WORK,
    entries,
)
from holdfast.model.observation import Observed
from holdfast.model.operation import SKIPPED
from holdfast.model.state_machines import INCIDENT
from holdfast.recovery import timeline
from holdfast.recovery.timeline import MoveEnded, MovePostponed, StatusChanged

# Operator actions on an incident, and the command for each. Pure.


MASS_FAILURE: Final = "mass_failure"


@dataclass(frozen=True)
class Order:
    """A form with a button: its target, its text and the equivalent command."""

    name: str
    label: str
    what: str
    command: Sequence[str]
    kind: str = ""
    needs_reason: bool = True
    confirm: str = ""
    hidden: Mapping[str, str] = field(default_factory=dict)  # hidden form fields


def possible(
    case: Mapping[str, Any], may: Callable[[str], bool], domain: str = ""
) -> Sequence[Order]:
    """Return the actions that the state of the incident and the caller's roles allow.

    The actions come in the order in which an operator thinks of them. `domain` is the rack or
    zone of the host; empty if unknown.
    """
    rules = {name: f"holdfast:incident:{name}" for name in _ALL}
    return [order for order in _possible(case, domain) if may(rules[order.name])]


def waits_for_approval(case: Mapping[str, Any]) -> bool:
    """Return whether the mass-failure guard holds the incident."""
    return bool(case["status"] == HELD and _says_no(case) == MASS_FAILURE)


_ALL: Final = ("retry", "approve", "confirm-off", "abort")


def _possible(case: Mapping[str, Any], domain: str) -> Iterator[Order]:
    own, details = case["id"], case["details"]
    tried = case["status"] in (FAILED, ABORTED) and case["kind"] in WORK
    left = any(server["status"] == FAILED for server in case.get("servers", ()))
    if tried and (left or not details.get("back_at")):
        explanation = "The guards run again, and that the host is off must be proven anew."
        if details.get("back_at"):
            explanation = "The host is in use again: servers that did not leave it start there."
        yield Order(
            "retry", "Try again", explanation, _command("retry", own), "main", needs_reason=False
        )
    if waits_for_approval(case):
        yield _approval(domain)
    if case["status"] in LIVING and case["kind"] == HOST and _lacks_proof(details):
        explanation = (
            "Its servers are started elsewhere on your word: if it is not off, they run twice and"
            " destroy their disks. Look at the machine, or pull the plug, before you say it."
        )
        command = _command("confirm-off", own, "--reason", "TEXT")
        sure = f"Is {case['host']} off, seen with your own eyes?"
        yield Order(
            "confirm-off", f"{case['host']} is off", explanation, command, "bad", confirm=sure
        )
    if case["status"] in LIVING:
        explanation = "Nothing more is begun for it; servers that are on their way arrive."
        command = _command("abort", own, "--reason", "TEXT")
        sure = "Begin nothing more for this incident?"
        yield Order("abort", "Abort", explanation, command, "bad", confirm=sure)


def _approval(domain: str) -> Order:
    """Build the approval of a mass failure.

    The approval lifts the guard, so the text names the place.
    """
    where = f"in {domain}" if domain else "everywhere"
    explanation = f"So much did fail {where}: what is held for that {where} goes on, for an hour."
    if not domain:
        explanation += " It counts for every rack, because the rack of this host is unknown."
    command = switch_pages.approve_command({"domain": domain})
    sure = f"Let recovery go on {where}, however many hosts are down there, for an hour?"
    label = f"Approve: so much did fail {where}"
    hidden = {"domain": domain}
    return Order("approve", label, explanation, command, "bad", confirm=sure, hidden=hidden)


def _command(*words: str) -> Sequence[str]:
    return ("holdfast", "incident", *words)


def _says_no(case: Mapping[str, Any]) -> str:
    """Return the first guard that denies recovery; the first denial decides."""
    return next((verdict["guard"] for verdict in case["verdicts"] if not verdict["passed"]), "")


def _lacks_proof(details: Mapping[str, Any]) -> bool:
    return not details.get("evidence") and not details.get("confirmed_off")


# Phases of an incident: noticed, judged, fenced, moved, verified, in order from the first
# missed sample. Pure; the incident is in the form of the API.
#
#     [Phase("noticed", …), Phase("judged", …), …]


PHASE_DONE, BUSY, TO_COME = "done", "under way", "to come"
#: The phase of each step, by incident kind. A step that a site inserted is a phase of its own.
_OF: Final[Mapping[str, Mapping[str, str]]] = {
    "host": {
        "guards": "judged",
        "fence": "fenced",
        "force_down": "forced down and repaired",
        "repair": "forced down and repaired",
        "prepare": "moved",
        "move": "moved",
        "verify": "verified",
        "report": "closed",
    },
    "guest": {
        "guards": "judged",
        "stop": "stopped",
        "start": "started",
        "confirm": "verified",
        "elsewhere": "moved",
        "report": "closed",
    },
    "process": {
        "guards": "judged",
        "disable": "disabled",
        "confirm": "verified",
        "report": "closed",
    },
}
#: An observer that reports a time longer before the opening than this has a wrong clock.
LONGEST: Final = timedelta(days=1)
#: The least width of a phase as a share of the bar, so the user can see it and point at it.
_LEAST: Final = 0.03


@dataclass(frozen=True)
class Phase:
    """A phase of an incident. `x` and `width` are percent of the bar; 0 for phases to come."""

    name: str
    state: str
    begin: datetime | None
    end: datetime | None
    sentence: str = ""
    x: float = 0.0
    width: float = 0.0

    @property
    def seconds(self) -> float:
        if self.begin is None or self.end is None:
            return 0.0
        return max(0.0, (self.end - self.begin).total_seconds())

    @property
    def slug(self) -> str:
        return self.name.split()[0]


def first(case: Mapping[str, Any], observations: Sequence[Mapping[str, Any]] = ()) -> datetime:
    """Return the time of the first missed sample: the earliest time in any evidence or report.

    Ignores times after the opening, and times more than LONGEST before it.
    """
    opened = read_time(case["opened_at"])
    times_written = [
        *_sinces(case["details"].get("seen")),
        *(row.get("since") for row in observations),
    ]
    times_written += [report["generated_at"] for report in case["reports"]]
    times = [
        at
        for text in times_written
        if (at := api_calls.time(text)) and opened - LONGEST <= at <= opened
    ]
    return min([opened, *times])


def _sinces(votes: Any) -> Iterator[Any]:
    for vote in api_calls.votes(votes):
        yield vote.get("since")
        for network in api_calls.networks(vote).values():
            if network.get("health") == "down":
                yield network.get("since")


def phases(case: Mapping[str, Any], begin: datetime, now: datetime) -> Sequence[Phase]:
    """Return the phases from the first missed sample on, without gaps.

    Phases to come have no times.
    """
    opened = read_time(case["opened_at"])
    symptom = str(case["seen"] or case["cause"])
    drawn = [Phase("noticed", PHASE_DONE, begin, opened, symptom)]
    if retried := api_calls.time(case["details"].get("retried_at")):
        tried = entries(case["details"].get("attempts"))
        attempts = "; ".join(f"{attempt['status']}: {attempt['sentence']}" for attempt in tried)
        drawn.append(Phase("tried before", PHASE_DONE, opened, retried, attempts))
    for name, steps in _grouped(case):
        drawn.append(_phase(name, list(steps), drawn[-1].end, now))
    drawn = [_with_holds(phase, case) if phase.name == "judged" else phase for phase in drawn]
    if api_calls.known(case["details"].get("evidence")).get("kind") != "fenced":
        drawn = [
            replace(phase, name="proven off") if phase.name == "fenced" else phase
            for phase in drawn
        ]
    return _drawn([*drawn, *_rest(case, drawn, now)])


def _grouped(case: Mapping[str, Any]) -> Iterator[tuple[str, Iterator[Mapping[str, Any]]]]:
    of = _OF.get(case["kind"], {})
    shown = [step for step in case["steps"] if step["status"] != SKIPPED]
    return groupby(shown, key=lambda step: of.get(step["name"], step["name"]))


def _phase(
    name: str, steps: Sequence[Mapping[str, Any]], begin: datetime | None, now: datetime
) -> Phase:
    sentences = "; ".join(step["sentence"] for step in steps if step["sentence"])
    states = {step["status"] for step in steps}
    if begin is None or states == {TO_COME}:
        return Phase(name, TO_COME, None, None, sentences)
    if states != {PHASE_DONE}:
        return Phase(name, BUSY, begin, max(begin, now), sentences)
    ended = [at for step in steps if (at := api_calls.time(step["finished_at"]))]
    return Phase(name, PHASE_DONE, begin, max([begin, *ended]), sentences)


def _with_holds(judged: Phase, case: Mapping[str, Any]) -> Phase:
    """Add to the phase every reason for which recovery was held, each once."""
    reasons = [
        event.sentence
        for event in _timeline(case)
        if isinstance(event.data, StatusChanged)
        and event.data.status == HELD
        and event.data.reason != judged.sentence
    ]
    return replace(judged, sentence="; ".join([*dict.fromkeys(reasons), judged.sentence]))


def _rest(case: Mapping[str, Any], drawn: Sequence[Phase], now: datetime) -> Iterator[Phase]:
    """Yield the phase after the last step: an end by an operator, or an incident without steps."""
    last, closed = drawn[-1], api_calls.time(case["closed_at"])
    if last.end is None or last.state != PHASE_DONE or last.name == "closed":
        return
    if closed is not None and closed > last.end:
        yield Phase(f"{case['status']}", PHASE_DONE, last.end, closed, case["sentence"])
    elif closed is None:
        yield Phase("open", BUSY, last.end, max(last.end, now), case["sentence"])


def _drawn(rows: Sequence[Phase]) -> Sequence[Phase]:
    lived = [phase for phase in rows if phase.begin is not None]
    total = sum(phase.seconds for phase in lived) or 1.0
    shares = [max(phase.seconds / total, _LEAST) for phase in lived]
    places, x = iter(shares), 0.0
    drawn = []
    for row in rows:
        if row.begin is None:
            drawn.append(row)
            continue
        width = 100 * next(places) / sum(shares)
        drawn.append(replace(row, x=round(x, 3), width=round(width, 3)))
        x += width
    return drawn


def total(listed: Sequence[Phase]) -> float:
    return sum(phase.seconds for phase in listed)


# The timeline of an incident: observations, decisions, steps, moves, repairs of reservations,
# and the return of the host. Pure.


SEEN, DECIDED, DONE, MOVED, REPAIRED, HOST_CHANGE, PERSON = (
    "seen",
    "decided",
    "done",
    "moved",
    "repaired",
    "host",
    "person",
)
_LEASE: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}")


@dataclass(frozen=True)
class Event:
    """An entry of the timeline."""

    at: datetime
    kind: str
    sentence: str
    lease: str = ""  # id of the lease whose page shows more

    def after(self, begin: datetime) -> float:
        return (self.at - begin).total_seconds()


@dataclass(frozen=True)
class Sight:
    """The view of a monitor on a network: health, since when, confirmed by, and reported when."""

    observer: str
    network: str
    health: str
    since: datetime | None
    confirmed: str
    said: datetime | None = None


def sights(votes: Any) -> Sequence[Sight]:
    """Return the network views of the monitors that voted the host down."""
    return [
        _sight(str(vote.get("observer", "")), name, report, api_calls.time(vote.get("said_at")))
        for vote in api_calls.votes(votes)
        for name, report in api_calls.networks(vote).items()
    ]


def _sight(observer: str, network: str, report: Mapping[str, Any], at: datetime | None) -> Sight:
    confirmed = report.get("confirmed_by")
    by = ", ".join(map(str, confirmed)) if isinstance(confirmed, list) else ""
    since = api_calls.time(report.get("since"))
    return Sight(observer, network, str(report.get("health", "")), since, by, at)


def events(
    case: Mapping[str, Any],
    lines: Sequence[Mapping[str, Any]],
    observed: Sequence[Mapping[str, Any]] = (),
) -> Sequence[Event]:
    """Return the timeline.

    `lines` are audit lines about the host; `observed` are observations of the host.
    """
    listed = [
        *_seen(case),
        *_reported(case),
        *(_observed(row) for row in observed),
        *_written(case),
        *_steps(case),
        *_attempts(case),
        *_guest(case),
        *_moves(case),
        *_back(case),
        *(_line(line) for line in lines),
    ]
    return sorted(listed, key=lambda event: event.at)


def _seen(case: Mapping[str, Any]) -> Iterator[Event]:
    for sight in sights(case["details"].get("seen")):
        if sight.since is not None and sight.health == "down":
            by = f" ({sight.confirmed})" if sight.confirmed else ""
            yield Event(sight.since, SEEN, f"{sight.network} down, says {sight.observer}{by}")


def _reported(case: Mapping[str, Any]) -> Iterator[Event]:
    """Yield the arrival of each report, and the reported time of the failure if earlier."""
    for report in case["reports"]:
        came, made = read_time(report["received_at"]), api_calls.time(report.get("generated_at"))
        if made is not None and came - LONGEST <= made < came:
            yield Event(made, SEEN, f"it happened, says a {report['type']} report")
        sentence = f"a {report['type']} report came in: notification {report['id']}"
        yield Event(came, SEEN, sentence)


def _observed(row: Mapping[str, Any]) -> Event:
    """Place an observation at its `since` time; with a wrong clock at the time of arrival."""
    names = ("id", "observer", "subject", "kind", "state", "since")
    observation = Observed(
        **{name: row[name] for name in names}, evidence=api_calls.known(row["evidence"])
    )
    received = row["created_at"]
    at = observation.since if received - LONGEST <= observation.since <= received else received
    details = "" if observation.what == observation.state else f": {observation.what}"
    return Event(
        at, SEEN, f"{observation.kind} {observation.state}, says {observation.observer}{details}"
    )


def _written(case: Mapping[str, Any]) -> Iterator[Event]:
    """Yield the events of the incident, except events that repeat a step or the end of a move.

    Events about moves that remain are failed attempts.
    """
    steps = {step["sentence"] for step in case["steps"]}
    moves = {server["server"]: server for server in case["servers"]}
    for event in _timeline(case):
        data = event.data
        if isinstance(data, MoveEnded | MovePostponed):
            move = moves.get(data.server_id, {"name": data.server_id, "ended_at": None})
            if event.at != api_calls.time(move["ended_at"]):
                yield Event(event.at, MOVED, f"{move['name']}: {data.outcome}")
        elif not (
            isinstance(data, StatusChanged) and data.status == RUNNING and data.reason in steps
        ):
            yield Event(event.at, PERSON if event.by_person else DECIDED, event.sentence)


def _timeline(case: Mapping[str, Any]) -> list[timeline.Event]:
    """Return the incident's timeline from the form of the API."""
    return [
        timeline.Event(
            read_time(event["at"]),
            event["actor"],
            timeline.read(event["kind"], event["data"]),
            event["sentence"],
        )
        for event in case["timeline"]
    ]


def _steps(case: Mapping[str, Any]) -> Iterator[Event]:
    for step in case["steps"]:
        if step["finished_at"]:
            yield Event(read_time(step["finished_at"]), DONE, f"{step['name']}: {step['sentence']}")


def _attempts(case: Mapping[str, Any]) -> Iterator[Event]:
    """Yield the fence requests of this and earlier attempts, and the steps of earlier attempts."""
    details = case["details"]
    before = entries(details.get("attempts"))
    for attempt in (*before, details):
        for entry in entries(attempt.get("fence_requests")):
            sentence = (
                "the fence was asked to switch it off" if entry.get("asked") else "fencing failed"
            )
            answer = entry.get("refused") or entry.get("failed")
            joined = " and answered: " if entry.get("asked") else ": "
            yield Event(
                read_time(entry["at"]), DONE, f"{sentence}{joined}{answer}" if answer else sentence
            )
    for number, attempt in enumerate(before, 1):
        for step in attempt["steps"]:
            if step["at"]:
                sentence = f"attempt {number}: {step['name']}: {step['sentence']}"
                yield Event(read_time(step["at"]), DONE, sentence)


def _guest(case: Mapping[str, Any]) -> Iterator[Event]:
    """Yield when a guest failed and when it ran again."""
    if case.get("kind") != GUEST:
        return
    name = case.get("server_name") or case.get("server") or "it"
    for key, kind, change in (("reported_at", SEEN, "failed"), ("ran_again_at", DONE, "ran again")):
        if (at := api_calls.time(case["details"].get(key))) is not None:
            yield Event(at, kind, f"{name} {change}")


def _moves(case: Mapping[str, Any]) -> Iterator[Event]:
    for server in case["servers"]:
        where = f"{server['from']} → {server['to']}" if server["to"] else server["from"]
        if server["started_at"]:
            now = f"{where}, under way" if not server["ended_at"] else f"leaves {server['from']}"
            yield Event(read_time(server["started_at"]), MOVED, f"{server['name']}: {now}")
        if server["ended_at"]:
            sentence = f"{server['name']}: {where}, {server['status']}: {server['message']}"
            yield Event(read_time(server["ended_at"]), MOVED, sentence)


def _back(case: Mapping[str, Any]) -> Iterator[Event]:
    if (at := api_calls.time(case["details"].get("back_at"))) is not None:
        yield Event(at, HOST_CHANGE, f"{case['host']} came back and is in use again")


def _line(line: Mapping[str, Any]) -> Event:
    lease = line["subject"] if _LEASE.fullmatch(line["subject"]) else ""
    return Event(line["at"], REPAIRED if lease else HOST_CHANGE, line["sentence"], lease)


PATH: Final = f"{PREFIX}/incidents"
#: The number of closed incidents per page, and the most open incidents shown.
CLOSED, OPEN = 50, 200
FILTERS: Final = ("status", "kind", "host", "segment", "open")
#: For this long after its end an incident shows audit lines about the host and reservations.
AFTER: Final = timedelta(days=1)
MOST_LINES: Final = 200
AUDIT: Final = "holdfast:audit:list"
Given = Mapping[str, str]
_NOTHING_SAID: Final[Given] = {}


# The list of incidents


def index(request: Request) -> Response:
    return page(request, "incidents.html", title="Incidents", **_list(request))


def listed(request: Request) -> Response:
    """Render only the tables, for the refresh of an open page."""
    return part(request, "incidents_list.html", **_list(request))


def _list(request: Request) -> dict[str, Any]:
    filters = {
        name: str(request.query[name]).strip() for name in FILTERS if request.query.get(name)
    }
    marker = str(request.query.get("marker", ""))
    wants_open = filters.get("open") != "false" and filters.get("status", LIVING[0]) in LIVING
    wants_over = filters.get("open") != "true" and filters.get("status") not in LIVING
    living = (
        _found(request, {**filters, "open": "true"}, OPEN + 1) if wants_open and not marker else []
    )
    query = {**filters, "open": "false"} | ({"marker": marker} if marker else {})
    over = _found(request, query, CLOSED + 1) if wants_over else []
    shown = over[:CLOSED]
    return {
        "given": {name: filters.get(name, "") for name in FILTERS},
        "filtered": bool(filters or marker),
        "marker": marker,
        "living": living[:OPEN],
        "more_open": len(living) > OPEN,
        "over": shown,
        "wants_over": wants_over,
        "older": address(PATH, {**filters, "marker": shown[-1]["id"]})
        if len(over) > CLOSED
        else "",
        "newest": address(PATH, filters),
        "part": address(f"{PATH}/list", filters | ({"marker": marker} if marker else {})),
        "statuses": list(INCIDENT),
        "kinds": list(KINDS),
        "segments": sorted(request.services.store.incident_queries.segment_names().values()),
        "command": _incident_command(filters, marker),
    }


def _found(request: Request, query: Mapping[str, str], limit: int) -> list[dict[str, Any]]:
    answer = api_calls.call(request, incidents.index, query={**query, "limit": limit})
    return [
        {**incident, "took": _took(incident, request.services.clock.now())}
        for incident in answer["incidents"]
    ]


def _took(incident: Mapping[str, Any], now: datetime) -> float:
    end = read_time(incident["closed_at"]) if incident["closed_at"] else now
    return max(0.0, (end - read_time(incident["opened_at"])).total_seconds())


def _incident_command(filters: Mapping[str, str], marker: str) -> list[str]:
    line = ["holdfast", "incident", "list"]
    for name, value in filters.items():
        if name == "open":
            line.append("--open" if value == "true" else "--closed")
        else:
            line += [f"--{name}", value]
    return line + (["--marker", marker] if marker else [])


# The page of an incident


def show(request: Request) -> Response:
    return _page(request)


def body(request: Request) -> Response:
    """Render only the changing part, for the refresh of an open page."""
    return part(request, "incident_parts.html", **_case(request))


def _page(
    request: Request, why: str = "", status: int = 200, reasons: Given = _NOTHING_SAID
) -> Response:
    """Render the page. `reasons` holds the entered reasons, by the name of the action."""
    shown = {**_case(request), "given": reasons}
    title = f"{shown['case']['host'] or shown['case']['subject']}, {shown['case']['status']}"
    return page(
        request, "incident.html", title=title, status=status, here=_own(request), why=why, **shown
    )


def _case(request: Request) -> dict[str, Any]:
    own = {"incident_id": request.path["incident_id"]}
    case = api_calls.call(request, incidents.show, path=own)["incident"]
    story = api_calls.call(request, incidents.explain, path=own)["explanation"]
    observations = request.services.store.incident_queries.observations(case["id"])
    now = request.services.clock.now()
    begin = first(case, observations)
    drawn = phases(case, begin, now)
    lines = _lines(request, case, begin)
    shown_lines = lines[:MOST_LINES]
    return {
        "case": case,
        "path": f"{PATH}/{case['id']}",
        "story": story,
        "seen": observations,
        "sights": sights(case["details"].get("seen")),
        "votes": api_calls.votes(case["details"].get("seen")),
        "phases": drawn,
        "took": total(drawn),
        "begin": begin,
        "events": events(case, shown_lines, observations),
        "more_lines": len(lines) > len(shown_lines),
        "repaired": [event for event in events({**_NOTHING, **own}, shown_lines) if event.lease],
        "orders": possible(case, request.allowed, _domain(request, case)),
        "given": _NOTHING_SAID,
        "steps_done": sum(bool(step["finished_at"]) for step in case["steps"]),
        "moves_ended": sum(bool(server["ended_at"]) for server in case["servers"]),
        "paused": _paused(request, case),
        "lengths": LENGTHS,
        "pause_command": switch_pages.pause_command({}),
    }


_NOTHING: Final[Mapping[str, Any]] = {
    "details": {},
    "reports": (),
    "timeline": (),
    "steps": (),
    "servers": (),
}


def _lines(
    request: Request, case: Mapping[str, Any], begin: datetime
) -> Sequence[Mapping[str, Any]]:
    """Return audit lines about the host and about reservations on the host.

    Returns one line more than the page shows if there are more. The lines cover all projects,
    so only an administrator with access to the audit log gets them.
    """
    if not (request.allowed(AUDIT) and request.caller.is_admin):
        return ()
    if case["kind"] != HOST or not case["host"]:
        return ()
    over = read_time(case["closed_at"]) + AFTER if case["closed_at"] else None
    lines: Sequence[Mapping[str, Any]] = request.services.store.audit.naming(
        case["host"], begin, over, MOST_LINES + 1
    )
    return lines


def _domain(request: Request, case: Mapping[str, Any]) -> str:
    """Return the rack or zone for an approval; empty unless the incident waits for approval."""
    return (
        request.services.store.incident_queries.domain(case["host"])
        if waits_for_approval(case)
        else ""
    )


def _paused(request: Request, case: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the pauses that apply: everywhere, and in the segment of the incident."""
    if not request.allowed("holdfast:pause:list"):
        return {"everywhere": None, "segment": None}
    rows = api_calls.call(request, switches.list_pauses)["pauses"]
    of = {row["segment_id"] or "": row for row in rows}
    segment = case["segment_id"]
    return {"everywhere": of.get(""), "segment": of.get(segment) if segment else None}


# Actions


def retry(request: Request) -> Response:
    return _order(request, "retry", incidents.retry, "it is tried again")


def abort(request: Request) -> Response:
    return _order(request, "abort", incidents.abort, "aborted: nothing more is begun")


def confirm_off(request: Request) -> Response:
    message = "confirmed: the host is off"
    return _order(request, "confirm-off", incidents.confirm_off, message)


def approve(request: Request) -> Response:
    """Approve a mass failure in the rack or zone of the host only, as the page promised.

    Raises Conflict if the host's rack or zone has changed since.
    """
    own = {"incident_id": request.path["incident_id"]}
    try:
        case = api_calls.call(request, incidents.show, path=own)["incident"]
        domain = request.services.store.incident_queries.domain(case["host"])
        body = {"reason": switch_pages.reason(request.body)} | (
            {"domain": domain} if domain else {}
        )
        if request.body.get("domain", domain) != domain:
            raise Conflict(f"its host is in {domain or 'no known rack'} now: reload the page")
        held = api_calls.call(request, switches.approve, body=body)["approval"]["held"]
    except HoldfastError as error:
        return _again(request, "approve", error)
    where = f"in {domain}" if domain else "everywhere"
    return away(
        _own(request),
        message=f"approved {where} for an hour: {held} held incidents are evaluated again",
    )


def _order(
    request: Request, name: str, handler: Callable[[Request], Response], message: str
) -> Response:
    own = {"incident_id": request.path["incident_id"]}
    may_be_blank = name == "retry" and not request.body.get("reason", "").strip()
    try:
        body = {} if may_be_blank else {"reason": switch_pages.reason(request.body)}
        api_calls.call(request, handler, path=own, body=body)
    except HoldfastError as error:
        return _again(request, name, error)
    return away(_own(request), message=message)


def _again(request: Request, name: str, error: HoldfastError) -> Response:
    """Render the page again with the error and the entered text."""
    reasons = {name: request.body.get("reason", "")}
    return again(request, lambda: _page(request, error.message, error.status, reasons), error)


def _own(request: Request) -> str:
    return f"{PATH}/{quote(request.path['incident_id'], safe='')}"
