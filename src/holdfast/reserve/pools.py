# SPDX-License-Identifier: Apache-2.0
"""Pools by name: the name is the mark by which a second look finds what a first call made."""

from collections.abc import Mapping

from holdfast.model.errors import Conflict
from holdfast.ports.cloud import Pool, Pools

#: Metadata of a reservation's pool: whose it is. Blazar's name, for scheduler filters that know it.
OWNER = "blazar:owner"


MOST = 4096


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
    """The pool of that name, made if it is not there."""
    found = pools.find(name)
    if found is not None:
        return found
    try:
        return pools.create(name, metadata)
    except Conflict:  # made by an earlier call of ours whose answer got lost
        found = pools.find(name)
        if found is None:
            raise
        return found
