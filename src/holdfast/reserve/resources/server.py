# SPDX-License-Identifier: Apache-2.0
"""`virtual:server`: a lease on one server that exists.

Until the start the server is shelved, then it is unshelved: onto an enrolled host where room is
held for it, or, where none has room, wherever the cloud finds some. At the end it is snapshotted,
stopped, suspended, shelved, deleted, as asked (`server_end`).
"""

import logging
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from holdfast.model.caller import Caller
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
from holdfast.model.stock import Stock
from holdfast.nova.names import OWNER, SERVER, SIZE
from holdfast.ports.cloud import Cloud
from holdfast.ports.ledger import Ledger
from holdfast.reserve.mend_need import Need
from holdfast.reserve.resource import Effect, Hands, Opening, Quiet, Wish
from holdfast.reserve.resources import server_end
from holdfast.reserve.resources.server_end import SHELVABLE, SHELVED, show
from holdfast.reserve.resources.slots_plan import Look, Slot, SlotsRequest
from holdfast.work.kind import NotYet

LOG = logging.getLogger(__name__)

ASKED = ("server_id", "on_end", "before_end")
_ID = re.compile(r"[0-9A-Za-z-]{1,36}")
#: So close to the start nothing is begun that the start would have to wait for.
_CLOSE = timedelta(seconds=1)
#: How soon to look again whether something that is under way is done.
_LOOK_S = 0.5
#: How seldom, at the most, whether the lease before is over: it may end before its time.
_REST_S = 600.0


class ServerResource(Quiet):
    type = "virtual:server"
    arranges = True

    # decide

    def validate(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        unknown = sorted(spec.keys() - set(ASKED))
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
        on_end = server_end.words(spec.get("on_end"))
        return {"server_id": server_id, "on_end": ",".join(on_end), "before_end": before_end}

    def look(self, spec: Mapping[str, Any], cloud: Cloud, caller: Caller) -> dict[str, Any]:
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
        asked = {name: reservation.spec[name] for name in ASKED}
        valid = self.validate({**asked, **wanted})
        if valid["server_id"] != reservation.spec["server_id"]:
            raise Conflict("server_id: a reservation keeps its server; make another lease")
        return {**reservation.spec, **valid}

    def plan(self, wish: Wish, stock: Stock, ledger: Ledger) -> tuple[Allocation, ...]:
        key = thing(wish.spec)
        if key in wish.taken or ledger.busy_things([key], wish.held, besides=wish.lease_id):
            raise ServerLeased(
                f"server {wish.spec['server_id']} is leased already for some of that time"
            )
        held = (Allocation(None, wish.held, thing=key),)
        host = home(wish, stock, now=ledger.now())
        if host is None:
            return held
        return (*held, Allocation(host.id, wish.held, slots=1, takes=takes(wish.spec)))

    def need(self, wish: Wish, lost: Sequence[Allocation]) -> Need:
        """Room elsewhere; the server itself stays the reservation's."""
        slot = Slot(takes(wish.spec))
        return Need(wish.held, len(lost), slot.size, slot.conditions(1))

    def openings(
        self, wish: Wish, until: datetime, stock: Stock, ledger: Ledger, most: int
    ) -> Sequence[Opening]:
        """As soon as nobody else has the server."""
        length = wish.held.end - wish.held.start
        span = Window(wish.held.start, until + length)
        holds = [held for _, held in ledger.thing_holds([thing(wish.spec)], span)]
        starts = {wish.held.start, *(held.end for held in holds if held.end <= until)}
        found = [
            Opening(Window(start, start + length), 1)
            for start in sorted(starts)
            if not any(held.start < start + length and start < held.end for held in holds)
        ]
        return found[:most]

    # act

    def arrange(self, hands: Hands, lease: Lease, reservation: Reservation) -> Effect:
        left = lease.start - hands.ledger.now()
        server_id = reservation.spec["server_id"]
        if left <= _CLOSE:
            return Effect(f"server {server_id} is left as it is until the start")
        server = show(hands, server_id)
        if server is None:
            return Effect(f"server {server_id} is gone", missing=True)
        if rest_s := _anothers_s(hands, lease, reservation):
            rest_s = min(rest_s, _REST_S, (left - _CLOSE).total_seconds())
            raise NotYet(f"server {server_id} is in another lease until then", rest_s)
        if server.task_state or server.status == "BUILD":
            raise NotYet(f"server {server_id}: {server.task_state or 'building'}", _LOOK_S)
        if server.status in SHELVED:
            return Effect(f"server {server_id} is shelved until the start")
        if server.status not in SHELVABLE:
            return Effect(f"server {server_id} is {server.status} and cannot be shelved")
        server_end.act(hands.cloud.servers.shelve, server_id)
        raise NotYet(f"server {server_id} is being shelved", _LOOK_S)

    def prepare(self, hands: Hands, lease: Lease, reservation: Reservation) -> Effect:
        if not reservation.hosts():
            return Effect("no room is held for the server: nothing to prepare")
        with hands.pool(reservation.id, _metadata(reservation)):
            return Effect(f"pool {reservation.id} stands")

    def start(self, hands: Hands, lease: Lease, reservation: Reservation) -> Effect:
        if hands.ledger.now() >= lease.end:
            return Effect(f"lease {lease.name} was over before it could start")
        server_id = reservation.spec["server_id"]
        server = show(hands, server_id)
        if server is None:
            return Effect(f"server {server_id} is gone", missing=True)
        late = _late(hands, lease, reservation)
        if late:
            return _later(hands, lease, f"lease {', '.join(sorted(late))} has not ended yet")
        for host in reservation.hosts():
            with hands.pool(reservation.id, _metadata(reservation)) as pool_id:
                hands.cloud.pools.add_host(pool_id, host)
        if server.task_state or server.status == "BUILD":
            return _later(hands, lease, f"server {server_id}: {server.task_state or 'building'}")
        if server.status == "ERROR":
            return Effect(f"server {server_id} is in ERROR: mend it", missing=True)
        if server.status not in SHELVED:
            # not where: its owner reads this, and Nova tells only administrators
            return Effect(f"server {server_id} is {server.status}", missing=False)
        if _waited_s(hands, lease) > hands.options.server_start_patience_s:
            said = f"server {server_id} stays shelved: no host is open to it and has room"
            return Effect(said, missing=True)
        _unshelve(hands, lease, reservation)
        raise NotYet(f"server {server_id} is being unshelved", _pause_s(hands, lease))

    def before_end(self, hands: Hands, lease: Lease, reservation: Reservation) -> Effect:
        action = reservation.spec["before_end"]
        if action == "default":
            action = hands.options.before_end
        if action != "snapshot":
            return Effect("nothing asked for before the end")
        server = show(hands, reservation.spec["server_id"])
        if server is None:
            return Effect("the server is gone")
        # One that is prolonged gets another before its new end.
        name = f"{server_end.image(server, reservation)}_{lease.end:%Y%m%dT%H%M}"
        return Effect(server_end.snapshot(hands, server, name))

    def end(self, hands: Hands, lease: Lease, reservation: Reservation) -> Effect:
        return Effect(server_end.end(hands, lease, reservation))


def thing(spec: Mapping[str, Any]) -> str:
    """The server's key among the things that have one owner at a time."""
    return f"server:{spec['server_id']}"


def takes(spec: Mapping[str, Any]) -> dict[str, int]:
    """What the server takes of a host."""
    sizes = {"VCPU": spec["vcpus"], "MEMORY_MB": spec["memory_mb"], "DISK_GB": spec["disk_gb"]}
    return {name: amount for name, amount in sizes.items() if amount}


def home(wish: Wish, stock: Stock, now: datetime) -> Host | None:
    """The enrolled host where room is held; None: the cloud will find one, or not.

    A server that runs on when its lease starts stays where it is. One that is shelved goes to a
    host of which others have a part already, so that whole ones stay whole.
    """
    request = SlotsRequest(Slot(takes(wish.spec)), 1, None, wish.held, order=wish.order)
    kept = [a.host_id for a in wish.kept if a.host_id is not None]
    if wish.is_active:
        return _kept(Look(request, stock, []), stock, kept)
    if wish.reservation is None and wish.held.start <= now and not wish.spec["was_shelved"]:
        sits = _named(wish.spec["host"], stock)
        return _tightest(Look(request, stock, sits), sits)
    look = Look(request, stock)
    had = [stock.hosts[one] for one in kept if one in stock.hosts]
    return _tightest(look, had) or _tightest(look, look.candidates(1, {}))


def _named(host: str | None, stock: Stock) -> Sequence[Host]:
    """The enrolled host of that name, if it is one. Asked for every server that is leased as it
    runs: most hosts are told apart by their first letters."""
    if not host:
        return ()
    first = short(host)
    return stock.matching(
        ("named", host), lambda one: one.name.startswith(first) and same(one.name, host)
    )


def _tightest(look: Look, hosts: Sequence[Host]) -> Host | None:
    found = [host for host in hosts if look.suits(host) and look.room(host)]
    order = look.request.order
    return min(
        found,
        key=lambda host: (not look.carries(host), look.room(host), order(host.id)),
        default=None,
    )


def _kept(look: Look, stock: Stock, ids: Sequence[int]) -> Host | None:
    """An active lease stays on its host, or is not changed."""
    for host_id in ids:
        host = stock.hosts.get(host_id)
        if host is None or not look.room(host):
            raise NotEnoughHosts(
                "Not enough hosts available: the lease is active and the host of its server is"
                " held by others in that window",
                busy=list(ids),
            )
        return host
    return None


def _metadata(reservation: Reservation) -> dict[str, str]:
    """The scheduler goes by the server's own project, also when an admin leased it."""
    spec = reservation.spec
    size = ",".join(str(spec[name]) for name in ("vcpus", "memory_mb", "disk_gb"))
    return {OWNER: spec["server_project_id"], SERVER: spec["server_id"], SIZE: size}


def _anothers_s(hands: Hands, lease: Lease, reservation: Reservation) -> float:
    """How long another lease will have the server, or takes to let go of it; 0: none has it."""
    now, keys = hands.ledger.now(), [thing(reservation.spec)]
    holds = hands.ledger.thing_holds(keys, Window(now, now + _CLOSE))  # ours begins later
    if holds:
        return max((held.end - now).total_seconds() for _, held in holds) + _LOOK_S
    return _LOOK_S if hands.ledger.things_not_given_back(keys, besides=lease.id) else 0.0


def _late(hands: Hands, lease: Lease, reservation: Reservation) -> set[str]:
    """Leases before ours that would still act on the server, or delete all that is on its host."""
    keys = [thing(reservation.spec)]
    late = set(hands.ledger.things_not_given_back(keys, besides=lease.id))
    ids = reservation.host_ids()
    if ids:
        late |= set(hands.ledger.not_given_back(ids, besides=lease.id, whole=True))
    return late


def _later(hands: Hands, lease: Lease, why: str) -> Effect:
    """Wait for it as long as there is patience, then go on without."""
    if _waited_s(hands, lease) <= hands.options.server_start_patience_s:
        raise NotYet(why, _pause_s(hands, lease))
    return Effect(f"{why}: the lease runs without it", missing=True)


def _unshelve(hands: Hands, lease: Lease, reservation: Reservation) -> None:
    """Onto the host that is held; anywhere, if that one has not taken it for long."""
    server_id, hosts = reservation.spec["server_id"], reservation.hosts()
    half = hands.options.server_start_patience_s / 2
    if not hosts or _waited_s(hands, lease) > half:
        server_end.act(hands.cloud.servers.unshelve, server_id)
        return
    _make_way(hands, hosts[0])
    try:
        server_end.act(lambda one: hands.cloud.servers.unshelve(one, hosts[0]), server_id)
    except DriverError as cannot:
        if cannot.retryable:
            raise
        LOG.warning("%s; its scheduler chooses", cannot.message)
        server_end.act(hands.cloud.servers.unshelve, server_id)


def _make_way(hands: Hands, host: str) -> None:
    if not hands.options.preemptibles:
        return
    servers = hands.cloud.servers
    gone = [one.id for one in servers.list(host=host) if one.preemptible]
    if gone:
        hands.each(lambda one: server_end.act(servers.delete, one), gone)
        raise NotYet(f"{len(gone)} servers make way", _LOOK_S)


def _waited_s(hands: Hands, lease: Lease) -> float:
    """Since its start, or since it was made: "now" is the minute we are in."""
    began = max(lease.start, lease.created_at or lease.start)
    return (hands.ledger.now() - began).total_seconds()


def _pause_s(hands: Hands, lease: Lease) -> float:
    """The longer it has taken, the rarer the looks."""
    return min(max(0.5, _waited_s(hands, lease) / 10), 10.0)
