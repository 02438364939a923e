# SPDX-License-Identifier: Apache-2.0
"""What the cloud's pools are and what the book says they should be: found, and put right or told.

Somebody edits an aggregate by hand; a call took effect after its time was up. One chore looks at
all pools now and then. A difference counts when a second look, some seconds later, finds it too: a
lease that starts or ends in between makes one for a moment. The pool of a running reservation is
put right by that lease's own work, which waits its turn among the others of the lease.
"""

import logging
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol

from holdfast.model.errors import Conflict, InvalidInput, NotFound, StaleWrite
from holdfast.model.host import normalise
from holdfast.model.lease import APPLY, Reservation
from holdfast.model.operation import Operation
from holdfast.nova.names import CLOSED, KEPT, KEPT_POOL, OPEN, OWNER
from holdfast.ports.cloud import Cloud, Pool
from holdfast.ports.ledger import Rightful, Work
from holdfast.reserve.due import Desk, lease_work
from holdfast.reserve.pools import ensure
from holdfast.work.kind import Kind, NotYet, Run, Step

LOG = logging.getLogger(__name__)

RECONCILE = "pools_reconcile"
#: Until the second look; switched off, it looks so often whether it has been switched on.
AGAIN_S, OFF_S = 5.0, 60.0

#: So many are put right in one look.
MOST = 100

#: What can be wrong: a host is missing, a host is too many, the pool says something else.
LACKS, HAS, SAYS = "lacks", "has", "says"


class Settings(Protocol):
    """[reservation], read anew each time."""

    reconcile_s: float


@dataclass(frozen=True, order=True)
class Difference:
    """One thing that is not as the book has it."""

    pool: str
    what: str
    host: str = ""
    lease_id: str = ""  # whose pool it is; empty: everybody's

    def __str__(self) -> str:
        if self.what == SAYS:
            return f"pool {self.pool} does not say what it should"
        return f"pool {self.pool} {self.what} {self.host}"


def differences(pools: Iterable[Pool], rightful: Rightful, freepool: str) -> frozenset[Difference]:
    """Pure: what should be done, whoever does it."""
    by_name = {pool.name: pool for pool in pools}
    found: set[Difference] = set()
    for name, mine in rightful.reservations.items():
        pool = by_name.get(name)
        found |= _members(name, pool, mine.hosts, mine.lease_id)
        if pool is not None and (
            pool.metadata.get(OWNER) != mine.project_id or pool.metadata.get(OPEN) == CLOSED
        ):
            found.add(Difference(name, SAYS, lease_id=mine.lease_id))
    known = rightful.settled
    for name, members in ((freepool, rightful.free), (KEPT_POOL, rightful.enrolled)):
        wrong = _members(name, by_name.get(name), members)
        found |= {one for one in wrong if one.what == LACKS or one.host in known}
    return frozenset(found)


def _members(
    name: str, pool: Pool | None, wanted: Iterable[str], lease_id: str = ""
) -> set[Difference]:
    there = {normalise(host) for host in pool.hosts} if pool else set()
    should = {normalise(host) for host in wanted}
    return {Difference(name, LACKS, host, lease_id) for host in should - there} | {
        Difference(name, HAS, host, lease_id) for host in there - should
    }


class Reconcile:
    name = RECONCILE
    stubborn = True

    def __init__(self, desk: Desk, settings: Settings) -> None:
        self._desk = desk
        self._settings = settings
        self._seen: frozenset[Difference] = frozenset()
        self._told: frozenset[Difference] = frozenset()

    def steps(self) -> Sequence[Step]:
        return (Step("reconcile", self.reconcile, kept=False),)

    def reconcile(self, run: Run) -> str:
        """It never ends but by NotYet."""
        if not self._settings.reconcile_s:
            raise NotYet("nobody compares pools: [reservation] reconcile_s is 0", OFF_S)
        cloud = self._desk.hands(run).cloud
        # The cloud first: what the book has changed since then looks different now, and not twice.
        pools = cloud.pools.list()
        rightful = self._desk.ledger.rightful(self._kinds())
        now = differences(pools, rightful, self._desk.freepool)
        sure, self._seen = now & self._seen, now
        owners = {name: one.project_id for name, one in rightful.reservations.items()}
        # Those that could not be put right last time come last; the others at the next look.
        these = sorted(sure, key=lambda one: (one in self._told, one))[:MOST]
        left = [one for one in these if not self._tried(cloud, pools, owners, one)]
        self._tell(frozenset(these), left)
        if now - sure:
            raise NotYet(f"{len(now - sure)} differences, looked at again", AGAIN_S)
        said = f"{len(sure)} differences, {len(left)} of them left" if sure else "all as it should"
        raise NotYet(said, self._settings.reconcile_s)

    def _kinds(self) -> list[str]:
        return [name for name, one in self._desk.resources.items() if getattr(one, "pooled", False)]

    def _tried(
        self, cloud: Cloud, pools: Sequence[Pool], owners: Mapping[str, str], one: Difference
    ) -> bool:
        """One that the cloud refuses does not keep the others waiting."""
        try:
            return self._put_right(cloud, pools, owners, one)
        except (NotFound, Conflict, InvalidInput) as refused:
            LOG.warning("%s: %s", one, refused.message)
            return False

    def _put_right(
        self, cloud: Cloud, pools: Sequence[Pool], owners: Mapping[str, str], one: Difference
    ) -> bool:
        """Whether it is, or will be."""
        by_name: Mapping[str, Pool] = {pool.name: pool for pool in pools}
        if one.what == HAS and one.lease_id:
            return self._remove_if_empty(cloud, by_name[one.pool], one.host)
        if one.what == SAYS:
            pool = by_name[one.pool]
            said = {name: value for name, value in pool.metadata.items() if name != OPEN}
            cloud.pools.set_metadata(pool.id, {**said, OWNER: owners[one.pool]})
            return True
        if one.lease_id:
            return self._by_its_lease(one.lease_id)
        pool = ensure(cloud.pools, one.pool, {KEPT: "yes"} if one.pool == KEPT_POOL else {})
        act = cloud.pools.add_host if one.what == LACKS else cloud.pools.remove_host
        act(pool.id, one.host)
        return True

    def _remove_if_empty(self, cloud: Cloud, pool: Pool, host: str) -> bool:
        """Whose servers they are nobody can tell: not ours to separate from their host."""
        if cloud.servers.list(host=host):
            return False
        cloud.pools.remove_host(pool.id, host)
        return True

    def _by_its_lease(self, lease_id: str) -> bool:
        ledger = self._desk.ledger
        work = lease_work(str(uuid.uuid4()), lease_id, APPLY, ledger.now())
        try:
            lease = ledger.lease(lease_id)
            for reservation in lease.reservations:  # the pool may be another one now
                self._desk.known.forget(reservation.id)
            if lease.status == "ACTIVE":
                doubted = replace(lease, reservations=tuple(map(_doubted, lease.reservations)))
                ledger.save(lease, doubted, work=Work(put=(work,)), say="its pools are put right")
        except (NotFound, StaleWrite):
            return False  # it lives: the next look finds what is left
        return True

    def _tell(self, sure: frozenset[Difference], left: Sequence[Difference]) -> None:
        """Each once, for as long as it lasts."""
        for one in sorted(sure - self._told):
            how = "left as it is: look at it" if one in left else "put right"
            LOG.warning("%s: %s", one, how)
            self._desk.ledger.note(one.lease_id or f"pool:{one.pool}", f"{one}: {how}")
        self._told = sure

    def give_up_at(self, operation: Operation) -> datetime | None:
        return None

    def failed(self, run: Run, why: str) -> None:
        LOG.error("%s: %s", run.operation.key, why)


def _doubted(reservation: Reservation) -> Reservation:
    """What was made for it is looked at anew; its hosts stay known, for those that leave."""
    stands = reservation.made.get("stands")
    if not stands:
        return reservation
    return replace(reservation, made={**reservation.made, "stands": {**stands, "shape": ""}})


def kinds(desk: Desk, settings: Settings) -> dict[str, Kind]:
    return {RECONCILE: Reconcile(desk, settings)}
