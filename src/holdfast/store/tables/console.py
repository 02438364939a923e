# SPDX-License-Identifier: Apache-2.0
"""What the console alone needs: who is logged in, and the last hour of hosts that somebody looks
at."""

from sqlalchemy import JSON, BigInteger, Column, String, Table

from holdfast.store.tables.base import UtcDateTime, metadata

sessions = Table(
    "sessions",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("user_id", String(64), nullable=False),
    Column("proof", String(64), nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("expires_at", UtcDateTime, nullable=False, index=True),
)

#: One row per host that was looked at lately; agents send nothing while nobody does.
samples = Table(
    "samples",
    metadata,
    Column("host", String(255), primary_key=True),
    Column("wanted_until", UtcDateTime, nullable=False, index=True),
    Column("at", UtcDateTime),  # when numbers came last; None: none came yet
    Column("last_slot", BigInteger),  # of those, the last point
    Column("body", JSON, nullable=False),
)
