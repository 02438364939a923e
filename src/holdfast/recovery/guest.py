# SPDX-License-Identifier: Apache-2.0
"""Recovery of a dead guest: restart on its host; if this fails, shelve and unshelve elsewhere.

A crash before Holdfast restarts the guest belongs to this incident; a crash after the restart
belongs to a new incident, however long Nova still shows ACTIVE. Therefore `verified_at` is not
the time of the check. It is the last moment at which the guest cannot have run yet: just before
the call that starts it.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from holdfast.jobs.job import Kind, NotYet, Run, Step
from holdfast.model.errors import Conflict, NotFound
from holdfast.model.host import same
from holdfast.model.incident import FAILED, IGNORED, RECOVERED, Incident, Verdict
from holdfast.model.operation import Skipped
from holdfast.ports.cloud import Cloud, Server
from holdfast.ports.recovery import Change
from holdfast.recovery import evacuation_plan, guards
from holdfast.recovery.base import Recovery
from holdfast.recovery.context import OVER, RECOVER_GUEST, RecoveryContext
from holdfast.recovery.guards import LEAVE_IT, View

LOOK_S = 0.4
SHELVED = ("SHELVED", "SHELVED_OFFLOADED")


class GuestRecovery(Recovery):
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
            incident = self.note(run, None, server_name=server.name)
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
        said = super().begin(run, incident, view, verdicts)
        self.note(run, None, down_at=None)  # left over from an earlier try
        settings = self.context.settings
        since = view.now - timedelta(seconds=settings.guest_window_s)
        times = sum(when > since for when in view.situation.before)
        if not settings.guest_restarts_in_place or times < settings.guest_restarts_in_place:
            return said
        return self._gave_up(run, f"it died {times + 1} times within {settings.guest_window_s:g} s")

    # in place

    def stop(self, run: Run) -> str:
        if (said := self._skip(run)) is not None:
            return said
        server, incident = self._server(run), self.incident(run)
        if server is None:
            return "it was deleted meanwhile"
        if not incident.details.get("stop_by") and (well := self._well(incident, server)):
            # Nova may have been unavailable since the guards ran
            return self.close(run, Change(IGNORED, f"{well}: {LEAVE_IT}"))
        if server.status == "ACTIVE" and not same(server.host or incident.host, incident.host):
            moved = f"the server was moved to {server.host} meanwhile, and runs there"
            return self.close(run, Change(IGNORED, f"{moved}: {LEAVE_IT}"))
        if server.status == "SHUTOFF" and not server.task_state:
            return "it is stopped"
        if self._late(run, "stop_by", self.context.settings.stop_timeout_s):
            return self._gave_up(run, f"it could not be stopped: {_state(server)}")
        if server.status == evacuation_plan.RESIZED and not server.task_state:
            # Nova stops only servers that count as running; the user's choice of flavor stays.
            self.context.guarded_cloud(run).servers.reset(server.id, active=True)
        elif not server.task_state:
            self._try(lambda: self.context.guarded_cloud(run).servers.stop(server.id))
        raise NotYet(f"{server.name} is being stopped: {_state(server)}", LOOK_S)

    def start(self, run: Run) -> str:
        if (said := self._skip(run)) is not None:
            return said
        if self.incident(run).verified_at:
            return "it was started"  # if it is off by now it died again: a new incident starts it
        server = self._server(run)
        if server is None:
            return "it was deleted meanwhile"
        if server.status == "ACTIVE":
            self.note(run, None, verified_at=self._runs_since(run), ran_again_at=self._ran(run))
            return "it was started"
        if self._late(run, "start_by", self.context.settings.start_timeout_s):
            return self._gave_up(run, f"it could not be started: {_state(server)}")
        if not server.task_state:
            self.note(run, None, down_at=self.context.incidents.now().isoformat())
            self._try(lambda: self.context.guarded_cloud(run).servers.start(server.id))
        raise NotYet(f"{server.name} is being started: {_state(server)}", LOOK_S)

    def confirm(self, run: Run) -> str:
        if (said := self._skip(run)) is not None:
            return said
        server = self._server(run)
        if server is None:
            return "it was deleted meanwhile"
        if server.status == "ACTIVE":
            self.note(run, None, verified_at=self._runs_since(run), ran_again_at=self._ran(run))
            self.note(run, None, ended_again=None)
            return f"it runs on {server.host}"
        self.note(run, None, ended_again=_state(server))
        return f"it ran again, and is {_state(server)} since"

    # elsewhere

    def elsewhere(self, run: Run) -> str:
        """Shelve the server and unshelve the server on another host.

        A server of a reservation stays on the hosts of its reservation.
        """
        incident = self.incident(run)
        why = incident.details.get("in_place")
        if not incident.is_open or not why:
            return Skipped("not needed")
        server = self._server(run)
        if server is None:
            return "it was deleted meanwhile"
        cloud = self.context.guarded_cloud(run)
        if self._late(run, "elsewhere_by", self.context.settings.move_timeout_s):
            said = f"{why}; elsewhere neither: {_state(server)}"
            self.note(run, said, elsewhere="failed")
            return said
        if server.task_state:
            raise NotYet(f"{server.name} is {server.task_state}", LOOK_S)
        if server.status == "ACTIVE" and incident.details.get("tried_hosts"):
            since, ran = self._runs_since(run), self._ran(run)
            self.note(run, None, elsewhere=server.host, verified_at=since, ran_again_at=ran)
            return f"it runs on {server.host}"
        if server.status not in SHELVED:
            self._try(lambda: cloud.servers.shelve(server.id))
            raise NotYet(f"{server.name} is being shelved", LOOK_S)
        self._unshelve(run, cloud, server)
        raise NotYet(f"{server.name} is brought up elsewhere", LOOK_S)

    def _unshelve(self, run: Run, cloud: Cloud, server: Server) -> None:
        incident = self.incident(run)
        tried = list(incident.details.get("tried_hosts", ()))
        for host in (*self._others(cloud, incident, server), None):
            if host in tried:
                continue
            down_at = self.context.incidents.now().isoformat()
            self.note(run, None, tried_hosts=[*tried, host], down_at=down_at)
            self._try(functools.partial(cloud.servers.unshelve, server.id, host))
            return
        self.note(run, None, tried_hosts=[None])  # start over: a host may have room now

    def _others(self, cloud: Cloud, incident: Incident, server: Server) -> list[str]:
        owners = evacuation_plan.owning(cloud.pools.list(), incident.host)
        if (reservation := owners.get(server.project_id)) is not None:
            hosts = self.context.incidents.hosts_of(reservation)
            return [host for host in hosts if not same(host, incident.host)]
        up = [one.host for one in cloud.services.list() if one.state == "up" and one.enabled]
        return [
            one.name
            for one in self.context.incidents.members(incident.segment)
            if not one.reserved
            and not one.on_maintenance
            and not same(one.name, incident.host)
            and any(same(one.name, host) for host in up)
        ]

    def report(self, run: Run) -> str:
        incident = self.incident(run)
        if self.is_over(run):
            return incident.sentence
        details = incident.details
        ok = bool(incident.verified_at) and details.get("elsewhere") != "failed"
        gone = self._server(run) is None
        if gone:
            change = Change(IGNORED, "the server was deleted meanwhile")
        elif ok:
            change = Change(RECOVERED, _recovered(details))
        else:
            said = f"{details.get('in_place') or 'it does not run'}: somebody has to look"
            change = Change(FAILED, said)
        return self.close(run, change)

    # helpers

    def _skip(self, run: Run) -> str | None:
        incident = self.incident(run)
        if not incident.is_open:
            return OVER
        return "in place it failed" if incident.details.get("in_place") else None

    def _well(self, incident: Incident, server: Server | None) -> str:
        """Name the source which sees the guest run before Holdfast acted; empty if none."""
        if server is not None and _lives(server) and _died(incident):
            return f"the cloud sees it run on {server.host}"
        where = (server.host if server is not None else "") or ""
        return self.context.incidents.guest_recovered_since(
            incident.subject, where, incident_id=incident.id
        )

    def _runs_since(self, run: Run) -> str:
        """The last moment at which the guest is known not to have run.

        The guest started at some time after it.
        """
        details = self.incident(run).details
        known = [details[name] for name in ("started_at", "down_at") if details.get(name)]
        before = max(map(datetime.fromisoformat, known), default=self.context.incidents.now())
        return str(details.get("verified_at") or before.isoformat())

    def _ran(self, run: Run) -> str:
        """When the guest was first seen running again, for people.

        Decisions use `verified_at`.
        """
        known = self.incident(run).details.get("ran_again_at")
        return str(known or self.context.incidents.now().isoformat())

    def _gave_up(self, run: Run, why: str) -> str:
        self.note(run, why, in_place=why)
        return why

    def _server(self, run: Run) -> Server | None:
        try:
            return self.context.guarded_cloud(run).servers.show(self.incident(run).server_id)
        except NotFound:
            return None

    def _late(self, run: Run, name: str, seconds: float) -> bool:
        """Whether the time limit of this phase is over; the limit starts with the first call."""
        now, by = self.context.incidents.now(), self.incident(run).details.get(name)
        if by is None:
            begun = Change(details={name: (now + timedelta(seconds=seconds)).isoformat()})
            incident = self.incident(run)
            run.memo["incident"] = self.context.incidents.change(incident.id, begun, run.claim)
            return False
        return now >= datetime.fromisoformat(by)

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
    seen = incident.details.get("observed") or {}
    return seen.get("event") == "stopped" and not seen.get("simulated")


def _recovered(details: Mapping[str, Any]) -> str:
    if where := details.get("elsewhere"):
        return f"it runs on {where}, after {details['in_place']}"
    if state := details.get("ended_again"):
        return f"it ran again, and is {state} since: whoever saw it die says so anew"
    return "it runs again"


def _state(server: Server) -> str:
    return f"{server.status} {server.task_state}" if server.task_state else server.status


def kinds(context: RecoveryContext) -> dict[str, Kind]:
    return {RECOVER_GUEST: GuestRecovery(context)}
