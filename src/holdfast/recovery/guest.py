# SPDX-License-Identifier: Apache-2.0
"""Recovery of a dead guest: restart on its host; if this fails, shelve and unshelve elsewhere.

A crash before Holdfast restarts the guest belongs to this incident; a crash after the restart
belongs to a new incident, however long Nova still shows ACTIVE. Therefore `verified_at` is not
the time of the check. It is the last moment at which the guest cannot have run yet: just before
the call that starts it.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import NamedTuple

from holdfast.jobs.job import Kind, NotYet, Run, Step
from holdfast.model.errors import Conflict, NotFound
from holdfast.model.host import same
from holdfast.model.incident import FAILED, IGNORED, RECOVERED, Incident, Verdict
from holdfast.model.incident_progress import GuestProgress
from holdfast.model.operation import Skipped
from holdfast.ports.cloud import Cloud, Server
from holdfast.ports.recovery import Change
from holdfast.recovery import guards
from holdfast.recovery.context import OVER, RECOVER_GUEST, RESIZED, Recovery, RecoveryContext
from holdfast.recovery.evacuation import owning
from holdfast.recovery.guards import LEAVE_IT, View

LOOK_S = 0.4
SHELVED = ("SHELVED", "SHELVED_OFFLOADED")


class _Phase(NamedTuple):
    """A phase with a time limit: how to read and to write the limit."""

    get: Callable[[GuestProgress], datetime | None]
    set: Callable[[GuestProgress, datetime], GuestProgress]


_STOP = _Phase(
    lambda progress: progress.stop_by, lambda progress, at: replace(progress, stop_by=at)
)
_START = _Phase(
    lambda progress: progress.start_by, lambda progress, at: replace(progress, start_by=at)
)
_MOVE = _Phase(
    lambda progress: progress.elsewhere_by, lambda progress, at: replace(progress, elsewhere_by=at)
)


class GuestRecovery(Recovery[GuestProgress]):
    """Recovery of a guest."""

    name = RECOVER_GUEST

    def own(self) -> Sequence[Step]:
        return (
            Step("guards", self.guards),
            Step("stop", self.stop),
            Step("start", self.start),
            Step("confirm", self.confirm),
            Step("elsewhere", self.elsewhere),
            Step("report", self.report),
        )

    def view(self, run: Run, incident: Incident) -> View:
        self.look_back_s = (
            2 * self.context.settings.guest_window_s
        )  # the budget refills within this time
        server = self._server(run)
        if server is not None:
            name = server.name
            incident = self.note(run, None, lambda progress: replace(progress, server_name=name))
        cloud, key = self.context.guarded_cloud(run), self.context.settings.ha_key
        return replace(
            super().view(run, incident),
            server=server,
            gone=server is None,
            well=self._well(incident, server),
            ha_settings=guards.read(cloud, [server], key) if server is not None else None,
        )

    def would(self, run: Run) -> str:
        return f"{self.incident(run).subject} would be restarted"

    def begin(self, run: Run, incident: Incident, view: View, verdicts: Sequence[Verdict]) -> str:
        """Start the recovery; a guest with too many crashes on its host moves elsewhere."""
        sentence = super().begin(run, incident, view, verdicts)
        self.note(
            run, None, lambda progress: replace(progress, down_at=None)
        )  # left over from an earlier try
        settings = self.context.settings
        since = view.now - timedelta(seconds=settings.guest_window_s)
        times = sum(when > since for when in view.situation.before)
        if not settings.guest_restarts_in_place or times < settings.guest_restarts_in_place:
            return sentence
        return self._gave_up(run, f"it died {times + 1} times within {settings.guest_window_s:g} s")

    # in place

    def stop(self, run: Run) -> str:
        if (sentence := self._skip(run)) is not None:
            return sentence
        server, incident = self._server(run), self.incident(run)
        if server is None:
            return "it was deleted meanwhile"
        if not incident.guest_progress.stop_by and (well := self._well(incident, server)):
            # Nova may have been unavailable since the guards ran
            return self.close(run, Change(IGNORED, f"{well}: {LEAVE_IT}"))
        if server.status == "ACTIVE" and not same(server.host or incident.host, incident.host):
            moved = f"the server was moved to {server.host} meanwhile, and runs there"
            return self.close(run, Change(IGNORED, f"{moved}: {LEAVE_IT}"))
        if server.status == "SHUTOFF" and not server.task_state:
            return "it is stopped"
        if self._late(run, _STOP, self.context.settings.stop_timeout_s):
            return self._gave_up(run, f"it could not be stopped: {_state(server)}")
        if server.status == RESIZED and not server.task_state:
            # Nova stops only servers that count as running; the user's choice of flavor stays.
            self.context.guarded_cloud(run).servers.reset(server.id, active=True)
        elif not server.task_state:
            self._try(lambda: self.context.guarded_cloud(run).servers.stop(server.id))
        raise NotYet(f"{server.name} is being stopped: {_state(server)}", LOOK_S)

    def start(self, run: Run) -> str:
        if (sentence := self._skip(run)) is not None:
            return sentence
        if self.incident(run).verified_at:
            return "it was started"  # if it is off by now it died again: a new incident starts it
        server = self._server(run)
        if server is None:
            return "it was deleted meanwhile"
        if server.status == "ACTIVE":
            self._note_running(run)
            return "it was started"
        if self._late(run, _START, self.context.settings.start_timeout_s):
            return self._gave_up(run, f"it could not be started: {_state(server)}")
        if not server.task_state:
            now = self.context.incidents.now()
            self.note(run, None, lambda progress: replace(progress, down_at=now))
            self._try(lambda: self.context.guarded_cloud(run).servers.start(server.id))
        raise NotYet(f"{server.name} is being started: {_state(server)}", LOOK_S)

    def confirm(self, run: Run) -> str:
        if (sentence := self._skip(run)) is not None:
            return sentence
        server = self._server(run)
        if server is None:
            return "it was deleted meanwhile"
        if server.status == "ACTIVE":
            self._note_running(run)
            self.note(run, None, lambda progress: replace(progress, ended_again=""))
            return f"it runs on {server.host}"
        state = _state(server)
        self.note(run, None, lambda progress: replace(progress, ended_again=state))
        return f"it ran again, and is {_state(server)} since"

    # elsewhere

    def elsewhere(self, run: Run) -> str:
        """Shelve the server and unshelve the server on another host.

        A server of a reservation stays on the hosts of its reservation.
        """
        incident = self.incident(run)
        why = incident.guest_progress.in_place
        if not incident.is_open or not why:
            return Skipped("not needed")
        server = self._server(run)
        if server is None:
            return "it was deleted meanwhile"
        cloud = self.context.guarded_cloud(run)
        if self._late(run, _MOVE, self.context.settings.move_timeout_s):
            sentence = f"{why}; elsewhere neither: {_state(server)}"
            self.note(run, sentence, lambda progress: replace(progress, elsewhere="failed"))
            return sentence
        if server.task_state:
            raise NotYet(f"{server.name} is {server.task_state}", LOOK_S)
        if server.status == "ACTIVE" and incident.guest_progress.tried_hosts:
            self._note_running(run, elsewhere=server.host or "")
            return f"it runs on {server.host}"
        if server.status not in SHELVED:
            self._try(lambda: cloud.servers.shelve(server.id))
            raise NotYet(f"{server.name} is being shelved", LOOK_S)
        self._unshelve(run, cloud, server)
        raise NotYet(f"{server.name} is brought up elsewhere", LOOK_S)

    def _unshelve(self, run: Run, cloud: Cloud, server: Server) -> None:
        incident = self.incident(run)
        tried = incident.guest_progress.tried_hosts
        for host in (*self._others(cloud, incident, server), None):
            if host in tried:
                continue
            self.note(run, None, _tried((*tried, host), self.context.incidents.now()))
            self._try(functools.partial(cloud.servers.unshelve, server.id, host))
            return
        # start over: a host may have room now
        self.note(run, None, lambda progress: replace(progress, tried_hosts=(None,)))

    def _others(self, cloud: Cloud, incident: Incident, server: Server) -> list[str]:
        owners = owning(cloud.pools.list(), incident.host)
        if (reservation := owners.get(server.project_id)) is not None:
            hosts = self.context.incidents.hosts_of(reservation)
            return [host for host in hosts if not same(host, incident.host)]
        up = [
            service.host
            for service in cloud.services.list()
            if service.state == "up" and service.enabled
        ]
        return [
            segment_host.name
            for segment_host in self.context.incidents.members(incident.segment)
            if not segment_host.reserved
            and not segment_host.on_maintenance
            and not same(segment_host.name, incident.host)
            and any(same(segment_host.name, host) for host in up)
        ]

    def report(self, run: Run) -> str:
        incident = self.incident(run)
        if self.is_over(run):
            return incident.sentence
        progress = incident.guest_progress
        ok = bool(incident.verified_at) and progress.elsewhere != "failed"
        gone = self._server(run) is None
        if gone:
            change = Change(IGNORED, "the server was deleted meanwhile")
        elif ok:
            change = Change(RECOVERED, _recovered(progress))
        else:
            sentence = f"{progress.in_place or 'it does not run'}: an operator must look"
            change = Change(FAILED, sentence)
        return self.close(run, change)

    # helpers

    def _skip(self, run: Run) -> str | None:
        incident = self.incident(run)
        if not incident.is_open:
            return OVER
        return "in place it failed" if incident.guest_progress.in_place else None

    def _well(self, incident: Incident, server: Server | None) -> str:
        """Name the source which sees the guest run before Holdfast acted; empty if none."""
        if server is not None and _lives(server) and _died(incident):
            return f"the cloud sees it run on {server.host}"
        where = (server.host if server is not None else "") or ""
        return self.context.incidents.guest_recovered_since(
            incident.subject, where, incident_id=incident.id
        )

    def _note_running(self, run: Run, elsewhere: str = "") -> None:
        """Record that the guest runs, on another host if `elsewhere` names one.

        `verified_at` is the last moment at which the guest is known not to have run: the guest
        started at some time after it. `ran_again_at` is when the guest was first seen running
        again, for people; decisions use `verified_at`.
        """
        now = self.context.incidents.now()

        def runs(progress: GuestProgress) -> GuestProgress:
            before = max((at for at in (progress.started_at, progress.down_at) if at), default=now)
            return replace(
                progress,
                verified_at=progress.verified_at or before,
                ran_again_at=progress.ran_again_at or now,
                elsewhere=elsewhere or progress.elsewhere,
            )

        self.note(run, None, runs)

    def _gave_up(self, run: Run, why: str) -> str:
        self.note(run, why, lambda progress: replace(progress, in_place=why))
        return why

    def _server(self, run: Run) -> Server | None:
        try:
            return self.context.guarded_cloud(run).servers.show(self.incident(run).server_id)
        except NotFound:
            return None

    def _late(self, run: Run, phase: "_Phase", seconds: float) -> bool:
        """Whether the time limit of this phase is over; the limit starts with the first call."""
        now, by = self.context.incidents.now(), phase.get(self.incident(run).guest_progress)
        if by is None:
            ends = now + timedelta(seconds=seconds)
            self.note(run, None, lambda progress: phase.set(progress, ends))
            return False
        return now >= by

    def _try(self, act: Callable[[], None]) -> None:
        """Call Nova and ignore Conflict: Nova refuses an unfit state, and the next poll decides."""
        try:
            act()
        except Conflict:
            return


def _lives(server: Server) -> bool:
    """Whether the server runs, by live data: Nova shows ACTIVE for a while after a guest died."""
    return server.live and server.powered and server.status == "ACTIVE" and not server.task_state


def _died(incident: Incident) -> bool:
    """Whether the guest is off for sure, unless started again: its agent saw the stop.

    A guest that hangs appears as running all the time.
    """
    observed = incident.progress.observed
    return observed.get("event") == "stopped" and not observed.get("simulated")


def _recovered(progress: GuestProgress) -> str:
    if progress.elsewhere:
        return f"it runs on {progress.elsewhere}, after {progress.in_place}"
    if progress.ended_again:
        return f"it ran again, and is {progress.ended_again} since: whoever saw it die says so anew"
    return "it runs again"


def _tried(
    hosts: tuple[str | None, ...], now: datetime
) -> Callable[[GuestProgress], GuestProgress]:
    return lambda progress: replace(progress, tried_hosts=hosts, down_at=now)


def _state(server: Server) -> str:
    return f"{server.status} {server.task_state}" if server.task_state else server.status


def kinds(context: RecoveryContext) -> dict[str, Kind]:
    return {RECOVER_GUEST: GuestRecovery(context)}
