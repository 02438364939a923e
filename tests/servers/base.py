# SPDX-License-Identifier: Apache-2.0
"""What the servers have in common: a port, a folder, a life."""

from __future__ import annotations

import abc
import atexit
import contextlib
import glob
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from tests.processes import Kept, eventually, free_port, tail

# what a user's PATH may lack
SYSTEM = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Missing(Exception):
    """The server is not installed on this machine."""

    def __init__(self, server: str, package: str) -> None:
        """Say what is missing and how to get it."""
        super().__init__(
            f"{server} is not installed: `make test-deps`, or `apt-get install {package}`"
        )


class Server(abc.ABC):
    """A server on a private port of 127.0.0.1, with its data in a private folder.

    It keeps port and data over `stop` and `start`; `close` gives both back.
    """

    name: str
    account = ""  # who runs it when we are root; "": root
    polite = signal.SIGTERM
    patience = 180.0

    def __init__(self) -> None:
        """Nothing is started yet."""
        self.port = 0
        self.folder = Path()
        self.kept: Kept | None = None
        self.frozen = False

    # what each server says about itself

    @abc.abstractmethod
    def find(self) -> None:
        """Find the binaries, or raise Missing."""

    @abc.abstractmethod
    def prepare(self) -> None:
        """Make the data, once, in the empty folder."""

    @abc.abstractmethod
    def command(self) -> list[str]:
        """What to run."""

    @abc.abstractmethod
    def ready(self) -> bool:
        """Whether it answers."""

    @property
    @abc.abstractmethod
    def url(self) -> str:
        """Where it is."""

    def environment(self) -> dict[str, str]:
        """Its whole environment: nothing of ours leaks in."""
        return {"PATH": search_path(), "HOME": str(self.folder), "LANG": "C.UTF-8"}

    # the life

    def start(self) -> Self:
        """Start it and wait until it answers; nothing to do if it does already."""
        if self.running:
            self.resume()
            return self
        try:
            self._start()
        except BaseException:
            self._end()
            raise
        return self

    def _start(self) -> None:
        if not self.port:
            self.find()
            self.folder = Path(tempfile.mkdtemp(prefix=f"hf-{self.name.lower()}-"))
            atexit.register(self.close)
            if self.user:
                shutil.chown(self.folder, self.user, self.user)
            self.prepare()
            self.port = free_port()
        elif self.kept is not None:  # it died
            self.kept.close(keep=True)
        self.launch()
        deadline = time.monotonic() + self.patience
        while not self.ready():
            assert self.kept is not None
            code = self.kept.poll()
            if code is not None or time.monotonic() > deadline:
                outcome = "does not answer" if code is None else f"ended with {code}"
                raise RuntimeError(f"{self.name} {outcome}\n{tail(self.log)}")
            time.sleep(0.02)

    def launch(self) -> None:
        """Start the process."""
        self.kept = Kept(
            self.command(),
            log=self.log,
            env=self.environment(),
            cwd=self.folder,
            user=self.user,
            polite=self.polite,
            folder=self.folder,
        )

    def stop(self) -> None:
        """End it politely, and see that nothing of it is left. The data stays."""
        process = self.kept
        if process is None:
            return
        try:
            self.resume()
            if process.poll() is None:
                process.signal(self.polite)
                process.wait(self.patience)
            with contextlib.suppress(AssertionError):
                eventually(lambda: not process.tree(), 30, 0.01)
        finally:
            left = self._end()
        assert not left, f"{self.name} left behind {left}\n{tail(self.log)}"

    def kill(self) -> None:
        """End it as a power cut does. The data stays."""
        if self.kept is not None:
            self.kept.signal_tree(signal.SIGKILL)
        self._end()

    def _end(self) -> list[str]:
        process, self.kept, self.frozen = self.kept, None, False
        return process.close(keep=True) if process is not None else []

    def restart(self) -> None:
        """Stop and start it on the same port, with the same data."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop it and remove its folder."""
        try:
            self.stop()
        finally:
            atexit.unregister(self.close)
            if self.folder.is_absolute():
                shutil.rmtree(self.folder, ignore_errors=True)
            self.port, self.folder = 0, Path()

    def pause(self) -> None:
        """Freeze it: connections stay open, and nothing answers."""
        assert self.kept is not None, f"{self.name} does not run"
        self.frozen = True
        self.kept.signal_tree(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on after `pause`."""
        if self.frozen and self.kept is not None:
            self.kept.signal_tree(signal.SIGCONT)
        self.frozen = False

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Freeze it for a while."""
        self.pause()
        try:
            yield
        finally:
            self.resume()

    @contextlib.contextmanager
    def down(self) -> Iterator[None]:
        """Stop it for a while."""
        self.stop()
        try:
            yield
        finally:
            self.start()

    def __enter__(self) -> Self:
        """Start it."""
        return self.start()

    def __exit__(self, *_: object) -> None:
        """Stop it and remove its folder."""
        self.close()

    @property
    def running(self) -> bool:
        """Whether its process lives."""
        return self.kept is not None and self.kept.poll() is None

    @property
    def log(self) -> Path:
        """Where its output goes."""
        return self.folder / "log"

    @property
    def user(self) -> str:
        """The account to switch to; "" to stay who we are."""
        if not self.account or os.geteuid() != 0:
            return ""
        try:
            return pwd.getpwnam(self.account).pw_name
        except KeyError:
            return "nobody"

    def run(self, command: list[str]) -> None:
        """Run one of its tools to the end."""
        change = {"user": self.user, "group": self.user, "extra_groups": []}
        with self.log.open("ab") as log:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment(),
                cwd=self.folder,
                timeout=self.patience,
                check=False,
                **(change if self.user else {}),
            )
        if done.returncode:
            raise RuntimeError(f"{command[0]} ended with {done.returncode}\n{tail(self.log)}")


class Database(Server):
    """A database server."""

    def new_database(self) -> str:
        """Make an empty database and return its SQLAlchemy URL.

        A test before may have left the server stopped or frozen: that ends here.
        """
        self.start()
        name = f"hf_{uuid.uuid4().hex[:12]}"
        self.create(name)
        return self.database_url(name)

    def drop_database(self, url: str) -> None:
        """Remove it, with whoever is still connected."""
        self.start()
        self.drop(url.rpartition("/")[2].partition("?")[0])

    @abc.abstractmethod
    def database_url(self, name: str) -> str:
        """The SQLAlchemy URL of one database."""

    @abc.abstractmethod
    def create(self, name: str) -> None:
        """Make a database."""

    @abc.abstractmethod
    def drop(self, name: str) -> None:
        """Remove a database."""


def search_path() -> str:
    """PATH, and the system's folders."""
    return f"{os.environ.get('PATH', '')}:{SYSTEM}"


def which(*names: str, places: str = "") -> str | None:
    """The first of these programs: in the newest of some folders, then on PATH."""
    folders = sorted(glob.glob(places), key=_version, reverse=True) if places else []
    for name in names:
        path = shutil.which(name, path=":".join([*folders, search_path()]))
        if path is not None:
            return path
    return None


def _version(path: str) -> list[int]:
    digits = "".join(c if c.isdigit() else " " for c in path)
    return [int(number) for number in digits.split()]
