# SPDX-License-Identifier: Apache-2.0
"""Who is logged in to the console, and the last hour of the hosts that are looked at."""

import sqlalchemy as sa
from alembic import op

from holdfast.db.tables import UtcDateTime

revision = "0007"
down_revision = "0006"

MARIADB = {"mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_nopad_bin"}


def upgrade() -> None:
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
    op.create_index("ix_audit_project", "audit", ["project_id", "id"], unique=False)
