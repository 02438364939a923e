# SPDX-License-Identifier: Apache-2.0
"""Rows to dataclasses and back: a field has the name of its column.

LEASE = Mapper(Lease, leases, renamed={"start": "start_date"})
row = conn.execute(sa.select(*LEASE.columns)).first()
lease = LEASE.value(row, reservations=parts)     # fields without a column
LEASE.row(lease)                                 # {"id": …, "start_date": …}
"""

import operator
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from typing import Any, Generic, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import RowMapping

T = TypeVar("T")


class Mapper(Generic[T]):
    """Converts rows of a table to a dataclass and back; column types convert the values."""

    def __init__(
        self,
        kind: type[T],
        table: sa.Table,
        *,
        renamed: Mapping[str, str] | None = None,
        without: Collection[str] = (),
    ) -> None:
        """Map each field of `kind` that has a column, but not the fields in `without`.

        `renamed` holds the columns of fields with another name.
        """
        known: Any = kind
        names = [field.name for field in fields(known) if field.init]
        columns = {name: (renamed or {}).get(name, name) for name in names if name not in without}
        self._columns = {field: name for field, name in columns.items() if name in table.c}
        self.names = tuple(self._columns.values())
        self.columns = tuple(table.c[name] for name in self.names)
        self._kind = kind
        self._get = operator.attrgetter(*self._columns)
        self._json = [column.name for column in self.columns if isinstance(column.type, sa.JSON)]
        # Positional arguments are faster, and lists have tens of thousands of rows.
        self._leads = names[: len(self._columns)] == list(self._columns)

    def value(self, row: Sequence[Any], **more: Any) -> T:
        """Build the dataclass from values in the order of `columns`; `more` are other fields."""
        if self._leads:
            return self._kind(*row, **more)
        return self._kind(**dict(zip(self._columns, row, strict=True)), **more)

    def named(self, row: RowMapping, **more: Any) -> T:
        """Build the dataclass from a row by column names; the row may have further columns."""
        own = {field: row[name] for field, name in self._columns.items()}
        return self._kind(**own, **more)

    def row(self, value: T) -> dict[str, Any]:
        """Return the columns of a dataclass, to be written."""
        columns = dict(zip(self.names, self._get(value), strict=True))
        for name in self._json:
            columns[name] = dict(columns[name])
        return columns
