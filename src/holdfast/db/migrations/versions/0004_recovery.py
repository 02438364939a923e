# SPDX-License-Identifier: Apache-2.0
"""What a move of a server needs to be gone on with by anybody."""

import sqlalchemy as sa
from alembic import op

from holdfast.db.tables import UtcDateTime

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("vmoves", sa.Column("incident_id", sa.String(length=36), nullable=True))
    op.add_column("vmoves", sa.Column("position", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("vmoves", sa.Column("was", sa.String(32), nullable=False, server_default=""))
    op.add_column(
        "vmoves", sa.Column("reservation", sa.String(36), nullable=False, server_default="")
    )
    op.add_column(
        "vmoves",
        sa.Column("locked_before", sa.Boolean(), nullable=False, server_default=sa.false()),
    )
    op.add_column("vmoves", sa.Column("not_before", UtcDateTime(), nullable=True))
    op.add_column(
        "vmoves", sa.Column("after_migration", sa.Integer(), nullable=False, server_default="0")
    )
    op.create_index(op.f("ix_vmoves_incident_id"), "vmoves", ["incident_id"], unique=False)
    op.create_index(op.f("ix_vmoves_status"), "vmoves", ["status"], unique=False)
