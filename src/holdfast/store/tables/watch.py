# SPDX-License-Identifier: Apache-2.0
"""What was seen, what it amounts to, and the operator's switches."""

from sqlalchemy import (
    JSON,
    Column,
    Float,
    ForeignKey,
    Index,
    String,
    Table,
    Text,
    UniqueConstraint,
)

from holdfast.store.tables.base import Id, Serial, UtcDateTime, flag, metadata, times

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
    Column("digest", String(64), nullable=False),  # of the body: most often it is the same again
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

set_aside = Table(
    "set_aside",
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

silences = Table(
    "silences",
    metadata,
    Column("id", Id, primary_key=True),
    Column("matcher", JSON, nullable=False),
    Column("author", String(128), nullable=False),
    Column("reason", Text, nullable=False),
    Column("starts_at", UtcDateTime, nullable=False),
    Column("expires_at", UtcDateTime, nullable=False),
    *times(),
)
