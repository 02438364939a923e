# SPDX-License-Identifier: Apache-2.0
"""What metric plugins cost, beside what they do themselves.

For 50 and for 1,000 guests (2 vCPUs, 2 disks and an interface each), with plugins that have all
five callbacks and do nothing in them: what a pass costs the thread that collects, the agent, and
the process of the plugins, in processor time; and the resident memory of that process. What of it
is encoding, decoding and making the dicts, which happens once however many plugins there are.
Beside it the floor, a plain loop that calls the same methods on the same dicts. Last, the longest
that a pass was held up while plugins were added, configured, reloaded and removed, and by one that
hangs.

    python bench/metric_plugins.py [GUESTS …]
"""

from __future__ import annotations

import contextlib
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
from holdfast.metrics.plugin_input import Decoder, Encoder, SharedDicts
from holdfast.metrics.plugin_runner import Limits, PluginRunner
from holdfast.model.errors import HoldfastError
from holdfast.ports.metric_plugins import CALLBACKS, Note
from holdfast.ports.metrics import DISK, GUEST, HOST, KINDS, NIC, Entity, Reading, Snapshot, Table

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
    return PluginRunner(limits or Limits(turn_s=5.0), Silent())


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


def child_s(one: PluginRunner) -> float:
    """Processor time of the process of the plugins."""
    assert one.pid is not None
    return time.clock_gettime((~one.pid << 3) | 2)


def child_mib(one: PluginRunner) -> float:
    text = Path(f"/proc/{one.pid}/status").read_text()
    return int(text.partition("VmRSS:")[2].split()[0]) / 1024


def passes(site: Site, file: str, plugins: int) -> str:
    """Of a pass, in ms: of the thread that offers it, of the agent, and of the plugins' process;
    until all have seen it."""
    one = runner()
    for number in range(plugins):
        one.add(f"p{number}", file, {})
    offered, agent, child, seen = list[float](), list[float](), list[float](), list[float]()
    for _ in range(PASSES):
        snapshot = next(site)
        cpu, theirs, wall = time.process_time(), child_s(one), time.monotonic()
        began = time.thread_time()
        one.offer(snapshot)
        offered.append(time.thread_time() - began)
        slept = time.thread_time()
        settle(one, snapshot.pass_id, one.names)
        seen.append(time.monotonic() - wall)
        time.sleep(0.02)
        agent.append(time.process_time() - cpu - (time.thread_time() - slept))
        child.append(child_s(one) - theirs)
    rows, mib = one.rows(), child_mib(one)
    one.close()
    lost = sum(row["dropped"] + len(row["strikes"]) for row in rows)
    assert lost == 0, f"a pass was lost: {rows}"
    calls = sum(row["cpu_ms"] for row in rows) / plugins
    return (
        f"offer {median_ms(offered) * 1e3:.0f} us; agent {median_ms(agent):.2f} ms CPU, plugins' "
        f"process {median_ms(child):.2f} ms, calling them {calls:.2f} ms of that for each "
        f"({mib:.0f} MiB); all have seen it after {median_ms(seen):.1f} ms"
    )


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
    """Encoding; decoding; the dicts, in ms; and how many they are."""
    encoded, decoded, made, count = [], [], [], 0
    encoder, decoder = Encoder(), Decoder()
    for _ in range(6):
        snapshot, data, got = next(site), list[bytes](), list[Snapshot]()
        encoded.append(cpu_ms(lambda: data.append(encoder.encode(snapshot, KINDS))))  # noqa: B023
        decoded.append(cpu_ms(lambda: got.append(decoder.decode(data[0]))))  # noqa: B023
        shared = SharedDicts(got[0])
        made.append(cpu_ms(lambda: [shared.of(name) for name in CALLBACKS]))  # noqa: B023
        count = sum(len(shared.of(name)) for name in CALLBACKS)
    return *(statistics.median(one) for one in (encoded, decoded, made)), count  # type: ignore[return-value]


def under_changes(site: Site, folder: Path, seconds: float = 8.0) -> str:
    """A hundred changes a second, and one that hangs: the longest `offer`."""
    file, hanging = folder / "edited.py", folder / "hanging.py"
    file.write_text(EDITED)
    hanging.write_text(HANGING)
    one = runner(Limits(turn_s=5.0, hang_s=1.0))
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
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = folder / "idle.py"
        file.write_text(CODE)
        for guests in sizes:
            site = Site(guests)
            encoded, decoded, made, count = making(site)
            print(f"{guests} guests, {count} dicts in a pass")
            print(f"  encoding {encoded:.2f} ms, decoding {decoded:.2f} ms, dicts {made:.2f} ms")
            for plugins in (1, 8):
                least = floor(site, plugins) / plugins
                print(f"  {plugins} plugins: {passes(site, str(file), plugins)}")
                print(f"    (floor: the calls alone {least:.2f} ms for each)")
            print(f"  {under_changes(site, folder)}")


if __name__ == "__main__":
    main()
