# SPDX-License-Identifier: Apache-2.0
"""May this request use this host? Decided from values alone: no Nova, no call, no clock.

The rules, first match wins:

1. A leased server: also hosts in the pool that names it, of its project, open, and not reserved as
   a whole, while it is no larger than the room that is kept. For any other host, the rules below.
2. A flavor of a capacity reservation: only hosts in that reservation's pool, of its project, open,
   and not reserved as a whole.
3. A reservation hint: only hosts in a pool it names; every host reservation the host is in must be
   named, of the request's project, and open. A hint never opens any other host.
4. A preemptible flavor, where allowed: only hosts of the preemptible pool that nobody has reserved.
5. Everything else: only hosts that are in no pool of ours.

>>> pool = Pool("r1", {names.OWNER: "red"})
>>> refusal(ask("red", {"reservation": ["r1"]}, {}), [pool])
>>> refusal(ask("blue", {"reservation": ["r1"]}, {}), [pool])
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
    """What an operator sets; the defaults are Blazar's."""

    freepool: str = names.FREEPOOL
    allow_preemptibles: bool = False
    preemptible_pool: str = names.FREEPOOL
    preemptible_spec: str = names.PREEMPTIBLE_SPEC


DEFAULTS = Options()


@dataclass(frozen=True)
class Request:
    """What the scheduler is asked for, as far as it concerns reservations."""

    project: str | None
    hinted: frozenset[str] | None = None  #: None: no hint; empty: a hint that names nothing
    slots_of: str | None = None  #: the capacity reservation whose flavor it uses
    preemptible: bool = False
    server: str | None = None  #: the id of the server that looks for a host
    size: tuple[int, ...] = ()  #: its vCPUs, MiB of memory, GB of root disk; empty: not known

    def __str__(self) -> str:
        if self.slots_of is not None:
            return f"project {self.project} with a flavor of reservation {self.slots_of}"
        if self.hinted is not None:
            return f"project {self.project} with hint reservation={_listed(self.hinted)}"
        return f"project {self.project} without a reservation"


@dataclass(frozen=True)
class Pool:
    """An aggregate the host is in."""

    name: str
    metadata: Mapping[str, str]


class Kind(enum.Enum):
    HOST = "whole hosts of a reservation"
    SLOTS = "slots of a capacity reservation"
    SERVER = "room for one leased server"
    SHARED = "kept for reservations, or for preemptible servers"
    OTHER = "not ours"


def ask(
    project: str | None,
    hints: Mapping[str, Any] | None,
    extra_specs: Mapping[str, str] | None,
    options: Options = DEFAULTS,
    server: str | None = None,
    size: tuple[int, ...] = (),
) -> Request:
    """The request, from what Nova carries; users type hints, so anything may be in them."""
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
    """Whether servers of such a flavor give way when their host is reserved."""
    return str(extra_specs.get(spec)).strip().lower() in _TRUE


def refusal(request: Request, pools: Sequence[Pool], options: Options = DEFAULTS) -> str | None:
    """Why a host in these pools is not for this request; None when it is."""
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
    return frozenset(one.strip() for one in many if isinstance(one, str) and _could_be(one))


def _could_be(text: str) -> bool:
    """Nova takes no other text as the name of an aggregate, and none else belongs into a log."""
    return len(text) <= 255 and text.isprintable()


def _leased(request: Request, pools: Sequence[Pool], options: Options) -> bool:
    """Whether the host keeps room for this very server, and nobody has the whole of it."""
    kinds = [(kind(pool, options), pool) for pool in pools]
    if any(what is Kind.HOST for what, _ in kinds):
        return False
    return any(
        what is Kind.SERVER
        and pool.metadata[names.SERVER] == request.server
        and _shut(pool, request) is None
        and _has_room(pool, request)
        for what, pool in kinds
    )


def _has_room(pool: Pool, request: Request) -> bool:
    """Whether the server is no larger than when it was leased: more of the host is others'."""
    text = pool.metadata.get(names.SIZE)
    if not text or not request.size:
        return True
    kept = text.split(",")
    if len(kept) != len(request.size) or not all(one.isdecimal() for one in kept):
        return False
    return all(map(operator.le, request.size, map(int, kept)))


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
    """The owner, or a project it shares with: Blazar lets a pool name more projects as keys."""
    if not project:
        return False
    return metadata.get(names.OWNER) == project or bool(metadata.get(project))


def _listed(ids: frozenset[str]) -> str:
    said = sorted(ids)
    return ", ".join(said[:3]) + (", …" if len(said) > 3 else "") or "(none)"
