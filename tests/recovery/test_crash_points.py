# SPDX-License-Identifier: Apache-2.0
"""kill -9 in the middle of a recovery: at every effect in the cloud, every word to a fence and
every commit a manager dies (or does not hear the answer), another takes over when the claim has
expired, and what was dead runs again, once: one incident, one evacuation per server, nobody locked.

A story is first told in peace to count its points, then once more for each of them; points that
are like an earlier one (the same commit after the same effect) are left out, unless
`CRASH_POINTS=all`. A failure names the point; replay it alone with
`CRASH_POINTS=17 pytest tests/recovery/test_crash_points.py -k host-auto-kill`.
"""

import contextlib
import os
import random
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast.db.incident_queries import Wanted
from holdfast.model.errors import Conflict, Unavailable
from holdfast.model.incident_progress import plain
from holdfast.model.operation import OPEN
from holdfast.nova.names import HINT
from holdfast.recovery import context
from tests.leases.house import CLAIM_S, Killed, Points, copy
from tests.recovery.conftest import hurried
from tests.recovery.house import HealHouse
from tests.recovery.voters import Voter, voters
from tests.simclock import EPOCH, SimClock

CHOSEN = os.environ.get("CRASH_POINTS", "")
pytestmark = pytest.mark.slow("a recovery is told once for each point at which a manager dies")
DEAD, HOSTS = "cmp-1", ("cmp-1", "cmp-2", "cmp-3", "cmp-4")
WORK = (
    context.INTAKE,
    context.RECOVER_HOST,
    context.RECOVER_GUEST,
    context.RECOVER_PROCESS,
    context.MOVE,
)
Act = Callable[[HealHouse], None]


@dataclass(frozen=True)
class Story:
    name: str
    before: Sequence[Act]  # in peace, once
    acts: Sequence[Act]  # at whose points somebody dies
    moved: Sequence[str] = ()  # servers that are evacuated
    targets: frozenset[str] = frozenset(HOSTS) - {DEAD}  # where they may be in the end
    status: Mapping[str, str] | None = None  # of servers in the end; ACTIVE where it is not said
    through: str = ""  # a call without which it is another story


@dataclass(frozen=True)
class Stage:
    """The files and the clock of a story as they are when its acts begin."""

    path: Path
    seconds: float
    effects: int

    def house(self, to: Path) -> HealHouse:
        clock = SimClock()
        clock.advance(self.seconds)
        return HealHouse(copy(self.path, to), clock, ids_from=1000)


# what a story begins with


def segment(**values: Any) -> Act:
    def act(house: HealHouse) -> None:
        house.segment(*HOSTS, **values)

    return act


def servers(house: HealHouse) -> None:
    house.boot("runs", DEAD)
    house.m.cloud.servers.stop(house.boot("stopped", DEAD))
    house.sim.change(action_s=0.2)


def servers_without_room(house: HealHouse) -> None:
    servers(house)
    for host in HOSTS[1:]:
        house.sim.boot(f"in the way on {host}", "alpha", host, 32, 1024, 1)


def no_room_was_found(house: HealHouse) -> None:
    power_is_lost(house)
    report(house)
    house.run(seconds=40)
    assert named(house, "runs")["status"] == "ERROR"


def reserved(house: HealHouse) -> None:
    """Whose host is a reservation's: its servers go to the host that repair finds for it."""
    house.enrol(*HOSTS)
    house.segment(*HOSTS)
    lease_id = house.create(minutes=(None, 600))
    house.run(seconds=5)
    assert house.held(lease_id) == [[DEAD]]
    (reservation,) = house.lease(lease_id).reservations
    house.sim.boot("runs", "alpha", DEAD, 1, 512, 1, metadata={HINT: reservation.id})
    house.sim.change(action_s=0.2)


def a_guest(house: HealHouse) -> None:
    house.sim.boot("guest", "alpha", DEAD, 1, 512, 1, metadata={"HA_Enabled": "true"})
    house.sim.change(action_s=0.2)


def a_guest_that_was_resized(house: HealHouse) -> None:
    a_guest(house)
    house.sim.resize_server("guest")


def only_cut_off(house: HealHouse) -> None:
    """Recovered by an operator's word, and it was wrong: the host has power. Its server was
    stopped, so that nothing runs twice."""
    house.m.cloud.servers.stop(house.boot("stopped", DEAD))
    house.run(seconds=5)
    house.sim.change(action_s=0.2)
    house.unfenced.add(DEAD)
    house.sim.cut_host(DEAD)
    said = house.report(DEAD, at=EPOCH)
    house.run(seconds=5)
    house.m.store.incident_actions.confirm_off(house.incident(said).id, "ann", "looks off")
    until_over(house)
    assert plain(house.incident(said).details)["evidence"]["kind"] == "said"


def it_does_not_start_here(house: HealHouse) -> None:
    house.sim.change(only_calls=["servers.start"], failure_rate=1.0)


# what happens; each can be repeated, as monitors repeat what was not answered


def once(act: Act) -> Act:
    """A report that was taken, and whose answer was lost, is a duplicate."""

    def tried(house: HealHouse) -> None:
        with contextlib.suppress(Conflict):
            act(house)

    return tried


def power_is_lost(house: HealHouse) -> None:
    house.sim.fail_host(DEAD)


def cable_is_back(house: HealHouse) -> None:
    house.sim.repair_host(DEAD)


def power_is_back(house: HealHouse) -> None:
    house.sim.recover_host(DEAD)


def report(house: HealHouse) -> None:
    house.report(DEAD, at=EPOCH)


def monitors_see_it(house: HealHouse) -> None:
    for voter in voters(house, count=2):
        voter.sees(failed=[DEAD])


def monitors_report_it(house: HealHouse) -> None:
    for one in (Voter(house, "ctl-1"), Voter(house, "ctl-2")):
        one.says("failed", DEAD, EPOCH)


def guest_dies(house: HealHouse) -> None:
    house.sim.crash_server("guest")


def report_guest(house: HealHouse) -> None:
    house.report_guest(DEAD, named(house, "guest")["id"], at=EPOCH)


def report_process(house: HealHouse) -> None:
    house.notify("PROCESS", DEAD, {"process_name": "nova-compute", "event": "STOPPED"}, EPOCH)


def until(house: HealHouse, what: Callable[[], object]) -> None:
    """By the simulated clock; a claim of which the manager never heard lasts its time."""
    for _ in range(120):
        house.run(seconds=5)
        if what():
            return
    raise AssertionError(f"it never comes to {what.__name__}: {unfinished(house)}")


def until_over(house: HealHouse) -> None:
    def nothing_left() -> bool:
        return not unfinished(house)

    until(house, nothing_left)


def until_opened(house: HealHouse) -> None:
    """Votes are counted and an incident is there."""

    def an_incident() -> bool:
        return bool(house.m.store.incident_queries.list_all(Wanted()))

    until(house, an_incident)


def until_back(house: HealHouse) -> None:
    """The host is in use again, and whatever comes of that has had its time."""

    def the_host_in_use() -> bool:
        return house.m.store.operations.by_key(f"{context.BACK}/{DEAD}").status not in OPEN

    until(house, the_host_in_use)
    house.run(seconds=CLAIM_S + 1)


_HOST = [once(report), until_over]
_GONE = [servers, power_is_lost]
STORIES = (
    Story(
        "host-auto",
        [segment(), *_GONE],
        _HOST,
        moved=("runs", "stopped"),
        status={"stopped": "SHUTOFF"},
    ),
    Story(
        "host-spare",
        [segment(method="reserved_host", spares=("spare-1", "spare-2")), *_GONE],
        _HOST,
        moved=("runs", "stopped"),
        targets=frozenset({"spare-1", "spare-2"}),
        status={"stopped": "SHUTOFF"},
    ),
    Story("host-reserved", [reserved, power_is_lost], _HOST, moved=("runs",)),
    Story(
        "host-votes",
        [segment(), *_GONE, monitors_see_it],
        [monitors_report_it, until_opened, until_over],
        moved=("runs", "stopped"),
        status={"stopped": "SHUTOFF"},
    ),
    Story(
        "host-back",
        [segment(), *_GONE, report, until_over],
        [power_is_back, until_back],
        status={"stopped": "SHUTOFF"},
    ),
    Story(
        "host-back-cut-off",
        [segment(), only_cut_off],
        [once(cable_is_back), until_back],
        status={"stopped": "SHUTOFF"},
        through="fence.on",
    ),
    Story(
        "host-in-place",
        [segment(), servers_without_room, no_room_was_found],
        [power_is_back, until_over],
        status={"stopped": "SHUTOFF"},
        through="servers.start",
    ),
    Story("guest-here", [segment(), a_guest, guest_dies], [once(report_guest), until_over]),
    Story(
        "guest-elsewhere",
        [segment(), a_guest, it_does_not_start_here, guest_dies],
        [once(report_guest), until_over],
    ),
    Story(
        "guest-resized",
        [segment(), a_guest_that_was_resized, guest_dies],
        [once(report_guest), until_over],
        through="servers.reset",
    ),
    Story("process", [segment(), a_guest], [once(report_process), until_over]),
)
#: Stories that are like another one for a part.
_BY_NAME = {story.name: story for story in STORIES}
LIKE = {
    "host-spare": _BY_NAME["host-auto"],
    "host-reserved": _BY_NAME["host-auto"],
    "host-back-cut-off": _BY_NAME["host-back"],
    "guest-resized": _BY_NAME["guest-here"],
}


# telling them


@pytest.fixture(scope="module")
def stage_of(
    heal_template: Path, site: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Story], Stage]:
    made: dict[str, Stage] = {}

    def build(story: Story) -> Stage:
        if story.name in made:
            return made[story.name]
        house = HealHouse(copy(heal_template, site))
        for act in story.before:
            act(house)
        effects = len(house.sim.effects())
        house.close()
        path = copy(site, tmp_path_factory.mktemp("stage") / story.name)
        seconds = (house.clock.now() - EPOCH).total_seconds()
        return made.setdefault(story.name, Stage(path, seconds, effects))

    return build


def tell(story: Story, house: HealHouse, points: Points) -> None:
    """Play the acts; whoever is killed is followed, a claim's length later, by another manager."""
    house.manager(points)
    for act in story.acts:
        for _again in range(3):
            try:
                act(house)
                break
            except Unavailable:
                continue
            except Killed:
                points.armed = False
                house.check_never_twice()
                house.clock.advance(CLAIM_S + 1)
                house.manager()
        else:
            raise AssertionError("the act never ended")
    points.armed = False


def play(
    story: Story, stage: Stage, path: Path, points: Points, starts: int | None = None
) -> dict[str, Any]:
    """Tell it, look whether all is well, and at what there is to see."""
    random.seed(story.name)  # pauses after a lost race: a story is the same when it is told again
    house = stage.house(path)
    house.recovery.start_timeout_s = 60.0 if starts else 10.0
    house.recovery.bring_back = story.name.startswith("host-back")
    try:
        tell(story, house, points)
        check(story, house, stage.effects)
        assert starts is None or len(house.effects("servers.start")) == starts
        return seen(house)
    except Exception as error:
        raise AssertionError(f"{story.name}, {points.where}: {error!r}") from error
    finally:
        house.close()


def named(house: HealHouse, name: str) -> dict[str, Any]:
    (found,) = [server for server in house.sim.world()["servers"] if server["name"] == name]
    return dict(found)


def check(story: Story, house: HealHouse, since: int) -> None:
    house.check_never_twice()
    house.check_unlocked()
    effects = Counter((effect.call, effect.subject) for effect in house.sim.effects()[since:])
    for server in house.sim.world()["servers"]:
        name, wanted = server["name"], (story.status or {}).get(server["name"], "ACTIVE")
        assert (name, server["status"], server["task_state"]) == (name, wanted, None)
        running = [server["host"]] if wanted == "ACTIVE" else []
        assert house.sim.running(server["id"]) == running, name
        times = effects["moves.evacuate", server["id"]]
        assert times == (name in story.moved), f"{name} was evacuated {times} times"
        if name in story.moved:
            assert server["host"] in story.targets, server
        assert effects["servers.unshelve", server["id"]] <= 1
    assert not (left := unfinished(house)), f"work is stuck: {left}"


def unfinished(house: HealHouse) -> list[str]:
    all_ = house.m.store.operations.list_all()
    return [one.key for one in all_ if one.kind in WORK and one.status in OPEN]


#: What there is to see, without what differs from run to run: ids, times, who is where.
_SEEN = {
    "incidents": "SELECT subject, status FROM incidents",
    "notifications": "SELECT type, status FROM notifications",
    "observations": "SELECT observer, state, incident_id IS NOT NULL FROM observations",
    "vmoves": "SELECT server_name, status, was FROM vmoves",
    # a start that a lost manager made late goes on elsewhere, which is skipped otherwise
    "steps": "SELECT o.kind, s.name, CASE s.status WHEN 'skipped' THEN 'done' ELSE s.status END"
    " FROM steps s JOIN operations o ON o.id = s.operation_id WHERE o.key LIKE 'recovery/%'",
    "members": "SELECT h.name, m.reserved, m.on_maintenance FROM segment_hosts m"
    " JOIN hosts h ON h.id = m.host_id WHERE h.name NOT LIKE 'spare%'",
    # time alone makes up of returning, so which it is depends on how late it has become
    "host states": "SELECT name, CASE state WHEN 'returning' THEN 'up' ELSE state END FROM hosts",
}
_SERVICES = "SELECT name, powered, enabled, forced_down FROM hosts WHERE name NOT LIKE 'spare%'"


def seen(house: HealHouse) -> dict[str, Any]:
    found = {}
    with contextlib.closing(sqlite3.connect(house.path / "holdfast.db")) as db:
        for name, query in _SEEN.items():
            found[name] = sorted(map(repr, db.execute(query)))
    with contextlib.closing(sqlite3.connect(house.path / "cloud.db")) as db:
        found["services"] = sorted(map(repr, db.execute(_SERVICES)))
    return found


def kinds(passed: Sequence[str]) -> list[str]:
    """A commit is told from others by the effect before it, and by how many were in between."""
    found, last, commits = [], "", 0
    for what in passed:
        if "commit" in what:
            commits += 1
            found.append(f"{last} > commit {commits}")
        else:
            last, commits = what, 0
            found.append(what)
    return found


def chosen(passed: Sequence[str], elsewhere: set[str]) -> Iterator[int]:
    """The points to die at: one of every kind, less those whose turn is in another story."""
    if CHOSEN.isdecimal():
        yield int(CHOSEN)
        return
    known = set(elsewhere)
    for number, kind in enumerate(kinds(passed), 1):
        if CHOSEN == "all" or kind not in known:
            known.add(kind)
            yield number


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    with hurried(logged=bool(CHOSEN)):
        yield


@pytest.mark.timeout(1200 if not CHOSEN else 0)
@pytest.mark.parametrize("how", ["kill", "lose"])
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.name)
def test_a_manager_lost_at_any_point_delays_a_recovery_and_nothing_else(
    story: Story, how: str, stage_of: Callable[[Story], Stage], site: Path
) -> None:
    stage = stage_of(story)
    quiet = Points(how=how)
    peace = play(story, stage, site, quiet)
    assert {row.split("'")[3] for row in peace["incidents"]} == {"recovered"}
    heard = {row.split("'")[3] for row in peace["notifications"]}
    assert heard == (set() if story.name == "host-votes" else {"finished"})
    assert len(quiet.passed) > 9, "the story has no points to die at"
    assert any(story.through in what for what in quiet.passed), f"no {story.through} in it"
    elsewhere: set[str] = set()
    if story.name in LIKE:  # where they do not differ from that one
        other, plain = LIKE[story.name], Points(how=how)
        play(other, stage_of(other), site, plain)
        elsewhere = set(kinds(plain.passed))
    if story.name == "host-votes":  # its own is what comes before the first effect
        elsewhere = {kind for kind in kinds(quiet.passed) if not kind.startswith(" > ")}
    told = list(chosen(quiet.passed, elsewhere))
    print(f"{len(told)} of {len(quiet.passed)} points")
    for at in told:
        points = Points(at=at, how=how)
        assert play(story, stage, site, points) == peace, f"{story.name}, {points.where}"
