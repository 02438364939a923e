# SPDX-License-Identifier: Apache-2.0
"""Lines of the audit as those who decide may have left them."""

from __future__ import annotations

from datetime import datetime, timedelta

import sqlalchemy as sa

from holdfast.db.tables import audit
from tests.api.house import House

LEASE = "1ea5e000-0000-4000-8000-000000000001"


def write_line(house: House, sentence: str, **fields: object) -> int:
    """Its id."""
    row = {
        "at": house.core.store.database.now(),
        "subject": "hosts",
        "project_id": None,
        "actor": "holdfast",
        "request_id": "",
        "sentence": sentence,
    }
    with house.core.store.database.write() as conn:
        made = conn.execute(sa.insert(audit).values(**{**row, **fields}))
    (own,) = made.inserted_primary_key or (0,)
    return int(own)


def furnish_audit(house: House) -> dict[str, int]:
    """Lines of both projects and of nobody's things, an hour apart; the id of each by its name."""
    noon = datetime.fromisoformat("2027-01-31T12:00:00+00:00")
    told = {
        "booked": ("lease red booked", {"subject": LEASE, "project_id": "red", "actor": "rita"}),
        "mine": ("lease 100% Blue booked", {"subject": LEASE, "project_id": "blue"}),
        "opened": ("opened: cmp-7 died", {"subject": "incident:c0ffee"}),
        "fenced": ("running: cmp-7 was FENCED", {"subject": "incident:c0ffee", "actor": "ann"}),
        "paused": ("recovery is paused", {"subject": "recovery", "request_id": "req-7"}),
    }
    return {
        name: write_line(house, said, at=noon + timedelta(hours=hour), **fields)
        for hour, (name, (said, fields)) in enumerate(told.items())
    }
