# SPDX-License-Identifier: Apache-2.0
"""`physical:host`: whole hosts, moved from the free pool into a pool of the reservation and back.

A host is at all times in at least one of the two pools, so that no ordinary server can slip onto it:
it joins the new pool before it leaves the old one.
"""

from collections.abc import Collection, Mapping
from typing import Any

from holdfast.model import expression
from holdfast.model.errors import InvalidInput, NotEnoughHosts, NotFound
from holdfast.model.lease import Allocation, Lease, Reservation, Window
from holdfast.ports.cloud import Server
from holdfast.ports.ledger import Ledger
from holdfast.reserve.pools import OWNER, ensure
from holdfast.reserve.plan import HostRequest, Refusal, choose
from holdfast.reserve.resource import Hands
from holdfast.work.kind import NotYet

MOST = 100_000


class HostResource:
    type = "physical:host"

    # decide

    def validate(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        for name in ("min", "max"):
            if spec.get(name) in (None, ""):
                raise InvalidInput(f"Missing parameter {name}: reservations of {self.type} need it")
        low, high = _count(spec, "min"), _count(spec, "max")
        if low > high:
            raise InvalidInput(f"min: {low} is more than max {high}; the range is empty")
        before_end = spec.get("before_end") or ""
        if before_end not in ("", "default", "snapshot"):
            raise InvalidInput("Malformed parameter before_end: one of '', 'default', 'snapshot'")
        texts = {name: _text(spec, name) for name in _EXPRESSIONS}
        for name, text in texts.items():
            expression.parse(text, name)
        return {"min": low, "max": high, "before_end": before_end, **texts}

    def plan(
        self,
        spec: Mapping[str, Any],
        held: Window,
        ledger: Ledger,
        *,
        lease: Lease | None = None,
        reservation: Reservation | None = None,
        taken: Collection[int] = (),
    ) -> tuple[Allocation, ...]:
        where = expression.both(*(expression.parse(spec[n], n) for n in _EXPRESSIONS))
        request = HostRequest(
            low=spec["min"],
            high=spec["max"],
            where=where,
            keep=reservation.host_ids() if reservation else (),
            must_keep=bool(reservation and reservation.status == "active"),
        )
        hosts = ledger.free_hosts(held, besides=lease.id if lease else None, keys=where.keys)
        answer = choose(request, hosts, taken)
        if isinstance(answer, Refusal):
            raise NotEnoughHosts(f"Not enough hosts available: {answer.sentence}")
        return tuple(Allocation(host_id, held) for host_id in answer.host_ids)

    # act

    def prepare(self, hands: Hands, lease: Lease, reservation: Reservation) -> str:
        ensure(hands.cloud.pools, reservation.id, {OWNER: lease.project_id})
        return f"pool {reservation.id} stands"

    def start(self, hands: Hands, lease: Lease, reservation: Reservation) -> str:
        pool = ensure(hands.cloud.pools, reservation.id, {OWNER: lease.project_id})
        free = ensure(hands.cloud.pools, hands.freepool, {})
        names = _names(hands, reservation)

        def move(name: str) -> None:
            hands.cloud.pools.add_host(pool.id, name)
            hands.cloud.pools.remove_host(free.id, name)

        hands.each(move, names)
        return f"{', '.join(names) or 'no host'} joined pool {reservation.id}"

    def before_end(self, hands: Hands, lease: Lease, reservation: Reservation) -> str:
        action = reservation.spec.get("before_end") or ""
        if action == "default":
            action = hands.options.before_end
        if action != "snapshot":
            return "nothing asked for before the end"
        servers = _servers(hands, _names(hands, reservation))
        hands.each(lambda server_id: _snapshot(hands, servers[server_id]), servers)
        return f"{len(servers)} servers have their snapshot"

    def end(self, hands: Hands, lease: Lease, reservation: Reservation) -> str:
        pool = hands.cloud.pools.find(reservation.id)
        if pool is None:
            return f"pool {reservation.id} is gone"
        servers = _servers(hands, pool.hosts)
        if servers:
            going = [s.id for s in servers.values() if s.task_state != "deleting"]
            hands.each(lambda server_id: _delete(hands, server_id), going)
            raise NotYet(f"{len(servers)} servers are being deleted", 0.5)
        free = ensure(hands.cloud.pools, hands.freepool, {})

        def back(name: str) -> None:
            hands.cloud.pools.add_host(free.id, name)
            hands.cloud.pools.remove_host(pool.id, name)

        hands.each(back, pool.hosts)
        hands.cloud.pools.delete(pool.id)
        return f"{', '.join(pool.hosts) or 'no host'} back in {hands.freepool}"


_EXPRESSIONS = ("hypervisor_properties", "resource_properties")


def _count(spec: Mapping[str, Any], name: str) -> int:
    value = spec[name]
    if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidInput(f"Malformed parameter {name}: a whole number is wanted")
    if not 1 <= value <= MOST:
        raise InvalidInput(f"{name}: {value} is not between 1 and {MOST}")
    return value


def _text(spec: Mapping[str, Any], name: str) -> str:
    value = spec.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidInput(f"Malformed parameter {name}: a JSON expression as text is wanted")
    return value


def _names(hands: Hands, reservation: Reservation) -> list[str]:
    hosts = hands.ledger.hosts(reservation.host_ids())
    return [hosts[i].service_host for i in reservation.host_ids()]


def _servers(hands: Hands, names: Collection[str]) -> dict[str, Server]:
    """All servers on these hosts, by id."""
    found = hands.calls.map(lambda name: hands.cloud.servers.list(host=name), names)
    return {server.id: server for servers in found for server in servers}


def _snapshot(hands: Hands, server: Server) -> None:
    """One image per server; a second look finds it by name and server."""
    name = f"reserved_{server.name}"
    if not hands.cloud.servers.images(server.id, name):
        hands.cloud.servers.snapshot(server.id, name)


def _delete(hands: Hands, server_id: str) -> None:
    try:
        hands.cloud.servers.delete(server_id)
    except NotFound:
        return  # gone meanwhile, as wished
