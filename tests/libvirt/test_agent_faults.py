# SPDX-License-Identifier: Apache-2.0
"""Every way in which a guest fails, from the fault to what the API has stored of it: by the agent's
own program, among fifty guests of which one QEMU is frozen all the while."""

from __future__ import annotations

import contextlib
import fcntl
import signal
import socket
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from holdfast.client.client import Client
from tests.conftest import serve
from tests.libvirt.faults import DIED, FAULTS, Lab, Row, listening
from tests.libvirt.site import Site, manned, verdict
from tests.metrics.host import NIC, TapHost
from tests.processes import eventually

HOST = "cmp-1"
GUESTS = 50
#: The default set, with grace times that a test can wait for. One whose disk comes back has longer
#: than that takes, and so has a QEMU that is well and gets no processor for a while.
FILTERS = """\
rules:
  - {event: io_error, detail: pause, name: mended, after: 10m, do: recover}
  - {event: io_error, detail: pause, reason: enospc, after: 1s, do: report}
  - {event: io_error, detail: pause, after: 5s, do: recover}
  - {event: monitor, detail: stuck, name: frozen, after: 5s, do: recover}
  - {event: monitor, detail: stuck, after: 10m, do: recover}
  - {event: control_error, after: 5s, do: report}
otherwise: defaults
"""
#: The promise is 200 ms after libvirt's own callback; this is a net for a machine that is full, and
#: less than it takes until all guests are read again, which would find it as well.
NET_S = 60.0
#: So long after the last of them nothing more may come.
QUIET_S = 2.0
#: What is heard of a guest that starts.
BEGAN = ["lifecycle defined added", "lifecycle resumed unpaused", "lifecycle started booted"]
#: The guest's network card, on the host.
TAP = "hf-tap"
CARD = NIC.format(mac="52:54:00:00:00:01", tap=TAP, model="e1000")
SIOCGIFFLAGS, IFF_UP, IFF_RUNNING = 0x8913, 0x1, 0x40


@pytest.fixture(scope="module")
def host() -> Iterator[TapHost]:
    """One whose guests may have network cards."""
    yield from serve(TapHost([TAP]))


def set_down(lab: Lab, _name: str) -> None:
    """The network of a guest whose QEMU uses it."""
    assert isinstance(lab.host, TapHost)
    assert lab.host.network is not None
    eventually(lambda: flags(lab) & IFF_UP and flags(lab) & IFF_RUNNING)
    lab.host.network.ip(f"link set {TAP} down")
    assert not flags(lab) & (IFF_UP | IFF_RUNNING)


def flags(lab: Lab) -> int:
    """Of the tap, as the kernel of the host has them."""
    assert isinstance(lab.host, TapHost)
    assert lab.host.network is not None

    def ask() -> int:
        with socket.socket() as any_one:
            about = fcntl.ioctl(any_one, SIOCGIFFLAGS, struct.pack("16sH14x", TAP.encode(), 0))
        found: int = struct.unpack("16xH14x", about)[0]
        return found

    return lab.host.network.do(ask)


def hung_up(lab: Lab, name: str) -> None:
    lab.host.spoil(name, "close")


def nothing(_lab: Lab, _name: str) -> None:
    """It is left alone."""


def stored_at(site: Site, guest: str) -> float:
    """When the API first shows a report of it, by the wall clock."""
    with contextlib.closing(Client(site.client.url)) as client:
        query = {"subject": f"server:{guest}", "limit": 1}

        def there() -> bool:
            where = "/holdfast/v1/observations"
            return bool(client.wire.call("GET", where, query=query, key="observations"))

        eventually(there, every=0.01)
    return time.time()


def kill_some(lab: Lab, site: Site, uuids: dict[str, str], names: list[str]) -> None:
    """One after the other; each is stored soon after libvirt itself has said it."""
    for name in names:
        lab.host.kill_guest(name)
        stored = stored_at(site, uuids[name])
        lab.ear.wait(name, DIED)
        (died,) = [one for one in lab.ear.events[name] if one.reason == "failed"]
        late_s = stored - died.at.timestamp()
        assert late_s < NET_S, f"{name} was stored {late_s:.2f} s after libvirt said it"


def strike(lab: Lab, row: Row) -> None:
    row.fault(lab, row.name)
    lab.ear.wait(row.name, *row.heard)


def troubles(site: Site) -> list[dict[str, Any]]:
    """All that is stored, but for who runs again: the one that is thawed does."""
    return [observation for observation in site.observations() if observation["state"] != "well"]


def told(site: Site, uuids: dict[str, str]) -> dict[str, list[str]]:
    """What is stored of each."""
    names = {uuid: name for name, uuid in uuids.items()}
    found: dict[str, list[str]] = {name: [] for name in uuids}
    for trouble in troubles(site):
        found[names[trouble["subject"].removeprefix("server:")]].append(verdict(trouble))
    return found


def wanted(row: Row) -> list[str]:
    return list(row.told if row.later is None else row.later)


@pytest.mark.slow("fifty guests run at once, and each is made to fail in a way of its own")
@pytest.mark.timeout(600)
def test_every_fault_is_stored_as_what_it_means_while_one_qemu_of_fifty_is_frozen(
    host: TapHost, tmp_path: Path
) -> None:
    rows = [
        *FAULTS,
        Row("qmp-close", hung_up, (DIED,), ("failed stopped failed",), proxied=True),
        Row("network", set_down, (), devices=CARD),
    ]
    near = [f"near-{number}" for number in range(GUESTS - 1 - len(rows))]
    others = [Row(name, nothing, ()) for name in ("frozen", *near)]
    options = {"recovery": {"dry_run": True}}
    hosts = {HOST: host.url}
    with (
        manned(tmp_path, hosts, options, filters=FILTERS) as site,
        listening(host) as lab,
    ):
        site.begin(HOST)
        with lab.running(*rows, *others):
            uuids = {row.name: lab.domain(row.name).UUIDString() for row in (*rows, *others)}
            assert len(uuids) == GUESTS
            site.knows(HOST, *uuids.values())
            assert not any(told(site, uuids).values())  # a start is nothing to tell of
            host.kill_guest("frozen", signal.SIGSTOP)
            try:
                lab.ear.wait("frozen", "monitor stuck")
                kill_some(lab, site, uuids, near[:5])
                with ThreadPoolExecutor(4) as effects:
                    list(effects.map(lambda row: strike(lab, row), rows))
                expected = {row.name: wanted(row) for row in rows}
                expected |= {name: ["failed stopped failed"] for name in near[:5]}
                expected |= {name: [] for name in near[5:]}
                expected["frozen"] = ["failed monitor stuck"]
                with contextlib.suppress(AssertionError):
                    eventually(lambda: told(site, uuids) == expected, every=0.2)
                time.sleep(QUIET_S)
                assert told(site, uuids) == expected
                # libvirt has no word for a network that fails
                said = lab.ear.said("network")
                assert [one for one in said if not one.startswith("monitor ")] == BEGAN
            finally:
                host.kill_guest("frozen", signal.SIGCONT)
        check_incidents(site, uuids, expected)


def check_incidents(site: Site, uuids: dict[str, str], told: dict[str, list[str]]) -> None:
    """One of each that failed, none of the others; what is stored says what it was."""
    failed = {uuids[name] for name, said in told.items() if said and said[0].startswith("failed")}
    eventually(lambda: len(site.client.incidents.list(limit=1000)) >= len(failed))
    found = [one["subject"] for one in site.client.incidents.list(limit=1000)]
    assert sorted(found) == sorted(f"server:{uuid}" for uuid in failed)
    seen: dict[str, Any] = {trouble["subject"]: trouble for trouble in troubles(site)}
    for name, uuid in uuids.items():
        if told[name]:
            one = seen[f"server:{uuid}"]
            assert one["observer"] == f"agent@{HOST}"
            assert one["evidence"]["domain_name"] == name
            assert bool(one["incident_id"]) == (uuid in failed)
    disks = {name: seen[f"server:{uuids[name]}"]["evidence"] for name in ("eio-stop", "full-stop")}
    assert (disks["eio-stop"]["disk"], disks["eio-stop"]["reason"]) == ("hda", "")
    assert (disks["full-stop"]["disk"], disks["full-stop"]["reason"]) == ("hda", "enospc")
