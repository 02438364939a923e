# SPDX-License-Identifier: Apache-2.0
"""Jobs on Nova's host aggregates (pools): resync the scheduler, delete pools of ended leases,
and reconcile pools with the database."""

import logging
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Protocol

from holdfast.jobs.job import Kind, NotYet, Run, Step
from holdfast.leases.lifecycle import LeaseContext, lease_work
from holdfast.leases.resources.base import EffectContext, ensure_pool
from holdfast.model.errors import (
    ClaimLost,
    Conflict,
    HoldfastError,
    InvalidInput,
    NotFound,
    StaleWrite,
    Unavailable,
)
from holdfast.model.host import normalise
from holdfast.model.lease import APPLY, ARRANGE, Reservation
from holdfast.model.operation import Operation
from holdfast.nova.names import CLOSED, CLOSED_POOL, KEPT, KEPT_POOL, OPEN, OWNER
from holdfast.ports.cloud import Cloud, Pool
from holdfast.ports.ledger import Rightful, Work

# Resync: announce pool changes to the scheduler again, and delete the pools of ended leases.
#
# nova-scheduler learns of aggregate changes by message. Just after a broker outage it may not
# be connected yet when a change is made, and no call fails. Therefore the manager repeats each
# change three times. The pool of an ended lease stays, closed and empty, until its last resync:
# a deleted pool could not be announced any more.
#
# One periodic job serves all pools. It reads the changes of leases and hosts from the database and
# the pools from the cloud, and keeps only state that it can lose. A burst of changes makes the job
# slow, nothing else.


LOG = logging.getLogger(__name__)

RESYNC = "pools_resync"
#: Seconds after a change; the last is beyond the half minute that a service may need to
#: reconnect.
RESYNC_AFTER_S = (5.0, 20.0, 50.0)
#: How often the job reads the changes; and how often it lists the pools without any change, to
#: find pools that were never deleted.
POLL_S, LIST_INTERVAL = 5.0, timedelta(minutes=1)
#: A change becomes visible when its transaction ends: up to this much late.
LATE = timedelta(seconds=15)
#: How far back the job reads the changes; further after a start, because no manager may have run
#: it.
BACK, FAR_BACK = timedelta(minutes=2), timedelta(hours=1)
#: Cloud calls in a run, and how many at once: starting leases have priority.
MOST_CALLS, AT_ONCE = 50, 8
PAUSE_S = 1.0
#: After a failure a pool rests this long, and does not delay the other pools.
REST = timedelta(seconds=POLL_S)


@dataclass
class _Resync:
    """The resyncs of a pool after a change.

    A late resync keeps the distance to the next: a scheduler that is unreachable now may be
    reachable then.
    """

    changed: datetime
    shut: bool
    begins: datetime
    times: int = 0
    rests_until: datetime | None = None  # after a failure

    def next(self) -> datetime | None:
        if self.times == len(RESYNC_AFTER_S):
            return None
        when = self.begins + timedelta(seconds=RESYNC_AFTER_S[self.times])
        return max(when, self.rests_until) if self.rests_until else when

    def rests(self, now: datetime) -> bool:
        return self.rests_until is not None and self.rests_until > now

    def count(self, now: datetime) -> None:
        self.begins = max(self.begins, now - timedelta(seconds=RESYNC_AFTER_S[self.times]))
        self.times += 1


class AggregateResync:
    name = RESYNC
    retry_forever = True

    def __init__(self, context: LeaseContext) -> None:
        self._context = context
        self._resyncs: dict[str, _Resync] = {}  # by pool
        self._listed_at: datetime | None = None

    def steps(self) -> Sequence[Step]:
        return (Step("resync", self.resync, recorded=False),)

    def resync(self, run: Run) -> str:
        """Resync and delete due pools; always ends with NotYet."""
        now = self._context.ledger.now()
        changes = self._context.ledger.pool_changes(now - (BACK if self._listed_at else FAR_BACK))
        if not self._must_list(changes, now):
            raise NotYet("no pool needs a resync", POLL_S)
        effects = self._context.effects(run)
        pools = effects.cloud.pools.list()
        self._listed_at = now
        self._note(pools, changes, now)
        due = self._due(pools, now)
        failures: list[HoldfastError] = []
        for at in range(0, min(len(due), MOST_CALLS), AT_ONCE):
            failures += self._act(effects, due[at : at + AT_ONCE], now)
        unsent = f"; {len(failures)} failed: {failures[0].message}" if failures else ""
        if len(due) > MOST_CALLS:
            left = len(due) - MOST_CALLS
            raise NotYet(f"{left} pools wait for their resync{unsent}", PAUSE_S)
        raise NotYet(f"{len(due) - len(failures)} pools resynced{unsent}", self._pause(now))

    def _must_list(self, changes: Mapping[str, datetime], now: datetime) -> bool:
        """Whether to list the pools: after a change, for a due resync, and each LIST_INTERVAL."""
        if self._listed_at is None or now - self._listed_at >= LIST_INTERVAL:
            return True
        if any(changed > self._listed_at - LATE for changed in changes.values()):
            return True
        return any(resync.next() or resync.rests_until for resync in self._resyncs.values())

    def _note(self, pools: Sequence[Pool], changes: Mapping[str, datetime], now: datetime) -> None:
        """Record which pools need a resync; forget deleted pools."""
        resyncs, self._resyncs = self._resyncs, {}
        free = self._context.freepool
        # The free pool last: it depends on all others.
        for pool in sorted(pools, key=lambda pool: pool.name == free):
            resync = self._resync_of(pool, resyncs.get(pool.id), changes, now)
            if resync and (resync.next() or resync.changed > now - BACK or _is_over(pool)):
                self._resyncs[pool.id] = resync

    def _resync_of(
        self, pool: Pool, old: _Resync | None, changes: Mapping[str, datetime], now: datetime
    ) -> _Resync | None:
        """Return the resync of a pool: the old resync continues until a newer change.

        The common pools change all the time: a resync of theirs ends before the next begins.
        """
        common = pool.name in (self._context.freepool, KEPT_POOL)
        changed = changes.get("" if common else pool.name.removeprefix(CLOSED_POOL))
        if pool.name == self._context.freepool:
            others = (resync.changed for resync in self._resyncs.values())
            changed = max([*changes.values(), *others], default=None)
        if old is not None and old.shut == _is_shut(pool):
            if changed is None or changed <= old.changed or (common and old.next()):
                return old
        elif changed is None and _is_over(pool):  # its lease was deleted
            changed = now
        return _Resync(changed, _is_shut(pool), changed) if changed else None

    def _due(self, pools: Sequence[Pool], now: datetime) -> list[Pool]:
        """List the pools to resync or delete now, the longest waiting first."""
        due: list[Pool] = []
        for pool in pools:
            if resync := self._resyncs.get(pool.id):
                when = resync.next()
                if resync.rests(now):
                    continue
                if (_is_over(pool) and when is None) or (when is not None and when <= now):
                    due.append(pool)
        return sorted(due, key=lambda pool: self._resyncs[pool.id].begins)

    def _act(
        self, effects: EffectContext, pools: Sequence[Pool], now: datetime
    ) -> list[HoldfastError]:
        """Resync or delete these pools; return the failures.

        A pool that failed rests, because a pool that always fails must not stay first for ever.
        """
        by_id = {pool.id: pool for pool in pools}
        failures: list[HoldfastError] = []

        def act(pool_id: str) -> None:
            resync = self._resyncs[pool_id]
            try:
                if resync.next():
                    effects.cloud.pools.resync(pool_id)
                    resync.count(now)
                if resync.next() is None and _is_over(by_id[pool_id]):
                    effects.cloud.pools.delete(pool_id)
            except NotFound:
                return  # gone meanwhile: no resync needed
            except (ClaimLost, Unavailable):
                raise
            except HoldfastError as error:
                name, again_s = by_id[pool_id].name, REST.total_seconds()
                LOG.warning("pool %s: %s; again in %.0f s", name, error.message, again_s)
                resync.rests_until = now + REST
                failures.append(error)

        effects.each(act, by_id)
        return failures

    def _pause(self, now: datetime) -> float:
        """Return the seconds until the next resync or the next read of the changes."""
        waits = [when for resync in self._resyncs.values() if (when := resync.next())]
        left = (min(waits) - now).total_seconds() if waits else POLL_S
        return min(max(left, 0.1), POLL_S)

    def give_up_at(self, operation: Operation) -> datetime | None:
        return None

    def failed(self, run: Run, why: str) -> None:
        LOG.error("%s: %s", run.operation.key, why)


def _is_shut(pool: Pool) -> bool:
    return pool.metadata.get(OPEN) == CLOSED


def _is_over(pool: Pool) -> bool:
    return _is_shut(pool) and not pool.hosts


def resync_kinds(context: LeaseContext) -> dict[str, Kind]:
    return {RESYNC: AggregateResync(context)}


# Reconcile: compare the cloud's pools with the database, and repair or report each difference.
#
# Differences arise when a person edits an aggregate, or when a call takes effect after its
# timeout. A periodic job compares all pools. A difference counts only when a second comparison,
# some seconds later, finds it too, because a lease that starts or ends makes one for a moment.
# The pool of a running reservation is repaired by an operation of that lease, which waits for
# its turn among the lease's other operations.


RECONCILE = "pools_reconcile"
#: Seconds until the second comparison; and between checks of the option while it is off.
AGAIN_S, OFF_S = 5.0, 60.0

#: Repairs in a run.
MOST = 100

#: Kinds of difference: a host is missing, a host is too many, the metadata differ; another
#: object of a reservation is gone.
LACKS, HAS, SAYS, GONE = "lacks", "has", "says", "gone"


class Settings(Protocol):
    """The `[reservation]` options, read anew at every use."""

    reconcile_s: float


@dataclass(frozen=True, order=True)
class Difference:
    """A difference between a pool and the database."""

    pool: str
    kind: str
    host: str = ""  # or the name of the object that is gone
    lease_id: str = ""  # the lease of the pool; empty: a common pool

    def __str__(self) -> str:
        if self.kind == SAYS:
            return f"the metadata of pool {self.pool} differs"
        if self.kind == GONE:
            return f"{self.host} of reservation {self.pool} is gone"
        return f"pool {self.pool} {self.kind} {self.host}"


def differences(pools: Iterable[Pool], rightful: Rightful, freepool: str) -> frozenset[Difference]:
    """Compare the pools with the database; no side effects."""
    by_name = {pool.name: pool for pool in pools}
    differing: set[Difference] = set()
    for name, rightful_pool in rightful.reservations.items():
        pool = by_name.get(name)
        differing |= _members(name, pool, rightful_pool.hosts, rightful_pool.lease_id)
        if pool is not None and (
            pool.metadata.get(OWNER) != rightful_pool.project_id
            or pool.metadata.get(OPEN) == CLOSED
        ):
            differing.add(Difference(name, SAYS, lease_id=rightful_pool.lease_id))
    settled = rightful.settled
    for name, members in ((freepool, rightful.free), (KEPT_POOL, rightful.enrolled)):
        wrong = _members(name, by_name.get(name), members)
        differing |= {
            difference
            for difference in wrong
            if difference.kind == LACKS or difference.host in settled
        }
    return frozenset(differing)


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
    retry_forever = True

    def __init__(self, context: LeaseContext, settings: Settings) -> None:
        self._context = context
        self._settings = settings
        self._previous: frozenset[Difference] = frozenset()
        self._reported: frozenset[Difference] = frozenset()

    def steps(self) -> Sequence[Step]:
        return (Step("reconcile", self.reconcile, recorded=False),)

    def reconcile(self, run: Run) -> str:
        """Compare, and repair the differences found twice; always ends with NotYet."""
        if not self._settings.reconcile_s:
            raise NotYet("no comparison of pools: [reservation] reconcile_s is 0", OFF_S)
        effects = self._context.effects(run)
        cloud = effects.cloud
        # Read the cloud first: a later change in the database makes a difference now, but not
        # twice.
        pools = cloud.pools.list()
        filled = [pool.name for pool in pools if pool.hosts]
        rightful = self._context.ledger.rightful(self._kinds(), filled)
        now = differences(pools, rightful, self._context.freepool) | self._gone(effects)
        sure, self._previous = now & self._previous, now
        owners = {name: pool.project_id for name, pool in rightful.reservations.items()}
        # Differences that could not be repaired last time come last; the rest waits for the
        # next run.
        these = sorted(sure, key=lambda difference: (difference in self._reported, difference))[
            :MOST
        ]
        left = [
            difference for difference in these if not self._tried(cloud, pools, owners, difference)
        ]
        self._report(frozenset(these), left)
        if now - sure:
            raise NotYet(f"{len(now - sure)} differences, compared again", AGAIN_S)
        sentence = (
            f"{len(sure)} differences, {len(left)} of them left"
            if sure
            else "all pools match the database"
        )
        raise NotYet(sentence, self._settings.reconcile_s)

    def _gone(self, effects: EffectContext) -> frozenset[Difference]:
        """Find what was deleted in the cloud; the lease restores the object, or sets a flag."""
        polled = {name: r for name, r in self._context.resources.items() if r.polled}
        leases = self._context.ledger.running([*polled])
        whose = {r.id: lease.id for lease in leases for r in lease.reservations}
        found: set[Difference] = set()
        for name, resource in polled.items():
            mine = [r for lease in leases for r in lease.reservations if r.resource_type == name]
            if whole := [r for r in mine if not r.missing_resources]:
                lost = resource.gone(effects, whole)
                found |= {Difference(id_, GONE, lost[id_], whose[id_]) for id_ in lost}
        return frozenset(found)

    def _kinds(self) -> list[str]:
        return [name for name, resource in self._context.resources.items() if resource.pooled]

    def _tried(
        self, cloud: Cloud, pools: Sequence[Pool], owners: Mapping[str, str], difference: Difference
    ) -> bool:
        """Repair a difference; a refusal of the cloud does not delay the others."""
        try:
            return self._put_right(cloud, pools, owners, difference)
        except (NotFound, Conflict, InvalidInput) as refused:
            LOG.warning("%s: %s", difference, refused.message)
            return False

    def _put_right(
        self, cloud: Cloud, pools: Sequence[Pool], owners: Mapping[str, str], difference: Difference
    ) -> bool:
        """Repair a difference; return whether the repair succeeded or is scheduled."""
        by_name: Mapping[str, Pool] = {pool.name: pool for pool in pools}
        if difference.kind == HAS and difference.lease_id:
            pool = by_name[difference.pool]
            left = self._remove_if_empty(cloud, pool, difference.host)
            return left or self._by_its_lease(difference.lease_id, ARRANGE, "PENDING")
        if difference.kind == SAYS:
            pool = by_name[difference.pool]
            metadata = {name: value for name, value in pool.metadata.items() if name != OPEN}
            cloud.pools.set_metadata(pool.id, {**metadata, OWNER: owners[difference.pool]})
            return True
        if difference.lease_id:
            return self._by_its_lease(difference.lease_id, APPLY, "ACTIVE")
        pool = ensure_pool(
            cloud.pools, difference.pool, {KEPT: "yes"} if difference.pool == KEPT_POOL else {}
        )
        act = cloud.pools.add_host if difference.kind == LACKS else cloud.pools.remove_host
        act(pool.id, difference.host)
        return True

    def _remove_if_empty(self, cloud: Cloud, pool: Pool, host: str) -> bool:
        """Remove an unexpected host without servers; a host with servers stays, as their owner
        is unknown."""
        if cloud.servers.list(host=host):
            return False
        cloud.pools.remove_host(pool.id, host)
        return True

    def _by_its_lease(self, lease_id: str, kind: str, status: str) -> bool:
        """Schedule the repair as work of the lease; only for a lease in this state."""
        ledger = self._context.ledger
        work = lease_work(str(uuid.uuid4()), lease_id, kind, ledger.now())
        try:
            lease = ledger.lease(lease_id)
            for reservation in lease.reservations:  # the cached pool id may be stale
                self._context.pool_ids.forget(reservation.id)
            if lease.status != status:
                return False
            doubted = replace(lease, reservations=tuple(map(_doubted, lease.reservations)))
            sentence = "its pools are put right"
            ledger.save(lease, doubted, work=Work(put=(work,)), say=sentence, is_repair=True)
        except (NotFound, StaleWrite):
            return False  # the lease changed meanwhile: the next run finds the rest
        return True

    def _report(self, sure: frozenset[Difference], left: Sequence[Difference]) -> None:
        """Log and record each difference once, for as long as the difference lasts."""
        for difference in sorted(sure - self._reported):
            how = "not repaired: check the pool" if difference in left else "repaired"
            if difference.kind == GONE:
                how = "the lease restores it, or misses resources"
            LOG.warning("%s: %s", difference, how)
            self._context.ledger.note(
                difference.lease_id or f"pool:{difference.pool}", f"{difference}: {how}"
            )
        self._reported = sure

    def give_up_at(self, operation: Operation) -> datetime | None:
        return None

    def failed(self, run: Run, why: str) -> None:
        LOG.error("%s: %s", run.operation.key, why)


def _doubted(reservation: Reservation) -> Reservation:
    """Mark the cloud objects of a reservation for a new check; its hosts stay known."""
    stands = reservation.made.get("stands")
    if not stands:
        return reservation
    return replace(reservation, made={**reservation.made, "stands": {**stands, "shape": ""}})


def reconcile_kinds(context: LeaseContext, settings: Settings) -> dict[str, Kind]:
    return {RECONCILE: Reconcile(context, settings)}
