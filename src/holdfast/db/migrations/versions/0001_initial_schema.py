# SPDX-License-Identifier: Apache-2.0
"""The schema of the first release."""

import sqlalchemy as sa
from alembic import op

from holdfast.db.tables import UtcDateTime

revision = "0001"
down_revision = None

#: On MariaDB too, names that differ in case or in a trailing blank are different names.
MARIADB = {"mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_nopad_bin"}


def upgrade() -> None:
    """Create every table, referenced tables first."""
    _agents()
    _alarm_rules()
    _alarms()
    _audit()
    _floatingips()
    _hosts()
    _incidents()
    _leases()
    _monitors()
    _notifications()
    _observations()
    _operations()
    _parked_messages()
    _pauses()
    _projects()
    _properties()
    _registered_monitors()
    _resource_locks()
    _samples()
    _segments()
    _sessions()
    _maintenance_windows()
    _vmoves()
    _host_capabilities()
    _host_traits()
    _reservations()
    _segment_hosts()
    _steps()
    _timeline()
    _verdicts()
    _allocations()
    if op.get_bind().dialect.name == "postgresql":
        _exclusions()


def _agents() -> None:
    op.create_table(
        "agents",
        sa.Column("host", sa.String(length=255), nullable=False),
        sa.Column("started_at", UtcDateTime(), nullable=False),
        sa.Column("seen_at", UtcDateTime(), nullable=False),
        sa.Column("heartbeat_s", sa.Float(), nullable=False),
        sa.Column("rules_version", sa.String(length=64), nullable=False),
        sa.Column("central_version", sa.String(length=64), nullable=False),
        sa.Column("rebooted_at", UtcDateTime(), nullable=True),
        sa.Column("boot_id", sa.String(length=64), nullable=True),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("host", name=op.f("pk_agents")),
        **MARIADB,
    )


def _alarm_rules() -> None:
    op.create_table(
        "alarm_rules",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("scope", sa.String(length=255), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("removed", sa.Boolean(), nullable=False),
        sa.Column("latest", sa.Boolean(), nullable=False),
        sa.Column("author", sa.String(length=128), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_alarm_rules")),
        sa.UniqueConstraint("name", "version", name=op.f("uq_alarm_rules_name_version")),
        **MARIADB,
    )
    op.create_index("ix_alarm_rules_latest", "alarm_rules", ["latest", "removed"], unique=False)


def _alarms() -> None:
    op.create_table(
        "alarms",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("host", sa.String(length=255), nullable=False),
        sa.Column("subject", sa.String(length=255), nullable=False),
        sa.Column("project_id", sa.String(length=64), nullable=False),
        sa.Column("rule", sa.String(length=128), nullable=False),
        sa.Column("rules_version", sa.String(length=64), nullable=False),
        sa.Column("severity", sa.String(length=16), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("value", sa.Float(), nullable=True),
        sa.Column("fired_at", UtcDateTime(), nullable=False),
        sa.Column("reported_at", UtcDateTime(), nullable=False),
        sa.Column("resolved_at", UtcDateTime(), nullable=True),
        sa.Column("acked_at", UtcDateTime(), nullable=True),
        sa.Column("acked_by", sa.String(length=128), nullable=True),
        sa.Column("muted_until", UtcDateTime(), nullable=True),
        sa.Column("muted_by", sa.String(length=128), nullable=True),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_alarms")),
        sa.UniqueConstraint("key", name=op.f("uq_alarms_key")),
        **MARIADB,
    )
    op.create_index(op.f("ix_alarms_host"), "alarms", ["host"], unique=False)
    op.create_index(op.f("ix_alarms_project_id"), "alarms", ["project_id"], unique=False)
    op.create_index(op.f("ix_alarms_resolved_at"), "alarms", ["resolved_at"], unique=False)
    op.create_index(op.f("ix_alarms_state"), "alarms", ["state"], unique=False)
    op.create_index("ix_alarms_reported_at", "alarms", ["reported_at"], unique=False)
    op.create_index("ix_alarms_updated_at", "alarms", ["updated_at"], unique=False)


def _audit() -> None:
    op.create_table(
        "audit",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.Column("subject", sa.String(length=128), nullable=False),
        sa.Column("project_id", sa.String(length=64), nullable=True),
        sa.Column("actor", sa.String(length=128), nullable=False),
        sa.Column("request_id", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("sentence", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
        **MARIADB,
    )
    op.create_index(op.f("ix_audit_at"), "audit", ["at"], unique=False)
    op.create_index("ix_audit_project", "audit", ["project_id", "id"], unique=False)
    op.create_index(op.f("ix_audit_subject"), "audit", ["subject"], unique=False)


def _floatingips() -> None:
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
    op.create_table(
        "hosts",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("uuid", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("hypervisor_hostname", sa.String(length=255), nullable=False),
        sa.Column("service_host", sa.String(length=255), nullable=False),
        sa.Column("hypervisor_type", sa.String(length=64), nullable=False),
        sa.Column("hypervisor_version", sa.Integer(), nullable=False),
        sa.Column("cpu_info", sa.Text(), nullable=False),
        sa.Column("region", sa.String(length=255), nullable=False),
        sa.Column("zone", sa.String(length=255), nullable=False),
        sa.Column("rack", sa.String(length=255), nullable=False),
        sa.Column("vcpus", sa.Integer(), nullable=False),
        sa.Column("memory_mb", sa.Integer(), nullable=False),
        sa.Column("local_gb", sa.Integer(), nullable=False),
        sa.Column("inventories", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("state_since", UtcDateTime(), nullable=True),
        sa.Column("status", sa.JSON(), nullable=True),
        sa.Column("enrolled", sa.Boolean(), nullable=False),
        sa.Column("reservable", sa.Boolean(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("touched_at", UtcDateTime(), nullable=False),
        sa.Column("pools_changed_at", UtcDateTime(), nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_hosts")),
        sa.UniqueConstraint("name", name=op.f("uq_hosts_name")),
        sa.UniqueConstraint("uuid", name=op.f("uq_hosts_uuid")),
        **MARIADB,
    )
    op.create_index("ix_hosts_enrolled", "hosts", ["enrolled", "reservable"], unique=False)
    op.create_index("ix_hosts_touched", "hosts", ["touched_at"], unique=False)


def _incidents() -> None:
    op.create_table(
        "incidents",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("subject", sa.String(length=255), nullable=False),
        sa.Column("kind", sa.String(length=64), nullable=False),
        sa.Column("cause", sa.String(length=255), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("opened_at", UtcDateTime(), nullable=False),
        sa.Column("closed_at", UtcDateTime(), nullable=True),
        sa.Column("sentence", sa.Text(), nullable=False),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_incidents")),
        sa.UniqueConstraint("key", name=op.f("uq_incidents_key")),
        **MARIADB,
    )
    op.create_index("ix_incidents_opened_at", "incidents", ["opened_at"], unique=False)
    op.create_index(op.f("ix_incidents_status"), "incidents", ["status"], unique=False)
    op.create_index(op.f("ix_incidents_subject"), "incidents", ["subject"], unique=False)
    op.create_index("ix_incidents_updated_at", "incidents", ["updated_at"], unique=False)


def _leases() -> None:
    op.create_table(
        "leases",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=80), nullable=False),
        sa.Column("user_id", sa.String(length=64), nullable=False),
        sa.Column("project_id", sa.String(length=64), nullable=False),
        sa.Column("start_date", UtcDateTime(), nullable=False),
        sa.Column("end_date", UtcDateTime(), nullable=False),
        sa.Column("before_end_date", UtcDateTime(), nullable=True),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("degraded", sa.Boolean(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("user_events", sa.JSON(), nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_leases")),
        **MARIADB,
    )
    op.create_index("ix_leases_created_at", "leases", ["created_at"], unique=False)
    op.create_index("ix_leases_project", "leases", ["project_id", "created_at"], unique=False)
    op.create_index("ix_leases_updated_at", "leases", ["updated_at"], unique=False)
    op.create_index("ix_leases_version", "leases", ["version"], unique=False)
    op.create_index("ix_leases_window", "leases", ["start_date", "end_date"], unique=False)


def _monitors() -> None:
    op.create_table(
        "monitors",
        sa.Column("observer", sa.String(length=128), nullable=False),
        sa.Column("kind", sa.String(length=64), nullable=False),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.Column("seen_at", UtcDateTime(), nullable=False),
        sa.Column("heartbeat_s", sa.Float(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("observer", name=op.f("pk_monitors")),
        **MARIADB,
    )


def _notifications() -> None:
    op.create_table(
        "notifications",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("uuid", sa.String(length=36), nullable=False),
        sa.Column("type", sa.String(length=36), nullable=False),
        sa.Column("segment_host_uuid", sa.String(length=36), nullable=False),
        sa.Column("segment_uuid", sa.String(length=36), nullable=True),
        sa.Column("generated_time", UtcDateTime(), nullable=False),
        sa.Column("payload", sa.JSON(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("message", sa.Text(), nullable=True),
        sa.Column("incident_id", sa.String(length=36), nullable=True),
        sa.Column("reporter", sa.String(length=255), nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_notifications")),
        sa.UniqueConstraint("uuid", name=op.f("uq_notifications_uuid")),
        **MARIADB,
    )
    op.create_index(
        op.f("ix_notifications_incident_id"), "notifications", ["incident_id"], unique=False
    )
    op.create_index(
        op.f("ix_notifications_segment_host_uuid"),
        "notifications",
        ["segment_host_uuid"],
        unique=False,
    )
    op.create_index(op.f("ix_notifications_status"), "notifications", ["status"], unique=False)


def _observations() -> None:
    op.create_table(
        "observations",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("observer", sa.String(length=128), nullable=False),
        sa.Column("subject", sa.String(length=255), nullable=False),
        sa.Column("kind", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=64), nullable=False),
        sa.Column("since", UtcDateTime(), nullable=False),
        sa.Column("observed_at", UtcDateTime(), nullable=False),
        sa.Column("evidence", sa.JSON(), nullable=False),
        sa.Column("incident_id", sa.String(length=36), nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_observations")),
        sa.UniqueConstraint("observer", "key", name=op.f("uq_observations_observer_key")),
        **MARIADB,
    )
    op.create_index(
        op.f("ix_observations_incident_id"), "observations", ["incident_id"], unique=False
    )
    op.create_index(
        "ix_observations_subject", "observations", ["subject", "observed_at"], unique=False
    )


def _operations() -> None:
    op.create_table(
        "operations",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("kind", sa.String(length=64), nullable=False),
        sa.Column("subject", sa.String(length=128), nullable=False),
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("sequence", sa.Integer(), nullable=False),
        sa.Column("due_at", UtcDateTime(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("is_open", sa.Boolean(), nullable=False),
        sa.Column("owner", sa.String(length=128), nullable=True),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("claim_until", UtcDateTime(), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_try_at", UtcDateTime(), nullable=False),
        sa.Column("sentence", sa.Text(), nullable=False),
        sa.Column("payload", sa.JSON(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_operations")),
        sa.UniqueConstraint("key", name=op.f("uq_operations_key")),
        **MARIADB,
    )
    op.create_index("ix_operations_look", "operations", ["is_open", "next_try_at"], unique=False)
    op.create_index(
        "ix_operations_subject", "operations", ["subject", "is_open", "sequence"], unique=False
    )


def _parked_messages() -> None:
    op.create_table(
        "parked_messages",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.Column("monitor", sa.String(length=64), nullable=False),
        sa.Column("message_id", sa.String(length=255), nullable=False),
        sa.Column("event_type", sa.String(length=255), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("message", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_parked_messages")),
        **MARIADB,
    )


def _pauses() -> None:
    op.create_table(
        "pauses",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("scope", sa.String(length=255), nullable=False),
        sa.Column("author", sa.String(length=128), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("expires_at", UtcDateTime(), nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_pauses")),
        **MARIADB,
    )


def _projects() -> None:
    op.create_table(
        "projects",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_projects")),
        **MARIADB,
    )


def _properties() -> None:
    op.create_table(
        "properties",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("resource_type", sa.String(length=66), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("private", sa.Boolean(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_properties")),
        sa.UniqueConstraint("resource_type", "name", name=op.f("uq_properties_resource_type_name")),
        **MARIADB,
    )


def _registered_monitors() -> None:
    op.create_table(
        "registered_monitors",
        sa.Column("observer", sa.String(length=128), nullable=False),
        sa.Column("registered_by", sa.String(length=255), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("observer", name=op.f("pk_registered_monitors")),
        **MARIADB,
    )


def _resource_locks() -> None:
    op.create_table(
        "resource_locks",
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("key", name=op.f("pk_resource_locks")),
        **MARIADB,
    )


def _samples() -> None:
    op.create_table(
        "samples",
        sa.Column("host", sa.String(length=255), nullable=False),
        sa.Column("wanted_until", UtcDateTime(), nullable=False),
        sa.Column("at", UtcDateTime(), nullable=True),
        sa.Column("last_slot", sa.BigInteger(), nullable=True),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("host", name=op.f("pk_samples")),
        **MARIADB,
    )
    op.create_index(op.f("ix_samples_wanted_until"), "samples", ["wanted_until"], unique=False)


def _segments() -> None:
    op.create_table(
        "segments",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("uuid", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("description", sa.Text(), nullable=True),
        sa.Column("service_type", sa.String(length=255), nullable=False),
        sa.Column("recovery_method", sa.String(length=16), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("trust_host_status", sa.Boolean(), nullable=False),
        sa.Column("trust_notifications", sa.Boolean(), nullable=False),
        sa.Column("spare_hosts", sa.Integer(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_segments")),
        sa.UniqueConstraint("name", name=op.f("uq_segments_name")),
        sa.UniqueConstraint("uuid", name=op.f("uq_segments_uuid")),
        **MARIADB,
    )


def _sessions() -> None:
    op.create_table(
        "sessions",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("user_id", sa.String(length=64), nullable=False),
        sa.Column("proof", sa.String(length=64), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("expires_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sessions")),
        **MARIADB,
    )
    op.create_index(op.f("ix_sessions_expires_at"), "sessions", ["expires_at"], unique=False)


def _maintenance_windows() -> None:
    op.create_table(
        "maintenance_windows",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("matcher", sa.JSON(), nullable=False),
        sa.Column("author", sa.String(length=128), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("starts_at", UtcDateTime(), nullable=False),
        sa.Column("expires_at", UtcDateTime(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_maintenance_windows")),
        **MARIADB,
    )


def _vmoves() -> None:
    op.create_table(
        "vmoves",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("uuid", sa.String(length=36), nullable=False),
        sa.Column("notification_uuid", sa.String(length=36), nullable=False),
        sa.Column("operation_id", sa.String(length=36), nullable=True),
        sa.Column("incident_id", sa.String(length=36), nullable=True),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("was", sa.String(length=32), nullable=False),
        sa.Column("reservation", sa.String(length=36), nullable=False),
        sa.Column("locked_before", sa.Boolean(), nullable=False),
        sa.Column("not_before", UtcDateTime(), nullable=True),
        sa.Column("after_migration", sa.Integer(), nullable=False),
        sa.Column("server_id", sa.String(length=36), nullable=False),
        sa.Column("server_name", sa.String(length=255), nullable=False),
        sa.Column("source_host", sa.String(length=255), nullable=False),
        sa.Column("dest_host", sa.String(length=255), nullable=True),
        sa.Column("type", sa.String(length=36), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("started_at", UtcDateTime(), nullable=True),
        sa.Column("ended_at", UtcDateTime(), nullable=True),
        sa.Column("message", sa.Text(), nullable=True),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_vmoves")),
        sa.UniqueConstraint("uuid", name=op.f("uq_vmoves_uuid")),
        **MARIADB,
    )
    op.create_index(op.f("ix_vmoves_incident_id"), "vmoves", ["incident_id"], unique=False)
    op.create_index(
        op.f("ix_vmoves_notification_uuid"), "vmoves", ["notification_uuid"], unique=False
    )
    op.create_index(op.f("ix_vmoves_operation_id"), "vmoves", ["operation_id"], unique=False)
    op.create_index(op.f("ix_vmoves_status"), "vmoves", ["status"], unique=False)
    op.create_index("ix_vmoves_updated_at", "vmoves", ["updated_at"], unique=False)


def _host_capabilities() -> None:
    op.create_table(
        "host_capabilities",
        sa.Column("host_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("number", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(
            ["host_id"], ["hosts.id"], name=op.f("fk_host_capabilities_host_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("host_id", "name", name=op.f("pk_host_capabilities")),
        **MARIADB,
    )
    op.create_index("ix_host_capabilities_name", "host_capabilities", ["name"], unique=False)


def _host_traits() -> None:
    op.create_table(
        "host_traits",
        sa.Column("host_id", sa.Integer(), nullable=False),
        sa.Column("trait", sa.String(length=255), nullable=False),
        sa.ForeignKeyConstraint(
            ["host_id"], ["hosts.id"], name=op.f("fk_host_traits_host_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("host_id", "trait", name=op.f("pk_host_traits")),
        **MARIADB,
    )


def _reservations() -> None:
    op.create_table(
        "reservations",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("lease_id", sa.String(length=36), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("resource_type", sa.String(length=66), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("missing_resources", sa.Boolean(), nullable=False),
        sa.Column("resources_changed", sa.Boolean(), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("made", sa.JSON(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=True),
        sa.ForeignKeyConstraint(
            ["lease_id"], ["leases.id"], name=op.f("fk_reservations_lease_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_reservations")),
        **MARIADB,
    )
    op.create_index(op.f("ix_reservations_lease_id"), "reservations", ["lease_id"], unique=False)


def _segment_hosts() -> None:
    op.create_table(
        "segment_hosts",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("uuid", sa.String(length=36), nullable=False),
        sa.Column("segment_id", sa.Integer(), nullable=False),
        sa.Column("host_id", sa.Integer(), nullable=False),
        sa.Column("type", sa.String(length=255), nullable=False),
        sa.Column("control_attributes", sa.Text(), nullable=False),
        sa.Column("reserved", sa.Boolean(), nullable=False),
        sa.Column("on_maintenance", sa.Boolean(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=True),
        sa.ForeignKeyConstraint(["host_id"], ["hosts.id"], name=op.f("fk_segment_hosts_host_id")),
        sa.ForeignKeyConstraint(
            ["segment_id"], ["segments.id"], name=op.f("fk_segment_hosts_segment_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_segment_hosts")),
        sa.UniqueConstraint("host_id", name=op.f("uq_segment_hosts_host_id")),
        sa.UniqueConstraint("uuid", name=op.f("uq_segment_hosts_uuid")),
        **MARIADB,
    )
    op.create_index(
        op.f("ix_segment_hosts_segment_id"), "segment_hosts", ["segment_id"], unique=False
    )


def _steps() -> None:
    op.create_table(
        "steps",
        sa.Column("operation_id", sa.String(length=36), nullable=False),
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("status", sa.String(length=16), nullable=False),
        sa.Column("finished_at", UtcDateTime(), nullable=True),
        sa.Column("sentence", sa.Text(), nullable=False),
        sa.Column("details", sa.JSON(), nullable=True),
        sa.ForeignKeyConstraint(
            ["operation_id"],
            ["operations.id"],
            name=op.f("fk_steps_operation_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("operation_id", "name", name=op.f("pk_steps")),
        **MARIADB,
    )
    op.create_index(op.f("ix_steps_finished_at"), "steps", ["finished_at"], unique=False)


def _timeline() -> None:
    op.create_table(
        "timeline",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("incident_id", sa.String(length=36), nullable=False),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.Column("actor", sa.String(length=128), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.Column("sentence", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_timeline")),
        **MARIADB,
    )
    op.create_index(op.f("ix_timeline_incident_id"), "timeline", ["incident_id"], unique=False)


def _verdicts() -> None:
    op.create_table(
        "verdicts",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("incident_id", sa.String(length=36), nullable=False),
        sa.Column("guard", sa.String(length=64), nullable=False),
        sa.Column("passed", sa.Boolean(), nullable=False),
        sa.Column("sentence", sa.Text(), nullable=False),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.ForeignKeyConstraint(
            ["incident_id"],
            ["incidents.id"],
            name=op.f("fk_verdicts_incident_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_verdicts")),
        **MARIADB,
    )
    op.create_index(op.f("ix_verdicts_incident_id"), "verdicts", ["incident_id"], unique=False)


def _allocations() -> None:
    op.create_table(
        "allocations",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("reservation_id", sa.String(length=36), nullable=False),
        sa.Column("host_id", sa.Integer(), nullable=True),
        sa.Column("held_from", UtcDateTime(), nullable=False),
        sa.Column("held_until", UtcDateTime(), nullable=False),
        sa.Column("slots", sa.Integer(), nullable=True),
        sa.Column("takes", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("thing", sa.String(length=64), nullable=True),
        sa.ForeignKeyConstraint(["host_id"], ["hosts.id"], name=op.f("fk_allocations_host_id")),
        sa.ForeignKeyConstraint(
            ["reservation_id"],
            ["reservations.id"],
            name=op.f("fk_allocations_reservation_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_allocations")),
        **MARIADB,
    )
    op.create_index(
        "ix_allocations_host_time",
        "allocations",
        ["host_id", "held_until", "held_from"],
        unique=False,
    )
    op.create_index(
        op.f("ix_allocations_reservation_id"), "allocations", ["reservation_id"], unique=False
    )
    op.create_index("ix_allocations_thing", "allocations", ["thing", "held_until"], unique=False)
    op.create_index(
        "ix_allocations_time", "allocations", ["held_until", "held_from", "host_id"], unique=False
    )


def _exclusions() -> None:
    """Have PostgreSQL itself refuse two owners of a whole host or of another resource."""
    op.execute("CREATE EXTENSION IF NOT EXISTS btree_gist")
    op.execute(
        "ALTER TABLE allocations ADD CONSTRAINT ex_allocations_one_owner EXCLUDE USING gist"
        " (host_id WITH =, tsrange(held_from, held_until) WITH &&) WHERE (slots IS NULL)"
    )
    op.execute(
        "ALTER TABLE allocations ADD CONSTRAINT ex_allocations_one_owner_of_things EXCLUDE"
        " USING gist (thing WITH =, tsrange(held_from, held_until) WITH &&)"
        " WHERE (thing IS NOT NULL)"
    )
