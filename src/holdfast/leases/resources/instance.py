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
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import islice
from typing import Any

from holdfast.jobs.job import NotYet
from holdfast.leases.placement import LABELS, Condition, How, Need, Refusal, conditions
from holdfast.leases.pools import ensure, shut
from holdfast.leases.resources.base import Effect, EffectContext, Opening, Quiet, Wish
from holdfast.leases.resources.instance_placement import Slot, SlotsRequest, choose, openings
from holdfast.model import expression
from holdfast.model.caller import Caller
from holdfast.model.capacity import CapacitySnapshot
from holdfast.model.errors import Conflict, InvalidInput, NotEnoughHosts, NotFound
from holdfast.model.host import Host, normalise
from holdfast.model.lease import Allocation, Lease, Reservation
from holdfast.nova.names import OWNER, SLOTS, SLOTS_SPEC
from holdfast.ports.cloud import Cloud, Flavor, Pool, Server
from holdfast.ports.ledger import Ledger

# What slots are made of in the cloud, each found again by the reservation's id in its name.


#: Flavors and pools name the server group by this, and the project by that, as Blazar's do.
AFFINITY = "affinity_id"
PROJECT = "filter_tenant_id"
RESOURCES = "resources:"
#: How soon to look again whether servers have left their slots; how often to try a write that
#: others beat.
LOOK_S = 0.5
_TRIES = 5
#: How long to wait for one's turn: less than a claim lasts.
_TURN_S = 3.0
#: How many reservations of a manager are made, and how many ended, at a time. What comes at once in
#: great numbers is sooner done so than by a cloud that answers nobody in time.
FEW = 8


class KeyedLock:
    """One at a time at each host, and few at a time at all."""

    def __init__(self) -> None:
        self._hosts: dict[str, threading.Semaphore] = {}
        self._making = threading.Semaphore(FEW)
        self._ending = threading.Semaphore(FEW)

    def at(self, host: str) -> contextlib.AbstractContextManager[None]:
        one = self._hosts.setdefault(normalise(host), threading.Semaphore())
        return _turn(one, f"host {host}: others are at it")

    def to_make(self) -> contextlib.AbstractContextManager[None]:
        return _turn(self._making, "other slots are being made")

    def to_end(self) -> contextlib.AbstractContextManager[None]:
        return _turn(self._ending, "other slots are being given back")


@contextlib.contextmanager
def _turn(turns: threading.Semaphore, why_not: str) -> Iterator[None]:
    if not turns.acquire(timeout=_TURN_S):
        raise NotYet(why_not, 0.3)
    try:
        yield
    finally:
        turns.release()


def resource_class(reservation_id: str) -> str:
    """The class in Placement of which a server of the reservation takes one."""
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


def make_pool(hands: EffectContext, reservation: Reservation, about: Mapping[str, str]) -> Pool:
    """The reservation's pool. Most likely there is none yet, so no look is spent on it."""
    hands.known.forget(reservation.id)
    if not reservation.made:
        with contextlib.suppress(Conflict):
            return hands.cloud.pools.create(reservation.id, about)
    return ensure(hands.cloud.pools, reservation.id, about)


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


def make_flavor(hands: EffectContext, wanted: Flavor, reservation: Reservation) -> None:
    """Before the start nobody can use it yet, so one of another shape is made anew."""
    flavors = hands.cloud.flavors
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


def group(hands: EffectContext, lease: Lease, reservation: Reservation) -> str | None:
    """The id of the reservation's server group, made if it wants one and has none."""
    slots, name = hands.cloud.slots, name_of(reservation)
    policy = {True: "affinity", False: "anti-affinity"}.get(reservation.spec["affinity"])
    if policy is None:
        return None
    try:
        return slots.create_group(name, policy, lease.project_id).id
    except Conflict:  # made before, perhaps for what was wanted before an update
        found = [one for one in slots.groups() if one.name == name]
    for group in found:
        if group.policy == policy and group.project_id == lease.project_id:
            return group.id
        slots.delete_group(group.id)
    raise NotYet(f"server group {name} is made anew", 0.1)


def set_slots(hands: EffectContext, host: str, name: str, total: int) -> None:
    """Give the host so many slots. Others write the same host's; whoever was slower looks again."""
    for _ in range(_TRIES):
        now = hands.cloud.slots.inventory(host, name)
        if now.total == total:
            return
        if now.used > total:
            raise NotYet(f"host {host}: servers still have {now.used} slots", LOOK_S)
        try:
            hands.cloud.slots.set_inventory(host, name, total, now.generation)
            return
        except Conflict:
            continue
    raise NotYet(f"host {host}: others write its inventories", 0.2)


# The words and numbers that requests for slots share, read as the clients write them.


MOST = 100_000
MAX_LABEL = 255
#: On which hosts, beyond what the contract knows.
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
    word = value.strip().lower() if isinstance(value, str) else value
    if word is None or isinstance(word, bool):
        return word
    if not isinstance(word, str) or word not in _WORDS:
        raise InvalidInput("Malformed parameter affinity: true, false or null is wanted")
    return _WORDS[word]


def where(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Only what is asked for: old clients never see the rest."""
    found: dict[str, Any] = {}
    for name in LABELS:
        label = spec.get(name) or ""
        if not isinstance(label, str) or len(label) > MAX_LABEL:
            raise InvalidInput(f"Malformed parameter {name}: a name is wanted")
        found[name] = label.strip()
    given = spec.get("capabilities")
    found["capabilities"] = dict(expression.read(given)) if given is not None else {}
    return {name: value for name, value in found.items() if value}


def only_more(reservation: Reservation, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """What an update may do: before the start anything, later only more slots."""
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


class SlotsResource(Quiet):
    """Two types are made of this; each says what a slot is and which flavor its servers have."""

    pooled = True
    keys: frozenset[str] = frozenset()  # what a request may say, beside where

    def __init__(self) -> None:
        self._turns = KeyedLock()

    def slot(self, spec: Mapping[str, Any]) -> Slot:
        raise NotImplementedError

    def flavor(self, spec: Mapping[str, Any]) -> Flavor:
        """Sizes and extra specs; name, owner and what makes it the reservation's come later."""
        raise NotImplementedError

    # decide

    def plan(self, wish: Wish, stock: CapacitySnapshot, ledger: Ledger) -> tuple[Allocation, ...]:
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
        self, wish: Wish, until: datetime, stock: CapacitySnapshot, ledger: Ledger, most: int
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

    def prepare(self, hands: EffectContext, lease: Lease, reservation: Reservation) -> Effect:
        join = not _held_whole(hands, lease, reservation)
        made = self._stand(hands, lease, reservation, join=join)
        return Effect(f"flavor, pool and slots of {reservation.id} stand", made)

    def start(self, hands: EffectContext, lease: Lease, reservation: Reservation) -> Effect:
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

    def end(self, hands: EffectContext, lease: Lease, reservation: Reservation) -> Effect:
        with self._turns.to_end():
            return self._end(hands, lease, reservation)

    def _end(self, hands: EffectContext, lease: Lease, reservation: Reservation) -> Effect:
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

    def _joined(
        self, hands: EffectContext, lease: Lease, reservation: Reservation
    ) -> dict[str, Any]:
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

    def _open(self, hands: EffectContext, lease: Lease, reservation: Reservation) -> None:
        try:
            hands.cloud.flavors.add_access(reservation.id, lease.project_id)
        except NotFound:  # taken away since it was made
            self._stand(hands, lease, reservation, join=True)
            hands.cloud.flavors.add_access(reservation.id, lease.project_id)

    def _stand(
        self, hands: EffectContext, lease: Lease, reservation: Reservation, *, join: bool
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
        self, hands: EffectContext, reservation: Reservation, pool: Pool, stands: Mapping[str, Any]
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
        self,
        hands: EffectContext,
        reservation: Reservation,
        pool: Pool | None,
        host: str,
        total: int,
    ) -> None:
        """The host has so many slots, and is in the pool if its time has come."""
        with self._turns.at(host):
            set_slots(hands, host, resource_class(reservation.id), total)
            if pool is not None:
                hands.cloud.pools.add_host(pool.id, host)

    def _leave(
        self, hands: EffectContext, reservation: Reservation, pool: Pool | None, host: str
    ) -> None:
        """The host has no slots, and is not in the pool."""
        with self._turns.at(host), contextlib.suppress(NotFound):  # the host is gone altogether
            set_slots(hands, host, resource_class(reservation.id), 0)
        if pool is not None:
            with self._turns.at(host):
                hands.cloud.pools.remove_host(pool.id, host)

    def _leave_if_empty(
        self, hands: EffectContext, reservation: Reservation, pool: Pool, host: str
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

    def _drop_class(self, hands: EffectContext, reservation: Reservation) -> None:
        name = resource_class(reservation.id)
        try:
            hands.cloud.slots.drop_class(name)
        except Conflict:  # a host that an update took away, by a manager that died over it
            every = [host.service_host for host in hands.cloud.hosts.list()]
            hands.each(lambda host: self._leave(hands, reservation, None, host), every)
            hands.cloud.slots.drop_class(name)


def _not_given_back(
    hands: EffectContext, lease: Lease, reservation: Reservation
) -> Collection[str]:
    """A lease of whole hosts deletes all servers there before it gives them back."""
    ids = reservation.host_ids()
    return hands.ledger.not_given_back(ids, besides=lease.id, whole=True)


def _held_whole(hands: EffectContext, lease: Lease, reservation: Reservation) -> bool:
    """Whether somebody has one of its hosts as a whole until it starts: a pool that names another
    project could be in their way."""
    stock = hands.ledger.stock()
    span = hands.ledger.now().timestamp(), lease.start.timestamp()
    whole = any(stock.line(host_id).peak(*span) is None for host_id in reservation.host_ids())
    return whole or bool(_not_given_back(hands, lease, reservation))


def _make_way(hands: EffectContext, names: Collection[str]) -> None:
    """Preemptible servers leave hosts on which somebody has slots; ours are never preemptible."""
    if hands.options.preemptibles:
        _remove(hands, [server for server in _on(hands, names) if server.preemptible])


def _all_hosts(reservation: Reservation, pool: Pool | None) -> list[str]:
    """Where it has or had slots, also by what an update took away."""
    before = reservation.made.get("stands", {}).get("hosts", {})
    names = (*reservation.hosts(), *(pool.hosts if pool else ()), *before)
    return sorted({normalise(name): name for name in names}.values())


def _clear(
    hands: EffectContext, lease: Lease, reservation: Reservation, names: Collection[str]
) -> None:
    """Delete the servers of the reservation's flavor, wherever they are, also those in no place;
    NotYet until there are none. The longer it takes, the rarer the looks."""
    flavor = {name_of(reservation), reservation.id}
    owned = hands.cloud.servers.list(project_id=lease.project_id)
    found = {s.id: s for s in (*owned, *_on(hands, names)) if s.flavor in flavor}
    taken = hands.ledger.now() - (lease.updated_at or lease.end)
    _remove(hands, list(found.values()), min(max(LOOK_S, taken.total_seconds() / 20), 10.0))


def _on(hands: EffectContext, names: Collection[str]) -> Iterator[Server]:
    def listed(name: str) -> Sequence[Server]:
        try:
            return hands.cloud.servers.list(host=name)
        except NotFound:
            return ()  # the host is gone, and all that was on it

    for servers in hands.calls.map(listed, names):
        yield from servers


def _remove(hands: EffectContext, servers: Sequence[Server], pause_s: float = LOOK_S) -> None:
    def delete(server_id: str) -> None:
        try:
            hands.cloud.servers.delete(server_id)
        except NotFound:
            return  # gone meanwhile, as wished

    if servers:
        # Again those that are being deleted: it sets one free whose host has died over it.
        hands.each(delete, [server.id for server in servers])
        raise NotYet(f"{len(servers)} servers are being deleted", pause_s)


# `virtual:instance`: slots of so many vCPUs, so much memory and disk.


#: The largest number that Nova takes in a flavor.
_LARGEST = 2**31 - 1
_PROPERTIES = "resource_properties"
#: A field of the request: the least it may be, and what Placement calls it.
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
        size = {known: spec[name] for name, (_, known) in _SIZES.items() if spec[name]}
        asked = {name: spec[name] for name in (*WHERE, _PROPERTIES) if name in spec}
        return Slot(size, conditions(asked))

    def flavor(self, spec: Mapping[str, Any]) -> Flavor:
        return Flavor("", "", spec["vcpus"], spec["memory_mb"], spec["disk_gb"])


# `flavor:instance`: slots for servers of a flavor that exists.
#
# The flavor is read when the reservation is made: what a server of it takes, on which hosts it
# can
# be, and which of its extra specs the reservation's own flavor keeps. What happens to it later
# does
# not matter. A flavor that asks for what hosts do not have by themselves (a PCI device, a part of
# a
# GPU, groups of resources) is refused: nobody could promise it.


MAX_ID = 255
TRAIT = "trait:"
#: Extra specs that mean the same on the reservation's own flavor. Not those about aggregates: the
#: reservation's pool stands for them; and what is reserved gives way to nobody.
KEPT = (TRAIT, RESOURCES, "hw:", "hw_rng:", "hw_video:", "quota:", "os:")
#: Extra specs that ask for what is not the host's own to give.
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
        """`resource_properties` is the answer's: it tells of the flavor, and asks for nothing."""
        self.check_names(spec)
        flavor_id = spec.get("flavor_id")
        if isinstance(flavor_id, int) and not isinstance(flavor_id, bool):
            flavor_id = str(flavor_id)  # python-blazarclient takes what looks like a number for one
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
        flavor = _visible(cloud, spec["flavor_id"], caller)
        _check(flavor)
        kept = {key: one for key, one in flavor.extra_specs.items() if key.startswith(KEPT)}
        return {
            **{name: value for name, value in spec.items() if name != "flavor_id"},
            "source_flavor_id": flavor.id,
            "vcpus": flavor.vcpus,
            "memory_mb": flavor.memory_mb,
            "disk_gb": flavor.disk_gb,
            "resource_properties": _dump(flavor),
            "takes": takes(flavor),
            "traits": dict(_traits(flavor)),
            "extra_specs": kept,
        }

    def change(self, reservation: Reservation, wanted: Mapping[str, Any]) -> dict[str, Any]:
        """The flavor stays; it may be named by its own id or by the reservation's."""
        old = reservation.spec
        self.check_names(wanted)
        same = (old["source_flavor_id"], reservation.id)
        if wanted.get("flavor_id") and str(wanted["flavor_id"]) not in same:
            raise Conflict("flavor_id: a reservation keeps the flavor that it was made with")
        asked = {name: old[name] for name in ("amount", "affinity", *WHERE) if name in old}
        told = self.validate({**asked, **wanted, "flavor_id": same[0]})
        rest = {name: value for name, value in old.items() if name not in asked}
        new = {**rest, **{name: value for name, value in told.items() if name != "flavor_id"}}
        only_more(reservation, old, new)
        return new

    def slot(self, spec: Mapping[str, Any]) -> Slot:
        asked = {name: spec[name] for name in WHERE if name in spec}
        traits = (_trait(name, word) for name, word in sorted(spec["traits"].items()))
        return Slot(spec["takes"], (*conditions(asked), *traits))

    def flavor(self, spec: Mapping[str, Any]) -> Flavor:
        sizes = spec["vcpus"], spec["memory_mb"], spec["disk_gb"]
        return Flavor("", "", *sizes, extra_specs=spec["extra_specs"])


def takes(flavor: Flavor) -> dict[str, int]:
    """What a server of the flavor takes of its host, by resource class, as Nova reckons it."""
    specs = flavor.extra_specs
    explicit = {
        key.removeprefix(RESOURCES): _amount(flavor, key)
        for key in specs
        if key.startswith(RESOURCES)
    }
    found = {"MEMORY_MB": flavor.memory_mb, "DISK_GB": flavor.disk_gb}
    if specs.get("hw:cpu_policy") == "dedicated":
        apart = specs.get("hw:emulator_threads_policy") == "isolate"
        found["PCPU"] = flavor.vcpus + apart
    elif not {"VCPU", "PCPU"} & explicit.keys():
        found["VCPU"] = flavor.vcpus
    return {name: amount for name, amount in {**found, **explicit}.items() if amount}


def _visible(cloud: Cloud, flavor_id: str, caller: Caller) -> Flavor:
    try:
        flavor = cloud.flavors.show(flavor_id)
    except NotFound:
        flavor = None
    if flavor and (flavor.public or caller.is_admin or caller.project_id in flavor.projects):
        return flavor
    raise InvalidInput(f"flavor_id: there is no flavor {flavor_id} that your project may use")


def _check(flavor: Flavor) -> None:
    """Whether what it asks for can be promised."""
    for key in sorted(flavor.extra_specs):
        what = _FOREIGN.get(key) or (_GROUP.match(key) and "groups of resources")
        if what:
            raise _refused(flavor, f"it asks for {what} ({key})")
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
    for key, word in flavor.extra_specs.items():
        if not key.startswith(TRAIT):
            continue
        if word not in ("required", "forbidden"):
            raise _refused(flavor, f"{key} is {word}, neither required nor forbidden")
        yield key.removeprefix(TRAIT), word


def _trait(name: str, word: str) -> Condition:
    wanted = word == "required"

    def passes(host: Host) -> bool:
        return (name in host.traits) is wanted

    return Condition(f"trait {name} {word}", passes)


def _amount(flavor: Flavor, key: str) -> int:
    text = str(flavor.extra_specs[key])
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise _refused(flavor, f"{key} is {text}, no whole number")
    return int(text)


def _refused(flavor: Flavor, why: str) -> InvalidInput:
    return InvalidInput(f"flavor_id: flavor {flavor.name} cannot be reserved: {why}; name another")


def _dump(flavor: Flavor) -> str:
    """The flavor as the answer tells of it."""
    told = {
        "id": flavor.id,
        "name": flavor.name,
        "vcpus": flavor.vcpus,
        "ram": flavor.memory_mb,
        "disk": flavor.disk_gb,
        "extra_specs": dict(flavor.extra_specs),
    }
    return json.dumps(told, sort_keys=True)
