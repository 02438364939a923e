# SPDX-License-Identifier: Apache-2.0
"""What `virtual:instance` and `flavor:instance` share: slots on hosts that stay in the free pool.

A reservation has a private flavor of its own, a pool, a class of slots that each of its hosts has
some of, and a server group where slots go together or apart. All of it carries the reservation's
id in its name, by which a second look finds what a first call made. A server of that flavor takes
one slot, so that Placement itself counts them.

All of it is made ahead of the start, and is of no use to anybody until the project is let to the
flavor: at the instant that one call is left. Only hosts that somebody still has as a whole join
the pool no earlier than that. What is written to one host is written one after the other: two at a
time would only make Placement refuse one of them.
"""

import contextlib
import functools
import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any

from holdfast.model.errors import Conflict, InvalidInput, NotEnoughHosts, NotFound
from holdfast.model.host import normalise
from holdfast.model.lease import Allocation, Lease, Reservation
from holdfast.model.stock import Stock
from holdfast.ports.cloud import Flavor, Pool, Server
from holdfast.ports.ledger import Ledger
from holdfast.reserve.mend_need import How, Need
from holdfast.reserve.plan import Refusal
from holdfast.reserve.pools import shut
from holdfast.reserve.resource import Effect, Hands, Opening, Quiet, Wish
from holdfast.reserve.resources.slots_cloud import (
    LOOK_S,
    Turns,
    group,
    make_flavor,
    make_pool,
    metadata,
    name_of,
    own,
    resource_class,
    set_slots,
)
from holdfast.reserve.resources.slots_openings import openings
from holdfast.reserve.resources.slots_plan import Slot, SlotsRequest, choose
from holdfast.reserve.resources.slots_spec import WHERE
from holdfast.work.kind import NotYet

_HOW = {True: How.TOGETHER, False: How.APART, None: How.ANYWHERE}


class SlotsResource(Quiet):
    """Two types are made of this; each says what a slot is and which flavor its servers have."""

    pooled = True
    keys: frozenset[str] = frozenset()  # what a request may say, beside where

    def __init__(self) -> None:
        self._turns = Turns()

    def slot(self, spec: Mapping[str, Any]) -> Slot:
        raise NotImplementedError

    def flavor(self, spec: Mapping[str, Any]) -> Flavor:
        """Sizes and extra specs; name, owner and what makes it the reservation's come later."""
        raise NotImplementedError

    # decide

    def plan(self, wish: Wish, stock: Stock, ledger: Ledger) -> tuple[Allocation, ...]:
        request = self._request(wish)
        chosen = choose(request, stock)
        if isinstance(chosen, Refusal):
            raise NotEnoughHosts(
                f"Not enough hosts available: {chosen.sentence}",
                conditions=[{"condition": c, "hosts": n} for c, n in chosen.conditions],
                matching=chosen.matching,
                free=chosen.free,
                busy=list(chosen.busy),
            )
        return request.allocations(chosen)

    def need(self, wish: Wish, lost: Sequence[Allocation]) -> Need:
        """On other hosts than those it keeps, of which it has one number of slots each."""
        slot = self.slot(wish.spec)
        return Need(
            wish.held,
            sum(a.slots or 0 for a in lost),
            slot.size,
            slot.conditions(1),
            _HOW[wish.spec["affinity"]],
            frozenset(a.host_id for a in wish.kept if a.host_id is not None),
        )

    def openings(
        self, wish: Wish, until: datetime, stock: Stock, ledger: Ledger, most: int
    ) -> Sequence[Opening]:
        if wish.is_active:
            return ()  # it has begun: no other start can be had
        request = self._request(wish)
        found = islice(openings(request, stock, until), most)
        return [Opening(window, request.amount) for window in found]

    def check_names(self, spec: Mapping[str, Any]) -> None:
        unknown = sorted(spec.keys() - self.keys - WHERE)
        if unknown:
            raise InvalidInput(f"{unknown[0]}: not a parameter of {self.type} reservations")

    def _request(self, wish: Wish) -> SlotsRequest:
        return SlotsRequest(
            slot=self.slot(wish.spec),
            amount=wish.spec["amount"],
            affinity=wish.spec["affinity"],
            held=wish.held,
            kept=wish.kept,
            must_keep=wish.is_active,
            order=wish.order,
        )

    # act

    def prepare(self, hands: Hands, lease: Lease, reservation: Reservation) -> Effect:
        join = not _held_whole(hands, lease, reservation)
        made = self._stand(hands, lease, reservation, join=join)
        return Effect(f"flavor, pool and slots of {reservation.id} stand", made)

    def start(self, hands: Hands, lease: Lease, reservation: Reservation) -> Effect:
        if hands.ledger.now() >= lease.end:  # its slots may be somebody else's by now
            return Effect(f"lease {lease.name} was over before it could start")
        late = _not_given_back(hands, lease, reservation)
        if late:
            raise NotYet(f"{', '.join(sorted(late))}: not given back yet", 0.5)
        made = self._joined(hands, lease, reservation)
        _make_way(hands, reservation.hosts())
        self._open(hands, lease, reservation)
        slots = sum(a.slots or 0 for a in reservation.allocations)
        where = ", ".join(reservation.hosts()) or "no host"
        said = f"{slots} slots on {where} are open to project {lease.project_id}"
        return Effect(said, made, missing=False)

    def end(self, hands: Hands, lease: Lease, reservation: Reservation) -> Effect:
        with self._turns.to_end():
            return self._end(hands, lease, reservation)

    def _end(self, hands: Hands, lease: Lease, reservation: Reservation) -> Effect:
        """All of it by looking: any of it may have been made, or be gone already."""
        pool = hands.cloud.pools.find(reservation.id)
        if pool is not None:
            shut(hands.cloud.pools, pool)
        hands.cloud.flavors.remove_access(reservation.id, lease.project_id)
        names = _all_hosts(reservation, pool)
        _clear(hands, lease, reservation, names)
        # A server that was let in just before has a slot, and its host keeps slots that are used.
        hands.each(lambda name: self._leave(hands, reservation, pool, name), names)
        self._drop_class(hands, reservation)
        for one in hands.cloud.slots.groups():
            if one.name == name_of(reservation):
                hands.cloud.slots.delete_group(one.id)
        hands.cloud.flavors.delete(reservation.id)
        hands.known.forget(reservation.id)  # it is deleted when everybody has heard that it is shut
        return Effect(f"slots of {reservation.id} on {', '.join(names) or 'no host'} are gone")

    def _joined(self, hands: Hands, lease: Lease, reservation: Reservation) -> dict[str, Any]:
        """Do what `prepare` has not done, or what is different since."""
        made, stands = dict(reservation.made), self._stands(reservation)
        if made.get("stands") == stands:
            return made
        if made.get("stands") != self._stands(reservation, joined=False):
            return self._stand(hands, lease, reservation, join=True)
        about = metadata(lease, reservation, made["server_group_id"])
        with hands.pool(reservation.id, about) as pool_id:
            pool = Pool(pool_id, reservation.id)
            come = functools.partial(self._come, hands, reservation, pool)
            hands.each(lambda host: come(host, stands["hosts"][host]), stands["hosts"])
        return {**made, "stands": stands}

    def _open(self, hands: Hands, lease: Lease, reservation: Reservation) -> None:
        try:
            hands.cloud.flavors.add_access(reservation.id, lease.project_id)
        except NotFound:  # taken away since it was made
            self._stand(hands, lease, reservation, join=True)
            hands.cloud.flavors.add_access(reservation.id, lease.project_id)

    def _stand(
        self, hands: Hands, lease: Lease, reservation: Reservation, *, join: bool
    ) -> dict[str, Any]:
        """Make what is not there, put right what an update changed; the ids of it."""
        with self._turns.to_make():
            group_id = group(hands, lease, reservation)
            pool = make_pool(hands, reservation, metadata(lease, reservation, group_id))
            stands = self._stands(reservation, joined=join)
            flavor = own(self.flavor(reservation.spec), reservation, group_id)
            parts = self._parts(hands, reservation, pool, stands)
            parts[flavor.name] = lambda: make_flavor(hands, flavor, reservation)
            hands.each(lambda part: parts[part](), parts)
        return {
            "flavor_id": reservation.id,
            "aggregate_id": int(pool.id) if pool.id.isdecimal() else None,
            "server_group_id": group_id,
            "stands": stands,
        }

    def _parts(
        self, hands: Hands, reservation: Reservation, pool: Pool, stands: Mapping[str, Any]
    ) -> dict[str, Callable[[], None]]:
        """What is to do at each host: those of before an update leave, those of now come."""
        parts: dict[str, Callable[[], None]] = {}
        now = {normalise(host) for host in stands["hosts"]}
        # Who died over it may have told nobody of a host. Once it is active nothing leaves.
        before = pool.hosts if reservation.status == "pending" else ()
        for host in (*before, *reservation.made.get("stands", {}).get("hosts", {})):
            if normalise(host) not in now:
                go = self._leave if reservation.status == "pending" else self._leave_if_empty
                parts[host] = functools.partial(go, hands, reservation, pool, host)
        to = pool if stands["joined"] else None
        for host, total in stands["hosts"].items():
            parts[host] = functools.partial(self._come, hands, reservation, to, host, total)
        return parts

    def _stands(self, reservation: Reservation, joined: bool = True) -> dict[str, Any]:
        """What `made` says when all that was made fits the reservation as it is now."""
        flavor = self.flavor(reservation.spec)
        shape = [flavor.vcpus, flavor.memory_mb, flavor.disk_gb, dict(flavor.extra_specs)]
        text = json.dumps([*shape, reservation.spec["affinity"]], sort_keys=True)
        return {
            "hosts": {a.host: a.slots or 0 for a in reservation.allocations},
            "shape": hashlib.sha256(text.encode()).hexdigest()[:16],
            "joined": joined,
        }

    def _come(
        self, hands: Hands, reservation: Reservation, pool: Pool | None, host: str, total: int
    ) -> None:
        """The host has so many slots, and is in the pool if its time has come."""
        with self._turns.at(host):
            set_slots(hands, host, resource_class(reservation.id), total)
            if pool is not None:
                hands.cloud.pools.add_host(pool.id, host)

    def _leave(self, hands: Hands, reservation: Reservation, pool: Pool | None, host: str) -> None:
        """The host has no slots, and is not in the pool."""
        with self._turns.at(host), contextlib.suppress(NotFound):  # the host is gone altogether
            set_slots(hands, host, resource_class(reservation.id), 0)
        if pool is not None:
            with self._turns.at(host):
                hands.cloud.pools.remove_host(pool.id, host)

    def _leave_if_empty(
        self, hands: Hands, reservation: Reservation, pool: Pool, host: str
    ) -> None:
        """Of a host that failed no more than is used there; it leaves once it is empty, at the end
        at the latest."""
        name = resource_class(reservation.id)
        try:
            used = hands.cloud.slots.inventory(host, name).used
        except NotFound:
            used = 0
        if not used:
            self._leave(hands, reservation, pool, host)
            return
        with self._turns.at(host):
            set_slots(hands, host, name, used)

    def _drop_class(self, hands: Hands, reservation: Reservation) -> None:
        name = resource_class(reservation.id)
        try:
            hands.cloud.slots.drop_class(name)
        except Conflict:  # a host that an update took away, by a manager that died over it
            every = [host.service_host for host in hands.cloud.hosts.list()]
            hands.each(lambda host: self._leave(hands, reservation, None, host), every)
            hands.cloud.slots.drop_class(name)


def _not_given_back(hands: Hands, lease: Lease, reservation: Reservation) -> Collection[str]:
    """A lease of whole hosts deletes all servers there before it gives them back."""
    ids = reservation.host_ids()
    return hands.ledger.not_given_back(ids, besides=lease.id, whole=True)


def _held_whole(hands: Hands, lease: Lease, reservation: Reservation) -> bool:
    """Whether somebody has one of its hosts as a whole until it starts: a pool that names another
    project could be in their way."""
    stock = hands.ledger.stock()
    span = hands.ledger.now().timestamp(), lease.start.timestamp()
    whole = any(stock.line(host_id).peak(*span) is None for host_id in reservation.host_ids())
    return whole or bool(_not_given_back(hands, lease, reservation))


def _make_way(hands: Hands, names: Collection[str]) -> None:
    """Preemptible servers leave hosts on which somebody has slots; ours are never preemptible."""
    if hands.options.preemptibles:
        _remove(hands, [server for server in _on(hands, names) if server.preemptible])


def _all_hosts(reservation: Reservation, pool: Pool | None) -> list[str]:
    """Where it has or had slots, also by what an update took away."""
    before = reservation.made.get("stands", {}).get("hosts", {})
    names = (*reservation.hosts(), *(pool.hosts if pool else ()), *before)
    return sorted({normalise(name): name for name in names}.values())


def _clear(hands: Hands, lease: Lease, reservation: Reservation, names: Collection[str]) -> None:
    """Delete the servers of the reservation's flavor, wherever they are, also those in no place;
    NotYet until there are none. The longer it takes, the rarer the looks."""
    flavor = {name_of(reservation), reservation.id}
    owned = hands.cloud.servers.list(project_id=lease.project_id)
    found = {s.id: s for s in (*owned, *_on(hands, names)) if s.flavor in flavor}
    taken = hands.ledger.now() - (lease.updated_at or lease.end)
    _remove(hands, list(found.values()), min(max(LOOK_S, taken.total_seconds() / 20), 10.0))


def _on(hands: Hands, names: Collection[str]) -> Iterator[Server]:
    def listed(name: str) -> Sequence[Server]:
        try:
            return hands.cloud.servers.list(host=name)
        except NotFound:
            return ()  # the host is gone, and all that was on it

    for servers in hands.calls.map(listed, names):
        yield from servers


def _remove(hands: Hands, servers: Sequence[Server], pause_s: float = LOOK_S) -> None:
    def delete(server_id: str) -> None:
        try:
            hands.cloud.servers.delete(server_id)
        except NotFound:
            return  # gone meanwhile, as wished

    if servers:
        # Again those that are being deleted: it sets one free whose host has died over it.
        hands.each(delete, [server.id for server in servers])
        raise NotYet(f"{len(servers)} servers are being deleted", pause_s)
