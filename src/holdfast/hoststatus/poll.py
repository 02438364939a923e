# SPDX-License-Identifier: Apache-2.0
"""The look round: every monitor is asked how its hosts stand, by one of all managers at a time.

One row of durable work that never ends. A host that is suspect is looked at again soon, so that a
failure is found within the interval though one sample does not make one.
"""

import functools
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from oslo_config import cfg
from stevedore import extension

from holdfast.hoststatus.status import SUSPECT, UP, HostStatus, Rules, StatusReport, judge, ripen
from holdfast.jobs.job import Kind, NotYet, Run, Step
from holdfast.model.errors import HoldfastError, StaleWrite
from holdfast.model.host import normalise, same, short
from holdfast.model.nova_notification import Notice
from holdfast.model.observation import GuestReport
from holdfast.model.operation import Operation
from holdfast.ports.cloud import Cloud
from holdfast.ports.recovery import HostStatuses, Repair, StatusChange, Watched
from holdfast.runtime.clock import Clock

# What a monitor is: a plugin that knows one kind of resource, and nothing of what follows.
#
# It is told what Nova says (push) and asked how things stand (poll), and answers with sightings
# of
# hosts, or words about guests. It decides nothing: debouncing, damping and what a failure means
# are
# `hoststatus/status.py`'s. A third party needs one class and one entry point; `plugin(conf)` makes
# it:
#
#     [project.entry-points."holdfast.monitors"]
#     power = "acme_power:PowerMonitor"


NAMESPACE = "holdfast.monitors"
Seen = StatusReport | GuestReport
#: How a call of a monitor can go wrong.
RAISED, HUNG, BUSY, NOT_LOADED = "raised", "hung", "busy", "not loaded"


class Monitor(Protocol):
    name: str
    topics: Sequence[str]  # of Nova's broker, beside those of [notifications] topics
    event_types: Sequence[str]  # what it wants to hear; `service.*` means all of that noun

    def heard(self, notice: Notice) -> Sequence[Seen]:
        """What a message says about hosts and guests. It may come twice, and late."""
        ...

    def states(self, cloud: Cloud, at: datetime) -> Sequence[StatusReport]:
        """How all hosts stand; `at` is when this look began. To be left out is to be unknown."""
        ...


class Tally(Protocol):
    """Whoever counts; all methods must be quick and must not raise."""

    def sighted(self, sighting: StatusReport) -> None: ...

    def failed(self, monitor: str, how: str) -> None: ...

    def polled(self, monitor: str) -> None:
        """Its look is done."""
        ...

    def connected(self, there: bool) -> None:
        """We listen to Nova's broker now, or no longer."""
        ...

    def message(self, how: str) -> None:
        """A message was heard, not understood, put off or set aside."""
        ...


class NoTally:
    """Nobody counts."""

    def sighted(self, sighting: StatusReport) -> None: ...

    def failed(self, monitor: str, how: str) -> None: ...

    def polled(self, monitor: str) -> None: ...

    def connected(self, there: bool) -> None: ...

    def message(self, how: str) -> None: ...


def wants(monitor: Monitor, event_type: str) -> bool:
    noun = event_type.partition(".")[0]
    return any(one in (event_type, f"{noun}.*") for one in monitor.event_types)


def topics(monitors: Iterable[Monitor]) -> list[str]:
    return sorted({topic for monitor in monitors for topic in monitor.topics})


def only_hears(monitor: Monitor) -> bool:
    """Whether it is told and never asked, so of no use where nobody listens; it may say so."""
    return bool(getattr(monitor, "only_hears", False))


def checked(given: Any) -> list[Seen]:
    """What a monitor answered, if it is what a monitor answers."""
    found = list(given)
    for one in found:
        if not isinstance(one, Seen):
            raise TypeError(f"a monitor answers with sightings, not with {type(one).__name__}")
    return found


def load(conf: cfg.ConfigOpts) -> tuple[list[Monitor], dict[str, str]]:
    """Every installed monitor, and of those that do not load, why."""
    broken: dict[str, str] = {}
    made: list[Monitor] = []

    def failed(_manager: Any, entry: Any, error: BaseException) -> None:
        broken[entry.name] = f"{type(error).__name__}: {error}"

    found: Any = extension.ExtensionManager(NAMESPACE, on_load_failure_callback=failed)
    for item in found:
        try:
            monitor: Monitor = item.plugin(conf)
            _ = monitor.name, [*monitor.topics, *monitor.event_types]
            made.append(monitor)
        except Exception as error:  # whatever a stranger's constructor raises
            broken[item.name] = f"{type(error).__name__}: {error}"
    return sorted(made, key=lambda monitor: monitor.name), broken


# A monitor's calls on a thread of their own: one that hangs or raises harms nobody else.
#
# A lane takes one call at a time. A call that is not back in time is left behind; until it
# returns,
# the lane takes no other. Trouble is said once, when it begins, and once when it is over.


LOG = logging.getLogger(__name__)

Sightings = Sequence[Seen]


class MonitorWorker:
    """`what` is what it is used for, for the log: one lane to look, one to hear."""

    def __init__(self, monitor: Monitor, what: str, tally: Tally) -> None:
        self.monitor = monitor
        self.what = what
        self._tally = tally
        self._under_way: Future[Sightings] | None = None
        self._trouble = ""

    @property
    def is_free(self) -> bool:
        return self._under_way is None or self._under_way.done()

    def begin(self, call: Callable[[], Any]) -> "Future[Sightings] | None":
        """Start it; None while an earlier call has not returned."""
        if not self.is_free:
            self._tally.failed(self.monitor.name, BUSY)
            return None
        made: Future[Sightings] = Future()
        self._under_way = made
        name = f"{self.what} {self.monitor.name}"
        threading.Thread(target=_run, args=(made, call), name=name, daemon=True).start()
        return made

    def late(self, patience_s: float) -> None:
        """What was begun is not back in time."""
        why = f"has not returned within {patience_s:g} s; it is not called until it has"
        self._trouble_is(HUNG, HUNG, why)

    def raised(self, error: BaseException) -> None:
        kind = type(error).__name__
        if isinstance(error, HoldfastError):
            self._trouble_is(RAISED, kind, error.message)
        else:
            self._trouble_is(RAISED, kind, f"{kind}: {error}", error)

    def fine(self) -> None:
        if self._trouble:
            LOG.info("monitor %s, %s: well again", self.monitor.name, self.what)
        self._trouble = ""

    def _trouble_is(
        self, how: str, kind: str, why: str, error: BaseException | None = None
    ) -> None:
        """Counted each time; said once until all is well again, or something else is wrong."""
        self._tally.failed(self.monitor.name, how)
        if kind != self._trouble:
            LOG.error("monitor %s, %s: %s", self.monitor.name, self.what, why, exc_info=error)
        self._trouble = kind


def _run(made: "Future[Sightings]", call: Callable[[], Any]) -> None:
    try:
        made.set_result(checked(call()))
    except BaseException as error:  # the top of a stranger's thread: whoever waits hears of it
        made.set_exception(error)


# The one road for what anybody knows of hosts: sightings in, standings written, repair armed.
#
# Monitors take it; so do fencing, recovery and operators, with a source of their own:
#
#     watch.see([Sighting(host="cmp-7", source="recovery", verdict=DOWN, decisive=True, …)])


#: How often somebody else may be faster before we leave it to the next sample.
TRIES = 5

_Next = Callable[[HostStatus, datetime], HostStatus]
_Sort = Callable[[Sequence[Watched]], Mapping[int, _Next]]


@dataclass(frozen=True)
class Outcome:
    """What became of some sightings."""

    hosts: int = 0  # of which they spoke
    suspects: int = 0
    moved: tuple[str, ...] = ()  # a sentence for each that changed

    def __str__(self) -> str:
        return "; ".join([f"{self.hosts} hosts seen", *self.moved])


class HostWatch:
    def __init__(
        self,
        standings: HostStatuses,
        rules: Rules,
        *,
        repair: Repair | None = None,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self._standings = standings
        self._rules = rules
        self._repair = repair
        self._wake = wake

    def see(self, sightings: Sequence[StatusReport], *, news: bool = True) -> Outcome:
        """Judge by these. `news` False: a look, one of many, of which those that say nothing new
        are not written down, not even their time."""
        if not sightings:
            return Outcome()

        def sort(watched: Sequence[Watched]) -> Mapping[int, _Next]:
            return {
                host_id: functools.partial(self._judge_all, some)
                for host_id, some in by_host(watched, sightings).items()
            }

        return self._settle(sort, news)

    def ripen(self) -> Outcome:
        """Let time do its part where nobody looks."""

        def sort(watched: Sequence[Watched]) -> Mapping[int, _Next]:
            return {one.id: lambda old, now: ripen(old, self._rules, now) for one in watched}

        return self._settle(sort, False)

    def _judge_all(
        self, sightings: Sequence[StatusReport], old: HostStatus, now: datetime
    ) -> HostStatus:
        for one in sorted(sightings, key=lambda sighting: sighting.at):
            old = judge(old, one, self._rules, now)
        return old

    def _settle(self, sort: _Sort, news: bool) -> Outcome:
        """Look, judge, write; again where somebody else was faster."""
        moved: list[str] = []
        for _ in range(TRIES):
            watched, now = self._standings.watched(), self._standings.now()
            nexts = sort(watched)
            judged = [(one, nexts[one.id](one.standing, now)) for one in watched if one.id in nexts]
            changes = [
                _change(one, new) for one, new in judged if self._is_new(one.standing, new, news)
            ]
            left = self._standings.change(changes, self._repair) if changes else set()
            moved += self._tell(one for one in changes if one.host_id not in left)
            if not left:
                suspects = sum(new.state == SUSPECT for _one, new in judged)
                return Outcome(len(judged), suspects, tuple(moved))
        raise StaleWrite("somebody else always judges these hosts first; try again")

    def _is_new(self, old: HostStatus, new: HostStatus, news: bool) -> bool:
        return new != old and (news or new.differs(old, self._rules))

    def _tell(self, changes: Iterable[StatusChange]) -> list[str]:
        said = []
        for one in changes:
            if one.say:
                said.append(one.say)
                LOG.log(logging.INFO if one.new.usable else logging.WARNING, "%s", one.say)
        if said:
            self._wake()  # work may follow from it
        return said


def by_host(
    watched: Sequence[Watched], sightings: Sequence[StatusReport]
) -> dict[int, list[StatusReport]]:
    """Who is meant: by full name, or by the short one if only one host can be meant."""
    full: dict[str, int] = {}
    shorts: dict[str, list[tuple[str, int]]] = {}
    for one in watched:
        for name in (normalise(one.hypervisor_hostname), one.name):
            full[name] = one.id
            shorts.setdefault(short(name), []).append((name, one.id))
    found: dict[int, list[StatusReport]] = {}
    for sighting in sightings:
        name = normalise(sighting.host)
        meant = (
            {full[name]}
            if name in full
            else {host_id for known, host_id in shorts.get(short(name), ()) if same(known, name)}
        )
        if len(meant) == 1:
            found.setdefault(meant.pop(), []).append(sighting)
        elif meant:
            LOG.warning(
                "%s says %s of %s: that name means several hosts, so it is left aside",
                sighting.source,
                sighting.verdict,
                sighting.host,
            )
    return found


def _change(one: Watched, new: HostStatus) -> StatusChange:
    old = one.standing
    say = ""
    if old.state != new.state and {old.state, new.state} != {UP, SUSPECT}:
        used = (
            ""
            if old.usable == new.usable
            else (" It takes reservations again." if new.usable else " It takes no reservations.")
        )
        say = f"host {one.name}: {old.state} -> {new.state}: {new.why}.{used}"
    return StatusChange(one.id, old, new, say)


POLL = "monitors_poll"
#: Switched off, it looks so often whether it has been switched on, and what time has ripened.
OFF_S = 5.0
#: How often the claim is looked after while monitors look.
BREATH_S = 1.0
#: How long the claim must last beyond a breath.
KEEP_S = 5.0


class Settings(Rules, Protocol):
    """[monitors], read anew each time."""

    enabled: Sequence[str]
    poll: bool
    poll_interval_s: float
    confirm_s: float
    poll_timeout_s: float


@dataclass(frozen=True)
class Watch:
    """What looking and hearing share."""

    hosts: HostWatch
    monitors: Sequence[Monitor]
    tally: Tally
    clock: Clock
    stop: threading.Event = field(default_factory=threading.Event)  # who waits for a monitor ends
    guests: Callable[[Sequence[GuestReport]], None] = lambda _words: None  # writes them down

    def ingest(self, seen: Sequence[Seen]) -> list[StatusReport]:
        """Write down what is said of guests, count what is said of hosts, which is given back."""
        words = [one for one in seen if isinstance(one, GuestReport)]
        if words:
            self.guests(words)
        sightings = [one for one in seen if isinstance(one, StatusReport)]
        for one in sightings:
            self.tally.sighted(one)
        return sightings


class MonitorsPoll:
    name = POLL
    retry_forever = True

    def __init__(
        self, watch: Watch, cloud: Cloud, settings: Settings, now: Callable[[], datetime]
    ) -> None:
        self._watch = watch
        self._cloud = cloud
        self._settings = settings
        self._now = now
        looking = [one for one in watch.monitors if not only_hears(one)]
        self._lanes = [MonitorWorker(one, "look", watch.tally) for one in looking]

    def steps(self) -> Sequence[Step]:
        return (Step("look", self.poll, recorded=False),)

    def poll(self, run: Run) -> str:
        """It never ends but by NotYet."""
        if not self._settings.poll:
            ripe = self._watch.hosts.ripen()
            raise NotYet(f"nobody looks: [monitors] poll is off; {ripe}", OFF_S)
        at, saw = self._now(), []
        for lane, seen in self._answers(run, at):
            sightings = self._watch.ingest(seen)
            saw.append((lane.monitor.name, self._watch.hosts.see(sightings, news=False)))
            self._watch.tally.polled(lane.monitor.name)
        said = "; ".join(f"{name}: {outcome}" for name, outcome in saw)
        raise NotYet(said or "no monitor has answered", self._pause([one for _, one in saw]))

    def _pause(self, saw: Sequence[Outcome]) -> float:
        """Soon again while somebody is suspect; else so that all samples fit into the interval."""
        settings = self._settings
        if any(one.suspects for one in saw):
            return settings.confirm_s
        more = settings.confirm_s * (settings.down_samples - 1)
        return max(settings.poll_interval_s - more, settings.poll_interval_s / 2)

    def _answers(self, run: Run, at: datetime) -> Iterator[tuple[MonitorWorker, Sightings]]:
        """Who is enabled and free looks, all at once; as they come back. ClaimLost ends it."""
        under_way: dict[Future[Sightings], MonitorWorker] = {}
        for lane in self._lanes:
            if lane.monitor.name in self._settings.enabled:
                begun = lane.begin(functools.partial(lane.monitor.states, self._cloud, at))
                if begun is not None:
                    under_way[begun] = lane
        until = self._watch.clock.monotonic() + self._settings.poll_timeout_s
        while under_way and not self._watch.stop.is_set():
            run.hold(BREATH_S + KEEP_S)
            left = until - self._watch.clock.monotonic()
            done, _ = wait(under_way, min(BREATH_S, max(0.0, left)), FIRST_COMPLETED)
            for one in done:
                lane = under_way.pop(one)
                if (error := one.exception()) is not None:
                    lane.raised(error)
                    continue
                lane.fine()
                yield lane, one.result()
            if not done and left <= 0:
                for lane in under_way.values():
                    lane.late(self._settings.poll_timeout_s)
                return

    def give_up_at(self, operation: Operation) -> datetime | None:
        return None

    def failed(self, run: Run, why: str) -> None:
        LOG.error("%s: %s", run.operation.key, why)


def kinds(
    watch: Watch, cloud: Cloud, settings: Settings, now: Callable[[], datetime]
) -> dict[str, Kind]:
    return {POLL: MonitorsPoll(watch, cloud, settings, now)}
