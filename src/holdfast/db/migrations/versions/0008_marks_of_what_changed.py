# SPDX-License-Identifier: Apache-2.0
"""What open pages ask once a second, whether anything changed, is answered without reading all
rows."""

from alembic import op

revision = "0008"
down_revision = "0007"

MARKS = (
    ("alarms", "told_at"),
    ("alarms", "updated_at"),
    ("incidents", "opened_at"),
    ("incidents", "updated_at"),
    ("leases", "created_at"),
    ("leases", "version"),
    ("steps", "finished_at"),
    ("vmoves", "updated_at"),
)


def upgrade() -> None:
    for table, column in MARKS:
        op.create_index(op.f(f"ix_{table}_{column}"), table, [column], unique=False)
