# SPDX-License-Identifier: Apache-2.0
"""Checks and restarts services of a Linux host: /proc, sockets, systemd, commands with deadline."""

import os
import re
import select
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.agent.processes import Command, Service

SYSTEMD_S: Final = 5.0
SOCKET_S: Final = 2.0
#: Number of bytes kept of a command's output.
MOST_OUTPUT_BYTES: Final = 300
#: Process states: zombie, dead, stopped, stopped by a debugger.
_USELESS: Final = {"Z": "dead", "X": "dead", "T": "stopped", "t": "stopped"}


class LinuxProcesses:
    """Checks and restarts services on Linux (`agent.processes.Processes`)."""

    def runs(self, service: Service) -> str:
        if service.unit:
            why = _unit(service.unit)
        elif service.pidfile:
            why = _pidfile(service.pidfile)
        elif service.process or service.matching or not (service.socket or service.probe):
            why = _process(service)
        else:
            why = ""
        if not why and service.socket:
            why = _listens(service.socket)
        if not why and service.probe:
            why = run(service.probe, service.probe_s)
        return why

    def restart(self, service: Service) -> str:
        for command in (service.before, service.restart, service.after):
            if command and (why := run(_as_root(command, service), service.restart_s)):
                return why
        return ""


def _as_root(command: Command, service: Service) -> Command:
    return ("sudo", "-n", *command) if service.as_root and os.geteuid() else command


# checks


def _process(service: Service) -> str:
    matching = re.compile(service.matching) if service.matching else None
    name = service.process or service.name
    own = os.getpid()
    states = [
        process.state
        for process in _all()
        if process.pid != own
        and (matching.search(" ".join(process.words)) if matching else process.is_called(name))
    ]
    if not states:
        return "no such process"
    useless = [_USELESS[state] for state in states if state in _USELESS]
    return f"its process is {useless[0]}" if len(useless) == len(states) else ""


def _pidfile(path: str) -> str:
    try:
        text = Path(path).read_text(errors="replace").strip()
    except OSError as error:
        return f"{path}: {error.strerror}"
    if not re.fullmatch("[0-9]{1,10}", text):
        return f"{path} has no number of a process in it"
    process = _read(Path("/proc") / text)
    if process is None:
        return f"the process {text} that {path} names is gone"
    useless = _USELESS.get(process.state)
    return f"its process {text} is {useless}" if useless else ""


def _unit(unit: str) -> str:
    code, output = _run(("systemctl", "is-active", unit), SYSTEMD_S, answer=True)
    return (
        ""
        if code == 0
        else f"systemd says that {unit} is {output}"
        if output
        else f"{unit}: {code}"
    )


def _listens(path: str) -> str:
    with socket.socket(socket.AF_UNIX) as way:
        way.settimeout(SOCKET_S)
        try:
            way.connect(path)
        except TimeoutError:
            return f"no answer at {path} within {SOCKET_S:g} s"
        except OSError as error:
            return f"no answer at {path}: {error.strerror or error}"
    return ""


@dataclass(frozen=True)
class _Process:
    pid: int
    parent: int
    session: int
    state: str
    comm: str
    words: tuple[str, ...]

    def is_called(self, name: str) -> bool:
        """Whether the process runs this program or script; `name` may be a path."""
        if not self.words:
            return name == self.comm
        script = next((word for word in self.words[1:] if not word.startswith("-")), "")
        heads = (self.words[0], script)
        return name in (heads if "/" in name else map(os.path.basename, heads))


def _all() -> Iterator[_Process]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (process := _read(folder)) is not None:
            yield process


def _read(folder: Path) -> _Process | None:
    """Read a process from /proc; None if it has just ended."""
    try:
        line = (folder / "cmdline").read_bytes()
        status = (folder / "stat").read_text(errors="replace")
    except OSError:
        return None
    comm, _, rest = status.partition("(")[2].rpartition(")")
    state, parent, _group, session, *_ = rest.split()
    words = tuple(word.decode(errors="replace") for word in line.split(b"\0") if word)
    return _Process(int(folder.name), int(parent), int(session), state, comm, words)


# commands


def run(command: Command, within_s: float) -> str:
    """Run a command; return why it failed, or "". Daemons that the command left keep running."""
    code, output = _run(command, within_s)
    if code == 0:
        return ""
    return (
        f"{command[0]} ended with {code}: {output}".rstrip(": ") if isinstance(code, int) else code
    )


def _run(command: Command, within_s: float, *, answer: bool = False) -> tuple[int | str, str]:
    """Run a command; return its exit code, or why there is none, and the start of its output.

    The output is stdout with `answer`, otherwise stderr. A daemon that a restart leaves behind may
    keep writing without harm.
    """
    said_at, other = subprocess.PIPE, subprocess.DEVNULL
    try:
        started = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=said_at if answer else other,
            stderr=other if answer else said_at,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        return f"{command[0]}: {getattr(error, 'strerror', None) or error}", ""
    said_by = started.stdout if answer else started.stderr
    assert said_by is not None
    with said_by as pipe:
        output = _listen(started, pipe.fileno(), time.monotonic() + within_s)
    if started.poll() is None:
        _end(started)
        return f"{command[0]} took longer than {within_s:g} s and was ended", output
    return started.returncode, output


def _listen(started: subprocess.Popen[bytes], pipe: int, until: float) -> str:
    """Read the pipe until the command ends or the deadline passes.

    All output is read, so that the command never blocks on a full pipe.
    """
    os.set_blocking(pipe, False)
    output, is_open = b"", True
    while True:
        ended = started.poll() is not None
        while is_open:
            try:
                heard = os.read(pipe, 65536)
            except BlockingIOError:
                break
            is_open = bool(heard)
            output = (output + heard)[:MOST_OUTPUT_BYTES]
        left = until - time.monotonic()
        if ended or left <= 0:
            return output.decode(errors="replace").strip()
        select.select([pipe] if is_open else [], [], [], min(left, 0.05))


def _end(started: subprocess.Popen[bytes]) -> None:
    """Kill a command and all its descendants, even in other sessions; spare other processes."""
    everybody = list(_all())
    doomed = {started.pid}
    while more := {process.pid for process in everybody if process.parent in doomed} - doomed:
        doomed |= more
    doomed |= {process.pid for process in everybody if process.session == started.pid}
    for pid in doomed:
        try:
            os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):  # it has ended, or sudo runs it as root
            continue
    started.wait(5)
