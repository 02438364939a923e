# SPDX-License-Identifier: Apache-2.0
"""kill -9 of real managers while hosts die: eight recoveries, each of them once.

Three managers share a database and a cloud; one after the other is killed in the middle of what it
does, and after each of these deaths another host dies. Each host that dies is reported ten times;
some were only cut off, some come back in the middle.
`RESCUES=200 RACES_SEED=7 pytest tests/races/test_recovery_kill_nine.py` for more of it.
"""

from __future__ import annotations

import contextlib
import os
import random
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from holdfast.db import Store, migrations
from holdfast.drivers.sim.cloud import SimCloud
from holdfast.drivers.sim.simulator import Simulator
from holdfast.model.errors import Conflict
from holdfast.model.notification import NewNotification
from holdfast.runtime.clock import SystemClock
from tests.processes import PATIENCE_S, Program

RESCUES = int(os.environ.get("RESCUES", "8"))
SEED = int(os.environ.get("RACES_SEED", "0")) or int.from_bytes(os.urandom(3), "big")
SERVERS = 8
DEAD = {"event": "STOPPED", "host_status": "NORMAL", "cluster_status": "OFFLINE"}


class Race:
    """The world, and those who report what dies in it."""

    def __init__(self, folder: Path, url: str) -> None:
        self.dice = random.Random(SEED)
        self.sim = Simulator(str(folder / "sim.db"), SystemClock())
        self.store = Store(url, SystemClock())
        migrations.sync(self.store.database)
        self._eyes = sqlite3.connect(folder / "sim.db", isolation_level=None)
        self._later: list[tuple[float, Any]] = []
        self.returned: set[str] = set()
        self._build(folder)

    def close(self) -> None:
        self._eyes.close()
        self.store.close()
        self.sim.close()

    def _build(self, folder: Path) -> None:
        """Racks of a host that dies, which is full until then, and one that does not."""
        segments = self.store.segments
        values = {"name": "all", "recovery_method": "auto", "service_type": "compute"}
        segments.create(_id(0), values)
        cloud = SimCloud(str(folder / "sim.db"), SystemClock())
        with contextlib.closing(cloud):
            for number in range(RESCUES):
                for name in (f"dies-{number}", f"lives-{number}"):
                    room = SERVERS if name.startswith("dies") else 128
                    self.sim.add_host(name, rack=f"rack-{number}", vcpus=room)
                    host_id = segments.know(cloud.hosts.find(name), "")
                    rest = {"reserved": False, "on_maintenance": False}
                    rest |= {"type": "COMPUTE", "control_attributes": "none"}
                    segments.add_host(_id(host_id), _id(0), host_id, rest)
                for server in range(SERVERS):
                    name = f"{number}-{server}"
                    made = self.sim.boot(name, "alpha", f"dies-{number}", 1, 512, 1)
                    if server == 0:
                        cloud.servers.stop(made.id)
        self.sim.change(action_s=0.4, latency_s=0.01)

    def kill_host(self, number: int) -> None:
        dice, host = self.dice, f"dies-{number}"
        (self.sim.cut_host if dice.random() < 0.4 else self.sim.fail_host)(host)
        at = datetime.now(UTC)
        for again in range(10):
            when = 0.0 if again == 0 else dice.uniform(0, 5)
            self._soon(when, lambda: self._report(host, at))
        if number % 4 == 1:
            self.returned.add(host)
            self._soon(dice.uniform(0.5, 3), lambda: self._return(host))

    def _return(self, host: str) -> None:
        """Not before it is proven off: a host that returns before it was cut is left alone."""
        proven = "CAST(details AS TEXT) LIKE '%\"evidence\"%' AND status != 'open'"
        begun = f"SELECT 1 FROM incidents WHERE subject = 'host:{host}' AND {proven}"
        if self.rows(begun):
            self.sim.recover_host(host)
        else:
            self._soon(0.2, lambda: self._return(host))

    def _report(self, host: str, at: datetime) -> None:
        new = NewNotification("COMPUTE_HOST", host, at, DEAD)
        id_ = _id(self.dice.getrandbits(100))
        with contextlib.suppress(Conflict):
            self.store.notifications.admit(id_, new, interval=timedelta(seconds=180))

    def _soon(self, seconds: float, act: Any) -> None:
        self._later.append((time.monotonic() + seconds, act))

    def watch(self, until: Callable[[], bool], timeout: float = 2 * PATIENCE_S) -> None:
        """Let time pass, and happen what is to happen, until that is so; nothing runs twice
        meanwhile."""
        deadline = time.monotonic() + timeout
        while not until():
            now = time.monotonic()
            assert now < deadline, f"not within {timeout:g} s; open: {self.open_work()}"
            due = [one for one in self._later if one[0] <= now]
            self._later = [one for one in self._later if one[0] > now]
            for _at, act in due:
                act()
            twice = "SELECT server_id FROM domains GROUP BY server_id HAVING count(*) > 1"
            assert not (found := self._eyes.execute(twice).fetchall()), f"{found} run twice"
            time.sleep(0.05)

    def all_happened(self) -> bool:
        return not self._later

    def open_work(self) -> list[Any]:
        query = sa.text(
            "SELECT key, status, owner, sentence FROM operations WHERE is_open AND (kind LIKE"
            " 'recovery%' OR kind IN ('notification', 'server_move'))"
        )
        with self.store.database.read() as conn:
            return list(conn.execute(query).all())

    def rows(self, query: str) -> list[Any]:
        with self.store.database.read() as conn:
            return list(conn.execute(sa.text(query)).all())


def _id(number: int) -> str:
    return f"00000000-0000-4000-8{number >> 48 & 0xFFF:03x}-{number & 0xFFFFFFFFFFFF:012x}"


@pytest.fixture
def race(postgresql: Any, tmp_path: Path) -> Iterator[Race]:
    url = postgresql.new_database()
    with contextlib.closing(Race(tmp_path, url)) as made:
        yield made
    postgresql.drop_database(url)


@pytest.mark.slow("real managers are killed, and each claim of a dead one lasts its six seconds")
@pytest.mark.timeout(8 * PATIENCE_S + RESCUES * 20)
def test_hosts_that_die_while_managers_are_killed_are_recovered_once(
    race: Race, tmp_path: Path
) -> None:
    print(f"RACES_SEED={SEED}")
    url = race.store.database.engine.url.render_as_string(hide_password=False)
    command = [sys.executable, "-m", "tests.races.rescuers", tmp_path, url, str(SEED)]
    env = {"PYTHONPATH": str(Path(__file__).parents[2])}
    with Program(command, tmp_path, env=env, name="rescuers") as rescuers:
        rescuers.wait_until((tmp_path / "ready").exists, 2 * PATIENCE_S)

        def killed() -> int:
            assert rescuers.poll() is None, rescuers.tail()
            return rescuers.log.read_text().count("killed")

        for number in range(RESCUES):
            race.kill_host(number)
            before = killed()
            race.watch(lambda before=before: killed() > before)
        race.watch(race.all_happened)  # while managers go on dying
        (tmp_path / "enough").touch()
        race.watch(lambda: not race.open_work(), 3 * PATIENCE_S)
        check(race)
        (tmp_path / "enough").unlink()
    said = Counter(rescuers.log.read_text().split())
    print(f"{said['killed']} managers killed, {len(race.returned)} hosts came back meanwhile")
    assert said["Traceback"] == 0, rescuers.tail()


def check(race: Race) -> None:
    """Every server moved once, all as they were, nothing left behind."""
    found = race.rows("SELECT subject, status, count(*) FROM incidents GROUP BY subject, status")
    wanted = {(f"host:dies-{number}", "recovered", 1) for number in range(RESCUES)}
    assert {tuple(row) for row in found} == wanted
    assert race.rows("SELECT DISTINCT status FROM notifications") == [("finished",)]
    moved = race.rows("SELECT status, count(*) FROM vmoves GROUP BY status")
    assert [tuple(row) for row in moved] == [("succeeded", RESCUES * SERVERS)]
    evacuated = Counter(effect.subject for effect in race.sim.effects(call="moves.evacuate"))
    assert set(evacuated.values()) == {1}, "a server was evacuated more than once"
    seen = race.sim.world()
    assert len(evacuated) == len(seen["servers"]) == RESCUES * SERVERS
    for server in seen["servers"]:
        stopped = server["name"].endswith("-0")
        assert server["status"] == ("SHUTOFF" if stopped else "ACTIVE"), server
        assert server["host"].startswith("lives-") or server["host"] in race.returned, server
        assert not server["locked"], server
        assert race.sim.running(server["id"]) == ([] if stopped else [server["host"]])
