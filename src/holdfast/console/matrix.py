# SPDX-License-Identifier: Apache-2.0
"""/console/matrix: the HA matrix with the hosts of each row, and a trial of an edited matrix.

Nothing here changes the HA matrix, because host monitors follow a file.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.api.holdfast_v1 import monitors
from holdfast.api.request import Request, Response
from holdfast.console import api_calls
from holdfast.console.pages import HEADERS, PREFIX, by_line, entered, page, part
from holdfast.hostmonitor import matrix
from holdfast.hostmonitor.matrix import (
    ALERT,
    DOWN,
    NONE,
    RECOVERY,
    UNDECIDED,
    UNKNOWN,
    UP,
    Answer,
    InvalidMatrix,
    Matrix,
)
from holdfast.hostmonitor.matrix_file import written
from holdfast.model.errors import Conflict, NotFound
from holdfast.runtime.documents import MAX_BYTES

# The comparison of two HA matrices: for each combination of network health, the action of each
# matrix and the hosts in this combination now. Pure.


@dataclass(frozen=True)
class Row:
    """A combination of network health, with its hosts and the action now and after the edit."""

    health: Mapping[str, str]
    hosts: Sequence[str]
    now: Answer
    then: Answer

    @property
    def differs(self) -> bool:
        return (self.now.action, self.now.for_s) != (self.then.action, self.then.for_s)


@dataclass(frozen=True)
class Trial:
    """The comparison of the HA matrix in force with an edited matrix."""

    networks: Sequence[str]
    rows: Sequence[Row]
    warning: str = ""  # names the rows that the edited matrix leaves out

    @property
    def changed(self) -> Sequence[Row]:
        """Return the rows with hosts whose action differs."""
        return [row for row in self.rows if row.differs and row.hosts]

    @property
    def differing(self) -> int:
        return sum(row.differs for row in self.rows)

    def becoming(self, action: str) -> list[str]:
        """Return the hosts for which the edit would introduce this action."""
        rows = [r for r in self.rows if r.then.action == action != r.now.action]
        return [host for row in rows for host in row.hosts]

    @property
    def sentence(self) -> str:
        if not self.differing:
            return "Every row has the same action as in the HA matrix in force."
        count = "1 row differs" if self.differing == 1 else f"{self.differing} rows differ"
        effects = [
            f"{len(hosts)} {verb}" for action, verb in _VERBS if (hosts := self.becoming(action))
        ]
        later = sum(len(row.hosts) for row in self.changed if row.now.action == row.then.action)
        effects += [f"{later} would wait a different time"] if later else []
        if not effects:
            return f"{count}; no host is affected now."
        return f"{count}; hosts affected now: {', '.join(effects)}."


_VERBS = (
    (RECOVERY, "would be recovered"),
    (ALERT, "would raise an alert"),
    (NONE, "would get no action"),
    (UNDECIDED, "would be undecided"),
)


def compare(now: Matrix, then: Matrix, shown: Mapping[str, Any]) -> Trial:
    """Compare two matrices. `shown` is the API's view of the matrix, with the hosts of each row."""
    blind = shown["blind"]
    rows = [
        Row(
            row["health"],
            row["hosts"],
            now.answer(row["health"], blind),
            then.answer(row["health"], blind),
        )
        for row in (*shown["rows"], *shown["undecided"])
    ]
    return Trial(now.networks, rows, then.warning)


#: The number of hosts named per row; the page of the row lists all.
NAMED = 4
#: The size limit of a form: URL encoding can triple the size of the largest text.
MOST_BYTES = 3 * MAX_BYTES + 4096
FILE = "matrix.yaml"
PATH = f"{PREFIX}/matrix"


def show(request: Request) -> Response:
    shown = _in_force(request)
    text = written(matrix.from_plain(shown["ha_matrix"])) if shown["ha_matrix"] else ""
    return page(request, "matrix.html", title="HA matrix", named=NAMED, text=text, matrix=shown)


def table(request: Request) -> Response:
    return part(request, "matrix_table.html", named=NAMED, matrix=_in_force(request))


def row(request: Request) -> Response:
    """Render every host of a row, selected by network health: ?storage=down&…"""
    shown = _in_force(request)
    health = {name: request.query.get(name, "") for name in shown["networks"]}
    if not health or not set(health.values()) <= {UP, DOWN, UNKNOWN}:
        raise NotFound("the HA matrix in force has no such row")
    rows = (*shown["rows"], *shown["undecided"])
    hosts: list[str] = next((row["hosts"] for row in rows if row["health"] == health), [])
    answer = matrix.from_plain(shown["ha_matrix"]).answer(health, shown["blind"])
    title = "Hosts of a row"
    return page(request, "matrix_row.html", title=title, health=health, hosts=hosts, answer=answer)


def try_it(request: Request) -> Response:
    """Render the effects of an edited HA matrix; nothing changes."""
    text = _text(request)
    try:
        trial = _trial(request, text)
    except InvalidMatrix as error:
        return _refused(request, text, error)
    shown: dict[str, Any] = {"text": text, "trial": trial, "file": FILE}
    return page(request, "matrix_try.html", title="HA matrix, test", here=PATH, **shown)


def download(request: Request) -> Response:
    """Return the edited HA matrix as a file if it is valid."""
    text = _text(request)
    try:
        _trial(request, text)
    except InvalidMatrix as error:
        return _refused(request, text, error)
    headers = {**HEADERS, "Content-Disposition": f'attachment; filename="{FILE}"'}
    return Response(text.encode(), 200, headers, "application/yaml; charset=utf-8")


def _trial(request: Request, text: str) -> Trial:
    shown = _in_force(request)
    if not shown["ha_matrix"]:
        raise Conflict("no host monitor reports, so there is no HA matrix in force to compare with")
    edited = matrix.parse(text, shown["networks"], "the edited matrix")
    return compare(matrix.from_plain(shown["ha_matrix"]), edited, shown)


def _refused(request: Request, text: str, error: InvalidMatrix) -> Response:
    problems = by_line(text, error)
    why = "" if problems else error.message
    shown = {"problems": problems, "text": text, "why": why, "trial": None}
    return page(
        request, "matrix_try.html", title="HA matrix", status=error.status, here=PATH, **shown
    )


def _in_force(request: Request) -> dict[str, Any]:
    """Return the HA matrix from the API, with the action added to rows with an unknown network."""
    shown: dict[str, Any] = api_calls.call(request, monitors.show_matrix)["matrix"]
    if shown["ha_matrix"]:
        in_force = matrix.from_plain(shown["ha_matrix"])
        shown["undecided"] = [
            {**row, "answer": in_force.answer(row["health"], shown["blind"])}
            for row in shown["undecided"]
        ]
    return shown


def _text(request: Request) -> str:
    return entered(str(request.body.get("text", "")))
