# SPDX-License-Identifier: Apache-2.0
"""`virtual:floatingip`: addresses of a network, created in the owner's project for the lease's
time.

Each enrolled address has one owner at a time. In the cloud it exists from the start of a lease
to its end only, with a tag by which a retry finds it.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from holdfast.jobs.job import NotYet
from holdfast.leases.floatingips import parse
from holdfast.leases.resources.base import Effect, EffectContext, Opening, Quiet, Wish
from holdfast.model import floatingip
from holdfast.model.capacity import CapacitySnapshot
from holdfast.model.errors import Conflict, InvalidInput, NotEnoughAddresses
from holdfast.model.floatingip import FloatingIp
from holdfast.model.lease import Allocation, Lease, Reservation, Window
from holdfast.ports.ledger import Ledger

MOST = 10_000
TAG = "blazar"
#: Key in `Reservation.made`: the addresses' ids in the cloud, from the start for the end.
CLOUD_IDS = "cloud_ids"
#: Seconds until the next check whether an address is free.
_LOOK_S = 1.0


class FloatingIpResource(Quiet):
    type = "virtual:floatingip"

    # Decisions.

    def validate(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        unknown = sorted(spec.keys() - {"network_id", "amount", "required_floatingips"})
        if unknown:
            raise InvalidInput(f"{unknown[0]}: not a parameter of {self.type} reservations")
        network = spec.get("network_id")
        if network in (None, ""):
            raise InvalidInput(f"Missing parameter network_id: reservations of {self.type} need it")
        if not isinstance(network, str) or len(network) > 36:
            raise InvalidInput("Malformed parameter network_id: the id of a network is wanted")
        amount, required = _amount(spec), _required(spec)
        if len(required) > amount:
            raise InvalidInput(
                f"required_floatingips: {len(required)} addresses are more than amount {amount}"
            )
        return {"network_id": network, "amount": amount, "required_floatingips": required}

    def change(self, reservation: Reservation, wanted: Mapping[str, Any]) -> dict[str, Any]:
        old, new = reservation.spec, self.validate({**reservation.spec, **wanted})
        if new["network_id"] != old["network_id"]:
            raise Conflict("network_id: a reservation keeps its network")
        if new["required_floatingips"] not in ([], old["required_floatingips"]):
            raise Conflict("required_floatingips: can only be emptied")
        if new["amount"] < old["amount"] and reservation.status != "pending":
            raise Conflict("amount: can only grow once the lease has started")
        return new

    def plan(self, wish: Wish, stock: CapacitySnapshot, ledger: Ledger) -> tuple[Allocation, ...]:
        spec, enrolled = wish.spec, ledger.floatingips(wish.spec["network_id"])
        _check_required(spec, enrolled)
        floating_ips = [
            floating_ip
            for floating_ip in enrolled
            if floating_ip.thing not in wish.taken and floating_ip.reservable
        ]
        busy = ledger.busy_things(
            [floating_ip.thing for floating_ip in floating_ips], wish.held, besides=wish.lease_id
        )
        chosen = choose(wish, floating_ips, busy)
        return tuple(Allocation(None, wish.held, thing=floating_ip.thing) for floating_ip in chosen)

    def openings(
        self, wish: Wish, until: datetime, stock: CapacitySnapshot, ledger: Ledger, most: int
    ) -> Sequence[Opening]:
        """List openings at once, and at each end of a hold on an address."""
        enrolled = ledger.floatingips(wish.spec["network_id"])
        _check_required(wish.spec, enrolled)
        length = wish.held.end - wish.held.start
        keys = [floating_ip.thing for floating_ip in enrolled]
        holds = ledger.thing_holds(keys, Window(wish.held.start, until + length))
        openings: list[Opening] = []
        for start in moments(wish.held.start, until, holds):
            window = Window(start, start + length)
            busy = {key for key, held in holds if _meet(held, window)}
            free = [floating_ip for floating_ip in enrolled if floating_ip.thing not in busy]
            if len(free) >= wish.spec["amount"] and _all_there(wish.spec, free):
                openings.append(Opening(window, len(free)))
            if len(openings) >= most:
                break
        return openings

    # Effects.

    def start(self, effects: EffectContext, lease: Lease, reservation: Reservation) -> Effect:
        if effects.ledger.now() >= lease.end:  # they may belong to another lease by now
            return Effect(f"lease {lease.name} was over before it could start")
        things = _things(reservation)
        late = effects.ledger.things_not_given_back(things, besides=lease.id)
        if late and _patient(effects, lease):
            raise NotYet(f"lease {', '.join(sorted(late))} has not given its addresses back yet")
        floating_ips = {
            floating_ip.thing: floating_ip
            for floating_ip in effects.ledger.floatingips(_network(reservation))
        }
        refused: list[str] = []
        ids = set(_made(reservation))

        def make(key: str) -> None:
            one = floating_ips[key]
            try:
                made = effects.cloud.addresses.create(
                    one.network_id, one.address, lease.project_id, _tags(reservation)
                )
            except Conflict:
                refused.append(one.address)
            else:
                ids.add(made.id)

        effects.each(make, things)
        if refused:
            return replace(_without(effects, lease, refused), made={CLOUD_IDS: sorted(ids)})
        said = f"{len(things)} floating IPs are there"
        return Effect(said, made={CLOUD_IDS: sorted(ids)}, missing=False)

    def end(self, effects: EffectContext, lease: Lease, reservation: Reservation) -> Effect:
        """Delete the addresses, found by tag or id.

        By tag, because a start may have died before it recorded the ids; by id, because the
        owner may have removed the tag.
        """
        mark, ids = _tags(reservation)[-1], _made(reservation)
        there = effects.cloud.addresses.list()
        ours = [one.id for one in there if mark in one.tags or one.id in ids]
        effects.each(effects.cloud.addresses.delete, ours)
        return Effect(f"{len(ours)} floating IPs are given back")


def choose(wish: Wish, addresses: Sequence[FloatingIp], busy: set[str]) -> list[FloatingIp]:
    """Choose required addresses first, then held ones, then by order; or NotEnoughAddresses."""
    spec = wish.spec
    kept = {allocation.thing for allocation in wish.kept}
    free = [address for address in addresses if address.thing not in busy]
    lost = kept - {one.thing for one in free}
    if wish.is_active and lost:
        raise NotEnoughAddresses(
            "Not enough floating IPs available: the lease is active and"
            f" {len(lost)} of its addresses cannot stay with it in that window"
        )
    gone = [a for a in spec["required_floatingips"] if a not in {one.address for one in free}]
    if gone:
        raise NotEnoughAddresses(
            f"Not enough floating IPs available: {', '.join(gone)} held in that window"
        )
    if len(free) < spec["amount"]:
        raise NotEnoughAddresses(
            f"Not enough floating IPs available: {spec['amount']} asked for; of"
            f" {len(addresses)} in network {spec['network_id']} {len(free)} are free in the window"
        )
    ranks = {one.thing: wish.order(position) for position, one in enumerate(addresses)}

    def rank(one: FloatingIp) -> tuple[bool, bool, float]:
        required = one.address in spec["required_floatingips"]
        return not required, one.thing not in kept, ranks[one.thing]

    return sorted(free, key=rank)[: spec["amount"]]


def moments(
    start: datetime, until: datetime, holds: Sequence[tuple[str, Window]]
) -> list[datetime]:
    """List the times at which more addresses may be free: the start, and each end of a hold."""
    return [start, *sorted({window.end for _, window in holds if start < window.end <= until})]


def _meet(one: Window, other: Window) -> bool:
    return one.start < other.end and other.start < one.end


def _all_there(spec: Mapping[str, Any], free: Sequence[FloatingIp]) -> bool:
    return set(spec["required_floatingips"]) <= {floating_ip.address for floating_ip in free}


def _check_required(spec: Mapping[str, Any], enrolled: Sequence[FloatingIp]) -> None:
    known = {floating_ip.address for floating_ip in enrolled}
    for address in spec["required_floatingips"]:
        if address not in known:
            raise InvalidInput(
                f"required_floatingips: {address} of network {spec['network_id']} cannot be"
                " reserved; the list of floating IPs has those that can"
            )


def _amount(spec: Mapping[str, Any]) -> int:
    value = spec.get("amount")
    if value is None or value == "":
        return 1
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,9}", value.strip()):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidInput("Malformed parameter amount: a whole number is wanted")
    if not 1 <= value <= MOST:
        raise InvalidInput(f"amount: {value} is not between 1 and {MOST}")
    return value


def _required(spec: Mapping[str, Any]) -> list[str]:
    value = spec.get("required_floatingips")
    if value is None or value == "":
        return []
    if not isinstance(value, list):
        raise InvalidInput(
            "Malformed parameter required_floatingips: a list of addresses is wanted"
        )
    if len(value) > MOST:
        raise InvalidInput(f"required_floatingips: more than {MOST} addresses")
    found = [str(parse(one, "required_floatingips")) for one in value]
    if len(set(found)) < len(found):
        raise InvalidInput("required_floatingips: an address is named twice")
    return found


def _things(reservation: Reservation) -> list[str]:
    return [a.thing for a in reservation.allocations if a.thing and floatingip.is_key(a.thing)]


def _made(reservation: Reservation) -> Collection[str]:
    found: Collection[str] = reservation.made.get(CLOUD_IDS, ())
    return found


def _network(reservation: Reservation) -> str:
    return str(reservation.spec["network_id"])


def _tags(reservation: Reservation) -> list[str]:
    """Return the tags of the reservation's addresses; the last tag identifies them."""
    return [TAG, f"reservation:{reservation.id}"]


def _without(effects: EffectContext, lease: Lease, refused: Sequence[str]) -> Effect:
    """Retry while an address exists in the cloud outside any lease; later continue without it."""
    said = f"{', '.join(sorted(refused))}: it is in use already, free it in the cloud"
    if _patient(effects, lease):
        raise NotYet(said, _LOOK_S)
    return Effect(said, missing=True)


def _patient(effects: EffectContext, lease: Lease) -> bool:
    patience = timedelta(seconds=effects.options.server_start_timeout_s)
    began = max(lease.start, lease.created_at or lease.start)  # "now" is the current minute
    return effects.ledger.now() < began + patience
