# SPDX-License-Identifier: Apache-2.0
"""The database schema. Package `model` holds the rules, this package holds the queries."""

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

# Shared by all tables: metadata, times, flags, keys.


class UtcDateTime(sa.TypeDecorator[datetime]):
    """A column type: aware UTC in Python, naive UTC with microseconds in the database."""

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


# Hosts: the list of all compute hosts, and the data about each host.


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
    Column("inventories", JSON, nullable=False, default=dict),  # by resource class
    Column("state", String(16), nullable=False, default="up"),
    Column("state_since", UtcDateTime),
    Column("status", JSON),  # the evidence of the state: hoststatus/status.py
    flag("enrolled"),
    flag("reservable"),
    # Grows with every change of the row or of the host's holds; `touched_at` is the time.
    Column("generation", BigInteger, nullable=False, default=0),
    Column("touched_at", UtcDateTime, nullable=False),
    Column("pools_changed_at", UtcDateTime),  # when it last entered or left the common pools
    *times(),
    Index("ix_hosts_enrolled", "enrolled", "reservable"),
    Index("ix_hosts_touched", "touched_at"),
)

properties = Table(
    "properties",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("resource_type", String(66), nullable=False),
    Column("name", String(64), nullable=False),
    flag("private"),
    *times(),
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


# Leases, their reservations, and allocations (holds in time).


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
    Column("user_events", JSON),  # events that the owner named, by id
    *times(),
    Index("ix_leases_project", "project_id", "created_at"),
    Index("ix_leases_window", "start_date", "end_date"),
    Index("ix_leases_version", "version"),
    Index("ix_leases_updated_at", "updated_at"),
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
    Column("takes", JSON(none_as_null=True)),  # for slots: the amount of each resource class
    Column("thing", String(64)),  # a lockable resource instead of a host: an address, a server
    Index("ix_allocations_host_time", "host_id", "held_until", "held_from"),
    Index("ix_allocations_time", "held_until", "held_from", "host_id"),
    Index("ix_allocations_thing", "thing", "held_until"),
)

# Row locks: bookings of a lockable resource, and of a project with quotas, queue at their row.
resource_locks = Table(
    "resource_locks",
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


# The instance HA contract: segments, their hosts, notifications, moves.


segments = Table(
    "segments",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("uuid", Id, nullable=False, unique=True),
    Column("name", String(255), nullable=False, unique=True),
    Column("description", Text),
    Column("service_type", String(255), nullable=False),
    Column("recovery_method", String(16), nullable=False),
    flag("enabled", True),
    flag("trust_host_status"),
    flag("trust_notifications"),
    Column("spare_hosts", Integer, nullable=False, default=0),
    *times(),
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
    flag("reserved"),
    flag("on_maintenance"),
    *times(),
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
    Column("reporter", String(255)),  # the user who posted it
    *times(),
)

vmoves = Table(
    "vmoves",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("uuid", Id, nullable=False, unique=True),
    Column("notification_uuid", Id, nullable=False, index=True),
    Column("operation_id", Id, index=True),
    Column("incident_id", Id, index=True),
    Column("position", Integer, nullable=False, default=0),
    Column("was", String(32), nullable=False, default=""),  # the server's status before
    Column("reservation", Id, nullable=False, default=""),
    flag("locked_before"),
    Column("not_before", UtcDateTime),
    Column("after_migration", Integer, nullable=False, default=0),
    Column("server_id", Id, nullable=False),
    Column("server_name", String(255), nullable=False),
    Column("source_host", String(255), nullable=False),
    Column("dest_host", String(255)),
    Column("type", String(36), nullable=False),
    Column("status", String(16), nullable=False, index=True),
    Column("attempts", Integer, nullable=False, default=0),
    Column("started_at", UtcDateTime),
    Column("ended_at", UtcDateTime),
    Column("message", Text),
    *times(),
    Index("ix_vmoves_updated_at", "updated_at"),
)


# Durable work, and the audit log of all decisions.


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
    flag("is_open", True),
    Column("owner", String(128)),
    Column("epoch", Integer, nullable=False, default=0),
    Column("claim_until", UtcDateTime),
    Column("attempts", Integer, nullable=False, default=0),
    Column("next_try_at", UtcDateTime, nullable=False),
    Column("sentence", Text, nullable=False),
    Column("payload", JSON, nullable=False),
    *times(),
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
    Column("finished_at", UtcDateTime, index=True),
    Column("sentence", Text, nullable=False),
    Column("details", JSON),
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
    # The state that a lease reached with this line, `repair`, or empty for any other decision.
    Column("kind", String(32), nullable=False, default=""),
    Column("sentence", Text, nullable=False),
    Index("ix_audit_project", "project_id", "id"),
)


# Observations, monitors, incidents, and the operator's switches.


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
    *times(),
    UniqueConstraint("observer", "key"),
    Index("ix_observations_subject", "subject", "observed_at"),
)

monitors = Table(
    "monitors",
    metadata,
    Column("observer", String(128), primary_key=True),
    Column("kind", String(64), nullable=False),
    Column("at", UtcDateTime, nullable=False),
    Column("seen_at", UtcDateTime, nullable=False),
    Column("heartbeat_s", Float, nullable=False),
    Column("digest", String(64), nullable=False),  # of the body, which mostly stays the same
    Column("body", JSON, nullable=False),
    *times(),
)

registered_monitors = Table(
    "registered_monitors",
    metadata,
    Column("observer", String(128), primary_key=True),
    Column("registered_by", String(255), nullable=False),
    *times(),
)

parked_messages = Table(
    "parked_messages",
    metadata,
    Column("id", Serial, primary_key=True),
    Column("at", UtcDateTime, nullable=False),
    Column("monitor", String(64), nullable=False),
    Column("message_id", String(255), nullable=False),
    Column("event_type", String(255), nullable=False),
    Column("why", Text, nullable=False),
    Column("message", JSON, nullable=False),
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
    *times(),
    Index("ix_incidents_opened_at", "opened_at"),
    Index("ix_incidents_updated_at", "updated_at"),
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
    flag("passed"),
    Column("sentence", Text, nullable=False),
    Column("at", UtcDateTime, nullable=False),
)

#: No foreign key: the check would lock the incident's row after the rows of its moves, and
#: recovery locks in the other order.
timeline = Table(
    "timeline",
    metadata,
    Column("id", Serial, primary_key=True),
    Column("incident_id", String(36), nullable=False, index=True),
    Column("at", UtcDateTime, nullable=False),
    Column("actor", String(128), nullable=False),
    Column("kind", String(32), nullable=False),
    Column("data", JSON, nullable=False),
    Column("sentence", Text, nullable=False),
)

pauses = Table(
    "pauses",
    metadata,
    Column("id", Id, primary_key=True),
    Column("scope", String(255), nullable=False),
    Column("author", String(128), nullable=False),
    Column("reason", Text, nullable=False),
    Column("expires_at", UtcDateTime),
    *times(),
)

maintenance_windows = Table(
    "maintenance_windows",
    metadata,
    Column("id", Id, primary_key=True),
    Column("matcher", JSON, nullable=False),
    Column("author", String(128), nullable=False),
    Column("reason", Text, nullable=False),
    Column("starts_at", UtcDateTime, nullable=False),
    Column("expires_at", UtcDateTime, nullable=False),
    *times(),
)


# Agents on the hosts, their alarm rules and their alarms.


agents = Table(
    "agents",
    metadata,
    Column("host", String(255), primary_key=True),
    Column("started_at", UtcDateTime, nullable=False),
    Column("seen_at", UtcDateTime, nullable=False),
    Column("heartbeat_s", Float, nullable=False),
    Column("rules_version", String(64), nullable=False),  # version in force on the agent
    Column("central_version", String(64), nullable=False),  # central rules that the agent has
    Column("rebooted_at", UtcDateTime),  # when a changed boot id was first reported, by our clock
    Column("boot_id", String(64)),
    Column("details", JSON, nullable=False),
    *times(),
)

#: Every version of every document; a deleted document has a last version that says this.
alarm_rules = Table(
    "alarm_rules",
    metadata,
    Column("id", Id, primary_key=True),
    Column("name", String(64), nullable=False),
    Column("version", Integer, nullable=False),
    Column("scope", String(255), nullable=False),
    Column("text", Text, nullable=False),
    flag("removed"),
    flag("latest", default=True),
    Column("author", String(128), nullable=False),
    *times(),
    UniqueConstraint("name", "version"),
    Index("ix_alarm_rules_latest", "latest", "removed"),
)

alarms = Table(
    "alarms",
    metadata,
    Column("id", Id, primary_key=True),
    Column("key", String(255), nullable=False, unique=True),
    Column("host", String(255), nullable=False, index=True),
    Column("subject", String(255), nullable=False),
    Column("project_id", String(64), nullable=False, index=True),
    Column("rule", String(128), nullable=False),
    Column("rules_version", String(64), nullable=False),
    Column("severity", String(16), nullable=False),
    Column("state", String(16), nullable=False, index=True),
    Column("value", Float),
    Column("fired_at", UtcDateTime, nullable=False),
    Column("reported_at", UtcDateTime, nullable=False),  # time of the last reported state
    Column("resolved_at", UtcDateTime, index=True),
    Column("acked_at", UtcDateTime),
    Column("acked_by", String(128)),
    Column("muted_until", UtcDateTime),
    Column("muted_by", String(128)),
    Column("details", JSON, nullable=False),
    *times(),
    Index("ix_alarms_reported_at", "reported_at"),
    Index("ix_alarms_updated_at", "updated_at"),
)


# Used by the console alone: login sessions, and live metrics of watched hosts.


sessions = Table(
    "sessions",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("user_id", String(64), nullable=False),
    Column("proof", String(64), nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("expires_at", UtcDateTime, nullable=False, index=True),
)

#: A row per host watched lately; agents send no samples for other hosts.
samples = Table(
    "samples",
    metadata,
    Column("host", String(255), primary_key=True),
    Column("wanted_until", UtcDateTime, nullable=False, index=True),
    Column("at", UtcDateTime),  # when the last samples came; None: none yet
    Column("last_slot", BigInteger),  # slot of the last sample
    Column("body", JSON, nullable=False),
)
