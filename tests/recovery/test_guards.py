# SPDX-License-Identifier: Apache-2.0
"""The ladder: each rung by itself as a pure decision, and what its no does to a recovery."""

import sqlite3
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from holdfast.conf import recovery as options
from holdfast.model.incident import Incident
from holdfast.model.incident_progress import GuestProgress, plain
from holdfast.ports.cloud import Server
from holdfast.ports.recovery import Situation
from holdfast.recovery import mass_failure
from holdfast.recovery.guards import LADDERS, View, bucket, wanted
from tests.recovery.house import HealHouse

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
    assert not house.effects("services.force_down")
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


def test_a_pause_lets_running_recoveries_end_and_starts_no_more(
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
    moved = [move.status for move in house.moves(report)]
    assert "ongoing" not in moved
    assert 1 <= moved.count("pending") <= 3
    house.run(minutes=1)  # the pause has expired
    assert house.incident(report).status == "recovered"


def test_a_maintenance_window_denies_recovery_for_good(house: HealHouse) -> None:
    house.segment(*HOSTS)
    silence = {
        "matcher": {"host": "cmp-1"},
        "author": "ann",
        "reason": "moving racks",
        "expires_at": house.clock.now() + timedelta(hours=1),
    }
    house.m.store.switches.add_window(silence)
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


def test_too_many_failed_hosts_are_held_until_an_operator_approves(house: HealHouse) -> None:
    house.segment(*HOSTS)
    reports = dead(house, *HOSTS[:7])
    house.run(seconds=30)
    assert {house.incident(report).status for report in reports} == {"held"}
    assert not house.effects("services.force_down")
    ledger = house.m.store.ledger
    ledger.approve("repair", "ann", "the flood", house.clock.now() + timedelta(hours=1))
    house.run(seconds=40)
    assert {house.incident(report).status for report in reports} == {"recovered"}
    house.check_never_twice()


def test_some_of_a_rack_go_on_slowly(house: HealHouse) -> None:
    names = tuple(f"r-{i}" for i in range(20))
    for name in names:
        house.sim.add_host(name, rack="r1")
    house.sim.add_host("far", rack="r2")
    house.segment(*names, "far")
    reports = dead(house, *names[:5])
    house.run(seconds=4)
    begun = [
        report for report in reports if plain(house.incident(report).details).get("started_at")
    ]
    assert len(begun) == 3
    house.run(seconds=40)
    assert {house.incident(report).status for report in reports} == {"recovered"}
    starts = sorted(plain(house.incident(report).details)["started_at"] for report in reports)
    gaps = [
        (datetime.fromisoformat(b) - datetime.fromisoformat(a)).total_seconds()
        for a, b in pairwise(starts[2:])
    ]
    assert all(gap >= 9.9 for gap in gaps), gaps


def test_a_cloud_without_any_host_up_is_not_trusted(house: HealHouse) -> None:
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


def test_all_thresholds_change_while_running() -> None:
    assert [option.dest for option in options.OPTS if not option.mutable] == []


def test_a_changed_threshold_applies_to_a_held_incident_at_the_next_pass(
    house: HealHouse,
) -> None:
    house.segment(*HOSTS)
    house.unfenced.add("cmp-1")
    (report,) = dead(house, "cmp-1")
    house.run(seconds=30)
    assert house.incident(report).status == "held"
    house.recovery.watchdog_s = 20.0
    house.run(seconds=30)
    assert house.incident(report).status == "recovered"


def test_a_host_dying_again_and_again_is_left_to_operators(house: HealHouse) -> None:
    house.segment(*HOSTS)
    house.recovery.host_max_recoveries = 2
    for _ in range(3):
        (report,) = dead(house, "cmp-1")
        house.run(seconds=30)
        house.sim.recover_host("cmp-1")
        house.run(minutes=3)
    incident = house.incident(report)
    assert (incident.status, house.reported(report)) == ("failed", "error")
    assert "keeps dying" in incident.sentence
    assert len(house.effects("services.force_down")) == 2


def test_without_another_host_the_recovery_waits(house: HealHouse) -> None:
    house.segment("cmp-1", "cmp-2", "cmp-3")
    for name in ("cmp-2", "cmp-3"):
        house.m.cloud.services.disable(name, "full")
    (report,) = dead(house, "cmp-1")
    house.run(minutes=1)
    assert house.incident(report).status == "held"
    assert verdicts(house, report)["capacity"] == (False, "no other host is up and enabled")
    assert not house.effects("services.force_down")
    house.m.cloud.services.enable("cmp-2")
    house.run(minutes=1)
    assert house.incident(report).status == "recovered"


def test_maintenance_of_the_host_ends_a_held_incident(house: HealHouse) -> None:
    house.segment(*HOSTS)
    house.m.store.switches.pause("", "ann", "wait", None)
    (report,) = dead(house, "cmp-1")
    house.run(seconds=5)
    member = house.m.store.segments.member("cmp-1")
    assert member is not None
    with house.m.store.database.write() as conn:
        conn.exec_driver_sql(
            "UPDATE segment_hosts SET on_maintenance = 1 WHERE id = ?", (member.id,)
        )
    house.m.store.switches.resume("", "ann")
    house.run(seconds=30)
    assert (house.incident(report).status, house.reported(report)) == ("ignored", "ignored")
    assert house.incident(report).sentence == "cmp-1 is on maintenance"
    assert not house.effects("services.force_down")


@pytest.mark.parametrize(
    ("status", "to_be_restarted"),
    [
        ("ACTIVE", True),
        ("SHUTOFF", True),
        ("VERIFY_RESIZE", True),
        ("ERROR", True),
        ("PAUSED", False),
        ("RESCUE", False),
    ],
)
def test_a_guest_stopped_by_its_user_is_not_restarted(
    house: HealHouse, status: str, *, to_be_restarted: bool
) -> None:
    server = Server("s1", "web", "alpha", "cmp-1", status, metadata={"HA_Enabled": "true"})
    where = GuestProgress(host="cmp-1")
    incident = Incident("i1", "server:s1", "guest", "died", "open", NOW, details=where)
    view = View(
        situation=Situation(NOW, None),
        settings=house.recovery,
        limits=mass_failure.DefaultLimits(),
        server=server,
    )
    assert wanted(incident, view).passed is to_be_restarted


def test_of_fifty_hosts_dying_at_once_no_more_move_than_the_budget_and_each_once(
    house: HealHouse,
) -> None:
    """Of two hundred, so spread that each rack goes on; 10 and 200 are in bench/recovery_storm."""
    down = 50
    names = tuple(f"r{i % 20}-{i // 20}" for i in range(200))
    for name in names:
        house.sim.add_host(name, rack=name.partition("-")[0])
    house.segment(*names)
    house.recovery.parallel_moves = 8
    house.recovery.throttle_interval_s = house.recovery.heavy_throttle_interval_s = 1.0
    house.sim.change(action_s=1.0)
    reports = dead(house, *names[:down])
    most = 0
    for _ in range(120):
        house.run(seconds=1)
        moving = [s for s in house.sim.world()["servers"] if s["task_state"] == "rebuilding"]
        most = max(most, len(moving))
        if {house.incident(report).status for report in reports} == {"recovered"}:
            break
    assert {house.incident(report).status for report in reports} == {"recovered"}
    assert 2 <= most <= 8
    assert len(house.effects("moves.evacuate")) == down
    house.check_never_twice()
    house.check_unlocked()
