# SPDX-License-Identifier: Apache-2.0
"""What slots are made of in the cloud, each found again by the reservation's id in its name."""

import contextlib
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace

from holdfast.model.errors import Conflict, NotFound
from holdfast.model.host import normalise
from holdfast.model.lease import Lease, Reservation
from holdfast.nova.names import OWNER, SLOTS, SLOTS_SPEC
from holdfast.ports.cloud import Flavor, Pool
from holdfast.reserve.pools import ensure
from holdfast.reserve.resource import Hands
from holdfast.work.kind import NotYet

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


class Turns:
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


def make_pool(hands: Hands, reservation: Reservation, about: Mapping[str, str]) -> Pool:
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


def make_flavor(hands: Hands, wanted: Flavor, reservation: Reservation) -> None:
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


def group(hands: Hands, lease: Lease, reservation: Reservation) -> str | None:
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


def set_slots(hands: Hands, host: str, name: str, total: int) -> None:
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
