# SPDX-License-Identifier: Apache-2.0
"""The whole data model of the first release."""

import sqlalchemy as sa
from alembic import op

from holdfast.db.tables import UtcDateTime

revision = "0001"
down_revision = None

#: Names that differ in case or in a blank at the end differ, on MariaDB too.
MARIADB = {"mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_nopad_bin"}


def upgrade() -> None:
    op.create_table(
        "agents",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("host", sa.String(length=255), nullable=False),
        sa.Column("last_heartbeat_at", UtcDateTime(), nullable=True),
        sa.Column("rules_version", sa.Integer(), nullable=False),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_agents")),
        sa.UniqueConstraint("host", name=op.f("uq_agents_host")),
        **MARIADB,
    )
    op.create_table(
        "alarm_rules",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("scope", sa.String(length=255), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("rules", sa.JSON(), nullable=False),
        sa.Column("author", sa.String(length=128), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_alarm_rules")),
        sa.UniqueConstraint("scope", "version", name=op.f("uq_alarm_rules_scope_version")),
        **MARIADB,
    )
    op.create_table(
        "alarms",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("host", sa.String(length=255), nullable=False),
        sa.Column("subject", sa.String(length=255), nullable=False),
        sa.Column("rule", sa.String(length=128), nullable=False),
        sa.Column("rules_version", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("value", sa.Float(), nullable=True),
        sa.Column("fired_at", UtcDateTime(), nullable=False),
        sa.Column("resolved_at", UtcDateTime(), nullable=True),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_alarms")),
        sa.UniqueConstraint("key", name=op.f("uq_alarms_key")),
        **MARIADB,
    )
    op.create_index(op.f("ix_alarms_host"), "alarms", ["host"], unique=False)
    op.create_table(
        "audit",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.Column("subject", sa.String(length=128), nullable=False),
        sa.Column("project_id", sa.String(length=64), nullable=True),
        sa.Column("actor", sa.String(length=128), nullable=False),
        sa.Column("request_id", sa.String(length=64), nullable=False),
        sa.Column("sentence", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
        **MARIADB,
    )
    op.create_index(op.f("ix_audit_at"), "audit", ["at"], unique=False)
    op.create_index(op.f("ix_audit_subject"), "audit", ["subject"], unique=False)
    op.create_table(
        "duties",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("owner", sa.String(length=128), nullable=True),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("claim_until", UtcDateTime(), nullable=True),
        sa.Column("last_done_at", UtcDateTime(), nullable=True),
        sa.Column("sentence", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_duties")),
        **MARIADB,
    )
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
        sa.Column("vcpus_ratio", sa.Float(), nullable=False),
        sa.Column("memory_ratio", sa.Float(), nullable=False),
        sa.Column("disk_ratio", sa.Float(), nullable=False),
        sa.Column("vcpus_reserved", sa.Integer(), nullable=False),
        sa.Column("memory_mb_reserved", sa.Integer(), nullable=False),
        sa.Column("local_gb_reserved", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("state_since", UtcDateTime(), nullable=True),
        sa.Column("enrolled", sa.Boolean(), nullable=False),
        sa.Column("reservable", sa.Boolean(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_hosts")),
        sa.UniqueConstraint("name", name=op.f("uq_hosts_name")),
        sa.UniqueConstraint("uuid", name=op.f("uq_hosts_uuid")),
        **MARIADB,
    )
    op.create_index("ix_hosts_enrolled", "hosts", ["enrolled", "reservable"], unique=False)
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
    op.create_index(op.f("ix_incidents_status"), "incidents", ["status"], unique=False)
    op.create_index(op.f("ix_incidents_subject"), "incidents", ["subject"], unique=False)
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
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_leases")),
        **MARIADB,
    )
    op.create_index("ix_leases_project", "leases", ["project_id", "created_at"], unique=False)
    op.create_index("ix_leases_window", "leases", ["start_date", "end_date"], unique=False)
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
        sa.Column("spare_hosts", sa.Integer(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_segments")),
        sa.UniqueConstraint("name", name=op.f("uq_segments_name")),
        sa.UniqueConstraint("uuid", name=op.f("uq_segments_uuid")),
        **MARIADB,
    )
    op.create_table(
        "silences",
        sa.Column("id", sa.String(length=36), nullable=False),
        sa.Column("matcher", sa.JSON(), nullable=False),
        sa.Column("author", sa.String(length=128), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("starts_at", UtcDateTime(), nullable=False),
        sa.Column("expires_at", UtcDateTime(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_silences")),
        **MARIADB,
    )
    op.create_table(
        "vmoves",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("uuid", sa.String(length=36), nullable=False),
        sa.Column("notification_uuid", sa.String(length=36), nullable=False),
        sa.Column("operation_id", sa.String(length=36), nullable=True),
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
    op.create_index(
        op.f("ix_vmoves_notification_uuid"), "vmoves", ["notification_uuid"], unique=False
    )
    op.create_index(op.f("ix_vmoves_operation_id"), "vmoves", ["operation_id"], unique=False)
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
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=True),
        sa.ForeignKeyConstraint(
            ["lease_id"], ["leases.id"], name=op.f("fk_reservations_lease_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_reservations")),
        **MARIADB,
    )
    op.create_index(op.f("ix_reservations_lease_id"), "reservations", ["lease_id"], unique=False)
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
    op.create_table(
        "allocations",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("reservation_id", sa.String(length=36), nullable=False),
        sa.Column("host_id", sa.Integer(), nullable=True),
        sa.Column("address", sa.String(length=64), nullable=True),
        sa.Column("held_from", UtcDateTime(), nullable=False),
        sa.Column("held_until", UtcDateTime(), nullable=False),
        sa.Column("slots", sa.Integer(), nullable=True),
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
    op.create_index(
        "ix_allocations_time", "allocations", ["held_until", "held_from", "host_id"], unique=False
    )
    if op.get_bind().dialect.name == "postgresql":
        # The database itself refuses two owners of a whole host, whatever the code does.
        op.execute("CREATE EXTENSION IF NOT EXISTS btree_gist")
        op.execute(
            "ALTER TABLE allocations ADD CONSTRAINT ex_allocations_one_owner EXCLUDE USING gist"
            " (host_id WITH =, tsrange(held_from, held_until) WITH &&) WHERE (slots IS NULL)"
        )
