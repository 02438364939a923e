# SPDX-License-Identifier: Apache-2.0
"""The connections to a libvirt host.

libvirt before 10.4 crashes if two threads call on one connection, or if a keepalive is sent on it
during a call (CVE-2024-4418).
"""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.processes import eventually

libvirt = pytest.importorskip("libvirt")

from holdfast.drivers.libvirt import host_connection as module  # noqa: E402
from holdfast.drivers.libvirt.host_connection import HostConnection, Silent  # noqa: E402
from holdfast.drivers.libvirt.settings import Host  # noqa: E402

#: libvirt's own make-believe host.
HOST = Host("kvm-1", "test:///default")


@pytest.fixture
def host() -> Iterator[HostConnection]:
    made = HostConnection(HOST)
    yield made
    made.close()


def test_no_connection_is_used_by_two_at_once_nor_has_keepalive(
    host: HostConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive: list[Any] = []
    monkeypatch.setattr(libvirt.virConnect, "setKeepAlive", lambda *words: alive.append(words))
    lock, users, crowds = threading.Lock(), Counter[int](), list[int]()

    def look(conn: Any) -> int:
        with lock:
            users[id(conn)] += 1
            crowds.append(users[id(conn)])
        time.sleep(0.02)
        domains = len(conn.listAllDomains())
        with lock:
            users[id(conn)] -= 1
        return domains

    with ThreadPoolExecutor(16) as crowd:
        answers = list(crowd.map(lambda _: host.call("domains", look, 60.0), range(64)))
    assert answers == [1] * 64
    assert max(crowds) == 1
    assert len(users) <= 16  # each is used again
    assert alive == []


def test_a_hanging_call_keeps_the_connection_and_other_calls_get_another(
    host: HostConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SILENT_S", 600.0)
    thaw, used = threading.Event(), list[Any]()

    def hang(conn: Any) -> None:
        used.append(conn)
        thaw.wait(600)

    with pytest.raises(Silent, match="no answer to hang"):
        host.call("hang", hang, 0.1)
    with pytest.raises(Silent, match="no answer to hang"):  # nobody waits for it again so soon
        host.call("domains", lambda conn: conn.listAllDomains(), 60.0)
    host._quiet_until = 0.0
    eventually(lambda: used)  # its thread may have had to wait for a processor
    (hung,) = used
    assert host.call("other", lambda conn: conn is hung, 60.0) is False
    thaw.set()


def test_a_login_that_never_ends_delays_other_logins_for_a_limited_time(
    host: HostConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was cut off while its libvirtd was frozen: nothing ever ends that call."""
    monkeypatch.setattr(module, "TURN_S", 0.1)
    never, opened = threading.Event(), list[str]()
    open_ = libvirt.open

    def opens(uri: str) -> Any:
        opened.append(uri)
        if len(opened) == 1:
            never.wait(600)
        return open_(uri)

    monkeypatch.setattr(libvirt, "open", opens)
    with pytest.raises(Silent, match="no answer"):
        host.call("first", lambda _conn: 1, 0.05)
    eventually(lambda: opened)
    for _ in range(3):
        host._quiet_until = 0.0
        with pytest.raises(Silent) as error:
            host.call("second", lambda _conn: 2, 60.0)
        assert not error.value.sent
    assert len(opened) == 1
    monkeypatch.setattr(module, "HUNG_S", 0.0)
    with pytest.raises(Silent):
        host.call("third", lambda _conn: 3, 60.0)
    assert host.call("fourth", lambda _conn: 4, 60.0) == 4
    never.set()


def test_a_lost_connection_closes_the_idle_connections_too(
    host: HostConnection,
) -> None:
    both = threading.Barrier(2)
    calls = [host.begin("both", lambda conn: (both.wait(60), conn)[1]) for _ in range(2)]
    first, second = (host.wait(call, "both", 60.0) for call in calls)
    assert first is not second

    def dies(conn: Any) -> None:
        conn.isAlive = lambda: 0
        raise libvirt.libvirtError("end of file")

    with pytest.raises(Silent, match="does not answer") as error:
        host.call("dies", dies, 60.0)
    assert error.value.sent
    host._quiet_until = 0.0
    assert host.call("next", lambda conn: conn in (first, second), 60.0) is False
