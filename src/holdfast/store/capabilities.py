# SPDX-License-Identifier: Apache-2.0
"""Extra capabilities of hosts, and the properties that name them; within somebody's transaction."""

import math
from collections.abc import Mapping, Sequence
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.model import expression, extra_specs
from holdfast.store.tables import allocations, host_capabilities, properties, reservations

HOST = "physical:host"


def read(conn: Connection, ids: Sequence[int]) -> dict[int, dict[str, str]]:
    found: dict[int, dict[str, str]] = {}
    if not ids:
        return found
    c = host_capabilities.c
    query = sa.select(c.host_id, c.name, c.text)
    if len(ids) <= 500:  # beyond that, reading all is cheaper than naming them
        query = query.where(c.host_id.in_(ids))
    for host_id, name, text in conn.execute(query):
        found.setdefault(host_id, {})[name] = text
    return found


def write(conn: Connection, host_id: int, capabilities: Mapping[str, str], now: datetime) -> None:
    if not capabilities:
        return
    conn.execute(
        sa.insert(host_capabilities),
        [
            {"host_id": host_id, "name": name, "text": text, "number": _number(text)}
            for name, text in capabilities.items()
        ],
    )
    known = set(
        conn.execute(
            sa.select(properties.c.name).where(
                properties.c.resource_type == HOST, properties.c.name.in_(capabilities)
            )
        ).scalars()
    )
    for name in capabilities.keys() - known:
        conn.execute(sa.insert(properties).values(resource_type=HOST, name=name, created_at=now))


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


#: Where reservations of a type say what they ask of a host; elsewhere these names mean others.
_EXPRESSIONS = {
    HOST: ("resource_properties", "hypervisor_properties"),
    "virtual:instance": ("resource_properties",),
}


def used(conn: Connection, host_id: int, now: datetime) -> set[str]:
    """Capabilities that live reservations of this host asked for."""
    query = (
        sa.select(reservations.c.resource_type, reservations.c.spec)
        .join(allocations, allocations.c.reservation_id == reservations.c.id)
        .where(allocations.c.host_id == host_id, allocations.c.held_until > now)
    )
    used: set[str] = set()
    for resource_type, spec in conn.execute(query):
        for name in _EXPRESSIONS.get(resource_type, ()):
            used |= expression.parse(spec.get(name) or "").keys
        asked = spec.get("capabilities") or {}
        used |= {extra_specs.path(key).split(":", 1)[0] for key in asked}
    return used
