# SPDX-License-Identifier: Apache-2.0
"""Where the lab is: its folders, its ports, and the lock on it."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import random
import socket
import time
from collections.abc import Iterator, Sequence, Set
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HERE = Path(__file__).resolve().parent
PASSWORD = "pw"
REGION = "RegionOne"
COMPUTES = ("cmp1", "cmp2", "cmp3", "cmp4")
# below the ports of quick tests, and below those that the kernel gives away
PORTS = range(12000, 20000)
LISTENERS = (
    "mariadb",
    "rabbitmq",
    "epmd",
    "erlang",
    "keystone",
    "placement",
    "glance",
    "neutron",
    "nova-api",
    "blazar-api",
)
# those who came later than some labs: what is made anew when ports change does not name them
LATER = ("masakari-api",)


class Busy(Exception):
    """Another command has the lab in hand."""


class Place:
    """The folder of one lab; by default `.lab` of this checkout."""

    def __init__(self, folder: Path = ROOT / ".lab") -> None:
        """Nothing is made yet."""
        self.folder = folder
        self.venv = folder / "venv"
        self.etc = folder / "etc"
        self.logs = folder / "log"
        self.run = folder / "run"
        self.stamps = folder / "stamps"
        self.state = folder / "up.json"
        self.up_log = folder / "up.log"

    def make(self) -> None:
        """Make the folders that are always there."""
        for folder in (self.etc, self.logs, self.run, self.stamps):
            folder.mkdir(parents=True, exist_ok=True)

    @cached_property
    def ports(self) -> dict[str, int]:
        """The port of each listener: chosen once, then kept."""
        file = self.folder / "ports.json"
        ports: dict[str, int] = json.loads(file.read_text()) if file.exists() else {}
        missing = [name for name in (*LISTENERS, *LATER) if name not in ports]
        if missing:
            self.folder.mkdir(parents=True, exist_ok=True)
            ports |= choose_ports(missing, set(ports.values()))
            write(file, json.dumps(ports, indent=1))
        return ports

    @property
    def made_with(self) -> dict[str, int]:
        """The ports that databases and catalog go by: with others all is made anew."""
        return {name: self.ports[name] for name in LISTENERS}

    def peer(self, name: str) -> Path:
        """The virtual environment of another project's service."""
        return self.folder / name

    def url(self, name: str) -> str:
        """The root URL of an HTTP part."""
        return f"http://127.0.0.1:{self.ports[name]}"

    @property
    def auth_url(self) -> str:
        """Keystone."""
        return f"{self.url('keystone')}/v3"

    @property
    def transport_url(self) -> str:
        """The broker, as oslo.messaging writes it."""
        return f"rabbit://guest:guest@127.0.0.1:{self.ports['rabbitmq']}//"

    def database_url(self, name: str) -> str:
        """The SQLAlchemy URL of one of the services' databases."""
        return f"mysql+pymysql://root@127.0.0.1:{self.ports['mariadb']}/{name}"

    def program(self, name: str) -> str:
        """A program of the cloud's virtual environment."""
        return str(self.venv / "bin" / name)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Have the lab to oneself, or raise Busy with the process that has it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("a+") as file:
            # whoever only looks has it for an instant
            for attempt in range(10):
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    time.sleep(0.02 * attempt)
            else:
                file.seek(0)
                raise Busy(file.read().strip())
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield

    def busy(self) -> bool:
        """Whether somebody has the lab in hand."""
        with (self.folder / "lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False


def choose_ports(names: Sequence[str], taken: Set[int]) -> dict[str, int]:
    """Free ports of 127.0.0.1 for those who listen."""
    chosen: dict[str, int] = {}
    candidates = iter(random.sample(PORTS, len(PORTS)))
    for name in names:
        chosen[name] = next(port for port in candidates if port not in taken and is_free(port))
    return chosen


def is_free(port: int) -> bool:
    """Whether no program listens there."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen()
        except OSError:
            return False
    return True


def write(file: Path, text: str) -> None:
    """Write a file in one go: a reader sees the old text or the new."""
    new = file.with_name(f"{file.name}.new")
    new.write_text(text)
    new.replace(file)


def digest(*values: object) -> str:
    """A short name for these values: equal values, equal name."""
    text = json.dumps(values, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
