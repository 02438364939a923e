# SPDX-License-Identifier: Apache-2.0
"""Stories for the crash test: what each resource type needs, asks for, and leaves in the world.

A story is a list of acts; each can be repeated, as a client repeats what was not answered. How a
story must end is how it ends in peace: `World` is all that can be seen of the cloud and of the
lease, with ids that differ from run to run replaced.
"""

import contextlib
import json
import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from holdfast.model.errors import Conflict, NotFound
from holdfast.model.lease import LeaseChange, NewLease, NewReservation
from holdfast.ports.cloud import Flavor
from tests.leases.house import ADMIN, ANN, House
from tests.simclock import EPOCH

LEASE = "11111111-1111-4111-8111-111111111111"
START, END = EPOCH + timedelta(minutes=10), EPOCH + timedelta(minutes=130)
LATER = END + timedelta(minutes=20)
NEXT_DAY = EPOCH + timedelta(days=1)
HOSTS = ("cmp-1", "cmp-2", "cmp-3")
NETWORK = "0e7a0000-0000-4000-8000-000000000001"
Act = Callable[[House], None]


@dataclass(frozen=True)
class Kind:
    """A resource type: its ground, what is asked for and then asked for more, its users."""

    type: str
    ground: Act
    spec: Callable[[House], dict[str, Any]]
    more: Mapping[str, Any] = field(default_factory=dict)
    use: Act = lambda house: None


@dataclass(frozen=True)
class Story:
    name: str
    before: Sequence[Act]  # in peace, once
    acts: Sequence[Act]  # at whose points somebody dies
    status: str | None  # of the lease, when all is over; None: there is none


# the ground each type stands on


def hosts(house: House) -> None:
    house.enrol(*HOSTS)


def hosts_and_a_flavor(house: House) -> None:
    hosts(house)
    house.m.cloud.flavors.create(Flavor("small", "m1.small", 2, 2048, 20))


def addresses(house: House) -> None:
    house.sim.add_subnet(NETWORK, "192.0.2.0/24", "192.0.2.1", ())
    for last in (11, 12, 13):
        house.m.commands.enrol_floatingip(ADMIN, NETWORK, f"192.0.2.{last}")


def hosts_and_a_server(house: House) -> None:
    hosts(house)
    house.add("elsewhere")
    house.boot("web", "elsewhere")


def _server_id(house: House) -> str:
    (found,) = (s["id"] for s in house.sim.world()["servers"] if s["name"] == "web")
    return str(found)


def guests(house: House) -> None:
    """An owner's servers on every host that the lease has; they take a moment to delete."""
    (reservation,) = house.lease(LEASE).reservations
    flavor = "" if reservation.resource_type == "physical:host" else reservation.id
    for host in reservation.hosts():
        house.sim.boot(f"on-{host}", "alpha", host, 1, 512, 1, flavor)
    house.sim.change(delete_s=0.4)


_SLOTS = {"vcpus": 2, "memory_mb": 1024, "disk_gb": 10, "resource_properties": ""}
KINDS = {
    "host": Kind(
        "physical:host",
        hosts,
        lambda house: {"min": 2, "max": 2, "before_end": "snapshot"},
        {"min": 3, "max": 3},
        guests,
    ),
    "instance": Kind(
        "virtual:instance",
        hosts,
        lambda house: {**_SLOTS, "amount": 2, "affinity": False},
        {"amount": 3},
        guests,
    ),
    "flavor": Kind(
        "flavor:instance",
        hosts_and_a_flavor,
        lambda house: {"flavor_id": "small", "amount": 2, "affinity": True},
        {"amount": 3},
        guests,
    ),
    "floatingip": Kind(
        "virtual:floatingip",
        addresses,
        lambda house: {"network_id": NETWORK, "amount": 2, "required_floatingips": []},
        {"amount": 3},
    ),
    "server": Kind(
        "virtual:server",
        hosts_and_a_server,
        lambda house: {
            "server_id": _server_id(house),
            "on_end": "snapshot,stop",
            "before_end": "snapshot",
        },
    ),
}


# acts


def book(kind: Kind) -> Act:
    def act(house: House) -> None:
        asked = (NewReservation(kind.type, kind.spec(house)),)
        house.m.commands.create_lease(ANN, NewLease(LEASE, "lab", START, END, None, asked))

    return act


def until_prepared(house: House) -> None:
    house.run(until=max(START - timedelta(seconds=30), house.clock.now()))


def until_active(house: House) -> None:
    house.run(until=max(START, house.clock.now()))


def until_ended(house: House) -> None:
    house.run(until=max(LATER + timedelta(minutes=5), house.clock.now() + timedelta(minutes=2)))


def a_moment(house: House) -> None:
    house.run(minutes=2)


def change(kind: Kind, **dates: Any) -> Act:
    """Once or again: the same update twice is one."""

    def act(house: House) -> None:
        (reservation,) = house.lease(LEASE).reservations
        wish = {reservation.id: dict(kind.more)} if kind.more else {}
        asked = LeaseChange(reservations=wish, **dates)
        house.m.commands.update_lease(ANN, LEASE, asked)

    return act


def delete(house: House) -> None:
    with contextlib.suppress(NotFound):  # the first try came through
        house.delete(LEASE)


def enrol_one(house: House) -> None:
    """It may be enrolled already: the first try came through, its answer did not."""
    try:
        house.m.commands.enrol_host(ADMIN, "cmp-4", {})
    except Conflict as error:
        assert "enrolled already" in error.message, error


def add_one(house: House) -> None:
    house.add("cmp-4")


def withdraw_one(house: House) -> None:
    with contextlib.suppress(NotFound):  # gone already, as wished
        host = house.m.store.ledger.host("cmp-4")
        house.m.commands.withdraw_host(ADMIN, host.id)


def fail_one(house: House) -> None:
    """One of its hosts, and the same again after a crash."""
    if failed := [one.name for one in house.m.store.host_status.watched() if not one.status.usable]:
        assert failed == [_FAILS]
    else:
        house.stands(_FAILS, "down")
    house.run(seconds=30)


def return_one(house: House) -> None:
    house.stands(_FAILS, "up")
    house.run(seconds=30)


#: Every lease of these stories holds it.
_FAILS = "cmp-1"


def _of(name: str, kind: Kind) -> list[Story]:
    """The life of a lease of one type, in parts; each begins where peace left off."""
    booked = [kind.ground, book(kind)]
    active = [*booked, until_active, a_moment]
    prolong = change(kind, end=LATER)
    return [
        Story(f"{name}-start", [kind.ground], [book(kind), until_active, a_moment], "ACTIVE"),
        Story(
            f"{name}-move",
            booked,
            # to its end: who dies just before the start is found only after it
            [change(kind, start=START, end=LATER), until_prepared, until_active, a_moment],
            "ACTIVE",
        ),
        Story(f"{name}-grow", active, [prolong, a_moment], "ACTIVE"),
        Story(f"{name}-end", [*active, kind.use], [until_ended], "TERMINATED"),
        Story(f"{name}-delete_prepared", [*booked, until_prepared], [delete, a_moment], None),
        Story(f"{name}-delete_active", [*active, kind.use], [delete, a_moment], None),
    ]


def _repaired(name: str) -> list[Story]:
    kind = KINDS[name]
    booked = [kind.ground, book(kind)]
    acts = [fail_one, return_one]
    return [
        Story(f"{name}-repair_pending", booked, acts, "PENDING"),
        Story(f"{name}-repair_active", [*booked, until_active, a_moment], acts, "ACTIVE"),
    ]


STORIES = (
    Story("enrol", [add_one], [enrol_one, a_moment], None),
    Story("withdraw", [add_one, enrol_one], [withdraw_one, a_moment], None),
    *(story for name, kind in KINDS.items() for story in _of(name, kind) if name != "flavor"),
    *(story for name in ("host", "instance") for story in _repaired(name)),
    Story(
        "instance-defer",
        [KINDS["instance"].ground, book(KINDS["instance"]), until_prepared],
        [change(KINDS["instance"], start=NEXT_DAY, end=NEXT_DAY + timedelta(hours=1)), a_moment],
        "PENDING",
    ),
    # but for its beginning it is the same as slots of so many vCPUs
    *(one for one in _of("flavor", KINDS["flavor"]) if one.name in ("flavor-start", "flavor-end")),
)


# what there is to see

_SEEN = {
    "pools": "SELECT p.name, p.metadata, (SELECT group_concat(h.name) FROM (SELECT h.name FROM"
    " pool_hosts m JOIN hosts h ON h.id = m.host_id WHERE m.pool_id = p.id ORDER BY h.name) h)"
    " FROM pools p",
    "flavors": "SELECT id, name, vcpus, memory_mb, disk_gb, public, extra_specs FROM flavors",
    "access": "SELECT flavor_id, project_id FROM flavor_access",
    "slots": "SELECT h.name, i.resource_class, i.total FROM inventories i"
    " JOIN hosts h ON h.id = i.host_id",
    "groups": "SELECT name, policy, project_id FROM server_groups",
    "addresses": "SELECT address, project_id, tags FROM addresses",
    "servers": "SELECT s.name, s.status, s.task_state, h.name FROM servers s"
    " LEFT JOIN hosts h ON h.id = s.host_id",
    "images": "SELECT i.name, s.name FROM images i LEFT JOIN servers s ON s.id = i.server_id",
}

#: What may happen once to each thing in the world, however often it is asked for.
ONCE = (
    "pools.create",
    "flavors.create",
    "slots.create_group",
    "addresses.create",
    "servers.unshelve",
    "servers.stop",
    "servers.delete",
    "addresses.delete",
    "flavors.delete",
    "slots.delete_group",
)


def world(house: House) -> dict[str, Any]:
    """All that can be seen of cloud and book, without what differs from run to run."""
    with contextlib.closing(sqlite3.connect(house.path / "cloud.db")) as db:
        seen: dict[str, Any] = {
            name: sorted(map(repr, db.execute(query))) for name, query in _SEEN.items()
        }
    seen["hosts"] = sorted((h.name, h.reservable) for h in house.m.store.ledger.enrolled())
    try:
        lease = house.lease(LEASE)
    except NotFound:
        return seen
    seen["lease"] = (lease.status, str(lease.start), str(lease.end), house.events(LEASE))
    seen["reservations"] = [
        (r.status, r.missing_resources, dict(r.spec), sorted(map(_plain, r.allocations)))
        for r in lease.reservations
    ]
    text = json.dumps(seen)
    for position, reservation in enumerate(lease.reservations):
        for form in (reservation.id, reservation.id.replace("-", "_")):
            text = text.replace(form, f"<reservation {position}>")
    return _without_groups(json.loads(text))


def _plain(allocation: Any) -> str:
    """Since when differs: who was killed begins later."""
    return repr((allocation.host, allocation.held.end, allocation.slots, dict(allocation.takes)))


_GROUP = re.compile(r'(?<="affinity_id": ")[0-9a-f-]{36}')


def _without_groups(seen: dict[str, Any]) -> dict[str, Any]:
    """The id of a server group is in what its flavor and its pool say of it."""
    for name in ("pools", "flavors"):
        seen[name] = [_GROUP.sub("<group>", row) for row in seen[name]]
    return seen


def twice(house: House, since: int) -> dict[tuple[str, str], int]:
    """What happened more than once to the same thing."""
    effects = Counter((e.call, e.subject) for e in house.sim.effects()[since:])
    return {one: n for one, n in effects.items() if one[0] in ONCE and n > 1}
