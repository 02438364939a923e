# SPDX-License-Identifier: Apache-2.0
"""/console/leases: the list of leases, and the form by which one is booked: first checked by a dry
run, then booked; a refusal says why, and what would fit."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final
from urllib.parse import parse_qs, urlencode, urlsplit

from holdfast.api.ask import Ask, Reply
from holdfast.api.reservation_v1 import leases
from holdfast.console import inside, lease_chain
from holdfast.console.booking import DEFAULTS, KINDS, Wish
from holdfast.console.pages import PREFIX, away, page, part
from holdfast.model import moves
from holdfast.model.errors import HoldfastError, InvalidInput

HERE: Final = f"{PREFIX}/leases"
LIMIT: Final = 50
_ASKED: Final = ("status", "name", "project_id", "end_after", "start_before", "sort", "marker")
_SORTS: Final[Mapping[str, str]] = {
    "start_date:desc": "start, last first",
    "start_date": "start, first first",
    "end_date": "end, first first",
    "created_at:desc": "booked, last first",
    "name": "name",
    "status": "state",
}
#: Of a lease that is only looked at.
_UNNAMED: Final = "unnamed"


# the list


def index(ask: Ask) -> Reply:
    asked = _asked(ask)
    try:
        shown, why, status = _listed(ask, asked), "", 200
    except InvalidInput as error:
        shown = _nothing(asked)
        why, status = error.message, error.status
    return page(
        ask,
        "leases.html",
        title="Leases",
        status=status,
        statuses=sorted(moves.LEASE),
        sorts=_SORTS,
        why=why,
        part_address=f"{HERE}/rows?{urlencode(_said(asked))}",
        same=_command(asked),
        **shown,
    )


def rows(ask: Ask) -> Reply:
    return part(ask, "leases_rows.html", **_listed(ask, _asked(ask)))


def _asked(ask: Ask) -> dict[str, str]:
    asked = {name: str(ask.query.get(name, "")).strip() for name in _ASKED}
    if not ask.caller.is_admin:
        asked["project_id"] = ""
    return {**asked, "sort": asked["sort"] or next(iter(_SORTS))}


def _said(asked: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in asked.items() if value}


def _listed(ask: Ask, asked: Mapping[str, str]) -> dict[str, Any]:
    answer = inside.call(ask, leases.index, query={**_said(asked), "limit": str(LIMIT)})
    found = [{**one, "holds": lease_chain.holds(one)} for one in answer["leases"]]
    more = ""
    for link in answer.get("leases_links", ()):
        marker = parse_qs(urlsplit(link["href"]).query)["marker"][0]
        more = f"{HERE}?{urlencode({**_said(asked), 'marker': marker})}"
    return {**_nothing(asked), "leases": found, "more": more}


def _nothing(asked: Mapping[str, str]) -> dict[str, Any]:
    first = f"{HERE}?{urlencode({**_said(asked), 'marker': ''})}"
    return {"asked": asked, "leases": (), "more": "", "first_address": first}


def _command(asked: Mapping[str, str]) -> list[str]:
    words = ["holdfast", "lease", "list"]
    for name, value in _said(asked).items():
        option = "project" if name == "project_id" else name.replace("_", "-")
        words += [f"--{option}", value]
    return [*words, "--limit", str(LIMIT)]


# a new one


def new(ask: Ask) -> Reply:
    return _form(ask, Wish.of(_named(ask)), None)


def _named(ask: Ask) -> dict[str, str]:
    """Who comes from the calendar with a time need not think of a name."""
    given = {name: str(ask.query[name]) for name in DEFAULTS if name in ask.query}
    if not given.get("name") and (given.keys() & {"start", "where"}):
        given["name"] = f"{ask.caller.user_id}-{ask.services.clock.now():%m%d-%H%M}"[:80]
    return given


def create(ask: Ask) -> Reply:
    """By a dry run (`do` is check), or for good."""
    verb, _, instead = str(ask.body.get("do", "check")).partition("@")
    wish = Wish.of(_other_dates(ask.body, instead))
    try:
        made = _asked_for(ask, wish, dry_run=verb != "book")
    except HoldfastError as error:
        refused = {"why": {"message": error.message, **error.details}, "verb": "book"}
        return _form(ask, wish, outcome(**refused, command=wish.command()), error.status)
    if verb != "book":
        return _form(ask, wish, outcome(lease=made, command=wish.command()))
    said, href = f"Lease {made['name']} is booked.", f"{HERE}/{made['id']}"
    if "part" in ask.body:
        return _form(ask, wish, outcome(done=said, href=href))
    return away(href, said=said)


def _other_dates(given: Mapping[str, str], instead: str) -> Mapping[str, str]:
    """What was filled in, at the time that a refusal offered."""
    start, _, end = instead.partition("/")
    if not end:
        return given
    return {**given, "start": _minute(start), "end": _minute(end)}


def _minute(said: str) -> str:
    return said[:16].replace("T", " ")


def _asked_for(ask: Ask, wish: Wish, dry_run: bool) -> Any:
    if dry_run and not wish["name"]:
        wish = replace(wish, given={**wish.given, "name": _UNNAMED})
    body = wish.body(ask.services.clock.now(), dry_run)
    return inside.call(ask, leases.create, body=body)["lease"]


def _form(ask: Ask, wish: Wish, found: Mapping[str, Any] | None, status: int = 200) -> Reply:
    """The page; what was found alone for our script, or the form alone for its dialog."""
    shown: dict[str, Any] = {"wish": wish, "kinds": KINDS, "outcome": found}
    if ask.body is not None and "part" in ask.body:
        return part(ask, "lease_outcome.html", **shown)
    if "part" in ask.query:
        return part(ask, "lease_sheet.html", heading="Book", inner="lease_form.html", **shown)
    return page(ask, "lease_new.html", title="New lease", status=status, **shown)


def outcome(**found: Any) -> dict[str, Any]:
    """What lease_outcome.html shows."""
    empty = {"done": "", "href": "", "lease": None, "differs": (), "why": None, "verb": ""}
    return {**empty, "command": (), "end": "", **found}
