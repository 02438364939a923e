# SPDX-License-Identifier: Apache-2.0
"""A Linux guest for tests: Debian's kernel, busybox and QEMU's real guest agent, in 112 MiB.

    linux = built()                      # Missing where `make test-deps` could not fetch its parts
    xml = linux.within(host.xml(...))    # any guest's XML, booting Linux now
    console = Console(path)              # of its serial port
    console.do("kill -9 $(pidof qemu-ga)")

It is made once for this environment, of packages that are not installed. The kernel is unpacked on
our side: to do that itself would take an emulated machine 18 seconds.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import re
import shutil
import socket
import stat
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Self

from tests.processes import PATIENCE_S, eventually
from tests.servers import kernel
from tests.servers.base import Missing

HOME = Path(sys.prefix) / "linux-guest"
INIT = Path(__file__).with_name("linux_init")
#: Each by the names that it has in different kernels.
MODULES = (("virtio_pci",), ("virtio_console",), ("i6300esb",), ("pvpanic-mmio", "pvpanic"))
MEMORY_MIB = 112
#: A machine that is busy looks hung to a kernel within it: that must not be said in the middle of
#: what an order prints. A panic is said all the same.
WORDS = "console=ttyS0 quiet loglevel=1 nowatchdog panic=0"
#: It takes 15 s on a quiet machine.
BOOTS_S = 300.0
FOLDERS = ("bin", "dev", "proc", "sys", "run", "modules")
AGENT = "sbin/qemu-ga"


class NotFetched(Missing):
    """Its parts are not here."""

    def __init__(self) -> None:
        """Say so."""
        Exception.__init__(self, "what a Linux guest is made of is not here: `make test-deps`")


@dataclass(frozen=True)
class Linux:
    kernel: Path
    disk: Path

    def copied(self, folder: Path) -> Self:
        """For somebody who may not look into our own folders."""
        there = [Path(shutil.copy(file, folder)) for file in (self.kernel, self.disk)]
        for copy in there:
            copy.chmod(0o644)
        return type(self)(*there)

    def within(self, xml: str) -> str:
        """A guest's XML, with this instead of what it boots."""
        boot = f"<kernel>{self.kernel}</kernel><initrd>{self.disk}</initrd>"
        boot += f"<cmdline>{WORDS}</cmdline>"
        xml = re.sub("<kernel>.*</kernel>", boot, xml)
        memory = f"<memory unit='MiB'>{MEMORY_MIB}</memory>"
        return re.sub("<memory .*</memory>", memory, xml)


def built() -> Linux:
    """Made by the first who asks; others wait for it. Missing if there is nothing to make it of."""
    parts = {path.name.partition("_")[0]: path for path in (HOME / "parts").glob("*.deb")}
    if not parts:
        raise NotFetched
    sources = [Path(file).read_text() for file in (__file__, kernel.__file__, INIT)]
    about = (*sources, *map(str, sorted(parts.values())))
    made = HOME / hashlib.sha256("\n".join(about).encode()).hexdigest()[:12]
    linux = Linux(made / "kernel", made / "disk")
    with (HOME / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            for old in HOME.iterdir():
                if old.is_dir() and old.name != "parts":
                    shutil.rmtree(old)
            new = HOME / "new"
            new.mkdir()
            _make(parts, new)
            new.rename(made)
    return linux


def _make(parts: Mapping[str, Path], folder: Path) -> None:
    (image,) = (path for name, path in parts.items() if name.startswith("linux-image-"))
    unpacked = dict(
        _files(image, r"boot/vmlinuz-.*|lib/modules/.*(/modules\.builtin|\.ko(\.\w+)?)")
    )
    (packed,) = (data for name, data in unpacked.items() if name.startswith("boot/"))
    (folder / "kernel").write_bytes(kernel.unpacked(packed))
    files = _modules(unpacked)
    files |= _files(parts["busybox-static"], "bin/busybox")
    files |= _files(parts["qemu-guest-agent"], AGENT)
    files |= _libraries(files[AGENT], folder / "agent")
    files["init"] = INIT.read_bytes()
    (folder / "disk").write_bytes(archive(files))


def _files(package: Path, wanted: str) -> Iterator[tuple[str, bytes]]:
    """Files of a Debian package whose paths, below / or /usr, are like this."""
    command = ["dpkg-deb", "--fsys-tarfile", str(package)]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE) as tar,
        tarfile.open(fileobj=tar.stdout, mode="r|") as files,
    ):
        for file in files:
            name = re.sub(r"^\./(usr/)?", "", file.name)
            if file.isfile() and re.fullmatch(wanted, name):
                data = files.extractfile(file)
                assert data is not None
                yield name, data.read()


def _modules(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """As they are loaded: their names, and `order`."""
    builtin = [
        line
        for path, data in files.items()
        if path.endswith("/modules.builtin")
        for line in data.decode().split()
    ]
    modules = kernel.in_order(files, builtin, MODULES)
    order = "".join(f"{name}.ko\n" for name in modules).encode()
    return {f"modules/{name}.ko": elf for name, elf in modules.items()} | {"modules/order": order}


def _libraries(program: bytes, at: Path) -> dict[str, bytes]:
    """Those of this machine, which is of the same release."""
    at.write_bytes(program)
    at.chmod(0o755)
    ran = subprocess.run(["ldd", at], check=True, capture_output=True, text=True, timeout=60)
    at.unlink()
    lacking = re.findall(r"(\S+) => not found", ran.stdout)
    if lacking:
        raise Missing(f"{' '.join(lacking)}, which QEMU's guest agent needs,", "qemu-system-x86")
    paths = re.findall(r"(?:^|=>)\s+(/\S+) \(", ran.stdout, re.MULTILINE)
    return {path.lstrip("/"): Path(path).read_bytes() for path in paths}


def archive(files: Mapping[str, bytes]) -> bytes:
    """As the kernel unpacks it into its first root: cpio, the format called newc."""
    folders = {str(parent) for name in files for parent in PurePosixPath(name).parents} | {*FOLDERS}
    out = bytearray()
    for folder in sorted(folders - {"."}):
        out += _entry(folder, stat.S_IFDIR | 0o755)
    for name, data in files.items():
        out += _entry(name, stat.S_IFREG | 0o755, data)
    return bytes(out + _entry("TRAILER!!!", 0))


def _entry(name: str, mode: int, data: bytes = b"") -> bytes:
    size = len(name.encode()) + 1
    fields = (0, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, size, 0)
    head = b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
    return _filled(head) + _filled(data)


def _filled(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


class Console:
    """A guest's serial port. It is read all the time: a Linux that nobody listens to stops at the
    first word that it cannot get rid of."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(path))
        self._lock = threading.Lock()
        self._heard = ""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while data := self._socket.recv(4096):
                with self._lock:
                    self._heard += data.decode(errors="replace").replace("\r", "")

    @property
    def heard(self) -> str:
        with self._lock:
            return self._heard

    def wait(self, words: str, within_s: float = PATIENCE_S, since: int = 0) -> re.Match[str]:
        """Until it says this, a regular expression."""

        def said() -> re.Match[str]:
            match = re.compile(words).search(self.heard, since)
            assert match, self.heard[-500:]
            return match

        return eventually(said, within_s, 0.02)

    def ready(self) -> None:
        """It obeys from now on."""
        match = self.wait("guest is ready\n|guest cannot load (.*)\n", BOOTS_S)
        assert not match[1], f"{match[0]}{self.heard}"

    def say(self, order: str) -> None:
        """Without waiting for its end; it may have none."""
        self._socket.sendall(f"{order}\n".encode())

    def do(self, order: str, within_s: float = PATIENCE_S) -> str:
        """What it prints. RuntimeError if it fails."""
        since = len(self.heard)
        self.say(order)
        match = self.wait(r"([\s\S]*?)order ended with (\d+)\n", within_s, since)
        if match[2] != "0":
            raise RuntimeError(f"{order} in the guest: {match[1]}")
        return match[1]

    def close(self) -> None:
        with contextlib.suppress(OSError):  # the guest has ended
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
