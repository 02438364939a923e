# SPDX-License-Identifier: Apache-2.0
"""A daemon that takes connections and answers nothing: seen once, and not to be had at will, so a
connection that never comes back stands for it."""

import contextlib
import threading
from typing import Any

import pytest

from holdfast.drivers.libvirt import guests as driver
from holdfast.drivers.libvirt import guests as libvirt_guests
from holdfast.drivers.libvirt.guests import MOST_LEFT, LibvirtGuests
from holdfast.runtime.clock import SystemClock
from tests.libvirt.ear import Ear
from tests.processes import eventually


class Stuck:
    """Lets everybody in and listen; whatever else is asked of it waits."""

    def __init__(self, thawed: threading.Event, alive: bool) -> None:
        self._thawed = thawed
        self._alive = alive

    def isAlive(self) -> bool:
        return self._alive

    def registerCloseCallback(self, *_: Any) -> None: ...

    def domainEventRegisterAny(self, *_: Any) -> int:
        return 0

    def setKeepAlive(self, *_: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self._thawed.wait(600)


@pytest.mark.parametrize(("alive", "why"), [(False, "connections go"), (True, "cannot be read")])
def test_a_daemon_that_answers_nothing_is_not_given_ever_more_connections(
    monkeypatch: pytest.MonkeyPatch, alive: bool, why: str
) -> None:
    thawed, opened = threading.Event(), []

    def open_stuck(_guests: LibvirtGuests) -> Stuck:
        opened.append(1)
        return Stuck(thawed, alive)

    monkeypatch.setattr(LibvirtGuests, "_open", open_stuck)
    monkeypatch.setattr(libvirt_guests, "ANSWER_S", 0.01)
    for name in ("PAUSE_S", "LONGEST_PAUSE_S"):
        monkeypatch.setattr(driver, name, 0.01)
    # who looks for QEMUs that hang has connections of his own, and takes no part in this
    made = LibvirtGuests("test:///default", SystemClock(), probe_every_s=3600.0)
    with contextlib.closing(made) as guests:
        guests.start(Ear())
        eventually(lambda: why in guests.why_deaf())
        eventually(lambda: not alive or "have not come back" in guests.why_deaf())
        assert not threading.Event().wait(0.5)  # for fifty more, if nothing held it back
        seen = len(opened)
        assert seen <= MOST_LEFT + libvirt_guests.MOST_CALLS
        thawed.set()
        eventually(lambda: len(opened) > seen)
