# SPDX-License-Identifier: Apache-2.0
"""Shared context of recovery work: ports, site steps, and a cache of cloud queries.

`Recovery` is the base class of host, guest and process recovery: guards first, then hold, start
or close.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Generic, Protocol

from holdfast.hoststatus.status import StatusReport
from holdfast.jobs.job import NotYet, Run, Step, guarded
from holdfast.model.host import same
from holdfast.model.incident import (
    FAILED,
    HELD,
    IGNORED,
    RUNNING,
    STILL_DOWN,
    Incident,
    Verdict,
)
from holdfast.model.incident_progress import P, Progress
from holdfast.model.operation import Operation, Skipped
from holdfast.nova.names import FREEPOOL
from holdfast.ports.cloud import Cloud, Migration, Server
from holdfast.ports.fence import Fence
from holdfast.ports.recovery import Change, Incidents, Limits, ServerMoves, Votes, unchanged
from holdfast.recovery.guards import Settings, View, first_denial, judge
from holdfast.recovery.mass_failure import DefaultLimits, MassFailureLimits
from holdfast.runtime.clock import Clock, SystemClock

LOG = logging.getLogger(__name__)

#: Kinds of durable work.
INTAKE, RECOVER_HOST, RECOVER_GUEST, RECOVER_PROCESS, MOVE, BACK = (
    "notification",
    "recovery_host",
    "recovery_guest",
    "recovery_process",
    "server_move",
    "host_back",
)
#: Prefix of the lock reason by which Holdfast recognises its own server locks.
LOCK = "Holdfast moves it: incident"
#: Source name of status reports in which recovery declares a host dead or back.
SOURCE = "recovery"
#: Operators are notified of a contradicted failure after this many seconds.
ANNOUNCE_AFTER_S = 60.0
#: A held incident evaluates its guards again later by this many seconds per host that is down.
CROWD_S = 0.05
#: Result of a step whose incident is closed.
OVER = Skipped("over")


class OwnStep(Protocol):
    """A recovery step of the site, installed as entry point of `holdfast.recovery_steps`.

    Examples: mail, ticket, billing. The manager calls the step again after a crash, so the step
    must check whether its work is done already. The manager retries a step that raises.
    """

    def __call__(self, incident: Incident, cloud: Cloud) -> str: ...


Announce = Callable[[str, Incident, datetime], Sequence[Operation]]


@dataclass(frozen=True)
class RecoveryContext:
    """Ports, settings and callbacks of all recovery work."""

    incidents: Incidents
    moves: ServerMoves
    votes: Votes
    cloud: Cloud
    fence: Fence
    settings: Settings
    new_id: Callable[[], str]
    see: Callable[[Sequence[StatusReport]], object]
    clock: Clock = field(default_factory=SystemClock)
    own_steps: Mapping[str, OwnStep] = field(default_factory=dict)
    wake: Callable[[], None] = lambda: None
    announce: Announce = lambda _event, _incident, _now: ()  # returns the work that notifies people
    freepool: str = FREEPOOL
    repairs: Callable[[], bool] = lambda: True  # whether this site repairs reservations
    mass_failure: MassFailureLimits = field(default_factory=DefaultLimits)

    def guarded_cloud(self, run: Run) -> Cloud:
        return guarded(self.cloud, run.hold)

    def limits(self) -> Limits:
        return Limits(self.settings.parallel_moves, self.settings.parallel_per_target)


class IncidentWork(Generic[P]):
    """Base class of work about an incident: read it, record changes, insert site steps."""

    name = ""
    retry_forever = True

    def __init__(self, context: RecoveryContext) -> None:
        self.context = context

    def incident(self, run: Run) -> Incident:
        if "incident" not in run.memo:
            run.memo["incident"] = self.context.incidents.incident(
                run.operation.payload["incident"]
            )
        incident: Incident = run.memo["incident"]
        return incident

    def note(
        self,
        run: Run,
        sentence: str | None = None,
        edit: Callable[[P], P] | None = None,
        operations: Sequence[Operation] = (),
    ) -> Incident:
        """Write a changed sentence or changed progress to the incident.

        `operations` are the notifications to write in the same transaction.

        Without a change nothing is written.
        """
        old = self.incident(run)
        change = Change(sentence=sentence, edit=edit or unchanged)
        if sentence in (None, old.sentence) and change.edit(old.details) == old.details:
            return old
        run.memo["incident"] = self.context.incidents.change(old.id, change, run.claim, operations)
        incident: Incident = run.memo["incident"]
        return incident

    def own(self) -> Sequence[Step]:
        """The built-in steps, without the steps of the site."""
        raise NotImplementedError

    def steps(self) -> Sequence[Step]:
        return with_own(self.own(), self.context, self.incident)

    def give_up_at(self, operation: Operation) -> datetime | None:
        return operation.due_at + timedelta(seconds=self.context.settings.give_up_s)


class Recovery(IncidentWork[P]):
    """Base class of the recoveries, with the guards as their first step."""

    #: How many seconds back earlier recoveries count.
    look_back_s = 3600.0

    def guards(self, run: Run) -> str:
        """Evaluate the guards, record their verdicts, and continue, wait or close the incident.

        NotYet while a guard denies the recovery for now. A final denial closes the incident.
        """
        incident = self.incident(run)
        if incident.status == RUNNING or not incident.is_open:
            return "asked before"
        view = self.view(run, incident)
        verdicts = judge(incident, view)
        no = first_denial([verdict for verdict in verdicts if not verdict.brief]) or first_denial(
            verdicts
        )
        if no is not None and no.brief and incident.status != HELD:
            raise NotYet(no.sentence, no.again_s)
        if no is not None and not no.final:
            self._hold(run, incident, Change(HELD, no.sentence, verdicts=verdicts), no)
            down = sum(host.down for host in view.situation.fleet)
            # Hundreds of held incidents must not keep the manager and the cloud busy.
            raise NotYet(no.sentence, max(no.again_s, down * CROWD_S))
        if no is not None:
            status = FAILED if no.guard == "budget" else IGNORED
            return self.close(run, Change(status, no.sentence, verdicts=verdicts))
        if self.context.settings.dry_run:
            sentence = f"dry run: {self.would(run)}"
            return self.close(run, Change(IGNORED, sentence, _dry_run, verdicts))
        return self.begin(run, incident, view, verdicts)

    def _hold(self, run: Run, incident: Incident, change: Change, no: Verdict) -> None:
        """Set the incident to held and notify people once, not at every repeated denial.

        People hear of a contradicted failure only after ANNOUNCE_AFTER_S seconds, because most
        contradictions end by themselves.
        """
        context, now, operations = (
            self.context,
            self.context.incidents.now(),
            tuple[Operation, ...](),
        )
        held = replace(incident, status=HELD, sentence=change.sentence or "")
        since = incident.progress.held_since if incident.status == HELD else None
        held_since = since or now
        waits = no.guard == STILL_DOWN and now < held_since + timedelta(seconds=ANNOUNCE_AFTER_S)
        was_announced = incident.status == HELD and incident.progress.held_announced
        if not waits and not was_announced:
            operations = tuple(context.announce("incident.held", held, now))
        is_announced = bool(was_announced or operations or not waits)

        def edit(progress: Progress) -> Progress:
            held = replace(progress, held_since=held_since, held_by=no.guard)
            return replace(held, held_announced=is_announced)

        changed = replace(change, edit=edit)
        run.memo["incident"] = context.incidents.change(incident.id, changed, run.claim, operations)

    def view(self, run: Run, incident: Incident) -> View:
        context = self.context
        since = context.incidents.now() - timedelta(seconds=self.look_back_s)
        return View(
            situation=context.incidents.situation(incident, since),
            settings=context.settings,
            limits=context.mass_failure,
        )

    def would(self, run: Run) -> str:
        """Describe the recovery for the report of a dry run."""
        raise NotImplementedError

    def begin(self, run: Run, incident: Incident, view: View, verdicts: Sequence[Verdict]) -> str:
        sentence = "all guards say yes"
        change = Change(RUNNING, sentence, started(view.now), verdicts)
        run.memo["incident"] = self.context.incidents.change(incident.id, change, run.claim)
        return sentence

    def is_over(self, run: Run) -> bool:
        """Whether the guards, an operator or a larger incident closed this incident."""
        return not self.incident(run).is_open

    def close(self, run: Run, change: Change, *then: Operation) -> str:
        context, incident = self.context, self.incident(run)
        now, status = context.incidents.now(), change.status or incident.status
        ends = replace(
            incident, status=status, sentence=change.sentence or incident.sentence, closed_at=now
        )
        operations = context.announce(f"incident.{status}", ends, now)
        closed = context.incidents.close(incident.id, change, run.claim, (*then, *operations))
        run.memo["incident"] = closed
        return closed.sentence

    def failed(self, run: Run, why: str) -> None:
        if not self.is_over(run):
            self.close(run, Change(FAILED, f"it could not be ended: {why}"))


def started(at: datetime) -> Callable[[Progress], Progress]:
    """Return the change of progress when the guards let the recovery start."""
    return lambda progress: replace(progress, started_at=at)


def _dry_run(progress: Progress) -> Progress:
    return replace(progress, dry_run=True)


def with_own(
    steps: Sequence[Step], context: RecoveryContext, incident: Callable[[Run], Incident]
) -> Sequence[Step]:
    """Insert the site's steps before, after or instead of the built-in steps."""
    settings = context.settings

    def named(name: str, where: str, steps_by_name: Mapping[str, str]) -> Step | None:
        wanted = steps_by_name.get(name)
        if wanted is None:
            return None
        if wanted not in context.own_steps:
            LOG.error("[recovery] steps_%s: there is no step %r installed; left out", where, wanted)
            return None
        act = context.own_steps[wanted]

        def run(run_: Run) -> str:
            return str(act(incident(run_), context.guarded_cloud(run_)))

        return Step(f"{wanted} {where} {name}"[:64], run)

    arranged: list[Step] = []
    for step in steps:
        trio = (
            named(step.name, "before", settings.steps_before),
            named(step.name, "instead", settings.steps_instead) or step,
            named(step.name, "after", settings.steps_after),
        )
        arranged += [candidate for candidate in trio if candidate is not None]
    return arranged


#: Maximum age of an answer which says that a migration is still under way: FRESH_S seconds, or
#: RESTS times the duration of the query. Frequent queries do not help a busy cloud.
FRESH_S, RESTS = 0.4, 5.0
FORCED_S = 2.0
#: Maximum age of the list of the dead host's servers, counted from its query.
LISTED_S = 2.0
#: Seconds that a thread waits for another thread's answer before it sends its own query.
PATIENCE_S = 2.0
#: Placeholder for a query that was not sent yet.
NEVER: tuple[float, Any] = (float("-inf"), None)
#: Nova evacuates servers with these statuses directly; any other server is set to ERROR first.
READY = frozenset({"ACTIVE", "SHUTOFF", "ERROR"})
#: Servers with these statuses ran before the failure and must run again afterwards.
RAN = frozenset({"ACTIVE"})
RESIZED = "VERIFY_RESIZE"
#: Evacuations that have not ended.
UNDER_WAY = ("accepted", "running")


class CloudCache:
    """Cache of cloud queries, shared by concurrent server moves.

    Sixty servers that leave one host need one list of its migrations, not sixty.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._answers: dict[str, tuple[float, Any]] = {}
        self._took: dict[str, float] = {}
        self._askers: dict[str, threading.Lock] = {}

    def last(self, cloud: Cloud, source: str, server_id: str, after: int) -> Migration | None:
        """The server's latest evacuation with a migration number above `after`.

        An answer older than the call is used only if it shows the migration as unfinished or
        successful.
        """
        key, came = f"migrations/{source}", self._clock.monotonic()

        def ask() -> tuple[int, Sequence[Migration]]:
            return after, cloud.moves.migrations(source_host=source, after=after)

        def is_enough(queried_at: float, answer: tuple[int, Sequence[Migration]]) -> bool:
            if queried_at < came - self._fresh_s(key) or answer[0] > after:
                return False
            migration = _latest(answer[1], server_id, after)
            return queried_at >= came or (migration is not None and migration.status != "failed")

        return _latest(self._shared(key, is_enough, ask)[1], server_id, after)

    def on_source(
        self, cloud: Cloud, source: str, server_id: str, incident_id: str
    ) -> Server | None:
        """The server as it was on the dead host LISTED_S seconds ago or later, without Placement.

        RESTS times the duration of the query counts instead where that is longer: a slow list of
        many servers would be out of date at once. Moves of the incident ask only after the host
        was forced down, and so did the shared list. Users can change little on such a host: a
        deleted server is gone at once, and its lock says so.
        """

        def ask() -> tuple[str, dict[str, Server]]:
            servers = cloud.servers.list(host=source, placed=False)
            return incident_id, {server.id: server for server in servers}

        def is_enough(queried_at: float, answer: tuple[str, dict[str, Server]]) -> bool:
            since = self._clock.monotonic() - max(LISTED_S, RESTS * self._took.get(key, 0.0))
            return queried_at >= since and answer[0] == incident_id

        key = f"servers/{source}"
        _, listed = self._shared(key, is_enough, ask)
        server: Server | None = listed.get(server_id)
        return server if server is not None and same(server.host or "", source) else None

    def _fresh_s(self, key: str) -> float:
        return max(FRESH_S, RESTS * self._took.get(key, 0.0))

    def is_dead(self, cloud: Cloud, host: str) -> bool:
        """Whether Nova lists the host as forced down; only a host known to be off is."""

        def ask() -> list[str]:
            return [service.host for service in cloud.services.list() if service.forced_down]

        since = self._clock.monotonic() - FORCED_S
        forced = self._shared("forced", lambda at, _: at >= since, ask)
        return any(same(host, forced_host) for forced_host in forced)

    def _shared(
        self, key: str, is_enough: Callable[[float, Any], bool], ask: Callable[[], Any]
    ) -> Any:
        """Return the cached answer if `is_enough` accepts its age and content, else query again.

        One thread queries for all threads that arrived meanwhile. A thread that waits longer
        than PATIENCE_S sends its own query.
        """
        if is_enough(*(cached := self._answers.get(key, NEVER))):
            return cached[1]
        with self._lock:
            asker = self._askers.setdefault(key, threading.Lock())
        alone = not asker.acquire(timeout=PATIENCE_S)
        try:
            if is_enough(*(cached := self._answers.get(key, NEVER))):
                return cached[1]
            queried_at = self._clock.monotonic()
            answer = ask()
            self._took[key] = self._clock.monotonic() - queried_at
            self._answers[key] = queried_at, answer
            return answer
        finally:
            if not alone:
                asker.release()


def _latest(migrations: Sequence[Migration], server_id: str, after: int) -> Migration | None:
    mine = (migration for migration in reversed(migrations) if migration.server_id == server_id)
    return next((migration for migration in mine if number(migration.id) > after), None)


def number(text: str) -> int:
    return int(text) if text.isdigit() else 0
