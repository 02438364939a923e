# SPDX-License-Identifier: Apache-2.0
"""What all tables share: the metadata, times, flags, keys."""

from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import BigInteger, Boolean, Column, Integer, String
from sqlalchemy.dialects import mysql


class UtcDateTime(sa.TypeDecorator[datetime]):
    """Aware UTC in Python; naive UTC with microseconds in the database."""

    impl = sa.DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: sa.Dialect) -> sa.types.TypeEngine[Any]:
        if dialect.name in ("mysql", "mariadb"):
            return dialect.type_descriptor(mysql.DATETIME(fsp=6))
        return dialect.type_descriptor(sa.DateTime())

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        return value.astimezone(UTC).replace(tzinfo=None) if value else None

    def process_result_value(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        return value.replace(tzinfo=UTC) if value else None


metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

Id = String(36)
#: Autoincrement keys: SQLite numbers rows by itself only for its own INTEGER.
Serial = BigInteger().with_variant(Integer(), "sqlite")


def times() -> tuple[Column[Any], Column[Any]]:
    return (
        Column("created_at", UtcDateTime, nullable=False),
        Column("updated_at", UtcDateTime),
    )


def flag(name: str, default: bool = False) -> Column[Any]:
    return Column(name, Boolean, nullable=False, default=default)
