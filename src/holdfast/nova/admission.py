# SPDX-License-Identifier: Apache-2.0
"""Decides whether a server request may use a host; pure functions: no Nova, no call, no clock.

A pool is a host aggregate. The first rule that applies decides:

1. A leased server may use a host whose pool names the server, if the pool belongs to the server's
   project and is open, no reservation holds the whole host, and the server is no larger than the
   room kept for it. For any other host the rules below apply.
2. A request with a flavor of a capacity reservation may only use hosts in that reservation's pool,
   if the pool belongs to the project and is open, and no reservation holds the whole host.
3. A request with a reservation hint may only use hosts in a pool that the hint names. The hint must
   name every host reservation of the host, each of the request's project and open.
4. A request with a preemptible flavor, if allowed, may only use hosts of the preemptible pool
   without a reservation.
5. Any other request may only use hosts in no pool of Holdfast.

>>> pool = Pool("r1", {names.OWNER: "red"})
>>> refusal(read_request("red", {"reservation": ["r1"]}, {}), [pool])
>>> refusal(read_request("blue", {"reservation": ["r1"]}, {}), [pool])
'pool r1 is not of project blue'
"""

from __future__ import annotations

import enum
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.nova import names


@dataclass(frozen=True)
class Options:
    """The operator's options for the scheduler filter; the defaults are Blazar's."""

    freepool: str = names.FREEPOOL
    allow_preemptibles: bool = False
    preemptible_pool: str = names.FREEPOOL
    preemptible_spec: str = names.PREEMPTIBLE_SPEC


DEFAULTS = Options()


@dataclass(frozen=True)
class Request:
    """The part of a scheduler request about reservations."""

    project: str | None
    hinted: frozenset[str] | None = None  #: None: no hint; empty: a hint that names nothing
    slots_of: str | None = None  #: the capacity reservation of the request's flavor
    preemptible: bool = False
    server: str | None = None  #: the id of the server to place
    size: tuple[int, ...] = ()  #: vCPUs, MiB of memory, GB of root disk; empty: not known

    def __str__(self) -> str:
        if self.slots_of is not None:
            return f"project {self.project} with a flavor of reservation {self.slots_of}"
        if self.hinted is not None:
            return f"project {self.project} with hint reservation={_listed(self.hinted)}"
        return f"project {self.project} without a reservation"


@dataclass(frozen=True)
class Pool:
    """An aggregate of the host."""

    name: str
    metadata: Mapping[str, str]


class Kind(enum.Enum):
    HOST = "whole hosts of a reservation"
    SLOTS = "slots of a capacity reservation"
    SERVER = "room for one leased server"
    SHARED = "kept for reservations, or for preemptible servers"
    OTHER = "not ours"


def read_request(
    project: str | None,
    hints: Mapping[str, Any] | None,
    extra_specs: Mapping[str, str] | None,
    options: Options = DEFAULTS,
    server: str | None = None,
    size: tuple[int, ...] = (),
) -> Request:
    """Build the request from Nova's values; hints are user input and may hold anything."""
    specs = extra_specs or {}
    hint = (hints or {}).get(names.HINT, _ABSENT)
    return Request(
        project=project,
        hinted=None if hint is _ABSENT else _ids(hint),
        slots_of=specs.get(names.SLOTS_SPEC),
        preemptible=is_preemptible(specs, options.preemptible_spec),
        server=server,
        size=size,
    )


def is_preemptible(extra_specs: Mapping[str, str], spec: str = names.PREEMPTIBLE_SPEC) -> bool:
    """Whether servers of a flavor with these extra specs yield when their host is reserved."""
    return str(extra_specs.get(spec)).strip().lower() in _TRUE


def refusal(request: Request, pools: Sequence[Pool], options: Options = DEFAULTS) -> str | None:
    """Return why a request may not use a host in these pools; None if the request may."""
    if request.server and _leased(request, pools, options):
        return None
    if request.slots_of is not None:
        return _slots(request, pools, options)
    if request.hinted is not None:
        return _hinted(request, request.hinted, pools, options)
    if request.preemptible and options.allow_preemptibles:
        return _preemptible(pools, options)
    return _ordinary(pools, options)


def kind(pool: Pool, options: Options = DEFAULTS) -> Kind:
    if pool.name in (options.freepool, options.preemptible_pool) or names.KEPT in pool.metadata:
        return Kind.SHARED
    if (pool.metadata.get(names.ZONE) or "").startswith(names.ZONE_PREFIXES):
        return Kind.HOST
    if names.OWNER not in pool.metadata:
        return Kind.OTHER
    if names.SERVER in pool.metadata:
        return Kind.SERVER
    return Kind.SLOTS if names.SLOTS in pool.metadata else Kind.HOST


_ABSENT = object()
_TRUE = frozenset(("true", "1", "yes", "on", "t", "y"))


def _ids(hint: object) -> frozenset[str]:
    many = hint if isinstance(hint, (list, tuple)) else (hint,)
    return frozenset(name.strip() for name in many if isinstance(name, str) and _could_be(name))


def _could_be(text: str) -> bool:
    """Whether Nova accepts the text as an aggregate name; other text must not reach the log."""
    return len(text) <= 255 and text.isprintable()


def _leased(request: Request, pools: Sequence[Pool], options: Options) -> bool:
    """Whether the host keeps room for this server, and no reservation holds the whole host."""
    kinds = [(kind(pool, options), pool) for pool in pools]
    if any(pool_kind is Kind.HOST for pool_kind, _ in kinds):
        return False
    return any(
        pool_kind is Kind.SERVER
        and pool.metadata[names.SERVER] == request.server
        and _shut(pool, request) is None
        and _has_room(pool, request)
        for pool_kind, pool in kinds
    )


def _has_room(pool: Pool, request: Request) -> bool:
    """Whether the server is no larger than when leased; the rest of the host is not kept for it."""
    text = pool.metadata.get(names.SIZE)
    if not text or not request.size:
        return True
    sizes = text.split(",")
    if len(sizes) != len(request.size) or not all(size.isdecimal() for size in sizes):
        return False
    return all(map(operator.le, request.size, map(int, sizes)))


def _slots(request: Request, pools: Sequence[Pool], options: Options) -> str | None:
    if request.hinted is not None and request.slots_of not in request.hinted:
        return f"the flavor is of reservation {request.slots_of}, the hint names another"
    for pool in pools:
        if kind(pool, options) is Kind.HOST:
            return f"reserved as a whole: pool {pool.name}"
    for pool in pools:
        if pool.name == request.slots_of and kind(pool, options) is Kind.SLOTS:
            return _shut(pool, request)
    return f"no slots of reservation {request.slots_of} here"


def _hinted(
    request: Request, hinted: frozenset[str], pools: Sequence[Pool], options: Options
) -> str | None:
    reserved = [pool for pool in pools if kind(pool, options) is Kind.HOST]
    if not any(pool.name in hinted for pool in reserved):
        return f"not in the pool of reservation {_listed(hinted)}"
    for pool in reserved:
        if pool.name not in hinted:
            return f"also reserved by another: pool {pool.name}"
    return next((why for pool in reserved if (why := _shut(pool, request))), None)


def _preemptible(pools: Sequence[Pool], options: Options) -> str | None:
    for pool in pools:
        if kind(pool, options) in (Kind.HOST, Kind.SLOTS, Kind.SERVER):
            return f"reserved: pool {pool.name}"
    if all(pool.name != options.preemptible_pool for pool in pools):
        return f"preemptible servers go to pool {options.preemptible_pool} only"
    return None


def _ordinary(pools: Sequence[Pool], options: Options) -> str | None:
    for pool in pools:
        if kind(pool, options) is not Kind.OTHER:
            return f"in pool {pool.name}, and the request names no reservation"
    return None


def _shut(pool: Pool, request: Request) -> str | None:
    if not _owns(request.project, pool.metadata):
        return f"pool {pool.name} is not of project {request.project}"
    if pool.metadata.get(names.OPEN, names.OPENED) != names.OPENED:
        return f"pool {pool.name} is closed, its lease is ending"
    return None


def _owns(project: str | None, metadata: Mapping[str, str]) -> bool:
    """Whether the project is the owner or a sharer; in Blazar more project ids may be keys."""
    if not project:
        return False
    return metadata.get(names.OWNER) == project or bool(metadata.get(project))


def _listed(ids: frozenset[str]) -> str:
    ordered = sorted(ids)
    return ", ".join(ordered[:3]) + (", …" if len(ordered) > 3 else "") or "(none)"
