# SPDX-License-Identifier: Apache-2.0
"""/console/incidents: what died and how it stands, the open ones first; and the page of one, from
the first missed sample to closed, with what a person can order about it."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final
from urllib.parse import quote

from holdfast.api.ask import Ask, Reply
from holdfast.api.holdfast_v1 import incidents, pauses
from holdfast.console import hearsay, inside, phases, switch_commands
from holdfast.console.addresses import address
from holdfast.console.incident_events import events, sights
from holdfast.console.incident_orders import possible, waits_for_approval
from holdfast.console.lengths import LENGTHS
from holdfast.console.pages import PREFIX, away, page, part
from holdfast.console.refusals import again
from holdfast.console.words import read_time
from holdfast.model.errors import Conflict, HoldfastError
from holdfast.model.incident import HOST, KINDS, LIVING
from holdfast.model.moves import INCIDENT

PATH: Final = f"{PREFIX}/incidents"
#: Of those that are over, so many on a page; of the others, so many at all.
CLOSED, OPEN = 50, 200
FILTERS: Final = ("status", "kind", "host", "segment", "open")
#: What becomes of a host, and of reservations on it, is told for so long after the incident.
AFTER: Final = timedelta(days=1)
MOST_LINES: Final = 200
AUDIT: Final = "holdfast:audit:list"
Given = Mapping[str, str]
_NOTHING_SAID: Final[Given] = {}


# many


def index(ask: Ask) -> Reply:
    return page(ask, "incidents.html", title="Incidents", **_list(ask))


def listed(ask: Ask) -> Reply:
    """The tables alone, when something changed."""
    return part(ask, "incidents_list.html", **_list(ask))


def _list(ask: Ask) -> dict[str, Any]:
    given = {name: str(ask.query[name]).strip() for name in FILTERS if ask.query.get(name)}
    marker = str(ask.query.get("marker", ""))
    wants_open = given.get("open") != "false" and given.get("status", LIVING[0]) in LIVING
    wants_over = given.get("open") != "true" and given.get("status") not in LIVING
    living = _found(ask, {**given, "open": "true"}, OPEN + 1) if wants_open and not marker else []
    asked = {**given, "open": "false"} | ({"marker": marker} if marker else {})
    over = _found(ask, asked, CLOSED + 1) if wants_over else []
    shown = over[:CLOSED]
    return {
        "given": {name: given.get(name, "") for name in FILTERS},
        "filtered": bool(given or marker),
        "marker": marker,
        "living": living[:OPEN],
        "more_open": len(living) > OPEN,
        "over": shown,
        "wants_over": wants_over,
        "older": address(PATH, {**given, "marker": shown[-1]["id"]}) if len(over) > CLOSED else "",
        "newest": address(PATH, given),
        "part": address(f"{PATH}/list", given | ({"marker": marker} if marker else {})),
        "statuses": list(INCIDENT),
        "kinds": list(KINDS),
        "segments": sorted(ask.services.store.cases.segment_names().values()),
        "command": _command(given, marker),
    }


def _found(ask: Ask, asked: Mapping[str, str], limit: int) -> list[dict[str, Any]]:
    answer = inside.call(ask, incidents.index, query={**asked, "limit": limit})
    return [{**one, "took": _took(one, ask.services.clock.now())} for one in answer["incidents"]]


def _took(one: Mapping[str, Any], now: datetime) -> float:
    end = read_time(one["closed_at"]) if one["closed_at"] else now
    return max(0.0, (end - read_time(one["opened_at"])).total_seconds())


def _command(given: Mapping[str, str], marker: str) -> list[str]:
    line = ["holdfast", "incident", "list"]
    for name, value in given.items():
        if name == "open":
            line.append("--open" if value == "true" else "--closed")
        else:
            line += [f"--{name}", value]
    return line + (["--marker", marker] if marker else [])


# one


def show(ask: Ask) -> Reply:
    return _page(ask)


def body(ask: Ask) -> Reply:
    """All that changes while it goes on."""
    return part(ask, "incident_parts.html", **_case(ask))


def _page(ask: Ask, why: str = "", status: int = 200, given: Given = _NOTHING_SAID) -> Reply:
    """`given` is what somebody typed, by the name of the order."""
    shown = {**_case(ask), "given": given}
    title = f"{shown['case']['host'] or shown['case']['subject']}, {shown['case']['status']}"
    return page(ask, "incident.html", title=title, status=status, here=_own(ask), why=why, **shown)


def _case(ask: Ask) -> dict[str, Any]:
    own = {"incident_id": ask.path["incident_id"]}
    case = inside.call(ask, incidents.show, path=own)["incident"]
    story = inside.call(ask, incidents.explain, path=own)["explanation"]
    seen = ask.services.store.cases.observations(case["id"])
    now = ask.services.clock.now()
    begin = phases.first(case, seen)
    drawn = phases.phases(case, begin, now)
    lines = _lines(ask, case, begin)
    told = lines[:MOST_LINES]
    return {
        "case": case,
        "path": f"{PATH}/{case['id']}",
        "story": story,
        "seen": seen,
        "sights": sights(case["details"].get("seen")),
        "votes": hearsay.votes(case["details"].get("seen")),
        "phases": drawn,
        "took": phases.total(drawn),
        "begin": begin,
        "events": events(case, told, seen),
        "more_lines": len(lines) > len(told),
        "repaired": [one for one in events({**_NOTHING, **own}, told) if one.lease],
        "orders": possible(case, ask.may, _domain(ask, case)),
        "given": _NOTHING_SAID,
        "steps_done": sum(one["status"] == "done" for one in case["steps"]),
        "moves_ended": sum(bool(one["ended_at"]) for one in case["servers"]),
        "paused": _paused(ask, case),
        "lengths": LENGTHS,
        "pause_command": switch_commands.pause({}),
    }


_NOTHING: Final[Mapping[str, Any]] = {
    "details": {},
    "reports": (),
    "timeline": (),
    "steps": (),
    "servers": (),
}


def _lines(ask: Ask, case: Mapping[str, Any], begin: datetime) -> Sequence[Mapping[str, Any]]:
    """Of the audit: what became of the host, and of reservations that had it. One more than are
    shown, if there are more. It is about all projects: who reads all of the audit reads it."""
    if not (ask.may(AUDIT) and ask.caller.is_admin):
        return ()
    if case["kind"] != HOST or not case["host"]:
        return ()
    over = read_time(case["closed_at"]) + AFTER if case["closed_at"] else None
    found: Sequence[Mapping[str, Any]] = ask.services.store.audit.naming(
        case["host"], begin, over, MOST_LINES + 1
    )
    return found


def _domain(ask: Ask, case: Mapping[str, Any]) -> str:
    """The rack or zone that an approval would be about."""
    return ask.services.store.cases.domain(case["host"]) if waits_for_approval(case) else ""


def _paused(ask: Ask, case: Mapping[str, Any]) -> Mapping[str, Any]:
    """Which switches stand: everywhere, and of its segment."""
    if not ask.may("holdfast:pause:list"):
        return {"everywhere": None, "segment": None}
    rows = inside.call(ask, pauses.index)["pauses"]
    of = {one["segment_id"] or "": one for one in rows}
    segment = case["segment_id"]
    return {"everywhere": of.get(""), "segment": of.get(segment) if segment else None}


# orders


def retry(ask: Ask) -> Reply:
    return _order(ask, "retry", incidents.retry, "it is tried again")


def abort(ask: Ask) -> Reply:
    return _order(ask, "abort", incidents.abort, "aborted: nothing more is begun")


def confirm_off(ask: Ask) -> Reply:
    said = "your word is taken: the host is off"
    return _order(ask, "confirm-off", incidents.confirm_off, said)


def approve(ask: Ask) -> Reply:
    """Where its host is, and nowhere else: that is what the page said."""
    own = {"incident_id": ask.path["incident_id"]}
    try:
        case = inside.call(ask, incidents.show, path=own)["incident"]
        domain = ask.services.store.cases.domain(case["host"])
        given = {"reason": ask.body.get("reason", "")} | ({"domain": domain} if domain else {})
        if ask.body.get("domain", domain) != domain:
            raise Conflict(f"its host is in {domain or 'no known rack'} now: look again")
        held = inside.call(ask, pauses.approve, body=given)["approval"]["held"]
    except HoldfastError as error:
        return _again(ask, "approve", error)
    where = f"in {domain}" if domain else "everywhere"
    return away(_own(ask), said=f"approved {where} for an hour: {held} held incidents look again")


def _order(ask: Ask, name: str, handler: Callable[[Ask], Reply], said: str) -> Reply:
    own = {"incident_id": ask.path["incident_id"]}
    given = ask.body.get("reason", "")
    try:
        inside.call(ask, handler, path=own, body={"reason": given} if given else {})
    except HoldfastError as error:
        return _again(ask, name, error)
    return away(_own(ask), said=said)


def _again(ask: Ask, name: str, error: HoldfastError) -> Reply:
    """The page once more, with what was wrong and what was entered."""
    missing = error.message.startswith("Missing parameter reason")
    why = "say why: it is kept for those who ask later" if missing else error.message
    given = {name: ask.body.get("reason", "")}
    return again(ask, lambda: _page(ask, why, error.status, given), error)


def _own(ask: Ask) -> str:
    return f"{PATH}/{quote(ask.path['incident_id'], safe='')}"
