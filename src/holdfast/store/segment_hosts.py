# SPDX-License-Identifier: Apache-2.0
"""What segments share with the list of hosts and with notifications, within a transaction."""

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from holdfast.model.host import normalise
from holdfast.model.notification import ERROR, NEW, RUNNING
from holdfast.ports.cloud import CloudHost
from holdfast.store.host_rows import by_name, columns, write_traits
from holdfast.store.tables import hosts, incidents, notifications, segment_hosts

h, m, n, i = hosts.c, segment_hosts.c, notifications.c, incidents.c


def know(conn: Connection, host: CloudHost, region: str, now: datetime) -> int:
    """The host's id in the one list of hosts. A row that is not enrolled is written anew as the
    cloud tells it; of one that is, reservation itself keeps up."""
    name = normalise(host.service_host)
    query = sa.select(h.id, h.uuid, h.name, h.enrolled)
    query = query.where(sa.or_(h.uuid == host.uuid, by_name(host.service_host)))
    rows = conn.execute(query.order_by(h.id)).all()
    same = [row for row in rows if row.uuid == host.uuid] or [r for r in rows if r.name == name]
    found = next(iter(same or (rows if len(rows) == 1 else [])), None)
    if found is not None and found.enrolled:
        return int(found.id)
    values = {**columns(host), "uuid": host.uuid, "region": region, "touched_at": now}
    if found is not None:
        changed = sa.update(hosts).where(h.id == found.id, h.enrolled.is_(False))
        conn.execute(changed.values(**values, updated_at=now, generation=h.generation + 1))
        host_id = int(found.id)
    else:
        (host_id,) = conn.execute(
            sa.insert(hosts).values(**values, created_at=now)
        ).inserted_primary_key or (0,)
    write_traits(conn, host_id, host.traits)
    return host_id


def in_use(conn: Connection, segment_id: int) -> bool:
    """Whether a notification of one of its hosts is being worked on. One in error whose incident
    is closed is history."""
    mine = sa.select(m.uuid).where(m.segment_id == segment_id)
    over = sa.select(i.id).where(i.id == n.incident_id, i.closed_at.is_not(None)).exists()
    busy = sa.or_(n.status.in_([NEW, RUNNING]), sa.and_(n.status == ERROR, ~over))
    query = sa.select(n.id).where(n.segment_host_uuid.in_(mine), busy).limit(1)
    return conn.execute(query).first() is not None
