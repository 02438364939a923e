# SPDX-License-Identifier: Apache-2.0
"""Runs one command and makes sure that nothing of it outlives the tests.

`tests.processes.Kept` starts this file as a program of its own, between the tests and
the command. It is the reaper of everything the command leaves behind, daemons
included. Its standard input is a pipe from the tests: when that closes, be it on
purpose or because the tests were killed, it ends the command, first politely, then
not, and removes the command's folder if it was given one. The words `end` and `keep`
on that pipe do the same at once; `keep` spares the folder.

On standard output it says `pid N` once and `exit CODE` when the command ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time

PR_SET_CHILD_SUBREAPER = 36
GRACE = 5.0


def descendants() -> list[int]:
    """Everything below this process, parents before children."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                # the name of the program, in brackets, may hold anything
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        if fields[0] not in (b"Z", b"X"):
            children.setdefault(int(fields[1]), []).append(int(name))
    found: list[int] = []
    waiting = [os.getpid()]
    while waiting:
        below = children.get(waiting.pop(0), [])
        found += below
        waiting += below
    return found


class Keeper:
    """The command, and what it left behind."""

    def __init__(self, polite: int, user: str, command: list[str]) -> None:
        """Start the command."""
        self.polite = polite
        self.code: int | None = None
        more = {"user": user, "group": user, "extra_groups": []} if user else {}
        self.main = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=2,
            stderr=2,
            start_new_session=True,
            **more,
        ).pid

    def reap(self) -> bool:
        """Collect what has ended; whether there are children still."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return True
                if pid == self.main:
                    self.code = os.waitstatus_to_exitcode(status)
                    say(f"exit {self.code}")
        except ChildProcessError:
            return False

    def end(self) -> None:
        """Leave nothing running, nor dead and unreaped."""
        self.reap()
        if self.code is None:
            send(self.main, signal.SIGCONT)
            send(self.main, self.polite)
        deadline = time.monotonic() + GRACE
        while self.reap():
            if self.code is not None or time.monotonic() > deadline:
                for pid in descendants():
                    send(pid, signal.SIGKILL)
            time.sleep(0.01)


def send(pid: int, number: int) -> None:
    """Send a signal to a process that may be gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def say(line: str) -> None:
    """Tell the tests, if they are still there."""
    with contextlib.suppress(OSError):
        os.write(1, f"{line}\n".encode())


def main() -> None:
    """Keep `argv[4:]`, run as user `argv[3]`, until standard input closes."""
    polite, folder, user, *command = sys.argv[1:]
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        # not SIG_IGN: the command would inherit that
        signal.signal(number, lambda *_: None)
    wake, woken = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    keeper = Keeper(int(polite), user, command)
    say(f"pid {keeper.main}")
    with selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        selector.register(wake, selectors.EVENT_READ)
        while True:
            keeper.reap()
            ready = {key.fd for key, _ in selector.select()}
            if wake in ready:
                os.read(wake, 4096)
            if 0 in ready:
                word = os.read(0, 4096)
                break
    keeper.end()
    if folder and b"keep" not in word:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
