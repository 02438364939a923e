# SPDX-License-Identifier: Apache-2.0
"""A libvirt host whose guests fail on command, and whose daemon can die while they live."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import shutil
import signal
import socket
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path

from tests.processes import PATIENCE_S, Kept, eventually
from tests.servers.base import SYSTEM, Missing, which
from tests.servers.libvirt import Libvirt

HERE = Path(__file__).parent
#: What a QEMU gets to take a byte, on a machine that is busy.
TAKES_S = 60.0
COMPILE = (
    "gcc -m32 -Os -ffreestanding -fno-pie -fno-stack-protector -fno-asynchronous-unwind-tables"
    " -mno-sse -nostdlib -static -w -Wl,--build-id=none,-Ttext=0x100000,-n,-z,noexecstack"
)
DOMAIN = """\
<domain type='qemu'>
  <name>{name}</name>
  <metadata>{metadata}</metadata>
  <memory unit='KiB'>2048</memory><vcpu>1</vcpu>
  <os><type arch='x86_64' machine='pc'>hvm</type><kernel>{kernel}</kernel></os>
  <features><acpi/></features>
  <on_poweroff>destroy</on_poweroff><on_reboot>restart</on_reboot><on_crash>{on_crash}</on_crash>
  <devices>
    <emulator>{emulator}</emulator>
    <controller type='usb' model='none'/><memballoon model='none'/>
    <serial type='unix'><source mode='bind' path='{serial}'/><target port='0'/></serial>
    <panic model='isa'/>{devices}
  </devices>
</domain>"""
NETWORK_DISK = """\
<disk type='network' device='disk'>
  <driver name='qemu' type='raw' cache='none' error_policy='{write}' rerror_policy='{read}'/>
  <source protocol='nbd'{named}><host transport='unix' socket='{socket}'/></source>
  <target dev='hda' bus='ide'/>
</disk>"""
FILE_DISK = """\
<disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='{path}'/>
  <target dev='hda' bus='ide'/></disk>"""
CHANNEL = """\
<channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0'/></channel>"""


class GuestHost(Libvirt):
    """Guests outlive the daemon until the host itself is stopped."""

    def __init__(self) -> None:
        super().__init__()
        self._before: list[Kept] = []  # daemons that died; their keepers still keep the guests
        self._nbd: list[Kept] = []

    def find(self) -> None:
        super().find()
        for program in ("gcc", "nbdkit"):
            if which(program) is None:
                raise Missing(program, program)
        # one that the account of the host may run, too
        python = shutil.which("python3", path=SYSTEM)
        if python is None:
            raise Missing("python3 of the system", "python3")
        self.python = python

    def prepare(self) -> None:
        super().prepare()
        self.kernel = self.folder / "guest.elf"
        command = [*COMPILE.split(), "-o", self.kernel, HERE / "guest.c"]
        # newer linkers warn of a segment that is all in one
        ran = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
        assert ran.returncode == 0, ran.stderr
        self.sockets = self.folder / "s"
        self.sockets.mkdir(mode=0o777)
        self.sockets.chmod(0o777)
        self.wrapper = self.folder / "qemu"
        script = self.folder / "qmp.py"
        shutil.copy(HERE / "qmp.py", script)
        head = f"exec {self.python} {script} {self.sockets} {self.emulator}"
        self.wrapper.write_text(f'#!/bin/sh\n{head} "$@"\n')
        self.wrapper.chmod(0o755)

    # its daemon

    def die(self, number: int) -> None:
        """The daemon alone, by this signal."""
        assert self.kept is not None
        self.kept.signal(number)
        self.kept.wait(PATIENCE_S)
        self._before.append(self.kept)
        self.kept = None

    @contextlib.contextmanager
    def frozen_daemon(self) -> Iterator[None]:
        assert self.kept is not None
        self.kept.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.kept.signal(signal.SIGCONT)

    def stop(self) -> None:
        try:
            super().stop()
        finally:
            while self._before or self._nbd:
                (self._before or self._nbd).pop().close(keep=True)

    # its guests

    def xml(
        self,
        name: str,
        devices: str = "",
        *,
        on_crash: str = "destroy",
        proxied: bool = False,
        metadata: str = "",
    ) -> str:
        return DOMAIN.format(
            name=name,
            metadata=metadata,
            kernel=self.kernel,
            on_crash=on_crash,
            emulator=self.wrapper if proxied else self.emulator,
            serial=self.sockets / name,
            devices=devices,
        )

    def wait_ready(self, name: str) -> None:
        """Its guest runs and obeys. What is said before it listens is lost, so it is said again:
        after a moment first, later after longer, for a guest that gets no processor for a while."""
        waits_s = itertools.chain((0.3, 0.3, 0.3, 0.6, 1.0), itertools.repeat(3.0))

        def obeys() -> bool:
            wait_s = next(waits_s)
            return b"OK" in self.say(name, "h", wait_s, takes_s=wait_s)

        eventually(obeys, every=0.02)

    def say(self, name: str, command: str, wait_s: float = 0.3, takes_s: float = TAKES_S) -> bytes:
        """One byte to a guest; what it answers with, up to the end of a line."""
        heard = b""
        with socket.socket(socket.AF_UNIX) as serial:
            try:
                serial.connect(str(self.sockets / name))
                serial.sendall(command.encode())
                _taken(serial, takes_s)
                until = time.monotonic() + wait_s
                while b"\n" not in heard and (left := until - time.monotonic()) > 0:
                    serial.settimeout(left)
                    heard += serial.recv(100) or b"\n"
            except OSError:
                return heard
        return heard

    def pid(self, name: str) -> int:
        """Of its QEMU."""
        return int((self.folder / f"run/libvirt/qemu/run/{name}.pid").read_text())

    def kill_guest(self, name: str, number: int = signal.SIGKILL) -> int:
        pid = self.pid(name)
        os.kill(pid, number)
        return pid

    def spoil(self, name: str, order: str) -> None:
        """Its monitor: `garbage` or `close`."""
        with socket.socket(socket.AF_UNIX) as orders:
            orders.connect(str(self.sockets / f"{name}.qmp"))
            orders.sendall(order.encode())

    # their disks

    def nbd(self, name: str, error: str) -> Disk:
        """A disk that has this error whenever it is told to."""
        disk = Disk(self, name, error)
        self._nbd.append(disk.server)
        return disk


class Disk:
    def __init__(self, host: GuestHost, name: str, error: str) -> None:
        self.socket = host.sockets / f"{name}.nbd"
        self._bad = host.sockets / f"{name}.bad"
        words = [which("nbdkit") or "nbdkit", "-f", "-U", self.socket, "--filter=error"]
        words += ["memory", "1M"]
        for way in ("pread", "pwrite"):
            words += [f"error-{way}={error}", f"error-{way}-rate=100%"]
            words += [f"error-{way}-file={self._bad}"]
        self.server = Kept(words, log=host.log, user=host.user)
        eventually(self.socket.exists, every=0.01)

    def xml(self, write: str, read: str, *, named: bool = True) -> str:
        name = " name='vol0'" if named else ""
        return NETWORK_DISK.format(write=write, read=read, named=name, socket=self.socket)

    def spoil(self) -> None:
        self._bad.touch()

    def mend(self) -> None:
        self._bad.unlink()


def _taken(line: socket.socket, within_s: float) -> None:
    """All of it was read at the other end: what is not when we hang up is lost."""
    until = time.monotonic() + within_s
    while _unread(line) and time.monotonic() < until:
        time.sleep(0.002)


def _unread(line: socket.socket) -> int:
    (left,) = struct.unpack("i", fcntl.ioctl(line, termios.TIOCOUTQ, bytes(4)))
    return int(left)
