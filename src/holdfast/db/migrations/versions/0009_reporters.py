# SPDX-License-Identifier: Apache-2.0
"""Who may say that a host failed: notifications keep who posted them, for only the same source
withdraws a report; host monitors are registered; a segment may trust notifications; agents keep the
boot id of their host, for a host that rebooted is not cut."""

import sqlalchemy as sa
from alembic import op

from holdfast.db.tables import UtcDateTime

revision = "0009"
down_revision = "0008"

MARIADB = {"mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_nopad_bin"}


def upgrade() -> None:
    op.add_column("notifications", sa.Column("reporter", sa.String(255), nullable=True))
    op.add_column("agents", sa.Column("rebooted_at", UtcDateTime(), nullable=True))
    op.add_column("agents", sa.Column("boot_id", sa.String(64), nullable=True))
    op.create_table(
        "registered_monitors",
        sa.Column("observer", sa.String(length=128), nullable=False),
        sa.Column("registered_by", sa.String(length=255), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("updated_at", UtcDateTime(), nullable=True),
        sa.PrimaryKeyConstraint("observer", name=op.f("pk_registered_monitors")),
        **MARIADB,
    )
    op.add_column(
        "segments",
        sa.Column("trust_notifications", sa.Boolean(), nullable=False, server_default=sa.false()),
    )
