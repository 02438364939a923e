# SPDX-License-Identifier: Apache-2.0
"""Return of a recovered host: nova-compute has restarted and stays healthy for a while.

Holdfast then removes the forced-down flag, enables the host and, if configured, live-migrates
its servers back. A host that was only cut off from the network may still run servers that were
moved away, so Holdfast fences it first.
"""

import logging
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from holdfast.hoststatus.status import UP, StatusReport
from holdfast.jobs.job import MARGIN_S, Kind, NotYet, Run, Step
from holdfast.model.errors import Conflict, DriverError, NotFound
from holdfast.model.host import normalise, same
from holdfast.model.incident import FAILED, HOST, Incident
from holdfast.model.incident_progress import HostProgress
from holdfast.model.operation import Operation
from holdfast.model.votes import count
from holdfast.ports.cloud import Cloud, Service
from holdfast.ports.fence import OFF
from holdfast.ports.recovery import SUCCEEDED
from holdfast.recovery import in_place
from holdfast.recovery.context import BACK, SOURCE, IncidentWork, RecoveryContext
from holdfast.recovery.fencing import READ_OFF

LOG = logging.getLogger(__name__)

#: The service of a forced-down host always shows down, so a fresh `updated_at` shows that it
#: reports. The limit exceeds the report interval (10 s) plus the difference to a foreign clock.
FRESH = timedelta(seconds=45)
LOOK_S, SEEN_DOWN_S, RARELY_S = 2.0, 5.0, 30.0
_NAMES = uuid.UUID("e3f0a3ac-8b43-4c1d-9d7c-3a3f6f5a2b10")


def work_of(incident: Incident, now: datetime) -> Operation:
    """The single work row of a host; the latest incident replaces the earlier incident."""
    host = normalise(incident.host)
    return Operation(
        id=str(uuid.uuid5(_NAMES, host)),
        kind=BACK,
        subject=f"back:{host}"[:128],
        key=f"{BACK}/{host}"[:255],
        due_at=now,
        next_try_at=now,
        payload={"incident": incident.id},
    )


class HostBack(IncidentWork[HostProgress]):
    """Work to put a returned host back into use."""

    name = BACK

    def own(self) -> Sequence[Step]:
        return (
            Step("alive", self.alive, recorded=False),
            Step("well", self.well, recorded=False),
            Step("in_place", self.in_place, recorded=False),
            Step("enable", self.enable),
            Step("servers", self.servers),
        )

    def alive(self, run: Run) -> str:
        incident, cloud = self.incident(run), self.context.guarded_cloud(run)
        self._nothing_new(incident)
        service = self._service(cloud, incident)
        if service.enabled and not service.forced_down:
            return f"{service.host} was enabled by another user"
        in_place.power_on(self, run)
        if not self.context.settings.bring_back:
            raise NotYet(f"{service.host}: an operator must enable it when it is healthy", RARELY_S)
        if incident.host_progress.cut_off and not incident.host_progress.fenced_back:
            self._switch_off_and_on(run, incident)
        now = self.context.incidents.now()
        if not self._has_spoken(run, incident, service, now):
            raise NotYet(f"{service.host} is not back", self._pause(run, now))
        if not service.forced_down:
            return f"{service.host} speaks"
        try:
            cloud.services.unforce(service.host)
        except Conflict as refused:
            self._cut_off(run, incident, refused)
        self._nothing_new(incident, lambda: cloud.services.force_down(service.host))
        return f"{service.host} is back and no longer forced down"

    def _cut_off(self, run: Run, incident: Incident, refused: Conflict) -> None:
        """Fence a host that reports but has not restarted: its old guests may still run."""
        known = incident.host_progress
        if (known.evidence and known.evidence.kind in READ_OFF) or known.fenced_back:
            raise NotYet(f"{incident.host}: {refused.message}", 5.0)
        cut = self.note(run, None, lambda one: replace(one, cut_off=True))
        self._switch_off_and_on(run, cut)

    def _switch_off_and_on(self, run: Run, incident: Incident) -> None:
        """Power-cycle the host completely, whoever began: a host left off never reports."""
        host, fence = incident.host, self.context.fence
        try:
            run.hold(fence.call_timeout_s + MARGIN_S)
            fence.off(host)
            run.hold(fence.call_timeout_s + MARGIN_S)
            if fence.power(host) != OFF:
                raise NotYet(f"{host} was only cut off: it is being fenced", 1.0)
            run.hold(fence.call_timeout_s + MARGIN_S)
            fence.on(host)
            self.note(run, None, lambda one: replace(one, fenced_back=True))
        except (NotFound, DriverError) as cannot:
            said = f"{host} was only cut off and cannot be fenced ({cannot.message})"
            raise NotYet(f"{said}: restart its nova-compute", RARELY_S) from cannot
        raise NotYet(f"{host} was only cut off: it was switched off and on again", 5.0)

    def well(self, run: Run) -> str:
        incident, cloud = self.incident(run), self.context.guarded_cloud(run)
        if incident.host_progress.well_since and self._seen_down(incident):
            self.note(run, None, _well(None))
        self._nothing_new(incident)
        service, now = self._service(cloud, incident), self.context.incidents.now()
        if service.state != "up":
            self.note(run, None, _well(None))
            raise NotYet(f"{service.host} looks down again", LOOK_S)
        since = incident.host_progress.well_since
        if since is None:
            self.note(run, None, _well(now))
            since = now
        ready = since + timedelta(seconds=self.context.settings.bring_back_after_s)
        if now < ready and not service.enabled:
            left = (ready - now).total_seconds()
            raise NotYet(f"{service.host} is well since {since:%H:%M:%S} UTC", min(left, LOOK_S))
        return f"{service.host} has been well since {since:%H:%M:%S} UTC"

    def in_place(self, run: Run) -> str:
        """Start servers on the returned host for which recovery found no room elsewhere.

        This happens once: a server that does not start waits for `incident retry`.
        """
        incident = self.incident(run)
        before = incident.host_progress.reopened_at
        if incident.kind != HOST or incident.status != FAILED or before:
            return "no server waits here"
        said = f"{incident.host} is back: the servers that found no room elsewhere start in place"
        if self.context.incidents.reopen_in_place(incident.id, said, run.claim) is None:
            return "no server waits here"
        self.context.wake()
        return said

    def enable(self, run: Run) -> str:
        incident, context = self.incident(run), self.context
        self._nothing_new(incident)
        services = context.guarded_cloud(run).services
        services.enable(incident.host)
        reason = f"{context.settings.disable_reason}, again"
        self._nothing_new(incident, lambda: services.disable(incident.host, reason))
        member = context.incidents.member(incident.host)
        if member is not None:
            context.incidents.set_member(member.uuid, run.claim, on_maintenance=False)
        said = f"incident {incident.id} is over"
        at = context.incidents.now()
        context.see(
            [StatusReport(host=incident.host, source=SOURCE, verdict=UP, at=at, reason=said)]
        )
        self.note(run, None, lambda one: replace(one, back_at=at))
        return f"{incident.host} is enabled again"

    def servers(self, run: Run) -> str:
        """Live-migrate running servers without a reservation back to the host."""
        if not self.context.settings.move_back:
            return "its servers stay where they are"
        incident, cloud = self.incident(run), self.context.guarded_cloud(run)
        since = incident.host_progress.back_at
        late = since is not None and self.context.incidents.now() > since + timedelta(
            seconds=self.context.settings.move_give_up_s
        )
        back = under_way = 0
        for server_move in self.context.moves.of(incident.id):
            if server_move.status != SUCCEEDED or server_move.reservation:
                continue
            try:
                server = cloud.servers.show(server_move.server_id)
            except NotFound:
                continue
            if same(server.host or "", incident.host):
                back += 1
            elif server.task_state:
                under_way += 1
            elif (
                server.status == "ACTIVE" and under_way < self.context.settings.parallel_per_target
            ):
                try:
                    cloud.moves.live_migrate(server.id, incident.host)
                    under_way += 1
                except Conflict as refused:
                    LOG.warning("server %s does not go back: %s", server.id, refused.message)
        if under_way and not late:  # a server that has not moved by then stays
            raise NotYet(f"{back} servers are back, {under_way} on their way", LOOK_S)
        return f"{back} servers are back"

    def _nothing_new(self, incident: Incident, undo: Callable[[], None] | None = None) -> None:
        """Raise NotYet if the host failed again or monitors see it down; call `undo` first.

        A new failure has its own incident, and a host that monitors see down is not back.
        `undo` reverts the call just made for the old incident.
        """
        why, pause = "", RARELY_S
        if self.context.incidents.open_about(f"host:{normalise(incident.host)}"):
            why = f"{incident.host} has failed again"
        elif down := self._seen_down(incident):
            why, pause = down, SEEN_DOWN_S
        if why:
            if undo is not None:
                undo()
            raise NotYet(why, pause)

    def _seen_down(self, incident: Incident) -> str:
        """Describe the votes against the host, unless most monitors see it healthy."""
        votes = count(self.context.votes.ballot(incident.host), self.context.settings.host_votes)
        return votes.sentence() if votes.is_down else ""

    def _service(self, cloud: Cloud, incident: Incident) -> Service:
        for service in cloud.services.list():
            if same(service.host, incident.host):
                return service
        raise NotYet(f"the cloud knows no {incident.host} any more", 300.0)

    def _has_spoken(self, run: Run, incident: Incident, service: Service, now: datetime) -> bool:
        """Whether nova-compute has reported since the first check.

        Nova shows a service up for a while after its last report, dead or not.
        """
        if service.updated_at is None:
            return service.state == "up"
        word = service.updated_at.isoformat()
        first = incident.host_progress.last_word
        if first is None:
            self.note(run, None, lambda one: replace(one, last_word=word))
        return first not in (None, word) and abs(now - service.updated_at) < FRESH

    def _pause(self, run: Run, now: datetime) -> float:
        age = (now - run.operation.due_at).total_seconds()
        return min(max(LOOK_S, age / 20), RARELY_S)

    def give_up_at(self, operation: Operation) -> datetime | None:
        return None

    def failed(self, run: Run, why: str) -> None:
        LOG.error("%s: %s", run.operation.key, why)


def _well(since: datetime | None) -> Callable[[HostProgress], HostProgress]:
    return lambda one: replace(one, well_since=since)


def kinds(context: RecoveryContext) -> dict[str, Kind]:
    return {BACK: HostBack(context)}
