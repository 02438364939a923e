# SPDX-License-Identifier: Apache-2.0
"""The nouns of the instance HA contract: segments, their hosts, notifications, moves."""

from sqlalchemy import JSON, Column, ForeignKey, Index, Integer, String, Table, Text

from holdfast.store.tables.base import Id, UtcDateTime, flag, metadata, times

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
