# SPDX-License-Identifier: Apache-2.0
"""A thread of the agent hangs: `guests status`, the heartbeat and systemd's watchdog say so."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.agent.test_guest_admin import House
from tests.processes import PATIENCE_S, eventually

from holdfast.agent.agent import Tap
from holdfast.app.agent import Alarming
from holdfast.cli import guest
from holdfast.runtime import threads
from holdfast.runtime.clock import SystemClock
from holdfast.runtime.threads import PeriodicTask


@pytest.fixture
def over(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """The end of the test, for which `hanging` tasks wait; a thread hangs after 0.5 s."""
    monkeypatch.setattr(threads, "HUNG_S", 0.5)
    # threads of other tests may wait for a simulated clock
    monkeypatch.setattr(threads, "_pulses", weakref.WeakSet())
    event = threading.Event()
    yield event
    event.set()


def hanging(over: threading.Event, *, essential: bool) -> PeriodicTask:
    """Build a task that hangs in its first turn until the test is over."""

    def hang() -> None:
        over.wait()

    return periodic("sender", 0.01, hang, essential=essential)


def periodic(
    name: str, interval_s: float, call: Callable[[], None], *, essential: bool = True
) -> PeriodicTask:
    task = PeriodicTask(name, interval_s, call, SystemClock())
    if essential:
        task.make_essential()
    return task


def test_status_and_heartbeat_name_the_thread_that_hangs(
    tmp_path: Path, over: threading.Event
) -> None:
    house = House(tmp_path, Tap())
    house.agent.start()
    heartbeat = Alarming.__new__(Alarming)
    vars(heartbeat).update(_agent=house.agent, _outbox=house.outbox, _groups=[], _started_at="")
    heartbeat._boot = {"boot_id": "7c1d", "ran": []}
    eventually(lambda: heartbeat._about()["deaf"] == "")
    assert house.ask.status({})["stuck"] == ""
    hanging(over, essential=True).start()
    eventually(lambda: "thread sender hangs for" in house.ask.status({})["stuck"])
    (line,) = guest.warnings({**house.ask.status({}), "troubles": {}, "alarms_lost": 0})
    assert line.startswith("the agent of cmp-1 cannot go on: thread sender hangs for")
    said = heartbeat._about()
    assert "thread sender hangs for" in said["deaf"]
    assert "running" not in said
    house.agent.stop()
    house.outbox.close()


def test_a_thread_that_waits_or_has_ended_or_is_not_essential_does_not_hang(
    over: threading.Event,
) -> None:
    waits = periodic("waits", 600.0, lambda: None)
    ended = periodic("ended", 0.01, lambda: None)
    for task in (waits, ended, hanging(over, essential=False)):
        task.start()
    ended.stop()
    assert not threading.Event().wait(1.0)
    assert threads.hung() == ""
    waits.stop()


PROGRAM = """
import threading
from holdfast import conf
from holdfast.app.daemon import Daemon
from holdfast.runtime import threads
from holdfast.runtime.clock import SystemClock
threads.HUNG_S = 1.0
hangs = threads.PeriodicTask("hangs", 3.0, threading.Event().wait, SystemClock(), stop_s=0.1)
hangs.make_essential()
raise SystemExit(Daemon(conf.load([], []), [hangs]).run())
"""


def test_systemd_hears_nothing_from_a_program_with_a_thread_that_hangs(tmp_path: Path) -> None:
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ears:
        ears.bind(str(path))
        ears.settimeout(PATIENCE_S)
        env = {**os.environ, "NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "600000"}
        with subprocess.Popen([sys.executable, "-c", PROGRAM], env=env) as process:
            assert [ears.recv(100) for _ in range(3)] == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"]
            ears.settimeout(5.0)
            with pytest.raises(TimeoutError):  # once the thread hangs for a second
                while True:
                    assert ears.recv(100) == b"WATCHDOG=1"
            process.send_signal(signal.SIGTERM)
            assert ears.recv(100) == b"STOPPING=1"
            assert process.wait(PATIENCE_S) == 0
