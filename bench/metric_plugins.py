# SPDX-License-Identifier: Apache-2.0
"""What metric plugins cost the agent, beside what they do themselves.

For 50 and for 1,000 guests (2 vCPUs, 2 disks and an interface each), with plugins that have all
five callbacks and do nothing in them: what a pass costs the thread that collects, what it costs in
all, and what of that is making the dicts, which happens once however many plugins there are. Beside
it the floor, a plain loop that calls the same methods on the same dicts, and what a copy for each
plugin would cost instead of dicts that cannot be changed. Last, the longest that a pass was held up
while plugins were added, configured, reloaded and removed a hundred times a second, and by one that
hangs.

    python bench/metric_plugins.py [GUESTS …]
"""

from __future__ import annotations

import contextlib
import copy
import logging
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from holdfast.metrics import collector, plugin_input
from holdfast.metrics.linux import OwnProcess
from holdfast.metrics.plugin_input import SharedDicts
from holdfast.metrics.plugin_runner import Limits, PluginRunner
from holdfast.model.errors import HoldfastError
from holdfast.ports.metric_plugins import CALLBACKS, Note
from holdfast.ports.metrics import DISK, GUEST, HOST, NIC, Entity, Reading, Snapshot, Table

PASSES = 30
BEGIN = datetime(2026, 11, 16, tzinfo=UTC)
CODE = "class Idle:\n" + "".join(
    f"    def {name}(self, d{', ctx' if name == 'on_cpu' else ''}): pass\n" for name in CALLBACKS
)
EDITED = CODE + "    def configure(self, config): self.config = config\n"
HANGING = "import time\nclass Hanging:\n    def on_host(self, d): time.sleep(1e6)\n"


class Silent:
    def off(self, plugin: str, why: str) -> None: ...

    def on(self, plugin: str) -> None: ...

    def note(self, note: Note) -> None: ...


class Site:
    def __init__(self, guests: int) -> None:
        self.passes = 0
        self.host = Entity(HOST, "cmp-7", "cmp-7")
        self.guests = [
            Entity(GUEST, f"u{n}", f"web{n}", "p", "shop", "m1", about={"flavor_vcpus": "2"})
            for n in range(guests)
        ]
        self.disks = [_part(DISK, one, name) for one in self.guests for name in ("vda", "vdb")]
        self.nics = [_part(NIC, one, "tap0") for one in self.guests]
        names = ("cpu_time_ns", "cpu_user_ns", "cpu_system_ns", *collector.PROCESS_RATES, "rss_kib")
        vcpus = [name for n in range(2) for name in collector.vcpu_names(n)]
        self.of_guests = [*names, *vcpus, *collector.RAM]

    def __next__(self) -> Snapshot:
        self.passes += 1
        value = float(self.passes)
        host = dict.fromkeys(
            (*collector.HOST_RATES, "load1", "mem_total_bytes", "vms_running"), value
        )
        tables = {
            HOST: Table(HOST, [Reading(self.host, host)]),
            GUEST: _table(GUEST, self.guests, self.of_guests, value),
            DISK: _table(DISK, self.disks, collector.DISK_FIELDS, value),
            NIC: _table(NIC, self.nics, collector.NIC_FIELDS, value),
        }
        at = BEGIN + timedelta(seconds=value)
        return Snapshot("cmp-7", self.passes, at, value, 1.0, tables)


def _part(kind: str, guest: Entity, name: str) -> Entity:
    about = {"target": name} if kind == DISK else {"ifname": name, "mac": "52:54:00:00:00:01"}
    return Entity(kind, f"{guest.id}/{name}", name, "p", guest=guest.id, about=about)


def _table(kind: str, of: list[Entity], names: Any, value: float) -> Table:
    return Table(kind, [Reading(one, dict.fromkeys(names, value)) for one in of])


def runner(limits: Limits | None = None) -> PluginRunner:
    limits = limits or Limits(rss_bytes=2**40)
    return PluginRunner(limits, Silent(), OwnProcess())


def settle(one: PluginRunner, number: int, names: list[str]) -> None:
    """Until these have seen that pass."""
    while any(one.row(name)["last_pass"] < number for name in names):
        time.sleep(0.001)


def median_ms(times: list[float]) -> float:
    return statistics.median(times) * 1e3


def cpu_ms(do: Callable[[], object]) -> float:
    began = time.thread_time()
    do()
    return (time.thread_time() - began) * 1e3


def passes(site: Site, file: str, plugins: int) -> tuple[float, float, float]:
    """Of a pass, in ms: of the thread that offers it; of all plugins; until all have seen it."""
    one = runner()
    for number in range(plugins):
        one.add(f"p{number}", file, {})
    offered, seen = [], []
    for _ in range(PASSES):
        snapshot = next(site)
        began, wall = time.thread_time(), time.monotonic()
        one.offer(snapshot)
        offered.append(time.thread_time() - began)
        settle(one, snapshot.pass_id, one.names)
        seen.append(time.monotonic() - wall)
    rows = one.rows()
    one.close()
    lost = sum(row["dropped"] + len(row["strikes"]) for row in rows)
    assert lost == 0, f"a pass was lost: {rows}"
    return median_ms(offered), sum(row["cpu_ms"] for row in rows), median_ms(seen)


def floor(site: Site, plugins: int) -> float:
    """The calls alone, on dicts that are there, in ms."""
    space: dict[str, Any] = {}
    exec(CODE.replace(", ctx", ", ctx=None"), space)
    made = {name: plugin_input.CALLBACKS[name](next(site)) for name in CALLBACKS}
    calls = [[getattr(space["Idle"](), name) for name in CALLBACKS] for _ in range(plugins)]

    def loop() -> None:
        for plugin in calls:
            for name, call in zip(CALLBACKS, plugin, strict=True):
                for d in made[name]:
                    call(d)

    return statistics.median(cpu_ms(loop) for _ in range(PASSES))


def making(site: Site) -> tuple[float, float, float, int]:
    """Plain dicts; those that cannot be changed; copies of the plain ones for one plugin, in ms."""
    plain, frozen, copied, count = [], [], [], 0
    for _ in range(5):
        snapshot = next(site)
        made: list[Any] = []
        plain.append(
            cpu_ms(lambda: made.extend(plugin_input.CALLBACKS[n](snapshot) for n in CALLBACKS))  # noqa: B023
        )
        shared = SharedDicts(snapshot)
        frozen.append(cpu_ms(lambda: [shared.of(n) for n in CALLBACKS]))  # noqa: B023
        copied.append(cpu_ms(lambda: copy.deepcopy(made)))  # noqa: B023
        count = sum(map(len, made))
    return *(statistics.median(one) for one in (plain, frozen, copied)), count  # type: ignore[return-value]


def under_changes(site: Site, folder: Path, seconds: float = 8.0) -> str:
    """A hundred changes a second, and one that hangs: the longest `offer`."""
    file, hanging = folder / "edited.py", folder / "hanging.py"
    file.write_text(EDITED)
    hanging.write_text(HANGING)
    one = runner(Limits(rss_bytes=2**40, hang_s=1.0))
    one.add("kept", str(file), {})
    one.add("reloaded", str(file), {})
    one.add("hangs", str(hanging), {})
    done, refused, over = 0, 0, threading.Event()

    def change() -> None:
        nonlocal done, refused
        began, number = time.monotonic(), 0
        while not over.is_set():
            number += 1
            name, what = f"p{number // 3 % 4}", number % 3
            try:
                if what == 0:
                    one.add(name, str(file), {})
                elif what == 1:
                    one.configure(name, {"n": number})
                else:
                    one.remove(name)
                done += 1
            except HoldfastError:
                refused += 1
            over.wait(max(0.0, began + number / 100 - time.monotonic()))

    def reload() -> None:
        nonlocal done
        while not over.wait(0.2):
            with contextlib.suppress(HoldfastError):  # when there are no passes any more
                one.reload("reloaded")
                done += 1

    threads = [threading.Thread(target=each) for each in (change, reload)]
    for thread in threads:
        thread.start()
    took, began = [], time.monotonic()
    while time.monotonic() - began < seconds:
        snapshot = next(site)
        before, cpu = time.monotonic(), time.thread_time()
        one.offer(snapshot)
        took.append((time.monotonic() - before, time.thread_time() - cpu))
        time.sleep(0.25)
    over.set()
    for thread in threads:
        thread.join()
    settle(one, site.passes, ["kept"])
    rows = {row["name"]: row for row in one.rows()}
    lost = rows["kept"]["dropped"]
    one.close()
    return (
        f"{done / seconds:.0f} changes/s ({refused} refused), a plugin that hangs "
        f"({rows['hangs']['state']} now): offer took {median_ms([one for one, _ in took]):.2f} ms, "
        f"at most {max(took)[0] * 1e3:.1f}; of the processor at most "
        f"{max(cpu for _, cpu in took) * 1e3:.2f}; {lost} passes lost of {len(took)}"
    )


def main() -> None:
    logging.disable(logging.CRITICAL)
    sizes = [int(one) for one in sys.argv[1:]] or [50, 1000]
    memory = OwnProcess()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = folder / "idle.py"
        file.write_text(CODE)
        for guests in sizes:
            site = Site(guests)
            plain, frozen, copied, count = making(site)
            print(f"{guests} guests, {count} dicts in a pass")
            print(f"  making them: plain {plain:.2f} ms, unchangeable {frozen:.2f} ms, once;")
            print(f"  a deep copy for each plugin would be {copied:.2f} ms each")
            for plugins in (1, 8):
                offered, burnt, seen = passes(site, str(file), plugins)
                least = floor(site, plugins)
                print(
                    f"  {plugins} plugins: offer {offered * 1e3:.0f} us of the collecting thread; "
                    f"calling them {burnt / plugins:.2f} ms CPU for each (floor: the calls alone "
                    f"{least / plugins:.2f} ms); all have seen it after {seen:.1f} ms"
                )
            print(f"  {under_changes(site, folder)}")
    print(f"RSS {memory.rss() / 2**20:.0f} MiB")


if __name__ == "__main__":
    main()
