# SPDX-License-Identifier: Apache-2.0
"""Rules as documents with their history, agents that say how they are, alarms that people answer.

The three tables of the first version were never written to: they are made anew.
"""

import sqlalchemy as sa
from alembic import op

from holdfast.db.tables import UtcDateTime

revision = "0006"
down_revision = "0005"

MARIADB = {"mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_nopad_bin"}


def upgrade() -> None:
    for name in ("agents", "alarm_rules", "alarms"):
        op.drop_table(name)
    _agents()
    _alarm_rules()
    _alarms()


def _agents() -> None:
    op.create_table(
        "agents",
        sa.Column("host", sa.String(length=255), nullable=False),
        sa.Column("started_at", UtcDateTime(), nullable=False),
        sa.Column("seen_at", UtcDateTime(), nullable=False),
        sa.Column("heartbeat_s", sa.Float(), nullable=False),
        sa.Column("rules_version", sa.String(length=64), nullable=False),
        sa.Column("central_version", sa.String(length=64), nullable=False),
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
        sa.Column("told_at", UtcDateTime(), nullable=False),
        sa.Column("resolved_at", UtcDateTime(), nullable=True),
        sa.Column("acked_at", UtcDateTime(), nullable=True),
        sa.Column("acked_by", sa.String(length=128), nullable=True),
        sa.Column("silent_until", UtcDateTime(), nullable=True),
        sa.Column("silent_by", sa.String(length=128), nullable=True),
        sa.Column("details", sa.JSON(), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_alarms")),
        sa.UniqueConstraint("key", name=op.f("uq_alarms_key")),
        **MARIADB,
    )
    for column in ("host", "project_id", "state", "resolved_at"):
        op.create_index(op.f(f"ix_alarms_{column}"), "alarms", [column], unique=False)
