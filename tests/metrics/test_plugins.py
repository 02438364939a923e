# SPDX-License-Identifier: Apache-2.0
"""Metric plugins in their real process: what they get, what becomes of those that misbehave, and
changes while passes go on."""

from __future__ import annotations

import copy
import json
import os
import pickle
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import psutil
import pytest

from holdfast.metrics import plugin_input
from holdfast.metrics.plugin_input import Decoder, Encoder, SharedDicts
from holdfast.metrics.plugin_runner import OFF, ON, Limits, PluginRunner
from holdfast.model.errors import Conflict, HoldfastError, InvalidInput, NotFound
from holdfast.ports.metric_plugins import CALLBACKS, Context, Note
from holdfast.ports.metrics import KINDS, Snapshot
from tests.metrics.plugged import BEGIN, FOLDER, HERE, SEEN, Host, release
from tests.processes import PATIENCE_S, eventually

#: So that nobody is blamed for a busy machine; a test says which limit it is about.
PATIENT = {"slow_s": 30.0, "turn_s": 30.0, "within_s": 600.0, "hang_s": 60.0, "change_s": 60.0}


class Heard:
    """`plugins.Reports`."""

    def __init__(self) -> None:
        self.offs: dict[str, str] = {}
        self.ons: list[str] = []
        self.notes: list[Note] = []

    def off(self, plugin: str, why: str) -> None:
        self.offs[plugin] = why

    def on(self, plugin: str) -> None:
        self.ons.append(plugin)

    def note(self, note: Note) -> None:
        self.notes.append(note)


class Bench:
    """A runner, whose passes are made by hand."""

    def __init__(self, guests: int = 2, **limits: Any) -> None:
        self.host = Host(guests)
        self.heard = Heard()
        self.limits = Limits(**{**PATIENT, **limits})
        self.runner = PluginRunner(self.limits, self.heard)

    def limit(self, name: str, value: float) -> None:
        """From now on."""
        object.__setattr__(self.limits, name, value)

    def add(self, kind: str, key: str = "", **config: Any) -> str:
        name = key or kind.lower()
        self.runner.add(name, f"{HERE}:{kind}", {"key": name, **config})
        return name

    def passes(self, count: int, interval_s: float = 0.01) -> None:
        for _ in range(count):
            self.offer()
            time.sleep(interval_s)

    def offer(self) -> None:
        """A pass. Where the machine is slow the process gets the time it needs: a queue of two is
        nothing then."""
        self.runner.offer(next(self.host))
        waiting, most = self.runner._waiting, self.limits.waiting
        eventually(lambda: self.runner.pid is None or len(waiting) < most, every=0.002)

    def until(self, true: Callable[[], object]) -> None:
        """Passes, until it is so."""
        end = time.monotonic() + PATIENCE_S
        while not true():
            assert time.monotonic() < end, self.runner.rows()
            self.passes(1)

    def state(self, name: str) -> str:
        return str(self.runner.row(name)["state"])

    def settle(self, *names: str) -> None:
        """Until these, or all, have seen the last pass."""
        end = time.monotonic() + PATIENCE_S
        while any(
            row["state"] == ON and row["last_pass"] < self.host.passes
            for row in self.runner.rows()
            if not names or row["name"] in names
        ):
            assert time.monotonic() < end, self.runner.rows()
            time.sleep(0.005)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Bench]]:
    folder = tmp_path / "seen"
    folder.mkdir()
    monkeypatch.setenv(FOLDER, str(folder))
    made: list[Bench] = []

    def build(*args: Any, **limits: Any) -> Bench:
        made.append(Bench(*args, **limits))
        return made[-1]

    yield build
    release()
    for site in made:
        site.runner.close()
    assert not any(thread.name == "plugin-process" for thread in threading.enumerate())
    left = [
        child
        for child in psutil.Process().children()
        if "plugin_child" in " ".join(child.cmdline())
    ]
    assert left == []


# what they get


def test_the_contract_and_the_dicts_name_the_same_callbacks() -> None:
    assert tuple(plugin_input.CALLBACKS) == CALLBACKS


def test_only_existing_callbacks_are_called_and_ctx_is_passed_where_accepted(
    bench: Callable[..., Bench],
) -> None:
    site = bench()
    site.add("Everything", "e")
    assert site.runner.row("e")["callbacks"] == ["on_host", "on_cpu", "on_ram", "on_volume"]
    site.passes(1)
    site.settle()
    site.runner.remove("e")
    called = [call[0] for call in SEEN["e"]]
    assert called == ["on_host", *["on_cpu"] * 2, *["on_ram"] * 2, *["on_volume"] * 2, "close"]
    cpu, ram, volume = (SEEN["e"][place] for place in (1, 3, 5))
    assert (cpu[1]["name"], cpu[1]["util_ratio"], cpu[1]["vcpus"][0]["id"]) == ("web0", 0.9, 0)
    assert cpu[2] == [1, "cmp-7", 1, False]
    assert ram[2] == 3.0
    assert volume[2] is True


def test_no_plugin_can_change_the_dicts_of_another_plugin(bench: Callable[..., Bench]) -> None:
    site = bench()
    site.add("Spoiling")
    site.add("Everything", "e")
    site.passes(3)
    site.settle()
    assert SEEN["spoiling"] == []
    assert site.state("spoiling") == ON
    shared = [call[1] for call in SEEN["e"] if call[0] == "on_cpu"]
    assert all(d["util_ratio"] == 0.9 and d["ctx"]["host"] == "cmp-7" for d in shared)


def received(snapshot: Snapshot) -> SharedDicts:
    """What plugins get of a snapshot in their process."""
    return SharedDicts(Decoder().decode(Encoder().encode(snapshot, KINDS)))


def test_plugin_dicts_are_dicts_with_changeable_copies() -> None:
    d = received(next(Host())).of("on_cpu")[0]
    assert isinstance(d, dict)
    assert json.loads(json.dumps(d, default=str))["vcpus"][0]["id"] == 0
    for made in (dict(d), copy.copy(d), copy.deepcopy(d), pickle.loads(pickle.dumps(d)), d | {}):  # noqa: S301
        made["util_ratio"] = 1
        assert d["util_ratio"] == 0.9
    deep = copy.deepcopy(d)
    deep["vcpus"][0]["time_ns"] = 7
    deep["missing"].append("x")
    assert d["vcpus"][0]["time_ns"] == 1.0


def test_plugin_dicts_are_read_only() -> None:
    def changeable(value: Any) -> bool:
        if isinstance(value, dict):
            return type(value) is dict or any(map(changeable, value.values()))
        if isinstance(value, tuple):
            return any(map(changeable, value))
        return isinstance(value, list | set)

    shared = received(next(Host()))
    for name in CALLBACKS:
        assert shared.of(name)
        assert not any(map(changeable, shared.of(name))), name


def test_dicts_are_made_once_for_all_plugins() -> None:
    shared = received(next(Host()))
    assert all(shared.of(name) is shared.of(name) for name in CALLBACKS)


def test_the_plugin_process_gets_the_agents_snapshot_and_forgets_departed_guests() -> None:
    host, encoder, decoder = Host(3), Encoder(), Decoder()
    for _ in range(3):
        sent = next(host)
        got = decoder.decode(encoder.encode(sent, KINDS))
        assert (got.host, got.pass_id, got.at, got.elapsed_s) == ("cmp-7", sent.pass_id, sent.at, 1)
        for name, make in plugin_input.CALLBACKS.items():
            assert make(got) == make(sent), name
        host.guests.pop()
    assert [len(decoder._known), len(encoder._known)] == [1 + 1 + 3 + 3] * 2
    assert decoder.decode(encoder.encode(next(host), ["host"])).tables.keys() == {"host"}


# those that misbehave


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("Raising", "on_cpu raised RuntimeError: of mine"),
        ("Exiting", "on_host raised SystemExit: 3"),
        ("Boundless", "on_host raised ValueError: value is inf: write a finite number"),
        ("Slow", "on_host took"),
        ("Burning", "a pass took"),
        ("Greedy", "on_host raised MemoryError"),
        ("Sneaky", "a note cannot be used: value is 'much'"),
    ],
)
def test_five_strikes_switch_a_plugin_off_without_affecting_other_plugins(
    bench: Callable[..., Bench], kind: str, why: str
) -> None:
    turn_s = 0.25 if kind == "Burning" else 30.0
    site = bench(50, slow_s=0.3 if kind == "Slow" else 30.0, turn_s=turn_s)
    bad, good = site.add(kind), site.add("Counting", "good")
    site.until(lambda: site.state(bad) == OFF)
    site.passes(3)
    site.settle()
    assert why in site.heard.offs[bad]
    assert "5 strikes within 600 s" in site.heard.offs[bad]
    assert list(site.heard.offs) == [bad]
    assert site.runner.row(bad)["why"] == site.heard.offs[bad]
    assert SEEN["good"] == list(range(1, site.host.passes + 1))
    assert site.state(good) == ON


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        ({"value": float("nan")}, "value is nan: write a finite number"),
        ({"value": "much"}, "value is 'much': write a finite number"),
        ({"value": 10**400}, "write a finite number"),
        ({"threshold": float("-inf")}, "threshold is -inf: write a finite number"),
        ({"about": "u" * 57}, "about: write the uuid of a guest"),
        ({"about": None}, "about: write the uuid of a guest"),
        ({"severity": "dire"}, "'dire' is no severity"),
    ],
)
def test_an_unusable_note_is_refused_in_the_plugins_call(odd: dict[str, Any], why: str) -> None:
    notes: list[Note] = []
    ctx = Context("p", "cmp-7", 1, BEGIN, 0.0, 1.0, 1, False, notes.append)
    with pytest.raises(ValueError, match=re.escape(why)):
        ctx.report("it is so", **odd)
    assert notes == []
    ctx.report("it is so", value=Decimal("0.5"), threshold=1)
    assert [(note.value, note.threshold) for note in notes] == [(0.5, 1.0)]


#: Takes a processor for 40 ms at a time, two turns of a plugin; the kernel prefers it to the child.
HOG = """
import os, sys, time
os.sched_setaffinity(0, {int(sys.argv[1])})
os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
while os.getppid() == int(sys.argv[2]):
    end = time.monotonic() + 0.04
    while time.monotonic() < end:
        pass
    time.sleep(0.002)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="a real-time process needs root")
def test_waiting_for_a_busy_processor_is_no_strike(bench: Callable[..., Bench]) -> None:
    site = bench(50, slow_s=0.01, turn_s=0.02)
    site.runner.add("quiet", f"{HERE}:Quiet", {})
    site.offer()
    site.settle()
    child = site.runner.pid
    assert child is not None
    cpu = min(os.sched_getaffinity(0))
    os.sched_setaffinity(child, {cpu})
    longest_s = 0.0
    hog = subprocess.Popen([sys.executable, "-c", HOG, str(cpu), str(os.getpid())])
    try:
        for _ in range(20):
            began = time.monotonic()
            site.offer()
            site.settle()
            longest_s = max(longest_s, time.monotonic() - began)
    finally:
        hog.kill()
        hog.wait()
    assert longest_s > 0.02  # it had to wait
    assert site.runner.pid == child
    assert site.runner.row("quiet")["strikes"] == []


def test_four_strikes_are_forgiven_after_a_while(bench: Callable[..., Bench]) -> None:
    site = bench()
    bad = site.add("Raising")

    def struck(times: int) -> int:
        for _ in range(times):
            site.passes(1)
            site.settle()
        return len(site.runner.row(bad)["strikes"])

    assert struck(4) == 4
    site.limit("within_s", 0.01)  # as if a while had passed
    eventually(lambda: site.runner.row(bad)["strikes"] == [])
    struck(1)
    site.limit("within_s", 600.0)
    assert struck(3) == 4
    assert site.state(bad) == ON
    site.passes(1)
    site.settle()
    assert site.state(bad) == OFF


def test_a_pass_in_which_a_plugin_raises_for_each_guest_is_a_single_strike(
    bench: Callable[..., Bench],
) -> None:
    site = bench(50)
    bad = site.add("Raising")
    site.passes(1)
    site.settle()
    assert len(site.runner.row(bad)["strikes"]) == 1
    assert site.state(bad) == ON


def seen_or_dropped(site: Bench, name: str) -> None:
    """No pass is lost that is not counted, and none is seen twice."""
    site.until(lambda: site.runner.pid is not None)
    site.passes(3)
    site.settle()
    assert len(set(SEEN[name])) == len(SEEN[name])
    assert len(SEEN[name]) + site.runner.row(name)["dropped"] == site.host.passes
    assert SEEN[name][-1] == site.host.passes


@pytest.mark.parametrize("kind", ["Hanging", "Spinning", "Backtracking"])
def test_a_hanging_plugin_is_switched_off_and_the_others_continue(
    bench: Callable[..., Bench], kind: str
) -> None:
    site = bench(hang_s=2)
    bad = site.add(kind)
    site.add("Counting", "good")
    old, took_s = site.runner.pid, []
    while site.state(bad) == ON:
        began = time.monotonic()
        site.runner.offer(next(site.host))
        took_s.append(time.monotonic() - began)
        time.sleep(0.02)
        assert site.host.passes < 1500
    assert site.heard.offs == {bad: "on_host did not come back within 2 s"}
    # under a millisecond where nobody else runs; who waited for it would wait until it is cut off
    assert sorted(took_s)[len(took_s) // 2] < 1.0
    assert len(SEEN[bad]) <= 1
    seen_or_dropped(site, "good")
    assert site.runner.pid != old
    assert list(site.heard.offs) == [bad]


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("Leaving", r"on_host ended the process of the plugins \(exit code 3\)"),
        ("Crashing", r"on_host ended the process of the plugins \(SIGSEGV\)"),
        ("Closing", r"on_host ended the process of the plugins"),
        ("Babbling", "it wrote to the socket of the process"),
        ("Multiplying", "plugins started 64 processes or more"),
    ],
)
def test_a_plugin_that_ends_the_process_is_switched_off_at_once(
    bench: Callable[..., Bench], kind: str, why: str
) -> None:
    site = bench()
    site.add("Counting", "good")
    bad = site.add(kind)
    site.until(lambda: bad in site.heard.offs)  # the runner reports just after the state changes
    assert site.state(bad) == OFF
    assert re.search(why, site.heard.offs[bad])
    seen_or_dropped(site, "good")
    assert list(site.heard.offs) == [bad]


def test_busy_threads_of_a_plugin_are_ended_with_the_plugin(
    bench: Callable[..., Bench],
) -> None:
    site = bench(turn_s=0.25)
    site.add("Counting", "good")
    bad = site.add("Threads")
    old = site.runner.pid
    site.until(lambda: site.state(bad) == OFF)
    assert "its threads and processes took" in site.heard.offs[bad]
    site.until(lambda: site.runner.pid not in (old, None))
    seen_or_dropped(site, "good")
    assert site.runner.pid is not None
    assert psutil.Process(site.runner.pid).num_threads() == 1
    assert list(site.heard.offs) == [bad]


def test_processes_of_a_plugin_end_with_the_plugin(bench: Callable[..., Bench]) -> None:
    site = bench()
    site.add("Counting", "good")
    bad = site.add("Forking")
    site.until(lambda: SEEN[bad])
    pids = SEEN[bad][0]
    assert all(map(psutil.pid_exists, pids))
    site.runner.remove(bad)
    eventually(lambda: not any(map(psutil.pid_exists, pids)))
    seen_or_dropped(site, "good")
    assert site.heard.offs == {}


def test_a_copy_of_the_process_says_nothing(bench: Callable[..., Bench]) -> None:
    site = bench()
    bad = site.add("Returning")
    site.add("Counting", "good")
    site.passes(1)
    site.settle()
    eventually(lambda: len(set(SEEN[bad])) == 2)
    assert (SEEN["good"], len(site.heard.notes)) == ([1], 1)
    assert site.runner.row(bad)["strikes"] == []


def test_plugin_output_to_stdout_is_dropped(
    bench: Callable[..., Bench], capfd: pytest.CaptureFixture[str]
) -> None:
    site = bench()
    site.add("Printing", "p")
    site.passes(1)
    site.settle()
    assert SEEN["p"] == [True]
    assert "xxx" not in "".join(capfd.readouterr())


def test_a_plugin_process_killed_from_outside_is_restarted_without_blaming_a_plugin(
    bench: Callable[..., Bench],
) -> None:
    site = bench()
    site.add("Counting", "good")
    site.passes(2)
    site.settle()
    old = site.runner.pid
    assert old is not None
    os.kill(old, signal.SIGKILL)
    site.until(lambda: site.runner.pid not in (old, None))
    seen_or_dropped(site, "good")
    assert site.heard.offs == {}


AGENT = """
import sys, time
from holdfast.metrics.plugin_runner import Limits, PluginRunner
from tests.metrics.plugged import HERE, Host
from tests.metrics.test_plugins import Heard
runner = PluginRunner(Limits(hang_s=600.0), Heard())
runner.add("hangs", f"{HERE}:Hanging", {"key": "hangs"})
runner.offer(next(Host()))
print(runner.pid, flush=True)
time.sleep(600)
"""


def test_the_process_ends_with_the_agent(bench: Callable[..., Bench]) -> None:
    bench()
    agent = subprocess.Popen([sys.executable, "-c", AGENT], stdout=subprocess.PIPE)
    assert agent.stdout is not None
    process = psutil.Process(int(agent.stdout.readline()))
    eventually(lambda: SEEN["hangs"])
    agent.kill()
    agent.wait()
    agent.stdout.close()
    process.wait(PATIENCE_S)


def test_the_process_is_limited(bench: Callable[..., Bench]) -> None:
    site = bench(50, memory_bytes=100 * 2**20)
    site.runner.add("noisy", "noisy_neighbour", {})
    site.runner.add("log", "log_exceptional", {})
    site.passes(30)
    site.settle()
    process = psutil.Process(site.runner.pid)
    assert process.rlimit(psutil.RLIMIT_DATA) == (164 * 2**20, 164 * 2**20)
    assert process.rlimit(psutil.RLIMIT_NOFILE) == (256, 256)
    assert process.rlimit(psutil.RLIMIT_CPU)[0] > 0
    assert process.nice() > psutil.Process().nice()
    assert process.memory_info().rss <= 36 * 2**20


def test_code_that_hangs_during_import_is_refused_within_the_deadline(
    bench: Callable[..., Bench],
) -> None:
    site = bench()
    site.add("Counting", "good")
    site.limit("change_s", 0.5)
    with pytest.raises(InvalidInput, match=r"its code did not come back within 0.5 s"):
        site.add("HangingAtFirst", "h")
    site.limit("change_s", 60.0)
    with pytest.raises(NotFound, match="there is no plugin h: there are good"):
        site.runner.remove("h")
    seen_or_dropped(site, "good")
    assert site.runner.names == ["good"]
    assert site.heard.offs == {}  # who wanted it knows, and there is nothing that could be enabled


def test_a_plugin_that_leaks_memory_is_switched_off(bench: Callable[..., Bench]) -> None:
    site = bench(memory_bytes=60 * 2**20)
    site.add("Counting", "older")
    bad = site.add("Leaking")
    site.add("Counting", "newer")
    site.until(lambda: site.state(bad) == OFF)
    assert re.search(
        r"more than 60 MiB, [0-9]+ MiB of them during its passes", site.heard.offs[bad]
    )
    seen_or_dropped(site, "older")
    seen_or_dropped(site, "newer")
    assert psutil.Process(site.runner.pid).memory_info().rss < 36 * 2**20  # it was given back
    assert list(site.heard.offs) == [bad]


def test_memory_growth_outside_plugins_blames_no_plugin(bench: Callable[..., Bench]) -> None:
    site = bench(memory_bytes=8 * 2**20)
    site.add("Counting", "good")
    site.until(lambda: "but no plugin grew" in site.runner.problem)
    assert site.heard.offs == {}
    assert site.state("good") == ON


def test_a_slow_plugin_misses_the_oldest_passes_which_are_counted(
    bench: Callable[..., Bench],
) -> None:
    site = bench(4)
    held = site.add("Held")
    site.passes(1)
    eventually(lambda: SEEN[held] == [1])
    for _ in range(19):
        site.runner.offer(next(site.host))
    release()
    site.settle()
    row = site.runner.row(held)
    assert SEEN[held] == [1] * 4 + [19] * 4 + [20] * 4  # the latest are what it sees
    assert (row["passes"], row["dropped"], row["state"]) == (3, 17, ON)


def test_a_switched_off_plugin_can_be_enabled_again_and_starts_anew(
    bench: Callable[..., Bench],
) -> None:
    site = bench()
    bad = site.add("Raising")
    site.until(lambda: site.state(bad) == OFF)
    with pytest.raises(Conflict, match="enable it first"):
        site.runner.configure(bad, {})
    site.runner.enable(bad)
    assert site.state(bad) == ON
    assert site.heard.ons == [bad, bad]  # when it was added, and now
    assert site.runner.row(bad)["strikes"] == []
    assert site.runner.row(bad)["config"] == {"key": "raising"}
    with pytest.raises(Conflict, match="on already"):
        site.runner.enable(bad)


def test_a_hanging_plugin_can_be_enabled_again_after_each_cut_off(
    bench: Callable[..., Bench],
) -> None:
    site = bench(hang_s=0.2)
    bad = site.add("Hanging")
    for _ in range(3):
        site.until(lambda: site.state(bad) == OFF)
        assert site.runner.pid is None  # there is nobody to run
        site.runner.enable(bad)


# what cannot be


@pytest.mark.parametrize(
    ("use", "why"),
    [
        (f"{HERE}:Nothing", "no callback"),
        (f"{HERE}:Awaited", "not a plain method"),
        (f"{HERE}:Demanding", "takes d, or d and ctx"),
        (f"{HERE}:Absent", "no class Absent"),
        ("tests.metrics.absent:It", "No module named"),
        ("absent", "there is no plugin 'absent': there are log_exceptional"),
        ("a b:c", "write module:Class"),
        ("plugin.py", "a whole path"),
        ("/nowhere/plugin.py", "No such file"),
    ],
)
def test_code_without_a_plugin_is_refused_with_a_reason(
    bench: Callable[..., Bench], use: str, why: str
) -> None:
    site = bench()
    with pytest.raises(HoldfastError, match=why):
        site.runner.add("it", use, {})
    assert site.runner.names == []


def test_a_refused_configuration_changes_nothing(bench: Callable[..., Bench]) -> None:
    site = bench()
    site.add("Counting", "good")
    with pytest.raises(InvalidInput, match="configure: ValueError: bad is not taken"):
        site.runner.configure("good", {"bad": 1})
    assert site.runner.row("good")["config"] == {"key": "good"}
    with pytest.raises(InvalidInput, match="bad is not taken"):
        site.add("Counting", "other", bad=1)
    with pytest.raises(InvalidInput, match="takes no configuration"):
        site.runner.add("none", "tests.metrics.test_plugins:Bare", {"a": 1})
    site.passes(1)
    site.settle()
    assert SEEN["good"] == [1]


class Bare:
    def on_host(self, d: Any) -> None:
        pass


def test_a_world_writable_plugin_file_is_not_run(
    bench: Callable[..., Bench], tmp_path: Path
) -> None:
    site, file = bench(), tmp_path / "p.py"
    file.write_text("class P:\n    def on_host(self, d): pass\n")
    file.chmod(0o666)
    with pytest.raises(InvalidInput, match="chmod o-w"):
        site.runner.add("p", str(file), {})
    file.chmod(0o644)
    site.runner.add("p", str(file), {})
    assert site.state("p") == ON


def test_a_file_with_two_plugins_wants_to_know_which(
    bench: Callable[..., Bench], tmp_path: Path
) -> None:
    site, file = bench(), tmp_path / "p.py"
    file.write_text("class A:\n    def on_host(self, d): pass\nclass B(A): pass\n")
    with pytest.raises(InvalidInput, match=r"A, B.*name one"):
        site.runner.add("p", str(file), {})
    site.runner.add("p", f"{file}:B", {})
    assert site.state("p") == ON


# changes while it runs

CODE = """
from tests.metrics.plugged import saw
class Mine:
    def __init__(self):
        self.seen = 0
    def on_host(self, d, ctx):
        self.seen += 1
        saw("shadow" if ctx.shadow else "live", ctx.pass_id, {version})
        {more}
"""


class Editor:
    def __init__(self, file: Path) -> None:
        self.file = file

    def write(self, version: int, more: str = "pass") -> None:
        self.file.write_text(CODE.format(version=version, more=more))


def live(site: Bench) -> list[int]:
    """The passes that were seen, by old code or new; what is seen twice would be there twice."""
    end = time.monotonic() + PATIENCE_S
    while len(SEEN["live"]) < site.host.passes and time.monotonic() < end:
        time.sleep(0.01)
    return sorted(number for number, _ in SEEN["live"])


class Passing:
    """Passes on a thread of their own."""

    def __init__(self, site: Bench, interval_s: float = 0.02) -> None:
        self.one, self.interval_s = site, interval_s
        self.stop = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self) -> None:
        while not self.stop.wait(self.interval_s):
            self.one.offer()

    def __enter__(self) -> Passing:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.thread.join()


def seen_live(version: int) -> None:
    """Code of that version has been in force for a pass."""
    eventually(lambda: any(site == version for _, site in SEEN["live"]))


def test_new_code_runs_a_pass_in_shadow_and_then_takes_over_without_a_gap(
    bench: Callable[..., Bench], tmp_path: Path
) -> None:
    site, editor = bench(), Editor(tmp_path / "mine.py")
    editor.write(1)
    site.runner.add("mine", str(editor.file), {})
    with Passing(site):
        for version in (2, 3):
            seen_live(version - 1)
            editor.write(version)
            site.runner.reload("mine")
        seen_live(3)
    site.settle()
    assert live(site) == list(range(1, site.host.passes + 1))
    assert [version for _, version in SEEN["shadow"]] == [2, 3]
    versions = [version for _, version in sorted(SEEN["live"])]
    assert versions == sorted(versions)
    assert set(versions) == {1, 2, 3}
    assert site.runner.row("mine")["reloads"] == 2


def test_a_roll_back_returns_to_the_old_code_with_the_old_state(
    bench: Callable[..., Bench], tmp_path: Path
) -> None:
    site, editor = bench(), Editor(tmp_path / "mine.py")
    editor.write(1, 'saw("count", self.seen)')
    site.runner.add("mine", str(editor.file), {})
    with pytest.raises(Conflict, match="no code before"):
        site.runner.roll_back("mine")
    with Passing(site):
        seen_live(1)
        editor.write(2)
        site.runner.reload("mine")
        before = SEEN["count"][-1]
        site.runner.roll_back("mine")
        eventually(lambda: len(SEEN["count"]) > before)
    site.settle()
    assert SEEN["count"] == list(range(1, len(SEEN["count"]) + 1))
    assert len(SEEN["count"]) > before
    assert live(site) == list(range(1, site.host.passes + 1))


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("class Mine(:\n", "SyntaxError"),
        ("raise RuntimeError('at import')\n", "at import"),
        ("class Other: pass\n", "name one"),
        (CODE.format(version=2, more="1 / 0"), "on_host raised ZeroDivisionError"),
        (CODE.format(version=2, more="import time; time.sleep(0.4)"), "on_host took"),
    ],
)
def test_failing_new_code_leaves_the_old_code_running(
    bench: Callable[..., Bench], tmp_path: Path, code: str, why: str
) -> None:
    site = bench(slow_s=0.3 if why == "on_host took" else 30.0)
    editor = Editor(tmp_path / "mine.py")
    editor.write(1)
    site.runner.add("mine", str(editor.file), {})
    with Passing(site):
        seen_live(1)
        editor.file.write_text(code)
        with pytest.raises(InvalidInput, match=why):
            site.runner.reload("mine")
        before = site.host.passes
        eventually(lambda: site.host.passes > before + 1)
    site.settle()
    assert SEEN["live"] == [[number, 1] for number in range(1, site.host.passes + 1)]
    assert site.heard.offs == {}


def test_new_code_switches_a_plugin_on_again(bench: Callable[..., Bench], tmp_path: Path) -> None:
    site, editor = bench(), Editor(tmp_path / "mine.py")
    editor.write(1, "1 / 0")
    site.runner.add("mine", str(editor.file), {})
    site.until(lambda: site.state("mine") == OFF)
    editor.write(2)
    with Passing(site):
        site.runner.reload("mine")
        seen_live(2)
    assert site.state("mine") == ON
    assert SEEN["live"][-1][1] == 2


def test_a_module_is_reloaded_within_the_package_beside_the_old_module(
    bench: Callable[..., Bench], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "acme_pack"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "levels.py").write_text("LEVEL = 5\n")
    code = "from .levels import LEVEL\n" + CODE
    editor = Editor(package / "mine.py")
    editor.file.write_text(code.format(version=1, more="pass"))
    monkeypatch.syspath_prepend(str(tmp_path))
    site = bench()
    site.runner.add("mine", "acme_pack.mine:Mine", {})
    with Passing(site):
        seen_live(1)
        editor.file.write_text(code.format(version=2, more="pass"))
        site.runner.reload("mine")
        seen_live(2)
    assert {version for _, version in SEEN["live"]} == {1, 2}


def test_no_plugin_misses_a_pass_while_others_change_a_hundred_times_a_second(
    bench: Callable[..., Bench], tmp_path: Path
) -> None:
    site, chance = bench(10), random.Random(7)
    editor = Editor(tmp_path / "mine.py")
    editor.write(1)
    site.add("Counting", "good")
    site.runner.add("mine", str(editor.file), {})
    done: dict[str, int] = {}
    names = [f"p{n}" for n in range(6)]
    kinds = ["Counting", "Everything", "Raising", "Lazy", "Spoiling", "Nothing"]

    def change(action: str, do: Callable[[], object]) -> None:
        try:
            do()
            done[action] = done.get(action, 0) + 1
        except HoldfastError:
            done["refused"] = done.get("refused", 0) + 1

    def reload() -> None:
        while not over.is_set():
            change("reload", lambda: site.runner.reload("mine"))

    def once() -> None:
        name, dice = chance.choice(names), chance.random()
        if dice < 0.4:
            kind = chance.choice(kinds)
            change("add", lambda: site.runner.add(name, f"{HERE}:{kind}", {"key": name}))
        elif dice < 0.6:
            change("configure", lambda: site.runner.configure(name, {"key": name, "n": dice}))
        elif dice < 0.7:
            change("configure good", lambda: site.runner.configure("good", {"key": "good"}))
        else:
            change("remove", lambda: site.runner.remove(name))

    over = threading.Event()
    reloading = threading.Thread(target=reload)
    began = time.monotonic()
    with Passing(site):
        reloading.start()
        for number in range(300):
            once()
            time.sleep(max(0.0, began + number / 100 - time.monotonic()))
        over.set()
        reloading.join()
        last = site.host.passes  # may have been seen by the code before the last reload
        eventually(lambda: site.host.passes > last + 1)
    site.settle("good", "mine")
    assert SEEN["good"] == list(range(1, site.host.passes + 1))
    assert live(site) == list(range(1, site.host.passes + 1))
    assert min(done[action] for action in ("add", "configure", "configure good", "remove")) > 5, (
        done
    )
    assert done["reload"] > 5, done
    assert set(site.heard.offs) <= set(names)


def test_two_cannot_change_the_same_plugin_at_once(bench: Callable[..., Bench]) -> None:
    site = bench()
    waiting = threading.Thread(target=lambda: site.add("HangingAtFirst", "h"))
    waiting.start()
    eventually(lambda: "h" in site.runner._changing)
    with pytest.raises(Conflict, match="being changed just now"):
        site.runner.remove("h")
    release()
    site.add("Counting", "good")
    waiting.join()
    site.runner.remove("h")
    with pytest.raises(NotFound, match="there is no plugin h: there are good"):
        site.runner.remove("h")
