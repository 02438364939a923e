# SPDX-License-Identifier: Apache-2.0
"""Slots take amounts, things that are no hosts are held too, projects have quotas."""

import sqlalchemy as sa
from alembic import op

from holdfast.db.tables import UtcDateTime

revision = "0002"
down_revision = "0001"

MARIADB = {"mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_nopad_bin"}
_ONE_BY_ONE = (
    "vcpus_ratio",
    "memory_ratio",
    "disk_ratio",
    "vcpus_reserved",
    "memory_mb_reserved",
    "local_gb_reserved",
)


def upgrade() -> None:
    _hosts()
    _leases()
    op.create_table(
        "things",
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_things")),
        **MARIADB,
    )
    op.create_table(
        "projects",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_projects")),
        **MARIADB,
    )
    op.create_table(
        "floatingips",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("network_id", sa.String(length=36), nullable=False),
        sa.Column("subnet_id", sa.String(length=36), nullable=False),
        sa.Column("address", sa.String(length=64), nullable=False),
        sa.Column("reservable", sa.Boolean(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_floatingips")),
        sa.UniqueConstraint("subnet_id", "address", name=op.f("uq_floatingips_subnet_id_address")),
        **MARIADB,
    )
    op.create_index(op.f("ix_floatingips_network_id"), "floatingips", ["network_id"], unique=False)


def _hosts() -> None:
    """One inventory per resource class instead of three pairs of columns."""
    op.add_column("hosts", sa.Column("inventories", sa.JSON(), nullable=True))
    op.add_column("hosts", sa.Column("touched_at", UtcDateTime(), nullable=True))
    hosts = sa.table(
        "hosts",
        sa.column("inventories", sa.JSON()),
        sa.column("touched_at", UtcDateTime()),
        sa.column("created_at", UtcDateTime()),
    )
    op.execute(hosts.update().values(inventories={}, touched_at=hosts.c.created_at))
    with op.batch_alter_table("hosts") as batch:
        batch.alter_column("inventories", existing_type=sa.JSON(), nullable=False)
        batch.alter_column("touched_at", existing_type=UtcDateTime(), nullable=False)
        for name in _ONE_BY_ONE:
            batch.drop_column(name)
    op.create_index("ix_hosts_touched", "hosts", ["touched_at"], unique=False)


def _leases() -> None:
    op.add_column("reservations", sa.Column("made", sa.JSON(), nullable=True))
    made = sa.table("reservations", sa.column("made", sa.JSON()))
    op.execute(made.update().values(made={}))
    with op.batch_alter_table("reservations") as batch:
        batch.alter_column("made", existing_type=sa.JSON(), nullable=False)
    op.drop_column("allocations", "address")
    op.add_column("allocations", sa.Column("thing", sa.String(length=64), nullable=True))
    op.add_column("allocations", sa.Column("takes", sa.JSON(), nullable=True))
    op.create_index("ix_allocations_thing", "allocations", ["thing", "held_until"], unique=False)
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            "ALTER TABLE allocations ADD CONSTRAINT ex_allocations_one_owner_of_things EXCLUDE"
            " USING gist (thing WITH =, tsrange(held_from, held_until) WITH &&)"
            " WHERE (thing IS NOT NULL)"
        )
