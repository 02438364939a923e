# SPDX-License-Identifier: Apache-2.0
"""${message}"""

import sqlalchemy as sa
from alembic import op

from holdfast.db.tables import UtcDateTime

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}


def upgrade() -> None:
    ${upgrades if upgrades else "pass"}
