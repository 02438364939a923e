# SPDX-License-Identifier: Apache-2.0
"""`holdfast metric record`: what an agent measures, in a file that `rule test` replays."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.agent.admin import Admin, AdminSocket
from holdfast.alarms import preview
from holdfast.metrics.admin import MetricsCommands
from holdfast.metrics.collector import Collector
from holdfast.metrics.passes import Passes
from holdfast.ports.metrics import Guest
from holdfast.runtime.clock import SystemClock
from tests.metrics.test_collect import BIG, World
from tests.metrics.test_top import OBEDIENT
from tests.processes import PATIENCE_S, eventually, script

RULES = """\
rules:
  - {id: crowded, on: host, field: vms_running, when: "> 1", clear: 1}
"""


class Agent:
    """Its socket, and a collector that makes ten passes a second."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.world = World()
        clock = SystemClock()
        self._passes = Passes(Collector("cmp-7", self.world, clock), 0.1, clock)
        admin = Admin()
        admin.add(MetricsCommands(lambda: self._passes.last, clock).commands())
        self._socket = AdminSocket(str(folder / "agent.sock"), admin, clock)
        self._passes.start()
        self._socket.start()

    def stop(self) -> None:
        self._socket.stop()
        self._passes.stop()

    def command(self, *words: str) -> list[str]:
        where = ["--socket", str(self.folder / "agent.sock")]
        return [str(script("holdfast")), "metric", "record", *where, *words]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return ran(self.command(*words))


def ran(words: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    made = Agent(tmp_path)
    yield made
    made.stop()


def test_a_recording_can_be_replayed_by_rule_test(agent: Agent, tmp_path: Path) -> None:
    file, rules = tmp_path / "monday.jsonl", tmp_path / "rules.yaml"
    rules.write_text(RULES)
    words = [*OBEDIENT, *agent.command(str(file))]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as recording:
        try:
            eventually(lambda: file.exists() and file.read_text().count("\n") >= 2)
            agent.world.guests = {**agent.world.guests, "big": Guest(BIG)}
            eventually(lambda: '"big"' in file.read_text())
            recording.send_signal(signal.SIGINT)
            _, said = recording.communicate(timeout=PATIENCE_S)
        finally:
            recording.kill()
    assert recording.returncode == 0, said
    with file.open() as lines:
        passes = list(preview.read(lines, file.name))
    assert f"{len(passes)} passes recorded" in said
    assert len({pass_.pass_id for pass_ in passes}) == len(passes)
    assert sorted(passes[-1].tables) == ["disk", "guest", "host", "nic"]
    test = ran([str(script("holdfast")), "rule", "test", str(rules), str(file), "-f", "json"])
    assert test.returncode == 0, test.stderr
    (change,) = json.loads(test.stdout)
    assert (change["rule"], change["state"], change["name"]) == ("crowded", "firing", "cmp-7")


def test_a_recording_ends_after_its_duration_and_overwrites_no_file(
    agent: Agent, tmp_path: Path
) -> None:
    file = tmp_path / "short.jsonl"
    assert agent.run(str(file), "--for", "3s").returncode == 0
    before = file.read_text()
    assert before.count("\n") >= 1  # ten a second, where the machine has time for them
    again = agent.run(str(file), "--for", "1s")
    assert again.returncode != 0
    assert "is there already: name another file" in again.stderr
    assert file.read_text() == before


def test_without_an_agent_there_is_no_file(tmp_path: Path) -> None:
    file = tmp_path / "never.jsonl"
    where = ["--socket", str(tmp_path / "nobody.sock")]
    gone = ran([str(script("holdfast")), "metric", "record", *where, str(file)])
    assert gone.returncode != 0
    assert "start holdfast-agent" in gone.stderr
    assert not file.exists()
