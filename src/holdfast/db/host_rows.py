# SPDX-License-Identifier: Apache-2.0
"""Conversion of host rows to `Host` and back, within the caller's transaction."""

import functools
import math
import re
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.db.rows import Mapper
from holdfast.db.tables import (
    allocations,
    host_capabilities,
    host_traits,
    hosts,
    properties,
    reservations,
)
from holdfast.hoststatus import status
from holdfast.model import expression
from holdfast.model.host import Host, Inventory, normalise, short
from holdfast.ports.cloud import CloudHost

# Extra capabilities of hosts, and the properties that name them.


HOST = "physical:host"


def read(conn: Connection, ids: Sequence[int]) -> dict[int, dict[str, str]]:
    capabilities: dict[int, dict[str, str]] = {}
    if not ids:
        return capabilities
    c = host_capabilities.c
    query = sa.select(c.host_id, c.name, c.text)
    if len(ids) <= 500:  # beyond that, reading all is cheaper than naming them
        query = query.where(c.host_id.in_(ids))
    for host_id, name, text in conn.execute(query):
        capabilities.setdefault(host_id, {})[name] = text
    return capabilities


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


#: The spec fields of a resource type that hold host expressions; other types use these names
#: otherwise.
_EXPRESSIONS = {
    HOST: ("resource_properties", "hypervisor_properties"),
    "virtual:instance": ("resource_properties",),
}


def used(conn: Connection, host_id: int, now: datetime) -> set[str]:
    """Return capabilities that live reservations of the host request."""
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
        used |= {expression.path(key).split(":", 1)[0] for key in asked}
    return used


# Inventories of a host to JSON and back, and the capacity for slots.


def pack(inventories: Mapping[str, Inventory]) -> dict[str, Any]:
    return {
        name: {
            "total": inventory.total,
            "reserved": inventory.reserved,
            "ratio": inventory.ratio,
            "most": inventory.most,
        }
        for name, inventory in inventories.items()
    }


def unpack(
    stored: Mapping[str, Any] | None, vcpus: int, memory_mb: int, local_gb: int
) -> Mapping[str, Inventory]:
    """Return the inventories; without stored inventories, the host's own sizes."""
    if not stored:
        sizes = {"VCPU": vcpus, "MEMORY_MB": memory_mb, "DISK_GB": local_gb}
        return _shared(tuple((name, (("total", size),)) for name, size in sizes.items()))
    return _shared(tuple((name, tuple(inventory.items())) for name, inventory in stored.items()))


@functools.lru_cache(maxsize=1000)
def _shared(facts: tuple[tuple[str, tuple[tuple[str, Any], ...]], ...]) -> Mapping[str, Inventory]:
    """Return a shared mapping for hosts of the same model: many hosts have few models."""
    return {name: Inventory(**dict(inventory)) for name, inventory in facts}


def capacity(
    stored: Mapping[str, Any] | None, vcpus: int, memory_mb: int, local_gb: int
) -> dict[str, int]:
    inventories = unpack(stored, vcpus, memory_mb, local_gb)
    return {name: inventory.capacity for name, inventory in inventories.items()}


h = hosts.c
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
#: Inventories need the host's sizes, so `load` adds them.
_HOST = Mapper(Host, hosts, without=["inventories"])
_CLOUD_HOST = Mapper(CloudHost, hosts, without=["uuid", "state", "inventories"])
#: Not known to have failed; a booking needs this, `enrolled` and `reservable`.
USABLE = h.state.in_(status.USABLE)
#: Texts that many hosts share.
_OFTEN = ("hypervisor_type", "cpu_info", "region", "zone", "rack")
_PLACES = [_HOST.names.index(name) for name in _OFTEN]


def load(conn: Connection, *where: Any, most: int | None = None) -> list[Host]:
    query = sa.select(*_HOST.columns, h.inventories).where(*where).order_by(h.id).limit(most)
    rows = conn.execute(query).all()
    ids = [row.id for row in rows]
    extras, traits = read(conn, ids), _traits(conn, ids)

    def host(row: Any) -> Host:
        *values, inventories = row
        for place in _PLACES:
            values[place] = sys.intern(values[place])
        return _HOST.value(
            values,
            capabilities=extras.get(row.id, {}),
            inventories=unpack(inventories, row.vcpus, row.memory_mb, row.local_gb),
            traits=frozenset(traits.get(row.id, ())),
        )

    return [host(row) for row in rows]


def _traits(conn: Connection, ids: Sequence[int]) -> dict[int, list[str]]:
    traits: dict[int, list[str]] = {}
    query = sa.select(host_traits.c.host_id, host_traits.c.trait)
    if len(ids) <= 500:  # beyond that, reading all is cheaper than naming them
        query = query.where(host_traits.c.host_id.in_(ids))
    for host_id, trait in conn.execute(query):
        traits.setdefault(host_id, []).append(trait)
    return traits


def write_traits(conn: Connection, host_id: int, traits: frozenset[str]) -> None:
    conn.execute(sa.delete(host_traits).where(host_traits.c.host_id == host_id))
    if traits:
        rows = [{"host_id": host_id, "trait": trait} for trait in sorted(traits)]
        conn.execute(sa.insert(host_traits), rows)


def columns(host: CloudHost) -> dict[str, Any]:
    """Return the cloud's data of a host as columns."""
    own = {"name": normalise(host.service_host), "inventories": pack(host.inventories)}
    return {**_CLOUD_HOST.row(host), **own}


def named(ref: str) -> sa.ColumnElement[bool]:
    """Match a host by id, uuid or name; short and full names mean the same host."""
    if ref.isascii() and ref.isdigit() and len(ref) < 10:
        return h.id == int(ref)
    if _UUID.fullmatch(ref):
        return h.uuid == ref
    return by_name(ref)


def by_name(ref: str) -> sa.ColumnElement[bool]:
    name = normalise(ref)
    if "." in name:
        return h.name.in_([name, short(name)])
    return sa.or_(h.name == name, h.name.startswith(f"{name}.", autoescape=True))
