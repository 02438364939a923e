# SPDX-License-Identifier: Apache-2.0
"""Return of a recovered host: nova-compute has restarted and stays healthy for a while.

Holdfast then removes the forced-down flag, enables the host and, if configured, live-migrates
its servers back. A host that was only cut off from the network may still run servers that were
moved away, so Holdfast fences it first.

The servers of a host whose power returned start in place if they find no room elsewhere: Holdfast
does not fence the host again. One transaction on the incident (`power_returned`) makes this
decision and excludes evacuations: none is under way, none is unanswered, and afterwards
`ServerMoves.aim` refuses new ones. If the host loses its power again, or its nova-compute stays
silent, Holdfast evacuates the servers as before.

A host that rebooted before it was fenced keeps its servers in the same way. Its agent reports
which guests run again by themselves; Holdfast leaves these alone. If the host falls silent, the
recovery starts over.
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
from holdfast.model.incident import FAILED, HOST, PROCESS, RUNNING, Incident, Verdict
from holdfast.model.incident_progress import (
    FENCED,
    READ_OFF,
    HostProgress,
    PowerReturned,
    RetryReport,
)
from holdfast.model.operation import Operation
from holdfast.model.votes import count
from holdfast.ports.cloud import Cloud, Migration, Server, Service
from holdfast.ports.fence import OFF, ON, UNKNOWN
from holdfast.ports.recovery import ANSWERED, FOUND, IGNORED, STARTED, SUCCEEDED, Change, ServerMove
from holdfast.recovery import liveness
from holdfast.recovery.context import (
    BACK,
    LOCK,
    RAN,
    READY,
    RESIZED,
    SOURCE,
    UNDER_WAY,
    IncidentWork,
    RecoveryContext,
    number,
)

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
        power_on(self, run)
        if not self.context.settings.bring_back:
            raise NotYet(f"{service.host}: an operator must enable it when it is healthy", RARELY_S)
        if incident.host_progress.cut_off and not incident.host_progress.fenced_back:
            self._switch_off_and_on(run, incident)
        now = self.context.incidents.now()
        if not self._has_reported(run, incident, service, now):
            raise NotYet(f"{service.host} is not back", self._pause(run, now))
        if incident.kind == PROCESS and not self.context.incidents.runs_again(incident):
            sentence = f"{service.host}: no source reports that its nova-compute runs again"
            raise NotYet(sentence, self._pause(run, now))
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
        progress = incident.host_progress
        if (progress.evidence and progress.evidence.kind in READ_OFF) or progress.fenced_back:
            raise NotYet(f"{incident.host}: {refused.message}", 5.0)
        cut = self.note(run, None, lambda progress: replace(progress, cut_off=True))
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
            self.note(run, None, lambda progress: replace(progress, fenced_back=True))
        except (NotFound, DriverError) as cannot:
            sentence = f"{host} was only cut off and cannot be fenced ({cannot.message})"
            raise NotYet(f"{sentence}: restart its nova-compute", RARELY_S) from cannot
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
        sentence = (
            f"{incident.host} is back: the servers that found no room elsewhere start in place"
        )
        if self.context.incidents.reopen_in_place(incident.id, sentence, run.claim) is None:
            return "no server waits here"
        self.context.wake()
        return sentence

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
        sentence = f"incident {incident.id} is over"
        at = context.incidents.now()
        context.see(
            [StatusReport(host=incident.host, source=SOURCE, verdict=UP, at=at, reason=sentence)]
        )
        self.note(run, None, lambda progress: replace(progress, back_at=at))
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

    def _has_reported(self, run: Run, incident: Incident, service: Service, now: datetime) -> bool:
        """Whether nova-compute has reported since the first check.

        Nova shows a service up for a while after its last report, dead or not.
        """
        if service.updated_at is None:
            return service.state == "up"
        report = service.updated_at.isoformat()
        first = incident.host_progress.last_report
        if first is None:
            self.note(run, None, lambda progress: replace(progress, last_report=report))
        return first not in (None, report) and abs(now - service.updated_at) < FRESH

    def _pause(self, run: Run, now: datetime) -> float:
        age = (now - run.operation.due_at).total_seconds()
        return min(max(LOOK_S, age / 20), RARELY_S)

    def give_up_at(self, operation: Operation) -> datetime | None:
        return None

    def failed(self, run: Run, why: str) -> None:
        LOG.error("%s: %s", run.operation.key, why)


def _well(since: datetime | None) -> Callable[[HostProgress], HostProgress]:
    return lambda progress: replace(progress, well_since=since)


# Start of servers in place.

#: Seconds until nova-compute must report after the power returned (a physical server boots for
#: minutes), and seconds that a host in use again may be silent.
BOOT_S, SILENT_S = 900.0, 60.0
POLL_S = 1.0
#: A report of nova-compute is overdue this many seconds after its interval.
REPORT_S = 2.0
#: Task states of a server whose migration may still take effect.
MIGRATING = ("rebuilding", "migrating", "resize_prep", "resize_migrating", "resize_migrated")


def is_in_place(incident: Incident) -> bool:
    return incident.host_progress.power_returned is not None


def is_started(move: ServerMove) -> bool:
    """Whether the move ended because the server was started in place."""
    return move.status == IGNORED and move.after_migration == STARTED


# decisions


def is_unanswered(move: ServerMove, migrations: Sequence[Migration]) -> bool:
    """Whether Nova may have accepted an evacuation of the server which Holdfast does not see."""
    if not move.attempts or move.after_migration < 0:
        return False
    mine = (
        number(migration.id) for migration in migrations if migration.server_id == move.server_id
    )
    return max(mine, default=0) <= move.after_migration


def why_cut(
    moves: Sequence[ServerMove], migrations: Sequence[Migration], *, is_paused: bool = False
) -> str:
    """Why a host with power again must be fenced again; empty: servers may start in place.

    `moves`: the unfinished moves off the host. During a pause no server can leave, and the host
    would be cut at each return.
    """
    leaving = [migration.server_id for migration in migrations if migration.status in UNDER_WAY]
    if leaving:
        return f"{len(leaving)} evacuations from it are under way"
    if unanswered := [
        server_move.server_name for server_move in moves if is_unanswered(server_move, migrations)
    ]:
        return f"the evacuation of {', '.join(unanswered[:5])} was not answered"
    if not is_paused and (
        fresh := [
            server_move.server_name for server_move in moves if server_move.not_before is None
        ]
    ):
        return f"{', '.join(fresh[:5])} can leave"
    return ""


def next_action(server: Server, move: ServerMove, *, guest_runs: bool = False) -> str:
    """The action to restore the server: `start`, `stop`, `reset`, `wait` or `done`.

    `reset` sets the server to ACTIVE.

    ACTIVE in Nova before Holdfast's start is out of date, because the host had no power since.
    If the agent reports `guest_runs`, ACTIVE is true.
    """
    if server.task_state:
        return "wait"
    runs = move.was in RAN
    if (runs and guest_runs) or (not runs and server.status == move.was):
        return "done"
    if server.status == "SHUTOFF":
        return "start" if runs else "done"
    if server.status == "ACTIVE":
        return "done" if runs and move.after_migration == STARTED else "stop"
    if server.status in ("ERROR", RESIZED):
        return "reset"
    return "done" if not runs else "wait"


# the host


def keep_or_fence(context: RecoveryContext, run: Run, incident: Incident) -> None:
    """Decide about a fenced host with power: start servers in place, or fence again.

    Always raises NotYet.
    """
    host, fence, cloud = incident.host, context.fence, context.guarded_cloud(run)
    moves = context.moves.leaving(host)
    migrations = cloud.moves.migrations(source_host=host)
    is_paused = bool(context.incidents.situation(incident, context.incidents.now()).pauses)
    why = why_cut(moves, migrations, is_paused=is_paused)
    if incident.host_progress.silent_after_return:
        why = why or "its nova-compute did not report after its power returned"
    if why:
        run.hold(fence.call_timeout_s + MARGIN_S)
        fence.off(host)
        sentence = f"{host} was switched on again before its servers had left ({why}): fenced anew"
        raise NotYet(sentence, 1.0)
    sentence = f"{host} has power again and its servers have not left: they start in place"
    change = Change(None, sentence, _kept(returned(context, cloud, host)))
    if context.incidents.keep_in_place(incident.id, change, moves, run.claim):
        LOG.warning("incident %s: %s", incident.id, sentence)
    raise NotYet(sentence, POLL_S)


def begin_after_reboot(
    work: IncidentWork[HostProgress], run: Run, why: str, verdicts: Sequence[Verdict] = ()
) -> str:
    """Keep the servers of a rebooted host in place; NotYet if an evacuation may be under way.

    Nova may have stopped its servers before the incident opened: servers that the agent knows to
    have run before the boot start too.
    """
    context, incident = work.context, work.incident(run)
    ran = _ran_before_boot(context, run, incident.host)
    sentence = f"{why}: its servers start in place"
    at, power = (
        context.incidents.now(),
        returned(context, context.guarded_cloud(run), incident.host),
    )

    def begin(progress: HostProgress) -> HostProgress:
        rebooted = replace(power, rebooted=True)
        all_ = tuple(dict.fromkeys((*(progress.ran or ()), *ran)))
        at_first = progress.started_at or at
        return replace(progress, started_at=at_first, power_returned=rebooted, ran=all_)

    moves = context.moves.leaving(incident.host)
    change = Change(RUNNING, sentence, begin, verdicts)
    begun = context.incidents.keep_in_place(incident.id, change, moves, run.claim)
    if begun is None:
        raise NotYet(f"{why}, but an evacuation from {incident.host} may be under way", POLL_S)
    run.memo["incident"] = begun
    return sentence


def _ran_before_boot(context: RecoveryContext, run: Run, host: str) -> list[str]:
    """Servers of the host whose guests ran before its last boot, by its agent's report."""
    beat = context.incidents.agent(host)
    if beat is None or not beat.ran:
        return []
    servers = context.guarded_cloud(run).servers.list(host=host)
    return [server.id for server in servers if server.id in beat.ran and server.status in READY]


def resume_in_place(work: IncidentWork[HostProgress], run: Run) -> bool:
    """Whether the servers start in place, decided earlier or now.

    After a retry the decision is made now: the incident knew the host to be off, the power
    reads on and nova-compute reports.
    """
    context, incident = work.context, work.incident(run)
    if is_in_place(incident):
        return True
    if not incident.is_open or not incident.host_progress.was_off:
        return False
    cloud, host = context.guarded_cloud(run), incident.host
    service, now = _service(cloud, host), context.incidents.now()
    if service is None or service.updated_at is None or _power(context, run, host) != ON:
        return False
    report = service.updated_at.isoformat()
    first = incident.host_progress.report_at_retry or RetryReport(report, now)
    if first.report == report:
        work.note(run, None, lambda progress: replace(progress, report_at_retry=first))
        wait = timedelta(seconds=context.settings.nova_report_interval_s + REPORT_S)
        if now < first.at + wait:
            raise NotYet(f"{host} has power: waiting for a report of its nova-compute", POLL_S)
        return False
    moves = context.moves.leaving(host)
    migrations = cloud.moves.migrations(source_host=host)
    if any(migration.status in UNDER_WAY for migration in migrations):
        return False
    if any(move.started_at is not None and move.after_migration >= 0 for move in moves):
        return False  # Nova did not answer the last evacuation
    sentence = f"{host} has power and reports to Nova again: its servers start in place"
    change = Change(None, sentence, _kept(returned(context, cloud, host)))
    if context.incidents.keep_in_place(incident.id, change, moves, run.claim) is None:
        return False
    run.memo.pop("incident", None)
    return True


def _kept(power: PowerReturned | None) -> Callable[[HostProgress], HostProgress]:
    """Return the change of progress that keeps servers in place; None ends that."""
    return lambda progress: replace(progress, power_returned=power)


def returned(context: RecoveryContext, cloud: Cloud, host: str) -> PowerReturned:
    """The incident's `power_returned`: the time, and the last report of nova-compute."""
    service = _service(cloud, host)
    report = service.updated_at if service is not None else None
    return PowerReturned(context.incidents.now(), report.isoformat() if report else None)


def bring_up(work: IncidentWork[HostProgress], run: Run) -> str:
    """Let Nova use the host and start servers there as soon as its nova-compute reports.

    Evacuation continues if the power is off again, if nova-compute stays silent for BOOT_S, or if
    it has reported and then is down for SILENT_S while the agent or the monitors see the host dead.
    Returns why the servers cannot start there at all; empty: they can start, or must wait.
    """
    context, incident = work.context, work.incident(run)
    cloud, power = context.guarded_cloud(run), incident.host_progress.power_returned
    service, now = _service(cloud, incident.host), context.incidents.now()
    assert power is not None
    if service is None:
        return f"Nova knows no {incident.host} any more"
    if power.rebooted:
        return _after_reboot(work, run, service, power)
    since = power.silent_since
    if service.state == "up" and not service.forced_down:
        if since:
            work.note(run, None, _kept(replace(power, silent_since=None)))
        return ""
    if service.forced_down and _reports(service, power):
        try:
            cloud.services.unforce(service.host)
        except Conflict as refused:  # until nova-compute has removed the evacuated guests
            LOG.info("incident %s: %s", incident.id, refused.message)
        return ""
    is_unproven = power.in_use or not incident.host_progress.evidence  # nothing proves it off
    if since is None and (is_unproven or not service.forced_down):
        work.note(run, None, _kept(replace(power, silent_since=now)))
    is_down = since is not None and now > since + timedelta(seconds=SILENT_S)
    if is_unproven:
        return f"nova-compute of {service.host} stopped reporting" if is_down else ""
    why, silent = "", False
    if _power(context, run, incident.host) == OFF:
        why = f"{incident.host} lost its power again: its servers are evacuated"
    elif is_down and _died_again(context, incident.host, power, now):
        why = f"{incident.host} fell silent after its power returned: the host is cut again and its"
        why += " servers are evacuated"
        silent = True
    elif now > power.at + timedelta(seconds=BOOT_S):
        why = f"nova-compute of {incident.host} did not report within {BOOT_S:g} s after its power"
        why += " returned: the host is cut again and its servers are evacuated"
        silent = True
    if why:
        cloud.services.force_down(incident.host)
        run.memo["incident"] = context.incidents.leave_again(
            incident.id, why, run.claim, silent=silent
        )
    return ""


def _died_again(context: RecoveryContext, host: str, power: PowerReturned, now: datetime) -> bool:
    """Whether another source than Nova sees a host dead that was up since its power returned."""
    beat = context.incidents.agent(host)
    if beat is not None and beat.seen_at > power.at:
        return now > beat.seen_at + timedelta(seconds=liveness.COUNTS_FOR * beat.interval_s)
    return count(context.votes.ballot(host), context.settings.host_votes).is_enough


def _after_reboot(
    work: IncidentWork[HostProgress], run: Run, service: Service, power: PowerReturned
) -> str:
    """`bring_up` for a rebooted host; NotYet and new guards if the host fell silent."""
    context, incident, host = work.context, work.incident(run), service.host
    now, beat = context.incidents.now(), context.incidents.agent(incident.host)
    patience = timedelta(seconds=liveness.COUNTS_FOR * beat.interval_s) if beat else timedelta(0)
    if beat is None or now > beat.seen_at + patience:
        sentence = f"{host} fell silent after its reboot: its guards are asked again"
        run.memo["incident"] = context.incidents.start_over(incident.id, sentence, run.claim)
        raise NotYet(sentence, 0.0)
    if service.state == "up" and not service.forced_down and _reports(service, power):
        if not power.reported_at:
            work.note(run, None, _kept(replace(power, reported_at=now)))
        return ""
    if now > power.at + timedelta(seconds=BOOT_S):
        return f"nova-compute of {host} did not report within {BOOT_S:g} s after its reboot"
    return ""


def guest_runs(context: RecoveryContext, host: str, server: Server, power: PowerReturned) -> bool:
    """Whether a guest of a rebooted host already runs: Nova may have restarted the guest.

    The agent's report counts if it is newer than the start of nova-compute; NotYet until then.
    After BOOT_S Nova's state counts.
    """
    beat, reported = context.incidents.agent(host), power.reported_at
    running = beat.running if beat is not None else None
    if beat is not None and running is not None and reported and beat.seen_at > reported:
        return server.id in running
    if context.incidents.now() > power.at + timedelta(seconds=BOOT_S):
        return server.status == "ACTIVE"
    raise NotYet(f"the agent of {host} has not said yet which guests run there", POLL_S)


def _reports(service: Service, power: PowerReturned) -> bool:
    """Whether nova-compute has reported since the power returned."""
    if service.updated_at is None:
        return service.state == "up"
    return service.updated_at.isoformat() != power.last_report


def _power(context: RecoveryContext, run: Run, host: str) -> str:
    run.hold(context.fence.call_timeout_s + MARGIN_S)
    try:
        return context.fence.power(host)
    except (DriverError, NotFound):
        return UNKNOWN


def _service(cloud: Cloud, host: str) -> Service | None:
    return next((service for service in cloud.services.list() if same(service.host, host)), None)


# power on


def power_on_at(rule: str, off_since: datetime) -> datetime | None:
    """The earliest time at which `power_on_after` allows power-on of a fenced host; None: never.

    With the rule `empty` the time is immediately.
    """
    if rule.isdigit():
        return off_since + timedelta(minutes=int(rule))
    return off_since if rule == "empty" else None


def power_on(work: IncidentWork[HostProgress], run: Run) -> None:
    """Switch on a host fenced by Holdfast, once, if its segment requests it.

    No evacuation from the host may be able to take effect. If the device fails, the next poll
    retries.
    """
    context, incident = work.context, work.incident(run)
    proof, rule = incident.host_progress.evidence, _rule(context, incident)
    if proof is None or proof.kind != FENCED or incident.host_progress.powered_on_at:
        return
    cloud, now, host = context.guarded_cloud(run), context.incidents.now(), incident.host
    due = power_on_at(rule, proof.at)
    if due is None or now < due:
        return
    if rule == "empty" and cloud.servers.list(host=host):
        return
    if why_cut(context.moves.leaving(host), cloud.moves.migrations(source_host=host)):
        return
    try:
        power = _power(context, run, host)
        if power == OFF:
            run.hold(context.fence.call_timeout_s + MARGIN_S)
            context.fence.on(host)
        elif power != ON:
            return
    except (DriverError, NotFound) as error:
        LOG.warning("incident %s: %s is not switched on: %s", incident.id, host, error.message)
        return
    sentence = f"{host} is switched on again: [recovery] power_on_after is {rule} in its segment"
    LOG.info("incident %s: %s", incident.id, sentence)
    shown = sentence if incident.is_open else None
    work.note(run, shown, lambda progress: replace(progress, powered_on_at=now))


def _rule(context: RecoveryContext, incident: Incident) -> str:
    """The option `power_on_after` for the host's segment, by segment name or id."""
    rules = context.settings.power_on_after
    if not rules:
        return "never"
    member = context.incidents.member(incident.host)
    names = (member.segment.name, member.segment.uuid) if member is not None else ()
    return next((rules[name] for name in names if name in rules), rules.get("*", "never"))


# a server


def start_in_place(
    context: RecoveryContext, run: Run, server: Server, move: ServerMove, incident: Incident
) -> str:
    """Restore the server's previous state on its host; NotYet in between.

    The caller holds the row of the server's move and has checked that no migration took effect.
    """
    cloud, host, power = (
        context.guarded_cloud(run),
        move.source_host,
        incident.host_progress.power_returned,
    )
    if server.task_state in MIGRATING:
        raise NotYet(f"a migration of {move.server_name} may still take effect", POLL_S)
    service = _service(cloud, host)
    if service is None or service.state != "up" or service.forced_down:
        raise NotYet(f"{move.server_name} waits for nova-compute of {host}", POLL_S)
    runs = power is not None and power.rebooted and guest_runs(context, host, server, power)
    if not server.locked:
        run.memo.pop("server", None)
        cloud.servers.lock(server.id, f"{LOCK} {incident.id}")
    action = next_action(server, move, guest_runs=runs)
    if action == "done":
        if move.after_migration != STARTED:
            context.moves.note(move.uuid, run.claim, after_migration=FOUND)
        state = "runs" if move.was in RAN else f"is {server.status}"
        return f"{state} in place on {host}"
    if action == "reset":
        context.moves.note(move.uuid, run.claim, after_migration=ANSWERED)
        cloud.servers.reset(server.id, active=True)
    elif action == "stop":
        cloud.servers.stop(server.id)
    elif action == "start":
        context.moves.note(move.uuid, run.claim, after_migration=STARTED)
        cloud.servers.start(server.id)
    elif not server.task_state:
        raise Conflict(f"it is {server.status} on {host} and cannot be started there")
    state = server.task_state or server.status
    raise NotYet(f"{move.server_name} is {state} on {host}: {action}", POLL_S)


def restore_status(cloud: Cloud, server: Server, move: ServerMove) -> None:
    """Reset a server from the ERROR of its failed evacuation when recovery gives up.

    The server can then be started when its host is back.
    """
    if not same(server.host or "", move.source_host) or server.task_state:
        return
    if server.status == "ERROR" and move.was != "ERROR":
        cloud.servers.reset(server.id, active=True)


def kinds(context: RecoveryContext) -> dict[str, Kind]:
    return {BACK: HostBack(context)}
