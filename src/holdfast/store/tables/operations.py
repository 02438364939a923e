# SPDX-License-Identifier: Apache-2.0
"""Durable work, the duties one manager at a time does, and the audit of all decisions."""

from sqlalchemy import JSON, Column, ForeignKey, Index, Integer, String, Table, Text

from holdfast.store.tables.base import Id, Serial, UtcDateTime, flag, metadata, times

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
    Index("ix_audit_project", "project_id", "id"),
)
