# SPDX-License-Identifier: Apache-2.0
"""/console/leases: the list of leases, and the form for a new lease.

The form checks a lease with a dry run before it books. A refusal shows the reason and dates
that fit. The sections below read the form fields, and describe the state and history of a
lease.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, TypeVar
from urllib.parse import parse_qs, urlencode, urlsplit

from holdfast.api.request import Request, Response
from holdfast.api.reservation_v1 import leases
from holdfast.client import dates, syntax
from holdfast.console import api_calls
from holdfast.console.format import many
from holdfast.console.pages import PREFIX, away, page, part
from holdfast.model import state_machines
from holdfast.model.errors import HoldfastError, InvalidInput

# The booking form: its fields as an API request and as a command. Pure. The syntax is the
# syntax of the client: `+8h`, `vcpus>=8 and rack=rack-a`.
#
#     wish = Wish.of({"kind": "host", "count": "2", "where": "gpu=True", …})
#     wish.reservation()       # {"resource_type": "physical:host", "min": 2, …}
#     wish.command()           # ["holdfast", "lease", "create", "night", "--hosts", "2", …]


T = TypeVar("T")

#: Resource types that the form offers; the API offers more.
KINDS: Final[Mapping[str, str]] = {
    "host": "whole hosts",
    "slots": "slots for servers",
    "flavor": "slots of a flavor",
}
DEFAULTS: Final[Mapping[str, str]] = {
    "kind": "host",
    "name": "",
    "count": "1",
    "most": "",
    "where": "",
    "vcpus": "1",
    "memory_mb": "1024",
    "disk_gb": "10",
    "flavor": "",
    "start": "now",
    "end": "+24h",
    "before_end": "",
    "length": "8h",
    "earliest": "now",
}
_SEVERAL = re.compile(r"\s+and\s+|;|\n")


@dataclass(frozen=True)
class Wish:
    """The fields of the booking form; empty fields have their default."""

    given: Mapping[str, str]

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "Wish":
        said = {name: str(given.get(name, "")).strip() for name in DEFAULTS}
        return cls({name: said[name] or default for name, default in DEFAULTS.items()})

    def __getitem__(self, name: str) -> str:
        return self.given[name]

    def reservation(self) -> dict[str, Any]:
        """Return the single entry of the lease's `reservations`."""
        kind = self["kind"]
        if kind not in KINDS:
            raise InvalidInput(f"kind: there is no {kind[:40]!r}; one of {', '.join(KINDS)}")
        if kind == "host":
            low = self._number("count", 1)
            high = self._number("most", 1) if self["most"] else low
            about = {"min": low, "max": high, "hypervisor_properties": ""}
            return {"resource_type": "physical:host", **about, **self._where()}
        amount = {"amount": self._number("count", 1), "affinity": None}
        if kind == "flavor":
            return {"resource_type": "flavor:instance", "flavor_id": self["flavor"], **amount}
        sizes = {name: self._number(name, 0) for name in ("vcpus", "memory_mb", "disk_gb")}
        return {"resource_type": "virtual:instance", **sizes, **amount, **self._where()}

    def dates(self, now: datetime) -> dict[str, Any]:
        """Return start, end and before-end in wire format; +8h counts from the start."""
        start = _date(self["start"], "start")
        origin = _moment(start.at, now, "start")
        announced = self["before_end"]
        return {
            "start_date": _moment(start.on_wire, now, "start"),
            "end_date": _moment(_date(self["end"], "end").on_wire, origin, "end"),
            "before_end_date": (
                _moment(_date(announced, "before end").on_wire, origin, "before end")
                if announced
                else None
            ),
        }

    def body(self, now: datetime, dry_run: bool) -> dict[str, Any]:
        """Return the body for POST /reservation/v1/leases."""
        if not self["name"]:
            raise InvalidInput("name: give the lease a name, so that you find it again")
        found = {"name": self["name"], **self.dates(now), "reservations": [self.reservation()]}
        return {**found, "dry_run": True} if dry_run else found

    def search(self, now: datetime, limit: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the reservation and the other parameters of GET /holdfast/v1/availability."""
        try:
            length = dates.span(self["length"])
        except ValueError as error:
            raise InvalidInput(f"length: {error}") from None
        first = _date(self["earliest"], "earliest")
        asked: dict[str, Any] = {"duration_s": int(length.total_seconds()), "limit": limit}
        if first != dates.NOW:
            asked["from"] = _moment(first.on_wire, now, "earliest")
        return self.reservation(), asked

    # Equivalent commands

    def command(self) -> list[str]:
        words = ["holdfast", "lease", "create", self["name"] or "NAME", *self._what()]
        words += ["--start", self["start"], "--end", self["end"]]
        announced = self["before_end"]
        return [*words, "--before-end-date", announced] if announced else words

    def search_command(self) -> list[str]:
        words = ["holdfast", "availability", *self._what(), "--for", self["length"]]
        return words if self["earliest"] == "now" else [*words, "--from", self["earliest"]]

    def _what(self) -> list[str]:
        if self["kind"] == "host":
            number = ["--hosts", self["count"]]
            if self["most"]:
                number = ["--min", self["count"], "--max", self["most"]]
            return [*number, *(word for one in self._conditions() for word in ("--where", one))]
        if self["kind"] == "flavor":
            told = f"flavor:instance,flavor_id={self['flavor']},amount={self['count']}"
            return ["--reservation", told]
        sizes = ",".join(f"{name}={self[name]}" for name in ("vcpus", "memory_mb", "disk_gb"))
        told = f"virtual:instance,{sizes},amount={self['count']}"
        if self["where"]:
            told += f",resource_properties={self._as_said()}"
        return ["--reservation", told]

    def _as_said(self) -> str:
        """Return the conditions as an expression, or as entered if invalid.

        The page shows the error beside the command.
        """
        try:
            return self._expression()
        except InvalidInput:
            return self["where"]

    # Parsing of fields

    def _number(self, name: str, least: int) -> int:
        said = self[name]
        if not said.isdecimal() or len(said) > 9 or int(said) < least:
            raise InvalidInput(f"{name}: {said[:40]!r} is not a number from {least} on")
        return int(said)

    def _where(self) -> dict[str, str]:
        return {"resource_properties": self._expression()}

    def _expression(self) -> str:
        try:
            return syntax.expression(self._conditions())
        except ValueError as error:
            raise InvalidInput(f"where: {error}") from None

    def _conditions(self) -> list[str]:
        said = self["where"]
        if said.startswith("["):
            return [said]
        return [part.strip() for part in _SEVERAL.split(said) if part.strip()]


def _date(text: str, field: str) -> dates.Date:
    try:
        return dates.parse(text)
    except ValueError as error:
        raise InvalidInput(f"{field}: {error}") from None


def _moment(of: Callable[[datetime], T], origin: datetime, field: str) -> T:
    """Resolve a date relative to `origin`. Raises InvalidInput if the date is out of range."""
    try:
        return of(origin)
    except (ValueError, OverflowError) as error:
        raise InvalidInput(f"{field}: {error}") from None


# The states of a lease: passed, current and next states, flags, and repairs. Pure: the API's
# view of a lease and its audit lines in, sentences out.


DONE, NOW, NEXT = "done", "now", "next"
#: Phrases of audit lines about repairs of the lease's resources.
_HEALED: Final = (
    "got something else",
    "misses what failed",
    "is whole again",
    "was replaced",
    "not all joined",
    "its owner has seen",
    "its pools are put right",
)
_STRAIGHT: Final = ("PENDING", "STARTING", "ACTIVE", "TERMINATING", "TERMINATED")
#: Phrases of audit lines that explain the current state or report a repair.
TELLING: Final = (*(f" is {word}" for word in _STRAIGHT), " failed: ", *_HEALED)
#: The last state that a lease passed at least before it left the normal sequence.
_AFTER: Final[Mapping[str, str]] = {
    "ERROR": "STARTING",
    "DELETING": "PENDING",
    "UPDATING": "PENDING",
}


@dataclass(frozen=True)
class Link:
    """A state in the sequence; `at` is when the lease reached the state, or is due to."""

    word: str
    how: str
    at: Any = None
    said: str = ""


def chain(lease: Mapping[str, Any], history: Sequence[Mapping[str, Any]]) -> Sequence[Link]:
    status = lease["status"]
    if status in _STRAIGHT:
        here = _STRAIGHT.index(status)
        return [
            _link(word, _how(place, here), lease, history) for place, word in enumerate(_STRAIGHT)
        ]
    return list(_aside(lease, history))


def _aside(lease: Mapping[str, Any], history: Sequence[Mapping[str, Any]]) -> Iterator[Link]:
    """Yield the states of a lease outside the normal sequence: passed states, then the current."""
    status = lease["status"]
    was_active = _when(history, " is ACTIVE") is not None
    last = "ACTIVE" if was_active and status != "ERROR" else _AFTER.get(status, "PENDING")
    for word in _STRAIGHT[: _STRAIGHT.index(last) + 1]:
        yield _link(word, DONE, lease, history)
    failed = next((line for line in history if " failed: " in line["sentence"]), None)
    told = (
        failed["sentence"]
        if failed and status == "ERROR"
        else state_machines.LEASE_SAYS.get(status, "")
    )
    yield Link(status, NOW, failed["at"] if failed else lease["updated_at"], told)
    if status == "ERROR":
        yield _link("TERMINATED", NEXT, lease, history)


def _how(place: int, here: int) -> str:
    return NOW if place == here else DONE if place < here else NEXT


def _link(
    word: str, how: str, lease: Mapping[str, Any], history: Sequence[Mapping[str, Any]]
) -> Link:
    said = state_machines.LEASE_SAYS[word] if how == NOW else ""
    if word == "PENDING":
        return Link(word, how, lease["created_at"], said or "booked")
    due = lease["start_date"] if word in ("STARTING", "ACTIVE") else lease["end_date"]
    happened = _when(history, f" is {word}") if how != NEXT else None
    announced = _announced(lease) if word == "TERMINATING" and how == NEXT else ""
    if word == "STARTING" and how != NEXT:
        due = max(due, lease["created_at"].replace(" ", "T"))  # a lease that starts at once
    return Link(word, how, happened or due, said or announced)


def _when(history: Sequence[Mapping[str, Any]], ending: str) -> Any:
    """Return the time of the newest audit line with this ending; `history` is newest first."""
    return next((line["at"] for line in history if line["sentence"].endswith(ending)), None)


def _announced(lease: Mapping[str, Any]) -> str:
    for event in lease["events"]:
        if event["event_type"] == "before_end_lease":
            verb = "was" if event["status"] == "DONE" else "is"
            return f"its end {verb} announced {event['time'][:16].replace('T', ' ')} UTC"
    return ""


def flags(lease: Mapping[str, Any]) -> Sequence[str]:
    """Return warnings for the owner of the lease, as sentences."""
    found = []
    for one in lease["reservations"]:
        what = f"Its reservation of {one['resource_type']}"
        if one["missing_resources"]:
            found.append(f"{what} misses something that failed; another is looked for.")
        if one["resources_changed"]:
            found.append(f"{what} got something else than it had, because that failed.")
    if lease["degraded"] and not found:
        found.append("It is degraded: not all that belongs to it is there.")
    return found


def healed(history: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return the audit lines about repairs of the lease's resources, oldest first."""
    told = [line for line in history if any(word in line["sentence"] for word in _HEALED)]
    return told[::-1]


def holds(lease: Mapping[str, Any]) -> str:
    """Describe the held resources: 2 hosts; 3 slots on 2 hosts; 1 address"""
    return "; ".join(filter(None, (_holds(one) for one in lease["reservations"]))) or "nothing"


def _holds(reservation: Mapping[str, Any]) -> str:
    hosts = reservation.get("hosts") or ()
    slots = sum(host.get("slots") or 0 for host in hosts)
    found = []
    if hosts:
        told = many(len(hosts), "host")
        found.append(f"{many(slots, 'slot')} on {told}" if slots else told)
    if addresses := reservation.get("floatingips"):
        found.append(many(len(addresses), "address", "addresses"))
    if things := reservation.get("things"):
        found.append(many(len(things), "server"))
    return ", ".join(found)


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> Sequence[str]:
    """Return sentences about the hosts that a change would add, keep or give up."""
    found = []
    for was, will in zip(old["reservations"], new["reservations"], strict=False):
        had, has = ({host["name"] for host in one.get("hosts") or ()} for one in (was, will))
        if gone := sorted(had - has):
            found.append(f"{', '.join(gone)} would be given up")
        if come := sorted(has - had):
            found.append(f"{', '.join(come)} would be added")
        if had and had == has:
            found.append(f"it would keep {', '.join(sorted(had))}")
    return found


def asked(reservation: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    """Return the requested properties of a reservation that are not empty."""
    names = ("min", "max", "amount", "vcpus", "memory_mb", "disk_gb", "flavor_id", "server_id")
    more = ("resource_properties", "hypervisor_properties", "before_end", "network_id", "affinity")
    return [
        (name, str(reservation[name]))
        for name in (*names, *more)
        if reservation.get(name) not in (None, "", "[]")
    ]


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
#: The name of a lease without a name in a dry run.
_UNNAMED: Final = "unnamed"


# The list of leases


def index(request: Request) -> Response:
    asked = _asked(request)
    try:
        shown, why, status = _listed(request, asked), "", 200
    except InvalidInput as error:
        shown = _nothing(asked)
        why, status = error.message, error.status
    return page(
        request,
        "leases.html",
        title="Leases",
        status=status,
        statuses=sorted(state_machines.LEASE),
        sorts=_SORTS,
        why=why,
        part_address=f"{HERE}/rows?{urlencode(_said(asked))}",
        same=_command(asked),
        **shown,
    )


def rows(request: Request) -> Response:
    return part(request, "leases_rows.html", **_listed(request, _asked(request)))


def _asked(request: Request) -> dict[str, str]:
    asked = {name: str(request.query.get(name, "")).strip() for name in _ASKED}
    if not request.caller.is_admin:
        asked["project_id"] = ""
    return {**asked, "sort": asked["sort"] or next(iter(_SORTS))}


def _said(asked: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in asked.items() if value}


def _listed(request: Request, asked: Mapping[str, str]) -> dict[str, Any]:
    answer = api_calls.call(request, leases.index, query={**_said(asked), "limit": str(LIMIT)})
    found = [{**one, "holds": holds(one)} for one in answer["leases"]]
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


# The form for a new lease


def new(request: Request) -> Response:
    return _form(request, Wish.of(_named(request)), None)


def _named(request: Request) -> dict[str, str]:
    """Return the form fields from the URL.

    A lease from the calendar gets a generated name, so the user need not invent a name.
    """
    given = {name: str(request.query[name]) for name in DEFAULTS if name in request.query}
    if not given.get("name") and (given.keys() & {"start", "where"}):
        given["name"] = f"{request.caller.user_id}-{request.services.clock.now():%m%d-%H%M}"[:80]
    return given


def create(request: Request) -> Response:
    """Check the lease with a dry run (`do` is check), or book the lease (`do` is book)."""
    verb, _, instead = str(request.body.get("do", "check")).partition("@")
    wish = Wish.of(_other_dates(request.body, instead))
    try:
        made = _asked_for(request, wish, dry_run=verb != "book")
    except HoldfastError as error:
        refused = {"why": {"message": error.message, **error.details}, "verb": "book"}
        return _form(request, wish, outcome(**refused, command=wish.command()), error.status)
    if verb != "book":
        return _form(request, wish, outcome(lease=made, command=wish.command()))
    said, href = f"Lease {made['name']} is booked.", f"{HERE}/{made['id']}"
    if "part" in request.body:
        return _form(request, wish, outcome(done=said, href=href))
    return away(href, message=said)


def _other_dates(given: Mapping[str, str], instead: str) -> Mapping[str, str]:
    """Return the form fields with the dates that a refusal offered."""
    start, _, end = instead.partition("/")
    if not end:
        return given
    return {**given, "start": _minute(start), "end": _minute(end)}


def _minute(said: str) -> str:
    return said[:16].replace("T", " ")


def _asked_for(request: Request, wish: Wish, dry_run: bool) -> Any:
    if dry_run and not wish["name"]:
        wish = replace(wish, given={**wish.given, "name": _UNNAMED})
    body = wish.body(request.services.clock.now(), dry_run)
    return api_calls.call(request, leases.create, body=body)["lease"]


def _form(
    request: Request, wish: Wish, found: Mapping[str, Any] | None, status: int = 200
) -> Response:
    """Render the whole page, only the outcome (script), or only the form (the script's dialog)."""
    shown: dict[str, Any] = {"wish": wish, "kinds": KINDS, "outcome": found}
    if request.body is not None and "part" in request.body:
        return part(request, "lease_outcome.html", **shown)
    if "part" in request.query:
        return part(request, "lease_sheet.html", heading="Book", inner="lease_form.html", **shown)
    return page(request, "lease_new.html", title="New lease", status=status, **shown)


def outcome(**found: Any) -> dict[str, Any]:
    """Return the variables of lease_outcome.html."""
    empty = {"done": "", "href": "", "lease": None, "differs": (), "why": None, "verb": ""}
    return {**empty, "command": (), "end": "", **found}
