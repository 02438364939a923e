# SPDX-License-Identifier: Apache-2.0
"""The simulated cloud in many hands: threads, processes, and processes that die."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.drivers.small_cloud import SRC, HandClock, python

from holdfast.drivers.sim.cloud import SimCloud
from holdfast.drivers.sim.file import AGE_S
from holdfast.drivers.sim.simulator import Simulator
from holdfast.model.errors import Conflict, DriverError
from holdfast.runtime.clock import SystemClock


def test_many_threads_share_a_simulated_cloud(cloud: SimCloud, sim: Simulator) -> None:
    pool = cloud.pools.create("r1", {})

    def work(n: int) -> bool:
        cloud.pools.add_host(pool.id, f"cmp-{n % 3 + 1}")
        try:
            cloud.pools.create(f"name-{n // 8}", {})
        except Conflict:
            return False
        return True

    with ThreadPoolExecutor(8) as threads:
        won = list(threads.map(work, range(64)))
    assert sum(won) == 8  # one winner for each name
    assert len(sim.effects("pools.add_host")) == 3
    assert sim.calls()["pools.add_host"] == 64


BOOKER = """
import sys
from holdfast.drivers.sim import SimCloud, Simulator
from holdfast.drivers.sim.file import AGE_S
from holdfast.model.errors import Conflict
from holdfast.runtime.clock import SystemClock
path, me = sys.argv[1:]
cloud, sim = SimCloud(path, SystemClock()), Simulator(path, SystemClock())
sim.seed_demo()
wins = 0
for n in range(60):
    try:
        cloud.pools.create(f"pool-{n}", {"by": me})
        wins += 1
    except Conflict:
        pass
    while True:
        seen = cloud.slots.inventory("cmp-01", "CUSTOM_X")
        try:
            cloud.slots.set_inventory(
                "cmp-01", "CUSTOM_X", seen.total + 1, seen.generation
            )
            break
        except Conflict:
            pass
print(wins)
cloud.close()
sim.close()
"""


def test_processes_that_create_the_same_file_at_once_lose_nothing(
    path: str,
) -> None:
    workers = [python(BOOKER, path, str(n)) for n in range(3)]
    wins = [int(worker.communicate(timeout=100)[0]) for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0, 0]
    assert sum(wins) == 60
    cloud = SimCloud(path, SystemClock())
    assert len(cloud.hosts.list()) == 24
    inventory = cloud.slots.inventory("cmp-01", "CUSTOM_X")
    assert (inventory.total, inventory.generation) == (180, 180)
    cloud.close()


OBEYER = """
import sys
from holdfast.drivers.sim import SimCloud
from holdfast.model.errors import DriverError
from holdfast.runtime.clock import SystemClock
cloud = SimCloud(sys.argv[1], SystemClock())
print(len(cloud.hosts.list()), flush=True)
for _ in sys.stdin:
    try:
        cloud.hosts.list()
        print("fine", flush=True)
    except DriverError as error:
        print(error, flush=True)
"""


def test_settings_changed_by_one_process_are_obeyed_by_the_next_call_of_another(
    path: str, sim: Simulator
) -> None:
    other = subprocess.Popen(
        [sys.executable, "-c", OBEYER, path],
        env={**os.environ, "PYTHONPATH": SRC},
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert other.stdin and other.stdout

    def ask() -> str:
        assert other.stdin and other.stdout
        other.stdin.write("?\n")
        other.stdin.flush()
        return other.stdout.readline()

    with other:
        assert other.stdout.readline() == "3\n"
        assert ask() == "fine\n"
        sim.change(down=True)
        assert "the cloud is down" in ask()
        sim.change(down=False)
        assert ask() == "fine\n"


WRITER = """
import sys
from itertools import count
from holdfast.drivers.sim import SimCloud, Simulator
from holdfast.runtime.clock import SystemClock
path, me = sys.argv[1:]
cloud, sim = SimCloud(path, SystemClock()), Simulator(path, SystemClock())
for n in count():
    pool = cloud.pools.create(f"{me}-{n}", {})
    cloud.pools.add_host(pool.id, "cmp-1")
    server = sim.boot(f"{me}-{n}", "p", "cmp-2", 1, 1, 1)
    cloud.servers.stop(server.id)
    cloud.servers.delete(server.id)
    if n == 0:
        print("going", flush=True)
"""


def test_a_writer_killed_at_any_moment_leaves_a_consistent_world(
    path: str, cloud: SimCloud, sim: Simulator
) -> None:
    dice = random.Random(11)
    for trial in range(6):
        writer = python(WRITER, path, f"t{trial}")
        with writer:
            assert writer.stdout and writer.stdout.readline() == "going\n"
            time.sleep(dice.random() / 10)
            os.kill(writer.pid, signal.SIGKILL)
        pools = cloud.pools.list()
        # What was recorded happened, what happened was recorded, nothing in between.
        assert len(pools) == len(sim.effects("pools.create"))
        members = [pool for pool in pools if pool.hosts]
        assert len(members) == len(sim.effects("pools.add_host"))
        cloud.pools.create(f"after-{trial}", {})
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert db.execute("PRAGMA foreign_key_check").fetchall() == []
    db.close()
    alive = {server.id for server in cloud.servers.list()}
    assert len(alive) == len(sim.effects("sim.boot")) - len(sim.effects("servers.delete"))


def test_a_call_that_cannot_get_the_lock_ends_in_a_retryable_error(path: str) -> None:
    cloud = SimCloud(path, SystemClock(), call_timeout_s=0.2)
    hog = sqlite3.connect(path)
    hog.execute("BEGIN IMMEDIATE")
    with pytest.raises(DriverError, match="locked") as error:
        cloud.pools.create("r1", {})
    assert error.value.retryable
    hog.close()
    assert cloud.pools.create("r1", {}).name == "r1"
    cloud.close()


def test_a_reader_never_waits_for_a_writer_and_reads_committed_rows(path: str) -> None:
    cloud = SimCloud(path, SystemClock(), call_timeout_s=0.2)
    cloud.pools.create("r1", {})
    hog = sqlite3.connect(path)
    hog.execute("BEGIN IMMEDIATE")
    hog.execute("UPDATE pools SET name = 'r2'")
    assert [pool.name for pool in cloud.pools.list()] == ["r1"]
    hog.commit()
    assert [pool.name for pool in cloud.pools.list()] == ["r2"]
    hog.close()
    cloud.close()


LOOKER = """
import sys
from holdfast.drivers.sim import SimCloud
from holdfast.runtime.clock import SystemClock
cloud = SimCloud(sys.argv[1], SystemClock())
for _ in range(5):
    cloud.hosts.list()
cloud.close()
"""


def test_counts_of_read_calls_are_written_at_the_end_of_the_process(path: str) -> None:
    sim = Simulator(path, SystemClock())
    with python(LOOKER, path) as looker:
        looker.communicate(timeout=100)
    assert sim.calls() == {"hosts.list": 5}
    sim.close()


def test_counts_of_read_calls_are_written_after_a_while(path: str) -> None:
    cloud = SimCloud(path, SystemClock())
    cloud.hosts.list()
    time.sleep(AGE_S * 1.5)
    cloud.hosts.list()
    with sqlite3.connect(path) as db:  # as another process sees it
        assert db.execute("SELECT * FROM calls").fetchall() == [("hosts.list", 2)]
    db.close()
    cloud.close()


def test_a_read_call_completes_actions_that_are_due(cloud: SimCloud, sim: Simulator) -> None:
    server = sim.boot("s", "p", "cmp-1", 1, 1, 1)
    cloud.servers.stop(server.id)
    assert cloud.servers.show(server.id).status == "SHUTOFF"
    assert sim.running(server.id) == []


def test_an_unusable_file_is_a_driver_error(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("this is not a database, however long one looks at it" * 20)
    for bad in (text, text / "below", tmp_path):
        with pytest.raises(DriverError):
            SimCloud(str(bad), HandClock())
    strange = tmp_path / "strange.db"
    with sqlite3.connect(strange) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(DriverError, match="layout 99"):
        SimCloud(str(strange), HandClock())
