# SPDX-License-Identifier: Apache-2.0
"""Services of the host: started again, and told when that does not help."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.drivers import processes
from holdfast.drivers.processes import LinuxProcesses
from holdfast.ports.processes import Service
from holdfast.watch.processes import ProcessWatch
from tests.processes import eventually

NOVA = Service("nova-compute", restart=("restart",), patience_s=10, stable_s=60)


@dataclass
class Host:
    """What runs, and on which restart it comes back."""

    service: Service = NOVA
    why: str = ""
    helps_at: int = 99
    restarts: int = 0
    now: float = 0.0
    told: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.watch = ProcessWatch(self, [self.service])

    def runs(self, _service: Service) -> str:
        return self.why

    def restart(self, _service: Service) -> str:
        self.restarts += 1
        if self.restarts >= self.helps_at:
            self.why = ""
        return ""

    def go_on(self, seconds: float, step_s: float = 5.0) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += step_s
            self.told += [step.told for _, step in self.watch.look(self.now)]


def test_what_runs_is_left_alone() -> None:
    host = Host()
    host.go_on(600)
    assert (host.restarts, host.told) == (0, [])


@pytest.mark.parametrize("helps_at", [1, 2, 3])
def test_a_restart_that_helps_is_the_end_of_it_even_the_last_one(helps_at: int) -> None:
    host = Host(why="gone", helps_at=helps_at)
    host.go_on(600)
    assert (host.restarts, host.told) == (helps_at, [])


def test_what_no_restart_brings_back_is_told_once_and_when_it_is_back() -> None:
    host = Host()
    host.go_on(100)
    host.why = "gone"
    host.go_on(600)
    assert (host.restarts, host.told) == (3, ["failed"])
    host.why = ""
    host.go_on(50)
    assert host.told == ["failed"]
    host.go_on(20)
    assert host.told == ["failed", "well"]


def test_what_dies_again_and_again_is_told_though_it_runs_in_between() -> None:
    host = Host()
    for _ in range(6):
        host.why, host.helps_at = "gone", host.restarts + 1
        host.go_on(30)
    assert (host.restarts, host.told) == (3, ["failed"])


def test_what_cannot_be_restarted_is_told_at_once() -> None:
    host = Host(Service("libvirtd"), why="gone")
    host.go_on(5)
    assert host.told == ["failed"]


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 90)), max_size=12))
def test_failed_and_well_take_turns_and_restarts_are_few(lives: list[tuple[bool, int]]) -> None:
    host, ran_s = Host(), 0
    for runs, seconds in lives:
        host.why = "" if runs else "gone"
        host.go_on(seconds)
        ran_s += (seconds + 5) * runs
    assert host.told == (["failed", "well"] * len(lives))[: len(host.told)]
    assert host.restarts <= 3 * (1 + ran_s // 60)


# real processes


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Service]:
    """A service of a name that nobody else has."""
    name = f"hf-{uuid.uuid4().hex[:8]}"
    program = tmp_path / name
    program.symlink_to("/bin/sleep")
    start = tmp_path / "start"
    start.write_text(f"#!/bin/sh\n{program} 300 >/dev/null 2>&1 &\n")
    start.chmod(0o755)
    yield Service(name, restart=(str(start),), patience_s=2.0)
    for one in psutil.process_iter(["cmdline"]):
        if one.info["cmdline"] and one.info["cmdline"][0] == str(program):
            one.kill()


def pid_of(service: Service) -> int:
    (found,) = [
        one.pid
        for one in psutil.process_iter(["cmdline"])
        if one.info["cmdline"] and one.info["cmdline"][0].endswith(service.name)
    ]
    return found


def test_a_service_that_is_killed_is_started_again(daemon: Service) -> None:
    linux = LinuxProcesses()
    watch = ProcessWatch(linux, [daemon])
    assert linux.runs(daemon) == "no such process"
    for _ in range(2):
        assert watch.look(time.monotonic()) == []
        eventually(lambda: linux.runs(daemon) == "", 5)
        os.kill(pid_of(daemon), signal.SIGKILL)
        eventually(lambda: linux.runs(daemon) != "", 5)
        watch.states.clear()


def test_a_service_that_is_frozen_does_not_run(daemon: Service) -> None:
    linux = LinuxProcesses()
    linux.restart(daemon)
    eventually(lambda: linux.runs(daemon) == "", 5)
    os.kill(pid_of(daemon), signal.SIGSTOP)
    eventually(lambda: linux.runs(daemon) == "its process is stopped", 5)


def test_a_script_is_known_by_its_own_name(tmp_path: Path) -> None:
    script = tmp_path / f"hf-{uuid.uuid4().hex[:8]}"
    script.write_text("#!/bin/sh\nsleep 60\nexit 0\n")
    script.chmod(0o755)
    started = subprocess.Popen([script], start_new_session=True)
    try:
        eventually(lambda: LinuxProcesses().runs(Service(script.name)) == "", 5)
    finally:
        os.killpg(started.pid, signal.SIGKILL)
        started.wait()


def test_a_probe_counts_more_than_a_process() -> None:
    linux = LinuxProcesses()
    assert linux.runs(Service("x", probe=("/bin/true",))) == ""
    assert linux.runs(Service("x", probe=("/bin/false",))) == "/bin/false ended with 1"
    said = linux.runs(Service("x", probe=("/bin/ls", "/nowhere")))
    assert "No such file" in said
    assert linux.runs(Service("x", probe=("/nowhere",))) == "/nowhere: No such file or directory"


def test_a_command_that_hangs_is_ended() -> None:
    began = time.monotonic()
    assert processes.run(("/bin/sleep", "60"), 0.2) == "/bin/sleep took longer than 0.2 s"
    assert time.monotonic() - began < 5
