# SPDX-License-Identifier: Apache-2.0
"""Agents on the hosts, the rules they follow, the alarms they raise."""

from sqlalchemy import JSON, Column, Float, Index, Integer, String, Table, Text, UniqueConstraint

from holdfast.store.tables.base import Id, UtcDateTime, flag, metadata, times

agents = Table(
    "agents",
    metadata,
    Column("host", String(255), primary_key=True),
    Column("started_at", UtcDateTime, nullable=False),
    Column("seen_at", UtcDateTime, nullable=False),
    Column("heartbeat_s", Float, nullable=False),
    Column("rules_version", String(64), nullable=False),  # what is in force there
    Column("central_version", String(64), nullable=False),  # of our rules that it holds
    Column("rebooted_at", UtcDateTime),  # when another boot id was first reported, by our clock
    Column("boot_id", String(64)),
    Column("details", JSON, nullable=False),
    *times(),
)

#: Every version of every document; one that was taken away has a last one that says so.
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
    Column("told_at", UtcDateTime, nullable=False),  # what was said last was so then
    Column("resolved_at", UtcDateTime, index=True),
    Column("acked_at", UtcDateTime),
    Column("acked_by", String(128)),
    Column("silent_until", UtcDateTime),
    Column("silent_by", String(128)),
    Column("details", JSON, nullable=False),
    *times(),
    Index("ix_alarms_told_at", "told_at"),
    Index("ix_alarms_updated_at", "updated_at"),
)
