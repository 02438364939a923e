# SPDX-License-Identifier: Apache-2.0
"""Why servers of a dead host wait that no other host took: what they need, what is free, and when
they are tried again. For people: nothing is decided by it.

    no room: 3 servers need 12 vCPU and 24 GiB, 2 vCPU and 6 GiB are free; next try at 12:03:10 UTC
"""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from holdfast.heal import plan
from holdfast.model.errors import DriverError, NotFound
from holdfast.model.host import same
from holdfast.ports.cloud import Cloud, Server
from holdfast.ports.recovery import ServerMove

LOG = logging.getLogger(__name__)

#: With more hosts than that the cloud is not asked what is free on each: two calls per host.
MOST_HOSTS = 20
#: As many different reasons are named.
MOST_REASONS = 3


@dataclass(frozen=True)
class Room:
    """What servers need, or what is free; negative where a host is overcommitted."""

    vcpus: int = 0
    memory_mb: int = 0

    def __add__(self, other: "Room") -> "Room":
        return Room(self.vcpus + other.vcpus, self.memory_mb + other.memory_mb)

    def holds(self, need: "Room") -> bool:
        return self.vcpus >= need.vcpus and self.memory_mb >= need.memory_mb

    def __str__(self) -> str:
        return f"{max(0, self.vcpus)} vCPU and {max(0, self.memory_mb) / 1024:.3g} GiB"


def need_of(server: Server) -> Room:
    return Room(server.vcpus, server.memory_mb)


def why_waiting(
    cloud: Cloud, waiting: Sequence[ServerMove], freepool: str, *, any_host: bool
) -> str:
    """Why these servers, each tried at least once, are on no other host yet. `any_host`: their
    segment lets the scheduler choose, so all hosts of the cloud count."""
    try:
        return _no_room(cloud, waiting, freepool, any_host=any_host) or _own_words(waiting)
    except (DriverError, NotFound) as error:
        LOG.info("what is free is not known: %s", error.message)
        return _own_words(waiting)


def next_try(waiting: Sequence[ServerMove]) -> str:
    first = min(one.not_before for one in waiting if one.not_before is not None)
    return f"next try at {first:%H:%M:%S} UTC"


def tried(waiting: Sequence[ServerMove]) -> str:
    """Differs after each try of any of them."""
    tries = sum(one.attempts for one in waiting)
    latest = max((one.not_before for one in waiting if one.not_before), default=datetime.min)
    return f"{len(waiting)} servers, {tries} tries, {latest.isoformat()}"


def _no_room(cloud: Cloud, waiting: Sequence[ServerMove], freepool: str, *, any_host: bool) -> str:
    """Empty if the hosts have room, or nobody can tell."""
    if not any_host or any(one.reservation for one in waiting):
        return ""
    source = waiting[0].source_host
    servers = {one.id: one for one in cloud.servers.list(host=source)}
    needs = [need_of(servers[one.server_id]) for one in waiting if one.server_id in servers]
    need = sum(needs, Room())
    free = _free(cloud, source, freepool)
    if not needs or free is None:
        return ""
    all_free = sum((Room(max(0, one.vcpus), max(0, one.memory_mb)) for one in free), Room())
    verb = "server needs" if len(needs) == 1 else "servers need"
    said = f"no room: {len(needs)} {verb} {need}, {all_free} are free"
    if not all_free.holds(need):
        return said
    if not any(one.holds(smallest) for one in free for smallest in needs):
        return f"{said}, on no host enough for one of them"
    return ""


def _free(cloud: Cloud, source: str, freepool: str) -> list[Room] | None:
    """What is free on each host that may take servers without a reservation; None if there are too
    many hosts to ask, or a host does not say what it has."""
    ours = [pool for pool in cloud.pools.list() if plan.is_ours(pool, freepool)]
    kept = [host for pool in ours for host in pool.hosts]
    hosts = [
        one.host
        for one in cloud.services.list()
        if one.state == "up" and one.enabled and not one.forced_down and not same(one.host, source)
    ]
    open_ = [host for host in hosts if not any(same(host, other) for other in kept)]
    if len(open_) > MOST_HOSTS:
        return None
    found = []
    for host in open_:
        has = cloud.hosts.find(host).inventories
        if not {"VCPU", "MEMORY_MB"} <= has.keys():
            return None
        used = sum(map(need_of, cloud.servers.list(host=host)), Room())
        vcpus, memory_mb = has["VCPU"].capacity, has["MEMORY_MB"].capacity
        found.append(Room(vcpus - used.vcpus, memory_mb - used.memory_mb))
    return found


def _own_words(waiting: Sequence[ServerMove]) -> str:
    """What their last tries ended with, each reason once and with its number of servers."""
    reasons = Counter(one.message or "no reason is known" for one in waiting).most_common()
    shown = [f"{count} of them: {said}" for said, count in reasons[:MOST_REASONS]]
    more = f"; {len(reasons) - MOST_REASONS} more reasons" if len(reasons) > MOST_REASONS else ""
    if len(reasons) == 1:
        shown = [reasons[0][0]]
    count = "1 server waits" if len(waiting) == 1 else f"{len(waiting)} servers wait"
    return f"{count}: {'; '.join(shown)}{more}"
