# SPDX-License-Identifier: Apache-2.0
"""Fence agents that misbehave, and what an agent gets to see."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from tests.drivers.bmc import PASSWORD, USER
from tests.processes import eventually

from holdfast.drivers.fence.agent import Agent
from holdfast.drivers.fence.device import Device
from holdfast.model.errors import DriverError


@pytest.fixture
def program(tmp_path: Path) -> Callable[..., Agent]:
    """An agent of our own, in shell."""

    def make(lines: str, timeout_s: float = 60.0) -> Agent:
        file = tmp_path / "fence_own"
        file.write_text(f"#!/bin/sh\n{lines}\n")
        file.chmod(0o755)
        device = Device("cmp-1", 1, "agent", timeout_s, agent="fence_own")
        return Agent(device, str(tmp_path))

    return make


def test_a_hanging_fence_agent_is_killed_with_all_children(
    program: Callable[..., Agent], tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    lines = f"trap '' TERM INT\nsleep 600 &\necho $$ $! >{pids}\nwait\nsleep 600"
    for seconds in (2, 20, 60):  # on a busy machine it may be killed before it has begun
        before = time.monotonic()
        with pytest.raises(DriverError, match=f"off: no answer within {seconds} s"):
            program(lines, seconds).off("cmp-1")
        assert time.monotonic() - before < 200.0
        if pids.exists() and pids.read_text():
            break
    for pid in pids.read_text().split():
        eventually(lambda pid=pid: not psutil.pid_exists(int(pid)) or _gone(int(pid)))


def _gone(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize(
    "lines",
    [
        "exit 2",  # also what an interpreter says that finds no program
        "echo 'Status: OFF'",
        "echo 'Status: ON'; exit 2",
        "echo 'Status: ON'; echo 'Status: OFF'; exit 2",
        "echo 'no Status: OFF here'; exit 2",
        "echo 'Status: OFF'; kill -9 $$",
    ],
)
def test_off_needs_agreement_of_exit_code_and_output(
    program: Callable[..., Agent], lines: str
) -> None:
    with pytest.raises(DriverError, match="status: "):
        program(lines).power("cmp-1")


def test_an_agent_gets_its_lines_and_nothing_of_our_environment(
    tmp_path: Path, password_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OS_PASSWORD", "cloud-secret")
    agent = tmp_path / "fence_own"
    agent.write_text(f"#!/bin/sh\n/bin/cat >{tmp_path}/lines\n/usr/bin/env >{tmp_path}/env\n")
    agent.chmod(0o755)
    (tmp_path / "community").write_text("snmp-secret\nsecond line\n")
    device = Device(
        *("rack7-*", 1, "agent", 30.0),
        agent="fence_own",
        address="{short}.pdu",
        user=USER,
        password_file=password_file,
        options={"plug": "{host}"},
        secret_files={"community": str(tmp_path / "community")},
    )
    Agent(device, str(tmp_path)).off("rack7-2.example")
    assert (tmp_path / "lines").read_text().splitlines() == [
        "action=off",
        "ip=rack7-2.pdu",
        f"username={USER}",
        "plug=rack7-2.example",
        "community=snmp-secret",
        f"password={PASSWORD}",
    ]
    environment = (tmp_path / "env").read_text()
    assert "secret" not in environment
    assert PASSWORD not in environment
