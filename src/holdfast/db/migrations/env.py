# SPDX-License-Identifier: Apache-2.0
"""What alembic runs: our own connection, inside one transaction where the database allows it."""

import contextlib
from collections.abc import Iterator

import sqlalchemy as sa
from alembic import context

from holdfast.db.engine import Database
from holdfast.db.tables import metadata


@contextlib.contextmanager
def _sqlite(database: Database) -> Iterator[sa.Connection]:
    """SQLite changes a column by making its table anew. Dropping the old one would take along, or
    stumble over, all rows that point to it; so foreign keys rest, and are looked at in the end."""
    with database.engine.connect() as conn:
        cursor = conn.connection.cursor()
        cursor.execute("PRAGMA foreign_keys=OFF")  # within a transaction it would do nothing
        try:
            with conn.execution_options(holdfast_write=True).begin():
                yield conn
                lost = conn.exec_driver_sql("PRAGMA foreign_key_check").all()
                if lost:
                    raise RuntimeError(f"rows that point to nothing: {lost[:10]}")
        finally:
            cursor.execute("PRAGMA foreign_keys=ON")
            cursor.close()


database: Database = context.config.attributes["database"]
with _sqlite(database) if database.dialect == "sqlite" else database.write() as conn:
    context.configure(connection=conn, target_metadata=metadata, transactional_ddl=False)
    context.run_migrations()
