# SPDX-License-Identifier: Apache-2.0
"""The ways in which a guest fails, each a row: what is done to it, what is heard, what is told."""

from __future__ import annotations

import contextlib
import functools
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from holdfast.drivers.libvirt.guests import LibvirtGuests
from holdfast.runtime.clock import SystemClock
from tests.libvirt.ear import Ear
from tests.libvirt.host import CHANNEL, FILE_DISK, Disk, GuestHost
from tests.processes import eventually
from tests.servers.libvirt import remove

LONG = 3600.0
NOVA = """\
<nova:instance xmlns:nova="http://openstack.org/xmlns/libvirt/nova/1.1">
  <nova:flavor name="m1.tiny"/>
  <nova:owner><nova:project uuid="p-1">demo</nova:project></nova:owner>
</nova:instance>
<holdfast:guest xmlns:holdfast="urn:holdfast:guest" ha="no"/>"""


@dataclass
class Lab:
    host: GuestHost
    ear: Ear
    guests: LibvirtGuests
    disks: dict[str, Disk] = field(default_factory=dict)

    @functools.cached_property
    def way(self) -> Any:
        """A connection of the test's own; it dies with the daemon."""
        return self.host.connected()

    def domain(self, name: str) -> Any:
        return self.way.lookupByName(name)

    def say(self, name: str, command: str, wait_s: float = 0.3) -> bytes:
        return self.host.say(name, command, wait_s)

    def begin(self, *rows: Row) -> None:
        """Guests that run, obey, and are known to run."""
        with ThreadPoolExecutor(4) as effects:
            list(effects.map(self._begin, rows))

    def _begin(self, row: Row) -> None:
        devices = row.devices
        if row.disk is not None:
            error, write, read, named = row.disk
            self.disks[row.name] = self.host.nbd(row.name, error)
            devices += self.disks[row.name].xml(write, read, named=named)
        if row.file:
            path = self.host.sockets / f"{row.name}.raw"
            path.write_bytes(bytes(2**16))
            path.chmod(0o666)
            devices += FILE_DISK.format(path=path)
        shape = {"on_crash": row.on_crash, "proxied": row.proxied, "metadata": row.metadata}
        xml = self.host.xml(row.name, devices, **shape)
        if row.kept:
            self.way.defineXML(xml).create()
        else:
            self.way.createXML(xml)
        self.host.wait_ready(row.name)
        self.ear.wait(row.name, "lifecycle started booted")

    def end(self, *names: str) -> None:
        """Whatever became of them."""
        ours = [
            listAllDomain
            for listAllDomain in self.way.listAllDomains()
            if listAllDomain.name() in names
        ]
        with ThreadPoolExecutor(4) as effects:
            list(effects.map(remove, ours))

    @contextlib.contextmanager
    def running(self, *rows: Row) -> Iterator[None]:
        self.begin(*rows)
        try:
            yield
        finally:
            self.end(*(row.name for row in rows))


@dataclass(frozen=True)
class Row:
    """One row of the table: what is done, what is heard of it, what is told now and later."""

    name: str
    fault: Callable[[Lab, str], Any]
    heard: tuple[str, ...]
    told: tuple[str, ...] = ()
    later: tuple[str, ...] | None = None  # after an hour; as now if it is not said
    devices: str = ""
    on_crash: str = "destroy"
    disk: tuple[str, str, str, bool] | None = None  # error, policies of writes and reads, named
    file: bool = False  # a disk of its own
    proxied: bool = False
    metadata: str = ""
    kept: bool = True  # by libvirt, when it is off


@contextlib.contextmanager
def listening(host: GuestHost) -> Iterator[Lab]:
    """A witness of what libvirt says, apart from the agent."""
    ear = Ear()
    with contextlib.closing(LibvirtGuests(host.url, SystemClock())) as guests:
        guests.start(ear)
        eventually(lambda: not guests.why_deaf())
        yield Lab(host, ear, guests)


def byte(command: str) -> Callable[[Lab, str], Any]:
    return lambda lab, name: lab.say(name, command)


def killed(number: signal.Signals) -> Callable[[Lab, str], Any]:
    return lambda lab, name: lab.host.kill_guest(name, number)


def order(call: str, *words: Any) -> Callable[[Lab, str], Any]:
    return lambda lab, name: getattr(lab.domain(name), call)(*words)


def storage(command: str) -> Callable[[Lab, str], Any]:
    def fail(lab: Lab, name: str) -> None:
        assert lab.say(name, command, 60) == b"good\n"
        lab.disks[name].spoil()
        lab.say(name, command)

    return fail


def paused_and_resumed(lab: Lab, name: str) -> None:
    lab.domain(name).suspend()
    lab.domain(name).resume()


def kept_and_removed(lab: Lab, name: str) -> None:
    lab.way.defineXML(lab.host.xml(f"{name}-2")).undefine()
    lab.ear.wait(f"{name}-2", "lifecycle defined added", "lifecycle undefined removed")
    lab.domain(name).suspend()


def storage_mended(lab: Lab, name: str) -> None:
    storage("D")(lab, name)
    lab.ear.wait(name, "lifecycle suspended ioerror")
    assert lab.ear.verdicts(name, LONG) == ["failed io_error pause"]
    lab.disks[name].mend()
    lab.domain(name).resume()


def server_gone(lab: Lab, name: str) -> None:
    lab.disks[name].server.signal(signal.SIGKILL)
    lab.say(name, "d")


def agent_comes_and_goes(lab: Lab, name: str) -> None:
    for command, heard in (("a", "connected"), ("A", "disconnected"), ("a", "connected")):
        lab.ear.forget(name)
        eventually(lambda command=command: lab.say(name, command, 5) == b"channel\n")
        lab.ear.wait(name, f"agent {heard} channel")


def copied(lab: Lab, name: str) -> None:
    domain, path = lab.domain(name), lab.host.sockets / f"{name}.copy"
    job = f"<disk type='file'><source file='{path}'/><driver type='raw'/></disk>"
    domain.blockCopy("hda", job, {}, 4)  # for as long as it runs
    lab.ear.wait(name, "block_job ready copy hda")
    domain.blockJobAbort("hda")


def watchdog(action: str, model: str = "i6300esb") -> str:
    return f"<watchdog model='{model}' action='{action}'/>"


DIED = "lifecycle stopped failed"
PANICKED = "lifecycle crashed panicked"
FAULTS = [
    Row("poweroff", byte("s"), ("lifecycle shutdown guest", "lifecycle stopped shutdown")),
    Row("button", order("shutdown"), ("lifecycle shutdown guest", "lifecycle stopped shutdown")),
    Row("kill", killed(signal.SIGKILL), (DIED,), ("failed stopped failed",)),
    Row("segv", killed(signal.SIGSEGV), (DIED,), ("failed stopped failed",)),
    Row(
        "term",
        killed(signal.SIGTERM),
        ("lifecycle shutdown host", "lifecycle stopped shutdown"),
        ("noted stopped terminated",),
    ),
    Row("destroy", order("destroy"), ("lifecycle shutdown host", "lifecycle stopped destroyed")),
    Row(
        "pause",
        paused_and_resumed,
        ("lifecycle suspended paused", "lifecycle resumed unpaused"),
    ),
    Row("define", kept_and_removed, ("lifecycle suspended paused",)),
    Row("guest-reset", byte("r"), ("reboot",)),
    Row("api-reset", order("reset"), ("reboot",)),
    Row(
        "panic-destroy",
        byte("p"),
        (PANICKED, "lifecycle stopped crashed"),
        ("failed panic panicked",),
    ),
    Row("panic-preserve", byte("p"), (PANICKED,), ("failed panic panicked",), on_crash="preserve"),
    Row(
        "panic-restart",
        byte("p"),
        (PANICKED, "reboot", "lifecycle resumed unpaused"),
        ("noted panic panicked",),
        on_crash="restart",
    ),
    Row(
        "panic-dump",
        byte("p"),
        (PANICKED, "lifecycle stopped crashed"),
        ("failed panic panicked",),
        on_crash="coredump-destroy",
    ),
    Row(
        "wd-none", byte("i"), ("watchdog none",), ("noted watchdog none",), devices=watchdog("none")
    ),
    Row(
        "wd-pause",
        byte("i"),
        ("watchdog pause", "lifecycle suspended watchdog"),
        ("failed watchdog pause",),
        devices=watchdog("pause"),
    ),
    Row(
        "wd-reset",
        byte("i"),
        ("watchdog reset", "reboot"),
        ("noted watchdog reset",),
        devices=watchdog("reset"),
    ),
    Row(
        "wd-poweroff",
        byte("i"),
        ("watchdog poweroff", DIED),
        ("failed watchdog poweroff",),
        devices=watchdog("poweroff"),
    ),
    Row(
        "wd-dump",
        byte("i"),
        ("watchdog pause", "lifecycle suspended watchdog", "lifecycle resumed unpaused"),
        ("noted watchdog dump",),
        devices=watchdog("dump"),
    ),
    Row(
        "wd-nmi",
        byte("i"),
        ("watchdog inject-nmi",),
        ("noted watchdog inject-nmi",),
        devices=watchdog("inject-nmi"),
    ),
    Row(
        "wd-shutdown",
        byte("i"),
        ("watchdog shutdown", "lifecycle shutdown guest", "lifecycle stopped shutdown"),
        ("noted watchdog shutdown",),
        devices=watchdog("shutdown"),
    ),
    Row(
        "ib700",
        byte("w"),
        ("watchdog pause", "lifecycle suspended watchdog"),
        ("failed watchdog pause",),
        devices=watchdog("pause", "ib700"),
    ),
    Row(
        "eio-stop",
        storage("D"),
        ("io_error pause hda", "lifecycle suspended ioerror"),
        later=("failed io_error pause",),
        disk=("EIO", "stop", "stop", True),
    ),
    Row(
        "eio-report",
        storage("D"),
        ("io_error report hda",),
        ("failed io_error report",),
        disk=("EIO", "report", "report", True),
    ),
    Row(
        "eio-unnamed",
        storage("D"),
        ("lifecycle suspended ioerror",),
        later=("failed io_error pause",),
        disk=("EIO", "stop", "stop", False),
    ),
    Row(
        "full-stop",
        storage("D"),
        ("io_error pause enospc hda", "lifecycle suspended ioerror"),
        later=("noted io_error pause",),
        disk=("ENOSPC", "stop", "stop", True),
    ),
    Row(
        "full-enospace",
        storage("D"),
        ("io_error pause enospc hda", "lifecycle suspended ioerror"),
        later=("noted io_error pause",),
        disk=("ENOSPC", "enospace", "report", True),
    ),
    Row(
        "mended",
        storage_mended,
        ("io_error pause hda", "lifecycle resumed unpaused"),
        disk=("EIO", "stop", "stop", True),
    ),
    Row(
        "nbd-gone",
        server_gone,
        ("io_error pause hda", "lifecycle suspended ioerror"),
        later=("failed io_error pause",),
        disk=("EIO", "stop", "stop", True),
    ),
    Row(
        "qmp-garbage",
        lambda lab, name: lab.host.spoil(name, "garbage"),
        ("control_error",),
        later=("noted control_error",),
        proxied=True,
    ),
    Row("agent", agent_comes_and_goes, ("agent connected channel",), devices=CHANNEL),
    Row(
        "copy",
        copied,
        ("block_job ready copy hda", "block_job canceled copy hda"),
        file=True,
    ),
    Row("unwanted", killed(signal.SIGKILL), (DIED,), metadata=NOVA),
]
