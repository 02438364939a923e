# SPDX-License-Identifier: Apache-2.0
"""Forward migrations: `sync` brings a database to this version, `version` says where it is."""

import logging
from pathlib import Path

logging.getLogger("alembic").setLevel(logging.WARNING)  # its plugins announce themselves

import alembic.command  # noqa: E402
from alembic.config import Config  # noqa: E402
from alembic.runtime.migration import MigrationContext  # noqa: E402
from alembic.script import ScriptDirectory  # noqa: E402

from holdfast.db.engine import Database  # noqa: E402

LOG = logging.getLogger(__name__)


def _config(database: Database | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.attributes["database"] = database
    return config


def head() -> str:
    """The version this code wants."""
    revision = ScriptDirectory.from_config(_config()).get_current_head()
    if revision is None:
        raise RuntimeError("no migrations are installed beside the code")
    return revision


def version(database: Database) -> str | None:
    """The version a database is at; None when it is empty."""
    with database.read() as conn:
        return MigrationContext.configure(conn).get_current_revision()


def sync(database: Database) -> str:
    """Bring the database to `head()`; a sentence about what happened."""
    old, new = version(database), head()
    if old == new:
        return f"the database is at {new} already"
    alembic.command.upgrade(_config(database), "head")
    return f"the database went from {old or 'empty'} to {new}"
