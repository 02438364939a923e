# SPDX-License-Identifier: Apache-2.0
"""`physical:host`: whole hosts, moved from the free pool into a pool of the reservation and back.

A host is at all times in at least one of the two pools, so that no ordinary server can be
scheduled to it: it joins the new pool before it leaves the old one.
"""

import functools
import re
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from holdfast.jobs.job import NotYet
from holdfast.leases.placement import (
    AMOUNTS,
    EXPRESSIONS,
    LABELS,
    HostRequest,
    Need,
    Refusal,
    arranged,
    choose,
    conditions,
    properties,
)
from holdfast.leases.resources.base import (
    BaseResource,
    Effect,
    EffectContext,
    Opening,
    Wish,
    close_pool,
    find_pool,
    retire_pool,
)
from holdfast.model import expression
from holdfast.model.capacity import CapacitySnapshot
from holdfast.model.errors import Conflict, InvalidInput, NotEnoughHosts, NotFound
from holdfast.model.host import normalise
from holdfast.model.lease import Allocation, Lease, Reservation, Window
from holdfast.nova.names import OWNER
from holdfast.ports.cloud import Server
from holdfast.ports.ledger import Ledger

MOST = 100_000
MAX_LABEL = 255
_MOST_AMOUNT = 10**9
#: Key in `Reservation.made`: the lease end before which `before_end` took its last snapshots.
SNAPSHOT_FOR = "snapshot_for"
#: Longest part of a server's name in an image name, which has at most 255 characters.
_LONGEST_NAME = 230
#: Seconds until the next check whether servers are gone.
_POLL_S = 0.5


class HostResource(BaseResource):
    type = "physical:host"
    pooled = True

    # Decisions.

    def validate(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        unknown = sorted(spec.keys() - _KEYS)
        if unknown:
            raise InvalidInput(f"{unknown[0]}: not a parameter of {self.type} reservations")
        for name in ("min", "max"):
            if spec.get(name) in (None, ""):
                raise InvalidInput(f"Missing parameter {name}: reservations of {self.type} need it")
        low, high = _count(spec, "min"), _count(spec, "max")
        if low > high:
            raise InvalidInput(f"min: {low} is more than max {high}; the range is empty")
        before_end = spec.get("before_end") or ""
        if before_end not in ("", "default", "snapshot"):
            raise InvalidInput("Malformed parameter before_end: one of '', 'default', 'snapshot'")
        texts = {name: _text(spec, name) for name in EXPRESSIONS}
        for name, text in texts.items():
            expression.parse(text, name)
        return {"min": low, "max": high, "before_end": before_end, **texts, **_beyond(spec)}

    def change(self, reservation: Reservation, wanted: Mapping[str, Any]) -> dict[str, Any]:
        new, holds = super().change(reservation, wanted), len(reservation.host_ids())
        if reservation.status == "active" and new["max"] < holds and "max" in wanted:
            raise Conflict(f"max: an active reservation never loses a host, and holds {holds}")
        return new

    def properties(self, spec: Mapping[str, Any]) -> frozenset[str]:
        return properties(conditions(spec))

    def plan(
        self, wish: Wish, snapshot: CapacitySnapshot, ledger: Ledger
    ) -> tuple[Allocation, ...]:
        answer = choose(_request(wish, ledger.now()), snapshot, wish.order)
        if isinstance(answer, Refusal):
            raise NotEnoughHosts(
                f"Not enough hosts available: {answer.sentence}",
                conditions=[{"condition": c, "hosts": n} for c, n in answer.conditions],
                matching=answer.matching,
                free=answer.free,
                busy=list(answer.busy),
            )
        return tuple(Allocation(host_id, wish.held) for host_id in answer.host_ids)

    def need(self, wish: Wish, lost: Sequence[Allocation]) -> Need:
        request = _request(wish, wish.held.start)
        grouped = request.spread or request.pack
        return Need(
            wish.held,
            len(lost),
            where=request.conditions,
            besides=frozenset(request.keep),
            arrange=functools.partial(arranged, request) if grouped else None,
        )

    def openings(
        self, wish: Wish, until: datetime, snapshot: CapacitySnapshot, ledger: Ledger, most: int
    ) -> Sequence[Opening]:
        if wish.is_active:
            return ()  # it has begun: no other start is possible
        from holdfast.leases.openings import openings  # loads numpy

        starts = openings(_request(wish, ledger.now()), until.timestamp(), snapshot, most)
        length = wish.held.end - wish.held.start
        return [Opening(_window(wish, at, length), amount) for at, amount in starts]

    # Effects.

    def prepare(self, effects: EffectContext, lease: Lease, reservation: Reservation) -> Effect:
        with effects.pool(reservation.id, {OWNER: lease.project_id}):
            return Effect(f"pool {reservation.id} stands")

    def start(self, effects: EffectContext, lease: Lease, reservation: Reservation) -> Effect:
        if effects.ledger.now() >= lease.end:  # its hosts may belong to another lease by now
            return Effect(f"lease {lease.name} was over before it could start")
        names = reservation.hosts()
        _wait_for_others(effects, lease, reservation)
        with effects.pool(reservation.id, {OWNER: lease.project_id}) as pool_id:
            effects.each(lambda name: effects.cloud.pools.add_host(pool_id, name), names)
        _make_way(effects, names)
        sentence = f"{', '.join(names) or 'no host'} joined pool {reservation.id}"
        return Effect(sentence, missing=False)

    def settle(self, effects: EffectContext, lease: Lease, reservation: Reservation) -> Effect:
        if (
            effects.ledger.now() >= lease.end
        ):  # it may never have joined its pool; the end cleans up
            return Effect(
                f"lease {lease.name} is over, its hosts need not leave {effects.freepool}"
            )
        names = reservation.hosts()
        _make_way(effects, names)  # a server scheduled just before the host joined is there by now
        with effects.pool(effects.freepool) as pool_id:
            effects.each(lambda name: effects.cloud.pools.remove_host(pool_id, name), names)
        return Effect(f"{', '.join(names) or 'no host'} left {effects.freepool}")

    def before_end(self, effects: EffectContext, lease: Lease, reservation: Reservation) -> Effect:
        action = reservation.spec.get("before_end") or ""
        if action == "default":
            action = effects.options.before_end
        if action != "snapshot":
            return Effect("no action before the end")
        servers = _servers(effects, reservation.hosts())
        # A prolonged lease gets new snapshots before its new end: what is deleted then is
        # newer.
        this, last = f"{lease.end:%Y%m%dT%H%M%S}", reservation.made.get(SNAPSHOT_FOR)
        more = f"_{this}" if last not in (None, this) else ""
        effects.each(lambda server_id: _snapshot(effects, servers[server_id], more), servers)
        return Effect(f"{len(servers)} servers have their snapshot", made={SNAPSHOT_FOR: this})

    def end(self, effects: EffectContext, lease: Lease, reservation: Reservation) -> Effect:
        pool = find_pool(effects.cloud.pools, reservation.id)
        if pool is None:
            return Effect(f"pool {reservation.id} is gone")
        close_pool(effects.cloud.pools, pool)
        _clear(effects, lease, reservation, pool.hosts)
        mine = _ours(reservation)
        back = [name for name in pool.hosts if normalise(name) in mine]
        with effects.pool(effects.freepool) as free_id:
            effects.each(lambda name: effects.cloud.pools.add_host(free_id, name), back)
        # Also servers that were scheduled just before the pool was closed.
        _clear(effects, lease, reservation, pool.hosts)
        effects.each(lambda name: effects.cloud.pools.remove_host(pool.id, name), pool.hosts)
        retire_pool(effects, pool, reservation.id)
        return Effect(f"{', '.join(pool.hosts) or 'no host'} back in {effects.freepool}")


_GROUPS = ("spread", "pack")
_KEYS = {"min", "max", "before_end", "capabilities", *EXPRESSIONS, *LABELS, *AMOUNTS, *_GROUPS}


def _request(wish: Wish, now: datetime) -> HostRequest:
    spec = wish.spec
    return HostRequest(
        low=spec["min"],
        high=spec["max"],
        start=wish.held.start.timestamp(),
        end=wish.held.end.timestamp(),
        conditions=conditions(spec),
        keep=tuple(a.host_id for a in wish.kept if a.host_id is not None),
        must_keep=wish.is_active,
        spread=spec.get("spread") or "",
        pack=spec.get("pack") or "",
        now=now.timestamp(),
    )


def _window(wish: Wish, at: float, length: timedelta) -> Window:
    start = wish.held.start + timedelta(seconds=at - wish.held.start.timestamp())
    return Window(start, start + length)


def _beyond(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields beyond the contract, only if requested: old clients never see them."""
    fields: dict[str, Any] = {}
    for name in LABELS:
        fields[name] = _text(spec, name, "a name").strip()
        if len(fields[name]) > MAX_LABEL:
            raise InvalidInput(f"{name}: longer than {MAX_LABEL} characters")
    for name in AMOUNTS:
        fields[name] = None if spec.get(name) in (None, "") else _count(spec, name, _MOST_AMOUNT)
    fields["capabilities"] = _capabilities(spec)
    for name in _GROUPS:
        fields[name] = spec.get(name) or ""
        if fields[name] not in ("", "rack", "zone"):
            raise InvalidInput(f"Malformed parameter {name}: one of 'rack', 'zone'")
    if fields["spread"] and fields["pack"]:
        raise InvalidInput("spread and pack contradict each other: leave one of them out")
    return {name: value for name, value in fields.items() if value}


def _capabilities(spec: Mapping[str, Any]) -> dict[str, str]:
    capabilities = spec.get("capabilities")
    return dict(expression.read(capabilities)) if capabilities is not None else {}


def _count(spec: Mapping[str, Any], name: str, most: int = MOST) -> int:
    value = spec[name]
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,9}", value.strip()):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidInput(f"Malformed parameter {name}: a whole number is wanted")
    if not 1 <= value <= most:
        raise InvalidInput(f"{name}: {value} is not between 1 and {most}")
    return value


def _text(spec: Mapping[str, Any], name: str, expected: str = "a JSON expression as text") -> str:
    value = spec.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidInput(f"Malformed parameter {name}: {expected} is wanted")
    return value


def _wait_for_others(effects: EffectContext, lease: Lease, reservation: Reservation) -> None:
    """Wait for an earlier lease that still gives a host back, and would delete all servers
    there."""
    late = effects.ledger.not_given_back(reservation.host_ids(), besides=lease.id)
    if late:
        raise NotYet(f"{', '.join(sorted(late))}: not given back yet", 0.5)


def _servers(effects: EffectContext, names: Collection[str]) -> dict[str, Server]:
    """List all servers on these hosts, by id."""
    call = effects.calls.map if len(names) > 1 else map
    serverses = call(lambda name: effects.cloud.servers.list(host=name), names)
    return {server.id: server for servers in serverses for server in servers}


def _ours(reservation: Reservation) -> set[str]:
    return {normalise(name) for name in reservation.hosts()}


def _clear(
    effects: EffectContext, lease: Lease, reservation: Reservation, names: Collection[str]
) -> None:
    """Delete the servers on these hosts; NotYet until there are none.

    The pause grows with the duration of the end: a failed host may keep its servers for days.
    On a failed host that was replaced only the owner's servers are deleted: the host may belong
    to another lease by now.
    """
    ours = _ours(reservation)
    taken = effects.ledger.now() - (lease.updated_at or lease.end)
    pause_s = min(max(_POLL_S, taken.total_seconds() / 20), 10.0)
    servers = [
        server
        for server in _servers(effects, names).values()
        if normalise(server.host or "") in ours or server.project_id == lease.project_id
    ]
    _remove(effects, servers, pause_s)


def _make_way(effects: EffectContext, names: Collection[str]) -> None:
    """Delete preemptible servers on hosts still in the free pool.

    Not on hosts that have left the free pool: when a running lease gets more hosts, the servers
    on its earlier hosts belong to its owner, whatever their flavor.
    """
    if not effects.options.preemptibles:
        return
    pool = effects.cloud.pools.find(effects.freepool)
    free = {normalise(name) for name in pool.hosts} if pool else set()
    taken = [name for name in names if normalise(name) in free]
    _remove(effects, [s for s in _servers(effects, taken).values() if s.preemptible])


def _remove(effects: EffectContext, servers: Sequence[Server], pause_s: float = _POLL_S) -> None:
    if servers:
        # Delete again servers that are being deleted: this frees a server whose host failed
        # meanwhile.
        effects.each(lambda server_id: _delete(effects, server_id), [s.id for s in servers])
        raise NotYet(f"{len(servers)} servers are being deleted", pause_s)


def _snapshot(effects: EffectContext, server: Server, more: str) -> None:
    """Make an image of a server; a retry finds the image by name and server."""
    name = f"reserved_{server.name[:_LONGEST_NAME]}{more}"
    try:
        if not effects.cloud.servers.images(server.id, name):
            effects.cloud.servers.snapshot(server.id, name)
    except NotFound:
        return  # deleted by its owner meanwhile
    except Conflict as busy:  # the server is stopping, migrating, …
        raise NotYet(f"no snapshot yet: {busy.message}", 5.0) from busy


def _delete(effects: EffectContext, server_id: str) -> None:
    try:
        effects.cloud.servers.delete(server_id)
    except NotFound:
        return  # gone meanwhile, as intended
