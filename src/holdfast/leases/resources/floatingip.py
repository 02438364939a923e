# SPDX-License-Identifier: Apache-2.0
"""`virtual:floatingip`: addresses of a network, created in the owner's project for the lease's
time.

Each enrolled address has one owner at a time. In the cloud it exists from the start of a lease
to its end only, with a tag by which a retry finds it.
"""

import ipaddress
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from holdfast.jobs.job import NotYet
from holdfast.leases.resources.base import BaseResource, Effect, EffectContext, Opening, Wish
from holdfast.model import floatingip
from holdfast.model.capacity import CapacitySnapshot
from holdfast.model.errors import Conflict, InvalidInput, NotEnoughAddresses, NotFound
from holdfast.model.floatingip import FloatingIp
from holdfast.model.lease import Allocation, Lease, Reservation, Window
from holdfast.ports.cloud import Cloud, Subnet
from holdfast.ports.ledger import Ledger

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

MOST = 10_000
TAG = "blazar"
#: Key in `Reservation.made`: the addresses' ids in the cloud, from the start for the end.
CLOUD_IDS = "cloud_ids"
#: Seconds until the next check whether an address is free.
_POLL_S = 1.0


class FloatingIpResource(BaseResource):
    type = "virtual:floatingip"
    polled = True

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

    def plan(
        self, wish: Wish, snapshot: CapacitySnapshot, ledger: Ledger
    ) -> tuple[Allocation, ...]:
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
        self, wish: Wish, until: datetime, snapshot: CapacitySnapshot, ledger: Ledger, most: int
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
            busy = {key for key, held in holds if held.overlaps(window)}
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
        keys = _things(reservation)
        late = effects.ledger.things_not_given_back(keys, besides=lease.id)
        if late and _patient(effects, lease):
            raise NotYet(f"lease {', '.join(sorted(late))} has not given its addresses back yet")
        floating_ips = {
            floating_ip.thing: floating_ip
            for floating_ip in effects.ledger.floatingips(_network(reservation))
        }
        refused: list[str] = []
        ids, tags = set(_made(reservation)), _tags(reservation)

        def make(key: str) -> None:
            floating_ip = floating_ips[key]
            try:
                made = effects.cloud.addresses.create(
                    floating_ip.network_id, floating_ip.address, lease.project_id, tags
                )
            except Conflict:
                refused.append(floating_ip.address)
            else:
                ids.add(made.id)

        effects.each(make, keys)
        if refused:
            return replace(_without(effects, lease, refused), made={CLOUD_IDS: sorted(ids)})
        sentence = f"{len(keys)} floating IPs are there"
        return Effect(sentence, made={CLOUD_IDS: sorted(ids)}, missing=False)

    def end(self, effects: EffectContext, lease: Lease, reservation: Reservation) -> Effect:
        """Delete the addresses, found by tag or id.

        By tag, because a start may have died before it recorded the ids; by id, because the
        owner may have removed the tag.
        """
        mark, ids = _tags(reservation)[-1], _made(reservation)
        there = effects.cloud.addresses.list()
        ours = [address.id for address in there if mark in address.tags or address.id in ids]
        effects.each(effects.cloud.addresses.delete, ours)
        return Effect(f"{len(ours)} floating IPs are given back")

    def gone(
        self, effects: EffectContext, reservations: Sequence[Reservation]
    ) -> Mapping[str, str]:
        there, lost = effects.cloud.addresses.list(), dict[str, str]()
        for reservation in reservations:
            mark, ids = _tags(reservation)[-1], _made(reservation)
            ours = [address for address in there if mark in address.tags or address.id in ids]
            if (count := len(_things(reservation)) - len(ours)) > 0:
                lost[reservation.id] = f"{count} floating IPs"
        return lost


def choose(wish: Wish, addresses: Sequence[FloatingIp], busy: set[str]) -> list[FloatingIp]:
    """Choose required addresses first, then held ones, then by order; or NotEnoughAddresses."""
    spec = wish.spec
    kept = {allocation.thing for allocation in wish.kept}
    free = [address for address in addresses if address.thing not in busy]
    lost = kept - {address.thing for address in free}
    if wish.is_active and lost:
        raise NotEnoughAddresses(
            "Not enough floating IPs available: the lease is active and"
            f" {len(lost)} of its addresses cannot stay with it in that window"
        )
    there = {address.address for address in free}
    gone = [text for text in spec["required_floatingips"] if text not in there]
    if gone:
        raise NotEnoughAddresses(
            f"Not enough floating IPs available: {', '.join(gone)} held in that window"
        )
    if len(free) < spec["amount"]:
        raise NotEnoughAddresses(
            f"Not enough floating IPs available: {spec['amount']} asked for; of"
            f" {len(addresses)} in network {spec['network_id']} {len(free)} are free in the window"
        )
    ranks = {address.thing: wish.order(position) for position, address in enumerate(addresses)}

    def rank(address: FloatingIp) -> tuple[bool, bool, float]:
        required = address.address in spec["required_floatingips"]
        return not required, address.thing not in kept, ranks[address.thing]

    return sorted(free, key=rank)[: spec["amount"]]


def moments(
    start: datetime, until: datetime, holds: Sequence[tuple[str, Window]]
) -> list[datetime]:
    """List the times at which more addresses may be free: the start, and each end of a hold."""
    return [start, *sorted({window.end for _, window in holds if start < window.end <= until})]


def _all_there(spec: Mapping[str, Any], free: Sequence[FloatingIp]) -> bool:
    return set(spec["required_floatingips"]) <= {floating_ip.address for floating_ip in free}


def _check_required(spec: Mapping[str, Any], enrolled: Sequence[FloatingIp]) -> None:
    reservable = {floating_ip.address for floating_ip in enrolled}
    for address in spec["required_floatingips"]:
        if address not in reservable:
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
    addresses = [str(parse(text, "required_floatingips")) for text in value]
    if len(set(addresses)) < len(addresses):
        raise InvalidInput("required_floatingips: an address is named twice")
    return addresses


def _things(reservation: Reservation) -> list[str]:
    return [a.thing for a in reservation.allocations if a.thing and floatingip.is_key(a.thing)]


def _made(reservation: Reservation) -> Collection[str]:
    ids: Collection[str] = reservation.made.get(CLOUD_IDS, ())
    return ids


def _network(reservation: Reservation) -> str:
    return str(reservation.spec["network_id"])


def _tags(reservation: Reservation) -> list[str]:
    """Return the tags of the reservation's addresses; the last tag identifies them."""
    return [TAG, f"reservation:{reservation.id}"]


def _without(effects: EffectContext, lease: Lease, refused: Sequence[str]) -> Effect:
    """Retry while an address exists in the cloud outside any lease; later continue without it."""
    sentence = f"{', '.join(sorted(refused))}: it is in use already, free it in the cloud"
    if _patient(effects, lease):
        raise NotYet(sentence, _POLL_S)
    return Effect(sentence, missing=True)


def _patient(effects: EffectContext, lease: Lease) -> bool:
    patience = timedelta(seconds=effects.options.server_start_timeout_s)
    began = max(lease.start, lease.created_at or lease.start)  # "now" is the current minute
    return effects.ledger.now() < began + patience


# Enrol and withdraw floating IPs: changes rows only, and reads subnets from the cloud.


class FloatingIps:
    def __init__(self, ledger: Ledger, cloud: Cloud) -> None:
        self._ledger = ledger
        self._cloud = cloud

    def enrol(self, network_id: str, address: str) -> str:
        """Enrol a floating IP for reservation; return its id."""
        wanted = parse(address, "floating_ip_address")
        try:
            subnets = self._cloud.addresses.subnets(network_id)
        except NotFound as unknown:
            raise NotFound(f"Object with {{'network_id': {network_id!r}}} not found") from unknown
        subnet = home(subnets, network_id, wanted)
        floating_ip = FloatingIp.of(network_id, subnet.id, str(wanted))
        self._ledger.enrol_floatingip(floating_ip)
        return floating_ip.id

    def withdraw(self, floatingip_id: str) -> None:
        self._ledger.withdraw_floatingip(floatingip_id)


def parse(text: object, field: str) -> IpAddress:
    """Parse an IP address in any common notation; InvalidInput names the field."""
    try:
        if not isinstance(text, str):
            raise ValueError
        address = ipaddress.ip_address(text.strip())
    except ValueError:
        raise InvalidInput(f"{field}: {str(text)[:60]!r} is not an IP address") from None
    if isinstance(address, ipaddress.IPv6Address) and address.scope_id:
        raise InvalidInput(f"{field}: {address} has a zone, which no floating IP can have")
    return address


def home(subnets: Sequence[Subnet], network_id: str, wanted: IpAddress) -> Subnet:
    """Return the subnet of the address; InvalidInput if the address cannot be reserved.

    The cloud hands out addresses of its allocation pools, and could assign one to another
    project at any time.
    """
    for subnet in subnets:
        net = ipaddress.ip_network(subnet.cidr, strict=False)
        if wanted not in net:
            continue
        why = _unfit(subnet, net, wanted)
        if why:
            raise InvalidInput(f"floating_ip_address: {wanted} {why} of subnet {subnet.id}")
        return subnet
    ranges = ", ".join(subnet.cidr for subnet in subnets) or "none"
    raise InvalidInput(
        f"floating_ip_address: {wanted} is of no subnet of network {network_id} ({ranges})"
    )


def _unfit(
    subnet: Subnet, net: ipaddress.IPv4Network | ipaddress.IPv6Network, wanted: IpAddress
) -> str | None:
    if subnet.gateway and ipaddress.ip_address(subnet.gateway) == wanted:
        return "is the gateway"
    if any(_within(wanted, first, last) for first, last in subnet.pools):
        return "lies in an allocation pool, choose one outside the pools"
    # Too small to have a network and a broadcast address.
    whole = net.prefixlen >= net.max_prefixlen - 1
    if not whole and wanted == net.network_address:
        return "is the network address"
    if not whole and net.version == 4 and wanted == net.broadcast_address:
        return "is the broadcast address"
    return None


def _within(wanted: IpAddress, first: str, last: str) -> bool:
    low, high = ipaddress.ip_address(first), ipaddress.ip_address(last)
    return low.version == wanted.version and int(low) <= int(wanted) <= int(high)
