# SPDX-License-Identifier: Apache-2.0
"""What tests of the instance HA contract ask with, and a segment or two to ask about."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa

from holdfast.db.tables import notifications, vmoves
from tests.api.house import House

HA = "/instance-ha/v1"
SEGMENTS, REPORTS = f"{HA}/segments", f"{HA}/notifications"
VERSION = "OpenStack-API-Version"
DOWN = {"event": "STOPPED", "host_status": "NORMAL", "cluster_status": "OFFLINE"}


def at(version: str) -> dict[str, str]:
    return {VERSION: f"instance-ha {version}"}


def segment_body(name: str = "north", **fields: Any) -> dict[str, Any]:
    return {"name": name, "recovery_method": "auto", "service_type": "COMPUTE", **fields}


def host_body(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "type": "KVM", "control_attributes": "SSH", **fields}


def report_body(hostname: str, ago_s: float = 0.0, **fields: Any) -> dict[str, Any]:
    """As openstacksdk sends it: naive, in UTC."""
    when = datetime.now(UTC).replace(tzinfo=None) - timedelta(seconds=ago_s)
    base = {"type": "COMPUTE_HOST", "generated_time": when.isoformat(), "payload": DOWN}
    return {"hostname": hostname, **base, **fields}


def make_segment(house: House, name: str = "north", **fields: Any) -> dict[str, Any]:
    body = {"segment": segment_body(name, **fields)}
    made = house.call("POST", SEGMENTS, json=body, headers=at("1.2"))
    assert made.status_code == 201, made.text
    segment: dict[str, Any] = made.json["segment"]
    return segment


def add_host(house: House, segment: str, name: str, **fields: Any) -> dict[str, Any]:
    body = {"host": host_body(name, **fields)}
    made = house.call("POST", f"{SEGMENTS}/{segment}/hosts", json=body)
    assert made.status_code == 201, made.text
    host: dict[str, Any] = made.json["host"]
    return host


def furnish(house: House) -> None:
    """Segment 1 with hosts 1 and 2, segment 2 with host 3, of which a report ended with a move."""
    store = house.core.store
    for number, names in ((1, ["cmp-1", "cmp-2"]), (2, ["cmp-3"])):
        segment = store.segments.create(str(uuid.uuid4()), segment_body(f"segment-{number}"))
        for name in names:
            values = {"type": "KVM", "control_attributes": "SSH"}
            host_id = store.ledger.host(name).id
            made = store.segments.add_host(str(uuid.uuid4()), segment.uuid, host_id, values)
    write_move(house, write_report(house, made.uuid, status="finished"))


def write_report(house: House, host_uuid: str, **fields: Any) -> str:
    """A row as a manager may have left it."""
    own = str(uuid.uuid4())
    now = house.core.store.database.now() - timedelta(hours=1)
    row = {
        "uuid": own,
        "type": "COMPUTE_HOST",
        "segment_host_uuid": host_uuid,
        "generated_time": now,
        "payload": DOWN,
        "status": "new",
        "created_at": now,
    }
    with house.core.store.database.write() as conn:
        conn.execute(sa.insert(notifications).values(**{**row, **fields}))
    return own


def write_move(house: House, notification: str, **fields: Any) -> str:
    own = str(uuid.uuid4())
    now = house.core.store.database.now()
    row = {
        "uuid": own,
        "notification_uuid": notification,
        "server_id": str(uuid.uuid4()),
        "server_name": "web-1",
        "source_host": "cmp-3",
        "dest_host": "cmp-4",
        "type": "evacuation",
        "status": "succeeded",
        "started_at": now - timedelta(seconds=5),
        "ended_at": now,
        "message": "moved",
        "attempts": 2,
        "created_at": now,
    }
    with house.core.store.database.write() as conn:
        conn.execute(sa.insert(vmoves).values(**{**row, **fields}))
    return own
