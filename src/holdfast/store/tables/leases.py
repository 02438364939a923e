# SPDX-License-Identifier: Apache-2.0
"""Leases, their reservations, and what those hold when."""

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    ForeignKey,
    Index,
    Integer,
    String,
    Table,
    UniqueConstraint,
)

from holdfast.store.tables.base import Id, Serial, UtcDateTime, flag, metadata, times

leases = Table(
    "leases",
    metadata,
    Column("id", Id, primary_key=True),
    Column("name", String(80), nullable=False),
    Column("user_id", String(64), nullable=False),
    Column("project_id", String(64), nullable=False),
    Column("start_date", UtcDateTime, nullable=False),
    Column("end_date", UtcDateTime, nullable=False),
    Column("before_end_date", UtcDateTime),
    Column("status", String(16), nullable=False),
    flag("degraded"),
    Column("version", Integer, nullable=False, default=0),
    *times(),
    Index("ix_leases_project", "project_id", "created_at"),
    Index("ix_leases_window", "start_date", "end_date"),
    Index("ix_leases_version", "version"),
    Index("ix_leases_created_at", "created_at"),
)

reservations = Table(
    "reservations",
    metadata,
    Column("id", Id, primary_key=True),
    Column(
        "lease_id",
        ForeignKey("leases.id", ondelete="CASCADE"),
        nullable=False,
        index=True,
    ),
    Column("position", Integer, nullable=False, default=0),
    Column("resource_type", String(66), nullable=False),
    Column("status", String(16), nullable=False),
    flag("missing_resources"),
    flag("resources_changed"),
    Column("spec", JSON, nullable=False),
    Column("made", JSON, nullable=False, default=dict),
    *times(),
)

allocations = Table(
    "allocations",
    metadata,
    Column("id", Serial, primary_key=True),
    Column(
        "reservation_id",
        ForeignKey("reservations.id", ondelete="CASCADE"),
        nullable=False,
        index=True,
    ),
    Column("host_id", ForeignKey("hosts.id")),
    Column("held_from", UtcDateTime, nullable=False),
    Column("held_until", UtcDateTime, nullable=False),
    Column("slots", Integer),  # None: the whole host
    Column("takes", JSON(none_as_null=True)),  # of slots: how much of each resource class
    Column("thing", String(64)),  # what is held instead of a host: an address, a server
    Index("ix_allocations_host_time", "host_id", "held_until", "held_from"),
    Index("ix_allocations_time", "held_until", "held_from", "host_id"),
    Index("ix_allocations_thing", "thing", "held_until"),
)

# Bookings of one thing, and of one project where quotas are set, queue at their row here.
things = Table(
    "things",
    metadata,
    Column("key", String(64), primary_key=True),
    Column("generation", BigInteger, nullable=False, default=0),
)

projects = Table(
    "projects",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("generation", BigInteger, nullable=False, default=0),
)

floatingips = Table(
    "floatingips",
    metadata,
    Column("id", Id, primary_key=True),
    Column("network_id", Id, nullable=False, index=True),
    Column("subnet_id", Id, nullable=False),
    Column("address", String(64), nullable=False),
    flag("reservable", True),
    *times(),
    UniqueConstraint("subnet_id", "address"),
)
