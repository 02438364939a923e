# SPDX-License-Identifier: Apache-2.0
"""What every kind of recovery work has at hand."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

from holdfast.model.incident import Incident
from holdfast.model.operation import Operation
from holdfast.model.standing import Sighting
from holdfast.nova.names import FREEPOOL
from holdfast.ports.clock import Clock, SystemClock
from holdfast.ports.cloud import Cloud
from holdfast.ports.fence import Fence
from holdfast.ports.recovery import Change, Incidents, Limits, ServerMoves
from holdfast.ports.votes import Votes
from holdfast.work.guarded import guarded
from holdfast.work.kind import Run, Step

LOG = logging.getLogger(__name__)

#: Kinds of work.
INTAKE, RECOVER_HOST, RECOVER_GUEST, RECOVER_PROCESS, MOVE, BACK = (
    "notification",
    "recovery_host",
    "recovery_guest",
    "recovery_process",
    "server_move",
    "host_back",
)
#: Our locks of servers are known by how their reason begins.
LOCK = "Holdfast moves it: incident"
#: Which source says so, where recovery knows that a host is dead or back.
SOURCE = "recovery"


class Settings(Protocol):
    """[recovery], read anew each time."""

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
    guest_budget: int
    guest_window_s: float
    guest_restarts_here: int
    host_budget: int
    host_window_s: float
    slow_start_s: float
    slow_burst: int
    slower_start_s: float
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
    """A step that a site adds by an entry point of `holdfast.recovery_steps`: mail, ticket,
    billing. Called again after a crash, so it looks before it acts; what it raises is tried
    again."""

    def __call__(self, incident: Incident, cloud: Cloud) -> str: ...


Announce = Callable[[str, Incident, datetime], Sequence[Operation]]


@dataclass(frozen=True)
class Desk:
    incidents: Incidents
    moves: ServerMoves
    votes: Votes
    cloud: Cloud
    fence: Fence
    settings: Settings
    new_id: Callable[[], str]
    see: Callable[[Sequence[Sighting]], object]
    clock: Clock = field(default_factory=SystemClock)
    own_steps: Mapping[str, OwnStep] = field(default_factory=dict)
    ring: Callable[[], None] = lambda: None
    announce: Announce = lambda _event, _incident, _now: ()  # the work that tells people of it
    freepool: str = FREEPOOL
    repairs: Callable[[], bool] = lambda: True  # whether reservations are repaired here
    mass_failure: Callable[[], "tuple[int, float, float]"] = lambda: (2, 0.30, 0.55)

    def hands(self, run: Run) -> Cloud:
        return guarded(self.cloud, run.hold)

    def limits(self) -> Limits:
        return Limits(self.settings.parallel_moves, self.settings.parallel_per_target)


class IncidentWork:
    """Common to all recoveries: find the incident, write down what is new of it."""

    name = ""
    stubborn = True

    def __init__(self, desk: Desk) -> None:
        self.desk = desk

    def incident(self, run: Run) -> Incident:
        if "incident" not in run.memo:
            run.memo["incident"] = self.desk.incidents.incident(run.operation.payload["incident"])
        found: Incident = run.memo["incident"]
        return found

    def note(
        self,
        run: Run,
        sentence: str | None = None,
        told: Sequence[Operation] = (),
        **details: object,
    ) -> Incident:
        """Write down what is new, and with it who is told; nothing if nothing is."""
        old = self.incident(run)
        same = sentence in (None, old.sentence)
        if same and all(old.details.get(name) == value for name, value in details.items()):
            return old
        change = Change(sentence=sentence, details=details)
        run.memo["incident"] = self.desk.incidents.change(old.id, change, run.claim, told)
        found: Incident = run.memo["incident"]
        return found

    def own(self) -> Sequence[Step]:
        """Our steps, without those of the site."""
        raise NotImplementedError

    def steps(self) -> Sequence[Step]:
        return with_own(self.own(), self.desk, self.incident)

    def give_up_at(self, operation: Operation) -> datetime | None:
        return operation.due_at + timedelta(seconds=self.desk.settings.give_up_s)


def with_own(
    steps: Sequence[Step], desk: Desk, incident: Callable[[Run], Incident]
) -> Sequence[Step]:
    """These steps with those that the site wants before, after or instead of them."""
    settings = desk.settings

    def named(name: str, where: str) -> Step | None:
        wanted = getattr(settings, where).get(name)
        if wanted is None:
            return None
        if wanted not in desk.own_steps:
            LOG.error("[recovery] %s: there is no step %r installed; left out", where, wanted)
            return None
        act = desk.own_steps[wanted]

        def run(run_: Run) -> str:
            return str(act(incident(run_), desk.hands(run_)))

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
