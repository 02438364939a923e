# SPDX-License-Identifier: Apache-2.0
"""What alembic runs: our own connection, inside one transaction where the database allows it."""

from alembic import context

from holdfast.store.database import Database
from holdfast.store.tables import metadata

database: Database = context.config.attributes["database"]
with database.write() as conn:
    context.configure(connection=conn, target_metadata=metadata, transactional_ddl=False)
    context.run_migrations()
