# SPDX-License-Identifier: Apache-2.0
"""Inventories of a host to JSON and back, and what slots can take of it."""

import functools
from collections.abc import Mapping
from typing import Any

from holdfast.model.host import Inventory


def pack(inventories: Mapping[str, Inventory]) -> dict[str, Any]:
    return {
        name: {"total": one.total, "reserved": one.reserved, "ratio": one.ratio, "most": one.most}
        for name, one in inventories.items()
    }


def unpack(
    stored: Mapping[str, Any] | None, vcpus: int, memory_mb: int, local_gb: int
) -> Mapping[str, Inventory]:
    """Where nothing is known, the host's own sizes, as they are."""
    if not stored:
        sizes = {"VCPU": vcpus, "MEMORY_MB": memory_mb, "DISK_GB": local_gb}
        return _shared(tuple((name, (("total", size),)) for name, size in sizes.items()))
    return _shared(tuple((name, tuple(one.items())) for name, one in stored.items()))


@functools.lru_cache(maxsize=1000)
def _shared(facts: tuple[tuple[str, tuple[tuple[str, Any], ...]], ...]) -> Mapping[str, Inventory]:
    """One mapping for all hosts of one make: a cloud has many hosts and few makes."""
    return {name: Inventory(**dict(one)) for name, one in facts}


def capacity(
    stored: Mapping[str, Any] | None, vcpus: int, memory_mb: int, local_gb: int
) -> dict[str, int]:
    found = unpack(stored, vcpus, memory_mb, local_gb)
    return {name: one.capacity for name, one in found.items()}
