# SPDX-License-Identifier: Apache-2.0
"""What becomes of a leased server at the end: `on_end`, and the way off an enrolled host.

An enrolled host that nobody holds carries no server: what is there when the next lease of the host
ends is deleted. So a server that our lease brought onto one is shelved at the latest when all that
was asked for is done. Every step looks first, and runs again until the server is as wished.
"""

import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from holdfast.model.errors import Conflict, InvalidInput, NotFound
from holdfast.model.host import same
from holdfast.model.lease import Lease, Reservation, Window
from holdfast.ports.cloud import Pool, Server
from holdfast.reserve.pools import shut
from holdfast.reserve.resource import Hands
from holdfast.work.kind import NotYet

LOG = logging.getLogger(__name__)

ACTIONS = ("snapshot", "stop", "suspend", "shelve", "delete")
SHELVED = frozenset({"SHELVED", "SHELVED_OFFLOADED"})
SHELVABLE = frozenset({"ACTIVE", "SHUTOFF", "SUSPENDED", "PAUSED"})
#: So long is an action tried that the cloud takes in and does not do; then the next one is.
PATIENCE_S = 600.0
_LONGEST_NAME = 180
_EVER = datetime(9999, 1, 1, tzinfo=UTC)


def words(on_end: object) -> list[str]:
    """The actions in their order; InvalidInput."""
    if on_end in (None, ""):
        return []
    many = on_end.split(",") if isinstance(on_end, str) else on_end
    if not isinstance(many, list) or not all(isinstance(word, str) for word in many):
        raise InvalidInput("Malformed parameter on_end: text is wanted, words joined by commas")
    found = [word.strip() for word in many]
    for word in found:
        if word not in ACTIONS:
            raise InvalidInput(f"on_end: {word[:40]!r} is none of {', '.join(ACTIONS)}")
    if len(set(found)) < len(found):
        raise InvalidInput("on_end: an action is named twice")
    if "delete" in found[:-1]:
        raise InvalidInput("on_end: nothing can follow delete")
    return found


def end(hands: Hands, lease: Lease, reservation: Reservation) -> str:
    if reservation.status == "deleted":
        return "its end has been"  # the lease is deleted now: what people did since is theirs
    pool = hands.cloud.pools.find(reservation.id)
    if pool is not None:
        shut(hands.cloud.pools, pool)
    server = show(hands, reservation.spec["server_id"])
    said = "the server is gone"
    if server is not None and reservation.status == "pending":
        said = _undo(hands, lease, reservation, server, pool)
    elif server is not None:
        said = _do(hands, lease, reservation, server, pool)
    if pool is not None:
        hands.each(lambda host: hands.cloud.pools.remove_host(pool.id, host), pool.hosts)
        hands.known.forget(reservation.id)  # deleted when everybody has heard that it is shut
    return said


def _do(
    hands: Hands, lease: Lease, reservation: Reservation, server: Server, pool: Pool | None
) -> str:
    """What was asked for, one after the other."""
    asked = words(reservation.spec["on_end"]) or list(hands.options.server_on_end)
    said: list[str] = []
    for word in asked:
        if word == "delete":
            _delete(hands, lease, server)
            return "the server is gone"
        said.append(_try(hands, lease, reservation, server, word))
    said += _leave(hands, lease, reservation, server, pool)
    return f"server {server.id}: {', '.join(said)}"


def _try(hands: Hands, lease: Lease, reservation: Reservation, server: Server, word: str) -> str:
    """One action, if it fits the server's state; NotYet until it is done."""
    servers, pause_s = hands.cloud.servers, _pause_s(hands, lease)
    if word != "snapshot" and not (server.task_state or server.status in _FROM[word]):
        return f"{word}: {server.status}"
    if _waited_s(hands, lease) > PATIENCE_S:
        LOG.warning("lease %s: server %s: %s failed", lease.id, server.id, word)
        return f"{word} failed, it is {server.status}"
    if word == "snapshot":
        return snapshot(hands, server, image(server, reservation), pause_s)
    verbs: dict[str, Callable[[str], None]] = {
        "stop": servers.stop,
        "suspend": servers.suspend,
        "shelve": servers.shelve,
    }
    if not server.task_state:
        act(verbs[word], server.id)
    raise NotYet(f"server {server.id}: {word} is under way", pause_s)


#: The states from which each leads somewhere.
_FROM = {"stop": frozenset({"ACTIVE"}), "suspend": frozenset({"ACTIVE"}), "shelve": SHELVABLE}


def _leave(
    hands: Hands, lease: Lease, reservation: Reservation, server: Server, pool: Pool | None
) -> Sequence[str]:
    """Off the host that was held for it, unless it has been there all the time."""
    if pool is None or not _on(server, pool.hosts) or _stayed(lease, reservation, server):
        return ()
    if server.task_state:
        raise NotYet(f"server {server.id}: {server.task_state}", _pause_s(hands, lease))
    if server.status in SHELVED:
        return ("shelved",)
    if server.status not in SHELVABLE:
        LOG.error("server %s is %s on %s: take it away", server.id, server.status, server.host)
        return (f"{server.status} on {server.host}: take it away before the host is reserved",)
    act(hands.cloud.servers.shelve, server.id)
    raise NotYet(f"server {server.id} leaves {server.host}", _pause_s(hands, lease))


def _stayed(lease: Lease, reservation: Reservation, server: Server) -> bool:
    """Whether it is where it was when it was leased, as it ran. One that was shelved first came
    back by our lease, also to a host where something else had let it in before."""
    at_once = lease.created_at is None or lease.start <= lease.created_at
    was_there = at_once and not reservation.spec["was_shelved"]
    return was_there and _on(server, [reservation.spec["host"] or ""])


def _undo(
    hands: Hands, lease: Lease, reservation: Reservation, server: Server, pool: Pool | None
) -> str:
    """The lease never started: its owner gets the server back as it was, if the cloud has room."""
    if server.task_state:
        raise NotYet(f"server {server.id}: {server.task_state}", _pause_s(hands, lease))
    _leave(hands, lease, reservation, server, pool)
    if server.status not in SHELVED or reservation.spec["was_shelved"]:
        return f"server {server.id} is {server.status}"
    if _wanted_by_others(hands, reservation):
        return f"server {server.id} stays shelved: another lease wants it later"
    act(hands.cloud.servers.unshelve, server.id)
    return f"server {server.id} is given back"


def _wanted_by_others(hands: Hands, reservation: Reservation) -> bool:
    """Whether another lease of the server runs or is to come: it says how the server is then."""
    own = [a for a in reservation.allocations if a.thing is not None]
    ever = Window(hands.ledger.now(), _EVER)
    holds = hands.ledger.thing_holds([a.thing for a in own if a.thing], ever)
    return any(held not in [a.held for a in own] for _, held in holds)


def _delete(hands: Hands, lease: Lease, server: Server) -> None:
    # Again one that is being deleted: it sets one free whose host has died over it.
    act(hands.cloud.servers.delete, server.id)
    raise NotYet(f"server {server.id} is being deleted", _pause_s(hands, lease))


def snapshot(hands: Hands, server: Server, name: str, pause_s: float = 0.5) -> str:
    """One image of that name; NotYet until the server is done with it."""
    if server.task_state:
        raise NotYet(f"server {server.id}: {server.task_state}", pause_s)
    if hands.cloud.servers.images(server.id, name):
        return f"its snapshot is {name}"
    if server.status not in SHELVABLE:
        return f"no snapshot, it is {server.status}"
    act(lambda one: hands.cloud.servers.snapshot(one, name), server.id)
    raise NotYet(f"server {server.id}: a snapshot is made", pause_s)


def image(server: Server, reservation: Reservation) -> str:
    """Found again by this name, which no other lease of the server gives."""
    return f"reserved_{server.name[:_LONGEST_NAME]}_{reservation.id}"


def show(hands: Hands, server_id: str) -> Server | None:
    try:
        return hands.cloud.servers.show(server_id)
    except NotFound:
        return None


def act(verb: Callable[[str], object], server_id: str) -> None:
    """Gone is fine, the next look finds out; so is one that is busy since we looked."""
    try:
        verb(server_id)
    except NotFound:
        return
    except Conflict as busy:
        raise NotYet(busy.message, 1.0) from busy


def _on(server: Server, hosts: Sequence[str]) -> bool:
    return any(server.host and host and same(server.host, host) for host in hosts)


def _waited_s(hands: Hands, lease: Lease) -> float:
    return (hands.ledger.now() - (lease.updated_at or lease.end)).total_seconds()


def _pause_s(hands: Hands, lease: Lease) -> float:
    """The longer the end has taken the rarer the looks."""
    return min(max(0.5, _waited_s(hands, lease) / 20), 10.0)
