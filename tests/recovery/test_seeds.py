# SPDX-License-Identifier: Apache-2.0
"""Hundreds of recoveries, each with another misfortune: three managers that take turns at random,
are interrupted by each other at any effect and any commit, hang, die; reports that come ten times;
a cloud that fails, hangs and loses answers; the source that returns, the target that dies, a fence
that lies, a host that was only cut off.

At every moment no server runs twice and nothing leaves a host that is not known to be off. In the
end there was one incident per failure, one evacuation per server (unless the cloud itself failed
one), what ran runs, what was stopped is stopped, nothing of ours is locked, no work is open.

    SEED=217 pytest tests/recovery/test_seeds.py      # one run, with its story
    SEEDS=100000 pytest tests/recovery/test_seeds.py  # more of them
"""

import gc
import os
import random
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from holdfast.drivers.sim.cloud import SimCloud
from tests.leases.house import Killed, copy
from tests.recovery.conftest import hurried
from tests.recovery.house import HealHouse
from tests.recovery.misfortune import HOSTS, METHODS, SPARES, Play
from tests.simclock import SimClock

SEED = os.environ.get("SEED", "")
SEEDS = int(os.environ.get("SEEDS", "250"))
FIRST = int(os.environ.get("FIRST", "0"))
PARTS = 10  # so that several workers share them
pytestmark = pytest.mark.slow("25 recoveries, each with another misfortune")


@pytest.fixture(scope="module")
def stages(heal_template: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {}
    for method in METHODS:
        where = copy(heal_template, tmp_path_factory.mktemp("stage") / method)
        SimCloud(str(where / "cloud.db"), SimClock(), seed=1).close()  # the same ids every time
        house = HealHouse(where)
        house.segment(*HOSTS, method=method, spares=SPARES if method != "auto" else ())
        house.close()
        made[method] = where
    return made


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    with hurried(logged=bool(SEED)):
        yield


def run(seed: int, stages: Mapping[str, Path], site: Path) -> None:
    random.seed(seed)  # pauses after a lost race: a story is the same when it is told again
    story: list[str] = []
    say = print if SEED else story.append
    house = HealHouse(copy(stages[METHODS[seed % 4]], site), SimClock(), ids_from=1000)
    play = Play(seed, house, say)
    play.began = house.clock.now()
    try:
        play.tell()
    except (Exception, Killed) as error:
        told = "\n  ".join([*story[:60], *play.rows()])
        raise AssertionError(f"SEED={seed}: {error!r}\n  {told}") from error
    finally:
        play.close()
        house.close()


@pytest.mark.timeout(600 + SEEDS)
@pytest.mark.parametrize("part", range(1 if SEED else PARTS))
def test_whatever_happens_each_failure_is_recovered_once(
    part: int, stages: Mapping[str, Path], site: Path
) -> None:
    chosen = [int(SEED)] if SEED else range(FIRST + part, FIRST + SEEDS, PARTS)
    for number, seed in enumerate(chosen, 1):
        run(seed, stages, site)
        if number % 20 == 0:
            gc.collect()
