# SPDX-License-Identifier: Apache-2.0
"""Stands between libvirt and a QEMU's monitor, and spoils the talk when it is told to.

libvirt starts this in QEMU's place (`<emulator>`). A word sent to the socket FOLDER/NAME.qmp is
obeyed: `garbage` says something to libvirt that is no JSON, `close` hangs up, `keep` keeps what
QEMU says of its jobs from libvirt until `give`.
"""

from __future__ import annotations

import os
import re
import select
import socket
import sys
from pathlib import Path

JOB = re.compile(rb'"event": "(BLOCK_JOB|JOB_STATUS)')


def between(libvirt: socket.socket, qemu: socket.socket, orders: socket.socket) -> None:
    """Carry everything, until somebody hangs up."""
    keeps, kept = False, b""
    while True:
        ready, _, _ = select.select([libvirt, qemu, orders], [], [])
        if orders in ready:
            with orders.accept()[0] as who:
                order = who.recv(100)
            if order == b"close":
                return
            keeps = order == b"keep"
            if order == b"give":
                libvirt.sendall(kept)
                kept = b""
            elif order == b"garbage":
                libvirt.sendall(b"{ not json at all\r\n")
        for source, sink in ((libvirt, qemu), (qemu, libvirt)):
            if source in ready:
                data = source.recv(65536)
                if not data:
                    return
                if keeps and source is qemu:
                    lines = data.splitlines(keepends=True)
                    kept += b"".join(line for line in lines if JOB.search(line))
                    data = b"".join(line for line in lines if not JOB.search(line))
                sink.sendall(data)


def main(folder: Path, emulator: str, words: list[str]) -> None:
    """The process that libvirt knows becomes QEMU; its child carries."""
    places = [i for i, word in enumerate(words) if word.startswith("socket,id=charmonitor,fd=")]
    if not places:
        os.execv(emulator, [emulator, *words])
    monitor = int(re.findall(r"fd=(\d+)", words[places[0]])[0])
    name = next(re.findall("guest=([^,]+)", word)[0] for word in words if "guest=" in word)
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        theirs.close()
        listening = socket.socket(fileno=monitor)
        listening.listen(1)
        orders = socket.socket(socket.AF_UNIX)
        orders.bind(str(folder / f"{name}.qmp"))
        orders.listen(1)
        between(listening.accept()[0], ours, orders)
        os._exit(0)
    ours.close()
    os.close(monitor)
    os.set_inheritable(theirs.fileno(), True)
    words[places[0]] = f"socket,id=charmonitor,fd={theirs.fileno()}"
    os.execv(emulator, [emulator, *words])


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
