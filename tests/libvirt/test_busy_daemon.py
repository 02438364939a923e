# SPDX-License-Identifier: Apache-2.0
"""libvirt's own test driver, which is in this process: what is heard while nothing can be read, and
what is read again because of what is heard."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.drivers.libvirt import guests as driver
from holdfast.drivers.libvirt.connection import failed
from holdfast.drivers.libvirt.guests import LibvirtGuests, Reader
from holdfast.runtime.clock import SystemClock
from tests.libvirt.ear import Ear
from tests.processes import eventually

URL = "test:///default"
DOMAIN = """\
<domain type='test'><name>{}</name><memory>1024</memory><os><type>hvm</type></os></domain>"""
WISH = '<guest ha="{}"/>'


class EventConnection:
    """A connection in this process, which needs no signs of life."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def setKeepAlive(self, *_: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[EventConnection]:
    made: list[EventConnection] = []
    listen = LibvirtGuests._listen

    def open_way(guests: LibvirtGuests) -> EventConnection:
        return EventConnection(guests._libvirt.openReadOnly(URL))

    def counted(guests: LibvirtGuests) -> Any:
        way = listen(guests)
        made.append(way.connection)
        return way

    monkeypatch.setattr(LibvirtGuests, "_open", open_way)
    monkeypatch.setattr(LibvirtGuests, "_listen", counted)
    return made


@contextlib.contextmanager
def listening(ear: Ear) -> Iterator[LibvirtGuests]:
    with contextlib.closing(LibvirtGuests(URL, SystemClock())) as guests:
        guests.start(ear)
        yield guests


@contextlib.contextmanager
def domain(name: str) -> Iterator[Any]:
    import libvirt

    way = libvirt.open(URL)
    made = way.defineXML(DOMAIN.format(name))
    made.create()
    yield made
    with contextlib.suppress(libvirt.libvirtError):
        made.destroy()
    made.undefine()


class Busy:
    """All guests cannot be read until it is over; what patience there was."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.over = False
        self.asked: list[float] = []
        read = Reader.read

        def late(reader: Reader, patience: float = 1.0) -> Any:
            self.asked.append(patience)
            if not self.over:
                raise failed("no answer to list within 2 s")
            return read(reader, patience)

        monkeypatch.setattr(Reader, "read", late)


def test_a_daemon_that_cannot_list_its_guests_is_heard_and_asked_again(
    monkeypatch: pytest.MonkeyPatch, opened: list[EventConnection]
) -> None:
    monkeypatch.setattr(driver, "LONGEST_PAUSE_S", 0.05)
    busy, ear = Busy(monkeypatch), Ear()
    with listening(ear) as guests:
        eventually(lambda: "cannot be read: " in guests.why_deaf())
        with domain("busy-1") as one:
            one.destroy()
            ear.wait("busy-1", "lifecycle stopped destroyed")
        eventually(lambda: len(busy.asked) > 5)
        assert not ear.readings
        busy.over = True
        eventually(lambda: ear.readings and not guests.why_deaf())
        assert len(opened) == 1
        assert busy.asked[:6] == [1.0, 2.0, 4.0, 4.0, 4.0, 4.0]
    assert "test" in ear.readings[0]


def test_a_reading_that_fails_later_does_not_make_it_deaf_to_anybody(
    monkeypatch: pytest.MonkeyPatch, opened: list[EventConnection]
) -> None:
    monkeypatch.setattr(driver, "LONGEST_PAUSE_S", 0.05)
    monkeypatch.setattr(driver, "AGAIN_S", (0.1, 0.2))
    ear = Ear()
    with listening(ear) as guests:
        eventually(lambda: len(ear.readings) == 3)
        busy = Busy(monkeypatch)
        guests._overflowed()
        eventually(lambda: "cannot be read: " in guests.why_deaf())
        busy.over = True
        eventually(lambda: len(ear.readings) == 4 and not guests.why_deaf())
        assert len(opened) == 1
        (due,) = guests._due  # none but the one that comes every few minutes anyway
        assert due - time.monotonic() > driver.READ_EVERY_S / 2


def changed(change: Callable[[Any], object]) -> dict[str, str]:
    """What is known of a guest after that, and was told with the next event."""
    ear = Ear()
    with domain("fickle") as one, listening(ear) as guests:
        eventually(lambda: ear.readings and not guests.why_deaf())
        known = guests._facts[one.UUIDString()]
        change(one)
        eventually(lambda: guests._facts[one.UUIDString()] != known)
        one.destroy()
        ear.wait("fickle", "lifecycle stopped destroyed")
        return dict(ear.events["fickle"][-1].metadata)


@pytest.mark.usefixtures("opened")
def test_what_its_owner_wants_is_read_again_when_it_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(driver, "AGAIN_S", ())

    def want(domain: Any) -> None:
        import libvirt

        kind, live = libvirt.VIR_DOMAIN_METADATA_ELEMENT, libvirt.VIR_DOMAIN_AFFECT_LIVE
        domain.setMetadata(kind, WISH.format("no"), "holdfast", "urn:holdfast:guest", live)

    assert changed(want)["ha"] == "no"
