# SPDX-License-Identifier: Apache-2.0
"""Shared context of recovery work: settings, ports, site steps, and a cache of cloud queries."""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Generic, Protocol

from holdfast.hoststatus.status import StatusReport
from holdfast.jobs.job import Run, Step, guarded
from holdfast.model.host import same
from holdfast.model.incident import Incident
from holdfast.model.incident_progress import P
from holdfast.model.operation import Operation, Skipped
from holdfast.nova.names import FREEPOOL
from holdfast.ports.cloud import Cloud, Migration
from holdfast.ports.fence import Fence
from holdfast.ports.recovery import Change, Incidents, Limits, ServerMoves, Votes, unchanged
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
#: Result of a step whose incident is closed.
OVER = Skipped("over")


class Settings(Protocol):
    """The options of [recovery], read again at every access."""

    dry_run: bool
    give_up_s: float
    duplicate_interval_s: float
    evacuate_all: bool
    restart_all: bool
    ha_key: str
    priority_key: str
    group_key: str
    leave_names: Sequence[str]
    ignore_error_state: bool
    parallel_moves: int
    parallel_per_target: int
    move_timeout_s: float
    move_give_up_s: float
    move_pause_s: float
    migrate_away_rest_s: float
    stop_timeout_s: float
    start_timeout_s: float
    repair_wait_s: float
    host_votes: int
    heartbeat_network: str
    nova_report_interval_s: float
    report_max_age_s: float
    guest_max_recoveries: int
    guest_window_s: float
    guest_restarts_in_place: int
    host_max_recoveries: int
    host_window_s: float
    throttle_interval_s: float
    throttle_burst: int
    heavy_throttle_interval_s: float
    watchdog_s: float
    fence_escalate_after: int
    disable_reason: str
    bring_back: bool
    bring_back_after_s: float
    move_back: bool
    power_on_after: Mapping[str, str]
    add_spare_to_aggregates: bool
    steps_before: Mapping[str, str]
    steps_after: Mapping[str, str]
    steps_instead: Mapping[str, str]


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
        told: Sequence[Operation] = (),
    ) -> Incident:
        """Write a changed sentence or changed progress to the incident.

        `told` holds the notifications to write in the same transaction.

        Without a change nothing is written.
        """
        old = self.incident(run)
        change = Change(sentence=sentence, edit=edit or unchanged)
        if sentence in (None, old.sentence) and change.edit(old.details) == old.details:
            return old
        run.memo["incident"] = self.context.incidents.change(old.id, change, run.claim, told)
        incident: Incident = run.memo["incident"]
        return incident

    def own(self) -> Sequence[Step]:
        """The built-in steps, without the steps of the site."""
        raise NotImplementedError

    def steps(self) -> Sequence[Step]:
        return with_own(self.own(), self.context, self.incident)

    def give_up_at(self, operation: Operation) -> datetime | None:
        return operation.due_at + timedelta(seconds=self.context.settings.give_up_s)


def with_own(
    steps: Sequence[Step], context: RecoveryContext, incident: Callable[[Run], Incident]
) -> Sequence[Step]:
    """Insert the site's steps before, after or instead of the built-in steps."""
    settings = context.settings

    def named(name: str, where: str) -> Step | None:
        wanted = getattr(settings, where).get(name)
        if wanted is None:
            return None
        if wanted not in context.own_steps:
            LOG.error("[recovery] %s: there is no step %r installed; left out", where, wanted)
            return None
        act = context.own_steps[wanted]

        def run(run_: Run) -> str:
            return str(act(incident(run_), context.guarded_cloud(run_)))

        return Step(f"{wanted} {where.removeprefix('steps_')} {name}"[:64], run)

    found: list[Step] = []
    for step in steps:
        trio = (
            named(step.name, "steps_before"),
            named(step.name, "steps_instead") or step,
            named(step.name, "steps_after"),
        )
        found += [one for one in trio if one is not None]
    return found


#: Maximum age of an answer which says that a migration is still under way: FRESH_S seconds, or
#: RESTS times the duration of the query. Frequent queries do not help a busy cloud.
FRESH_S, RESTS = 0.4, 5.0
FORCED_S = 2.0
#: Seconds that a thread waits for another thread's answer before it sends its own query.
PATIENCE_S = 2.0
#: Placeholder for a query that was not sent yet.
NEVER: tuple[float, Any] = (float("-inf"), None)
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

        def ask() -> Sequence[Migration]:
            return cloud.moves.migrations(source_host=source)

        def is_enough(asked: float, answer: Sequence[Migration]) -> bool:
            if asked >= came:
                return True
            if asked < came - self._fresh_s(key):
                return False
            migration = _latest(answer, server_id, after)
            return migration is not None and migration.status != "failed"

        return _latest(self._shared(key, is_enough, ask), server_id, after)

    def _fresh_s(self, key: str) -> float:
        return max(FRESH_S, RESTS * self._took.get(key, 0.0))

    def is_dead(self, cloud: Cloud, host: str) -> bool:
        """Whether Nova lists the host as forced down; only a host known to be off is."""

        def ask() -> list[str]:
            return [service.host for service in cloud.services.list() if service.forced_down]

        since = self._clock.monotonic() - FORCED_S
        forced = self._shared("forced", lambda at, _: at >= since, ask)
        return any(same(host, one) for one in forced)

    def _shared(
        self, key: str, is_enough: Callable[[float, Any], bool], ask: Callable[[], Any]
    ) -> Any:
        """Return the cached answer if `is_enough` accepts its age and content, else query again.

        One thread queries for all threads that arrived meanwhile. A thread that waits longer
        than PATIENCE_S sends its own query.
        """
        if is_enough(*(known := self._answers.get(key, NEVER))):
            return known[1]
        with self._lock:
            asker = self._askers.setdefault(key, threading.Lock())
        alone = not asker.acquire(timeout=PATIENCE_S)
        try:
            if is_enough(*(known := self._answers.get(key, NEVER))):
                return known[1]
            asked = self._clock.monotonic()
            answer = ask()
            self._took[key] = self._clock.monotonic() - asked
            self._answers[key] = asked, answer
            return answer
        finally:
            if not alone:
                asker.release()


def _latest(found: Sequence[Migration], server_id: str, after: int) -> Migration | None:
    mine = (migration for migration in reversed(found) if migration.server_id == server_id)
    return next((migration for migration in mine if number(migration.id) > after), None)


def number(text: str) -> int:
    return int(text) if text.isdigit() else 0
