# SPDX-License-Identifier: Apache-2.0
"""Says again how pools stand, and deletes those of leases that are over.

Who places servers hears of pools by message. Just after the broker was away it may not be back when
a change is made, and no call fails. So what changed is told again, three times, and a pool that is
over stays, shut and empty, until its last telling: deleted, it could not be told any more.

One chore for all pools: it looks at what the audit says was changed and at what is in the cloud,
and remembers nothing that it could not do without. A burst of changes makes it slow, nothing else.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from holdfast.model.errors import ClaimLost, HoldfastError, NotFound, Unavailable
from holdfast.model.operation import Operation
from holdfast.nova.names import CLOSED, KEPT_POOL, OPEN
from holdfast.ports.cloud import Pool
from holdfast.reserve.due import Desk
from holdfast.reserve.resource import Hands
from holdfast.work.kind import Kind, NotYet, Run, Step

LOG = logging.getLogger(__name__)

TELL = "pools_tell"
#: After a change; beyond the half minute that a service may take to find its broker again.
TELL_AFTER_S = (5.0, 20.0, 50.0)
#: How often it looks for news; and at the cloud without any, for pools that nobody deleted.
LOOK_S, LOOK_AT_ALL = 5.0, timedelta(minutes=1)
#: A sentence of the audit is seen when its transaction ends.
LATE = timedelta(seconds=15)
#: What it looks back for: more when it has just begun, for nobody may have told meanwhile.
BACK, FAR_BACK = timedelta(minutes=2), timedelta(hours=1)
#: Calls in a turn, and how many of them at once: leases that start come first.
MOST_CALLS, AT_ONCE = 50, 8
PAUSE_S = 1.0
#: What fails for one pool rests so long, and keeps nobody else waiting.
REST = timedelta(seconds=LOOK_S)


@dataclass
class _Telling:
    """How often one pool was told of one change. One that is late keeps the distance: who is deaf
    now may hear then."""

    changed: datetime
    shut: bool
    begins: datetime
    times: int = 0
    rests_until: datetime | None = None  # for it failed

    def next(self) -> datetime | None:
        if self.times == len(TELL_AFTER_S):
            return None
        when = self.begins + timedelta(seconds=TELL_AFTER_S[self.times])
        return max(when, self.rests_until) if self.rests_until else when

    def rests(self, now: datetime) -> bool:
        return self.rests_until is not None and self.rests_until > now

    def told(self, now: datetime) -> None:
        self.begins = max(self.begins, now - timedelta(seconds=TELL_AFTER_S[self.times]))
        self.times += 1


class PoolsTell:
    name = TELL
    stubborn = True

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._tellings: dict[str, _Telling] = {}  # by pool
        self._looked: datetime | None = None

    def steps(self) -> Sequence[Step]:
        return (Step("tell", self.tell, kept=False),)

    def tell(self, run: Run) -> str:
        """It never ends but by NotYet."""
        now = self._desk.ledger.now()
        news = self._desk.ledger.news_of_pools(now - (BACK if self._looked else FAR_BACK))
        if not self._must_look(news, now):
            raise NotYet("nothing to tell", LOOK_S)
        hands = self._desk.hands(run)
        pools = hands.cloud.pools.list()
        self._looked = now
        self._note(pools, news, now)
        due = self._due(pools, now)
        failures: list[HoldfastError] = []
        for at in range(0, min(len(due), MOST_CALLS), AT_ONCE):
            failures += self._act(hands, due[at : at + AT_ONCE], now)
        not_told = f", of {len(failures)} not: {failures[0].message}" if failures else ""
        if len(due) > MOST_CALLS:
            left = len(due) - MOST_CALLS
            raise NotYet(f"{left} pools have not been told yet{not_told}", PAUSE_S)
        raise NotYet(f"{len(due) - len(failures)} pools told{not_told}", self._pause(now))

    def _must_look(self, news: Mapping[str, datetime], now: datetime) -> bool:
        """At the cloud: something changed, is to be told, or it is time to look at all."""
        if self._looked is None or now - self._looked >= LOOK_AT_ALL:
            return True
        if any(changed > self._looked - LATE for changed in news.values()):
            return True
        return any(one.next() or one.rests_until for one in self._tellings.values())

    def _note(self, pools: Sequence[Pool], news: Mapping[str, datetime], now: datetime) -> None:
        """What is to be told of which pool; who is gone is forgotten."""
        known, self._tellings = self._tellings, {}
        free = self._desk.freepool
        for pool in sorted(pools, key=lambda pool: pool.name == free):  # it last: all come from it
            telling = self._telling(pool, known.get(pool.id), news, now)
            if telling and (telling.next() or telling.changed > now - BACK or _is_over(pool)):
                self._tellings[pool.id] = telling

    def _telling(
        self, pool: Pool, old: _Telling | None, news: Mapping[str, datetime], now: datetime
    ) -> _Telling | None:
        """What is begun goes on until something newer is to be told. The common pools change all
        the time: their tellings come one after the other."""
        common = pool.name in (self._desk.freepool, KEPT_POOL)
        changed = news.get("" if common else pool.name)
        if pool.name == self._desk.freepool:
            others = (telling.changed for telling in self._tellings.values())
            changed = max([*news.values(), *others], default=None)
        if old is not None and old.shut == _is_shut(pool):
            if changed is None or changed <= old.changed or (common and old.next()):
                return old
        elif changed is None and _is_over(pool):  # its lease was deleted
            changed = now
        return _Telling(changed, _is_shut(pool), changed) if changed else None

    def _due(self, pools: Sequence[Pool], now: datetime) -> list[Pool]:
        """Those to be told now, or deleted; who waits longest first."""
        found: list[Pool] = []
        for pool in pools:
            if telling := self._tellings.get(pool.id):
                when = telling.next()
                if telling.rests(now):
                    continue
                if (_is_over(pool) and when is None) or (when is not None and when <= now):
                    found.append(pool)
        return sorted(found, key=lambda pool: self._tellings[pool.id].begins)

    def _act(self, hands: Hands, pools: Sequence[Pool], now: datetime) -> list[HoldfastError]:
        """What could not be done; such a pool rests, for who always fails must not be first for
        ever."""
        by_id = {pool.id: pool for pool in pools}
        failures: list[HoldfastError] = []

        def act(pool_id: str) -> None:
            telling = self._tellings[pool_id]
            try:
                if telling.next():
                    hands.cloud.pools.tell(pool_id)
                    telling.told(now)
                if telling.next() is None and _is_over(by_id[pool_id]):
                    hands.cloud.pools.delete(pool_id)
            except NotFound:
                return  # gone meanwhile: nothing to tell
            except (ClaimLost, Unavailable):
                raise
            except HoldfastError as error:
                name, again_s = by_id[pool_id].name, REST.total_seconds()
                LOG.warning("pool %s: %s; again in %.0f s", name, error.message, again_s)
                telling.rests_until = now + REST
                failures.append(error)

        hands.each(act, by_id)
        return failures

    def _pause(self, now: datetime) -> float:
        """Until the next telling, or the next look."""
        waits = [when for one in self._tellings.values() if (when := one.next())]
        left = (min(waits) - now).total_seconds() if waits else LOOK_S
        return min(max(left, 0.1), LOOK_S)

    def give_up_at(self, operation: Operation) -> datetime | None:
        return None

    def failed(self, run: Run, why: str) -> None:
        LOG.error("%s: %s", run.operation.key, why)


def _is_shut(pool: Pool) -> bool:
    return pool.metadata.get(OPEN) == CLOSED


def _is_over(pool: Pool) -> bool:
    return _is_shut(pool) and not pool.hosts


def kinds(desk: Desk) -> dict[str, Kind]:
    return {TELL: PoolsTell(desk)}
