# SPDX-License-Identifier: Apache-2.0
"""Rows of hosts to Host and back, within somebody's transaction."""

import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.model import standing
from holdfast.model.host import Host, normalise, short
from holdfast.ports.cloud import CloudHost
from holdfast.store import capabilities, inventories
from holdfast.store.tables import host_traits, hosts

h = hosts.c
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_FIELDS = [
    "id",
    "uuid",
    "name",
    "hypervisor_hostname",
    "service_host",
    "hypervisor_type",
    "hypervisor_version",
    "cpu_info",
    "region",
    "zone",
    "rack",
    "vcpus",
    "memory_mb",
    "local_gb",
    "enrolled",
    "reservable",
    "state",
    "generation",
    "created_at",
    "updated_at",
]


#: Not known to have failed: with `enrolled` and `reservable` what a booking needs.
USABLE = h.state.in_(standing.USABLE)
#: Texts that many hosts share.
_OFTEN = ("hypervisor_type", "cpu_info", "region", "zone", "rack")


def load(conn: Connection, *where: Any, most: int | None = None) -> list[Host]:
    columns = [h[name] for name in _FIELDS]
    query = sa.select(*columns, h.inventories).where(*where).order_by(h.id).limit(most)
    rows = conn.execute(query).mappings().all()
    ids = [row["id"] for row in rows]
    extras, traits = capabilities.read(conn, ids), _traits(conn, ids)

    def host(row: Mapping[str, Any]) -> Host:
        sizes = row["vcpus"], row["memory_mb"], row["local_gb"]
        row = {**row, **{name: sys.intern(row[name]) for name in _OFTEN}}
        return Host(
            **{name: row[name] for name in _FIELDS},
            capabilities=extras.get(row["id"], {}),
            inventories=inventories.unpack(row["inventories"], *sizes),
            traits=frozenset(traits.get(row["id"], ())),
        )

    return [host(dict(row)) for row in rows]


def _traits(conn: Connection, ids: Sequence[int]) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    query = sa.select(host_traits.c.host_id, host_traits.c.trait)
    if len(ids) <= 500:  # beyond that, reading all is cheaper than naming them
        query = query.where(host_traits.c.host_id.in_(ids))
    for host_id, trait in conn.execute(query):
        found.setdefault(host_id, []).append(trait)
    return found


def write_traits(conn: Connection, host_id: int, traits: frozenset[str]) -> None:
    conn.execute(sa.delete(host_traits).where(host_traits.c.host_id == host_id))
    if traits:
        rows = [{"host_id": host_id, "trait": trait} for trait in sorted(traits)]
        conn.execute(sa.insert(host_traits), rows)


def columns(host: CloudHost) -> dict[str, Any]:
    """What the cloud says of a host, as the columns that keep it."""
    return {
        "name": normalise(host.service_host),
        "hypervisor_hostname": host.hypervisor_hostname,
        "service_host": host.service_host,
        "hypervisor_type": host.hypervisor_type,
        "hypervisor_version": host.hypervisor_version,
        "cpu_info": host.cpu_info,
        "zone": host.zone,
        "rack": host.rack,
        "vcpus": host.vcpus,
        "memory_mb": host.memory_mb,
        "local_gb": host.local_gb,
        "inventories": inventories.pack(host.inventories),
    }


def named(ref: str) -> sa.ColumnElement[bool]:
    """By public id, by uuid, or by name: short and full mean the same host."""
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
