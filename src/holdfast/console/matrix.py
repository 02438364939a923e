# SPDX-License-Identifier: Apache-2.0
"""The strategy as a table, with the hosts that are in each row now; and an edit of it tried before
anybody goes by it. Nothing here changes the strategy: host monitors follow a file."""

from typing import Any

from holdfast.api.ask import Ask, Reply
from holdfast.api.holdfast_v1 import monitors
from holdfast.console import inside
from holdfast.console.matrix_trial import Trial, compare
from holdfast.console.pages import HEADERS, PREFIX, page, part
from holdfast.console.problems import by_line, entered
from holdfast.model import matrix
from holdfast.model.errors import Conflict, NotFound
from holdfast.model.matrix import DOWN, UNKNOWN, UP, BadStrategy
from holdfast.model.matrix_text import written
from holdfast.model.yaml_lines import MAX_BYTES

#: Of a row so many hosts are named; all of them are on its own page.
NAMED = 4
#: What a form makes of a text of the largest size.
MOST_BYTES = 3 * MAX_BYTES + 4096
FILE = "strategy.yaml"
PATH = f"{PREFIX}/matrix"


def show(ask: Ask) -> Reply:
    found = _found(ask)
    text = written(matrix.from_plain(found["strategy"])) if found["strategy"] else ""
    return page(ask, "matrix.html", title="Strategy", named=NAMED, text=text, found=found)


def table(ask: Ask) -> Reply:
    return part(ask, "matrix_table.html", named=NAMED, found=_found(ask))


def row(ask: Ask) -> Reply:
    """Every host of one row; which one is said by network: ?storage=down&…"""
    found = _found(ask)
    health = {name: ask.query.get(name, "") for name in found["networks"]}
    if not health or not set(health.values()) <= {UP, DOWN, UNKNOWN}:
        raise NotFound("there is no such row in the strategy in force")
    rows = (*found["rows"], *found["undecided"])
    hosts: list[str] = next((one["hosts"] for one in rows if one["health"] == health), [])
    said = matrix.from_plain(found["strategy"]).answer(health, found["blind"])
    title = "Hosts of a row"
    return page(ask, "matrix_row.html", title=title, health=health, hosts=hosts, said=said)


def try_it(ask: Ask) -> Reply:
    """What would follow; nothing is changed."""
    text = _text(ask)
    try:
        trial = _tried(ask, text)
    except BadStrategy as error:
        return _refused(ask, text, error)
    shown: dict[str, Any] = {"text": text, "trial": trial, "file": FILE}
    return page(ask, "matrix_try.html", title="Strategy, tried", here=PATH, **shown)


def download(ask: Ask) -> Reply:
    """As a file, if it is a strategy at all."""
    text = _text(ask)
    try:
        _tried(ask, text)
    except BadStrategy as error:
        return _refused(ask, text, error)
    headers = {**HEADERS, "Content-Disposition": f'attachment; filename="{FILE}"'}
    return Reply(text.encode(), 200, headers, "application/yaml; charset=utf-8")


def _tried(ask: Ask, text: str) -> Trial:
    found = _found(ask)
    if not found["strategy"]:
        raise Conflict("no monitor was heard of lately, so that there is nothing to compare with")
    return compare(
        matrix.from_plain(found["strategy"]),
        matrix.parse(text, found["networks"], "it"),
        found,
    )


def _refused(ask: Ask, text: str, error: BadStrategy) -> Reply:
    wrong = by_line(text, error)
    shown = {"problems": wrong, "text": text, "why": "" if wrong else error.message, "trial": None}
    return page(ask, "matrix_try.html", title="Strategy", status=error.status, here=PATH, **shown)


def _found(ask: Ask) -> dict[str, Any]:
    """As the API shows it; also of rows with something unknown what follows from them."""
    found: dict[str, Any] = inside.call(ask, monitors.show_matrix)["matrix"]
    if found["strategy"]:
        strategy = matrix.from_plain(found["strategy"])
        found["undecided"] = [
            {**one, "said": strategy.answer(one["health"], found["blind"])}
            for one in found["undecided"]
        ]
    return found


def _text(ask: Ask) -> str:
    return entered(str(ask.body.get("text", "")))
