# SPDX-License-Identifier: Apache-2.0
"""The ladder: each rung by itself as a pure decision, and what its no does to a recovery."""

import sqlite3
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from holdfast.heal.guards import LADDERS, bucket
from tests.heal.house import HealHouse

NOW = datetime(2030, 1, 1, tzinfo=UTC)
HOSTS = tuple(f"cmp-{i}" for i in range(1, 11))


def dead(house: HealHouse, *names: str) -> list[str]:
    for name in names:
        house.boot(f"web-{name}", name)
        house.sim.fail_host(name)
    return [house.report(name) for name in names]


def verdicts(house: HealHouse, report: str) -> dict[str, tuple[bool, str]]:
    with sqlite3.connect(house.path / "holdfast.db") as db:
        rows = db.execute(
            "SELECT guard, passed, sentence FROM verdicts WHERE incident_id = ? ORDER BY id",
            [house.incident(report).id],
        )
        return {guard: (bool(passed), said) for guard, passed, said in rows}


def test_every_rung_says_yes_or_why_not(house: HealHouse) -> None:
    house.segment(*HOSTS)
    (report,) = dead(house, "cmp-1")
    house.run(seconds=30)
    said = verdicts(house, report)
    assert [*said] == [guard.__name__.replace("mass", "mass_failure") for guard in LADDERS["host"]]
    assert all(passed and sentence for passed, sentence in said.values())


def test_a_pause_holds_and_a_resume_lets_go(house: HealHouse) -> None:
    house.segment(*HOSTS)
    house.m.store.switches.pause("", "ann", "storm", None)
    (report,) = dead(house, "cmp-1")
    house.run(minutes=1)
    assert house.incident(report).status == "held"
    assert verdicts(house, report)["paused"] == (False, "recovery is paused by ann: storm")
    assert not house.effects("fence.off")
    assert house.m.store.switches.resume("", "ann")
    house.run(seconds=30)
    assert house.incident(report).status == "recovered"


def test_a_pause_of_another_segment_is_none_of_ours(house: HealHouse) -> None:
    house.segment(*HOSTS)
    other = house.segment("far-1")
    house.m.store.switches.pause(other, "ann", "storm", None)
    (report,) = dead(house, "cmp-1")
    house.run(seconds=30)
    assert house.incident(report).status == "recovered"


def test_a_pause_in_the_middle_lets_those_under_way_end_and_starts_no_more(
    house: HealHouse,
) -> None:
    segment = house.segment(*HOSTS)
    house.recovery.parallel_moves = 1
    house.sim.change(action_s=2.0)
    for i in range(4):
        house.boot(f"web-{i}", "cmp-1")
    house.sim.fail_host("cmp-1")
    report = house.report("cmp-1")
    house.run(seconds=2)
    house.m.store.switches.pause(segment, "ann", "wait", house.clock.now() + timedelta(minutes=1))
    house.run(seconds=30)
    moved = [one.status for one in house.moves(report)]
    assert "ongoing" not in moved
    assert 1 <= moved.count("pending") <= 3
    house.run(minutes=1)  # the pause has expired
    assert house.incident(report).status == "recovered"


def test_a_silence_says_no_for_good(house: HealHouse) -> None:
    house.segment(*HOSTS)
    silence = {
        "matcher": {"host": "cmp-1"},
        "author": "ann",
        "reason": "moving racks",
        "expires_at": house.clock.now() + timedelta(hours=1),
    }
    house.m.store.switches.silence(silence)
    silenced, acted = dead(house, "cmp-1", "cmp-2")
    house.run(seconds=40)
    assert house.reported(silenced) == "ignored"
    assert "moving racks" in house.incident(silenced).sentence
    assert house.incident(acted).status == "recovered"


def test_a_disabled_segment_is_ignored(house: HealHouse) -> None:
    house.segment(*HOSTS, enabled=False)
    (report,) = dead(house, "cmp-1")
    house.run(seconds=30)
    assert (house.incident(report).status, house.reported(report)) == ("ignored", "ignored")


def test_too_many_at_once_are_held_until_somebody_approves(house: HealHouse) -> None:
    house.segment(*HOSTS)
    reports = dead(house, *HOSTS[:7])
    house.run(seconds=30)
    assert {house.incident(one).status for one in reports} == {"held"}
    assert not house.effects("fence.off")
    ledger = house.m.store.ledger
    ledger.approve("repair", "ann", "the flood", house.clock.now() + timedelta(hours=1))
    house.run(seconds=40)
    assert {house.incident(one).status for one in reports} == {"recovered"}
    house.check_never_twice()


def test_some_of_a_rack_go_on_slowly(house: HealHouse) -> None:
    names = tuple(f"r-{i}" for i in range(20))
    for name in names:
        house.sim.add_host(name, rack="r1")
    house.sim.add_host("far", rack="r2")
    house.segment(*names, "far")
    reports = dead(house, *names[:5])
    house.run(seconds=4)
    begun = [one for one in reports if house.incident(one).details.get("started_at")]
    assert len(begun) == 3
    house.run(seconds=40)
    assert {house.incident(one).status for one in reports} == {"recovered"}
    starts = sorted(house.incident(one).details["started_at"] for one in reports)
    gaps = [
        (datetime.fromisoformat(b) - datetime.fromisoformat(a)).total_seconds()
        for a, b in pairwise(starts[2:])
    ]
    assert all(gap >= 9.9 for gap in gaps), gaps


def test_a_cloud_that_sees_nobody_is_not_believed(house: HealHouse) -> None:
    house.segment(*HOSTS[:2])
    for name in HOSTS[:2]:
        house.boot(f"web-{name}", name)
        house.sim.fail_host(name)
    report = house.report("cmp-1")
    house.run(seconds=30)
    assert house.incident(report).status == "held"
    assert not verdicts(house, report)["observer"][0]


@pytest.mark.parametrize(
    ("ago", "burst", "wait"),
    [([], 3, 0), ([1], 3, 0), ([1, 2, 3], 3, 9), ([10, 11, 12], 3, 0), ([5], 1, 5), ([100], 1, 0)],
)
def test_the_bucket_gives_out_a_burst_and_then_one_by_one(
    ago: list[float], burst: int, wait: float
) -> None:
    starts = [NOW - timedelta(seconds=one) for one in ago]
    assert bucket(starts, NOW, 10.0, burst) == pytest.approx(wait, abs=2.01)
