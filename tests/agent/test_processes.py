# SPDX-License-Identifier: Apache-2.0
"""Services of the host: started again, and told when that does not help."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.processes import PATIENCE_S, eventually

from holdfast.agent import linux_processes
from holdfast.agent.linux_processes import LinuxProcesses
from holdfast.agent.processes import ProcessWatch, Service, ServicesFile
from holdfast.model.errors import DriverError

NOVA = Service("nova-compute", restart=("restart",), patience_s=10, stable_s=60)


@pytest.fixture(scope="module", autouse=True)
def patient() -> Iterator[None]:
    """A restart that is quick is over before the next look, however busy the machine is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("holdfast.agent.processes.QUICK_S", 90.0)
        yield


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
            self.told += [step.report for _, step in self.watch.check(self.now)]


def test_what_runs_is_left_alone() -> None:
    host = Host()
    host.go_on(600)
    assert (host.restarts, host.told) == (0, [])


@pytest.mark.parametrize("helps_at", [1, 2, 3])
def test_a_restart_that_helps_is_the_end_of_it_even_the_last_one(helps_at: int) -> None:
    host = Host(why="gone", helps_at=helps_at)
    host.go_on(600)
    assert (host.restarts, host.told) == (helps_at, [])


def test_a_service_that_no_restart_brings_back_is_reported_once_and_again_when_it_runs() -> None:
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


def test_a_service_that_dies_again_and_again_is_reported_although_it_runs_in_between() -> None:
    host = Host()
    for _ in range(6):
        host.why, host.helps_at = "gone", host.restarts + 1
        host.go_on(30)
    assert (host.restarts, host.told) == (3, ["failed"])


def test_where_it_never_ran_nobody_misses_it_and_where_it_did_it_is_missed() -> None:
    host = Host(Service("vswitch", restart=("restart",), if_seen=True), why="no such process")
    host.go_on(600)
    assert (host.restarts, host.told) == (0, [])
    host.why = ""
    host.go_on(10)
    host.why = "gone"
    host.go_on(600)
    assert (host.restarts, host.told) == (3, ["failed"])


def test_an_agent_that_is_started_again_and_again_has_no_new_restarts_to_give() -> None:
    host = Host(why="gone")
    kept: list[dict[str, Any]] = []
    for _ in range(10):
        said = kept[-1] if kept else None
        host.watch = ProcessWatch(host, [host.service], keep=kept.append)
        host.watch.recall(said, host.now)
        host.go_on(15)
        kept.append(host.watch.remembered())
    assert (host.restarts, host.told) == (3, ["failed"])
    host.why = ""
    host.go_on(70)
    assert host.told == ["failed", "well"]
    assert host.watch.remembered()["nova-compute"]["tries"] == 0


def test_a_restart_is_written_down_before_it_is_tried() -> None:
    order: list[str] = []
    host = Host(why="gone")

    class Restarts(Host):
        def restart(self, _service: Service) -> str:
            order.append("restart")
            return ""

    def keep(said: Mapping[str, Any]) -> None:
        order.append(f"tries {said['nova-compute']['tries']}")

    ProcessWatch(Restarts(why="gone"), [host.service], keep=keep).check(1.0)
    assert order == ["tries 1", "restart"]


def test_a_full_disk_is_no_reason_to_leave_a_service_down() -> None:
    def keep(_said: Mapping[str, Any]) -> None:
        raise DriverError("outbox", "the disk is full", retryable=True)

    host = Host(why="gone", helps_at=1)
    ProcessWatch(host, [host.service], keep=keep).check(1.0)
    assert host.restarts == 1


@pytest.mark.parametrize("said", [None, {}, {"nova-compute": 3}, ["x"], {"nova-compute": {}}])
def test_what_cannot_be_remembered_is_begun_anew(said: Any) -> None:
    host = Host(why="gone")
    host.watch.recall(said, 0.0)
    host.go_on(600)
    assert (host.restarts, host.told) == (3, ["failed"])


def test_a_report_that_could_not_be_written_is_made_again_at_the_next_check() -> None:
    host = Host(Service("libvirtd"), why="gone")
    told = host.watch.check(1.0)
    host.watch.forget_reports(told)
    assert [step.report for _, step in host.watch.check(2.0)] == ["failed"]
    assert host.watch.check(3.0) == []
    host.why = ""
    host.watch.check(4.0)
    told = host.watch.check(100.0)
    host.watch.forget_reports(told)
    assert [step.report for _, step in host.watch.check(101.0)] == ["well"]
    assert host.watch.check(102.0) == []


def test_a_file_counts_as_it_is_now_and_a_bad_one_changes_nothing(tmp_path: Path) -> None:
    path, host = tmp_path / "services.yaml", Host()
    path.write_text("services: [{name: a}, {name: nova-compute, tries: 1}]")
    named = [Service("nova-compute"), Service("b")]
    watch = ProcessWatch(host, named, ServicesFile(str(path)))
    assert [(service.name, service.tries) for service in watch.services] == [
        ("nova-compute", 1),
        ("b", 3),
        ("a", 3),
    ]
    host.why = "gone"
    assert [service.name for service, _ in watch.check(1.0)] == ["nova-compute", "b", "a"]
    path.write_text("services: [{name: a b}]")
    assert watch.check(2.0) == []
    path.write_text("services: [{name: c}]")
    assert [service.name for service, _ in watch.check(3.0)] == ["c"]
    assert "a" not in watch.states


def test_one_that_takes_long_holds_up_no_other() -> None:
    class Slow(Host):
        def runs(self, service: Service) -> str:
            together.wait()  # until all of them are looked at
            return ""

    together = threading.Barrier(8, timeout=PATIENCE_S)
    watch = ProcessWatch(Slow(), [Service(f"s{number}") for number in range(8)])
    assert watch.check(1.0) == []
    assert not together.broken


class Hung(Host):
    """Whose restarts take until they are let go."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.dead, self.let_go = {self.service.name}, threading.Event()

    def runs(self, service: Service) -> str:
        return "gone" if service.name in self.dead else ""

    def restart(self, service: Service) -> str:
        self.restarts += 1
        self.let_go.wait(300)
        return ""


def test_a_restart_that_takes_long_hides_nothing_and_is_not_begun_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.agent.processes.QUICK_S", 0.02)
    host = Hung()
    watch = host.watch = ProcessWatch(host, [NOVA, Service("libvirtd")])
    host.go_on(30)
    host.dead.add("libvirtd")
    assert [service.name for service, _ in watch.check(31.0)] == ["libvirtd"]
    host.go_on(300)
    assert (host.restarts, host.told) == (1, [])
    assert not host.let_go.is_set()  # and nobody waited for it
    host.let_go.set()
    eventually(lambda: not any(one.name.startswith("restart-") for one in threading.enumerate()))


def test_patience_with_a_restart_begins_when_it_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.agent.processes.QUICK_S", 0.02)
    host = Hung()
    host.go_on(60)
    host.let_go.set()
    eventually(lambda: not any(one.name.startswith("restart-") for one in threading.enumerate()))
    host.go_on(5)  # here it is seen to have ended
    host.go_on(5)
    assert host.restarts == 1
    host.go_on(5)
    assert host.restarts == 2
    host.go_on(30)
    assert (host.restarts, host.told) == (3, ["failed"])


def test_a_service_without_a_restart_is_reported_at_once() -> None:
    host = Host(Service("libvirtd"), why="gone")
    host.go_on(5)
    assert host.told == ["failed"]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
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
        assert watch.check(time.monotonic()) == []
        eventually(lambda: linux.runs(daemon) == "")
        os.kill(pid_of(daemon), signal.SIGKILL)
        eventually(lambda: linux.runs(daemon) != "")
        watch.states.clear()


def test_a_service_that_is_frozen_does_not_run(daemon: Service) -> None:
    linux = LinuxProcesses()
    linux.restart(daemon)
    eventually(lambda: linux.runs(daemon) == "")
    os.kill(pid_of(daemon), signal.SIGSTOP)
    eventually(lambda: linux.runs(daemon) == "its process is stopped")


def test_a_script_is_known_by_its_own_name(tmp_path: Path) -> None:
    script = tmp_path / f"hf-{uuid.uuid4().hex[:8]}"
    script.write_text("#!/bin/sh\nsleep 60\nexit 0\n")
    script.chmod(0o755)
    started = subprocess.Popen([script], start_new_session=True)
    try:
        eventually(lambda: LinuxProcesses().runs(Service(script.name)) == "")
    finally:
        os.killpg(started.pid, signal.SIGKILL)
        started.wait()


def test_a_probe_counts_more_than_a_process() -> None:
    linux = LinuxProcesses()
    assert linux.runs(Service("x", probe_s=60, probe=("/bin/true",))) == ""
    assert linux.runs(Service("x", probe_s=60, probe=("/bin/false",))) == "/bin/false ended with 1"
    said = linux.runs(Service("x", probe_s=60, probe=("/bin/ls", "/nowhere")))
    assert "No such file" in said
    assert (
        linux.runs(Service("x", probe_s=60, probe=("/nowhere",)))
        == "/nowhere: No such file or directory"
    )


def test_a_command_that_hangs_is_ended() -> None:
    began = time.monotonic()
    assert (
        linux_processes.run(("/bin/sleep", "60"), 0.2)
        == "/bin/sleep took longer than 0.2 s and was ended"
    )
    assert time.monotonic() - began < 50


def test_what_a_command_that_hangs_has_started_is_ended_with_it(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = tmp_path / "restart"
    script.write_text(
        f"#!/bin/sh\nsleep 61 & echo $! >>{pids}\nsetsid sleep 62 & echo $! >>{pids}\nwait\n"
    )
    script.chmod(0o755)
    said = LinuxProcesses().restart(Service("x", restart=(str(script),), restart_s=4.0))
    assert said == f"{script} took longer than 4 s and was ended"
    children = [int(one) for one in pids.read_text().split()]
    assert len(children) == 2
    eventually(lambda: not any(map(psutil.pid_exists, children)))


def test_a_command_that_says_much_is_not_held_up_by_us() -> None:
    noise = ("/bin/sh", "-c", "head -c 1000000 /dev/zero | tr '\\0' x >&2; exit 3")
    said = linux_processes.run(noise, 60)
    assert said.startswith("/bin/sh ended with 3: xxx")
    assert len(said) < 400


def test_what_comes_before_and_after_a_restart_is_done_in_this_order(tmp_path: Path) -> None:
    log = tmp_path / "log"

    def step(word: str) -> tuple[str, ...]:
        return ("/bin/sh", "-c", f"echo {word} >>{log}")

    service = Service("x", before=step("1"), restart=step("2"), after=step("3"))
    assert LinuxProcesses().restart(service) == ""
    assert log.read_text().split() == ["1", "2", "3"]
    stopped = replace(service, before=("/bin/false",))
    assert LinuxProcesses().restart(stopped) == "/bin/false ended with 1"
    assert log.read_text().split() == ["1", "2", "3"]


def test_a_pidfile_names_the_process(tmp_path: Path) -> None:
    path, linux = tmp_path / "x.pid", LinuxProcesses()
    service = Service("x", pidfile=str(path))
    assert linux.runs(service) == f"{path}: No such file or directory"
    path.write_text("nonsense")
    assert "has no number of a process" in linux.runs(service)
    started = subprocess.Popen(["/bin/sleep", "60"])
    try:
        path.write_text(f"{started.pid}\n")
        assert linux.runs(service) == ""
        started.send_signal(signal.SIGSTOP)
        eventually(lambda: linux.runs(service).endswith("is stopped"))
    finally:
        started.kill()
        started.wait()
    assert linux.runs(service).endswith("is gone")


def test_a_pattern_is_found_in_the_command_line() -> None:
    mark = f"hf-{uuid.uuid4().hex}"
    service = Service("x", matching=f"sleep.* 6[0-9] {mark}$")
    linux = LinuxProcesses()
    assert linux.runs(service) == "no such process"
    started = subprocess.Popen(["/bin/sh", "-c", "sleep 30; :", "sleep", "61", mark])
    try:
        eventually(lambda: linux.runs(service) == "")
    finally:
        started.kill()
        started.wait()


def test_a_path_is_another_than_the_same_name_elsewhere(daemon: Service) -> None:
    linux = LinuxProcesses()
    linux.restart(daemon)
    eventually(lambda: linux.runs(daemon) == "")
    program = str(Path(daemon.restart[0]).parent / daemon.name)
    assert linux.runs(Service("x", process=program)) == ""
    assert linux.runs(Service("x", process=f"/usr/sbin/{daemon.name}")) == "no such process"


def test_a_socket_answers_if_somebody_listens(tmp_path: Path) -> None:
    path, linux = tmp_path / "s", LinuxProcesses()
    service = Service("x", socket=str(path))
    assert linux.runs(service) == f"no answer at {path}: No such file or directory"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        assert linux.runs(service) == f"no answer at {path}: Connection refused"
        server.listen(1)
        assert linux.runs(service) == ""
        assert (
            linux.runs(replace(service, probe_s=60, probe=("/bin/false",)))
            == "/bin/false ended with 1"
        )


def test_systemd_is_asked_in_its_own_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "systemctl"
    program.write_text('#!/bin/sh\n[ "$1 $2" = "is-active b.service" ] && echo failed && exit 3\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    linux = LinuxProcesses()
    assert linux.runs(Service("b", unit="b.service")) == "systemd says that b.service is failed"
    program.write_text("#!/bin/sh\necho active\n")
    assert linux.runs(Service("b", unit="b.service")) == ""
