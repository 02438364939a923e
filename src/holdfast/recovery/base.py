# SPDX-License-Identifier: Apache-2.0
"""Base class of host, guest and process recovery: guards first, then hold, start or close."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from holdfast.jobs.job import NotYet, Run
from holdfast.model.incident import FAILED, HELD, IGNORED, RUNNING, Incident, Verdict
from holdfast.model.incident_progress import P, Progress
from holdfast.model.operation import Operation
from holdfast.ports.recovery import Change
from holdfast.recovery.context import IncidentWork
from holdfast.recovery.guards import STILL_DOWN, View, first_denial, judge

#: Operators are notified of a contradicted failure after this many seconds.
TOLD_AFTER_S = 60.0
#: A held incident evaluates its guards again later by this many seconds per host that is down.
CROWD_S = 0.05


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
            down = sum(one.down for one in view.situation.fleet)
            # Hundreds of held incidents must not keep the manager and the cloud busy.
            raise NotYet(no.sentence, max(no.again_s, down * CROWD_S))
        if no is not None:
            status = FAILED if no.guard == "budget" else IGNORED
            return self.close(run, Change(status, no.sentence, verdicts=verdicts))
        if self.context.settings.dry_run:
            said = f"dry run: {self.would(run)}"
            return self.close(run, Change(IGNORED, said, _dry_run, verdicts))
        return self.begin(run, incident, view, verdicts)

    def _hold(self, run: Run, incident: Incident, change: Change, no: Verdict) -> None:
        """Set the incident to held and notify people once, not at every repeated denial.

        People hear of a contradicted failure only after TOLD_AFTER_S seconds, because most
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
        waits = no.guard == STILL_DOWN and now < held_since + timedelta(seconds=TOLD_AFTER_S)
        was_told = incident.status == HELD and incident.progress.held_told
        if not waits and not was_told:
            operations = tuple(context.announce("incident.held", held, now))
        is_told = bool(was_told or operations or not waits)

        def edit(one: Progress) -> Progress:
            return replace(one, held_since=held_since, held_told=is_told)

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
        said = "all guards say yes"
        change = Change(RUNNING, said, started(view.now), verdicts)
        run.memo["incident"] = self.context.incidents.change(incident.id, change, run.claim)
        return said

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
    return lambda one: replace(one, started_at=at)


def _dry_run(one: Progress) -> Progress:
    return replace(one, dry_run=True)
