# SPDX-License-Identifier: Apache-2.0
"""kill -9 everywhere: at each point where a manager changes the world it dies (or does not hear the
answer), another takes over when the claim has expired, and nothing is lost, doubled or left behind.

A story is a list of acts; each can be repeated, as a client repeats what was not answered. It is
first told in peace to count its points, then once more for every point. A failure names the point;
replay it alone with `HOLDFAST_CRASH_AT=17 pytest tests/reserve/test_crash_points.py -k grow-kill`.
"""

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from holdfast.model.errors import Conflict, NotFound, Unavailable
from holdfast.model.operation import Operation
from holdfast.reserve import due
from tests.reserve.house import ADMIN, CLAIM_S, House, Killed, Points, copy
from tests.simclock import EPOCH, SimClock

LEASE = "11111111-1111-4111-8111-111111111111"
START, END = EPOCH + timedelta(minutes=10), EPOCH + timedelta(minutes=130)
HOSTS = {"cmp-1", "cmp-2", "cmp-3"}
Act = Callable[[House], None]


@dataclass(frozen=True)
class Story:
    name: str
    before: Sequence[Act]  # in peace, once
    acts: Sequence[Act]  # at whose points somebody dies
    check: Act


# acts


def enrol(house: House) -> None:
    house.enrol(*sorted(HOSTS))


def enrol_one(house: House) -> None:
    """It may be enrolled already: the first try came through, its answer did not."""
    try:
        house.m.commands.enrol_host(ADMIN, "cmp-4", {})
    except Conflict as error:
        assert "enrolled already" in error.message, error


def add_one(house: House) -> None:
    house.add("cmp-4")


def withdraw_one(house: House) -> None:
    with contextlib.suppress(NotFound):  # gone already, as wished
        host = house.m.store.ledger.host("cmp-4")
        house.m.commands.withdraw_host(ADMIN, host.id)


def book(house: House) -> None:
    """Two hosts, with snapshots before the end."""
    start, end = ((t - house.clock.now()).total_seconds() / 60 for t in (START, END))
    house.create(minutes=(start, end), hosts=2, lease_id=LEASE, before_end="snapshot")


def until_prepared(house: House) -> None:
    house.run(until=START - timedelta(seconds=30))
    assert len(house.pools()) == 2


def until_active(house: House) -> None:
    house.run(until=max(START, house.clock.now()))


def boot(house: House) -> None:
    for host in ("cmp-1", "cmp-2"):
        if f"on-{host}" not in house.servers():
            house.boot(f"on-{host}", host)
    house.sim.change(delete_s=0.4)


def until_ended(house: House) -> None:
    house.run(until=max(END + timedelta(minutes=5), house.clock.now() + timedelta(minutes=2)))


def a_moment(house: House) -> None:
    house.run(minutes=2)


def grow(house: House) -> None:
    (reservation,) = house.lease(LEASE).reservations
    if reservation.spec["max"] == 2:
        house.update(LEASE, reservations={reservation.id: {"max": 3}})


def delete(house: House) -> None:
    with contextlib.suppress(NotFound):  # the first try came through
        house.delete(LEASE)


# what must be so in the end


def all_given_back(house: House) -> None:
    assert house.pools() == {"freepool": HOSTS}
    house.check_pools()
    _once(house, "pools.create")
    _once(house, "servers.delete")


def ended(house: House) -> None:
    all_given_back(house)
    assert house.status(LEASE) == "TERMINATED"
    house.check_combination(LEASE)
    assert house.events(LEASE)["before_end_lease"] == "DONE"
    assert house.servers() == []
    assert sorted(house.images()) == ["reserved_on-cmp-1", "reserved_on-cmp-2"]
    assert len(house.effects("servers.delete")) == 2


def active_with_two(house: House) -> None:
    assert house.status(LEASE) == "ACTIVE"
    house.check_combination(LEASE)
    (reservation,) = house.lease(LEASE).reservations
    assert house.pools() == {"freepool": {"cmp-3"}, reservation.id: {"cmp-1", "cmp-2"}}
    house.check_pools()
    _once(house, "pools.create")
    assert Counter(house.effects("pools.add_host")).most_common(1)[0][1] == 1


def active_with_three(house: House) -> None:
    assert house.status(LEASE) == "ACTIVE"
    (reservation,) = house.lease(LEASE).reservations
    assert house.pools() == {"freepool": set(), reservation.id: HOSTS}
    house.check_pools()


def deleted(house: House) -> None:
    all_given_back(house)
    with pytest.raises(NotFound):
        house.lease(LEASE)
    assert house.servers() == []


def enrolled(house: House) -> None:
    assert house.pools() == {"freepool": {"cmp-4"}}
    assert [h.name for h in house.m.store.ledger.enrolled() if h.reservable] == ["cmp-4"]
    _once(house, "pools.create")
    _once(house, "pools.add_host")


def withdrawn(house: House) -> None:
    assert house.pools() == {"freepool": set()}
    assert house.m.store.ledger.enrolled() == []
    _once(house, "pools.remove_host")


def _once(house: House, call: str) -> None:
    twice = {subject: n for subject, n in Counter(house.effects(call)).items() if n > 1}
    assert not twice, f"{call} happened more than once: {twice}"


STORIES = (
    Story("enrol", [add_one], [enrol_one, a_moment], enrolled),
    Story("withdraw", [add_one, enrol_one], [withdraw_one, a_moment], withdrawn),
    Story("create_and_start", [enrol], [book, until_active, a_moment], active_with_two),
    Story("before_end_and_end", [enrol, book, until_active, boot], [until_ended], ended),
    Story("grow", [enrol, book, until_active], [grow, a_moment], active_with_three),
    Story("delete_prepared", [enrol, book, until_prepared], [delete, a_moment], deleted),
    Story("delete_active", [enrol, book, until_active, boot], [delete, a_moment], deleted),
)


@pytest.fixture(scope="module")
def stages(
    template: Path, site: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, "Stage"]:
    """The files and the clock of each story as they are when its acts begin."""
    made = {}
    for story in STORIES:
        house = House(copy(template, site))
        for act in story.before:
            act(house)
        house.close()
        path = copy(site, tmp_path_factory.mktemp("stage") / story.name)
        made[story.name] = Stage(path, (house.clock.now() - EPOCH).total_seconds())
    return made


@dataclass(frozen=True)
class Stage:
    path: Path
    seconds: float

    def house(self, to: Path) -> House:
        clock = SimClock()
        clock.advance(self.seconds)
        return House(copy(self.path, to), clock, ids_from=1000)


def tell(story: Story, house: House, points: Points) -> None:
    """Play the acts; whoever is killed is followed, a claim's length later, by another manager."""
    house.manager(points)
    for act in story.acts:
        for _again in range(3):
            try:
                act(house)
                break
            except Unavailable:
                continue  # a client repeats what was not answered
            except Killed:
                house.clock.advance(CLAIM_S + 1)
                house.manager()
        else:
            raise AssertionError("the act never ended")


def play(story: Story, stage: Stage, path: Path, points: Points) -> None:
    house = stage.house(path)
    try:
        tell(story, house, points)
        story.check(house)
        still = [o.key for o in house.m.store.operations.list_all() if _overdue(house, o)]
        assert not still, f"work is stuck: {still}"
    except Exception as error:
        raise AssertionError(f"{story.name}, {points.where}: {error!r}") from error
    finally:
        house.close()


def _overdue(house: House, operation: Operation) -> bool:
    return operation.status in ("running", "retrying") and operation.due_at <= house.clock.now()


@pytest.mark.parametrize("how", ["kill", "lose"])
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.name)
def test_a_manager_lost_at_any_point_delays_work_and_nothing_else(
    story: Story,
    how: str,
    stages: dict[str, Stage],
    site: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # One telling has every point of three.
    monkeypatch.setattr(due, "TELL_AFTER_S", due.TELL_AFTER_S[:1])
    stage = stages[story.name]
    peace = Points(how=how)
    play(story, stage, site, peace)
    assert len(peace.passed) > 3, "the story has no points to die at"
    chosen = os.environ.get("HOLDFAST_CRASH_AT")
    for at in [int(chosen)] if chosen else range(1, len(peace.passed) + 1):
        play(story, stage, site, Points(at=at, how=how))
