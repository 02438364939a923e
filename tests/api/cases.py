# SPDX-License-Identifier: Apache-2.0
"""Incidents, pauses and maintenance windows as managers and operators may have left them."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import sqlalchemy as sa

from holdfast.db.tables import incidents
from tests.api.house import House

#: Of what `furnish_case` makes.
INCIDENT = "c0ffee00-0000-4000-8000-000000000001"
WINDOW = "c0ffee00-0000-4000-8000-000000000002"
_OPEN = ("open", "held", "running")


def write_incident(house: House, **fields: Any) -> str:
    """A row; without durable work, so that nobody goes on with it."""
    own = fields.pop("id", str(uuid.uuid4()))
    now = house.core.store.database.now()
    host, kind = fields.pop("host", "cmp-3"), fields.get("kind", "host")
    subject = fields.get("subject", f"host:{host}")
    is_open = fields.get("status", "held") in _OPEN
    details = {"host": host, "segment": fields.pop("segment", ""), **fields.pop("details", {})}
    row = {
        "id": own,
        "key": subject if is_open else f"{subject}#{own}",
        "subject": subject,
        "kind": kind,
        "cause": f"{host} is reported to have stopped",
        "status": "held",
        "opened_at": now - timedelta(seconds=30),
        "closed_at": None if is_open else now,
        "sentence": "nothing proves that it is off",
        "created_at": now,
    }
    with house.core.store.database.write() as conn:
        conn.execute(sa.insert(incidents).values(**{**row, **fields, "details": details}))
    return own


def furnish_case(house: House, path: str) -> None:
    """What a route below /holdfast/v1 about recovery is asked about, if that is one."""
    store = house.core.store
    write_incident(house, id=INCIDENT, status="failed" if path.endswith("/retry") else "held")
    store.switches.pause("", "ann", "wait", None)
    values = {"id": WINDOW, "matcher": {"kind": "guest"}, "author": "ann", "reason": "patches"}
    until = store.database.now() + timedelta(hours=1)
    store.switches.add_window({**values, "expires_at": until})
