# SPDX-License-Identifier: Apache-2.0
"""Monitors of hosts: the plugin interface, the polling job, and the update of host status.

A manager polls every monitor for the status of its hosts. The job `MonitorsPoll` is one row of
durable work that never ends, so one manager polls at a time. A suspect host is polled again
soon, so that a failure is found within the interval although a single sample is not enough.
`MonitorWorker` isolates calls of plugins; `HostWatch` turns status reports into host status.
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
from holdfast.runtime.threads import start_call

NAMESPACE = "holdfast.monitors"
Report = StatusReport | GuestReport
#: Ways in which a call of a monitor can fail.
RAISED, HUNG, BUSY, NOT_LOADED = "raised", "hung", "busy", "not loaded"


class Monitor(Protocol):
    """A plugin for one kind of resource, without knowledge of the consequences.

    The manager passes Nova's notifications to the monitor (push) and polls it for states
    (poll). The monitor answers with status reports of hosts or reports about guests. The
    monitor decides nothing: debouncing, damping and the meaning of a failure are in
    `hoststatus/status.py`. A third party needs one class and one entry point; `plugin(conf)`
    creates the monitor:

        [project.entry-points."holdfast.monitors"]
        power = "acme_power:PowerMonitor"
    """

    name: str
    topics: Sequence[str]  # on Nova's broker, besides [notifications] topics
    event_types: Sequence[str]  # wanted notifications; `service.*` means all of this noun
    push_only: bool  # never polled: useless without a connection to Nova's broker

    def heard(self, notice: Notice) -> Sequence[Report]:
        """Reports about hosts and guests in a notification, which may arrive twice or late."""
        ...

    def states(self, cloud: Cloud, at: datetime) -> Sequence[StatusReport]:
        """The status of all hosts; `at` is the start of this poll. A host left out is unknown."""
        ...


class Tally(Protocol):
    """Counter of monitor events for metrics; all methods must be quick and must not raise."""

    def reported(self, report: StatusReport) -> None: ...

    def failed(self, monitor: str, how: str) -> None: ...

    def polled(self, monitor: str) -> None:
        """A poll of the monitor has ended."""
        ...

    def connected(self, there: bool) -> None:
        """The connection to Nova's broker opened or closed."""
        ...

    def message(self, how: str) -> None:
        """A notification was heard, not understood, deferred or parked."""
        ...


class NoTally:
    """A tally without effect."""

    def reported(self, report: StatusReport) -> None: ...

    def failed(self, monitor: str, how: str) -> None: ...

    def polled(self, monitor: str) -> None: ...

    def connected(self, there: bool) -> None: ...

    def message(self, how: str) -> None: ...


def wants(monitor: Monitor, event_type: str) -> bool:
    noun = event_type.partition(".")[0]
    return any(type_ in (event_type, f"{noun}.*") for type_ in monitor.event_types)


def topics(monitors: Iterable[Monitor]) -> list[str]:
    return sorted({topic for monitor in monitors for topic in monitor.topics})


def checked(answer: Any) -> list[Report]:
    """The monitor's answer as a list; TypeError if an element is not a report."""
    reports = list(answer)
    for report in reports:
        if not isinstance(report, Report):
            raise TypeError(f"a monitor answers with reports, not with {type(report).__name__}")
    return reports


def load(conf: cfg.ConfigOpts) -> tuple[list[Monitor], dict[str, str]]:
    """Load every installed monitor, and return the reasons of failed loads by name."""
    broken: dict[str, str] = {}
    monitors: list[Monitor] = []

    def failed(_manager: Any, entry: Any, error: BaseException) -> None:
        broken[entry.name] = f"{type(error).__name__}: {error}"

    extensions: Any = extension.ExtensionManager(NAMESPACE, on_load_failure_callback=failed)
    for item in extensions:
        try:
            monitor: Monitor = item.plugin(conf)
            _ = monitor.name, [*monitor.topics, *monitor.event_types], monitor.push_only
            monitors.append(monitor)
        except Exception as error:  # a plugin's constructor may raise anything
            broken[item.name] = f"{type(error).__name__}: {error}"
    return sorted(monitors, key=lambda monitor: monitor.name), broken


LOG = logging.getLogger(__name__)

Reports = Sequence[Report]


class MonitorWorker:
    """Runs calls of a monitor on a thread, one call at a time.

    A monitor that hangs or raises does not harm the others. After its timeout the worker
    abandons a call and starts no other call until the abandoned call returns. The worker logs a
    problem once when it begins and once when it is over. `use` names the use in the log: one
    worker polls, one passes notifications.
    """

    def __init__(self, monitor: Monitor, use: str, tally: Tally) -> None:
        self.monitor = monitor
        self.use = use
        self._tally = tally
        self._under_way: Future[Reports] | None = None
        self._problem = ""

    @property
    def is_free(self) -> bool:
        return self._under_way is None or self._under_way.done()

    def begin(self, call: Callable[[], Any]) -> "Future[Reports] | None":
        """Start the call; None while an earlier call has not returned."""
        if not self.is_free:
            self._tally.failed(self.monitor.name, BUSY)
            return None
        name = f"{self.use} {self.monitor.name}"
        self._under_way = start_call(name, lambda: checked(call()))
        return self._under_way

    def late(self, patience_s: float) -> None:
        """Record a call without an answer after the timeout."""
        why = f"has not returned within {patience_s:g} s; it is not called until it has"
        self._problem_is(HUNG, HUNG, why)

    def raised(self, error: BaseException) -> None:
        kind = type(error).__name__
        if isinstance(error, HoldfastError):
            self._problem_is(RAISED, kind, error.message)
        else:
            self._problem_is(RAISED, kind, f"{kind}: {error}", error)

    def fine(self) -> None:
        if self._problem:
            LOG.info("monitor %s, %s: well again", self.monitor.name, self.use)
        self._problem = ""

    def _problem_is(
        self, how: str, kind: str, why: str, error: BaseException | None = None
    ) -> None:
        """Count the problem; log it once until the monitor works again or the problem changes."""
        self._tally.failed(self.monitor.name, how)
        if kind != self._problem:
            LOG.error("monitor %s, %s: %s", self.monitor.name, self.use, why, exc_info=error)
        self._problem = kind


#: Tries against concurrent writers before the judgement is left to the next sample.
TRIES = 5

_Next = Callable[[HostStatus, datetime], HostStatus]
_Sort = Callable[[Sequence[Watched]], Mapping[int, _Next]]


@dataclass(frozen=True)
class Outcome:
    """Result of some status reports."""

    hosts: int = 0  # hosts in the reports
    suspects: int = 0
    moved: tuple[str, ...] = ()  # a sentence for each changed host

    def __str__(self) -> str:
        return "; ".join([f"{self.hosts} hosts seen", *self.moved])


class HostWatch:
    """Turns status reports into host status in the database and starts repair of reservations.

    Monitors use this class, and so do fencing, recovery and operators, each with its own
    source:

        watch.see([StatusReport(host="cmp-7", source="recovery", verdict=DOWN, decisive=True, …)])
    """

    def __init__(
        self,
        host_status: HostStatuses,
        rules: Rules,
        *,
        repair: Repair | None = None,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self._host_status = host_status
        self._rules = rules
        self._repair = repair
        self._wake = wake

    def see(self, reports: Sequence[StatusReport], *, is_push: bool = True) -> Outcome:
        """Judge the hosts by these reports and write changed statuses.

        `is_push` False: the reports come from a poll. Polled reports without a change are not
        written, not even their time.
        """
        if not reports:
            return Outcome()

        def sort(watched: Sequence[Watched]) -> Mapping[int, _Next]:
            return {
                host_id: functools.partial(self._judge_all, some)
                for host_id, some in by_host(watched, reports).items()
            }

        return self._settle(sort, is_push)

    def ripen(self) -> Outcome:
        """Advance returning hosts by time alone, for sites without polling."""

        def sort(watched: Sequence[Watched]) -> Mapping[int, _Next]:
            return {host.id: lambda old, now: ripen(old, self._rules, now) for host in watched}

        return self._settle(sort, False)

    def _judge_all(
        self, reports: Sequence[StatusReport], old: HostStatus, now: datetime
    ) -> HostStatus:
        for status_report in sorted(reports, key=lambda report: report.at):
            old = judge(old, status_report, self._rules, now)
        return old

    def _settle(self, sort: _Sort, is_push: bool) -> Outcome:
        """Read, judge and write host statuses; repeat if another manager wrote first."""
        moved: list[str] = []
        for _ in range(TRIES):
            watched, now = self._host_status.watched(), self._host_status.now()
            nexts = sort(watched)
            judged = [
                (host, nexts[host.id](host.status, now)) for host in watched if host.id in nexts
            ]
            changes = [
                _change(host, new)
                for host, new in judged
                if self._is_new(host.status, new, is_push)
            ]
            left = self._host_status.change(changes, self._repair) if changes else set()
            moved += self._log_changes(
                status_change for status_change in changes if status_change.host_id not in left
            )
            if not left:
                suspects = sum(new.state == SUSPECT for _one, new in judged)
                return Outcome(len(judged), suspects, tuple(moved))
        raise StaleWrite("another manager always updates these hosts first; try again")

    def _is_new(self, old: HostStatus, new: HostStatus, is_push: bool) -> bool:
        return new != old and (is_push or new.differs(old, self._rules))

    def _log_changes(self, changes: Iterable[StatusChange]) -> list[str]:
        sentences = []
        for status_change in changes:
            if status_change.say:
                sentences.append(status_change.say)
                LOG.log(
                    logging.INFO if status_change.new.usable else logging.WARNING,
                    "%s",
                    status_change.say,
                )
        if sentences:
            self._wake()  # a status change may create work
        return sentences


def by_host(
    watched: Sequence[Watched], reports: Sequence[StatusReport]
) -> dict[int, list[StatusReport]]:
    """Assign reports to host ids, by full name, or by short name if unambiguous."""
    full: dict[str, int] = {}
    shorts: dict[str, list[tuple[str, int]]] = {}
    for host in watched:
        for name in (normalise(host.hypervisor_hostname), host.name):
            full[name] = host.id
            shorts.setdefault(short(name), []).append((name, host.id))
    reports_by_host: dict[int, list[StatusReport]] = {}
    for report in reports:
        name = normalise(report.host)
        meant = (
            {full[name]}
            if name in full
            else {
                host_id
                for full_name, host_id in shorts.get(short(name), ())
                if same(full_name, name)
            }
        )
        if len(meant) == 1:
            reports_by_host.setdefault(meant.pop(), []).append(report)
        elif meant:
            LOG.warning(
                "%s says %s of %s: that name means several hosts, so it is left aside",
                report.source,
                report.verdict,
                report.host,
            )
    return reports_by_host


def _change(host: Watched, new: HostStatus) -> StatusChange:
    old = host.status
    say = ""
    if old.state != new.state and {old.state, new.state} != {UP, SUSPECT}:
        used = (
            ""
            if old.usable == new.usable
            else (" It takes reservations again." if new.usable else " It takes no reservations.")
        )
        say = f"host {host.name}: {old.state} -> {new.state}: {new.why}.{used}"
    return StatusChange(host.id, old, new, say)


POLL = "monitors_poll"
#: Seconds between two checks for changes by option or by time while [monitors] poll is off.
OFF_S = 5.0
#: Seconds between two renewals of the claim while monitors poll.
BREATH_S = 1.0
#: Seconds that the claim must last beyond the next renewal.
KEEP_S = 5.0


class Settings(Rules, Protocol):
    """The options of [monitors], read again at every access."""

    enabled: Sequence[str]
    poll: bool
    poll_interval_s: float
    confirm_s: float
    poll_timeout_s: float


@dataclass(frozen=True)
class Watch:
    """Objects shared by polling and notification handling."""

    hosts: HostWatch
    monitors: Sequence[Monitor]
    tally: Tally
    clock: Clock
    stop: threading.Event = field(default_factory=threading.Event)  # ends all waits for monitors
    guests: Callable[[Sequence[GuestReport]], None] = lambda _reports: None  # writes guest reports

    def ingest(self, reports: Sequence[Report]) -> list[StatusReport]:
        """Write guest reports, count status reports of hosts, and return the latter."""
        guest_reports = [report for report in reports if isinstance(report, GuestReport)]
        if guest_reports:
            self.guests(guest_reports)
        status_reports = [report for report in reports if isinstance(report, StatusReport)]
        for status_report in status_reports:
            self.tally.reported(status_report)
        return status_reports


class MonitorsPoll:
    """The job that polls all monitors."""

    name = POLL
    retry_forever = True

    def __init__(
        self, watch: Watch, cloud: Cloud, settings: Settings, now: Callable[[], datetime]
    ) -> None:
        self._watch = watch
        self._cloud = cloud
        self._settings = settings
        self._now = now
        looking = [monitor for monitor in watch.monitors if not monitor.push_only]
        self._workers = [MonitorWorker(monitor, "poll", watch.tally) for monitor in looking]

    def steps(self) -> Sequence[Step]:
        return (Step("look", self.poll, recorded=False),)

    def poll(self, run: Run) -> str:
        """Poll all monitors and update host status; always ends with NotYet."""
        if not self._settings.poll:
            ripe = self._watch.hosts.ripen()
            raise NotYet(f"no poll: [monitors] poll is off; {ripe}", OFF_S)
        at, saw = self._now(), []
        for worker, answer in self._answers(run, at):
            reports = self._watch.ingest(answer)
            saw.append((worker.monitor.name, self._watch.hosts.see(reports, is_push=False)))
            self._watch.tally.polled(worker.monitor.name)
        sentence = "; ".join(f"{name}: {outcome}" for name, outcome in saw)
        raise NotYet(
            sentence or "no monitor has answered", self._pause([outcome for _, outcome in saw])
        )

    def _pause(self, saw: Sequence[Outcome]) -> float:
        """Seconds until the next poll: short while a host is suspect.

        Otherwise the pause leaves room for all samples within the poll interval.
        """
        settings = self._settings
        if any(outcome.suspects for outcome in saw):
            return settings.confirm_s
        more = settings.confirm_s * (settings.down_samples - 1)
        return max(settings.poll_interval_s - more, settings.poll_interval_s / 2)

    def _answers(self, run: Run, at: datetime) -> Iterator[tuple[MonitorWorker, Reports]]:
        """Call all enabled, free monitors at once and yield answers in order of arrival.

        ClaimLost ends the iteration.
        """
        under_way: dict[Future[Reports], MonitorWorker] = {}
        for worker in self._workers:
            if worker.monitor.name in self._settings.enabled:
                begun = worker.begin(functools.partial(worker.monitor.states, self._cloud, at))
                if begun is not None:
                    under_way[begun] = worker
        until = self._watch.clock.monotonic() + self._settings.poll_timeout_s
        while under_way and not self._watch.stop.is_set():
            run.hold(BREATH_S + KEEP_S)
            left = until - self._watch.clock.monotonic()
            done, _ = wait(under_way, min(BREATH_S, max(0.0, left)), FIRST_COMPLETED)
            for call in done:
                worker = under_way.pop(call)
                if (error := call.exception()) is not None:
                    worker.raised(error)
                    continue
                worker.fine()
                yield worker, call.result()
            if not done and left <= 0:
                for worker in under_way.values():
                    worker.late(self._settings.poll_timeout_s)
                return

    def give_up_at(self, operation: Operation) -> datetime | None:
        return None

    def failed(self, run: Run, why: str) -> None:
        LOG.error("%s: %s", run.operation.key, why)


def kinds(
    watch: Watch, cloud: Cloud, settings: Settings, now: Callable[[], datetime]
) -> dict[str, Kind]:
    return {POLL: MonitorsPoll(watch, cloud, settings, now)}
