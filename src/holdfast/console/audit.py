# SPDX-License-Identifier: Apache-2.0
"""/console/audit: the audit log, a sentence per decision, with filters, permalinks and export.

A member sees the decisions about resources of their own project.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final
from urllib.parse import quote

from holdfast.api.holdfast_v1 import audit
from holdfast.api.request import Request, Response
from holdfast.console import api_calls
from holdfast.console.format import address
from holdfast.console.pages import HEADERS, PREFIX, page, part, project_scope, whole_number
from holdfast.db.audit import Wanted
from holdfast.model.errors import InvalidInput
from holdfast.runtime.text import HEAD, csv_row

PATH: Final = f"{PREFIX}/audit"
#: The lines per page, and the lines around the line of a permalink.
LINES, NEAR = 50, 10
FILTERS: Final = ("text", "subject", "actor", "project_id", "since", "until")
_OPTIONS: Final[Mapping[str, str]] = {"project_id": "project"}
_LEASE: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


def index(request: Request) -> Response:
    if request.query.get("id"):
        return _around(request)
    return page(request, "audit.html", title="Audit", **_lines(request))


def lines(request: Request) -> Response:
    """Render only the lines, for the refresh of an open page."""
    return part(request, "audit_lines.html", **_lines(request))


def _lines(request: Request) -> dict[str, Any]:
    filters, query = _filters(request), _query(request)
    marker = query.get("marker", "")
    rows = api_calls.call(request, audit.index, query={**query, "limit": LINES + 1})["audit"]
    shown = rows[:LINES]
    more = len(rows) > LINES
    return {
        **_frame(filters, query),
        "lines": [_shown(line) for line in shown],
        "marker": marker,
        "older": address(PATH, {**filters, "marker": shown[-1]["id"]}) if more else "",
        "part": "" if marker else address(f"{PATH}/lines", filters),
        "command": _command("list", {**query, "limit": str(LINES)}),
        "chosen": "",
    }


def _around(request: Request) -> Response:
    """Render the line of a permalink with the lines just before and after."""
    own = str(request.query["id"])
    number = whole_number(own, 15)
    if number is None:
        raise InvalidInput(f"id: {own[:40]!r} is not a line number")
    rows = request.services.store.audit.around(number, project_scope(request), NEAR)
    shown: dict[str, Any] = {
        "lines": [_shown(audit.view(row)) for row in rows],
        "marker": "",
        "older": address(PATH, {"marker": str(rows[-1]["id"])}),
        "part": "",
        "command": _command("list", {"marker": str(number + 1), "limit": "1"}),
        "chosen": own,
    }
    from_here = {"marker": str(rows[0]["id"] + 1)}
    return page(request, "audit.html", title=f"Audit, line {own}", **_frame({}, from_here), **shown)


def _filters(request: Request) -> dict[str, str]:
    filters = {name: str(request.query.get(name, "")).strip() for name in FILTERS}
    return {name: value for name, value in filters.items() if value}


def _query(request: Request) -> dict[str, str]:
    """Return the filters and, unless the page begins with the newest line, the marker."""
    marker = str(request.query.get("marker", "")).strip()
    return _filters(request) | ({"marker": marker} if marker else {})


def _frame(filters: Mapping[str, str], query: Mapping[str, str]) -> dict[str, Any]:
    """Return the filter form and the export links. An export begins at the marker in `query`, as
    the page does."""
    return {
        "given": {name: filters.get(name, "") for name in FILTERS},
        "filtered": bool(filters),
        "newest": address(PATH, filters),
        "exports": {form: address(f"{PATH}.{form}", query) for form in ("json", "csv")},
        "export_command": _command("export", query),
    }


def _command(verb: str, query: Mapping[str, str]) -> list[str]:
    line = ["holdfast", "audit", verb]
    for name, value in query.items():
        line += [f"--{_OPTIONS.get(name, name)}", value]
    return line


def _shown(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return a line with the page of its subject."""
    return {**line, "page": subject_page(line["subject"])}


def subject_page(subject: str) -> str:
    """Return the address of the page about an audit subject; empty if there is none."""
    kind, _, own = subject.partition(":")
    if _LEASE.fullmatch(subject):
        return f"{PREFIX}/leases/{subject}"
    if kind == "incident":
        return f"{PREFIX}/incidents/{quote(own, safe='')}"
    if kind == "host":
        return f"{PREFIX}/hosts/{quote(own, safe='')}"  # its name, or its uuid
    if kind == "alarm":
        return f"{PREFIX}/alarms/{quote(own, safe='')}"
    if kind in ("recovery", "maintenance", "repair"):
        return f"{PREFIX}/switches"
    return ""


# Export


def as_json(request: Request) -> Response:
    return _export(request, "json", "application/json", _json(_pages(request)))


def as_csv(request: Request) -> Response:
    return _export(request, "csv", "text/csv; charset=utf-8", _csv(_pages(request)))


def _pages(request: Request) -> Iterator[Sequence[Mapping[str, Any]]]:
    """Check the filters before the response starts, then return the lines page by page."""
    query: dict[str, Any] = _query(request)
    api_calls.call(request, audit.index, query={**query, "limit": 1})
    if "marker" in query:
        query["marker"] = int(query["marker"])
    wanted: Wanted = audit.wanted(replace(request, query=query))
    return request.services.store.audit.pages(wanted)


def _export(request: Request, form: str, content_type: str, text: Iterator[str]) -> Response:
    """Stream an export. The stream occupies a slot until the client has read everything; without a
    free slot the API answers 503."""
    headers = {**HEADERS, "Content-Disposition": f'attachment; filename="audit.{form}"'}
    stream = request.services.exports.lent(piece.encode() for piece in text)
    return Response(headers=headers, content_type=content_type, stream=stream)


def _json(pages: Iterator[Sequence[Mapping[str, Any]]]) -> Iterator[str]:
    yield '{"audit": ['
    separator = "\n"
    for rows in pages:
        yield separator + ",\n".join(json.dumps(audit.view(row)) for row in rows)
        separator = ",\n"
    yield "\n]}\n"


def _csv(pages: Iterator[Sequence[Mapping[str, Any]]]) -> Iterator[str]:
    yield HEAD
    for rows in pages:
        yield "".join(csv_row(audit.view(row)) for row in rows)
