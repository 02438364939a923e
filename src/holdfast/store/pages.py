# SPDX-License-Identifier: Apache-2.0
"""Lists in pages: sorted by keys that the caller names, going on after the row that it saw last.

The marker is a row, not an offset: rows that come and go meanwhile neither repeat nor skip others.
What has no value sorts before everything that has one, on every database.

>>> rows = fetch(conn, sa.select(segments), Page(limit=20, marker=40), COLUMNS)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, RowMapping

from holdfast.model.errors import InvalidInput

MOST = 1000
#: Public names of what can be sorted by; None: all rows are alike in it.
Columns = Mapping[str, sa.ColumnElement[Any] | None]
_NEWEST_FIRST = (("created_at", True), ("id", True))
#: An expression that is sorted by, and whether its largest comes first.
_Key = tuple[sa.ColumnElement[Any], bool]


@dataclass(frozen=True)
class Page:
    """At most `limit` rows after the one with the id `marker`; `sort` holds keys and whether each
    is descending."""

    limit: int = MOST
    marker: str | None = None
    sort: tuple[tuple[str, bool], ...] = _NEWEST_FIRST


def fetch(
    conn: Connection, query: sa.Select[Any], page: Page, columns: Columns
) -> Sequence[RowMapping]:
    """The rows of a page; InvalidInput names a key or a marker that there is not."""
    keys = _keys(page, columns)
    if page.marker is not None:
        seen = _marker(conn, query, page.marker, keys, columns)
        query = query.where(_after(keys, seen))
    order = [key.desc() if descending else key.asc() for key, descending in keys]
    return conn.execute(query.order_by(*order).limit(page.limit)).mappings().all()


def _keys(page: Page, columns: Columns) -> list[_Key]:
    keys: list[_Key] = []
    for name, descending in page.sort:
        if name not in columns:
            known = ", ".join(sorted(columns))
            raise InvalidInput(f"sort_key: {name[:40]!r} is not known; possible are {known}")
        column = columns[name]
        if column is None:
            continue
        if isinstance(column.type, sa.Boolean):  # not every database compares them
            column = sa.case((column, 1), else_=0)
        elif getattr(column, "nullable", True):
            keys.append((sa.case((column.is_(None), 0), else_=1), descending))
        keys.append((column, descending))
    return keys


def _marker(
    conn: Connection, query: sa.Select[Any], marker: str, keys: Sequence[_Key], columns: Columns
) -> Sequence[Any]:
    """What the row seen last has of each key; whether it is still among the rows is no matter."""
    id_ = columns["id"]
    missing = InvalidInput(
        f"Marker {marker[:40]} could not be found: a marker is the integer id of the last row seen"
    )
    if id_ is None or not (marker.isascii() and marker.isdigit() and len(marker) < 10):
        raise missing
    wanted = [key.label(f"key_{number}") for number, (key, _) in enumerate(keys)]
    source = query.get_final_froms()
    row = conn.execute(sa.select(*wanted).select_from(*source).where(id_ == int(marker))).first()
    if row is None:
        raise missing
    return tuple(row)


def _after(keys: Sequence[_Key], seen: Sequence[Any]) -> sa.ColumnElement[bool]:
    """Rows that come later: alike in the first keys, and beyond the seen row in the next one."""
    beyond: list[sa.ColumnElement[bool]] = []
    alike: list[sa.ColumnElement[bool]] = []
    for (key, descending), value in zip(keys, seen, strict=True):
        if value is None:  # the key before it has told those without a value from the others
            continue
        beyond.append(sa.and_(*alike, key < value if descending else key > value))
        alike.append(key == value)
    return sa.or_(*beyond)
