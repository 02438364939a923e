# SPDX-License-Identifier: Apache-2.0
"""What a host's state rests on, and messages that a monitor could not digest."""

import sqlalchemy as sa
from alembic import op

from holdfast.db.tables import Serial, UtcDateTime

revision = "0003"
down_revision = "0002"

MARIADB = {"mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_nopad_bin"}


def upgrade() -> None:
    op.add_column("hosts", sa.Column("standing", sa.JSON(), nullable=True))
    op.create_table(
        "set_aside",
        sa.Column("id", Serial, nullable=False),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.Column("monitor", sa.String(length=64), nullable=False),
        sa.Column("message_id", sa.String(length=255), nullable=False),
        sa.Column("event_type", sa.String(length=255), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("message", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_set_aside")),
        **MARIADB,
    )
