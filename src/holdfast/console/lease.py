# SPDX-License-Identifier: Apache-2.0
"""/console/leases/{lease_id}: the page of a lease, with its state, resources and history.

The owner changes, ends, deletes and acknowledges the lease here. A dry run previews each
change.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from holdfast.api.holdfast_v1 import repair
from holdfast.api.request import Request, Response
from holdfast.api.reservation_v1 import leases
from holdfast.client import dates
from holdfast.console import api_calls
from holdfast.console import leases as lease_pages
from holdfast.console.leases import HERE, outcome
from holdfast.console.pages import away, page, part, project_scope
from holdfast.db.audit import Wanted
from holdfast.model.errors import HoldfastError, InvalidInput, NotFound

#: The number of audit lines shown; and of older lines, the most per kind in KEY_KINDS, which
#: explain the current state.
_HISTORY, _PER_KIND = 200, 100
AUDIT: Final = "holdfast:audit:list"
Lines = Sequence[Mapping[str, Any]]


def show(request: Request) -> Response:
    shown = _shown(request, _lease(request))
    return page(request, "lease.html", title=f"Lease {shown['lease']['name']}", **shown)


def state(request: Request) -> Response:
    """Render only the contents, for the refresh of an open page."""
    try:
        shown = _shown(request, _lease(request))
    except NotFound:
        shown = {"lease": None}
    return part(request, "lease_state.html", **shown)


def dates_form(request: Request) -> Response:
    """Render the form for another end, as dragged in the calendar: `?end=…`."""
    lease = _lease(request)
    shown = _form(lease, {**_current(lease), **_entered(request.query)}, None)
    if "part" in request.query:
        return part(
            request, "lease_sheet.html", heading=lease["name"], inner="lease_change.html", **shown
        )
    return page(request, "lease_dates.html", title=f"Change lease {lease['name']}", **shown)


def change(request: Request) -> Response:
    """Check or change the dates of a lease.

    The form field `do` is check, check+1h, check-1h, or change. change@START/END uses the dates
    that a refusal offered.
    """
    lease = _lease(request)
    fields = {**_current(lease), **_entered(request.body)}
    verb, _, instead = str(request.body.get("do", "check")).partition("@")
    try:
        fields = _with_dates(fields, verb, instead)
        body = _body(request, lease, fields)
        changed = _update(request, body, dry_run=verb != "change")
    except HoldfastError as error:
        refusal = outcome(
            why={"message": error.message, **error.details}, verb="change", end=fields["end"]
        )
        return _answer(request, lease, fields, refusal, error.status)
    if verb != "change":
        differs = lease_pages.differences(lease, changed)
        command = _command(lease, body)
        preview = outcome(lease=changed, differs=differs, command=command, end=fields["end"])
        return _answer(request, lease, fields, preview)
    message, href = f"Lease {changed['name']} is changed.", f"{HERE}/{lease['id']}"
    if "part" in request.body:
        return _answer(request, lease, fields, outcome(done=message, href=href))
    return away(href, message=message)


def end(request: Request) -> Response:
    body = {"end_date": "now"}
    lease = api_calls.call(request, leases.update, path=_path(request), body=body)["lease"]
    return away(f"{HERE}/{lease['id']}", message=f"Lease {lease['name']} ends now.")


def delete(request: Request) -> Response:
    lease = _lease(request)
    api_calls.call(request, leases.delete, path=_path(request))
    return away(HERE, message=f"Lease {lease['name']} is deleted.")


def acknowledge(request: Request) -> Response:
    lease = _lease(request)
    api_calls.call(request, repair.acknowledge, path=_path(request))
    return away(f"{HERE}/{lease['id']}", message="Replaced resources acknowledged.")


# Contents


def _path(request: Request) -> dict[str, str]:
    return {"lease_id": request.path["lease_id"]}


def _lease(request: Request) -> dict[str, Any]:
    lease: dict[str, Any] = api_calls.call(request, leases.show, path=_path(request))["lease"]
    return lease


def _shown(request: Request, lease: dict[str, Any]) -> dict[str, Any]:
    history, older = _history(request, lease["id"])
    for reservation in lease["reservations"]:
        reservation["requested"] = lease_pages.requested(reservation)
    ends, starts = (dates.from_wire(lease[name]) for name in ("end_date", "start_date"))
    return {
        **_form(lease, _current(lease), None),
        "chain": lease_pages.chain(lease, [*history, *older]),
        "flags": lease_pages.flags(lease),
        "repairs": lease_pages.repairs([*history, *older]),
        "changed": any(row["resources_changed"] for row in lease["reservations"]),
        "history": history,
        "more": len(history) == _HISTORY and _HISTORY,
        "lasts": ends - starts,
    }


def _history(request: Request, lease_id: str) -> tuple[Lines, Lines]:
    """Return the audit lines of the lease if the caller may read the audit log.

    Returns the newest lines, and from older lines the changes of state and repairs of
    resources.
    """
    if not request.allowed(AUDIT):
        return (), ()
    wanted = Wanted(subject=lease_id, project=project_scope(request), limit=_HISTORY)
    last = request.services.store.audit.list_all(wanted)
    if len(last) < _HISTORY:
        return last, ()
    before = replace(wanted, older_than=last[-1]["id"], limit=_PER_KIND)
    lines = {
        line["id"]: line
        for kind in lease_pages.KEY_KINDS
        for line in request.services.store.audit.list_all(replace(before, kind=kind))
    }
    return last, [lines[number] for number in sorted(lines, reverse=True)]


def _form(
    lease: Mapping[str, Any], fields: Mapping[str, str], result: Mapping[str, Any] | None
) -> dict[str, Any]:
    return {"lease": lease, "given": fields, "ends": _current(lease)["end"], "outcome": result}


def _answer(
    request: Request,
    lease: Mapping[str, Any],
    fields: Mapping[str, str],
    result: Mapping[str, Any],
    status: int = 200,
) -> Response:
    shown = _form(lease, fields, result)
    if "part" in request.body:
        return part(request, "lease_outcome.html", **shown)
    title = f"Change lease {lease['name']}"
    return page(request, "lease_dates.html", title=title, status=status, **shown)


# Requested changes


def _current(lease: Mapping[str, Any]) -> dict[str, str]:
    start, end = (
        dates.on_wire(dates.from_wire(lease[name]).replace(microsecond=0))
        for name in ("start_date", "end_date")
    )
    return {"name": lease["name"], "start": start, "end": end}


def _entered(fields: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(fields[name]).strip() for name in ("name", "start", "end") if name in fields}


def _with_dates(fields: dict[str, str], verb: str, instead: str) -> dict[str, str]:
    """Return the form fields with the dates a refusal offered, or with another end (`verb`)."""
    start, _, end = instead.partition("/")
    if end:
        return {**fields, "start": start, "end": end}
    by = verb.removeprefix("check")
    if by[:1] not in ("+", "-"):
        return fields
    try:
        length = dates.span(by[1:])
        old = dates.parse(fields["end"]).moment
        if old is None:
            raise ValueError(f"{fields['end']!r} is not a date")
        moved = dates.later(old, length if by[0] == "+" else -length)
    except ValueError as error:
        raise InvalidInput(f"end: {error}") from None
    return {**fields, "end": dates.on_wire(moved)}


def _body(request: Request, lease: Mapping[str, Any], fields: Mapping[str, str]) -> dict[str, Any]:
    """Return the body of the update: only fields with a new value."""
    current, now = _current(lease), request.services.clock.now()
    body: dict[str, Any] = {} if fields["name"] == current["name"] else {"name": fields["name"]}
    for name in ("start", "end"):
        if fields[name] == current[name]:
            continue
        try:
            body[f"{name}_date"] = dates.parse(fields[name]).on_wire(now)
        except ValueError as error:
            raise InvalidInput(f"{name}: {error}") from None
    return body


def _update(request: Request, body: dict[str, Any], dry_run: bool) -> Any:
    content = {**body, "dry_run": True} if dry_run else body
    return api_calls.call(request, leases.update, path=_path(request), body=content)["lease"]


def _command(lease: Mapping[str, Any], body: Mapping[str, Any]) -> list[str]:
    words = ["holdfast", "lease", "set", lease["id"]]
    for name, value in body.items():
        words += [f"--{name.removesuffix('_date')}", value]
    return words if body else []
