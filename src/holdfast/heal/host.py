# SPDX-License-Identifier: Apache-2.0
"""A dead host: fence it, tell Nova, let its reservations have other hosts, move its servers, look
whether all is well, report."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from holdfast.heal import back, plan
from holdfast.heal.desk import RECOVER_HOST, SOURCE, Desk
from holdfast.heal.evidence import Fencing, foreseen
from holdfast.heal.guards import View
from holdfast.heal.moves import work_of
from holdfast.heal.recovery import Recovery
from holdfast.model.errors import NotFound
from holdfast.model.host import same
from holdfast.model.incident import FAILED, RECOVERED, RUNNING, Incident, Verdict
from holdfast.model.segment import AUTO
from holdfast.model.standing import DOWN, Sighting
from holdfast.model.votes import count
from holdfast.ports.cloud import Service
from holdfast.ports.recovery import FAILED as MOVE_FAILED
from holdfast.ports.recovery import IGNORED as STAYED
from holdfast.ports.recovery import ONGOING, PENDING, SUCCEEDED, Change, ServerMove
from holdfast.work.kind import Kind, NotYet, Run, Step

#: How often it is looked whether moves have ended, or repair has been at the reservations.
LOOK_S, IDLE_S, REPAIR_LOOK_S = 0.5, 2.0, 0.1


class HostRecovery(Recovery):
    name = RECOVER_HOST

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self._fencing = Fencing(desk, self)

    def own(self) -> Sequence[Step]:
        return (
            Step("guards", self.guards),
            Step("fence", self._fencing),
            Step("tell", self.tell),
            Step("repair", self.repair),
            Step("prepare", self.prepare),
            Step("move", self.move),
            Step("verify", self.verify),
            Step("report", self.report),
        )

    # may it be

    def view(self, run: Run, incident: Incident) -> View:
        desk, settings = self.desk, self.desk.settings
        self.look_back_s = max(settings.host_window_s, settings.slower_start_s * 2)
        self._note_what_ran(run, incident)
        seen = super().view(run, incident)
        services = desk.hands(run).services.list()
        member = seen.situation.member
        spares: list[str] = []
        if member is not None and member.segment.recovery_method != AUTO:
            members = desk.incidents.members(incident.segment)
            spares = [one.name for one in members if one.reserved]
        return replace(
            seen,
            services=len(services),
            services_up=sum(one.state == "up" for one in services),
            targets=_targets(services, incident.host, spares),
            evidence=foreseen(desk, incident, member, seen.now),
            well=self._well_again(incident),
        )

    def _well_again(self, incident: Incident) -> str:
        """Who says so, where only monitors said that it died, and most of them do not any more."""
        details, desk = incident.details, self.desk
        others = ("report", "retried_at", "confirmed_off")
        if not details.get("seen") or any(details.get(name) for name in others):
            return ""
        votes = count(desk.votes.ballot(incident.host), desk.settings.host_votes)
        if not votes.is_over or desk.incidents.is_reported(incident.id):
            return ""
        return votes.sentence()

    def begin(self, run: Run, incident: Incident, view: View, verdicts: Sequence[Verdict]) -> str:
        """One at a time of all hosts, so that the guards of each count the others."""
        said = f"all guards say yes: {view.evidence}"
        details = {"started_at": view.now.isoformat(), "domain": view.situation.domain}
        change = Change(RUNNING, said, details, verdicts)
        starts = view.situation.starts
        begun = self.desk.incidents.start(incident.id, change, starts, run.claim)
        if begun is None:
            raise NotYet("another host of its failure domain began first", 0.05)
        run.memo["incident"] = begun
        return said

    def _note_what_ran(self, run: Run, incident: Incident) -> None:
        """Servers that ran when it died, by what Nova says first, before anybody has to wait: a
        host that is switched on again finds them stopped. And those that were to be restarted."""
        if incident.details.get("ran") is not None:
            return
        try:
            servers = self.desk.hands(run).servers.list(host=incident.host)
        except NotFound:
            servers = []
        died = self.desk.incidents.dead_guests(incident.id)
        self.note(run, None, ran=plan.ran(servers, died, self.desk.settings))

    def would(self, run: Run) -> str:
        incident = self.incident(run)
        planned = self._planned(run, incident)
        going = [one for one in planned if one.status == PENDING]
        names = ", ".join(one.server_name for one in going[:10])
        return (
            f"{incident.host} would be fenced and forced down, and {len(going)} of"
            f" {len(planned)} servers moved: {names}"
        )

    # do it

    def tell(self, run: Run) -> str:
        """Nova, and all who go by how the host stands; from here on it is on maintenance."""
        if self.is_over(run):
            return "over"
        incident, desk = self.incident(run), self.desk
        cloud, host = desk.hands(run), incident.host
        try:
            cloud.services.force_down(host)
            cloud.services.disable(host, f"{desk.settings.disable_reason} ({incident.id})")
        except NotFound as gone:
            return f"Nova does not know it: {gone.message}"
        member = desk.incidents.member(host)
        if member is not None:
            desk.incidents.set_member(
                member.uuid,
                run.claim,
                on_maintenance=True,
                reserved=False if member.reserved else None,
            )
        now = desk.incidents.now()
        said = f"incident {incident.id}: {incident.cause}"
        desk.see(
            [Sighting(host=host, source=SOURCE, verdict=DOWN, at=now, reason=said, decisive=True)]
        )
        self.note(run, f"{host} is forced down and takes no servers", told_at=now.isoformat())
        desk.ring()
        return f"{host} is forced down and disabled"

    def repair(self, run: Run) -> str:
        """Reservations that have the host get another one; its servers go there. Not for ever: a
        server waits by itself if there is none."""
        if self.is_over(run):
            return "over"
        incident, desk = self.incident(run), self.desk
        if not desk.repairs():
            return "reservations are not repaired here"
        if not desk.incidents.still_hurt(incident.host):
            return "no reservation waits for another host"
        told = datetime.fromisoformat(
            incident.details.get("told_at") or incident.opened_at.isoformat()
        )
        if desk.incidents.now() < told + timedelta(seconds=desk.settings.repair_wait_s):
            raise NotYet("its reservations are being given other hosts", REPAIR_LOOK_S)
        return "reservations wait for another host still; their servers wait with them"

    def prepare(self, run: Run) -> str:
        if self.is_over(run):
            return "over"
        incident, desk = self.incident(run), self.desk
        if "last_migration" not in incident.details:
            made = desk.hands(run).moves.migrations(source_host=incident.host)
            latest = max((int(one.id) for one in made if one.id.isdigit()), default=0)
            now = desk.incidents.now().isoformat()
            incident = self.note(run, None, last_migration=latest, moving_at=now)
        planned = self._planned(run, incident)
        desk.moves.plan(incident.id, planned, run.claim)
        stay = sum(one.status != PENDING for one in planned)
        return f"{len(planned) - stay} servers are to be moved, {stay} stay"

    def _planned(self, run: Run, incident: Incident) -> list[ServerMove]:
        cloud = self.desk.hands(run)
        try:
            servers = cloud.servers.list(host=incident.host)
        except NotFound:
            return []
        known = plan.Known(incident.host, frozenset(incident.details.get("ran", ())))
        return plan.moves(servers, cloud.pools.list(), known, self.desk.settings)

    def move(self, run: Run) -> str:
        if self.is_over(run):
            return "over"
        incident, desk = self.incident(run), self.desk
        if desk.moves.begin(desk.limits(), work_of):
            desk.ring()
        all_ = desk.moves.of(incident.id)
        said = _counted(all_)
        if any(one.status in (PENDING, ONGOING) for one in all_):
            if said != incident.sentence:
                self.note(run, said)
            busy = any(one.status == ONGOING for one in all_)
            raise NotYet(said, LOOK_S if busy else IDLE_S)
        return said

    def verify(self, run: Run) -> str:
        """Look at the cloud once more: nobody is left behind, and each arrival is proven."""
        if self.is_over(run):
            return "over"
        incident, desk = self.incident(run), self.desk
        at = desk.incidents.now()
        cloud = desk.hands(run)
        planned = self._planned(run, incident)
        desk.moves.plan(incident.id, planned, run.claim)  # who came between is found now
        self.move(run)
        known = {one.server_id: one for one in desk.moves.of(incident.id)}
        done = {
            one.server_id
            for one in cloud.moves.migrations(source_host=incident.host)
            if one.status == "done"
        }
        moved = [one for one in known.values() if one.status == SUCCEEDED]
        if unproven := [one.server_name for one in moved if one.server_id not in done]:
            raise NotYet(f"no migration proves that these moved: {', '.join(unproven[:10])}", 2.0)
        self.note(run, None, verified_at=at.isoformat())
        return f"{len(moved)} moves are proven by their migrations"

    def report(self, run: Run) -> str:
        incident, desk = self.incident(run), self.desk
        if self.is_over(run):
            return incident.sentence
        all_ = desk.moves.of(incident.id)
        left = [one for one in all_ if one.status == MOVE_FAILED]
        said = f"{incident.host}: {_counted(all_)}"
        if left:
            names = ", ".join(f"{one.server_name} ({one.message})" for one in left[:5])
            said += f"; not moved: {names}; holdfast incident retry {incident.id}"
        status = FAILED if left else RECOVERED
        then = back.work_of(incident, desk.incidents.now())
        return self.close(run, Change(status, said), then)


def _targets(services: Sequence[Service], host: str, spares: Sequence[str]) -> int:
    """Hosts that could take servers; a spare is disabled until it is used."""
    return sum(
        one.state == "up"
        and not same(one.host, host)
        and (one.enabled or any(same(one.host, spare) for spare in spares))
        for one in services
    )


def _counted(all_: Sequence[ServerMove]) -> str:
    counts = Counter(one.status for one in all_)
    said = f"{counts[SUCCEEDED]} of {len(all_)} servers moved"
    if counts[STAYED]:
        said += f", {counts[STAYED]} stay"
    if counts[MOVE_FAILED]:
        said += f", {counts[MOVE_FAILED]} failed"
    return said


def kinds(desk: Desk) -> dict[str, Kind]:
    return {RECOVER_HOST: HostRecovery(desk)}
