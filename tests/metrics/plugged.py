# SPDX-License-Identifier: Apache-2.0
"""Plugins for tests, well-behaved and otherwise, and snapshots for them."""

from __future__ import annotations

import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast.ports.metric_plugins import Context
from holdfast.ports.metrics import DISK, GUEST, HOST, NIC, Entity, Reading, Snapshot, Table

HERE = "tests.metrics.plugged"
BEGIN = datetime(2026, 11, 16, tzinfo=UTC)
#: What plugins saw, under the key that they were configured with.
SEEN: dict[str, list[Any]] = defaultdict(list)
#: What lets go of those that hang.
RELEASE = threading.Event()


class Keyed:
    key = "?"

    def configure(self, config: Mapping[str, Any]) -> None:
        if "bad" in config:
            raise ValueError("bad is not taken")
        self.key = config.get("key", "?")


class Counting(Keyed):
    def on_host(self, d: Any) -> None:
        SEEN[self.key].append(d["ctx"]["pass_id"])


class Everything(Keyed):
    def on_host(self, d: Any) -> None:
        SEEN[self.key].append(("on_host", d))

    def on_cpu(self, d: Any, ctx: Context) -> None:
        SEEN[self.key].append(("on_cpu", d, ctx))

    def on_ram(self, d: Any, limit: float = 3.0) -> None:
        SEEN[self.key].append(("on_ram", d, limit))

    def on_volume(self, d: Any, ctx: Context | None = None) -> None:
        SEEN[self.key].append(("on_volume", d, ctx))

    def close(self) -> None:
        SEEN[self.key].append(("close",))


class Raising(Keyed):
    def on_cpu(self, d: Any) -> None:
        raise RuntimeError("of mine")


class Exiting(Keyed):
    def on_host(self, d: Any) -> None:
        sys.exit(3)


class Boundless(Keyed):
    def on_host(self, d: Any, ctx: Context) -> None:
        ctx.tell("a share of nothing", value=float("inf"))


class Slow(Keyed):
    def on_host(self, d: Any) -> None:
        SEEN[self.key].append(d["ctx"]["pass_id"])
        time.sleep(0.4)


class Lazy(Keyed):
    """Slower than passes come, and never too slow."""

    def on_cpu(self, d: Any) -> None:
        SEEN[self.key].append(d["ctx"]["pass_id"])
        time.sleep(0.03)


class Hanging(Keyed):
    def on_host(self, d: Any) -> None:
        SEEN[self.key].append(d["ctx"]["pass_id"])
        RELEASE.wait()


class Held(Keyed):
    """Behind until it is let go."""

    def on_cpu(self, d: Any) -> None:
        SEEN[self.key].append(d["ctx"]["pass_id"])
        RELEASE.wait()


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
            SEEN[self.key].append(name)


class HangingAtFirst(Keyed):
    def __init__(self) -> None:
        RELEASE.wait()

    def on_host(self, d: Any) -> None:
        pass


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
            ctx.tell(f"{d['name']} is hot", about=d["uuid"], value=d["util_ratio"], threshold=0.5)


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
                Entity(kind, f"{one.id}/{name}", f"{one.name}/{name}", project="p", guest=one.id)
                for one in self.guests
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
        guests = [Reading(one, {**self.cpu, **self.of.get(one.id, {})}) for one in self.guests]
        tables = {
            HOST: Table(HOST, [Reading(self.host, {"cpu_util_ratio": 0.5})]),
            GUEST: Table(GUEST, guests),
            DISK: Table(DISK, [Reading(one, {"fill_ratio": 0.5}) for one in self.parts[DISK]]),
            NIC: Table(NIC, [Reading(one, {"tx_bps": 5.0}) for one in self.parts[NIC]]),
        }
        at = BEGIN + timedelta(seconds=self.monotonic)
        return Snapshot("cmp-7", self.passes, at, self.monotonic, self.step_s, tables)

    def __iter__(self) -> Iterator[Snapshot]:
        return self

    def snapshot(self) -> Snapshot:
        return next(self)
