# SPDX-License-Identifier: Apache-2.0
"""Pools by name: the name is the mark by which a second look finds what a first call made."""

from collections.abc import Mapping

from holdfast.model.errors import Conflict
from holdfast.ports.cloud import Pool, Pools

#: Metadata of a reservation's pool: whose it is. Blazar's name, so that its scheduler filter reads it.
OWNER = "blazar:owner"


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
