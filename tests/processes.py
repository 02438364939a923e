# SPDX-License-Identifier: Apache-2.0
"""Other programs, started by tests: ours and the servers they need.

`Program` is for tests. `Kept` is what it and `tests.servers` stand on: a process that
cannot outlive the tests, however they end.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Self, TypeVar

import psutil

T = TypeVar("T")

KEEPER = Path(__file__).with_name("keeper.py")
# below the ports that the kernel gives to outgoing connections: a server that is
# stopped and started again finds its port still free
PORTS = range(20000, 32768)

_ports: dict[int, socket.socket] = {}
_kept: list[Kept] = []
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def free_port() -> int:
    """A TCP port of 127.0.0.1 that is free and that no other test session will take.

    It stays ours until this process ends.
    """
    for port in random.sample(PORTS, len(PORTS)):
        if port in _ports:
            continue
        claim = socket.socket(socket.AF_UNIX)
        try:
            # an abstract name: the kernel forgets it when this process ends
            claim.bind(f"\0holdfast-test-port-{port}")
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("127.0.0.1", port))
                probe.listen()
        except OSError:
            claim.close()
            continue
        _ports[port] = claim
        return port
    raise AssertionError(f"no free port in {PORTS}")


#: How long a test waits for something that takes seconds at most on a quiet machine. Waiting costs
#: time only where something is wrong, so the limit allows for a machine ten times slower.
PATIENCE_S = 90.0


def eventually(predicate: Callable[[], T], timeout: float = PATIENCE_S, every: float = 0.05) -> T:
    """Ask until the answer is true, and return it.

    An AssertionError inside the predicate means "not yet".
    """
    deadline = time.monotonic() + timeout
    while True:
        last: object
        try:
            value = predicate()
            if value:
                return value
            last = value
        except AssertionError as error:
            last = error
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {timeout:g} s; last: {last!r}")
        time.sleep(every)


def answers(url: str) -> int | None:
    """The HTTP status that a URL answers with, None if it does not answer."""
    try:
        with _opener.open(url, timeout=5) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except (OSError, ValueError):
        return None


def tail(log: Path, lines: int = 40) -> str:
    """The last lines of a log file."""
    if not log.exists():
        return ""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


class Kept:
    """A running command, ended with all its descendants when the tests end."""

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        user: str = "",
        polite: signal.Signals = signal.SIGTERM,
        folder: Path | None = None,
    ) -> None:
        """Start it; its output is added to the log."""
        self.log = log
        self.name = Path(command[0]).name
        self._code: int | None = None
        self._lock = threading.Lock()
        self._said = b""
        self._closed = False
        head = [sys.executable, "-I", "-S", str(KEEPER)]
        words = [str(int(polite)), str(folder or ""), user, *map(str, command)]
        with log.open("ab") as output:
            self._keeper = subprocess.Popen(
                head + words,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env=env,
                cwd=cwd,
                start_new_session=True,
            )
        assert self._keeper.stdout is not None
        first = self._keeper.stdout.readline().split()
        if not first:
            self._keeper.communicate()
            raise RuntimeError(f"{self.name} did not start:\n{tail(log)}")
        self.pid = int(first[1])
        _kept.append(self)

    def poll(self) -> int | None:
        """The exit code, None while it runs; minus the signal that killed it."""
        with self._lock:
            if self._closed:
                return self._code
            out = self._keeper.stdout
            assert out is not None
            while self._code is None and select.select([out], [], [], 0)[0]:
                got = os.read(out.fileno(), 4096)
                if not got:
                    break
                self._said += got
                if self._said.endswith(b"\n"):
                    self._code = int(self._said.split()[-1])
            return self._code

    def wait(self, timeout: float) -> int:
        """The exit code, within the timeout, else TimeoutError."""
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            left = deadline - time.monotonic()
            if left <= 0 or self._closed:
                raise TimeoutError(f"{self.name} still runs after {timeout:g} s")
            time.sleep(min(0.01, left))
        return code

    def tree(self) -> list[psutil.Process]:
        """The command and all that descends from it and still runs."""
        found = []
        if not self._closed:
            with contextlib.suppress(psutil.NoSuchProcess):
                found = psutil.Process(self._keeper.pid).children(recursive=True)
        return [process for process in found if not _dead(process)]

    def signal(self, number: int) -> None:
        """Send a signal to the command itself."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def signal_tree(self, number: int) -> None:
        """Send a signal to the command and all its descendants, born meanwhile too."""
        done: set[int] = set()
        while new := [process for process in self.tree() if process.pid not in done]:
            for process in new:
                done.add(process.pid)
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(number)

    def close(self, *, keep: bool = False) -> list[str]:
        """End whatever is left; returns what that was. `keep` spares the folder."""
        if self._closed:
            return []
        left = [_describe(process) for process in self.tree()]
        self.signal_tree(signal.SIGCONT)
        self.poll()
        keeper = self._keeper
        assert keeper.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            keeper.stdin.write(b"keep" if keep else b"end")
        try:
            keeper.wait(PATIENCE_S)
        finally:
            self.poll()
            with self._lock:
                self._closed = True
                for pipe in (keeper.stdin, keeper.stdout):
                    assert pipe is not None
                    pipe.close()
            with contextlib.suppress(ValueError):
                _kept.remove(self)
        return left


def _dead(process: psutil.Process) -> bool:
    try:
        return bool(process.status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD))
    except psutil.NoSuchProcess:
        return True


def _describe(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return f"{process.pid} {' '.join(process.cmdline())[:100]}"
    return str(process.pid)


def end_all() -> list[str]:
    """End every process still kept; returns what was running."""
    return [line for kept in list(_kept) for line in kept.close()]


class Program:
    """One of our programs, running for a test.

    `command` is `[sys.executable, "-m", ...]` or starts with the path of a console
    script (`script("holdfast")`). It may be started again after it ended; the log grows.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        folder: Path,
        *,
        env: Mapping[str, str] | None = None,
        name: str | None = None,
    ) -> None:
        """Prepare it to run in `folder`, `env` added to our environment."""
        self.command = command
        self.folder = folder
        self.name = name or Path(command[0]).name
        self.log = folder / f"{self.name}.log"
        self.env = {**os.environ, **(env or {})}
        self._kept: Kept | None = None

    def start(self) -> Self:
        """Start it, without waiting for anything."""
        if self._kept is not None:
            assert self._kept.poll() is not None, f"{self.name} runs already"
            self._kept.close()
        self._kept = Kept(self.command, log=self.log, env=self.env, cwd=self.folder)
        return self

    def __enter__(self) -> Self:
        """Start it unless it was started."""
        return self if self._kept is not None else self.start()

    def __exit__(self, *_: object) -> None:
        """End it, by force if it still runs."""
        self.kill()

    @property
    def kept(self) -> Kept:
        """The process; there is one from the first start on."""
        assert self._kept is not None, f"{self.name} was not started"
        return self._kept

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.kept.pid

    def poll(self) -> int | None:
        """The exit code, None while it runs."""
        return self.kept.poll()

    def wait_until(
        self, predicate: Callable[[], T], timeout: float = PATIENCE_S, every: float = 0.05
    ) -> T:
        """Wait until the predicate holds; fail at once if the program ends before."""
        ended: list[int] = []

        def either() -> object:
            if value := predicate():
                return (value,)
            if (code := self.poll()) is not None:
                ended.append(code)
            return bool(ended)

        try:
            answer = eventually(either, timeout, every)
        except AssertionError as error:
            raise AssertionError(f"{self.name}: {error}\n{self.tail()}") from None
        if not isinstance(answer, tuple):
            raise AssertionError(f"{self.name} ended with {ended[0]}\n{self.tail()}")
        value: T = answer[0]
        return value

    def wait_http(self, url: str, timeout: float = PATIENCE_S) -> int:
        """Wait until a URL answers with a status below 500, and return that."""

        def ready() -> int | None:
            status = answers(url)
            return status if status is not None and status < 500 else None

        status = self.wait_until(ready, timeout)
        assert status is not None
        return status

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self.kept.signal(number)

    def pause(self) -> None:
        """Freeze it, its children too."""
        self.kept.signal_tree(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on after `pause`."""
        self.kept.signal_tree(signal.SIGCONT)

    def kill(self) -> None:
        """Kill it at once (`kill -9`), then what it leaves behind."""
        if self._kept is not None:
            self._kept.signal(signal.SIGKILL)
            self._kept.close()

    def terminate(self, timeout: float = PATIENCE_S, children_s: float = 30.0) -> int:
        """Ask it to end (SIGTERM), see that it and its children do, and return the exit code."""
        self.kept.signal(signal.SIGTERM)
        try:
            code = self.kept.wait(timeout)
        except TimeoutError as error:
            self.kill()
            raise AssertionError(f"{error}\n{self.tail()}") from None
        with contextlib.suppress(AssertionError):
            eventually(lambda: not self.kept.tree(), children_s, 0.01)
        left = self.kept.close()
        assert not left, f"{self.name} left behind {left}\n{self.tail()}"
        return code

    def tail(self, lines: int = 40) -> str:
        """The end of its log, for messages of failure."""
        return f"--- {self.log}\n{tail(self.log, lines)}"


def script(name: str) -> Path:
    """One of the console scripts of this environment."""
    return Path(sys.executable).with_name(name)
