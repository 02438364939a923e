# SPDX-License-Identifier: Apache-2.0
"""One history of hosts by one seed, for test_true_state.py: what is true of each host over time,
what every source says of it, and at most one source that lies or is late.

    history = History(217, house, print)
    history.tell()      # AssertionError if a host that is well was cut, or a dead one was not
"""

import contextlib
import heapq
import json
import math
import random
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from holdfast.model.errors import Conflict
from holdfast.model.notification import NewNotification
from tests.leases.house import Killed, Manager
from tests.recovery.house import HealHouse
from tests.recovery.voters import DOWN, GONE, voters

HOSTS = ("cmp-1", "cmp-2", "cmp-3", "cmp-4")
SUBJECT, SECOND = HOSTS[:2]
#: What is true of a host: it is well; it has no power; its kernel hangs and its BMC reads on; it is
#: cut off from all networks and runs on; it lost its storage network only.
WELL, OFF, HUNG, CUT, STORAGE = "well", "off", "hung", "cut off", "without storage"
#: States of which the HA matrix says recovery, and those in which nothing is heard of the host.
SILENT = (OFF, HUNG, CUT)
#: What happens to the host, and how often of 100.
KINDS = {
    "is well": 32,
    "loses power": 8,
    "hangs": 12,
    "is cut off": 10,
    "loses storage": 10,
    "reboots": 14,
    "is cut off and heard again": 8,
    "is cut off, then loses storage only": 6,
}
#: The one source that lies or is late.
NONE = "nobody lies"
FALSE_STOPPED, FALSE_STARTED = "a notification is false", "a notification says it runs again"
FALSE_OTHERS = "a notifier reports all other hosts too"
OUTAGE, MONITOR = "its notifications are delayed", "a monitor is wrong"
LATE_BEATS, NO_BEATS = "heartbeats are late", "the agent stops"
NOVA_LAGS, NOVA_STOPS = "Nova's row goes on", "Nova's row stops"
BMC_AWAY = "the BMC does not answer"
LIES: dict[str, Sequence[str]] = {
    "is well": [*[FALSE_STOPPED] * 7, *[MONITOR] * 2, NOVA_STOPS, NO_BEATS],
    "loses power": [NONE, LATE_BEATS, MONITOR, OUTAGE, FALSE_STARTED, FALSE_OTHERS, BMC_AWAY],
    "hangs": [
        *[NONE, NONE, LATE_BEATS, NOVA_LAGS, MONITOR, OUTAGE],
        *[FALSE_STARTED, FALSE_OTHERS, BMC_AWAY],
    ],
    "is cut off": [
        *[NONE, NONE, LATE_BEATS, NOVA_LAGS, MONITOR, OUTAGE],
        *[FALSE_STARTED, FALSE_OTHERS, BMC_AWAY],
    ],
    "loses storage": [NONE, MONITOR, NOVA_STOPS, BMC_AWAY, FALSE_STOPPED],
    "reboots": [NONE, NONE, LATE_BEATS, MONITOR, OUTAGE, *[BMC_AWAY] * 4],
    "is cut off and heard again": [NONE, NONE, LATE_BEATS, MONITOR, OUTAGE, *[BMC_AWAY] * 4],
    "is cut off, then loses storage only": [NONE, MONITOR, BMC_AWAY],
}
#: Seconds: what the rule grants (recovery/liveness, recovery/guards, recovery/host_liveness).
SETTLING_S, MOST_SETTLING_S, MAX_AGE_S = 1.0, 15.0, 600.0
AGENT_MARGIN_S, NOVA_MARGIN_S, COUNTS_FOR = 1.0, 2.0, 2.5
ASK_AGAIN_S, GRACE_S, RETRY_S = 2.0, 2.0, 15.0
#: Seconds after which a host held as part of a mass failure is judged again, of four hosts.
HELD_S = 10.2
FOR, AGAINST, ABSTAIN = "for", "against", "abstain"


@dataclass
class Truth:
    """What is true of one host: its states, each with the second at which it begins."""

    phases: list[tuple[float, str]]

    def at(self, second: float) -> str:
        return self._phase(second)[1]

    def since(self, second: float) -> float:
        return self._phase(second)[0]

    def _phase(self, second: float) -> tuple[float, str]:
        return [phase for phase in self.phases if phase[0] <= second][-1]

    def boots(self, second: float) -> int:
        """How often its kernel was started anew by then."""
        states = [state for since, state in self.phases if since <= second]
        return sum(one in (OFF, HUNG) and other == WELL for one, other in pairwise(states))


@dataclass
class Sources:
    """What was said of one host, by the second at which Holdfast received it."""

    stopped: list[tuple[float, str]] = field(default_factory=list)
    started: list[tuple[float, str]] = field(default_factory=list)
    old: set[float] = field(default_factory=set)  # of those of `stopped`, by their dates
    beats: list[float] = field(default_factory=list)
    votes: list[tuple[float, int, str]] = field(default_factory=list)
    nova_until: float = math.inf  # the host reports to Nova until then

    def voting(self, second: float) -> list[str]:
        last = {number: vote for at, number, vote in sorted(self.votes) if at <= second}
        return list(last.values())


class Plan:
    """What a seed chooses before anything happens."""

    def __init__(self, seed: int) -> None:
        self.dice = dice = random.Random(seed)
        self.kind = dice.choices(list(KINDS), list(KINDS.values()))[0]
        self.lie = dice.choice(LIES[self.kind])
        self.beat_s = dice.choice((None, None, 1.0, 2.0, 3.0, 5.0, 10.0))
        if self.lie in (LATE_BEATS, NO_BEATS) and self.beat_s is None:
            self.beat_s = 3.0
        self.nova_s = dice.choice((3.0, 3.0, 5.0, 10.0))
        self.nova_down_s = dice.choice((COUNTS_FOR * self.nova_s, 60.0))
        sees = "storage" in self.kind or self.lie == MONITOR
        self.monitors = 3 if sees or dice.random() < 0.25 else 0
        self.skews = self._clocks()
        silent = self.kind not in ("is well", "loses storage")
        silent = silent and self.lie not in (OUTAGE, FALSE_OTHERS)
        self.trusted = silent and dice.random() < 0.3
        self.tells_return = dice.random() < 0.5  # whether notifiers say STARTED
        self.racked = dice.random() < 0.5
        self.rest_beats = self.racked and dice.random() < 0.5
        self.second = self.kind == "loses power" and self.lie == NONE and dice.random() < 0.5
        self.managers = 2 if dice.random() < 0.15 else 1

    def _clocks(self) -> dict[str, float]:
        """By notifier how many seconds its clock is ahead."""
        dice = self.dice
        names = dice.choice((["ann"], ["ann"], ["ann", "bob"], []))
        if self.lie in (OUTAGE, FALSE_STOPPED, FALSE_STARTED, FALSE_OTHERS) and not names:
            names = ["ann"]
        others = self.monitors or len(names) > 1
        if not (names or others) or (self.lie == FALSE_STARTED and not others):
            names = [*names, "bob"]
        return {name: dice.choice((0.0, dice.uniform(-600, 600), -600.0)) for name in names}

    def __str__(self) -> str:
        clocks = ", ".join(f"{name}'s clock {skew:+.0f} s" for name, skew in self.skews.items())
        return (
            f"{SUBJECT} {self.kind}; {self.lie}; agent every {self.beat_s} s, Nova every"
            f" {self.nova_s} s and up for {self.nova_down_s} s, {self.monitors} monitors, {clocks};"
            f" trusted {self.trusted}, rack {self.racked}, {self.managers} managers"
        )


@dataclass(order=True)
class Event:
    at: float
    number: int
    what: str = field(compare=False)
    act: Callable[[], Any] = field(compare=False)
    host: str = field(compare=False, default="")  # it does not happen if that host was cut
    rings: bool = field(compare=False, default=False)  # it leaves work for a manager


class Stop:
    """Ends a history in the middle of a manager's work, once it is decided: `Points` of a house."""

    statements = False

    def __init__(self) -> None:
        self.is_decided: Callable[[], bool] = lambda: False

    def before(self, what: str) -> None:
        pass

    def after(self, what: str) -> None:
        if what in ("fence.off", "services.force_down") and self.is_decided():
            raise Killed(what)


class TrueHouse(HealHouse):
    """A house whose managers are stopped once a history is decided."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.stop = Stop()
        super().__init__(*args, **kwargs)

    def manager(self, points: Any = None) -> Manager:
        return super().manager(points or self.stop)


class History:
    def __init__(self, plan: Plan, house: TrueHouse, say: Callable[[str], None]) -> None:
        self.plan, self.house, self.say = plan, house, say
        self.dice, self.kind, self.lie = plan.dice, plan.kind, plan.lie
        self.beat_s, self.nova_s = plan.beat_s, plan.nova_s
        self.cloud = sqlite3.connect(house.path / "cloud.db")
        self.book = sqlite3.connect(house.path / "holdfast.db")
        self.events: list[Event] = []
        self.truths = {host: Truth([(0.0, WELL)]) for host in HOSTS}
        self.sources = {host: Sources() for host in HOSTS}
        self.subjects = [SUBJECT]
        self.cuts: dict[str, float] = {}
        self.begun: dict[str, float] = {}
        self.away_until = 0.0
        self.wrong = ""  # why a cut was wrong: an exception would end in the manager's own handler
        self._seen_effects = 0
        say(str(plan))
        house.clock.advance(self.dice.uniform(0, 20))  # Nova's reports come at another phase
        self.zero = house.clock.now()
        house.stop.is_decided = self._look
        self._arrange()
        self._happen_to(SUBJECT)
        if plan.second:
            self._second_dies()
        self.until = max(map(self._ends, self.subjects))
        self._give_signs()
        self.until = max(self.until, *(self._deadline(host) or 0.0 for host in self.subjects))

    def close(self) -> None:
        self.cloud.close()
        self.book.close()

    # what there is

    def _arrange(self) -> None:
        house = self.house
        house.recovery.heartbeat_network = "manage"
        house.recovery.nova_report_interval_s = self.nova_s
        house.sim.change(report_s=self.nova_s, service_down_s=self.plan.nova_down_s)
        self._work = [house.m, *(house.manager() for _ in range(self.plan.managers - 1))]
        self._voters = voters(house, *HOSTS, count=self.plan.monitors)
        for host in HOSTS:
            self.sources[host].votes = [(0.0, one, AGAINST) for one in range(self.plan.monitors)]

    def _at(self, second: float, what: str, act: Callable[[], Any], **more: Any) -> None:
        heapq.heappush(self.events, Event(second, len(self.events), what, act, **more))

    # what happens, and what sources say of it

    def _happen_to(self, host: str) -> None:
        dice, begins = self.dice, self.dice.uniform(12, 30)
        ends = begins + dice.choice((dice.uniform(5, 15), dice.uniform(5, 60)))
        later = {
            "is well": [],
            "loses power": [(begins, OFF)],
            "hangs": [(begins, HUNG)],
            "is cut off": [(begins, CUT)],
            "loses storage": [(begins, STORAGE)],
            "reboots": [(begins, HUNG), (ends, WELL)],
            "is cut off and heard again": [(begins, CUT), (ends, WELL)],
            "is cut off, then loses storage only": [
                (begins, CUT),
                (begins + dice.uniform(3.5, 7), STORAGE),
            ],
        }
        self.truths[host].phases += later[self.kind]
        self._in_the_cloud(host)
        for name in self.plan.skews:
            self._notify(host, name)
        for number in range(self.plan.monitors):
            self._watch(host, number)
        if self.lie == FALSE_STOPPED:
            self._false_stopped(host, begins)
        for other in HOSTS[1:] if self.lie == FALSE_OTHERS else ():
            noticed = max(0.0, begins + dice.uniform(-10, 10))
            self._post(other, "ann", "STOPPED", noticed, noticed + dice.uniform(0, 1))
        if self.lie == BMC_AWAY:
            self._bmc_away(begins - dice.uniform(0, 5), begins + dice.uniform(3, 50))

    def _second_dies(self) -> None:
        """Another host of the segment loses its power at about the same time."""
        self.subjects.append(SECOND)
        begins = self.truths[SUBJECT].phases[1][0] + self.dice.uniform(0, 3)
        self.truths[SECOND].phases.append((begins, OFF))
        self._in_the_cloud(SECOND)
        for name in self.plan.skews:
            self._notify(SECOND, name)
        for number in range(self.plan.monitors):
            self._watch(SECOND, number)

    def _in_the_cloud(self, host: str) -> None:
        """The simulated cloud follows the truth; Nova's row may lag, or stop for no reason."""
        sim, mine = self.house.sim, self.sources[host]
        acts = {OFF: sim.fail_host, HUNG: sim.hang_host, CUT: sim.cut_host}
        was = WELL
        for since, state in self.truths[host].phases[1:]:
            at, back = since, sim.recover_host if was == HUNG else sim.repair_host
            if state in SILENT and self.lie == NOVA_LAGS:
                at = since + self.dice.uniform(3, 60)
            if state in SILENT:
                mine.nova_until = at
            if state in SILENT or was in SILENT:
                act = acts.get(state, back)
                self._at(at, f"{host} is {state}", lambda act=act: act(host), host=host)
            if state in (WELL, STORAGE):
                mine.nova_until = math.inf
            was = state
        if self.lie == NOVA_STOPS:
            at = self.dice.uniform(3, 20)
            self._at(at, "Nova hears nothing of it any more", lambda: sim.cut_host(host))

    def _notify(self, host: str, name: str) -> None:
        """A notifier sees whether the host answers at all, and its clock is wrong."""
        dice, truth, told = self.dice, self.truths[host], False
        away = self.lie == OUTAGE and name == "ann"
        road_back = truth.phases[-1][0] + dice.choice((dice.uniform(0, 30), dice.uniform(30, 1800)))
        for since, _state in truth.phases[1:]:
            noticed = since + dice.uniform(1, 8)
            if (truth.at(noticed) in SILENT) == told:
                continue
            told = not told
            at = noticed + dice.uniform(0, 0.5)
            at = max(at, road_back + (0.0 if told else 0.5)) if away else at
            if told or self.plan.tells_return:
                self._post(host, name, "STOPPED" if told else "STARTED", noticed, at)
            if told and self.lie == FALSE_STARTED and name == "ann":
                later = at + dice.uniform(0.1, 10)
                self._post(host, name, "STARTED", later, later)

    def _false_stopped(self, host: str, at: float) -> None:
        name, dice = "ann", self.dice
        died = at - dice.choice((0.0, dice.uniform(0, 1800)))  # an old one that was on its way
        self._post(host, name, "STOPPED", died, at)
        if dice.random() < 0.2:
            later = at + dice.uniform(0.5, 20)
            self._post(host, name, "STARTED", later, later)

    def _post(self, host: str, name: str, event: str, noticed: float, at: float) -> None:
        """The notification is generated at `noticed` by the notifier's clock; we get it `at`."""
        mine = self.sources[host]
        (mine.stopped if event == "STOPPED" else mine.started).append((at, name))
        generated = self.zero + timedelta(seconds=noticed + self.plan.skews[name])
        cluster = "OFFLINE" if event == "STOPPED" else "ONLINE"
        payload = {"event": event, "host_status": "NORMAL", "cluster_status": cluster}

        def post() -> None:
            new = NewNotification("COMPUTE_HOST", host, generated, payload, reporter=name)
            store, half = self.house.m.store.notifications, timedelta(seconds=180)
            with contextlib.suppress(Conflict):
                store.admit(self.house.new_id(), new, interval=half)

        age = at - noticed - self.plan.skews[name]
        if age > MAX_AGE_S:
            mine.old.add(at)
        self._at(at, f"{name}: {host} {event}, {age:.1f} s old by its date", post, rings=True)

    def _watch(self, host: str, number: int) -> None:
        """One monitor follows the truth; it speaks of what has lasted for 3 s."""
        dice, truth, said, one = self.dice, self.truths[host], False, self._voters[number]
        wrong = self.lie == MONITOR and number == 0
        if wrong and self.kind == "is well":
            health = dice.choice((DOWN, GONE))
            self._vote(host, number, dice.uniform(5, 20), FOR, lambda: one.fails(host, health))
            return
        late, last = dice.choice((20.0, math.inf)) if wrong else 0.0, 0.0
        for since, state in truth.phases[1:]:
            noticed = dice.uniform(0.5, 10 if state == WELL else 2)
            at = max(since + noticed + late, last + 0.1)
            if math.isinf(at) or truth.at(at) != state:
                continue
            health = DOWN if state == STORAGE else GONE
            if state == WELL and said:
                self._vote(host, number, at, AGAINST, lambda: one.recovers(host))
                said = False
            elif state == WELL:
                self._vote(host, number, at, AGAINST, lambda: one.sees(well=[host]), rings=False)
            elif said:
                see = lambda health=health: one.sees(failed=[host], health=health)  # noqa: E731
                self._vote(host, number, at, FOR, see, rings=False)
            else:
                wait = lambda health=health: one.sees(waiting=[host], health=health)  # noqa: E731
                self._vote(host, number, at, ABSTAIN, wait, rings=False)
                if truth.at(at + 3) in (state, STORAGE):
                    now = DOWN if truth.at(at + 3) == STORAGE else GONE
                    fail = lambda now=now: one.fails(host, now)  # noqa: E731
                    self._vote(host, number, at + 3, FOR, fail)
                    said, last = True, at + 3

    def _vote(
        self,
        host: str,
        number: int,
        at: float,
        vote: str,
        act: Callable[[], Any],
        *,
        rings: bool = True,
    ) -> None:
        self.sources[host].votes.append((at, number, vote))
        self._at(at, f"monitor {number + 1} votes {vote}: {host} failed", act, rings=rings)

    def _bmc_away(self, begins: float, ends: float) -> None:
        self.away_until = ends
        calls, change = ["fence.power", "fence.off"], self.house.sim.change
        self._at(begins, "the BMC is away", lambda: change(only_calls=calls, failure_rate=1.0))
        self._at(ends, "the BMC answers again", lambda: change(failure_rate=0.0))

    # signs of life

    def _give_signs(self) -> None:
        """Heartbeats of the subjects' agents, and of the others' while the extent is in doubt. Of
        those long before the first report only the last matter."""
        if self.beat_s is None:
            return
        mine = [self.sources[host] for host in self.subjects]
        told = [at for one in mine for at, _name in one.stopped]
        told += [at for one in mine for at, _number, vote in one.votes if vote == FOR]
        first = min([*told, self.until])
        for host in HOSTS:
            if host in self.subjects:
                self._beats(host, self.beat_s, first, self.until)
            elif self.plan.rest_beats:
                self._beats(host, self.beat_s, first, min(self.until, first + 15))

    def _beats(self, host: str, every: float, first: float, until: float) -> None:
        """Every so often while the host is heard on management; late ones after its death."""
        dice, truth = self.dice, self.truths[host]
        dead = next((since for since, state in truth.phases if state in SILENT), math.inf)
        late_until = dead + dice.uniform(3, 30) if self.lie == LATE_BEATS else 0.0
        if self.lie == NO_BEATS and host in self.subjects:
            until = dice.uniform(5, 20)
        sent: list[tuple[float, int]] = []
        at = dice.uniform(0, every)
        while at < until:
            if truth.boots(at) and not truth.boots(at - every):
                at = max(at, truth.since(at) + dice.uniform(0.5, 6))  # the agent starts late
            if truth.at(at) not in SILENT or at < late_until:
                sent.append((at + dice.uniform(0, 0.4), truth.boots(at)))
            at += every
        before = [one for one in sent if one[0] < first - 3 * every]
        boots = {boot: (at, boot) for at, boot in reversed(before)}  # the first of each
        early = sorted({*boots.values(), *before[-2:]})
        for second, boot in [*early, *(one for one in sent if one[0] >= first - 3 * every)]:
            self.sources[host].beats.append(second)
            act = lambda boot=boot: self._beat(host, every, boot)  # noqa: E731
            self._at(second, f"{host} beats, boot {boot}", act, host=host)

    def _beat(self, host: str, every: float, boot: int) -> None:
        values = {
            "started_at": self.zero,
            "heartbeat_s": every,
            "rules_version": "",
            "central_version": "",
            "boot_id": f"{host}-{boot}",
            "details": {"running": self._running(host)},
        }
        self.house.m.store.agents.beat(host, values)

    def _running(self, host: str) -> list[str]:
        query = "SELECT server_id FROM domains d JOIN hosts h ON h.id = d.host_id WHERE h.name = ?"
        return [server_id for (server_id,) in self.cloud.execute(query, [host])]

    # time

    def tell(self) -> str:
        """Let it happen, and check it; what became of the first host."""
        due = 0.0
        while not self._is_decided():
            at = self.events[0].at if self.events else math.inf
            now = min(at, due, self.until)
            self.house.clock.advance_to(self.zero + timedelta(seconds=max(now, self._now())))
            if now >= self.until:
                break
            if at > due:
                due = self._turn()
                continue
            event = heapq.heappop(self.events)
            if event.host in self.cuts:  # it neither beats nor returns
                continue
            self.say(f"{at:9.3f} {event.what}")
            event.act()
            due = min(due, at) if event.rings else due
        assert not self.wrong, self.wrong
        self._check_end()
        done = "cut" if SUBJECT in self.cuts else "recovered" if self.begun else "left alone"
        return f"{self.kind}, {done}"

    def _turn(self) -> float:
        """A manager does what is due; the second at which it looks again."""
        try:
            pause = self.dice.choice(self._work).turn()
        except Killed:
            return math.inf
        self._look()
        return self._now() + pause

    def _now(self) -> float:
        return (self.house.clock.now() - self.zero).total_seconds()

    def _is_decided(self) -> bool:
        """Whether every subject was cut, or is without power and its recovery has begun."""
        return all(host in self.cuts or host in self.begun for host in self.subjects)

    # what must be

    def _look(self) -> bool:
        """See whom the managers cut, and whose recovery they began; whether all is decided."""
        query = "SELECT id, at, subject FROM effects WHERE call = 'fence.off' AND id > ?"
        for number, at, host in self.cloud.execute(query, [self._seen_effects]):
            self._seen_effects = number
            second = at - self.zero.timestamp()
            self.say(f"{second:9.3f} the managers cut {host}")
            self.wrong = self.wrong or self._why_wrong(host, second)
            self.cuts.setdefault(host, second)
        for subject, details in self.book.execute("SELECT subject, details FROM incidents"):
            host, began = subject.removeprefix("host:"), json.loads(details).get("started_at")
            if began and host not in self.begun and self.truths[host].at(self._now()) == OFF:
                self.begun[host] = (datetime.fromisoformat(began) - self.zero).total_seconds()
        return self._is_decided()

    def _why_wrong(self, host: str, second: float) -> str:
        """Why the host must not be cut then: it is well. Of one that returned, Holdfast must have
        had a chance to know: a sign of life since its return and the report, or time for several.
        """
        truth, mine = self.truths[host], self.sources[host]
        if truth.at(second) != WELL:
            return ""
        back, said = truth.since(second), f"{host} was cut at {second:.3f} and is well"
        received = [at for at, _name in mine.stopped if at < second]
        told = (max if self.plan.trusted else min)(received, default=math.inf)
        voted = self._when(host, 0.0, lambda votes: votes.count(FOR) >= 2)
        known = max(back, min(told, voted))
        signs = [*mine.beats, *self._reports(host, back, second)]
        shown = min([at for at in signs if known < at < second], default=math.inf)
        if not back:
            return said
        if shown < second:
            return f"{said} since {back:.3f}: it showed life at {shown:.3f}"
        late = second > back + max(self.nova_s, self.beat_s or 0) + 6
        return f"{said} since {back:.3f}" if late else ""

    def _reports(self, host: str, begins: float, ends: float) -> Iterator[float]:
        """When the host reported to Nova between these seconds."""
        zero, every = self.zero.timestamp(), self.nova_s
        ends = min(ends, self.sources[host].nova_until)
        at = math.floor((zero + begins) / every) * every - zero
        if self.kind == "reboots":
            yield begins
        while (at := at + every) <= ends:
            if at > begins:
                yield at

    def _check_end(self) -> None:
        for host in self.subjects:
            if (by := self._deadline(host)) is None:
                continue
            done = min(self.cuts.get(host, math.inf), self.begun.get(host, math.inf))
            died = self.truths[host].phases[1][0]
            said = f"{host} is dead since {died:.3f} and was to be cut by {by:.3f}: {done:.3f}"
            assert done <= by + 0.001, said
        self._check_started_in_place()

    def _check_started_in_place(self) -> None:
        """A host that rebooted and was not cut: its incident ended by itself, and the servers that
        were seen to run when it died run."""
        if self.kind != "reboots" or self.beat_s is None or SUBJECT in self.cuts:
            return
        open_ = "SELECT status, sentence FROM incidents WHERE closed_at IS NULL"
        assert not (found := self.book.execute(open_).fetchall()), found
        for (details,) in self.book.execute("SELECT details FROM incidents"):
            for server_id in json.loads(details).get("ran") or ():
                assert self.house.sim.running(server_id), f"{server_id} was left dead"

    # by when

    def _ends(self, host: str) -> float:
        """When the history of a host is over, if nothing was decided before."""
        mine, truth = self.sources[host], self.truths[host]
        told = [at for at, _name in (*mine.stopped, *mine.started)]
        last = max([*told, *(at for at, _n, _vote in mine.votes), truth.phases[-1][0]])
        every = max(self.nova_s + NOVA_MARGIN_S, (self.beat_s or 0) + AGENT_MARGIN_S)
        if self.beat_s and self.lie == LATE_BEATS:
            every += 30 + COUNTS_FOR * self.beat_s
        patience = every + (30 if self.dice.random() < 0.05 else 3)
        if self.kind == "reboots":
            patience += 60
        by = self._deadline(host, signs=False)
        return max(last + patience, by or 0.0)

    def _deadline(self, host: str, *, signs: bool = True) -> float | None:
        """By when the host must be cut, or its recovery have begun if it has no power; None: it
        need not, for nobody who tells the truth said that it failed, or it came back before."""
        truth = self.truths[host]
        found = []
        for number, (since, state) in enumerate(truth.phases):
            until = truth.phases[number + 1][0] if number + 1 < len(truth.phases) else math.inf
            if state == WELL:
                continue
            ready = self._ready(host, (since, until), state, signs)
            by = min(ready, default=math.inf) + GRACE_S
            if self.lie == FALSE_OTHERS:  # until each other host has shown life
                told = [at for one in HOSTS[1:] for at, _name in self.sources[one].stopped]
                by = max(by, max(told) + self.nova_s + 2 * ASK_AGAIN_S) + HELD_S
            if self.away_until > since:
                by = max(by, self.away_until + RETRY_S + GRACE_S)
            if by < until:
                found.append(by)
        return min(found, default=None)

    def _ready(
        self, host: str, span: tuple[float, float], state: str, signs: bool
    ) -> Iterator[float]:
        """When each true report of that state has settled and waited, and is not contradicted."""
        mine, (since, until) = self.sources[host], span
        settling = SETTLING_S if len(self.subjects) == 1 else MOST_SETTLING_S
        for at, name in mine.stopped if state in SILENT else []:
            withdrawn = any(at < later < until and name == who for later, who in mine.started)
            if at < since or withdrawn:
                continue
            if state == OFF:
                yield at + settling
                continue
            unseen = self._when(host, at, lambda votes: votes.count(AGAINST) <= votes.count(FOR))
            trusted = self.plan.trusted and at not in mine.old
            wait = 0.0 if trusted else self._wait(host, at)
            yield max(unseen, at + wait, *self._contradicted(host, at, signs)) + settling
        voted = self._when(host, since, lambda votes: votes.count(FOR) >= 2)
        if state == STORAGE and since > self.truths[host].phases[1][0]:
            voted = max(voted, since + 2)  # the monitors see that only its storage is lost
        if voted < math.inf:
            first = min(at for at, _number, vote in mine.votes if vote == FOR)
            ends = self._contradicted(host, first, signs) if state in (HUNG, CUT) else []
            yield max([voted, *ends]) + settling

    def _wait(self, host: str, at: float) -> float:
        """How long a lone report that came in then waits."""
        last = max((beat for beat in self.sources[host].beats if beat <= at), default=-math.inf)
        if self.beat_s and last >= at - COUNTS_FOR * self.beat_s:
            return self.beat_s + AGENT_MARGIN_S
        return self.nova_s + NOVA_MARGIN_S

    def _contradicted(self, host: str, at: float, signs: bool) -> Iterator[float]:
        """Until when signs of life that came in after the report count."""
        mine = self.sources[host]
        yield at
        dead = next(since for since, state in self.truths[host].phases if state in SILENT)
        if signs and self.beat_s:
            late = [
                beat for beat in mine.beats if at < beat and self.truths[host].at(beat) in SILENT
            ]
            yield max(late, default=at) + (COUNTS_FOR * self.beat_s if late else 0)
        if self.lie == NOVA_LAGS:
            last = max(self._reports(host, dead, mine.nova_until), default=dead)
            if last + ASK_AGAIN_S > at:  # a manager may read it so much later
                yield last + ASK_AGAIN_S + COUNTS_FOR * self.nova_s

    def _when(self, host: str, at: float, is_so: Callable[[list[str]], bool]) -> float:
        """The first second from then on at which the monitors vote so."""
        mine = self.sources[host]
        times = sorted({at, *(one for one, _number, _vote in mine.votes if one > at)})
        return next((time for time in times if is_so(mine.voting(time))), math.inf)

    def rows(self) -> Iterator[str]:
        """What was recorded, for people."""
        for query in (
            "SELECT id, subject, status, sentence, details FROM incidents",
            "SELECT type, status, reporter, generated_time, created_at, message FROM notifications",
            "SELECT key, status, sentence, next_try_at FROM operations",
            "SELECT at, subject, sentence FROM audit ORDER BY id",
        ):
            yield from map(str, self.book.execute(query))
