# SPDX-License-Identifier: Apache-2.0
"""Agents on the hosts, the rules they follow, the alarms they raise."""

from sqlalchemy import JSON, Column, Float, Integer, String, Table, UniqueConstraint

from holdfast.store.tables.base import Id, UtcDateTime, metadata, times

agents = Table(
    "agents",
    metadata,
    Column("id", Id, primary_key=True),
    Column("host", String(255), nullable=False, unique=True),
    Column("last_heartbeat_at", UtcDateTime),
    Column("rules_version", Integer, nullable=False, default=0),
    Column("details", JSON, nullable=False),
    *times(),
)

alarm_rules = Table(
    "alarm_rules",
    metadata,
    Column("id", Id, primary_key=True),
    Column("scope", String(255), nullable=False),
    Column("version", Integer, nullable=False),
    Column("rules", JSON, nullable=False),
    Column("author", String(128), nullable=False),
    *times(),
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
    *times(),
)
