# SPDX-License-Identifier: Apache-2.0
"""A migrated, empty store on each database in turn.

To migrate takes longer than most tests here: each kind of server has one database for all of them,
emptied after each, and SQLite one file that each of them copies. Tests of the migrations themselves
ask for `database_url`, a new one.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from holdfast.db import Store, migrations
from holdfast.db.tables import metadata
from holdfast.runtime.clock import SystemClock
from tests.servers.mariadb import MariaDB
from tests.servers.postgresql import PostgreSQL

_MADE: dict[str, str] = {}


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated, empty SQLite database, which nobody writes to."""
    made = tmp_path_factory.mktemp("migrated") / "x.db"
    _migrated(f"sqlite:///{made}")
    return made


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path, migrated_file: Path) -> Iterator[str]:
    """The SQLAlchemy URL of a migrated, empty database."""
    kind: str = request.param
    if kind == "sqlite":
        yield f"sqlite:///{shutil.copy(migrated_file, tmp_path)}"
        return
    server: PostgreSQL | MariaDB = request.getfixturevalue(kind)
    if kind not in _MADE:
        _MADE[kind] = _migrated(server.new_database())
    yield _MADE[kind]
    _empty(_MADE[kind], kind)


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    made = Store(store_url, SystemClock())
    yield made
    made.close()


def _migrated(url: str) -> str:
    store = Store(url, SystemClock())
    migrations.sync(store.database)
    store.close()
    return url


def _empty(url: str, kind: str) -> None:
    """Nothing in any table, and numbers begin at 1 again."""
    engine = sa.create_engine(url)
    with engine.begin() as conn:
        used = [
            table.name
            for table in metadata.sorted_tables
            if conn.execute(sa.select(sa.literal(1)).select_from(table).limit(1)).first()
        ]
        if kind == "postgresql" and used:
            conn.exec_driver_sql(f"TRUNCATE {', '.join(used)} RESTART IDENTITY CASCADE")
        if kind == "mariadb":
            conn.exec_driver_sql("SET FOREIGN_KEY_CHECKS = 0")
            for name in used:
                conn.exec_driver_sql(f"TRUNCATE `{name}`")
            conn.exec_driver_sql("SET FOREIGN_KEY_CHECKS = 1")
    engine.dispose()
