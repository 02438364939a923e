# SPDX-License-Identifier: Apache-2.0
"""`virtual:server`: a lease on an existing server.

Until the start the server is shelved. At the start it is unshelved: onto an enrolled host where
room is held, or, where none has room, wherever the cloud finds some. At the end it is
snapshotted, stopped, suspended, shelved or deleted, as requested (`on_end`).
"""

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast.jobs.job import NotYet
from holdfast.leases.placement import Need
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
from holdfast.leases.resources.instance_placement import Slot, SlotCapacity, SlotsRequest
from holdfast.model.capacity import CapacitySnapshot
from holdfast.model.errors import (
    Conflict,
    DriverError,
    InvalidInput,
    NotEnoughHosts,
    NotFound,
    ServerLeased,
)
from holdfast.model.host import Host, same, short
from holdfast.model.lease import Allocation, Lease, Reservation, Window
from holdfast.nova.names import OWNER, SERVER, SIZE
from holdfast.ports.cloud import Cloud, Pool, Server
from holdfast.ports.ledger import Ledger
from holdfast.ports.manager import Caller

# The end of a lease: `on_end`, and removal from an enrolled host.
#
# An enrolled host that no lease holds has no servers: the end of the next lease of that host
# deletes all servers there. Therefore a server that a lease brought onto an enrolled host is
# shelved at the latest when all requested actions are done. Every step reads the state first,
# and runs again until the server is in the requested state.


LOG = logging.getLogger(__name__)

ACTIONS = ("snapshot", "stop", "suspend", "shelve", "delete")
SHELVED = frozenset({"SHELVED", "SHELVED_OFFLOADED"})
SHELVABLE = frozenset({"ACTIVE", "SHUTOFF", "SUSPENDED", "PAUSED"})
#: Seconds to retry an action that the cloud accepts and does not do; then the next action
#: follows.
PATIENCE_S = 600.0
_LONGEST_NAME = 180
_EVER = datetime(9999, 1, 1, tzinfo=UTC)


def parse_actions(on_end: object) -> list[str]:
    """Parse the actions in order; InvalidInput for an unknown action."""
    if on_end in (None, ""):
        return []
    many = on_end.split(",") if isinstance(on_end, str) else on_end
    if not isinstance(many, list) or not all(isinstance(action, str) for action in many):
        raise InvalidInput("Malformed parameter on_end: text is wanted, words joined by commas")
    actions = [action.strip() for action in many]
    for action in actions:
        if action not in ACTIONS:
            raise InvalidInput(f"on_end: {action[:40]!r} is none of {', '.join(ACTIONS)}")
    if len(set(actions)) < len(actions):
        raise InvalidInput("on_end: an action is named twice")
    if "delete" in actions[:-1]:
        raise InvalidInput("on_end: nothing can follow delete")
    return actions


def end(effects: EffectContext, lease: Lease, reservation: Reservation) -> str:
    if reservation.status == "deleted":
        return "its end has been"  # the lease is deleted now: later changes by people stay
    pool = find_pool(effects.cloud.pools, reservation.id)
    if pool is not None:
        close_pool(effects.cloud.pools, pool)
    server = show(effects, reservation.spec["server_id"])
    sentence = "the server is gone"
    if server is not None and reservation.status == "pending":
        sentence = _undo(effects, lease, reservation, server, pool)
    elif server is not None:
        sentence = _do(effects, lease, reservation, server, pool)
    if pool is not None:
        effects.each(lambda host: effects.cloud.pools.remove_host(pool.id, host), pool.hosts)
        retire_pool(effects, pool, reservation.id)
    return sentence


def _do(
    effects: EffectContext,
    lease: Lease,
    reservation: Reservation,
    server: Server,
    pool: Pool | None,
) -> str:
    """Run the requested actions in order."""
    actions = parse_actions(reservation.spec["on_end"]) or list(effects.options.server_on_end)
    sentences: list[str] = []
    for action in actions:
        if action == "delete":
            _delete(effects, lease, server)
            return "the server is gone"
        sentences.append(_try(effects, lease, reservation, server, action))
    sentences += _leave(effects, lease, reservation, server, pool)
    return f"server {server.id}: {', '.join(sentences)}"


def _try(
    effects: EffectContext, lease: Lease, reservation: Reservation, server: Server, action: str
) -> str:
    """Run an action permitted by the server's status; NotYet until done."""
    servers, pause_s = effects.cloud.servers, _pause_s(effects, lease)
    if action != "snapshot" and not (server.task_state or server.status in _FROM[action]):
        return f"{action}: {server.status}"
    if _waited_s(effects, lease) > PATIENCE_S:
        LOG.warning("lease %s: server %s: %s failed", lease.id, server.id, action)
        return f"{action} failed, it is {server.status}"
    if action == "snapshot":
        return create_snapshot(effects, server, image(server, reservation), pause_s)
    verbs: dict[str, Callable[[str], None]] = {
        "stop": servers.stop,
        "suspend": servers.suspend,
        "shelve": servers.shelve,
    }
    if not server.task_state:
        act(verbs[action], server.id)
    raise NotYet(f"server {server.id}: {action} is under way", pause_s)


#: Statuses from which each action is possible.
_FROM = {"stop": frozenset({"ACTIVE"}), "suspend": frozenset({"ACTIVE"}), "shelve": SHELVABLE}


def _leave(
    effects: EffectContext,
    lease: Lease,
    reservation: Reservation,
    server: Server,
    pool: Pool | None,
) -> Sequence[str]:
    """Shelve the server off its held host, unless already there before the lease."""
    if pool is None or not _on(server, pool.hosts) or _stayed(lease, reservation, server):
        return ()
    if server.task_state:
        raise NotYet(f"server {server.id}: {server.task_state}", _pause_s(effects, lease))
    if server.status in SHELVED:
        return ("shelved",)
    if server.status not in SHELVABLE:
        LOG.error("server %s is %s on %s: take it away", server.id, server.status, server.host)
        return (f"{server.status} on {server.host}: take it away before the host is reserved",)
    act(effects.cloud.servers.shelve, server.id)
    raise NotYet(f"server {server.id} leaves {server.host}", _pause_s(effects, lease))


def _stayed(lease: Lease, reservation: Reservation, server: Server) -> bool:
    """Whether the server is still on the host from before the lease.

    A server that was shelved first came back by this lease, also to a host that had admitted it
    before.
    """
    at_once = lease.created_at is None or lease.start <= lease.created_at
    was_there = at_once and not reservation.spec["was_shelved"]
    return was_there and _on(server, [reservation.spec["host"] or ""])


def _undo(
    effects: EffectContext,
    lease: Lease,
    reservation: Reservation,
    server: Server,
    pool: Pool | None,
) -> str:
    """Undo a pending lease: restore the server's state, if the cloud has room."""
    if server.task_state:
        raise NotYet(f"server {server.id}: {server.task_state}", _pause_s(effects, lease))
    _leave(effects, lease, reservation, server, pool)
    if server.status not in SHELVED or reservation.spec["was_shelved"]:
        return f"server {server.id} is {server.status}"
    if _wanted_by_others(effects, reservation):
        return f"server {server.id} stays shelved: another lease wants it later"
    act(effects.cloud.servers.unshelve, server.id)
    return f"server {server.id} is given back"


def _wanted_by_others(effects: EffectContext, reservation: Reservation) -> bool:
    """Whether another lease of the server runs or follows; that lease decides its state."""
    own = [a for a in reservation.allocations if a.thing is not None]
    ever = Window(effects.ledger.now(), _EVER)
    holds = effects.ledger.thing_holds([a.thing for a in own if a.thing], ever)
    return any(window not in [a.held for a in own] for _, window in holds)


def _delete(effects: EffectContext, lease: Lease, server: Server) -> None:
    # Delete again a server that is being deleted: this frees a server whose host failed
    # meanwhile.
    act(effects.cloud.servers.delete, server.id)
    raise NotYet(f"server {server.id} is being deleted", _pause_s(effects, lease))


def create_snapshot(effects: EffectContext, server: Server, name: str, pause_s: float = 0.5) -> str:
    """Make an image of this name; NotYet until the server has finished it."""
    if server.task_state:
        raise NotYet(f"server {server.id}: {server.task_state}", pause_s)
    if effects.cloud.servers.images(server.id, name):
        return f"its snapshot is {name}"
    if server.status not in SHELVABLE:
        return f"no snapshot, it is {server.status}"
    act(lambda server_id: effects.cloud.servers.snapshot(server_id, name), server.id)
    raise NotYet(f"server {server.id}: a snapshot is made", pause_s)


def image(server: Server, reservation: Reservation) -> str:
    """Return the image name, unique to this lease of the server; a retry finds it."""
    return f"reserved_{server.name[:_LONGEST_NAME]}_{reservation.id}"


def show(effects: EffectContext, server_id: str) -> Server | None:
    try:
        return effects.cloud.servers.show(server_id)
    except NotFound:
        return None


def act(verb: Callable[[str], object], server_id: str) -> None:
    """Call an action; ignore a missing server, and raise NotYet for a busy server."""
    try:
        verb(server_id)
    except NotFound:
        return
    except Conflict as busy:
        raise NotYet(busy.message, 1.0) from busy


def _on(server: Server, hosts: Sequence[str]) -> bool:
    return any(server.host and host and same(server.host, host) for host in hosts)


def _waited_s(effects: EffectContext, lease: Lease) -> float:
    return (effects.ledger.now() - (lease.updated_at or lease.end)).total_seconds()


def _pause_s(effects: EffectContext, lease: Lease) -> float:
    """Return the pause: longer the longer the end has taken."""
    return min(max(0.5, _waited_s(effects, lease) / 20), 10.0)


REQUESTED = ("server_id", "on_end", "before_end")
_ID = re.compile(r"[0-9A-Za-z-]{1,36}")
#: Closer to the start than this nothing begins that the start would have to wait for.
_CLOSE = timedelta(seconds=1)
#: Seconds until the next check of an action under way.
_POLL_S = 0.5
#: The longest pause between checks whether the earlier lease is over: it may end early.
_REST_S = 600.0


class ServerResource(BaseResource):
    type = "virtual:server"
    arranges = True
    polled = True

    # Decisions.

    def validate(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        unknown = sorted(spec.keys() - set(REQUESTED))
        if unknown:
            raise InvalidInput(f"{unknown[0]}: not a parameter of {self.type} reservations")
        server_id = spec.get("server_id")
        if server_id in (None, ""):
            raise InvalidInput(f"Missing parameter server_id: reservations of {self.type} need it")
        if not isinstance(server_id, str) or not _ID.fullmatch(server_id):
            raise InvalidInput("Malformed parameter server_id: the id of a server is wanted")
        before_end = spec.get("before_end") or ""
        if before_end not in ("", "default", "snapshot"):
            raise InvalidInput("Malformed parameter before_end: one of '', 'default', 'snapshot'")
        on_end = parse_actions(spec.get("on_end"))
        return {"server_id": server_id, "on_end": ",".join(on_end), "before_end": before_end}

    def resolve(self, spec: Mapping[str, Any], cloud: Cloud, caller: Caller) -> dict[str, Any]:
        try:
            server = cloud.servers.show(spec["server_id"])
        except NotFound:
            server = None
        if server is None or not caller.may_see(server.project_id):
            raise InvalidInput(f"server_id: your project has no server {spec['server_id']}")
        if server.status in ("ERROR", "DELETED", "SOFT_DELETED"):
            raise Conflict(f"server_id: server {server.id} is {server.status}; mend it first")
        return {
            **spec,
            "server_id": server.id,
            "server_name": server.name,
            "server_project_id": server.project_id,
            "vcpus": server.vcpus,
            "memory_mb": server.memory_mb,
            "disk_gb": server.disk_gb,
            "host": server.host,
            "was_shelved": server.status in SHELVED,
        }

    def change(self, reservation: Reservation, wanted: Mapping[str, Any]) -> dict[str, Any]:
        requested = {name: reservation.spec[name] for name in REQUESTED}
        valid = self.validate({**requested, **wanted})
        if valid["server_id"] != reservation.spec["server_id"]:
            raise Conflict("server_id: a reservation keeps its server; make another lease")
        return {**reservation.spec, **valid}

    def plan(
        self, wish: Wish, snapshot: CapacitySnapshot, ledger: Ledger
    ) -> tuple[Allocation, ...]:
        key = resource_key(wish.spec)
        if key in wish.taken or ledger.busy_things([key], wish.held, besides=wish.lease_id):
            raise ServerLeased(
                f"server {wish.spec['server_id']} is leased already for some of that time"
            )
        allocations = (Allocation(None, wish.held, thing=key),)
        host = home(wish, snapshot, now=ledger.now())
        if host is None:
            return allocations
        return (*allocations, Allocation(host.id, wish.held, slots=1, takes=takes(wish.spec)))

    def need(self, wish: Wish, lost: Sequence[Allocation]) -> Need:
        """State the need for room on another host; the server itself stays with the reservation."""
        slot = Slot(takes(wish.spec))
        return Need(wish.held, len(lost), slot.size, slot.conditions(1))

    def openings(
        self, wish: Wish, until: datetime, snapshot: CapacitySnapshot, ledger: Ledger, most: int
    ) -> Sequence[Opening]:
        """List the windows in which no other lease holds the server."""
        length = wish.held.end - wish.held.start
        span = Window(wish.held.start, until + length)
        holds = [window for _, window in ledger.thing_holds([resource_key(wish.spec)], span)]
        starts = {wish.held.start, *(window.end for window in holds if window.end <= until)}
        openings = [
            Opening(Window(start, start + length), 1)
            for start in sorted(starts)
            if not any(window.start < start + length and start < window.end for window in holds)
        ]
        return openings[:most]

    # Effects.

    def arrange(self, effects: EffectContext, lease: Lease, reservation: Reservation) -> Effect:
        left = lease.start - effects.ledger.now()
        server_id = reservation.spec["server_id"]
        if left <= _CLOSE:
            return Effect(f"server {server_id} is left as it is until the start")
        server = show(effects, server_id)
        if server is None:
            return Effect(f"server {server_id} is gone", missing=True)
        if rest_s := _anothers_s(effects, lease, reservation):
            rest_s = min(rest_s, _REST_S, (left - _CLOSE).total_seconds())
            raise NotYet(f"server {server_id} is in another lease until then", rest_s)
        if server.task_state or server.status == "BUILD":
            raise NotYet(f"server {server_id}: {server.task_state or 'building'}", _POLL_S)
        if server.status in SHELVED:
            return Effect(f"server {server_id} is shelved until the start")
        if server.status not in SHELVABLE:
            return Effect(f"server {server_id} is {server.status} and cannot be shelved")
        act(effects.cloud.servers.shelve, server_id)
        raise NotYet(f"server {server_id} is being shelved", _POLL_S)

    def prepare(self, effects: EffectContext, lease: Lease, reservation: Reservation) -> Effect:
        if not reservation.hosts():
            return Effect("no room is held for the server: nothing to prepare")
        with effects.pool(reservation.id, _metadata(reservation)):
            return Effect(f"pool {reservation.id} stands")

    def start(self, effects: EffectContext, lease: Lease, reservation: Reservation) -> Effect:
        if effects.ledger.now() >= lease.end:
            return Effect(f"lease {lease.name} was over before it could start")
        server_id = reservation.spec["server_id"]
        server = show(effects, server_id)
        if server is None:
            return Effect(f"server {server_id} is gone", missing=True)
        late = _late(effects, lease, reservation)
        if late:
            return _later(effects, lease, f"lease {', '.join(sorted(late))} has not ended yet")
        for host in reservation.hosts():
            with effects.pool(reservation.id, _metadata(reservation)) as pool_id:
                effects.cloud.pools.add_host(pool_id, host)
        if server.task_state or server.status == "BUILD":
            return _later(effects, lease, f"server {server_id}: {server.task_state or 'building'}")
        if server.status == "ERROR":
            return Effect(f"server {server_id} is in ERROR: mend it", missing=True)
        if server.status not in SHELVED:
            # Not where: the owner reads this sentence, and Nova shows hosts to administrators
            # only.
            return Effect(f"server {server_id} is {server.status}", missing=False)
        if _server_waited_s(effects, lease) > effects.options.server_start_timeout_s:
            sentence = f"server {server_id} stays shelved: no host is open to it and has room"
            return Effect(sentence, missing=True)
        _unshelve(effects, lease, reservation)
        raise NotYet(f"server {server_id} is being unshelved", _server_pause_s(effects, lease))

    def before_end(self, effects: EffectContext, lease: Lease, reservation: Reservation) -> Effect:
        action = reservation.spec["before_end"]
        if action == "default":
            action = effects.options.before_end
        if action != "snapshot":
            return Effect("no action before the end")
        server = show(effects, reservation.spec["server_id"])
        if server is None:
            return Effect("the server is gone")
        # A prolonged lease gets another snapshot before its new end.
        name = f"{image(server, reservation)}_{lease.end:%Y%m%dT%H%M}"
        return Effect(create_snapshot(effects, server, name))

    def end(self, effects: EffectContext, lease: Lease, reservation: Reservation) -> Effect:
        return Effect(end(effects, lease, reservation))

    def gone(
        self, effects: EffectContext, reservations: Sequence[Reservation]
    ) -> Mapping[str, str]:
        projects = {reservation.spec["server_project_id"] for reservation in reservations}
        servers = effects.cloud.servers
        there = {server.id for name in projects for server in servers.list(project_id=name)}
        ids = {reservation.id: reservation.spec["server_id"] for reservation in reservations}
        return {name: f"server {id_}" for name, id_ in ids.items() if id_ not in there}


def resource_key(spec: Mapping[str, Any]) -> str:
    """Return the key of the server among resources with a single owner at a time."""
    return f"server:{spec['server_id']}"


def takes(spec: Mapping[str, Any]) -> dict[str, int]:
    """Return the server's resources by resource class."""
    sizes = {"VCPU": spec["vcpus"], "MEMORY_MB": spec["memory_mb"], "DISK_GB": spec["disk_gb"]}
    return {name: amount for name, amount in sizes.items() if amount}


def home(wish: Wish, snapshot: CapacitySnapshot, now: datetime) -> Host | None:
    """Return the enrolled host on which to hold room; None: the cloud will find a host, or not.

    A server that keeps running when its lease starts stays on its host. A shelved server goes
    to a host that others use in part, so that whole hosts stay free.
    """
    request = SlotsRequest(Slot(takes(wish.spec)), 1, None, wish.held, order=wish.order)
    kept = [a.host_id for a in wish.kept if a.host_id is not None]
    if wish.is_active:
        return _kept(SlotCapacity(request, snapshot, []), snapshot, kept)
    if wish.reservation is None and wish.held.start <= now and not wish.spec["was_shelved"]:
        sits = _named(wish.spec["host"], snapshot)
        return _tightest(SlotCapacity(request, snapshot, sits), sits)
    slots = SlotCapacity(request, snapshot)
    had = [snapshot.hosts[host_id] for host_id in kept if host_id in snapshot.hosts]
    return _tightest(slots, had) or _tightest(slots, slots.candidates(1, {}))


def _named(host: str | None, snapshot: CapacitySnapshot) -> Sequence[Host]:
    """Return the enrolled host of this name, if any.

    Called for every server that is leased while it runs; the prefix test is cheap and rules out
    most hosts.
    """
    if not host:
        return ()
    first = short(host)
    return snapshot.matching(
        ("named", host),
        lambda enrolled: enrolled.name.startswith(first) and same(enrolled.name, host),
    )


def _tightest(slots: SlotCapacity, hosts: Sequence[Host]) -> Host | None:
    fitting = [host for host in hosts if slots.suits(host) and slots.room(host)]
    order = slots.request.order
    return min(
        fitting,
        key=lambda host: (not slots.carries(host), slots.room(host), order(host.id)),
        default=None,
    )


def _kept(slots: SlotCapacity, snapshot: CapacitySnapshot, ids: Sequence[int]) -> Host | None:
    """Return the host of an active lease, or refuse the change."""
    for host_id in ids:
        host = snapshot.hosts.get(host_id)
        if host is None or not slots.room(host):
            raise NotEnoughHosts(
                "Not enough hosts available: the lease is active and the host of its server is"
                " held by others in that window",
                busy=list(ids),
            )
        return host
    return None


def _metadata(reservation: Reservation) -> dict[str, str]:
    """Return the pool's metadata; the scheduler checks the server's own project, also for
    admins."""
    spec = reservation.spec
    size = ",".join(str(spec[name]) for name in ("vcpus", "memory_mb", "disk_gb"))
    return {OWNER: spec["server_project_id"], SERVER: spec["server_id"], SIZE: size}


def _anothers_s(effects: EffectContext, lease: Lease, reservation: Reservation) -> float:
    """Return the seconds until another lease releases the server; 0: none holds it."""
    now, keys = effects.ledger.now(), [resource_key(reservation.spec)]
    # This lease's hold begins later.
    holds = effects.ledger.thing_holds(keys, Window(now, now + _CLOSE))
    if holds:
        return max((window.end - now).total_seconds() for _, window in holds) + _POLL_S
    return _POLL_S if effects.ledger.things_not_given_back(keys, besides=lease.id) else 0.0


def _late(effects: EffectContext, lease: Lease, reservation: Reservation) -> set[str]:
    """Return earlier leases that may still act on the server, or delete all servers on its host."""
    keys = [resource_key(reservation.spec)]
    late = set(effects.ledger.things_not_given_back(keys, besides=lease.id))
    ids = reservation.host_ids()
    if ids:
        late |= set(effects.ledger.not_given_back(ids, besides=lease.id, whole=True))
    return late


def _later(effects: EffectContext, lease: Lease, why: str) -> Effect:
    """Raise NotYet within the patience; afterwards continue without the server."""
    if _server_waited_s(effects, lease) <= effects.options.server_start_timeout_s:
        raise NotYet(why, _server_pause_s(effects, lease))
    return Effect(f"{why}: the lease runs without it", missing=True)


def _unshelve(effects: EffectContext, lease: Lease, reservation: Reservation) -> None:
    """Unshelve onto the held host; after half the patience, onto any host."""
    server_id, hosts = reservation.spec["server_id"], reservation.hosts()
    half = effects.options.server_start_timeout_s / 2
    if not hosts or _server_waited_s(effects, lease) > half:
        act(effects.cloud.servers.unshelve, server_id)
        return
    _make_way(effects, hosts[0])
    try:
        act(lambda id_: effects.cloud.servers.unshelve(id_, hosts[0]), server_id)
    except DriverError as cannot:
        if cannot.retryable:
            raise
        LOG.warning("%s; its scheduler chooses", cannot.message)
        act(effects.cloud.servers.unshelve, server_id)


def _make_way(effects: EffectContext, host: str) -> None:
    if not effects.options.preemptibles:
        return
    servers = effects.cloud.servers
    gone = [server.id for server in servers.list(host=host) if server.preemptible]
    if gone:
        effects.each(lambda server_id: act(servers.delete, server_id), gone)
        raise NotYet(f"{len(gone)} servers make way", _POLL_S)


def _server_waited_s(effects: EffectContext, lease: Lease) -> float:
    """Return the seconds since the start or the creation; "now" means the current minute."""
    began = max(lease.start, lease.created_at or lease.start)
    return (effects.ledger.now() - began).total_seconds()


def _server_pause_s(effects: EffectContext, lease: Lease) -> float:
    """Return the pause: longer the longer the start has taken."""
    return min(max(0.5, _server_waited_s(effects, lease) / 10), 10.0)
