# SPDX-License-Identifier: Apache-2.0
"""libvirt's own test driver, which is in this process: what is heard while nothing can be read, and
what is read again because of what is heard."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.drivers.guests import libvirt as driver
from holdfast.drivers.guests.calls import failed
from holdfast.drivers.guests.libvirt import LibvirtGuests
from holdfast.drivers.guests.reader import Reader
from holdfast.ports.clock import SystemClock
from tests.guests.ear import Ear
from tests.processes import eventually

URL = "test:///default"
DOMAIN = """\
<domain type='test'><name>{}</name><memory>1024</memory><os><type>hvm</type></os></domain>"""
WISH = '<guest ha="{}"/>'


class Way:
    """A connection in this process, which needs no signs of life."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def setKeepAlive(self, *_: Any) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Way]:
    made: list[Way] = []
    listen = LibvirtGuests._listen

    def open_way(guests: LibvirtGuests) -> Way:
        return Way(guests._libvirt.openReadOnly(URL))

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


def busy(monkeypatch: pytest.MonkeyPatch, times: int) -> list[float]:
    """So often all guests cannot be read; what patience there was."""
    read, asked = Reader.read, list[float]()

    def late(reader: Reader, patience: float = 1.0) -> Any:
        asked.append(patience)
        if len(asked) <= times:
            raise failed("no answer to list within 2 s")
        return read(reader, patience)

    monkeypatch.setattr(Reader, "read", late)
    return asked


def test_a_daemon_that_cannot_list_its_guests_is_heard_and_asked_again(
    monkeypatch: pytest.MonkeyPatch, opened: list[Way]
) -> None:
    monkeypatch.setattr(driver, "LONGEST_PAUSE_S", 0.05)
    asked, ear = busy(monkeypatch, 5), Ear()
    with listening(ear) as guests:
        eventually(lambda: "cannot be read: " in guests.why_deaf(), 5)
        with domain("busy-1") as one:
            one.destroy()
            ear.wait("busy-1", "lifecycle stopped destroyed")
        eventually(lambda: ear.readings and not guests.why_deaf(), 10)
        assert len(opened) == 1
        assert asked[:6] == [1.0, 2.0, 4.0, 4.0, 4.0, 4.0]
    assert "test" in ear.readings[0]


def test_a_reading_that_fails_later_does_not_make_it_deaf_to_anybody(
    monkeypatch: pytest.MonkeyPatch, opened: list[Way]
) -> None:
    monkeypatch.setattr(driver, "LONGEST_PAUSE_S", 0.05)
    monkeypatch.setattr(driver, "AGAIN_S", (0.1, 0.2))
    ear = Ear()
    with listening(ear) as guests:
        eventually(lambda: len(ear.readings) == 3, 5)
        busy(monkeypatch, 3)
        guests._overflowed()
        eventually(lambda: "cannot be read: " in guests.why_deaf(), 5)
        eventually(lambda: len(ear.readings) == 4 and not guests.why_deaf(), 5)
        assert len(opened) == 1
        assert guests._due == []


def changed(change: Callable[[Any], object]) -> dict[str, str]:
    """What is known of a guest after that, and was told with the next event."""
    ear = Ear()
    with domain("fickle") as one, listening(ear) as guests:
        eventually(lambda: ear.readings and not guests.why_deaf(), 5)
        known = guests._facts[one.UUIDString()]
        change(one)
        eventually(lambda: guests._facts[one.UUIDString()] != known, 5)
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
