# SPDX-License-Identifier: Apache-2.0
"""Listens to guests and judges each of them apart from the others, by the default filters."""

from __future__ import annotations

import copy
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime

from holdfast.agent import guest_filters
from holdfast.agent.guest_state import GuestEvent, GuestWatch
from holdfast.ports.guests import Event, Guest
from tests.processes import PATIENCE_S, eventually


class Ear:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.events: dict[str, list[Event]] = defaultdict(list)
        self.told: dict[str, list[GuestEvent]] = defaultdict(list)
        self._when: dict[tuple[str, str], float] = {}  # it was heard last
        self.watches: dict[str, GuestWatch] = defaultdict(
            lambda: GuestWatch(guest_filters.default())
        )
        self.readings: list[dict[str, Guest]] = []
        self.lags_s: list[float] = []  # from libvirt's own callback to the end of the judgement

    def heard(self, event: Event) -> None:
        now = time.monotonic()
        with self._lock:
            self.events[event.name].append(event)
            self._when[event.name, words(event)] = now
            heard = now - (datetime.now(UTC) - event.at).total_seconds()
            self.told[event.name] += self.watches[event.name].hear(event, now, heard)
            self.lags_s.append((datetime.now(UTC) - event.at).total_seconds())

    def reconciled(self, guests: Sequence[Guest], at: datetime) -> None:
        now = time.monotonic()
        with self._lock:
            found = {guest.name: guest for guest in guests}
            self.readings.append(found)
            for name in {*found, *self.watches}:
                seen = [found[name]] if name in found else []
                began = now - (datetime.now(UTC) - at).total_seconds()
                self.told[name] += self.watches[name].reconcile(seen, at, now, began)

    def said(self, name: str) -> list[str]:
        """lifecycle stopped failed, io_error pause hda, …"""
        with self._lock:
            return [words(one) for one in self.events[name]]

    def verdicts(self, name: str, after_s: float = 0.0, since: str = "") -> list[str]:
        """What trouble is told of it by then, if nothing more happens; `since`: so long after this
        was heard, however long ago that is."""
        with self._lock:
            watch = copy.deepcopy(self.watches[name])
            told = list(self.told[name])
            began = self._when[name, since] if since else time.monotonic()
        told += watch.check_timers(began + after_s)
        return [
            " ".join(filter(None, (one.state, one.evidence["event"], one.evidence["detail"])))
            for one in told
            if one.state != "well"
        ]

    def wait(self, name: str, *wanted: str, within_s: float = PATIENCE_S) -> None:
        """Until all of these were heard, in whatever order."""

        def heard() -> bool:
            said = self.said(name)
            assert set(wanted) <= set(said), f"{name}: {said}"
            return True

        eventually(heard, within_s, 0.01)

    def forget(self, name: str) -> None:
        with self._lock:
            self.events[name].clear()
            self.told[name].clear()


def words(event: Event) -> str:
    return " ".join(filter(None, (event.kind, event.detail, event.reason, event.disk)))
