# SPDX-License-Identifier: Apache-2.0
"""The world a newcomer finds: a simulated cloud, half of it enrolled for reservation, a few leases,
and a segment, so that a host that dies is recovered.

Made once per state folder. Every piece has a fixed key, so that being stopped in the middle and
started again completes it instead of doubling it.
"""

import contextlib
import logging
import uuid
from datetime import datetime, timedelta
from pathlib import Path

from holdfast.drivers.cloud.sim import Simulator
from holdfast.model.caller import Caller
from holdfast.model.errors import Conflict, NotEnoughHosts
from holdfast.ports.manager import NewLease, NewReservation
from holdfast.service import ManagerPart
from holdfast.store import Store

LOG = logging.getLogger(__name__)

_KEY = uuid.UUID("6f1d2b1e-0b7a-4d52-9a37-5d6a3f7c2e10")
_CALLER = Caller("admin", "demo", ("admin", "member", "reader"), is_admin=True)
#: name, hosts, starts in, lasts
_LEASES = (
    ("nightly-tests", 2, timedelta(0), timedelta(hours=8)),
    ("training-run", 3, timedelta(minutes=30), timedelta(hours=6)),
    ("release-rehearsal", 4, timedelta(days=1), timedelta(days=2)),
    ("quarter-close", 6, timedelta(days=7), timedelta(days=1)),
)


def prepare(simulator: Simulator) -> None:
    """The cloud itself; does nothing when it is there."""
    simulator.seed_demo()


def populate(manager: ManagerPart, store: Store, mark: Path, now: datetime) -> None:
    """Enrol the empty hosts, book the first leases and make a segment of all hosts, once."""
    if mark.exists():
        return
    for host in manager.cloud.hosts.list():
        if manager.cloud.servers.list(host=host.service_host):
            continue
        try:
            extras = {"gpu": "True"} if host.rack.endswith("c") else {}
            manager.commands.enrol_host(_CALLER, host.service_host, extras)
        except Conflict:
            LOG.debug("%s is enrolled already", host.service_host)
    for name, count, ahead, lasts in _LEASES:
        start = now + ahead if ahead else None  # by now the minute may be another
        _book(manager, name, count, start, now + ahead + lasts)
    _segment(manager, store)
    mark.write_text(f"{now.isoformat()}\n")


def _segment(manager: ManagerPart, store: Store) -> None:
    """Servers of a host that dies are started elsewhere."""
    segment = str(uuid.uuid5(_KEY, "segment"))
    values = {"name": "demo", "recovery_method": "auto", "service_type": "compute"}
    with contextlib.suppress(Conflict):
        store.segments.create(segment, values)
    member = {"type": "COMPUTE", "control_attributes": "", "reserved": False}
    for host in manager.cloud.hosts.list():
        host_id = manager.commands.know_host(_CALLER, host.service_host)
        own = str(uuid.uuid5(_KEY, f"segment/{host.service_host}"))
        with contextlib.suppress(Conflict):
            store.segments.add_host(own, segment, host_id, {**member, "on_maintenance": False})


def _book(
    manager: ManagerPart, name: str, count: int, start: datetime | None, end: datetime
) -> None:
    spec = {"min": count, "max": count, "hypervisor_properties": "", "resource_properties": ""}
    lease = NewLease(
        id=str(uuid.uuid5(_KEY, name)),
        name=name,
        start=start and start.replace(second=0, microsecond=0),
        end=end.replace(second=0, microsecond=0),
        reservations=(NewReservation("physical:host", spec),),
    )
    try:
        manager.commands.create_lease(_CALLER, lease)
    except NotEnoughHosts as error:
        LOG.warning("demo lease %s: %s", name, error.message)
