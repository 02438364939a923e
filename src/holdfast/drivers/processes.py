# SPDX-License-Identifier: Apache-2.0
"""Services of a Linux host: /proc, and commands that have a deadline."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from holdfast.ports.processes import Service

PROBE_S: Final = 5.0
RESTART_S: Final = 60.0
#: Of a command's complaint so much is kept.
MOST_SAID: Final = 300
#: Dead and not collected, dead, stopped, stopped by a debugger.
_USELESS: Final = {"Z": "dead", "X": "dead", "T": "stopped", "t": "stopped"}


class LinuxProcesses:
    def runs(self, service: Service) -> str:
        if service.probe:
            return run(service.probe, PROBE_S)
        states = list(_states(service.name))
        if not states:
            return "no such process"
        useless = [_USELESS[state] for state in states if state in _USELESS]
        return f"its process is {useless[0]}" if len(useless) == len(states) else ""

    def restart(self, service: Service) -> str:
        return run(service.restart, RESTART_S)


def run(command: tuple[str, ...], within_s: float) -> str:
    """Why a command did not end well, "" if it did. What it started and left goes on."""
    try:
        started = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        return f"{command[0]}: {error.strerror}"
    assert started.stderr is not None
    with started.stderr as complaint:
        os.set_blocking(complaint.fileno(), False)
        try:
            code = started.wait(within_s)
        except subprocess.TimeoutExpired:
            os.killpg(started.pid, signal.SIGKILL)
            started.wait()
            return f"{command[0]} took longer than {within_s:g} s"
        said = (complaint.read(MOST_SAID) or b"").decode(errors="replace").strip()
    return f"{command[0]} ended with {code}: {said}".rstrip(": ") if code else ""


def _states(name: str) -> Iterator[str]:
    """Of each process of that name: of its program, or of the script that its program runs."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")[:2]
            status = (folder / "stat").read_text(errors="replace")
        except OSError:  # it has just ended
            continue
        comm, _, rest = status.partition("(")[2].rpartition(")")
        names = {os.path.basename(word.decode(errors="replace")) for word in words if word}
        if name in names or (not names and name == comm):
            yield rest.split()[0]
