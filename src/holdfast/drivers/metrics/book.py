# SPDX-License-Identifier: Apache-2.0
"""Who is on a host, of what libvirt's lists and events say. Anybody may ask, two threads write: the
one that reads, and libvirt's loop.

A guest that is on its way here is not here yet; one that has left is remembered for a while, with
why, because whoever looks once a second may otherwise never hear of it. Nobody is shown before all
were read once: half of them would look like the others having gone.
"""

import dataclasses
import threading
from typing import Final

from holdfast.ports.measures import RUNNING, Facts, Guest, Roster
from holdfast.ports.metrics import MIGRATED

MOST_LEFT: Final = 1000
#: Why somebody is paused who was never seen running here: he arrives.
_ARRIVING: Final = ("migration", "starting_up")


class Book:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._guests: dict[str, Guest] = {}
        self._defined: dict[str, Facts] = {}
        self._left: dict[str, str] = {}
        self._came: dict[str, str] = {}
        self._ids: dict[str, int] = {}
        self._whole = False
        self._roster: Roster | None = None

    def roster(self) -> Roster:
        """Of anybody, from the first `only` on."""
        if not self._whole:
            return Roster(whole=False)
        roster = self._roster
        if roster is None:
            with self._lock:
                roster = Roster(dict(self._guests), dict(self._defined), dict(self._left))
                self._roster = roster
        return roster

    def knows(self, uuid: str, number: int) -> bool:
        """Whether it was read since it was started (its number is new each time)."""
        return self._ids.get(uuid) == number

    def read(self, uuid: str, number: int, facts: Facts, state: str, reason: str) -> None:
        """As it was read; its number is -1 if it does not run."""
        with self._lock:
            self._roster = None
            if number < 0:
                self._leave(uuid, self._left.get(uuid) or reason or state)
                self._ids[uuid], self._defined[uuid] = number, facts
                return
            if uuid not in self._guests and state != RUNNING and reason in _ARRIVING:
                return  # it is told of again as soon as it runs
            self._ids[uuid], self._defined[uuid] = number, facts
            self._left.pop(uuid, None)
            self._guests[uuid] = Guest(facts, state, reason, self._came.pop(uuid, ""))

    def stands(self, uuid: str, state: str, reason: str) -> None:
        """A state that was asked for or heard of."""
        with self._lock:
            known = self._guests.get(uuid)
            if known is not None and (known.state, known.reason) != (state, reason):
                self._guests[uuid] = dataclasses.replace(known, state=state, reason=reason)
                self._roster = None

    def started(self, uuid: str, reason: str) -> None:
        """Heard of; it is read next."""
        with self._lock:
            if reason == MIGRATED and uuid not in self._guests:
                self._came[uuid] = MIGRATED

    def stopped(self, uuid: str, reason: str) -> None:
        """Heard of: its process has ended."""
        with self._lock:
            self._leave(uuid, reason)

    def balloon(self, uuid: str, kib: int) -> None:
        with self._lock:
            known = self._guests.get(uuid)
            if known is not None:
                facts = dataclasses.replace(known.facts, balloon_kib=kib)
                self._guests[uuid] = dataclasses.replace(known, facts=facts)
                self._roster = None

    def only(self, uuids: set[str]) -> None:
        """All that there are, and all of them have been read."""
        with self._lock:
            self._whole = True
            for uuid in [one for one in self._defined if one not in uuids]:
                self._leave(uuid, self._left.get(uuid) or "gone")
                del self._defined[uuid]
                self._roster = None

    def _leave(self, uuid: str, why: str) -> None:
        self._ids.pop(uuid, None)
        self._came.pop(uuid, None)
        if self._guests.pop(uuid, None) is None:
            return
        self._roster = None
        self._left[uuid] = why
        while len(self._left) > MOST_LEFT:
            del self._left[next(iter(self._left))]
