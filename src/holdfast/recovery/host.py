# SPDX-License-Identifier: Apache-2.0
"""Recovery of a dead host (`HostRecovery`) and of a dead nova-compute (`ProcessRecovery`).

Steps for a host: guards, fence, force down in Nova, repair reservations, move servers, verify,
report. `why_waiting` explains, for people only, why servers find no other host: their need, the
free capacity, and the time of the next try:

    no room: 3 servers need 12 vCPU and 24 GiB, 2 vCPU and 6 GiB are free; next try at 12:03:10 UTC
"""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from holdfast.hoststatus.status import DOWN, StatusReport
from holdfast.jobs.job import Kind, NotYet, Run, Step
from holdfast.model.errors import DriverError, NotFound
from holdfast.model.host import same
from holdfast.model.incident import FAILED, IGNORED, RECOVERED, RUNNING, Incident, Verdict
from holdfast.model.incident_progress import Counted, HostProgress, NoRoom
from holdfast.model.segment import AUTO, RESERVED_HOST
from holdfast.ports.cloud import Cloud, Server, Service
from holdfast.ports.recovery import FAILED as MOVE_FAILED
from holdfast.ports.recovery import IGNORED as STAYED
from holdfast.ports.recovery import ONGOING, PENDING, SUCCEEDED, Change, ServerMove
from holdfast.recovery import (
    guards,
    host_liveness,
    host_return,
    liveness,
)
from holdfast.recovery.context import (
    OVER,
    RECOVER_HOST,
    RECOVER_PROCESS,
    SOURCE,
    Recovery,
    RecoveryContext,
    started,
)
from holdfast.recovery.evacuation import DeadHost, is_ours, plan_moves, servers_to_run, work_of
from holdfast.recovery.fencing import Fencing, StillOff, foreseen
from holdfast.recovery.guards import ASK_AGAIN_S, View
from holdfast.recovery.liveness import Judgement, judge

LOG = logging.getLogger(__name__)

#: With more hosts than this, Holdfast does not query free capacity: two calls per host.
MOST_HOSTS = 20
#: Maximum number of different reasons in one sentence.
MOST_REASONS = 3


@dataclass(frozen=True)
class Room:
    """vCPUs and memory that servers need or that are free; negative on an overcommitted host."""

    vcpus: int = 0
    memory_mb: int = 0

    def __add__(self, other: "Room") -> "Room":
        return Room(self.vcpus + other.vcpus, self.memory_mb + other.memory_mb)

    def holds(self, need: "Room") -> bool:
        return self.vcpus >= need.vcpus and self.memory_mb >= need.memory_mb

    def __str__(self) -> str:
        return f"{max(0, self.vcpus)} vCPU and {max(0, self.memory_mb) / 1024:.3g} GiB"


def need_of(server: Server) -> Room:
    return Room(server.vcpus, server.memory_mb)


def why_waiting(
    cloud: Cloud, waiting: Sequence[ServerMove], freepool: str, *, any_host: bool
) -> str:
    """Why these servers, each tried at least once, are on no other host yet.

    `any_host`: the segment lets the scheduler choose, so all hosts of the cloud count.
    """
    try:
        return _no_room(cloud, waiting, freepool, any_host=any_host) or _move_errors(waiting)
    except (DriverError, NotFound) as error:
        LOG.info("what is free is not known: %s", error.message)
        return _move_errors(waiting)


def next_try(waiting: Sequence[ServerMove]) -> str:
    first = min(
        server_move.not_before for server_move in waiting if server_move.not_before is not None
    )
    return f"next try at {first:%H:%M:%S} UTC"


def tries_of(waiting: Sequence[ServerMove]) -> str:
    """A text that changes after each try of any of the servers."""
    tries = sum(server_move.attempts for server_move in waiting)
    latest = max(
        (server_move.not_before for server_move in waiting if server_move.not_before),
        default=datetime.min,
    )
    return f"{len(waiting)} servers, {tries} tries, {latest.isoformat()}"


def _no_room(cloud: Cloud, waiting: Sequence[ServerMove], freepool: str, *, any_host: bool) -> str:
    """Describe missing capacity; empty if the hosts have room or the capacity is unknown."""
    if not any_host or any(server_move.reservation for server_move in waiting):
        return ""
    source = waiting[0].source_host
    servers = {server.id: server for server in cloud.servers.list(host=source)}
    needs = [
        need_of(servers[server_move.server_id])
        for server_move in waiting
        if server_move.server_id in servers
    ]
    need = sum(needs, Room())
    free = _free(cloud, source, freepool)
    if not needs or free is None:
        return ""
    all_free = sum((Room(max(0, room.vcpus), max(0, room.memory_mb)) for room in free), Room())
    verb = "server needs" if len(needs) == 1 else "servers need"
    sentence = f"no room: {len(needs)} {verb} {need}, {all_free} are free"
    if not all_free.holds(need):
        return sentence
    if not any(room.holds(smallest) for room in free for smallest in needs):
        return f"{sentence}, on no host enough for one of them"
    return ""


def _free(cloud: Cloud, source: str, freepool: str) -> list[Room] | None:
    """Free capacity of each host that takes servers without a reservation.

    None if there are more than MOST_HOSTS hosts, or a host does not report its inventory.
    """
    ours = [pool for pool in cloud.pools.list() if is_ours(pool, freepool)]
    reserved_hosts = [host for pool in ours for host in pool.hosts]
    hosts = [
        service.host
        for service in cloud.services.list()
        if service.state == "up"
        and service.enabled
        and not service.forced_down
        and not same(service.host, source)
    ]
    open_ = [host for host in hosts if not any(same(host, other) for other in reserved_hosts)]
    if len(open_) > MOST_HOSTS:
        return None
    rooms = []
    for host in open_:
        has = cloud.hosts.find(host).inventories
        if not {"VCPU", "MEMORY_MB"} <= has.keys():
            return None
        used = sum(map(need_of, cloud.servers.list(host=host)), Room())
        vcpus, memory_mb = has["VCPU"].capacity, has["MEMORY_MB"].capacity
        rooms.append(Room(vcpus - used.vcpus, memory_mb - used.memory_mb))
    return rooms


def _move_errors(waiting: Sequence[ServerMove]) -> str:
    """The errors of the last tries, each reason once with its number of servers."""
    reasons = Counter(
        server_move.message or "no reason is known" for server_move in waiting
    ).most_common()
    shown = [f"{count} of them: {reason}" for reason, count in reasons[:MOST_REASONS]]
    more = f"; {len(reasons) - MOST_REASONS} more reasons" if len(reasons) > MOST_REASONS else ""
    if len(reasons) == 1:
        shown = [reasons[0][0]]
    count = "1 server waits" if len(waiting) == 1 else f"{len(waiting)} servers wait"
    return f"{count}: {'; '.join(shown)}{more}"


#: Seconds between two checks of the moves (busy, idle) and of the repair of reservations.
LOOK_S, IDLE_S, REPAIR_LOOK_S = 0.5, 2.0, 0.1
#: Seconds between two power reads of a host whose servers all wait for room elsewhere.
POWER_S = 5.0


class HostRecovery(Recovery[HostProgress]):
    """Recovery of one host."""

    name = RECOVER_HOST

    def __init__(self, context: RecoveryContext) -> None:
        super().__init__(context)
        self._fencing = Fencing(context, self, self._still_failed)
        self._still_off = StillOff(context, POWER_S)

    def own(self) -> Sequence[Step]:
        return (
            Step("guards", self.guards),
            Step("fence", self._fencing),
            Step("force_down", self.force_down),
            Step("repair", self.repair),
            Step("prepare", self.prepare),
            Step("move", self.move),
            Step("verify", self.verify),
            Step("report", self.report),
        )

    # decide

    def view(self, run: Run, incident: Incident) -> View:
        context, settings = self.context, self.context.settings
        self.look_back_s = max(settings.host_window_s, settings.heavy_throttle_interval_s * 2)
        self._note_what_ran(run, incident)
        view = super().view(run, incident)
        services = context.guarded_cloud(run).services.list()
        member = view.situation.member
        spares: list[str] = []
        if member is not None and member.segment.recovery_method != AUTO:
            members = context.incidents.members(incident.segment)
            spares = [segment_host.name for segment_host in members if segment_host.reserved]
        return replace(
            view,
            services=len(services),
            services_up=sum(service.state == "up" for service in services),
            targets=_targets(services, incident.host, spares),
            evidence=foreseen(context, incident, member, view.now),
            liveness=self.judged(run, services),
        )

    def judged(self, run: Run, services: Sequence[Service]) -> Judgement:
        """Judge from all sources whether the host failed, and record the result on the incident."""
        context, incident = self.context, self.incident(run)
        service = host_liveness.service_of(services, incident.host)
        now = context.incidents.now()
        nova_reads, retried = incident.host_progress.nova, incident.progress.retried_at
        if nova_reads is not None and retried and nova_reads.first_at < retried:
            nova_reads = None  # forcing the host down has changed Nova's row too
        reads = host_liveness.read_nova(nova_reads, service, now)
        if reads is not None and reads != nova_reads:
            incident = self.note(run, None, lambda progress: replace(progress, nova=reads))
        judgement = host_liveness.judge(run, context, incident, service)
        sources = tuple(judgement.counted)
        if _ways(sources) != _ways(incident.host_progress.sources):
            self.note(run, None, lambda progress: replace(progress, sources=sources))
        return judgement

    def _still_failed(self, run: Run) -> None:
        """Judge the host again before evidence is accepted: the guards may have run long ago.

        NotYet if the host shows signs of life by now: its guards are evaluated again, and hold
        the incident. If every report was withdrawn, the incident ends.
        """
        judgement = self.judged(run, self.context.guarded_cloud(run).services.list())
        if judgement.state == liveness.STANDS:
            return
        incident = self.incident(run)
        if judgement.state == liveness.REBOOTED:
            raise NotYet(host_return.begin_after_reboot(self, run, judgement.sentence), 0.0)
        if judgement.state == liveness.WITHDRAWN:
            sentence = f"{incident.host} is well again before it was off: {judgement.sentence}"
            self.close(run, Change(IGNORED, sentence))
            raise NotYet(sentence, 0.0)
        sentence = f"{incident.host} is not cut off: {judgement.sentence}"
        if judgement.state == liveness.WAITS:
            self.note(run, sentence)
            raise NotYet(sentence, judgement.again_s or ASK_AGAIN_S)
        run.memo["incident"] = self.context.incidents.start_over(incident.id, sentence, run.claim)
        raise NotYet(sentence, 0.0)

    def guards(self, run: Run) -> str:
        """Evaluate the guards, unless the host is back: then nothing is fenced or evacuated."""
        if self.is_over(run) or not host_return.resume_in_place(self, run):
            return super().guards(run)
        incident = self.incident(run)
        if incident.status != RUNNING:
            change = Change(RUNNING, None, started(self.context.incidents.now()))
            run.memo["incident"] = self.context.incidents.change(incident.id, change, run.claim)
        return f"{incident.host} is back: its servers start in place"

    def begin(self, run: Run, incident: Incident, view: View, verdicts: Sequence[Verdict]) -> str:
        """Start the recovery, one host at a time: the guards of each host must count the others."""
        if view.liveness is not None and view.liveness.state == liveness.REBOOTED:
            return host_return.begin_after_reboot(self, run, view.liveness.sentence, verdicts)
        sentence = f"all guards say yes: {view.evidence}"

        def begin(progress: HostProgress) -> HostProgress:
            return replace(progress, started_at=view.now, domain=view.situation.domain)

        change = Change(RUNNING, sentence, begin, verdicts)
        starts = view.situation.starts
        begun = self.context.incidents.start(incident.id, change, starts, run.claim)
        if begun is None:
            raise NotYet("another host of its failure domain began first", 0.05)
        run.memo["incident"] = begun
        return sentence

    def _note_what_ran(self, run: Run, incident: Incident) -> None:
        """Record which servers ran when the host died, before any guard delays the recovery.

        Nova's first answer counts, because a host that is switched on again finds its servers
        stopped. Crashed guests that were to be restarted are recorded too.
        """
        if incident.host_progress.ran is not None:
            return
        try:
            servers = self.context.guarded_cloud(run).servers.list(host=incident.host)
        except NotFound:
            servers = []
        died, settings = self.context.incidents.dead_guests(incident.host), self.context.settings
        reported = [server for server in servers if server.id in died]
        ha_settings = guards.read(self.context.guarded_cloud(run), reported, settings.ha_key)
        ran = tuple(servers_to_run(servers, died, settings, ha_settings))
        self.note(run, None, lambda progress: replace(progress, ran=ran))

    def would(self, run: Run) -> str:
        incident = self.incident(run)
        planned = self._planned(run, incident)
        going = [server_move for server_move in planned if server_move.status == PENDING]
        names = ", ".join(server_move.server_name for server_move in going[:10])
        return (
            f"{incident.host} would be fenced and forced down, and {len(going)} of"
            f" {len(planned)} servers moved: {names}"
        )

    # act

    def force_down(self, run: Run) -> str:
        """Force the host down in Nova, disable it, and report the host status down.

        From here on the host is on maintenance in its segment.
        """
        if (sentence := self._skipped(run)) is not None:
            return sentence
        incident, context = self.incident(run), self.context
        cloud, host = context.guarded_cloud(run), incident.host
        try:
            cloud.services.force_down(host)
            cloud.services.disable(host, f"{context.settings.disable_reason} ({incident.id})")
        except NotFound as gone:
            return f"Nova does not know it: {gone.message}"
        member = context.incidents.member(host)
        if member is not None:
            context.incidents.set_member(
                member.uuid,
                run.claim,
                on_maintenance=True,
                reserved=False if member.reserved else None,
            )
        now = context.incidents.now()
        sentence = f"incident {incident.id}: {incident.cause}"
        context.see(
            [
                StatusReport(
                    host=host, source=SOURCE, verdict=DOWN, at=now, reason=sentence, decisive=True
                )
            ]
        )
        done = f"{host} is forced down and takes no servers"
        self.note(run, done, lambda progress: replace(progress, forced_down_at=now))
        context.wake()
        return f"{host} is forced down and disabled"

    def repair(self, run: Run) -> str:
        """Wait until reservations on the host have another host, where their servers then go.

        The wait ends after `repair_wait_s`; then a server without a host waits by itself.
        """
        if (sentence := self._skipped(run)) is not None:
            return sentence
        incident, context = self.incident(run), self.context
        if not context.repairs():
            return "reservations are not repaired here"
        if not context.incidents.awaits_repair(incident.host):
            return "no reservation waits for another host"
        forced_down_at = incident.host_progress.forced_down_at or incident.opened_at
        if context.incidents.now() < forced_down_at + timedelta(
            seconds=context.settings.repair_wait_s
        ):
            raise NotYet("its reservations are being given other hosts", REPAIR_LOOK_S)
        return "reservations wait for another host still; their servers wait with them"

    def _skipped(self, run: Run) -> str | None:
        if self.is_over(run):
            return OVER
        return "its servers start in place" if host_return.is_in_place(self.incident(run)) else None

    def prepare(self, run: Run) -> str:
        if self.is_over(run):
            return OVER
        incident, context = self.incident(run), self.context
        power = incident.host_progress.power_returned
        if power is not None and power.in_use:
            return "only the servers that are left are started; others on the host are well"
        if incident.host_progress.last_migration is None:
            migrations = context.guarded_cloud(run).moves.migrations(source_host=incident.host)
            latest = max(
                (int(migration.id) for migration in migrations if migration.id.isdigit()), default=0
            )
            now = context.incidents.now()
            incident = self.note(
                run, None, lambda progress: replace(progress, last_migration=latest, moving_at=now)
            )
        planned = self._planned(run, incident)
        context.moves.plan(incident.id, planned, run.claim)
        stay = sum(server_move.status != PENDING for server_move in planned)
        return f"{len(planned) - stay} servers are to be moved, {stay} stay"

    def _planned(self, run: Run, incident: Incident) -> list[ServerMove]:
        cloud = self.context.guarded_cloud(run)
        try:
            servers = cloud.servers.list(host=incident.host)
        except NotFound:
            return []
        dead_host = DeadHost(incident.host, frozenset(incident.host_progress.ran or ()))
        settings, pools = self.context.settings, cloud.pools.list()
        ha_settings = guards.read(cloud, servers, settings.ha_key, pools)
        return plan_moves(servers, pools, dead_host, settings, ha_settings)

    def move(self, run: Run) -> str:
        if self.is_over(run):
            return OVER
        context = self.context
        if host_return.is_in_place(self.incident(run)) and (why := host_return.bring_up(self, run)):
            sentence = f"{self.incident(run).host}: its servers could not start in place: {why}"
            again = host_return.work_of(self.incident(run), context.incidents.now())
            return self.close(run, Change(FAILED, sentence), again)
        incident = self.incident(run)
        if context.moves.begin(context.limits(), work_of):
            context.wake()
        all_ = context.moves.of(incident.id)
        sentence = _counted(all_)
        if any(server_move.status in (PENDING, ONGOING) for server_move in all_):
            here = host_return.is_in_place(incident)
            if here:
                sentence = f"{incident.host} has power again, servers start in place: {sentence}"
            else:
                sentence = self._with_reason(run, all_, sentence)
            if sentence != incident.sentence:
                self.note(run, sentence)
            busy = any(server_move.status == ONGOING for server_move in all_)
            if not busy and not here:
                host_return.power_on(self, run)
                self._still_off.check(run, incident)
            raise NotYet(sentence, LOOK_S if busy and not here else IDLE_S)
        return sentence

    def _with_reason(self, run: Run, all_: Sequence[ServerMove], counted: str) -> str:
        """How many servers moved, why the others wait, and the time of the next try.

        Holdfast queries the cloud once per try, while no migration is under way. During the
        next try the last reason stands.
        """
        incident, context = self.incident(run), self.context
        waiting = [server_move for server_move in all_ if server_move.status == PENDING]
        no_room = incident.host_progress.no_room
        if any(server_move.status == ONGOING for server_move in all_):
            return no_room.sentence if no_room and no_room.counted == counted else counted
        if not waiting or any(server_move.not_before is None for server_move in waiting):
            return counted
        tried = tries_of(waiting)
        if no_room is None or no_room.tried != tried:
            member = context.incidents.member(incident.host)
            any_host = member is None or member.segment.recovery_method != RESERVED_HOST
            cloud = context.guarded_cloud(run)
            why = why_waiting(cloud, waiting, context.freepool, any_host=any_host)
            ended = "" if len(waiting) == len(all_) else f"{counted}; "
            sentence = f"{ended}{why}; {next_try(waiting)}"
            reason = NoRoom(tried, counted, sentence)
            self.note(run, sentence, lambda progress: replace(progress, no_room=reason))
            return sentence
        return no_room.sentence

    def verify(self, run: Run) -> str:
        """Check in Nova that no server is left behind and that a migration proves each arrival."""
        if self.is_over(run):
            return OVER
        incident, context = self.incident(run), self.context
        at = context.incidents.now()
        cloud = context.guarded_cloud(run)
        if not host_return.is_in_place(incident):
            planned = self._planned(run, incident)
            context.moves.plan(incident.id, planned, run.claim)  # finds late arrivals
        self.move(run)
        server_moves = {
            server_move.server_id: server_move for server_move in context.moves.of(incident.id)
        }
        done = {
            migration.server_id
            for migration in cloud.moves.migrations(source_host=incident.host)
            if migration.status == "done"
        }
        moved = [move for move in server_moves.values() if move.status == SUCCEEDED]
        if unproven := [
            server_move.server_name for server_move in moved if server_move.server_id not in done
        ]:
            raise NotYet(f"no migration proves that these moved: {', '.join(unproven[:10])}", 2.0)
        self.note(run, None, lambda progress: replace(progress, verified_at=at))
        return f"{len(moved)} moves are proven by their migrations"

    def report(self, run: Run) -> str:
        incident, context = self.incident(run), self.context
        if self.is_over(run):
            return incident.sentence
        all_ = context.moves.of(incident.id)
        left = [server_move for server_move in all_ if server_move.status == MOVE_FAILED]
        sentence = f"{incident.host}: {_counted(all_)}"
        if host_return.is_in_place(incident) and not left:
            sentence = f"recovered in place: {sentence}"
        if host_return.is_in_place(incident):
            self._end_maintenance(run, incident)
        if left:
            names = ", ".join(
                f"{server_move.server_name} ({server_move.message})" for server_move in left[:5]
            )
            outcome = "not started" if host_return.is_in_place(incident) else "not moved"
            sentence += f"; {outcome}: {names}; holdfast incident retry {incident.id}"
        status = FAILED if left else RECOVERED
        then = host_return.work_of(incident, context.incidents.now())
        return self.close(run, Change(status, sentence), then)

    def _end_maintenance(self, run: Run, incident: Incident) -> None:
        """End the maintenance that began when the host was forced down: its servers run there.

        If the host dies again before it is in use again, its servers must be recovered.
        """
        member = self.context.incidents.member(incident.host)
        if member is not None and incident.host_progress.forced_down_at:
            self.context.incidents.set_member(member.uuid, run.claim, on_maintenance=False)


def _ways(sources: Sequence[Counted]) -> list[tuple[str, str, str]]:
    """How each source counts, without its last report time, which changes with every heartbeat."""
    return [(source.source, source.says, source.counted) for source in sources]


def _targets(services: Sequence[Service], host: str, spares: Sequence[str]) -> int:
    """Number of other hosts that could take servers; a spare stays disabled until it is used."""
    return sum(
        service.state == "up"
        and not same(service.host, host)
        and (service.enabled or any(same(service.host, spare) for spare in spares))
        for service in services
    )


def _counted(all_: Sequence[ServerMove]) -> str:
    counts = Counter(server_move.status for server_move in all_)
    sentence = f"{counts[SUCCEEDED]} of {len(all_)} servers moved"
    here = sum(map(host_return.is_started, all_))
    if here:
        sentence += f", {here} started in place"
    if counts[STAYED] - here:
        sentence += f", {counts[STAYED] - here} stay"
    if counts[MOVE_FAILED]:
        sentence += f", {counts[MOVE_FAILED]} failed"
    return sentence


class ProcessRecovery(Recovery[HostProgress]):
    """Recovery of a host whose nova-compute died: disable the host until nova-compute is back."""

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
        """Judge the reports: withdrawn once every reporter says that nova-compute runs again."""
        reports = self.context.incidents.failure_reports(incident)
        return judge(reports, (), self.context.incidents.now()) if reports else None

    def would(self, run: Run) -> str:
        return f"{self.incident(run).host} would be disabled"

    def disable(self, run: Run) -> str:
        incident, context = self.incident(run), self.context
        if self.is_over(run):
            return OVER
        member = context.incidents.member(incident.host)
        if member is not None:
            context.incidents.set_member(member.uuid, run.claim, on_maintenance=True)
        reason = f"{context.settings.disable_reason} ({incident.id})"
        try:
            context.guarded_cloud(run).services.disable(incident.host, reason)
        except NotFound as gone:
            return f"Nova does not know it: {gone.message}"
        return f"{incident.host} is disabled"

    def confirm(self, run: Run) -> str:
        incident = self.incident(run)
        if self.is_over(run):
            return OVER
        for service in self.context.guarded_cloud(run).services.list():
            if same(service.host, incident.host) and service.enabled:
                raise NotYet(f"{incident.host} is not disabled yet", 1.0)
        now = self.context.incidents.now()
        self.note(run, None, lambda progress: replace(progress, verified_at=now))
        return f"{incident.host} takes no new servers"

    def report(self, run: Run) -> str:
        incident, context = self.incident(run), self.context
        if self.is_over(run):
            return incident.sentence
        sentence = f"{incident.cause}: the host takes no new servers until it is back"
        then = host_return.work_of(incident, context.incidents.now())
        return self.close(run, Change(RECOVERED, sentence), then)


def kinds(context: RecoveryContext) -> dict[str, Kind]:
    return {RECOVER_HOST: HostRecovery(context), RECOVER_PROCESS: ProcessRecovery(context)}
