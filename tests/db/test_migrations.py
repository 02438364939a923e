# SPDX-License-Identifier: Apache-2.0
"""Migrations make exactly the tables that the code speaks of, on every database."""

from __future__ import annotations

from datetime import timedelta

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext

from holdfast.db import Store, migrations
from holdfast.db.engine import Database
from holdfast.db.tables import allocations, hosts, leases, metadata, reservations
from holdfast.model.errors import StaleWrite
from holdfast.runtime.clock import SystemClock
from tests.servers.postgresql import PostgreSQL


def test_migrations_and_code_describe_the_same_tables(store: Store) -> None:
    with store.database.engine.connect() as conn:
        context = MigrationContext.configure(conn, opts={"compare_type": True})
        differences = [
            found for found in compare_metadata(context, metadata) if not _is_exclusion(found)
        ]
    assert differences == []


def _is_exclusion(found: object) -> bool:
    """PostgreSQL's index behind the exclusion constraint is not a thing of the metadata."""
    return "ex_allocations_one_owner" in str(found)


def test_sync_is_repeatable_and_prints_the_versions(database_url: str) -> None:
    database = Database(database_url, SystemClock())
    try:
        assert migrations.version(database) is None
        assert migrations.head() in migrations.sync(database)
        assert migrations.version(database) == migrations.head()
        assert "already" in migrations.sync(database)
    finally:
        database.close()


def test_names_that_differ_in_case_differ(store: Store) -> None:
    with store.database.write() as conn:
        now = store.database.now(conn)
        for name in ("gpu", "GPU"):
            conn.execute(
                sa.text(
                    "INSERT INTO properties (resource_type, name, private, created_at)"
                    " VALUES ('t', :name, :no, :now)"
                ),
                {"name": name, "no": False, "now": now.replace(tzinfo=None)},
            )
    with store.database.read() as conn:
        query = sa.text("SELECT count(*) FROM properties WHERE name = 'gpu'")
        assert conn.execute(query).scalar_one() == 1


def test_foreign_keys_are_enforced(store: Store) -> None:
    with pytest.raises(sa.exc.IntegrityError), store.database.write() as conn:
        conn.execute(
            sa.insert(reservations).values(
                id="r",
                lease_id="nobody",
                resource_type="t",
                status="pending",
                spec={},
                created_at=store.database.now(conn),
            )
        )


def test_postgresql_itself_refuses_two_owners(postgresql: PostgreSQL) -> None:
    """The code never gets that far; this is the floor under it."""
    store = Store(postgresql.new_database(), SystemClock())
    try:
        migrations.sync(store.database)
        _refuses_two_owners(store)
    finally:
        store.close()


def _refuses_two_owners(store: Store) -> None:
    def hold(reservation: str) -> None:
        with store.database.write() as conn:
            now = store.database.now(conn)
            conn.execute(
                sa.insert(allocations).values(
                    reservation_id=reservation,
                    host_id=1,
                    held_from=now,
                    held_until=now + timedelta(hours=1),
                )
            )

    with store.database.write() as conn:
        now = store.database.now(conn)
        conn.execute(
            sa.insert(hosts).values(
                id=1,
                uuid="u",
                name="h",
                hypervisor_hostname="h",
                service_host="h",
                cpu_info="{}",
                touched_at=now,
                created_at=now,
            )
        )
        conn.execute(
            sa.insert(leases).values(
                id="l",
                name="l",
                user_id="u",
                project_id="p",
                start_date=now,
                end_date=now,
                status="PENDING",
                created_at=now,
            )
        )
        for name in ("one", "two"):
            conn.execute(
                sa.insert(reservations).values(
                    id=name,
                    lease_id="l",
                    resource_type="t",
                    status="pending",
                    spec={},
                    created_at=now,
                )
            )
    hold("one")
    with pytest.raises(StaleWrite):
        hold("two")
