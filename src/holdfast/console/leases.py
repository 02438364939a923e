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
from holdfast.db.audit import REPAIR
from holdfast.model import state_machines
from holdfast.model.errors import HoldfastError, InvalidInput

# The booking form: its fields as an API request and as a command. Pure. The syntax is the
# syntax of the client: `+8h`, `vcpus>=8 and rack=rack-a`.
#
#     form = LeaseForm.of({"kind": "host", "count": "2", "where": "gpu=True", …})
#     form.reservation()       # {"resource_type": "physical:host", "min": 2, …}
#     form.command()           # ["holdfast", "lease", "create", "night", "--hosts", "2", …]


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
_SEVERAL = re.compile(r"\sand\s|;|\n")


@dataclass(frozen=True)
class LeaseForm:
    """The fields of the booking form; empty fields have their default."""

    fields: Mapping[str, str]

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> "LeaseForm":
        entered = {name: str(fields.get(name, "")).strip() for name in DEFAULTS}
        return cls({name: entered[name] or default for name, default in DEFAULTS.items()})

    def __getitem__(self, name: str) -> str:
        return self.fields[name]

    def reservation(self) -> dict[str, Any]:
        """Return the single entry of the lease's `reservations`."""
        kind = self["kind"]
        if kind not in KINDS:
            raise InvalidInput(f"kind: there is no {kind[:40]!r}; one of {', '.join(KINDS)}")
        if kind == "host":
            low = self._number("count", 1)
            high = self._number("most", 1) if self["most"] else low
            count = {"min": low, "max": high, "hypervisor_properties": ""}
            return {"resource_type": "physical:host", **count, **self._where()}
        amount = {"amount": self._number("count", 1), "affinity": None}
        if kind == "flavor":
            return {"resource_type": "flavor:instance", "flavor_id": self["flavor"], **amount}
        sizes = {name: self._number(name, 0) for name in ("vcpus", "memory_mb", "disk_gb")}
        return {"resource_type": "virtual:instance", **sizes, **amount, **self._where()}

    def dates(self, now: datetime) -> dict[str, Any]:
        """Return start, end and before-end in wire format; +8h counts from the start."""
        start = _date(self["start"], "start")
        origin = _moment(start.at, now, "start")
        before_end = self["before_end"]
        return {
            "start_date": _moment(start.on_wire, now, "start"),
            "end_date": _moment(_date(self["end"], "end").on_wire, origin, "end"),
            "before_end_date": (
                _moment(_date(before_end, "before end").on_wire, origin, "before end")
                if before_end
                else None
            ),
        }

    def body(self, now: datetime, dry_run: bool) -> dict[str, Any]:
        """Return the body for POST /reservation/v1/leases."""
        if not self["name"]:
            raise InvalidInput("name: required")
        body = {"name": self["name"], **self.dates(now), "reservations": [self.reservation()]}
        return {**body, "dry_run": True} if dry_run else body

    def search(self, now: datetime, limit: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the reservation and the other parameters of GET /holdfast/v1/availability."""
        try:
            length = dates.span(self["length"])
        except ValueError as error:
            raise InvalidInput(f"length: {error}") from None
        first = _date(self["earliest"], "earliest")
        query: dict[str, Any] = {"duration_s": int(length.total_seconds()), "limit": limit}
        if first != dates.NOW:
            query["from"] = _moment(first.on_wire, now, "earliest")
        return self.reservation(), query

    # Equivalent commands

    def command(self) -> list[str]:
        words = ["holdfast", "lease", "create", self["name"] or "NAME", *self._resource()]
        words += ["--start", self["start"], "--end", self["end"]]
        before_end = self["before_end"]
        return [*words, "--before-end-date", before_end] if before_end else words

    def search_command(self) -> list[str]:
        words = ["holdfast", "availability", *self._resource(), "--for", self["length"]]
        return words if self["earliest"] == "now" else [*words, "--from", self["earliest"]]

    def _resource(self) -> list[str]:
        if self["kind"] == "host":
            number = ["--hosts", self["count"]]
            if self["most"]:
                number = ["--min", self["count"], "--max", self["most"]]
            return [*number, *(word for text in self._conditions() for word in ("--where", text))]
        if self["kind"] == "flavor":
            value = f"flavor:instance,flavor_id={self['flavor']},amount={self['count']}"
            return ["--reservation", value]
        sizes = ",".join(f"{name}={self[name]}" for name in ("vcpus", "memory_mb", "disk_gb"))
        value = f"virtual:instance,{sizes},amount={self['count']}"
        if self["where"]:
            value += f",resource_properties={self._expression_or_text()}"
        return ["--reservation", value]

    def _expression_or_text(self) -> str:
        """Return the conditions as an expression, or as entered if invalid.

        The page shows the error beside the command.
        """
        try:
            return self._expression()
        except InvalidInput:
            return self["where"]

    # Parsing of fields

    def _number(self, name: str, least: int) -> int:
        text = self[name]
        if not text.isdecimal() or len(text) > 9 or int(text) < least:
            raise InvalidInput(f"{name}: {text[:40]!r} is not a whole number of at least {least}")
        return int(text)

    def _where(self) -> dict[str, str]:
        return {"resource_properties": self._expression()}

    def _expression(self) -> str:
        try:
            return syntax.expression(self._conditions())
        except ValueError as error:
            raise InvalidInput(f"where: {error}") from None

    def _conditions(self) -> list[str]:
        text = self["where"]
        if text.startswith("["):
            return [text]
        return [part.strip() for part in _SEVERAL.split(text) if part.strip()]


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
_SEQUENCE: Final = ("PENDING", "STARTING", "ACTIVE", "TERMINATING", "TERMINATED")
#: Kinds of audit lines that explain the current state or report a repair.
KEY_KINDS: Final = (*_SEQUENCE, "ERROR", REPAIR)
#: The last state that a lease passed at least before it left the normal sequence.
_AFTER: Final[Mapping[str, str]] = {
    "ERROR": "STARTING",
    "DELETING": "PENDING",
    "UPDATING": "PENDING",
}


@dataclass(frozen=True)
class Link:
    """A state in the sequence; `at` is when the lease reached the state, or is due to."""

    state: str
    phase: str  # done, now or next
    at: Any = None
    text: str = ""


def chain(lease: Mapping[str, Any], history: Sequence[Mapping[str, Any]]) -> Sequence[Link]:
    status = lease["status"]
    if status in _SEQUENCE:
        here = _SEQUENCE.index(status)
        return [
            _link(state, _phase(place, here), lease, history)
            for place, state in enumerate(_SEQUENCE)
        ]
    return list(_aside(lease, history))


def _aside(lease: Mapping[str, Any], history: Sequence[Mapping[str, Any]]) -> Iterator[Link]:
    """Yield the states of a lease outside the normal sequence: passed states, then the current."""
    status = lease["status"]
    was_active = _newest(history, "ACTIVE") is not None
    last = "ACTIVE" if was_active and status != "ERROR" else _AFTER.get(status, "PENDING")
    for state in _SEQUENCE[: _SEQUENCE.index(last) + 1]:
        yield _link(state, DONE, lease, history)
    failed = _newest(history, "ERROR")
    text = (
        failed["sentence"]
        if failed and status == "ERROR"
        else state_machines.LEASE_SAYS.get(status, "")
    )
    yield Link(status, NOW, failed["at"] if failed else lease["updated_at"], text)
    if status == "ERROR":
        yield _link("TERMINATED", NEXT, lease, history)


def _phase(place: int, here: int) -> str:
    return NOW if place == here else DONE if place < here else NEXT


def _link(
    state: str, phase: str, lease: Mapping[str, Any], history: Sequence[Mapping[str, Any]]
) -> Link:
    text = state_machines.LEASE_SAYS[state] if phase == NOW else ""
    if state == "PENDING":
        return Link(state, phase, lease["created_at"], text or "booked")
    due = lease["start_date"] if state in ("STARTING", "ACTIVE") else lease["end_date"]
    reached = _newest(history, state) if phase != NEXT else None
    notice = _before_end(lease) if state == "TERMINATING" and phase == NEXT else ""
    if state == "STARTING" and phase != NEXT:
        due = max(due, lease["created_at"].replace(" ", "T"))  # a lease that starts at once
    return Link(state, phase, reached["at"] if reached else due, text or notice)


def _newest(history: Sequence[Mapping[str, Any]], kind: str) -> Mapping[str, Any] | None:
    """Return the newest audit line of this kind; `history` is newest first."""
    return next((line for line in history if line["kind"] == kind), None)


def _before_end(lease: Mapping[str, Any]) -> str:
    for event in lease["events"]:
        if event["event_type"] == "before_end_lease":
            verb = "sent" if event["status"] == "DONE" else "due"
            return f"before-end notification {verb} {event['time'][:16].replace('T', ' ')} UTC"
    return ""


def flags(lease: Mapping[str, Any]) -> Sequence[str]:
    """Return warnings for the owner of the lease, as sentences."""
    flags = []
    for reservation in lease["reservations"]:
        name = f"Reservation of {reservation['resource_type']}"
        if reservation["missing_resources"]:
            flags.append(f"{name}: a failed resource is missing; Holdfast looks for another.")
        if reservation["resources_changed"]:
            flags.append(f"{name}: Holdfast replaced a failed resource.")
    if lease["degraded"] and not flags:
        flags.append("The lease is degraded: some of its resources are missing.")
    return flags


def repairs(history: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return the audit lines about repairs of the lease's resources, oldest first."""
    return [line for line in reversed(history) if line["kind"] == REPAIR]


def holds(lease: Mapping[str, Any]) -> str:
    """Describe the held resources: 2 hosts; 3 slots on 2 hosts; 1 address"""
    return (
        "; ".join(filter(None, (_holds(reservation) for reservation in lease["reservations"])))
        or "nothing"
    )


def _holds(reservation: Mapping[str, Any]) -> str:
    hosts = reservation.get("hosts") or ()
    slots = sum(host.get("slots") or 0 for host in hosts)
    parts = []
    if hosts:
        count = many(len(hosts), "host")
        parts.append(f"{many(slots, 'slot')} on {count}" if slots else count)
    if addresses := reservation.get("floatingips"):
        parts.append(many(len(addresses), "address", "addresses"))
    if servers := reservation.get("things"):
        parts.append(many(len(servers), "server"))
    return ", ".join(parts)


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> Sequence[str]:
    """Return sentences about the hosts that a change would add, keep or give up."""
    sentences = []
    for pair in zip(old["reservations"], new["reservations"], strict=False):
        before, after = ({host["name"] for host in r.get("hosts") or ()} for r in pair)
        if released := sorted(before - after):
            sentences.append(f"the lease would release {', '.join(released)}")
        if added := sorted(after - before):
            sentences.append(f"the lease would add {', '.join(added)}")
        if before and before == after:
            sentences.append(f"the lease would keep {', '.join(sorted(before))}")
    return sentences


def requested(reservation: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
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
_FILTERS: Final = ("status", "name", "project_id", "end_after", "start_before", "sort", "marker")
_SORTS: Final[Mapping[str, str]] = {
    "start_date:desc": "start, newest first",
    "start_date": "start, oldest first",
    "end_date": "end, earliest first",
    "created_at:desc": "booked, newest first",
    "name": "name",
    "status": "state",
}
#: The name of a lease without a name in a dry run.
_UNNAMED: Final = "unnamed"


# The list of leases


def index(request: Request) -> Response:
    filters = _filters(request)
    try:
        shown, why, status = _listed(request, filters), "", 200
    except InvalidInput as error:
        shown = _empty(filters)
        why, status = error.message, error.status
    return page(
        request,
        "leases.html",
        title="Leases",
        status=status,
        statuses=sorted(state_machines.LEASE),
        sorts=_SORTS,
        why=why,
        part_address=f"{HERE}/rows?{urlencode(_given(filters))}",
        command=_command(filters),
        **shown,
    )


def rows(request: Request) -> Response:
    return part(request, "leases_rows.html", **_listed(request, _filters(request)))


def _filters(request: Request) -> dict[str, str]:
    filters = {name: str(request.query.get(name, "")).strip() for name in _FILTERS}
    if not request.caller.is_admin:
        filters["project_id"] = ""
    return {**filters, "sort": filters["sort"] or next(iter(_SORTS))}


def _given(filters: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in filters.items() if value}


def _listed(request: Request, filters: Mapping[str, str]) -> dict[str, Any]:
    answer = api_calls.call(request, leases.index, query={**_given(filters), "limit": str(LIMIT)})
    rows = [{**lease, "holds": holds(lease)} for lease in answer["leases"]]
    more = ""
    for link in answer.get("leases_links", ()):
        marker = parse_qs(urlsplit(link["href"]).query)["marker"][0]
        more = f"{HERE}?{urlencode({**_given(filters), 'marker': marker})}"
    return {**_empty(filters), "leases": rows, "more": more}


def _empty(filters: Mapping[str, str]) -> dict[str, Any]:
    first = f"{HERE}?{urlencode({**_given(filters), 'marker': ''})}"
    return {"filters": filters, "leases": (), "more": "", "first_address": first}


def _command(filters: Mapping[str, str]) -> list[str]:
    words = ["holdfast", "lease", "list"]
    for name, value in _given(filters).items():
        option = "project" if name == "project_id" else name.replace("_", "-")
        words += [f"--{option}", value]
    return [*words, "--limit", str(LIMIT)]


# The form for a new lease


def new(request: Request) -> Response:
    return _render(request, LeaseForm.of(_named(request)), None)


def _named(request: Request) -> dict[str, str]:
    """Return the form fields from the URL.

    A lease from the calendar gets a generated name, so the user need not invent a name.
    """
    fields = {name: str(request.query[name]) for name in DEFAULTS if name in request.query}
    if not fields.get("name") and (fields.keys() & {"start", "where"}):
        fields["name"] = f"{request.caller.user_id}-{request.services.clock.now():%m%d-%H%M}"[:80]
    return fields


def create(request: Request) -> Response:
    """Check the lease with a dry run (`do` is check), or book the lease (`do` is book)."""
    verb, _, instead = str(request.body.get("do", "check")).partition("@")
    form = LeaseForm.of(_other_dates(request.body, instead))
    try:
        lease = _create(request, form, dry_run=verb != "book")
    except HoldfastError as error:
        refused = {"why": {"message": error.message, **error.details}, "verb": "book"}
        return _render(request, form, outcome(**refused, command=form.command()), error.status)
    if verb != "book":
        return _render(request, form, outcome(lease=lease, command=form.command()))
    message, href = f"Lease {lease['name']} is booked.", f"{HERE}/{lease['id']}"
    if "part" in request.body:
        return _render(request, form, outcome(done=message, href=href))
    return away(href, message=message)


def _other_dates(fields: Mapping[str, str], instead: str) -> Mapping[str, str]:
    """Return the form fields with the dates that a refusal offered."""
    start, _, end = instead.partition("/")
    if not end:
        return fields
    return {**fields, "start": _minute(start), "end": _minute(end)}


def _minute(date: str) -> str:
    return date[:16].replace("T", " ")


def _create(request: Request, form: LeaseForm, dry_run: bool) -> Any:
    if dry_run and not form["name"]:
        form = replace(form, fields={**form.fields, "name": _UNNAMED})
    body = form.body(request.services.clock.now(), dry_run)
    return api_calls.call(request, leases.create, body=body)["lease"]


def _render(
    request: Request, form: LeaseForm, result: Mapping[str, Any] | None, status: int = 200
) -> Response:
    """Render the whole page, only the outcome (script), or only the form (the script's dialog)."""
    shown: dict[str, Any] = {"form": form, "kinds": KINDS, "outcome": result}
    if request.body is not None and "part" in request.body:
        return part(request, "lease_outcome.html", **shown)
    if "part" in request.query:
        return part(request, "lease_sheet.html", heading="Book", inner="lease_form.html", **shown)
    return page(request, "lease_new.html", title="New lease", status=status, **shown)


def outcome(**values: Any) -> dict[str, Any]:
    """Return the variables of lease_outcome.html."""
    empty = {"done": "", "href": "", "lease": None, "differs": (), "why": None, "verb": ""}
    return {**empty, "command": (), "end": "", **values}
