# SPDX-License-Identifier: Apache-2.0
"""Plugins for tests, well-behaved and otherwise, and snapshots for them.

Plugins run in a process of their own: what they saw is in files of a folder that the environment
names.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from holdfast.ports.metric_plugins import Context, Note
from holdfast.ports.metrics import DISK, GUEST, HOST, NIC, Entity, Reading, Snapshot, Table

HERE = "tests.metrics.plugged"
BEGIN = datetime(2026, 11, 16, tzinfo=UTC)
#: The variable that names the folder.
FOLDER = "HOLDFAST_TESTS_PLUGGED"


class Seen:
    """What plugins saw, under the key that they were configured with."""

    def __getitem__(self, key: str) -> list[Any]:
        file = Path(os.environ[FOLDER], key)
        lines = file.read_text().splitlines(True) if file.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]


SEEN = Seen()


def saw(key: str, *said: Any) -> None:
    """Called by plugins."""
    with open(Path(os.environ[FOLDER], key), "a") as file:
        file.write(json.dumps(said[0] if len(said) == 1 else said, default=str) + "\n")


def release() -> None:
    """Let go of those that hang."""
    Path(os.environ[FOLDER], "release").touch()


def hang() -> None:
    while not Path(os.environ[FOLDER], "release").exists():
        time.sleep(0.005)


class Keyed:
    key = "?"

    def configure(self, config: Mapping[str, Any]) -> None:
        if "bad" in config:
            raise ValueError("bad is not taken")
        self.key = config.get("key", "?")


class Counting(Keyed):
    def on_host(self, d: Any) -> None:
        saw(self.key, d["ctx"]["pass_id"])


class Everything(Keyed):
    def on_host(self, d: Any) -> None:
        saw(self.key, "on_host", d)

    def on_cpu(self, d: Any, ctx: Context) -> None:
        saw(self.key, "on_cpu", d, [ctx.pass_id, ctx.host, ctx.config_version, ctx.shadow])

    def on_ram(self, d: Any, limit: float = 3.0) -> None:
        saw(self.key, "on_ram", d, limit)

    def on_volume(self, d: Any, ctx: Context | None = None) -> None:
        saw(self.key, "on_volume", d, ctx is not None)

    def close(self) -> None:
        saw(self.key, ["close"])


class Raising(Keyed):
    def on_cpu(self, d: Any) -> None:
        raise RuntimeError("of mine")


class Exiting(Keyed):
    def on_host(self, d: Any) -> None:
        sys.exit(3)


class Boundless(Keyed):
    def on_host(self, d: Any, ctx: Context) -> None:
        ctx.report("a share of nothing", value=float("inf"))


class Slow(Keyed):
    def on_host(self, d: Any) -> None:
        saw(self.key, d["ctx"]["pass_id"])
        time.sleep(0.4)


class Lazy(Keyed):
    """Slower than passes come, and never too slow."""

    def on_cpu(self, d: Any) -> None:
        saw(self.key, d["ctx"]["pass_id"])
        time.sleep(0.03)


class Hanging(Keyed):
    def on_host(self, d: Any) -> None:
        saw(self.key, d["ctx"]["pass_id"])
        hang()


class Held(Keyed):
    """Behind until it is let go."""

    def on_cpu(self, d: Any) -> None:
        saw(self.key, d["ctx"]["pass_id"])
        hang()


class Spinning(Keyed):
    def on_host(self, d: Any) -> None:
        while True:
            pass


class Burning(Keyed):
    """Each call is quick, all of them together are not."""

    def on_cpu(self, d: Any) -> None:
        until = time.thread_time() + 0.01
        while time.thread_time() < until:
            pass


class Leaking(Keyed):
    def __init__(self) -> None:
        self.kept: list[bytes] = []

    def on_host(self, d: Any) -> None:
        self.kept.append(b"x" * (6 * 2**20))


class Spoiling(Keyed):
    """Tries to change what others get, and says what it could."""

    def on_cpu(self, d: Any) -> None:
        for name, change in (
            ("set", lambda: d.__setitem__("util_ratio", 99)),
            ("update", lambda: d.update(util_ratio=99)),
            ("pop", lambda: d.pop("util_ratio")),
            ("clear", d.clear),
            ("del", lambda: d.__delitem__("util_ratio")),
            ("ctx", lambda: d["ctx"].__setitem__("host", "x")),
            ("vcpu", lambda: d["vcpus"][0].__setitem__("time_ns", 0)),
            ("vcpus", lambda: d["vcpus"].append({})),
            ("missing", lambda: d["missing"].append("all")),
            ("contracts", d["contracts"].clear),
        ):
            try:
                change()
            except (TypeError, AttributeError):
                continue
            saw(self.key, name)


class HangingAtFirst(Keyed):
    def __init__(self) -> None:
        hang()

    def on_host(self, d: Any) -> None:
        pass


class Quiet:
    """All callbacks, a little work, and nothing else."""

    def on_host(self, d: Any) -> None:
        sum(range(1000))

    on_cpu = on_ram = on_volume = on_bandwidth = on_host


class Backtracking(Keyed):
    """In C code that holds the interpreter's lock for an hour."""

    def on_host(self, d: Any) -> None:
        re.match(r"(a+)+$", "a" * 60 + "b")


class Threads(Keyed):
    """Leaves eight threads behind that never rest."""

    started = False

    def on_host(self, d: Any) -> None:
        def spin() -> None:
            while True:
                pass

        for _ in range(0 if self.started else 8):
            threading.Thread(target=spin, daemon=True).start()
        self.started = True


class Forking(Keyed):
    """Leaves a copy of the process behind, and a program in a session of its own."""

    started = False

    def on_host(self, d: Any) -> None:
        if self.started:
            return
        self.started = True
        program = subprocess.Popen(["sleep", "3600"], start_new_session=True)
        pid = os.fork()
        if not pid:
            time.sleep(3600)
        saw(self.key, pid, program.pid)


class Returning(Keyed):
    """Forks, and lets both copies return."""

    def on_host(self, d: Any, ctx: Context) -> None:
        os.fork()
        saw(self.key, os.getpid())
        ctx.report("twice")


class Multiplying(Keyed):
    def on_host(self, d: Any) -> None:
        for _ in range(100):
            if not os.fork():
                time.sleep(3600)
        time.sleep(3600)


class Printing(Keyed):
    def on_host(self, d: Any) -> None:
        for file in (sys.stdout, sys.stderr):
            print("x" * 100_000, file=file, flush=True)
        os.write(1, b"x" * 100_000)
        os.close(0)
        saw(self.key, sys.stdin is not None)


class Closing(Keyed):
    def on_host(self, d: Any) -> None:
        os.closerange(3, 256)


class Babbling(Keyed):
    """Writes into every file that is open, the socket to the agent too."""

    def on_host(self, d: Any) -> None:
        for number in range(3, 1024):  # the test may have many open files
            try:
                os.write(number, b'{"turn": [], "strikes": 7}')
            except OSError:
                continue


class Leaving(Keyed):
    def on_host(self, d: Any) -> None:
        os._exit(3)


class Crashing(Keyed):
    def on_host(self, d: Any) -> None:
        ctypes.string_at(0)


class Sneaky(Keyed):
    """Reports a condition round the checks of `tell`."""

    def on_host(self, d: Any, ctx: Context) -> None:
        ctx.hear(Note("sneaky", "cmp-7", "", "it is so", BEGIN, "warning", "much", 0.0))  # type: ignore[arg-type]


class Greedy(Keyed):
    """Wants more memory at once than there may be."""

    def on_host(self, d: Any) -> None:
        bytearray(2**33)


class Nothing:
    pass


class Awaited:
    async def on_host(self, d: Any) -> None:
        pass


class Demanding:
    def on_host(self, d: Any, ctx: Context, more: int) -> None:
        pass


class Notifying(Keyed):
    """Of every guest whose name is in its configuration."""

    def configure(self, config: Mapping[str, Any]) -> None:
        self.names = config.get("names", [])

    def on_cpu(self, d: Any, ctx: Context) -> None:
        if self.names == "all" or d["name"] in self.names:
            ctx.report(f"{d['name']} is hot", about=d["uuid"], value=d["util_ratio"], threshold=0.5)


class Host:
    """Makes snapshots of so many guests, one after the other."""

    def __init__(self, guests: int = 2) -> None:
        self.passes = 0
        self.step_s = 1.0
        self.monotonic = 0.0
        self.host = Entity(HOST, "cmp-7", "cmp-7")
        self.guests = [
            Entity(GUEST, f"u{n}", f"web{n}", project="p", about={"flavor_vcpus": "2"})
            for n in range(guests)
        ]
        self.parts = {
            kind: [
                Entity(
                    kind, f"{guest.id}/{name}", f"{guest.name}/{name}", project="p", guest=guest.id
                )
                for guest in self.guests
            ]
            for kind, name in ((DISK, "vda"), (NIC, "tap0"))
        }
        self.cpu: dict[str, float] = {
            "util_ratio": 0.9,
            "steal_ratio": 0.0,
            "cpu_time_ns": 1e9,
            "vcpu0_time_ns": 1.0,
            "vcpu0_delay_ns": 1.0,
        }
        self.of: dict[str, dict[str, float]] = {}  # other numbers, by the id of a guest

    def __next__(self) -> Snapshot:
        self.passes += 1
        self.monotonic += self.step_s
        guests = [
            Reading(guest, {**self.cpu, **self.of.get(guest.id, {})}) for guest in self.guests
        ]
        tables = {
            HOST: Table(HOST, [Reading(self.host, {"cpu_util_ratio": 0.5})]),
            GUEST: Table(GUEST, guests),
            DISK: Table(
                DISK, [Reading(entity, {"fill_ratio": 0.5}) for entity in self.parts[DISK]]
            ),
            NIC: Table(NIC, [Reading(entity, {"tx_bps": 5.0}) for entity in self.parts[NIC]]),
        }
        at = BEGIN + timedelta(seconds=self.monotonic)
        return Snapshot("cmp-7", self.passes, at, self.monotonic, self.step_s, tables)

    def __iter__(self) -> Iterator[Snapshot]:
        return self

    def snapshot(self) -> Snapshot:
        return next(self)
