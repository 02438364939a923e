# SPDX-License-Identifier: Apache-2.0
"""What does it cost to know how 50 guests are, beside collectd's virt plugin and the Prometheus
libvirt exporter?

One libvirtd, real QEMU guests (TCG, 2 processors, 2 disks, a tap, a balloon that tells), all idle.
One after the other, at the same rate: collectd with what it offers of the fields that we have too
(sent by UDP, its cheapest way), the exporter (scraped), and ours, reading the fields of each.
Then ours in tiers: processors and network every second, disks and memory every 30. The cost is the
processor time of the subject and of libvirtd per guest and sample, without what an idle libvirtd
takes; that of the QEMUs that are asked is said beside it.

    python bench/metrics.py [GUESTS [SECONDS EACH]]     as root; 50 and 24
    apt-get install collectd-core prometheus-libvirt-exporter
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.libvirt.host import FILE_DISK
from tests.metrics.host import NIC, TapHost
from tests.processes import eventually, free_port

PACE_S = 3.0
TIERS = (1.0, 30.0)
MOST_MIB = 96
#: While one hangs, the least share of passes that know all about the others.
ON_TIME = 0.9
#: Ours against whom, and at most what share of theirs.
LIMITS = (("collectd", "as collectd", 1 / 5), ("exporter", "as exporter", 1 / 2))
TIER_LIMIT = ("exporter", "in tiers", 1 / 5)
COLLECTD = """\
Hostname "bench"
FQDNLookup false
BaseDir "{folder}"
PIDFile "{folder}/collectd.pid"
PluginDir "/usr/lib/collectd"
TypesDB "/usr/share/collectd/types.db"
Interval {pace:g}
LoadPlugin virt
LoadPlugin network
<Plugin network>
  Server "127.0.0.1" "{port}"
</Plugin>
<Plugin virt>
  Connection "{url}"
  RefreshInterval 60
  HostnameFormat name
  ExtraStats "cpu_util disk domain_state memory vcpu disk_allocation disk_capacity disk_physical"
</Plugin>
"""


@dataclass(frozen=True)
class Spent:
    """Milliseconds of processors between two moments."""

    began: float
    ended: float
    subject: float
    libvirtd: float
    qemu: float
    mib: float


@dataclass(frozen=True)
class Cost:
    """Milliseconds of processors per guest and sample."""

    subject: float
    libvirtd: float
    mib: float

    @property
    def total(self) -> float:
        return self.subject + self.libvirtd


class Bench:
    def __init__(self, guests: int) -> None:
        self.names = [f"g{number}" for number in range(guests)]
        self.host = TapHost([f"tap{number}" for number in range(guests)])
        self.idle_libvirtd = self.idle_qemu = 0.0

    def start(self) -> None:
        self.host.start()
        self._begin(0)  # the first alone: libvirtd gets to know QEMU
        with ThreadPoolExecutor(4) as effects:
            list(effects.map(self._begin, range(1, len(self.names))))
        self.qemus = [self.host.pid(name) for name in self.names]

    def _begin(self, number: int) -> None:
        name, devices = self.names[number], ""
        for target in ("hda", "hdb"):
            path = self.host.sockets / f"{name}-{target}.raw"
            path.write_bytes(bytes(2**16))
            path.chmod(0o666)
            devices += FILE_DISK.format(path=path).replace("'hda'", f"'{target}'")
        mac = f"52:54:00:00:{number // 256:02x}:{number % 256:02x}"
        devices += NIC.format(mac=mac, tap=self.host.taps[number], model="e1000")
        with contextlib.closing(self.host.connected()) as way:
            way.createXML(self.host.measured(name, devices, vcpus=2, mib=32))

    # measuring

    def spent(self, pid: int | None) -> tuple[float, float, float]:
        """Milliseconds: of the subject, of libvirtd, of all QEMUs."""
        assert self.host.kept is not None
        subject = cpu_ms(pid) if pid else 0.0
        return subject, cpu_ms(self.host.kept.pid), sum(map(cpu_ms, self.qemus))

    def idle(self, seconds: float) -> None:
        before = self.spent(None)
        time.sleep(seconds)
        after = self.spent(None)
        self.idle_libvirtd = (after[1] - before[1]) / seconds
        self.idle_qemu = (after[2] - before[2]) / seconds
        rest = f"libvirtd {self.idle_libvirtd:.1f} ms/s, QEMUs {self.idle_qemu:.0f} ms/s"
        print(f"  nobody asks: {rest}")

    def spend(self, pid: int, seconds: float) -> Spent:
        """Let it work for so long."""
        began, before = time.monotonic(), self.spent(pid)
        time.sleep(seconds)
        ended, after = time.monotonic(), self.spent(pid)
        subject, libvirtd, qemu = (two - one for one, two in zip(before, after, strict=True))
        libvirtd = max(0.0, libvirtd - self.idle_libvirtd * (ended - began))
        qemu = max(0.0, qemu - self.idle_qemu * (ended - began))
        return Spent(began, ended, subject, libvirtd, qemu, resident_mib(pid))

    def cost(self, name: str, spent: Spent, samples: float) -> Cost:
        each = max(1e-9, samples * len(self.names))
        cost = Cost(spent.subject / each, spent.libvirtd / each, spent.mib)
        print(
            f"  {name:<12} {cost.total:6.3f} ms per guest and sample: itself {cost.subject:.3f},"
            f" libvirtd {cost.libvirtd:.3f} (QEMU {spent.qemu / each:.2f} more);"
            f" {samples:.3g} samples in {spent.ended - spent.began:.0f} s, {spent.mib:.0f} MiB"
        )
        return cost


def cpu_ms(pid: int) -> float:
    """All threads of a process, as the kernel's clock for it has it."""
    return time.clock_gettime_ns((~pid << 3) | 2) / 1e6


def resident_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = [one for one in status.splitlines() if one.startswith("VmRSS")]
    return int(line.split()[1]) / 1024


@contextlib.contextmanager
def running(
    command: Sequence[str], log: Path, out: int | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("ab") as errors:
        program = subprocess.Popen(command, stdout=out or errors, stderr=errors)
    try:
        yield program
    finally:
        if program.poll() is None:
            program.send_signal(signal.SIGTERM)
            try:
                program.wait(15)
            except subprocess.TimeoutExpired:
                program.kill()
                program.wait()


def collectd(bench: Bench, seconds: float) -> Cost:
    folder, url = bench.host.folder, bench.host.url
    ear = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    ear.bind(("127.0.0.1", 0))
    ear.settimeout(0.2)
    heard: list[int] = []
    over = threading.Event()

    def listen() -> None:
        while not over.is_set():
            with contextlib.suppress(TimeoutError):
                heard.append(len(ear.recv(65536)))

    listening = threading.Thread(target=listen)
    listening.start()
    config = folder / "collectd.conf"
    port = ear.getsockname()[1]
    config.write_text(COLLECTD.format(folder=folder, pace=PACE_S, port=port, url=url))
    try:
        with running(["/usr/sbin/collectd", "-f", "-C", str(config)], folder / "collectd") as one:
            eventually(lambda: len(heard) > 10, 60)
            time.sleep(PACE_S)
            return bench.cost("collectd", bench.spend(one.pid, seconds), seconds / PACE_S)
    finally:
        over.set()
        listening.join()
        ear.close()


def exporter(bench: Bench, seconds: float) -> Cost:
    port = free_port()
    command = ["prometheus-libvirt-exporter", f"--libvirt.uri={bench.host.url}"]
    command += [f"--web.listen-address=127.0.0.1:{port}"]
    scraped: list[float] = []
    over = threading.Event()
    fields: list[int] = []

    def scrape() -> None:
        due = time.monotonic()
        while not over.is_set():
            url = f"http://127.0.0.1:{port}/metrics"
            try:
                with urllib.request.urlopen(url, timeout=30) as answer:
                    text = answer.read().decode()
            except OSError:
                time.sleep(0.1)
                continue
            fields.append(text.count("\nlibvirt_domain_"))
            scraped.append(time.monotonic())
            due += PACE_S
            over.wait(max(0.0, due - time.monotonic()))

    scraping = threading.Thread(target=scrape)
    with running(command, bench.host.folder / "exporter") as one:
        scraping.start()
        try:
            eventually(lambda: len(scraped) >= 2, 60)
            spent = bench.spend(one.pid, seconds)
            samples = sum(spent.began <= at < spent.ended for at in scraped)
            cost = bench.cost("exporter", spent, samples)
            print(f"    ({fields[-1] / len(bench.names):g} numbers of each guest)")
            return cost
        finally:
            over.set()
            scraping.join()


def ours(bench: Bench, name: str, paces: tuple[float, float], groups: str, seconds: float) -> Cost:
    command = [sys.executable, "-m", "bench._collecting", bench.host.url, bench.host.links]
    command += [str(paces[0]), str(paces[1]), groups]
    log = bench.host.folder / "ours"
    with running(command, log, subprocess.PIPE) as one:
        time.sleep(6)  # it has read who is there, and more than one round
        spent = bench.spend(one.pid, seconds)
        one.send_signal(signal.SIGTERM)
        said, _ = one.communicate(timeout=30)
    report, guests = json.loads(said), len(bench.names)
    passes = [live for at, live in report["passes"] if spent.began <= at < spent.ended]
    wanted = {"host": 1, "guest": guests, "disk": guests * 2, "nic": guests}
    whole = sum(live == wanted for live in passes)
    cost = bench.cost(name, spent, len(passes))
    print(f"    ({whole} of {len(passes)} passes whole, {report['skipped']} skipped)")
    return cost


def frozen(bench: Bench, seconds: float) -> float:
    """One QEMU hangs all the time: the share of passes in which all that could be known was."""
    command = [sys.executable, "-m", "bench._collecting", bench.host.url, bench.host.links]
    command += ["1", str(PACE_S), "block"]
    with running(command, bench.host.folder / "ours", subprocess.PIPE) as one:
        time.sleep(6)
        os.kill(bench.qemus[0], signal.SIGSTOP)
        try:
            began = time.monotonic()
            time.sleep(seconds)
        finally:
            os.kill(bench.qemus[0], signal.SIGCONT)
        one.send_signal(signal.SIGTERM)
        said, _ = one.communicate(timeout=30)
    guests = len(bench.names)
    passes = [live for at, live in json.loads(said)["passes"] if at >= began][: int(seconds)]
    kernel = sum(live["guest"] == live["nic"] == guests for live in passes)
    whole = sum(live["disk"] >= 2 * (guests - 1) for live in passes)
    print(
        f"  one QEMU hangs for {seconds:g} s: of {len(passes)} passes (of {seconds:g} due)"
        f" {kernel} have processors and network of all, {whole} the disks of all others"
    )
    return min(kernel, whole) / seconds


def main() -> None:
    guests = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 24.0
    needed = {"/usr/sbin/collectd": "collectd-core"}
    needed["prometheus-libvirt-exporter"] = "prometheus-libvirt-exporter"
    lacking = [package for program, package in needed.items() if shutil.which(program) is None]
    if lacking:
        raise SystemExit(f"beside whom? Install them: apt-get install {' '.join(lacking)}")
    load = os.getloadavg()[0]
    print(f"{os.cpu_count()} cores, load {load:.1f}; {guests} guests, every {PACE_S:g} s")
    bench = Bench(guests)
    with contextlib.closing(bench.host):
        bench.start()
        time.sleep(4)
        bench.idle(8)
        costs = {
            "collectd": collectd(bench, seconds),
            "exporter": exporter(bench, seconds),
            "as collectd": ours(bench, "as collectd", (PACE_S, PACE_S), "block,balloon", seconds),
            "as exporter": ours(bench, "as exporter", (PACE_S, PACE_S), "block", seconds),
            "in tiers": ours(bench, "in tiers", TIERS, "block,balloon", 60.0),
        }
        on_time = frozen(bench, 15.0)
    broken = judged(costs)
    raise SystemExit(broken or int(on_time < ON_TIME))


def judged(costs: dict[str, Cost]) -> int:
    broken = 0
    for theirs, name, limit in (*LIMITS, TIER_LIMIT):
        share = costs[name].total / costs[theirs].total
        broken += share > limit
        verdict = "ok" if share <= limit else "TOO MUCH"
        print(f"  {name} / {theirs}: 1/{1 / share:.1f} (at most 1/{1 / limit:g}): {verdict}")
    mib = max(cost.mib for name, cost in costs.items() if name not in ("collectd", "exporter"))
    broken += mib > MOST_MIB
    verdict = "ok" if mib <= MOST_MIB else "TOO MUCH"
    print(f"  collector: {mib:.0f} MiB (at most {MOST_MIB}): {verdict}")
    return int(broken > 0)


if __name__ == "__main__":
    main()
