# SPDX-License-Identifier: Apache-2.0
"""kill -9 everywhere: at every answer of the database and every effect in the cloud a manager dies
(or does not hear the answer), another takes over when the claim has expired, and in the end the
world is the one that peace makes: nothing lost, doubled or left behind, nobody had to help.

A story is first told in peace to count its points, then once more for each chosen one: one of every
kind of effect and commit, and of every kind of statement whose answer is lost
(`CRASH_POINTS=all`: every single one). A failure names the point; replay it alone with
`CRASH_POINTS=17 pytest tests/leases/test_crash_points.py -k host-grow-kill`.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast.leases import aggregates as telling
from holdfast.leases.repair import REPAIR
from holdfast.model.errors import NotFound, Unavailable
from holdfast.model.operation import OPEN, Operation
from holdfast.nova.names import KEPT_POOL
from tests.leases.house import CLAIM_S, House, Killed, Points, copy
from tests.leases.stories import LEASE, STORIES, Story, twice, world
from tests.simclock import EPOCH, SimClock

CHOSEN = os.environ.get("CRASH_POINTS", "")
pytestmark = pytest.mark.slow("a story is told once for each point at which a manager dies")


@dataclass(frozen=True)
class Stage:
    """The files and the clock of a story as they are when its acts begin."""

    path: Path
    seconds: float
    effects: int

    def house(self, to: Path) -> House:
        clock = SimClock()
        clock.advance(self.seconds)
        return House(copy(self.path, to), clock, ids_from=1000)


@dataclass(frozen=True)
class Peace:
    """The world that a story makes when nobody dies, and the points that it passes."""

    world: dict[str, Any]
    passed: Sequence[str]


Stages = Callable[[Story], Stage]
Told = Callable[[Story], Peace]


@pytest.fixture(autouse=True)
def one_telling(monkeypatch: pytest.MonkeyPatch) -> None:
    """One telling has every point of three."""
    monkeypatch.setattr(telling, "RESYNC_AFTER_S", telling.RESYNC_AFTER_S[:1])


@pytest.fixture(scope="module")
def stage_of(template: Path, site: Path, tmp_path_factory: pytest.TempPathFactory) -> Stages:
    made: dict[str, Stage] = {}

    def build(story: Story) -> Stage:
        if story.name in made:
            return made[story.name]
        house = House(copy(template, site))
        for act in story.before:
            act(house)
        effects = len(house.sim.effects())
        house.close()
        path = copy(site, tmp_path_factory.mktemp("stage") / story.name)
        seconds = (house.clock.now() - EPOCH).total_seconds()
        return made.setdefault(story.name, Stage(path, seconds, effects))

    return build


@pytest.fixture(scope="module")
def peace_of(stage_of: Stages, site: Path) -> Told:
    """Told once, however managers die afterwards: the points are the same."""
    told: dict[str, Peace] = {}

    def tell_it(story: Story) -> Peace:
        if story.name not in told:
            points = Points(statements=True)
            seen = play(story, stage_of(story), site, points)
            told[story.name] = Peace(seen, points.passed)
        return told[story.name]

    return tell_it


def tell(story: Story, house: House, points: Points) -> None:
    """Play the acts; whoever is killed is followed, a claim's length later, by another manager."""
    house.manager(points)
    over = [pools_that_are_over_go] if story.status in (None, "TERMINATED") else []
    for act in (*story.acts, *over):
        for _again in range(3):
            try:
                act(house)
                break
            except Unavailable:
                continue  # a client repeats what was not answered
            except Killed:
                points.armed = False
                check_legal(house)
                house.clock.advance(CLAIM_S + 1)
                house.manager()
        else:
            raise AssertionError("the act never ended")
    points.armed = False


def pools_that_are_over_go(house: House) -> None:
    house.tell()
    until = house.clock.now() + timedelta(seconds=CLAIM_S + 20)  # a lost claim has to expire
    while house.clock.now() < until:
        house.run(seconds=10)
        if house.all_pools().keys() <= {"freepool", KEPT_POOL} and not late(house):
            return


def late(house: House) -> list[Operation]:
    """Work that should have been done by now; chores never end."""
    found = [o for o in house.m.store.operations.list_all() if o.status in OPEN]
    chores = (telling.RESYNC, REPAIR)
    return [o for o in found if o.due_at <= house.clock.now() and o.kind not in chores]


def check_legal(house: House) -> None:
    """Whenever a manager dies, what it leaves is a state that a lease can be in."""
    try:
        house.check_combination(LEASE, claimed=True)
    except NotFound:
        return


def play(story: Story, stage: Stage, path: Path, points: Points) -> dict[str, Any]:
    """Tell it and look at the world that it leaves."""
    house = stage.house(path)
    try:
        tell(story, house, points)
        check_legal(house)
        house.check_pools()
        stuck = late(house)
        assert not stuck, f"work is stuck: {stuck}"
        again = twice(house, stage.effects)
        assert not again, f"happened more than once: {again}"
        return world(house)
    except Exception as error:
        raise AssertionError(f"{story.name}, {points.where}: {error!r}") from error
    finally:
        house.close()


def kinds(passed: Sequence[str]) -> list[str]:
    """A commit is told from others by what it commits."""
    return [
        f"{before} > {what}" if "commit" in what else what
        for before, what in zip(["", *passed], passed, strict=False)
    ]


def chosen(passed: Sequence[str], how: str, elsewhere: set[str]) -> Iterator[int]:
    """The points to die at: one of every kind, less statements whose turn is elsewhere.

    A database undoes what the dead had not committed: who is killed after a statement leaves the
    world of the commit or the effect before it, so of those only the first of all counts.
    """
    if CHOSEN.isdecimal():
        yield int(CHOSEN)
        return
    found = kinds(passed)
    seen = {kind for kind in found if how == "kill" and is_statement(kind)}
    seen |= {kind for kind in elsewhere if is_statement(kind)}
    for number, kind in enumerate(found, 1):
        first = how == "kill" and number == 1
        if CHOSEN == "all" or first or kind not in seen:
            seen.add(kind)
            yield number


def is_statement(kind: str) -> bool:
    return kind.startswith("after sql ") and "commit" not in kind


@pytest.mark.usefixtures("quick")
@pytest.mark.timeout(600 if not CHOSEN else 0)
@pytest.mark.parametrize("how", ["kill", "lose"])
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.name)
def test_a_manager_lost_at_any_point_delays_work_and_nothing_else(
    story: Story, how: str, stage_of: Stages, peace_of: Told, site: Path
) -> None:
    peace = peace_of(story)
    check_peace(story, peace.world)
    assert len(peace.passed) > 9, "the story has no points to die at"
    for at in chosen(peace.passed, how, of_hosts(story, peace_of)):
        points = Points(at=at, how=how, statements=True)
        after = play(story, stage_of(story), site, points)
        assert after == peace.world, f"{story.name}, {points.where}"


def of_hosts(story: Story, peace_of: Told) -> set[str]:
    """The statements of the same part of a life of whole hosts: they are that story's."""
    same = f"host-{story.name.partition('-')[2]}"
    others = [one for one in STORIES if one.name == same and one is not story]
    return {kind for other in others for kind in kinds(peace_of(other).passed)}


def check_peace(story: Story, seen: dict[str, Any]) -> None:
    """That peace itself is as it should be."""
    assert seen.get("lease", (None,))[0] == story.status
    assert all(not r[1] for r in seen.get("reservations", ())), "something is missing"
    if story.status in (None, "TERMINATED") and story.name != "enrol":
        own = [row for row in seen["pools"] if "freepool" not in row and "holdfast" not in row]
        flavors = [row for row in seen["flavors"] if "small" not in row]
        left = (own, flavors, seen["slots"], seen["groups"], seen["addresses"], seen["access"])
        assert left == ([], [], [], [], [], []), "something is left behind"


def test_a_stuck_lease_end_delays_no_other_end_and_no_start(house: House) -> None:
    house.enrol("cmp-1", "cmp-2", "cmp-3")
    house.sim.change(service_down_s=86_000)
    stuck = [house.create(minutes=(5, 60)) for _ in range(2)]
    fine = house.create(minutes=(5, 60))
    next_one = house.create(minutes=(60, 120))  # has to wait if its host is one of the stuck
    house.run(minutes=10)
    for lease_id in (*stuck, fine):
        assert house.status(lease_id) == "ACTIVE"
    for lease_id in stuck:
        ((host,),) = house.held(lease_id)
        house.boot(f"on-{host}", host)
        house.sim.fail_host(host)  # it looks up, and its server stays `deleting`
    ((free,),) = house.held(fine)
    house.run(until=EPOCH + timedelta(minutes=60, seconds=2))
    assert [house.status(lease_id) for lease_id in (*stuck, fine)] == [
        "TERMINATING",
        "TERMINATING",
        "TERMINATED",
    ]
    # whoever wants a host now gets the one that came back, not one that is still being cleared
    house.delete(next_one)
    next_one = house.create(minutes=(None, 30))
    house.run(seconds=1)
    assert house.held(next_one) == [[free]]
    assert house.status(next_one) == "ACTIVE"
    for lease_id in stuck:
        ((host,),) = house.held(lease_id)
        house.sim.recover_host(host)
    house.run(minutes=2)
    assert {house.status(lease_id) for lease_id in stuck} == {"TERMINATED"}
