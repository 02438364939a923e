# SPDX-License-Identifier: Apache-2.0
"""What nova-compute's monitor does beside Nova: the numbers, and the process of the plugins, which
is the real one. In nova-compute itself: tests/lab/test_compute_monitor.py."""

from __future__ import annotations

import functools
import gc
import json
import logging
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from holdfast.cmd import nova_plugins
from holdfast.nova.feed import KERNEL, Feed, HostCpu, main
from tests.processes import PATIENCE_S, eventually

#: So much of a processor a guest uses between two looks.
RUNS_S = 0.3
SPIN = "import time\nuntil = time.monotonic() + 600\nwhile time.monotonic() < until: pass"
PLUGINS = """\
import json, sys, time

class Writes:
    def configure(self, config):
        self.file = open(config["file"], "a", buffering=1)
    def on_host(self, d):
        print("what is printed is no answer")
        self.file.write(json.dumps(["host", sorted(d), d["missing"], "eventlet" in sys.modules
            and sys.modules["eventlet"] is not None, sys.stdin.read()]) + "\\n")
    def on_cpu(self, d):
        self.file.write(json.dumps(["cpu", {k: v for k, v in d.items() if k != "ctx"}]) + "\\n")

class Hangs:
    def on_host(self, d):
        time.sleep(3600)
"""
STATS = {"user": 100, "kernel": 50, "idle": 800, "iowait": 50, "frequency": 2400}


class Site:
    def __init__(self, folder: Path) -> None:
        self.seen = folder / "seen"
        code = folder / "plugins.py"
        code.write_text(PLUGINS)
        self.file = folder / "plugins.yaml"
        self.file.write_text(
            f'plugins:\n- {{name: hangs, use: "{code}:Hangs"}}\n'
            f'- {{name: writes, use: "{code}:Writes", config: {{file: {self.seen}}}}}\n'
        )
        self.now = 0.0
        command = [sys.executable, "-m", "holdfast.cmd.nova_plugins", "--file", str(self.file)]
        self.feed = Feed(command, monotonic=lambda: self.now)

    def give(self, **more: Any) -> bool:
        message = {"host": "cmp-7", "at": time.time(), "cpu": {}, "promised": {}, "guests": []}
        return self.feed.send({**message, **more})

    def lines(self, what: str) -> list[Any]:
        text = self.seen.read_text() if self.seen.exists() else ""
        found = [json.loads(line) for line in text.splitlines(True) if line.endswith("\n")]
        return [one[1:] for one in found if one[0] == what]

    def has(self, count: int) -> bool:
        return len(self.lines("cpu")) == count


def ran(pid: int) -> float:
    used = psutil.Process(pid).cpu_times()
    return used.user + used.system


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.feed.close()


def test_the_driver_is_believed_and_shares_are_of_the_time_since(tmp_path: Path) -> None:
    stats = dict(STATS)
    cpu = HostCpu(lambda: stats, "some.Driver")
    first = cpu.read()
    assert (first["cpu.user.time"], first["cpu.frequency"], cpu.source) == (
        100,
        2400,
        "some.Driver",
    )
    assert (first["cpu.percent"], first["cpu.idle.percent"]) == (20, 80)
    stats.update(user=180, idle=820)
    assert cpu.read()["cpu.user.percent"] == 80
    # none has passed, as with Nova's own fake driver; or they were begun anew
    assert cpu.read()["cpu.user.percent"] == 80
    stats.update(STATS)
    assert cpu.read()["cpu.user.percent"] == 80
    assert len(cpu.read()) == 10


def user_time() -> int:
    """Of all processors since the start, in nanoseconds, as Linux says."""
    with open("/proc/stat") as file:
        user, nice = file.readline().split()[1:3]
    return (int(user) + int(nice)) * (10**9 // os.sysconf("SC_CLK_TCK"))


@pytest.mark.parametrize("said", [NotImplementedError(), {"user": 1}, None])
def test_where_the_driver_does_not_say_linux_does(said: Any) -> None:
    def ask() -> Any:
        if isinstance(said, Exception):
            raise said
        return said

    cpu = HostCpu(ask, "some.Driver")
    before = user_time()
    found = cpu.read()
    assert cpu.source == KERNEL
    assert before <= found["cpu.user.time"] <= user_time()
    shares = [found[f"cpu.{one}.percent"] for one in ("user", "kernel", "idle", "iowait")]
    assert 96 <= sum(shares) <= 100


def test_plugins_get_the_host_and_the_guests_while_another_plugin_hangs(site: Site) -> None:
    running, stopped = str(uuid.uuid4()), str(uuid.uuid4())
    given: list[float] = []
    # as libvirt starts QEMU: its uuid among the words
    guest = subprocess.Popen([sys.executable, "-c", SPIN, "-uuid", running, "-end"])
    try:
        cpu = {f"cpu_{one}_ns": STATS[one] for one in ("user", "kernel", "idle", "iowait")}
        for number in range(1, 4):
            given.append(time.monotonic())
            promised = {"vcpus_promised": 4}
            assert site.give(guests=[running, stopped], cpu=cpu, promised=promised)
            took = time.monotonic() - given[-1]
            assert took < PATIENCE_S / 2  # the plugin that hangs does so for an hour
            eventually(functools.partial(site.has, 2 * number))
            looked = time.monotonic()
            until = ran(guest.pid) + RUNS_S
            eventually(lambda until=until: ran(guest.pid) >= until)
    finally:
        guest.kill()
        guest.wait()
    names, missing, is_green, read = site.lines("host")[-1]
    assert {"load1", "mem_total_bytes", "cpu_user_ns", "vcpus_promised"} <= set(names)
    assert "cpu_steal_ratio" in missing  # the driver does not say
    assert (is_green, read) == (False, "")
    ((one,), (other,)) = site.lines("cpu")[-2:]
    assert (one["uuid"], one["stale"]) == (running, "")
    # between the last two looks it ran so long at least, however little a busy machine left it
    assert RUNS_S / (looked - given[-2]) <= one["util_ratio"] < 1.1
    assert (other["uuid"], other["stale"]) == (stopped, "no process")
    assert "util_ratio" in other["missing"] and "util_ratio" not in other
    assert site.feed.dropped == 0


def test_a_silent_plugin_process_delays_nothing_and_is_replaced(site: Site) -> None:
    assert site.give()
    eventually(lambda: site.lines("host"))
    frozen = site.feed.pid
    assert frozen is not None
    os.kill(frozen, signal.SIGSTOP)
    guests = [str(uuid.uuid4()) for _ in range(1000)]  # 40 kB, and a pipe takes 64
    given = [site.give(guests=guests) for _ in range(20)]  # who waited for it would wait for ever
    assert (given.count(True), site.feed.dropped) == (2, 18)
    site.now = 61
    assert not site.give()  # it is killed, and nobody waits for that
    eventually(lambda: site.give() and site.feed.pid != frozen)
    assert not psutil.pid_exists(frozen)
    eventually(lambda: len(site.lines("host")) > 1)


def test_a_dead_plugin_process_is_restarted_a_minute_later(site: Site) -> None:
    assert site.give()
    dead = site.feed.pid
    assert dead is not None
    os.kill(dead, signal.SIGKILL)
    eventually(lambda: psutil.Process(dead).status() == psutil.STATUS_ZOMBIE)
    site.now = 59
    assert not site.give()
    site.now = 61
    assert site.give()
    assert site.feed.pid not in (None, dead)
    eventually(lambda: site.lines("host"))


def test_the_plugin_process_ends_with_nova_compute(site: Site, tmp_path: Path) -> None:
    code = (
        "import sys, time; from holdfast.nova.feed import Feed;"
        " feed = Feed(sys.argv[1:]);"
        "feed.send({}); print(feed.pid, flush=True); time.sleep(600)"
    )
    words = [sys.executable, "-m", "holdfast.cmd.nova_plugins", "--file", str(site.file)]
    nova = subprocess.Popen([sys.executable, "-c", code, *words], stdout=subprocess.PIPE)
    assert nova.stdout is not None
    ours = psutil.Process(int(nova.stdout.readline()))
    nova.kill()
    nova.wait()
    nova.stdout.close()
    ours.wait(PATIENCE_S)


def test_a_missing_interpreter_is_logged_and_retried(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    feed = Feed([str(tmp_path / "python")], monotonic=lambda: now[0])
    gc.collect()  # what others left behind may be closed at any moment
    before = len(os.listdir("/proc/self/fd"))
    for now[0] in (0.0, 30.0, 61.0):
        assert not feed.send({})
    assert len(caplog.records) == 2 and "No such file" in caplog.text
    eventually(lambda: len(os.listdir("/proc/self/fd")) <= before)  # others come and go


def test_without_nova_the_installer_names_the_required_python(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--install"]) == 1
    assert "run this with nova-compute's Python" in capsys.readouterr().err


def test_no_foreign_text_begins_a_line_in_the_log_of_the_plugins() -> None:
    try:
        raise ValueError("x\n2026-01-01 forged\x1b[2J\u2028y")
    except ValueError:
        record = logging.makeLogRecord({"msg": "guest %s", "args": ("a\nb",)})
        record.exc_info = sys.exc_info()
    text = nova_plugins._OneLine("%(message)s").format(record)
    assert "Traceback" in text and text.isprintable()
