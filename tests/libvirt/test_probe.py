# SPDX-License-Identifier: Apache-2.0
"""Many QEMUs that hang at once, and a libvirtd that is restarted over them: nothing of this is
to be had quickly on a real host, so a daemon that does what libvirtd does stands for it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.drivers.libvirt import guests
from holdfast.drivers.libvirt.guests import MOST_HANGING, Probe
from tests.processes import eventually
from tests.simclock import SimClock

libvirt = pytest.importorskip("libvirt")


class Domain:
    """A question to one that is frozen waits until it thaws, or its daemon dies."""

    def __init__(self, name: str) -> None:
        self.name_, self.frozen, self.asked = name, threading.Event(), False
        self.released = threading.Event()

    def name(self) -> str:
        return self.name_

    UUIDString = name

    def controlInfo(self) -> list[int]:
        return [2, 0, 60_000] if self.asked and self.frozen.is_set() else [0, 0, 0]

    def state(self) -> list[int]:
        return [libvirt.VIR_DOMAIN_RUNNING, 0]

    def answer(self) -> None:
        if self.frozen.is_set():
            self.asked = True
            self.released.wait(600)


class Host:
    """Its daemon: `restart` forgets who was asked what, and ends all connections."""

    def __init__(self, count: int) -> None:
        self.domains = [Domain(f"g-{number:02}") for number in range(count)]
        self.said: list[tuple[str, str]] = []
        self.life = 0

    def connect(self) -> Connection:
        return Connection(self)

    def say(self, uuid: str, _name: str, what: str, _seconds: float) -> None:
        self.said.append((uuid, what))

    def freeze(self, *names: str) -> None:
        for domain in self.domains:
            if domain.name() in names:
                domain.released = threading.Event()
                domain.frozen.set()

    def thaw(self, *names: str) -> None:
        for domain in self.domains:
            if domain.name() in names:
                domain.frozen.clear()
                domain.asked = False
                domain.released.set()

    def restart(self) -> None:
        self.life += 1
        for domain in self.domains:
            domain.asked = False
            domain.released.set()
            domain.released = threading.Event()


class Connection:
    def __init__(self, host: Host) -> None:
        self.host, self.life = host, host.life

    def isAlive(self) -> bool:
        return self.life == self.host.life

    def listAllDomains(self, _flags: int) -> list[Domain]:
        return self.host.domains

    def lookupByUUIDString(self, uuid: str) -> Domain:
        return next(domain for domain in self.host.domains if domain.name() == uuid)

    def domainListGetStats(self, domains: list[Domain], _what: int) -> list[Any]:
        domains[0].answer()
        if not self.isAlive():
            raise libvirt.libvirtError("the daemon died")
        return []

    def close(self) -> None: ...


@contextlib.contextmanager
def probing(host: Host) -> Iterator[Probe]:
    made = Probe(host.connect, host.say, SimClock(), interval_s=5.0, stuck_s=3.0)
    try:
        yield made
    finally:
        host.thaw(*(domain.name() for domain in host.domains))
        made.close()


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guests, "QUICK_S", 0.05)


def stuck(host: Host) -> set[str]:
    return {uuid for uuid, what in host.said if what == "stuck"}


def answering(host: Host) -> set[str]:
    return {uuid for uuid, what in host.said if what == "answering"}


def asked_of(host: Host, *names: str) -> None:
    """The question is there, though the thread that asks may have had to wait for a processor."""
    those = [domain for domain in host.domains if domain.name() in names]
    eventually(lambda: all(one.asked for one in those))


def test_each_of_many_hung_guests_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    host = Host(20)
    frozen = [domain.name() for domain in host.domains[4:14]]
    host.freeze(*frozen)
    with probing(host) as asked:
        asked.round()
        asked_of(host, *frozen)
        asked.round()
        assert stuck(host) == set(frozen)
        assert len(host.said) == len(frozen)
    assert not caplog.records


def test_guests_over_the_limit_are_logged_once_and_polled_when_others_are_gone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    host = Host(MOST_HANGING + 5)
    names = [domain.name() for domain in host.domains]
    host.freeze(*names)
    with probing(host) as asked:
        for _ in range(3):
            asked.round()
            asked_of(host, *names[:MOST_HANGING])
        assert stuck(host) == set(names[:MOST_HANGING])
        (said,) = [record.getMessage() for record in caplog.records]
        assert said.startswith(f"{MOST_HANGING} QEMUs owe an answer: of the other 5 ")
        host.thaw(*names[:5])
        for name in names[:5]:
            asked._hanging[name][0].result(90)
        # one that answers late, for want of a processor, is asked again
        eventually(lambda: asked.round() or stuck(host) == set(names))
        eventually(lambda: asked.round() or answering(host) == set(names[:5]))


def test_one_that_somebody_else_found_to_hang_needs_no_question_of_ours() -> None:
    host = Host(MOST_HANGING + 1)
    names = [domain.name() for domain in host.domains]
    host.freeze(*names)
    host.domains[-1].asked = True
    with probing(host) as asked:
        asked.round()
        assert stuck(host) == {names[-1]}
        asked_of(host, *names)
        asked.round()
        assert stuck(host) == set(names)


def test_a_restart_of_libvirtd_does_not_make_a_hung_guest_healthy() -> None:
    host = Host(2)
    host.freeze("g-00")
    with probing(host) as asked:
        asked.round()
        asked_of(host, "g-00")
        asked.round()
        assert host.said == [("g-00", "stuck")]
        hung = asked._hanging["g-00"][0]
        host.restart()
        with pytest.raises(libvirt.libvirtError):
            hung.result(90)
        for _ in range(2):
            asked.round()
            asked_of(host, "g-00")
        assert host.said == [("g-00", "stuck")]
        host.thaw("g-00")
        asked._hanging["g-00"][0].result(90)
        eventually(lambda: asked.round() or len(host.said) > 1)
        assert host.said == [("g-00", "stuck"), ("g-00", "answering")]
