# SPDX-License-Identifier: Apache-2.0
"""The whole data model: one noun, one table. Rules live in `model`, queries beside this file.

Times are UTC without a zone, to the microsecond, on every database. What a resource type, a step or an
observation has of its own is JSON; what is searched, ordered or kept unique is a column.
"""

from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    String,
    Table,
    Text,
    UniqueConstraint,
)
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


def _times() -> tuple[Column[Any], Column[Any]]:
    return (
        Column("created_at", UtcDateTime, nullable=False),
        Column("updated_at", UtcDateTime),
    )


def _flag(name: str, default: bool = False) -> Column[Any]:
    return Column(name, Boolean, nullable=False, default=default)


# --- hosts ----------------------------------------------------------------------------

hosts = Table(
    "hosts",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("uuid", Id, nullable=False, unique=True),
    Column("name", String(255), nullable=False, unique=True),  # normalised
    Column("hypervisor_hostname", String(255), nullable=False),
    Column("service_host", String(255), nullable=False),
    Column("hypervisor_type", String(64), nullable=False, default=""),
    Column("hypervisor_version", Integer, nullable=False, default=0),
    Column("cpu_info", Text, nullable=False),
    Column("region", String(255), nullable=False, default=""),
    Column("zone", String(255), nullable=False, default=""),
    Column("rack", String(255), nullable=False, default=""),
    Column("vcpus", Integer, nullable=False, default=0),
    Column("memory_mb", Integer, nullable=False, default=0),
    Column("local_gb", Integer, nullable=False, default=0),
    Column("vcpus_ratio", Float, nullable=False, default=1.0),
    Column("memory_ratio", Float, nullable=False, default=1.0),
    Column("disk_ratio", Float, nullable=False, default=1.0),
    Column("vcpus_reserved", Integer, nullable=False, default=0),
    Column("memory_mb_reserved", Integer, nullable=False, default=0),
    Column("local_gb_reserved", Integer, nullable=False, default=0),
    Column("state", String(16), nullable=False, default="up"),
    Column("state_since", UtcDateTime),
    _flag("enrolled"),
    _flag("reservable"),
    Column("generation", BigInteger, nullable=False, default=0),
    *_times(),
    Index("ix_hosts_enrolled", "enrolled", "reservable"),
)

properties = Table(
    "properties",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("resource_type", String(66), nullable=False),
    Column("name", String(64), nullable=False),
    _flag("private"),
    *_times(),
    UniqueConstraint("resource_type", "name"),
)

host_capabilities = Table(
    "host_capabilities",
    metadata,
    Column("host_id", ForeignKey("hosts.id", ondelete="CASCADE"), primary_key=True),
    Column("name", String(64), primary_key=True),
    Column("text", Text, nullable=False),
    Column("number", Float),
    Index("ix_host_capabilities_name", "name"),
)

host_traits = Table(
    "host_traits",
    metadata,
    Column("host_id", ForeignKey("hosts.id", ondelete="CASCADE"), primary_key=True),
    Column("trait", String(255), primary_key=True),
)

# --- leases ---------------------------------------------------------------------------

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
    _flag("degraded"),
    Column("version", Integer, nullable=False, default=0),
    *_times(),
    Index("ix_leases_project", "project_id", "created_at"),
    Index("ix_leases_window", "start_date", "end_date"),
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
    _flag("missing_resources"),
    _flag("resources_changed"),
    Column("spec", JSON, nullable=False),
    *_times(),
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
    Column("address", String(64)),  # floating IPs hold these instead of a host
    Column("held_from", UtcDateTime, nullable=False),
    Column("held_until", UtcDateTime, nullable=False),
    Column("slots", Integer),  # None: the whole host
    Index("ix_allocations_host_time", "host_id", "held_until", "held_from"),
    Index("ix_allocations_time", "held_until", "held_from", "host_id"),
)

# --- durable work ---------------------------------------------------------------------

operations = Table(
    "operations",
    metadata,
    Column("id", Id, primary_key=True),
    Column("kind", String(64), nullable=False),
    Column("subject", String(128), nullable=False),
    Column("key", String(255), nullable=False, unique=True),
    Column("sequence", Integer, nullable=False, default=0),
    Column("due_at", UtcDateTime, nullable=False),
    Column("status", String(16), nullable=False),
    _flag("is_open", True),
    Column("owner", String(128)),
    Column("epoch", Integer, nullable=False, default=0),
    Column("claim_until", UtcDateTime),
    Column("attempts", Integer, nullable=False, default=0),
    Column("next_try_at", UtcDateTime, nullable=False),
    Column("sentence", Text, nullable=False),
    Column("payload", JSON, nullable=False),
    *_times(),
    Index("ix_operations_look", "is_open", "next_try_at"),
    Index("ix_operations_subject", "subject", "is_open", "sequence"),
)

steps = Table(
    "steps",
    metadata,
    Column(
        "operation_id",
        ForeignKey("operations.id", ondelete="CASCADE"),
        primary_key=True,
    ),
    Column("name", String(64), primary_key=True),
    Column("position", Integer, nullable=False),
    Column("status", String(16), nullable=False),
    Column("finished_at", UtcDateTime),
    Column("sentence", Text, nullable=False),
    Column("details", JSON),
)

duties = Table(
    "duties",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("owner", String(128)),
    Column("epoch", Integer, nullable=False, default=0),
    Column("claim_until", UtcDateTime),
    Column("last_done_at", UtcDateTime),
    Column("sentence", Text),
)

audit = Table(
    "audit",
    metadata,
    Column("id", Serial, primary_key=True),
    Column("at", UtcDateTime, nullable=False, index=True),
    Column("subject", String(128), nullable=False, index=True),
    Column("project_id", String(64)),
    Column("actor", String(128), nullable=False),
    Column("request_id", String(64), nullable=False, default=""),
    Column("sentence", Text, nullable=False),
)

# --- instance HA ----------------------------------------------------------------------

segments = Table(
    "segments",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("uuid", Id, nullable=False, unique=True),
    Column("name", String(255), nullable=False, unique=True),
    Column("description", Text),
    Column("service_type", String(255), nullable=False),
    Column("recovery_method", String(16), nullable=False),
    _flag("enabled", True),
    _flag("trust_host_status"),
    Column("spare_hosts", Integer, nullable=False, default=0),
    *_times(),
)

segment_hosts = Table(
    "segment_hosts",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("uuid", Id, nullable=False, unique=True),
    Column("segment_id", ForeignKey("segments.id"), nullable=False, index=True),
    Column("host_id", ForeignKey("hosts.id"), nullable=False, unique=True),
    Column("type", String(255), nullable=False),
    Column("control_attributes", Text, nullable=False),
    _flag("reserved"),
    _flag("on_maintenance"),
    *_times(),
)

notifications = Table(
    "notifications",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("uuid", Id, nullable=False, unique=True),
    Column("type", String(36), nullable=False),
    Column("segment_host_uuid", Id, nullable=False, index=True),
    Column("segment_uuid", Id),
    Column("generated_time", UtcDateTime, nullable=False),
    Column("payload", JSON, nullable=False),
    Column("status", String(16), nullable=False, index=True),
    Column("message", Text),
    Column("incident_id", Id, index=True),
    *_times(),
)

vmoves = Table(
    "vmoves",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("uuid", Id, nullable=False, unique=True),
    Column("notification_uuid", Id, nullable=False, index=True),
    Column("operation_id", Id, index=True),
    Column("server_id", Id, nullable=False),
    Column("server_name", String(255), nullable=False),
    Column("source_host", String(255), nullable=False),
    Column("dest_host", String(255)),
    Column("type", String(36), nullable=False),
    Column("status", String(16), nullable=False),
    Column("attempts", Integer, nullable=False, default=0),
    Column("started_at", UtcDateTime),
    Column("ended_at", UtcDateTime),
    Column("message", Text),
    *_times(),
)

# --- watching -------------------------------------------------------------------------

observations = Table(
    "observations",
    metadata,
    Column("id", Id, primary_key=True),
    Column("key", String(255), nullable=False),
    Column("observer", String(128), nullable=False),
    Column("subject", String(255), nullable=False),
    Column("kind", String(64), nullable=False),
    Column("state", String(64), nullable=False),
    Column("since", UtcDateTime, nullable=False),
    Column("observed_at", UtcDateTime, nullable=False),
    Column("evidence", JSON, nullable=False),
    Column("incident_id", Id, index=True),
    *_times(),
    UniqueConstraint("observer", "key"),
    Index("ix_observations_subject", "subject", "observed_at"),
)

incidents = Table(
    "incidents",
    metadata,
    Column("id", Id, primary_key=True),
    Column("key", String(255), nullable=False, unique=True),
    Column("subject", String(255), nullable=False, index=True),
    Column("kind", String(64), nullable=False),
    Column("cause", String(255), nullable=False),
    Column("status", String(16), nullable=False, index=True),
    Column("opened_at", UtcDateTime, nullable=False),
    Column("closed_at", UtcDateTime),
    Column("sentence", Text, nullable=False),
    Column("details", JSON, nullable=False),
    *_times(),
)

verdicts = Table(
    "verdicts",
    metadata,
    Column("id", Serial, primary_key=True),
    Column(
        "incident_id",
        ForeignKey("incidents.id", ondelete="CASCADE"),
        nullable=False,
        index=True,
    ),
    Column("guard", String(64), nullable=False),
    _flag("passed"),
    Column("sentence", Text, nullable=False),
    Column("at", UtcDateTime, nullable=False),
)

pauses = Table(
    "pauses",
    metadata,
    Column("id", Id, primary_key=True),
    Column("scope", String(255), nullable=False),
    Column("author", String(128), nullable=False),
    Column("reason", Text, nullable=False),
    Column("expires_at", UtcDateTime),
    *_times(),
)

silences = Table(
    "silences",
    metadata,
    Column("id", Id, primary_key=True),
    Column("matcher", JSON, nullable=False),
    Column("author", String(128), nullable=False),
    Column("reason", Text, nullable=False),
    Column("starts_at", UtcDateTime, nullable=False),
    Column("expires_at", UtcDateTime, nullable=False),
    *_times(),
)

# --- agents and alarms ----------------------------------------------------------------

agents = Table(
    "agents",
    metadata,
    Column("id", Id, primary_key=True),
    Column("host", String(255), nullable=False, unique=True),
    Column("last_heartbeat_at", UtcDateTime),
    Column("rules_version", Integer, nullable=False, default=0),
    Column("details", JSON, nullable=False),
    *_times(),
)

alarm_rules = Table(
    "alarm_rules",
    metadata,
    Column("id", Id, primary_key=True),
    Column("scope", String(255), nullable=False),
    Column("version", Integer, nullable=False),
    Column("rules", JSON, nullable=False),
    Column("author", String(128), nullable=False),
    *_times(),
    UniqueConstraint("scope", "version"),
)

alarms = Table(
    "alarms",
    metadata,
    Column("id", Id, primary_key=True),
    Column("key", String(255), nullable=False, unique=True),
    Column("host", String(255), nullable=False, index=True),
    Column("subject", String(255), nullable=False),
    Column("rule", String(128), nullable=False),
    Column("rules_version", Integer, nullable=False),
    Column("state", String(16), nullable=False),
    Column("value", Float),
    Column("fired_at", UtcDateTime, nullable=False),
    Column("resolved_at", UtcDateTime),
    Column("details", JSON, nullable=False),
    *_times(),
)
