# SPDX-License-Identifier: Apache-2.0
"""A client of a race: it wishes, changes its mind, meddles, repairs, and notes each answer."""

from __future__ import annotations

import itertools
import random
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from holdfast.model.errors import (
    Conflict,
    DriverError,
    HoldfastError,
    InvalidInput,
    NotFound,
    StaleWrite,
    Unavailable,
)
from holdfast.model.lease import Lease, LeaseChange, NewLease, NewReservation
from holdfast.ports.manager import Caller
from tests.processes import PATIENCE_S
from tests.races.journal import Entry

T = TypeVar("T")

HOT_HOURS = 8
ADMIN = Caller("root", "admin", ("admin",), is_admin=True)
KINDS = ("physical:host", "physical:host", "virtual:instance", "virtual:floatingip")
NETWORK = "0e7a0000-0000-4000-8000-000000000001"
#: Vcpus, memory, disk of slots that do not divide a host evenly.
SIZES = ((1, 1024, 10), (3, 2048, 20), (4, 12288, 30), (5, 4096, 150))


@dataclass(frozen=True)
class Known:
    """Which leases are there, as far as anybody was told: a byte for each, shared by all processes,
    so that colleagues need not guess."""

    marks: Any
    each: int  # how many leases a client can make

    def note(self, lease_id: str, there: bool) -> None:
        client, number = int(lease_id[:8], 16), int(lease_id[-12:], 16)
        self.marks[client * self.each + number] = there

    def some(self, dice: random.Random) -> str | None:
        marks = bytes(self.marks)
        at = marks.find(1, dice.randrange(len(marks)))
        at = marks.find(1) if at < 0 else at
        return None if at < 0 else lease_id(*divmod(at, self.each))


@dataclass
class Mine:
    """A lease as its owner knows it."""

    id: str
    start: datetime
    end: datetime
    kind: str
    amount: int


@dataclass
class Client:
    number: int
    commands: Any
    ledger: Any
    base: datetime
    dice: random.Random
    known: Known
    entries: list[Entry] = field(default_factory=list)
    mine: list[Mine] = field(default_factory=list)
    made: int = 0

    def __post_init__(self) -> None:
        self.caller = Caller(f"user-{self.number}", "races", ("member",))

    def attempt(self) -> None:
        verbs: list[tuple[int, Callable[[], None]]] = [(55, self.create)]
        if self.mine:
            verbs += [(16, self.move), (8, self.resize), (13, self.delete)]
        if self.made:
            verbs += [(4, self.meddle), (8, self.repair)]
        weights, actions = zip(*verbs, strict=True)
        self.dice.choices(actions, weights)[0]()

    def create(self) -> None:
        kind = self.dice.choice(KINDS)
        start, end = self._window()
        amount, spec = self._wish(kind)
        lease = Mine(lease_id(self.number, self.made), start, end, kind, amount)
        self.made += 1
        wanted = NewLease(lease.id, "rival", start, end, None, (NewReservation(kind, spec),))
        if self._tell("create", lease, lambda: self.commands.create_lease(self.caller, wanted)):
            self.mine.append(lease)

    def move(self) -> None:
        """Another end, another start, or both."""
        lease = self.dice.choice(self.mine)
        start, end = lease.start, lease.end
        if self.dice.random() < 0.7:
            end = max(start + timedelta(hours=1), end + timedelta(hours=self.dice.randint(-2, 3)))
        else:
            by = timedelta(hours=self.dice.choice((-2, -1, 1, 2)))
            start, end = start + by, end + by
        change = LeaseChange(start=start, end=end)
        self._update(lease, change, Mine(lease.id, start, end, lease.kind, lease.amount))

    def resize(self) -> None:
        lease = self.dice.choice(self.mine)
        amount = max(1, lease.amount + self.dice.choice((-1, 1)))
        found = self._look(lease.id)
        if found is None:
            self.mine.remove(lease)  # somebody meddled
            return
        reservation = found.reservations[0].id
        wish = (
            {"min": amount, "max": amount} if lease.kind == "physical:host" else {"amount": amount}
        )
        change = LeaseChange(reservations={reservation: wish})
        # A resize sends no dates, so its yes says nothing of them: they may have been meddled with.
        after = Mine(lease.id, lease.start, lease.end, lease.kind, amount)
        self._update(lease, change, after, window=False)

    def delete(self) -> None:
        lease = self.mine.pop(self.dice.randrange(len(self.mine)))
        self._tell("delete", lease, lambda: self.commands.delete_lease(self.caller, lease.id))

    def meddle(self) -> None:
        """Change or delete what a colleague of the same project made."""
        found = self._somebodys()
        if found is None:
            return
        end = found.end + timedelta(hours=self.dice.choice((-1, 1)))
        lease = Mine(found.id, found.start, end, "", 0)
        if self.dice.random() < 0.3:
            self._tell("delete", lease, lambda: self.commands.delete_lease(self.caller, lease.id))
        elif end > found.start:
            change = LeaseChange(start=found.start, end=end)
            self._tell(
                "meddle", lease, lambda: self.commands.update_lease(self.caller, lease.id, change)
            )

    def repair(self) -> None:
        """A host of some lease is not to be used any more: put another in its place."""
        found = self._with_hosts()
        if found is None:
            return
        reservation = found.reservations[0]
        hosts = reservation.host_ids()
        lease = Mine(found.id, found.start, found.end, "", 0)
        call = (ADMIN, found.id, reservation.id, self.dice.choice(hosts))
        self._tell("repair", lease, lambda: self.commands.replace_host(*call), window=False)

    def _with_hosts(self) -> Lease | None:
        looks = (self._somebodys() for _look in range(8))
        return next((found for found in looks if found and found.reservations[0].host_ids()), None)

    def _somebodys(self) -> Lease | None:
        lease_id = self.known.some(self.dice)
        return None if lease_id is None else self._look(lease_id)

    def _look(self, lease_id: str) -> Lease | None:
        """None when it is gone, or when it went while it was read: then it has lost its parts."""
        try:
            found: Lease = patiently(lambda: self.ledger.lease(lease_id))
        except NotFound:
            return None
        return found if found.reservations else None

    def _update(self, lease: Mine, change: LeaseChange, after: Mine, window: bool = True) -> None:
        def action() -> object:
            return self.commands.update_lease(self.caller, lease.id, change)

        if self._tell("update", after, action, window):
            self.mine[self.mine.index(lease)] = after

    def _tell(
        self, verb: str, lease: Mine, action: Callable[[], object], window: bool = True
    ) -> bool:
        """Do it, and write down what was answered; whether that was yes."""
        began = time.monotonic()
        said = ""
        try:
            patiently(done_before(action, NotFound) if verb == "delete" else action)
            answer = "yes"
        except Exception as error:  # whatever comes, it is written down
            answer, said = _judged(error)
            if isinstance(error, InvalidInput) and verb in ("repair", "meddle"):
                answer = "no"  # what it was to change has changed meanwhile
            if answer == "no" and isinstance(error, NotFound):
                self.mine = [one for one in self.mine if one.id != lease.id]
        if answer == "yes":
            self.known.note(lease.id, verb != "delete")
        told = window and verb != "delete" and answer == "yes"
        times = (_text(lease.start), _text(lease.end)) if told else None
        took = time.monotonic() - began
        self.entries.append(Entry(self.number, verb, lease.id, answer, said, times, took))
        return answer == "yes"

    def _window(self) -> tuple[datetime, datetime]:
        """Nine of ten in the same few hours."""
        if self.dice.random() < 0.9:
            start = self.base + timedelta(hours=self.dice.randrange(HOT_HOURS))
        else:
            start = self.base + timedelta(hours=HOT_HOURS + self.dice.randrange(24 * 14))
        return start, start + timedelta(hours=self.dice.randint(1, 4))

    def _wish(self, kind: str) -> tuple[int, dict[str, Any]]:
        amount = self.dice.randint(1, 3)
        if kind == "physical:host":
            properties = {"hypervisor_properties": "", "resource_properties": ""}
            return amount, {"min": amount, "max": amount, **properties}
        if kind == "virtual:floatingip":
            return amount, {"network_id": NETWORK, "amount": amount, "required_floatingips": []}
        amount = self.dice.randint(1, 6)
        vcpus, memory_mb, disk_gb = self.dice.choice(SIZES)
        return amount, {
            "vcpus": vcpus,
            "memory_mb": memory_mb,
            "disk_gb": disk_gb,
            "amount": amount,
            "affinity": self.dice.choice((None, None, True, False)),
            "resource_properties": "",
        }


def lease_id(client: int, number: int) -> str:
    """Ids that everybody can guess, so that colleagues can meddle."""
    return f"{client:08x}-0000-4000-8000-{number:012x}"


def patiently(action: Callable[[], T]) -> T:
    """What was not answered is asked again, as clients do; the same twice is once. SQLite's writers
    wait by polling, so on a busy machine one of them may be refused several times."""
    deadline = time.monotonic() + 3 * PATIENCE_S
    while True:
        try:
            return action()
        except (Unavailable, DriverError) as error:
            passing = isinstance(error, Unavailable) or error.retryable
            if not passing or time.monotonic() > deadline:
                raise
        time.sleep(0.5)


def done_before(action: Callable[[], object], so: type[Exception]) -> Callable[[], object]:
    """Who repeats a delete and hears that nothing is there, or an enrolment and hears that it is
    there already, did it the first time."""
    tries = itertools.count()

    def again() -> object:
        first = next(tries) == 0
        try:
            return action()
        except so:
            if first:
                raise
            return None

    return again


def _text(when: datetime) -> str:
    return when.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def _judged(error: Exception) -> tuple[str, str]:
    said = f"{type(error).__name__}: {error}"
    if isinstance(error, Unavailable):
        return "unsure", said
    if type(error) is Conflict and "too many others" in error.message:
        return "beaten", said
    if isinstance(error, StaleWrite) or not isinstance(error, HoldfastError):
        return "defect", "".join(traceback.format_exception(error))
    expected = isinstance(error, NotFound | Conflict)
    return ("no" if expected else "defect"), said
