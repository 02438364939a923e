# SPDX-License-Identifier: Apache-2.0
"""Slots: `virtual:instance` and `flavor:instance`, on hosts in the free pool.

A reservation has its own private flavor, a pool, a resource class of which each of its hosts
has some, and a server group where slots go together or apart. Each name contains the
reservation's id, by which a retry finds what the first call made. A server of that flavor takes
one slot, so that Placement itself counts them.

All of it is made before the start, and is useless until the project gets access to the flavor:
the start needs only that one call. Only hosts that another lease still holds as a whole join
the pool no earlier than the start. Writes to one host run one after the other: with two at a
time Placement would only refuse one of them.
"""

import contextlib
import functools
import hashlib
import json
import logging
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import islice
from typing import Any

from holdfast.jobs.job import NotYet, repeated
from holdfast.leases.placement import (
    LABELS,
    MASKED,
    Condition,
    How,
    Need,
    Refusal,
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
    ensure_pool,
    find_pool,
    retire_pool,
)
from holdfast.leases.resources.instance_placement import Slot, SlotsRequest, choose, openings
from holdfast.model import expression
from holdfast.model.capacity import CapacitySnapshot
from holdfast.model.errors import Conflict, DriverError, InvalidInput, NotEnoughHosts, NotFound
from holdfast.model.host import Host, normalise
from holdfast.model.lease import Allocation, Lease, Reservation
from holdfast.nova.names import OWNER, SLOTS, SLOTS_SPEC
from holdfast.ports.cloud import Cloud, Flavor, Pool, Server
from holdfast.ports.ledger import Ledger
from holdfast.ports.manager import Caller

LOG = logging.getLogger(__name__)

# The cloud objects of slots, each found again by the reservation's id in its name.


#: Metadata keys in flavors and pools for the server group and the project, as in Blazar.
AFFINITY = "affinity_id"
PROJECT = "filter_tenant_id"
RESOURCES = "resources:"
#: Seconds until the next check whether servers have left their slots; attempts of a write that
#: loses races.
POLL_S = 0.5
_TRIES = 5
#: Failed attempts whose progress a manager keeps.
MOST_KEPT = 1000
#: Seconds to wait for a lock: less than a claim lasts.
_TURN_S = 3.0
#: Reservations that a manager makes, and that it ends, at a time. A burst is done sooner with
#: this limit than by an overloaded cloud.
FEW = 8


class KeyedLock:
    """Locks: a single writer per host, and at most FEW reservations at a time."""

    def __init__(self) -> None:
        self._hosts: dict[str, threading.Semaphore] = {}
        self._making = threading.Semaphore(FEW)
        self._ending = threading.Semaphore(FEW)

    def at(self, host: str) -> contextlib.AbstractContextManager[None]:
        semaphore = self._hosts.setdefault(normalise(host), threading.Semaphore())
        return _acquired(semaphore, f"host {host}: others are at it")

    def to_make(self) -> contextlib.AbstractContextManager[None]:
        return _acquired(self._making, "other slots are being made")

    def to_end(self) -> contextlib.AbstractContextManager[None]:
        return _acquired(self._ending, "other slots are being given back")


@contextlib.contextmanager
def _acquired(semaphore: threading.Semaphore, why_not: str) -> Iterator[None]:
    if not semaphore.acquire(timeout=_TURN_S):
        raise NotYet(why_not, 0.3)
    try:
        yield
    finally:
        semaphore.release()


def resource_class(reservation_id: str) -> str:
    """Return the Placement resource class of the reservation; each server takes 1."""
    return "CUSTOM_RESERVATION_" + re.sub(r"[^A-Z0-9]", "_", reservation_id.upper())


def name_of(reservation: Reservation) -> str:
    return f"reservation:{reservation.id}"


def metadata(lease: Lease, reservation: Reservation, group_id: str | None) -> dict[str, str]:
    group = {AFFINITY: group_id} if group_id else {}
    return {
        SLOTS: reservation.id,
        OWNER: lease.project_id,
        PROJECT: lease.project_id,
        **group,
    }


def make_pool(effects: EffectContext, reservation: Reservation, about: Mapping[str, str]) -> Pool:
    """Create the reservation's pool without a lookup first: most likely none exists."""
    effects.pool_ids.forget(reservation.id)
    if not reservation.made:
        with contextlib.suppress(Conflict):
            return effects.cloud.pools.create(reservation.id, about)
    return ensure_pool(effects.cloud.pools, reservation.id, about)


def own(flavor: Flavor, reservation: Reservation, group_id: str | None) -> Flavor:
    mine = {
        SLOTS_SPEC: reservation.id,
        f"{RESOURCES}{resource_class(reservation.id)}": "1",
        **({AFFINITY: group_id} if group_id else {}),
    }
    return replace(
        flavor,
        id=reservation.id,
        name=name_of(reservation),
        public=False,
        extra_specs={**flavor.extra_specs, **mine},
        projects=(),
    )


def make_flavor(effects: EffectContext, wanted: Flavor, reservation: Reservation) -> None:
    """Create the flavor; before the start, replace a different flavor: no server uses any."""
    flavors = effects.cloud.flavors
    try:
        there = flavors.show(wanted.id)
    except NotFound:
        flavors.create(wanted)
        return
    if replace(there, projects=()) == wanted:
        return
    if reservation.status == "pending":
        flavors.delete(wanted.id)
    flavors.create(wanted)


def group(effects: EffectContext, lease: Lease, reservation: Reservation) -> str | None:
    """Return the id of the reservation's server group; create a missing group if needed."""
    slots, name = effects.cloud.slots, name_of(reservation)
    policy = {True: "affinity", False: "anti-affinity"}.get(reservation.spec["affinity"])
    if policy is None:
        return None
    try:
        return slots.create_group(name, policy, lease.project_id).id
    except Conflict:  # made before, perhaps with the policy before an update
        server_groups = [
            server_group for server_group in slots.groups() if server_group.name == name
        ]
    for group in server_groups:
        if group.policy == policy and group.project_id == lease.project_id:
            return group.id
        slots.delete_group(group.id)
    raise NotYet(f"server group {name} is made anew", 0.1)


def set_slots(effects: EffectContext, host: str, name: str, total: int) -> None:
    """Set the number of slots of the host; after a lost race, read and try again."""
    for _ in range(_TRIES):
        now = effects.cloud.slots.inventory(host, name)
        if now.total == total:
            return
        if now.used > total:
            raise NotYet(f"host {host}: servers still have {now.used} slots", POLL_S)
        try:
            effects.cloud.slots.set_inventory(host, name, total, now.generation)
            return
        except Conflict:
            continue
    raise NotYet(f"host {host}: others write its inventories", 0.2)


# Parsers for the fields of slot requests, in the notations that clients use.


MOST = 100_000
MAX_LABEL = 255
#: Conditions on hosts beyond the contract.
WHERE = frozenset({*LABELS, "capabilities"})


def count(spec: Mapping[str, Any], name: str, least: int = 1, most: int = MOST) -> int:
    value = spec.get(name)
    if value is None or value == "":
        raise InvalidInput(f"Missing parameter {name}: reservations of slots need it")
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,12}", value.strip()):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidInput(f"Malformed parameter {name}: a whole number is wanted")
    if not least <= value <= most:
        raise InvalidInput(f"{name}: {value} is not between {least} and {most}")
    return value


_WORDS = {"true": True, "false": False, "none": None, "null": None, "": None}


def affinity(spec: Mapping[str, Any]) -> bool | None:
    value = spec.get("affinity")
    choice = value.strip().lower() if isinstance(value, str) else value
    if choice is None or isinstance(choice, bool):
        return choice
    if not isinstance(choice, str) or choice not in _WORDS:
        raise InvalidInput("Malformed parameter affinity: true, false or null is wanted")
    return _WORDS[choice]


def where(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return requested conditions only: old clients never see other fields."""
    requested: dict[str, Any] = {}
    for name in LABELS:
        label = spec.get(name) or ""
        if not isinstance(label, str) or len(label) > MAX_LABEL:
            raise InvalidInput(f"Malformed parameter {name}: a name is wanted")
        requested[name] = label.strip()
    if (capabilities := spec.get("capabilities")) is not None:
        requested["capabilities"] = dict(expression.read(capabilities))
    return {name: value for name, value in requested.items() if value}


def only_more(reservation: Reservation, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Check an update: before the start any change, later only more slots."""
    if reservation.status == "pending" or new == old:
        return
    if reservation.status != "active":
        raise Conflict(f"reservation {reservation.id} is {reservation.status}: it stays as it is")
    names = (new.keys() | old.keys()) - {"amount"}
    other = sorted(name for name in names if new.get(name) != old.get(name))
    if other:
        raise Conflict(f"{other[0]}: cannot change while the reservation is active")
    if new["amount"] < old["amount"]:
        raise Conflict(
            f"amount: an active reservation keeps its {old['amount']} slots or gets more"
        )


_HOW = {True: How.TOGETHER, False: How.APART, None: How.ANYWHERE}


class SlotsResource(BaseResource):
    """The base of both slot types; a subclass defines the slot and the flavor of its servers."""

    polled = True
    pooled = True
    keys: frozenset[str] = frozenset()  # permitted fields, beside WHERE

    def __init__(self) -> None:
        self._locks = KeyedLock()
        self._done: dict[str, set[str]] = {}  # parts that failed attempts have done

    def slot(self, spec: Mapping[str, Any]) -> Slot:
        raise NotImplementedError

    def flavor(self, spec: Mapping[str, Any]) -> Flavor:
        """Return sizes and extra specs; the caller adds name, owner and reservation."""
        raise NotImplementedError

    # Decisions.

    def properties(self, spec: Mapping[str, Any]) -> frozenset[str]:
        return properties(self.slot(spec).where)

    def resolve(self, spec: Mapping[str, Any], cloud: Cloud, caller: Caller) -> dict[str, Any]:
        if spec["affinity"] is not None:  # refused now rather than at the start
            try:
                cloud.slots.check_role(caller.project_id)
            except DriverError as error:
                if not error.retryable:
                    raise
                LOG.warning("the role in project %s is not checked: %s", caller.project_id, error)
        return dict(spec)

    def plan(
        self, wish: Wish, snapshot: CapacitySnapshot, ledger: Ledger
    ) -> tuple[Allocation, ...]:
        request = self._request(wish)
        chosen = choose(request, snapshot)
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
        """State the need on other hosts than the kept ones, as each host has a single slot
        count."""
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
        self, wish: Wish, until: datetime, snapshot: CapacitySnapshot, ledger: Ledger, most: int
    ) -> Sequence[Opening]:
        if wish.is_active:
            return ()  # it has begun: no other start is possible
        request = self._request(wish)
        windows = islice(openings(request, snapshot, until), most)
        return [Opening(window, request.amount) for window in windows]

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

    # Effects.

    def arrange(self, effects: EffectContext, lease: Lease, reservation: Reservation) -> Effect:
        """Undo the preparation for an earlier start: hosts leave the pool, slots go."""
        effects = _patient(effects)
        left = (lease.start - effects.ledger.now()).total_seconds()
        soon = left <= effects.options.prepare_s
        pool = None if soon else find_pool(effects.cloud.pools, reservation.id)
        if pool is None:
            return Effect("no host waits in a pool")
        names = sorted({*pool.hosts, *reservation.made.get("stands", {}).get("hosts", {})})
        effects.each(lambda name: self._leave(effects, reservation, pool, name), names)
        return Effect(f"{', '.join(names) or 'no host'} left pool {pool.name}", {"stands": {}})

    def prepare(self, effects: EffectContext, lease: Lease, reservation: Reservation) -> Effect:
        effects = _patient(effects)
        join = not _held_whole(effects, lease, reservation)
        made = self._create_objects(effects, lease, reservation, join=join)
        return Effect(f"flavor, pool and slots of {reservation.id} stand", made)

    def start(self, effects: EffectContext, lease: Lease, reservation: Reservation) -> Effect:
        if effects.ledger.now() >= lease.end:  # its slots may belong to another lease by now
            return Effect(f"lease {lease.name} was over before it could start")
        late = _not_given_back(effects, lease, reservation)
        if late:
            raise NotYet(f"{', '.join(sorted(late))}: not given back yet", 0.5)
        effects = _patient(effects)
        made = self._joined(effects, lease, reservation)
        _make_way(effects, reservation.hosts())
        self._open(effects, lease, reservation)
        slots = sum(a.slots or 0 for a in reservation.allocations)
        where = ", ".join(reservation.hosts()) or "no host"
        sentence = f"{slots} slots on {where} are open to project {lease.project_id}"
        return Effect(sentence, made, missing=False)

    def end(self, effects: EffectContext, lease: Lease, reservation: Reservation) -> Effect:
        with self._locks.to_end():
            return self._end(_patient(effects), lease, reservation)

    def gone(
        self, effects: EffectContext, reservations: Sequence[Reservation]
    ) -> Mapping[str, str]:
        groups = {r.id: group for r in reservations if (group := r.made.get("server_group_id"))}
        there = {group.id for group in effects.cloud.slots.groups()} if groups else set()
        lost = {name: f"server group {id_}" for name, id_ in groups.items() if id_ not in there}
        flavors = {flavor.id for flavor in effects.cloud.flavors.list()}
        return lost | {r.id: f"flavor {r.id}" for r in reservations if r.id not in flavors}

    def _end(self, effects: EffectContext, lease: Lease, reservation: Reservation) -> Effect:
        """End the reservation; look first, because any object may be missing."""
        pool = find_pool(effects.cloud.pools, reservation.id)
        if pool is not None:
            close_pool(effects.cloud.pools, pool)
        effects.cloud.flavors.remove_access(reservation.id, lease.project_id)
        names = _all_hosts(reservation, pool)
        _clear(effects, lease, reservation, names)
        # A server scheduled just before has a slot, and its host keeps slots that are used.
        leave = functools.partial(self._leave, effects, reservation, pool)
        parts = {name: functools.partial(leave, name) for name in names}
        self._go_on(effects, f"{lease.version} end {reservation.id}", parts)
        self._drop_class(effects, reservation)
        for server_group in effects.cloud.slots.groups():
            if server_group.name == name_of(reservation):
                effects.cloud.slots.delete_group(server_group.id)
        effects.cloud.flavors.delete(reservation.id)
        if pool is not None:
            retire_pool(effects, pool, reservation.id)
        return Effect(f"slots of {reservation.id} on {', '.join(names) or 'no host'} are gone")

    def _joined(
        self, effects: EffectContext, lease: Lease, reservation: Reservation
    ) -> dict[str, Any]:
        """Do what `prepare` left undone, or what an update changed."""
        made, record = dict(reservation.made), self._record(reservation)
        if made.get("stands") == record:
            return made
        if made.get("stands") != self._record(reservation, joined=False):
            return self._create_objects(effects, lease, reservation, join=True)
        about = metadata(lease, reservation, made["server_group_id"])
        with effects.pool(reservation.id, about) as pool_id:
            pool = Pool(pool_id, reservation.id)
            come = functools.partial(self._come, effects, reservation, pool)
            hosts = record["hosts"].items()
            parts = {host: functools.partial(come, host, total) for host, total in hosts}
            self._go_on(effects, f"{lease.version} join {pool_id}", parts)
        return {**made, "stands": record}

    def _open(self, effects: EffectContext, lease: Lease, reservation: Reservation) -> None:
        try:
            effects.cloud.flavors.add_access(reservation.id, lease.project_id)
        except NotFound:  # deleted since it was made
            self._create_objects(effects, lease, reservation, join=True)
            effects.cloud.flavors.add_access(reservation.id, lease.project_id)

    def _create_objects(
        self, effects: EffectContext, lease: Lease, reservation: Reservation, *, join: bool
    ) -> dict[str, Any]:
        """Create missing cloud objects, apply an update, and return their ids."""
        with self._locks.to_make():
            group_id = group(effects, lease, reservation)
            pool = make_pool(effects, reservation, metadata(lease, reservation, group_id))
            record = self._record(reservation, joined=join)
            flavor = own(self.flavor(reservation.spec), reservation, group_id)
            parts = self._parts(effects, reservation, pool, record)
            parts[flavor.name] = lambda: make_flavor(effects, flavor, reservation)
            self._go_on(effects, f"{lease.version} make {pool.id} {group_id} {record}", parts)
        return {
            "flavor_id": reservation.id,
            "aggregate_id": int(pool.id) if pool.id.isdecimal() else None,
            "server_group_id": group_id,
            "stands": record,
        }

    def _go_on(
        self, effects: EffectContext, key: str, parts: Mapping[str, Callable[[], None]]
    ) -> None:
        """Run the parts in parallel; the next attempt skips those that succeeded.

        The key names the version of the lease, so that nothing is skipped after a change.
        """
        done = self._done.setdefault(key, set())

        def run(part: str) -> None:
            parts[part]()
            done.add(part)

        effects.each(run, [part for part in parts if part not in done])
        self._done.pop(key, None)
        if len(self._done) > MOST_KEPT:  # of attempts that never succeeded
            self._done.clear()

    def _parts(
        self,
        effects: EffectContext,
        reservation: Reservation,
        pool: Pool,
        record: Mapping[str, Any],
    ) -> dict[str, Callable[[], None]]:
        """Return the actions per host: hosts from before an update leave, current hosts join."""
        parts: dict[str, Callable[[], None]] = {}
        now = {normalise(host) for host in record["hosts"]}
        # A manager that died may not have recorded a host. Once the reservation is active
        # nothing leaves.
        before = pool.hosts if reservation.status == "pending" else ()
        for host in (*before, *reservation.made.get("stands", {}).get("hosts", {})):
            if normalise(host) not in now:
                go = self._leave if reservation.status == "pending" else self._leave_if_empty
                parts[host] = functools.partial(go, effects, reservation, pool, host)
        to = pool if record["joined"] else None
        for host, total in record["hosts"].items():
            parts[host] = functools.partial(self._come, effects, reservation, to, host, total)
        return parts

    def _record(self, reservation: Reservation, joined: bool = True) -> dict[str, Any]:
        """Return the record in `made` for: all cloud objects match the reservation."""
        flavor = self.flavor(reservation.spec)
        shape = [flavor.vcpus, flavor.memory_mb, flavor.disk_gb, dict(flavor.extra_specs)]
        text = json.dumps([*shape, reservation.spec["affinity"]], sort_keys=True)
        return {
            "hosts": {a.host: a.slots or 0 for a in reservation.allocations},
            "shape": hashlib.sha256(text.encode()).hexdigest()[:16],
            "joined": joined,
        }

    def _come(
        self,
        effects: EffectContext,
        reservation: Reservation,
        pool: Pool | None,
        host: str,
        total: int,
    ) -> None:
        """Set the slots of the host, and add the host to the pool once the start has come."""
        with self._locks.at(host):
            set_slots(effects, host, resource_class(reservation.id), total)
            if pool is not None:
                effects.cloud.pools.add_host(pool.id, host)

    def _leave(
        self, effects: EffectContext, reservation: Reservation, pool: Pool | None, host: str
    ) -> None:
        """Remove the slots of the host, and the host from the pool."""
        with self._locks.at(host), contextlib.suppress(NotFound):  # the host is gone
            set_slots(effects, host, resource_class(reservation.id), 0)
        if pool is not None:
            with self._locks.at(host):
                effects.cloud.pools.remove_host(pool.id, host)

    def _leave_if_empty(
        self, effects: EffectContext, reservation: Reservation, pool: Pool, host: str
    ) -> None:
        """Reduce the slots of a failed host to those in use; an empty host leaves the pool.

        The host leaves at the lease's end at the latest.
        """
        name = resource_class(reservation.id)
        try:
            used = effects.cloud.slots.inventory(host, name).used
        except NotFound:
            used = 0
        if not used:
            self._leave(effects, reservation, pool, host)
            return
        with self._locks.at(host):
            set_slots(effects, host, name, used)

    def _drop_class(self, effects: EffectContext, reservation: Reservation) -> None:
        name = resource_class(reservation.id)
        try:
            effects.cloud.slots.drop_class(name)
        except Conflict:  # a host removed by an update, whose manager died meanwhile
            every = [host.service_host for host in effects.cloud.hosts.list()]
            effects.each(lambda host: self._leave(effects, reservation, None, host), every)
            effects.cloud.slots.drop_class(name)


def _patient(effects: EffectContext) -> EffectContext:
    """Repeat calls that fail at once: each call of this module may run twice."""
    return replace(effects, cloud=repeated(effects.cloud, effects.ledger.now))


def _not_given_back(
    effects: EffectContext, lease: Lease, reservation: Reservation
) -> Collection[str]:
    """Return hosts that an earlier whole-host lease still gives back; it deletes all servers
    there."""
    ids = reservation.host_ids()
    return effects.ledger.not_given_back(ids, besides=lease.id, whole=True)


def _held_whole(effects: EffectContext, lease: Lease, reservation: Reservation) -> bool:
    """Whether another lease holds one of the hosts as a whole until the start.

    A pool that names another project could block that lease.
    """
    snapshot = effects.ledger.capacity()
    span = effects.ledger.now().timestamp(), lease.start.timestamp()
    whole = any(snapshot.line(host_id).peak(*span) is None for host_id in reservation.host_ids())
    return whole or bool(_not_given_back(effects, lease, reservation))


def _make_way(effects: EffectContext, names: Collection[str]) -> None:
    """Delete preemptible servers on hosts with slots; servers in slots are never preemptible."""
    if effects.options.preemptibles:
        _remove(effects, [server for server in _on(effects, names) if server.preemptible])


def _all_hosts(reservation: Reservation, pool: Pool | None) -> list[str]:
    """List all hosts with slots, now or before an update."""
    before = reservation.made.get("stands", {}).get("hosts", {})
    names = (*reservation.hosts(), *(pool.hosts if pool else ()), *before)
    return sorted({normalise(name): name for name in names}.values())


def _clear(
    effects: EffectContext, lease: Lease, reservation: Reservation, names: Collection[str]
) -> None:
    """Delete all servers of the reservation's flavor, also those on no host; NotYet until none
    is left.

    The pause grows with the duration.
    """
    flavor = {name_of(reservation), reservation.id}
    owned = effects.cloud.servers.list(project_id=lease.project_id)
    servers = {s.id: s for s in (*owned, *_on(effects, names)) if s.flavor in flavor}
    taken = effects.ledger.now() - (lease.updated_at or lease.end)
    _remove(effects, list(servers.values()), min(max(POLL_S, taken.total_seconds() / 20), 10.0))


def _on(effects: EffectContext, names: Collection[str]) -> Iterator[Server]:
    def listed(name: str) -> Sequence[Server]:
        try:
            return effects.cloud.servers.list(host=name)
        except NotFound:
            return ()  # the host is gone, with all its servers

    for servers in effects.calls.map(listed, names):
        yield from servers


def _remove(effects: EffectContext, servers: Sequence[Server], pause_s: float = POLL_S) -> None:
    def delete(server_id: str) -> None:
        try:
            effects.cloud.servers.delete(server_id)
        except NotFound:
            return  # gone meanwhile, as intended

    if servers:
        # Delete again servers that are being deleted: this frees a server whose host failed
        # meanwhile.
        effects.each(delete, [server.id for server in servers])
        raise NotYet(f"{len(servers)} servers are being deleted", pause_s)


# `virtual:instance`: slots of given vCPUs, memory and disk.


#: The largest number that Nova accepts in a flavor.
_LARGEST = 2**31 - 1
_PROPERTIES = "resource_properties"
#: Fields of the request: the minimum, and the Placement resource class.
_SIZES = {"vcpus": (1, "VCPU"), "memory_mb": (1, "MEMORY_MB"), "disk_gb": (0, "DISK_GB")}


class InstanceResource(SlotsResource):
    type = "virtual:instance"
    keys = frozenset({*_SIZES, "amount", "affinity", _PROPERTIES})

    def validate(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        self.check_names(spec)
        sizes = {name: count(spec, name, least, _LARGEST) for name, (least, _) in _SIZES.items()}
        properties = spec.get(_PROPERTIES) or ""
        if not isinstance(properties, str):
            raise InvalidInput(f"Malformed parameter {_PROPERTIES}: a JSON expression is wanted")
        expression.parse(properties, _PROPERTIES)
        return {
            **sizes,
            "amount": count(spec, "amount"),
            "affinity": affinity(spec),
            _PROPERTIES: properties,
            **where(spec),
        }

    def change(self, reservation: Reservation, wanted: Mapping[str, Any]) -> dict[str, Any]:
        old = reservation.spec
        new = self.validate({**old, **wanted})
        only_more(reservation, old, new)
        return new

    def slot(self, spec: Mapping[str, Any]) -> Slot:
        size = {class_: spec[name] for name, (_, class_) in _SIZES.items() if spec[name]}
        requested = {name: spec[name] for name in (*WHERE, _PROPERTIES, MASKED) if name in spec}
        return Slot(size, conditions(requested))

    def flavor(self, spec: Mapping[str, Any]) -> Flavor:
        return Flavor("", "", spec["vcpus"], spec["memory_mb"], spec["disk_gb"])


# `flavor:instance`: slots for servers of an existing flavor.
#
# The flavor is read when the reservation is made: the resources of a server, the conditions on
# its host, and the extra specs that the reservation's own flavor keeps. Later changes of the
# flavor do not matter. A flavor that asks for more than a host's own resources (a PCI device, a
# virtual GPU, resource groups) is refused, because nothing could guarantee it.


MAX_ID = 255
TRAIT = "trait:"
#: Extra specs that keep their meaning on the reservation's own flavor. Not those about
#: aggregates: the reservation's pool replaces them. Not preemptibility: a reserved server is
#: never preempted.
KEPT = (TRAIT, RESOURCES, "hw:", "hw_rng:", "hw_video:", "quota:", "os:")
#: Extra specs that ask for resources a host does not provide itself.
_FOREIGN = {
    "pci_passthrough:alias": "PCI devices",
    "accel:device_profile": "accelerators",
    "hw:pmem": "persistent memory",
    "hw:mem_encryption": "encrypted memory",
    f"{RESOURCES}VGPU": "virtual GPUs",
    f"{RESOURCES}PGPU": "GPUs",
    f"{RESOURCES}PCI_DEVICE": "PCI devices",
}
_GROUP = re.compile(r"(resources|trait)[a-zA-Z0-9_-]+:")
_HYPERTHREADS = {"isolate": "forbidden", "require": "required"}


class FlavorResource(SlotsResource):
    type = "flavor:instance"
    keys = frozenset({"flavor_id", "amount", "affinity", "resource_properties"})

    def validate(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        """Validate the spec; `resource_properties` is output only: it describes the flavor."""
        self.check_names(spec)
        flavor_id = spec.get("flavor_id")
        if isinstance(flavor_id, int) and not isinstance(flavor_id, bool):
            flavor_id = str(flavor_id)  # python-blazarclient converts what looks like a number
        if flavor_id is None or flavor_id == "":
            raise InvalidInput(f"Missing parameter flavor_id: reservations of {self.type} need it")
        if not isinstance(flavor_id, str) or len(flavor_id) > MAX_ID:
            raise InvalidInput("Malformed parameter flavor_id: the id of a flavor is wanted")
        return {
            "flavor_id": flavor_id,
            "amount": count(spec, "amount"),
            "affinity": affinity(spec),
            **where(spec),
        }

    def resolve(self, spec: Mapping[str, Any], cloud: Cloud, caller: Caller) -> dict[str, Any]:
        spec = super().resolve(spec, cloud, caller)
        flavor = _visible(cloud, spec["flavor_id"], caller)
        _check(flavor)
        extra_specs = {
            key: value for key, value in flavor.extra_specs.items() if key.startswith(KEPT)
        }
        return {
            **{name: value for name, value in spec.items() if name != "flavor_id"},
            "source_flavor_id": flavor.id,
            "vcpus": flavor.vcpus,
            "memory_mb": flavor.memory_mb,
            "disk_gb": flavor.disk_gb,
            "resource_properties": _dump(flavor),
            "takes": takes(flavor),
            "traits": dict(_traits(flavor)),
            "extra_specs": extra_specs,
        }

    def change(self, reservation: Reservation, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """Apply an update; the flavor stays, named by its own id or the reservation's."""
        old = reservation.spec
        self.check_names(wanted)
        same = (old["source_flavor_id"], reservation.id)
        if wanted.get("flavor_id") and str(wanted["flavor_id"]) not in same:
            raise Conflict("flavor_id: a reservation keeps the flavor that it was made with")
        requested = {name: old[name] for name in ("amount", "affinity", *WHERE) if name in old}
        valid = self.validate({**requested, **wanted, "flavor_id": same[0]})
        rest = {name: value for name, value in old.items() if name not in requested}
        new = {**rest, **{name: value for name, value in valid.items() if name != "flavor_id"}}
        only_more(reservation, old, new)
        return new

    def slot(self, spec: Mapping[str, Any]) -> Slot:
        requested = {name: spec[name] for name in (*WHERE, MASKED) if name in spec}
        traits = (_trait(name, requirement) for name, requirement in sorted(spec["traits"].items()))
        return Slot(spec["takes"], (*conditions(requested), *traits))

    def flavor(self, spec: Mapping[str, Any]) -> Flavor:
        sizes = spec["vcpus"], spec["memory_mb"], spec["disk_gb"]
        return Flavor("", "", *sizes, extra_specs=spec["extra_specs"])


def takes(flavor: Flavor) -> dict[str, int]:
    """Return the resources of a server of the flavor by resource class, as Nova computes them."""
    specs = flavor.extra_specs
    explicit = {
        key.removeprefix(RESOURCES): _amount(flavor, key)
        for key in specs
        if key.startswith(RESOURCES)
    }
    amounts = {"MEMORY_MB": flavor.memory_mb, "DISK_GB": flavor.disk_gb}
    if specs.get("hw:cpu_policy") == "dedicated":
        apart = specs.get("hw:emulator_threads_policy") == "isolate"
        amounts["PCPU"] = flavor.vcpus + apart
    elif not {"VCPU", "PCPU"} & explicit.keys():
        amounts["VCPU"] = flavor.vcpus
    return {name: amount for name, amount in {**amounts, **explicit}.items() if amount}


def _visible(cloud: Cloud, flavor_id: str, caller: Caller) -> Flavor:
    try:
        flavor = cloud.flavors.show(flavor_id)
    except NotFound:
        flavor = None
    if flavor and (flavor.public or caller.is_admin or caller.project_id in flavor.projects):
        return flavor
    raise InvalidInput(f"flavor_id: there is no flavor {flavor_id} that your project may use")


def _check(flavor: Flavor) -> None:
    """Refuse a flavor if Holdfast cannot guarantee the resources."""
    for key in sorted(flavor.extra_specs):
        devices = _FOREIGN.get(key) or (_GROUP.match(key) and "groups of resources")
        if devices:
            raise _refused(flavor, f"it asks for {devices} ({key})")
    if SLOTS_SPEC in flavor.extra_specs:
        raise _refused(flavor, "it belongs to a reservation itself")
    if flavor.extra_specs.get("hw:cpu_policy") == "mixed":
        raise _refused(flavor, "it mixes dedicated and shared CPUs (hw:cpu_policy)")
    if not takes(flavor):
        raise _refused(flavor, "its servers take nothing of a host")


def _traits(flavor: Flavor) -> Iterator[tuple[str, str]]:
    threads = _HYPERTHREADS.get(flavor.extra_specs.get("hw:cpu_thread_policy", ""))
    if threads:
        yield "HW_CPU_HYPERTHREADING", threads
    for key, requirement in flavor.extra_specs.items():
        if not key.startswith(TRAIT):
            continue
        if requirement not in ("required", "forbidden"):
            raise _refused(flavor, f"{key} is {requirement}, neither required nor forbidden")
        yield key.removeprefix(TRAIT), requirement


def _trait(name: str, requirement: str) -> Condition:
    wanted = requirement == "required"

    def passes(host: Host) -> bool:
        return (name in host.traits) is wanted

    return Condition(f"trait {name} {requirement}", passes)


def _amount(flavor: Flavor, key: str) -> int:
    text = str(flavor.extra_specs[key])
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise _refused(flavor, f"{key} is {text}, no whole number")
    return int(text)


def _refused(flavor: Flavor, why: str) -> InvalidInput:
    return InvalidInput(f"flavor_id: flavor {flavor.name} cannot be reserved: {why}; name another")


def _dump(flavor: Flavor) -> str:
    """Describe the flavor for the API answer."""
    fields = {
        "id": flavor.id,
        "name": flavor.name,
        "vcpus": flavor.vcpus,
        "ram": flavor.memory_mb,
        "disk": flavor.disk_gb,
        "extra_specs": dict(flavor.extra_specs),
    }
    return json.dumps(fields, sort_keys=True)
