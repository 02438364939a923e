# SPDX-License-Identifier: Apache-2.0
"""What each monitor sees now."""

import sqlalchemy as sa
from alembic import op

from holdfast.db.tables import UtcDateTime

revision = "0005"
down_revision = "0004"

MARIADB = {"mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_nopad_bin"}


def upgrade() -> None:
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
