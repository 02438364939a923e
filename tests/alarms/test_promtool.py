# SPDX-License-Identifier: Apache-2.0
"""Prometheus judges a day of ours (prometheus.py), and is awake while it does."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from holdfast.alarms.tracks import FIRING
from tests.alarms.day import Day, day
from tests.alarms.prometheus import THEIRS, Seen, judged, watched

SEED = int(os.environ.get("SEED", "7"))
#: Minutes: half a day has enough of everything, bench/beside_prometheus.py has whole ones.
STEPS = int(os.environ.get("DAY_STEPS", "720"))

pytestmark = pytest.mark.timeout(600)  # Prometheus on a busy machine

#: Rules that are nearly the same: told apart, or the judge is asleep.
MUTANTS: dict[str, tuple[str, int, int]] = {
    "over": ("cpu >= 90", 0, 0),
    "least": ("cpu >= 90", 3, 0),
    "most": ("cpu < 70", 0, 0),
    "keeps": ("cpu > 90", 0, 4),
    "sticky": ("cpu > 90", 0, 0),
    "rate": ("rate(sent[230s]) > 120 and sent", 0, 0),
    "full": ("predict_linear(used[1690s], 14400) > 900 and used", 0, 0),
    "hits": ("count_over_time((even > 90)[330s:1m]) >= 3", 0, 0),
    "both": ("cpu > 90 or steal > 10", 0, 0),
}


@pytest.fixture(scope="module")
def one_day() -> Day:
    return day(SEED, STEPS)


@pytest.fixture(scope="module")
def seen(one_day: Day) -> Seen:
    return {rule: dict(states) for rule, states in watched(one_day).items()}


def test_every_change_of_half_a_day_equals_prometheus(
    promtool: str, one_day: Day, seen: Seen, tmp_path: Path
) -> None:
    ran = judged(promtool, tmp_path, one_day, seen, THEIRS)
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]


def test_the_day_has_enough_of_everything(one_day: Day, seen: Seen) -> None:
    """Or the judgement would mean little."""
    for rule, states in seen.items():
        firing = states[FIRING]
        changes = sum(a != b for a, b in itertools.pairwise(firing))
        assert changes >= 10, (rule, changes)
    gaps = sum(value is None for value in one_day["gappy"]["cpu"])
    sent = [value for value in one_day["wild"]["sent"] if value is not None]
    resets = sum(b < a for a, b in itertools.pairwise(sent))
    assert gaps > 50 and resets > 2


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_promtool_detects_a_slightly_different_rule(
    promtool: str, one_day: Day, seen: Seen, tmp_path: Path, name: str
) -> None:
    ran = judged(promtool, tmp_path, one_day, seen, {name: MUTANTS[name]})
    assert ran.returncode != 0
    assert "exp:" in ran.stdout + ran.stderr
