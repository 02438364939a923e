# SPDX-License-Identifier: Apache-2.0
"""The true state of a simulated host decides: whatever one lying or late source says, a host that
is well is never cut, and a dead one is cut within settling + wait + 2 s.

Histories (`histories.py`) by seed: a host is well, loses its power, hangs while its BMC reads on,
is cut off, loses only its storage while heartbeats go on, reboots within 60 s, is heard again. Its
agent, Nova, three host monitors, notifiers with clocks that are up to 10 minutes wrong, and its BMC
tell of it. At most one of them lies or is late: a false notification, one that an outage delayed,
heartbeats or reports to Nova that go on for up to a minute after the death, a wrong monitor.

    SEED=217 pytest tests/recovery/test_true_state.py -s        # one history, with its story
    HISTORIES=100000 FIRST=5000 pytest -n 2 tests/recovery/test_true_state.py   # more of them
"""

import gc
import os
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from holdfast.drivers.sim.cloud import SimCloud
from tests.leases.house import copy
from tests.recovery.conftest import hurried
from tests.recovery.histories import HOSTS, SECOND, SUBJECT, History, Plan, TrueHouse
from tests.recovery.house import HealHouse
from tests.simclock import SimClock

SEED = os.environ.get("SEED", "")
HISTORIES = int(os.environ.get("HISTORIES", "1000"))
FIRST = int(os.environ.get("FIRST", "0"))
PARTS = 10  # so that several workers share them
pytestmark = pytest.mark.slow("100 histories of a host, each with another lie")
Variant = tuple[bool, bool]


@pytest.fixture(scope="module")
def stages(heal_template: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[Variant, Path]:
    """Houses to copy, by whether their segment is trusted and whether its hosts share a rack."""
    made = {}
    for trusted in (False, True):
        for racked in (False, True):
            where = copy(heal_template, tmp_path_factory.mktemp("stage") / "house")
            SimCloud(str(where / "cloud.db"), SimClock(), seed=1).close()  # the same ids every time
            house = HealHouse(where)
            for name in HOSTS:
                house.sim.add_host(name, rack="r1" if racked else "")
            house.segment(*HOSTS, trust_host_status=trusted)
            for name in (SUBJECT, SECOND):
                house.boot(f"web-{name}", name)
            house.close()
            made[trusted, racked] = where
    return made


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    with hurried(logged=bool(SEED)):
        yield


def run(seed: int, stages: Mapping[Variant, Path], site: Path) -> str:
    """Tell the history of a seed; what became of its host."""
    random.seed(seed)  # pauses after a lost race: a history is the same when it is told again
    story: list[str] = []
    plan = Plan(seed)
    stage = stages[plan.trusted, plan.racked]
    house = TrueHouse(copy(stage, site), SimClock(), ids_from=1000)
    history = History(plan, house, print if SEED else story.append)
    try:
        return history.tell()
    except Exception as error:
        told = "\n  ".join([*story, *history.rows()])
        raise AssertionError(f"SEED={seed}: {error}\n  {told}") from error
    finally:
        history.close()
        house.close()


@pytest.mark.timeout(600 + HISTORIES)
@pytest.mark.parametrize("part", range(1 if SEED else PARTS))
def test_no_healthy_host_is_fenced_and_every_dead_host_is_fenced_in_time(
    part: int, stages: Mapping[Variant, Path], site: Path
) -> None:
    chosen = [int(SEED)] if SEED else range(FIRST + part, FIRST + HISTORIES, PARTS)
    ends: Counter[str] = Counter()
    for number, seed in enumerate(chosen, 1):
        ends[run(seed, stages, site)] += 1
        if number % 20 == 0:
            gc.collect()
    print(", ".join(f"{what}: {count}" for what, count in ends.most_common()))
