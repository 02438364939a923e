# SPDX-License-Identifier: Apache-2.0
"""nova-compute died and its host did not: the host takes no new servers until it is back."""

from collections.abc import Sequence
from dataclasses import replace

from holdfast.heal import back
from holdfast.heal.desk import RECOVER_PROCESS, Desk
from holdfast.heal.guards import View
from holdfast.heal.recovery import Recovery
from holdfast.model.errors import NotFound
from holdfast.model.host import same
from holdfast.model.incident import RECOVERED, Incident
from holdfast.model.liveness import Judgement, judge
from holdfast.ports.recovery import Change
from holdfast.work.kind import Kind, NotYet, Run, Step


class ProcessRecovery(Recovery):
    name = RECOVER_PROCESS

    def own(self) -> Sequence[Step]:
        return (
            Step("guards", self.guards),
            Step("disable", self.disable),
            Step("confirm", self.confirm),
            Step("report", self.report),
        )

    def view(self, run: Run, incident: Incident) -> View:
        return replace(super().view(run, incident), liveness=self._withdrawn(incident))

    def _withdrawn(self, incident: Incident) -> Judgement | None:
        """That everybody who reported it says that it runs again."""
        told = self.desk.incidents.failure_reports(incident)
        return judge(told, (), self.desk.incidents.now()) if told else None

    def would(self, run: Run) -> str:
        return f"{self.incident(run).host} would be disabled"

    def disable(self, run: Run) -> str:
        incident, desk = self.incident(run), self.desk
        if self.is_over(run):
            return "over"
        member = desk.incidents.member(incident.host)
        if member is not None:
            desk.incidents.set_member(member.uuid, run.claim, on_maintenance=True)
        reason = f"{desk.settings.disable_reason} ({incident.id})"
        try:
            desk.hands(run).services.disable(incident.host, reason)
        except NotFound as gone:
            return f"Nova does not know it: {gone.message}"
        return f"{incident.host} is disabled"

    def confirm(self, run: Run) -> str:
        incident = self.incident(run)
        if self.is_over(run):
            return "over"
        for one in self.desk.hands(run).services.list():
            if same(one.host, incident.host) and one.enabled:
                raise NotYet(f"{incident.host} is not disabled yet", 1.0)
        self.note(run, None, verified_at=self.desk.incidents.now().isoformat())
        return f"{incident.host} takes no new servers"

    def report(self, run: Run) -> str:
        incident, desk = self.incident(run), self.desk
        if self.is_over(run):
            return incident.sentence
        said = f"{incident.cause}: the host takes no new servers until it is back"
        then = back.work_of(incident, desk.incidents.now())
        return self.close(run, Change(RECOVERED, said), then)


def kinds(desk: Desk) -> dict[str, Kind]:
    return {RECOVER_PROCESS: ProcessRecovery(desk)}
