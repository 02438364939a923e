# SPDX-License-Identifier: Apache-2.0
"""The demo: a simulated cloud with enrolled hosts, leases, a segment and generated metrics.

The demo enrols half of the cloud for reservation, books a few leases, and puts all hosts into a
segment, so that Holdfast recovers a host that dies. It is created once per state folder. Every
object has a fixed id, so that a second start completes an interrupted creation without duplicates.
"""

import contextlib
import logging
import uuid
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

from holdfast.app.service import ManagerPart
from holdfast.db import Store
from holdfast.db.agents import SampleStore
from holdfast.drivers.sim import metrics
from holdfast.drivers.sim.simulator import Simulator
from holdfast.metrics import history
from holdfast.model.errors import Conflict, HoldfastError
from holdfast.model.lease import NewLease, NewReservation
from holdfast.ports.manager import Caller
from holdfast.runtime.clock import Clock
from holdfast.runtime.threads import PeriodicTask

LOG = logging.getLogger(__name__)

_KEY = uuid.UUID("6f1d2b1e-0b7a-4d52-9a37-5d6a3f7c2e10")
_CALLER = Caller("admin", "demo", ("admin", "member", "reader"), is_admin=True)
#: name, number of hosts, delay until the start, duration
_LEASES = (
    ("nightly-tests", 2, timedelta(0), timedelta(hours=8)),
    ("training-run", 3, timedelta(minutes=30), timedelta(hours=6)),
    ("release-rehearsal", 4, timedelta(days=1), timedelta(days=2)),
    ("quarter-close", 6, timedelta(days=7), timedelta(days=1)),
)


def prepare(simulator: Simulator) -> None:
    """Create the simulated cloud, unless it exists."""
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
        start = now + ahead if ahead else None  # None: now; the minute may have passed
        _book(manager, name, count, start, now + ahead + lasts)
    _segment(manager, store)
    mark.write_text(f"{now.isoformat()}\n")


def _segment(manager: ManagerPart, store: Store) -> None:
    """Create a segment of all hosts, so that servers of a dead host are evacuated."""
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
    except HoldfastError as error:  # too few hosts, or a rule or quota of [enforcement]
        LOG.warning("demo lease %s: %s", name, error.message)


# Generated metrics: while a user watches a host of the simulated cloud, this part generates the
# samples that an agent would send.


#: Seconds between two checks for watched hosts.
SAMPLE_S = 1.0


def samples_part(
    simulator: Callable[[], Simulator], store: SampleStore, clock: Clock
) -> PeriodicTask:
    """Return the part that generates samples for watched hosts (`holdfast.app.daemon.Part`)."""

    def sample() -> None:
        now = history.slot_of(clock.now().timestamp())
        due = {host: last for host, last in store.wanted().items() if last < now}
        if not due:
            return
        world = simulator().world()
        for host, last in due.items():
            store.put(host, metrics.hour(world, host, last + 1, now + 1))

    return PeriodicTask("simulated-samples", SAMPLE_S, sample, clock)
