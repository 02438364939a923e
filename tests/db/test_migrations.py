# SPDX-License-Identifier: Apache-2.0
"""Migrations make exactly the tables that the code speaks of, on every database."""

from __future__ import annotations

from datetime import timedelta

import alembic.command
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


def test_sync_is_repeatable_and_versions_are_told(database_url: str) -> None:
    database = Database(database_url, SystemClock())
    try:
        assert migrations.version(database) is None
        assert migrations.head() in migrations.sync(database)
        assert migrations.version(database) == migrations.head()
        assert "already" in migrations.sync(database)
    finally:
        database.close()


def test_what_a_database_of_the_first_version_held_is_still_there(database_url: str) -> None:
    store = Store(database_url, SystemClock())
    try:
        alembic.command.upgrade(migrations._config(store.database), "0001")
        _fill(store)
        migrations.sync(store.database)
        lease = store.ledger.lease("l")
        (held,) = lease.allocations()
        assert (held.host, held.slots, held.thing) == ("h", None, None)
        assert lease.reservations[0].spec == {"min": 1}
        host = store.ledger.stock().hosts[1]
        assert host.capacity() == {"VCPU": 8, "MEMORY_MB": 64, "DISK_GB": 10}
        assert (host.capabilities, host.traits) == ({"gpu": "yes"}, {"T"})
        start, end = held.held.start.timestamp(), held.held.end.timestamp()
        assert not store.ledger.stock().line(1).is_free(start, end)
        with pytest.raises(sa.exc.IntegrityError), store.database.write() as conn:
            conn.execute(sa.text("DELETE FROM hosts"))  # foreign keys are what they were
    finally:
        store.close()


def _fill(store: Store) -> None:
    """One row of each kind, in the columns that the first version had."""
    with store.database.write() as conn:
        now = store.database.now(conn).replace(tzinfo=None)
        about = {"now": now, "end": now + timedelta(days=1), "yes": True, "no": False}
        for sql in _FIRST_VERSION:
            conn.execute(sa.text(sql), about)


_FIRST_VERSION = (
    "INSERT INTO hosts (id, uuid, name, hypervisor_hostname, service_host, hypervisor_type,"
    " hypervisor_version, cpu_info, region, zone, rack, vcpus, memory_mb, local_gb, vcpus_ratio,"
    " memory_ratio, disk_ratio, vcpus_reserved, memory_mb_reserved, local_gb_reserved, state,"
    " enrolled, reservable, generation, created_at) VALUES (1, 'u', 'h', 'h', 'h', '', 0, '{}',"
    " '', '', '', 8, 64, 10, 1, 1, 1, 0, 0, 0, 'up', :yes, :yes, 0, :now)",
    "INSERT INTO host_capabilities (host_id, name, text) VALUES (1, 'gpu', 'yes')",
    "INSERT INTO host_traits (host_id, trait) VALUES (1, 'T')",
    "INSERT INTO leases (id, name, user_id, project_id, start_date, end_date, status, degraded,"
    " version, created_at) VALUES ('l', 'l', 'u', 'p', :now, :end, 'PENDING', :no, 0, :now)",
    "INSERT INTO reservations (id, lease_id, position, resource_type, status, missing_resources,"
    " resources_changed, spec, created_at) VALUES ('r', 'l', 0, 'physical:host', 'pending', :no,"
    " :no, '{\"min\": 1}', :now)",
    "INSERT INTO allocations (reservation_id, host_id, held_from, held_until)"
    " VALUES ('r', 1, :now, :end)",
)


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
