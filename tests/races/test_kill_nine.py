# SPDX-License-Identifier: Apache-2.0
"""kill -9 of real managers in the middle of their work, again and again, and nobody helps."""

from __future__ import annotations

import contextlib
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from holdfast.db import Store, migrations
from holdfast.drivers.sim.simulator import Simulator
from holdfast.runtime.clock import SystemClock
from tests.processes import PATIENCE_S, Program
from tests.races.audit import Audit
from tests.races.victim import CAPACITY, HOSTS, NETWORK

KILLS = int(os.environ.get("KILLS", "8"))
SEED = int(os.environ.get("RACES_SEED", "0")) or int.from_bytes(os.urandom(3), "big")


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'x.db'}"
        return
    server = request.getfixturevalue("postgresql")
    made = server.new_database()
    yield made
    server.drop_database(made)


def program(folder: Path, url: str) -> Program:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "tests.races.victim", folder, url, str(KILLS), str(SEED)]
    return Program(command, folder, env={"PYTHONPATH": str(root)}, name="victims")


@pytest.mark.slow("real managers are killed, and each claim of a dead one lasts its six seconds")
@pytest.mark.timeout(5 * PATIENCE_S + KILLS * 10)
def test_managers_killed_again_and_again_lose_double_and_leave_nothing(
    url: str, tmp_path: Path
) -> None:
    print(f"RACES_SEED={SEED}")
    with contextlib.closing(build(tmp_path, url)) as world:
        with program(tmp_path, url) as victims:
            victims.wait_until((tmp_path / "resting").exists, 2 * PATIENCE_S + KILLS * 10)
            # from now on the last two only work, nobody asks for anything any more
            victims.wait_until(lambda: all_over(url), 2 * PATIENCE_S, 0.2)
            assert Audit(url, CAPACITY).findings() == []
            (tmp_path / "enough").unlink()
        text = victims.log.read_text()  # of several programs, whose words may touch
        words = ("killed", "booked", "prolonged", "deleted", "defect", "Traceback")
        said = {word: text.count(word) for word in words}
        print(said)
        assert said["killed"] == KILLS
        assert said["booked"] > 5
        assert said["defect"] == said["Traceback"] == 0, victims.tail()
        check_world(world)


def build(folder: Path, url: str) -> Simulator:
    world = Simulator(str(folder / "sim.db"), SystemClock())
    for name in HOSTS:
        world.add_host(name)
    world.add_subnet(NETWORK, "192.0.2.0/24", "192.0.2.1", ())
    store = Store(url, SystemClock())
    migrations.sync(store.database)
    store.close()
    return world


def all_over(url: str) -> bool:
    """Every lease is terminated, in full, and no work of theirs is open."""
    engine = sa.create_engine(url, poolclass=sa.pool.NullPool)
    with engine.connect() as conn:
        leases = {row[0] for row in conn.execute(sa.text("SELECT status FROM leases"))}
        reservations = {row[0] for row in conn.execute(sa.text("SELECT status FROM reservations"))}
        open_work = conn.execute(
            sa.text(
                "SELECT key, sentence FROM operations WHERE is_open AND"
                " (kind LIKE 'lease!_%' ESCAPE '!' OR kind IN ('host_enrol', 'host_withdraw'))"
            )
        ).fetchall()
    assert leases <= {"TERMINATED"}, leases
    assert reservations <= {"deleted"}, reservations
    assert not open_work, open_work
    return True


def check_world(world: Simulator) -> None:
    """All hosts free, no server left, nothing happened twice."""
    seen = world.world()
    pools = {pool["name"]: set(pool["hosts"]) for pool in seen["pools"]}
    taken = {name: hosts for name, hosts in pools.items() if hosts}
    assert taken == {"freepool": set(HOSTS), "holdfast": set(HOSTS)}
    assert seen["servers"] == []
    for call in ("pools.create", "addresses.create", "flavors.create", "flavors.delete"):
        happened = Counter(effect.subject for effect in world.effects(call=call))
        again = {one: n for one, n in happened.items() if n > 1 and call != "addresses.create"}
        assert not again, f"{call} happened more than once: {again}"
    made, gone = (len(world.effects(call=f"addresses.{verb}")) for verb in ("create", "delete"))
    assert made == gone, "an address is left behind"
    made, gone = (len(world.effects(call=f"flavors.{verb}")) for verb in ("create", "delete"))
    assert made == gone, "a flavor is left behind"
