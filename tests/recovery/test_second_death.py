# SPDX-License-Identifier: Apache-2.0
"""A guest that dies again as soon as it was restarted, while managers die over it."""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from holdfast.model.errors import Conflict
from tests.leases.house import Points
from tests.recovery.house import HealHouse
from tests.recovery.test_crash_points import (
    DEAD,
    Act,
    Stage,
    Story,
    a_guest,
    chosen,
    guest_dies,
    named,
    once,
    play,
    quick,
    report_guest,
    segment,
    stage_of,
    until_over,
)

__all__ = ["quick", "stage_of"]  # fixtures


def until_it_runs(house: HealHouse) -> None:
    for _ in range(1200):
        if house.sim.running(named(house, "guest")["id"]):
            return
        house.run(seconds=0.1)
    raise AssertionError("it never runs")


def it_dies_again(house: HealHouse) -> None:
    """And the cloud goes on to call it ACTIVE for a while, as Nova does."""
    server = named(house, "guest")["id"]
    if house.sim.running(server):
        house.clock.advance(0.05)
        house.sim.change(action_s=15.0)
        house.sim.crash_server("guest")
        house.sim.change(action_s=0.2)
    at = house.clock.now()
    with contextlib.suppress(Conflict):
        house.report_guest(DEAD, server, at=at)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("how", ["kill", "lose"])
def test_a_manager_lost_at_any_point_loses_no_second_death_of_a_guest_that_was_just_restarted(
    how: str, stage_of: Callable[[Story], Stage], site: Path
) -> None:
    """Whether it is this incident that has it started once more, or another one, depends on how
    late it is by then."""
    acts: Sequence[Act] = [once(report_guest), until_it_runs, it_dies_again, until_over]
    story = Story("guest-twice", [segment(), a_guest, guest_dies], acts)
    stage = stage_of(story)
    quiet = Points(how=how)
    assert len(play(story, stage, site, quiet)["incidents"]) == 2
    for at in chosen(quiet.passed, set()):
        points = Points(at=at, how=how)
        seen_then = play(story, stage, site, points, starts=2)
        assert {row.split("'")[3] for row in seen_then["incidents"]} == {"recovered"}, points.where
