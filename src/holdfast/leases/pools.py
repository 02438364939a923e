# SPDX-License-Identifier: Apache-2.0
"""Pools (host aggregates) by name: a retry finds the pool of the first call by name."""

from collections.abc import Mapping

from holdfast.model.errors import Conflict
from holdfast.nova.names import CLOSED, OPEN, OWNER
from holdfast.ports.cloud import Pool, Pools

MOST = 4096

__all__ = ["OWNER", "KnownPools", "ensure", "shut"]


class KnownPools:
    """Cache of pool ids: spares a lease start the lookup calls."""

    def __init__(self) -> None:
        self._ids: dict[str, str] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._ids

    def id_of(self, pools: Pools, name: str, metadata: Mapping[str, str]) -> str:
        if name not in self._ids:
            # Other managers end leases too, and this one does not hear of it.
            if len(self._ids) >= MOST:
                self._ids.clear()
            self._ids[name] = ensure(pools, name, metadata).id
        return self._ids[name]

    def forget(self, name: str) -> None:
        self._ids.pop(name, None)


def ensure(pools: Pools, name: str, metadata: Mapping[str, str]) -> Pool:
    """Return the pool of this name with this metadata; create a missing pool.

    A cloud may create a pool in one call and set its metadata in a second. A manager that died
    in between left a pool without an owner.
    """
    pool = pools.find(name)
    if pool is None:
        try:
            return pools.create(name, metadata)
        except Conflict:  # made by an earlier call of ours whose answer was lost
            pool = pools.find(name)
            if pool is None:
                raise
    if metadata.items() - pool.metadata.items():
        pools.set_metadata(pool.id, {**pool.metadata, **metadata})
    return pool


def shut(pools: Pools, pool: Pool) -> None:
    """Close the pool: no new servers, not even of its owner.

    A server that leaves now cannot come back. A call that died may have closed the pool without
    telling the scheduler, so a closed pool is resynced.
    """
    if pool.metadata.get(OPEN) == CLOSED:
        pools.resync(pool.id)
    else:
        pools.set_metadata(pool.id, {**pool.metadata, OPEN: CLOSED})
