# SPDX-License-Identifier: Apache-2.0
"""Pools by name: the name is the mark by which a second look finds what a first call made."""

from collections.abc import Mapping

from holdfast.model.errors import Conflict
from holdfast.nova.names import CLOSED, OPEN, OWNER
from holdfast.ports.cloud import Pool, Pools

MOST = 4096

__all__ = ["OWNER", "KnownPools", "ensure", "shut"]


class KnownPools:
    """Ids of pools seen before, so that at a start no call is spent on looking them up."""

    def __init__(self) -> None:
        self._ids: dict[str, str] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._ids

    def id_of(self, pools: Pools, name: str, metadata: Mapping[str, str]) -> str:
        if name not in self._ids:
            if len(self._ids) >= MOST:  # other managers end leases too, and we do not hear of it
                self._ids.clear()
            self._ids[name] = ensure(pools, name, metadata).id
        return self._ids[name]

    def forget(self, name: str) -> None:
        self._ids.pop(name, None)


def ensure(pools: Pools, name: str, metadata: Mapping[str, str]) -> Pool:
    """The pool of that name with that metadata, made if it is not there.

    A cloud may make a pool in one call and describe it in a second: who died in between left one
    that nobody owns.
    """
    found = pools.find(name)
    if found is None:
        try:
            return pools.create(name, metadata)
        except Conflict:  # made by an earlier call of ours whose answer got lost
            found = pools.find(name)
            if found is None:
                raise
    if metadata.items() - found.metadata.items():
        pools.set_metadata(found.id, {**found.metadata, **metadata})
    return found


def shut(pools: Pools, pool: Pool) -> None:
    """Nobody comes in any more, not even the owner: what leaves now has left for good.

    A call that died may have written it and told nobody, so one that is shut is told again.
    """
    if pool.metadata.get(OPEN) == CLOSED:
        pools.resync(pool.id)
    else:
        pools.set_metadata(pool.id, {**pool.metadata, OPEN: CLOSED})
