# SPDX-License-Identifier: Apache-2.0
"""Rows become dataclasses by the names of their fields, and dataclasses become rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from holdfast.db.rows import Mapper

ships = sa.Table(
    "ships",
    sa.MetaData(),
    sa.Column("secret", sa.String(8)),
    sa.Column("load", sa.JSON),
    sa.Column("built_on", sa.String(8)),
    sa.Column("name", sa.String(8)),
)


@dataclass(frozen=True)
class Ship:
    name: str
    built: str
    load: Mapping[str, Any] = field(default_factory=dict)
    crew: tuple[str, ...] = ()


@dataclass(frozen=True)
class Boat:
    crew: tuple[str, ...]
    name: str


SHIP = Mapper(Ship, ships, renamed={"built": "built_on"})


def test_columns_are_in_the_order_of_the_fields_and_others_are_left_out() -> None:
    assert SHIP.names == ("name", "built_on", "load")
    assert [column.name for column in SHIP.columns] == ["name", "built_on", "load"]


def test_a_row_becomes_a_value_with_the_fields_that_have_no_column() -> None:
    assert SHIP.value(("Fram", "1892", {"t": 400})) == Ship("Fram", "1892", {"t": 400})
    assert SHIP.value(("Fram", "1892", {}), crew=("Otto",)).crew == ("Otto",)


def test_a_field_without_a_column_may_stand_before_the_others() -> None:
    assert Mapper(Boat, ships).value(("Fram",), crew=("Otto",)) == Boat(("Otto",), "Fram")


def test_a_row_is_read_by_its_names_too() -> None:
    engine = sa.create_engine("sqlite://")
    with engine.begin() as conn:
        ships.create(conn)
        ship = Ship("Fram", "1892", {"t": 400})
        conn.execute(sa.insert(ships).values(secret="x", **SHIP.row(ship)))
        assert SHIP.named(conn.execute(sa.select(ships)).mappings().one()) == ship
        assert SHIP.value(conn.execute(sa.select(*SHIP.columns)).one()) == ship
    engine.dispose()


def test_a_value_becomes_a_row_without_the_fields_that_are_not_wanted() -> None:
    written = Mapper(Ship, ships, renamed={"built": "built_on"}, without=["name"])
    load = {"t": 400}
    row = written.row(Ship("Fram", "1892", load))
    assert row == {"built_on": "1892", "load": load}
    assert row["load"] is not load
