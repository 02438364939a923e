# SPDX-License-Identifier: Apache-2.0
"""Start of servers in place, after the power of a fenced host returned.

If the servers find no room elsewhere, Holdfast does not fence the host again and starts them
where they are. One transaction on the incident (`power_returned`) makes this decision and
excludes evacuations: none is under way, none is unanswered, and afterwards `ServerMoves.aim`
refuses new ones. If the host loses its power again, or its nova-compute stays silent, Holdfast
evacuates the servers as before.

A host that rebooted before it was fenced keeps its servers in the same way. Its agent reports
which guests run again by themselves; Holdfast leaves these alone. If the host falls silent, the
recovery starts over.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from holdfast.jobs.job import MARGIN_S, NotYet, Run
from holdfast.model.errors import Conflict, DriverError, NotFound
from holdfast.model.host import same
from holdfast.model.incident import RUNNING, Incident, Verdict
from holdfast.model.incident_progress import HostProgress, PowerReturned, RetryReport
from holdfast.ports.cloud import Cloud, Migration, Server, Service
from holdfast.ports.fence import OFF, ON, UNKNOWN
from holdfast.ports.recovery import ANSWERED, IGNORED, STARTED, Change, ServerMove
from holdfast.recovery import evacuation_plan, liveness
from holdfast.recovery.context import LOCK, UNDER_WAY, IncidentWork, RecoveryContext, number

LOG = logging.getLogger(__name__)

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


def why_cut(moves: Sequence[ServerMove], migrations: Sequence[Migration]) -> str:
    """Why a host with power again must be fenced again; empty: servers may start in place.

    `moves`: the unfinished moves off the host.
    """
    leaving = [migration.server_id for migration in migrations if migration.status in UNDER_WAY]
    if leaving:
        return f"{len(leaving)} evacuations from it are under way"
    if asked := [
        server_move.server_name for server_move in moves if is_unanswered(server_move, migrations)
    ]:
        return f"the evacuation of {', '.join(asked[:5])} was not answered"
    if fresh := [
        server_move.server_name for server_move in moves if server_move.not_before is None
    ]:
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
    runs = move.was in evacuation_plan.RAN
    if (runs and guest_runs) or (not runs and server.status == move.was):
        return "done"
    if server.status == "SHUTOFF":
        return "start" if runs else "done"
    if server.status == "ACTIVE":
        return "done" if runs and move.after_migration == STARTED else "stop"
    if server.status in ("ERROR", evacuation_plan.RESIZED):
        return "reset"
    return "done" if not runs else "wait"


# the host


def decide(context: RecoveryContext, run: Run, incident: Incident) -> None:
    """Decide about a fenced host with power: start servers in place, or fence again.

    Always raises NotYet.
    """
    host, fence, cloud = incident.host, context.fence, context.guarded_cloud(run)
    moves = context.moves.leaving(host)
    migrations = cloud.moves.migrations(source_host=host)
    why = why_cut(moves, migrations)
    if incident.host_progress.silent_after_return:
        why = why or "its nova-compute did not report after its power returned"
    if why:
        run.hold(fence.call_timeout_s + MARGIN_S)
        fence.off(host)
        said = f"{host} was switched on again before its servers had left ({why}): fenced anew"
        raise NotYet(said, 1.0)
    said = f"{host} has power again and its servers found no room elsewhere: they start in place"
    change = Change(None, said, _kept(returned(context, cloud, host)))
    if context.incidents.keep_in_place(incident.id, change, moves, run.claim):
        LOG.warning("incident %s: %s", incident.id, said)
    raise NotYet(said, POLL_S)


def begin_after_reboot(
    work: IncidentWork[HostProgress], run: Run, why: str, verdicts: Sequence[Verdict] = ()
) -> str:
    """Keep the servers of a rebooted host in place; NotYet if an evacuation may be under way."""
    context, incident = work.context, work.incident(run)
    said = f"{why}: its servers start in place"
    at, power = (
        context.incidents.now(),
        returned(context, context.guarded_cloud(run), incident.host),
    )

    def begin(one: HostProgress) -> HostProgress:
        rebooted = replace(power, rebooted=True)
        return replace(one, started_at=one.started_at or at, power_returned=rebooted)

    moves = context.moves.leaving(incident.host)
    change = Change(RUNNING, said, begin, verdicts)
    begun = context.incidents.keep_in_place(incident.id, change, moves, run.claim)
    if begun is None:
        raise NotYet(f"{why}, but an evacuation from {incident.host} may be under way", POLL_S)
    run.memo["incident"] = begun
    return said


def resume(work: IncidentWork[HostProgress], run: Run) -> bool:
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
    word = service.updated_at.isoformat()
    first = incident.host_progress.report_at_retry or RetryReport(word, now)
    if first.report == word:
        work.note(run, None, lambda one: replace(one, report_at_retry=first))
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
    said = f"{host} has power and reports to Nova again: its servers start in place"
    change = Change(None, said, _kept(returned(context, cloud, host)))
    if context.incidents.keep_in_place(incident.id, change, moves, run.claim) is None:
        return False
    run.memo.pop("incident", None)
    return True


def _kept(power: PowerReturned | None) -> Callable[[HostProgress], HostProgress]:
    """Return the change of progress that keeps servers in place; None ends that."""
    return lambda one: replace(one, power_returned=power)


def returned(context: RecoveryContext, cloud: Cloud, host: str) -> PowerReturned:
    """The incident's `power_returned`: the time, and the last report of nova-compute."""
    service = _service(cloud, host)
    word = service.updated_at if service is not None else None
    return PowerReturned(context.incidents.now(), word.isoformat() if word else None)


def bring_up(work: IncidentWork[HostProgress], run: Run) -> str:
    """Let Nova use the host and start servers there as soon as its nova-compute reports.

    Evacuation continues if the power is off again, or nova-compute stays silent for BOOT_S.
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
    if power.in_use or not incident.host_progress.evidence:  # nothing proves it off
        if since is None:
            work.note(run, None, _kept(replace(power, silent_since=now)))
        elif now > since + timedelta(seconds=SILENT_S):
            return f"nova-compute of {service.host} stopped reporting"
        return ""
    why, silent = "", False
    if _power(context, run, incident.host) == OFF:
        why = f"{incident.host} lost its power again: its servers are evacuated"
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


def _after_reboot(
    work: IncidentWork[HostProgress], run: Run, service: Service, power: PowerReturned
) -> str:
    """`bring_up` for a rebooted host; NotYet and new guards if the host fell silent."""
    context, incident, host = work.context, work.incident(run), service.host
    now, beat = context.incidents.now(), context.incidents.agent(incident.host)
    patience = timedelta(seconds=liveness.COUNTS_FOR * beat.interval_s) if beat else timedelta(0)
    if beat is None or now > beat.seen_at + patience:
        said = f"{host} fell silent after its reboot: its guards are asked again"
        run.memo["incident"] = context.incidents.start_over(incident.id, said, run.claim)
        raise NotYet(said, 0.0)
    if service.state == "up" and not service.forced_down and _reports(service, power):
        if not power.reported_at:
            work.note(run, None, _kept(replace(power, reported_at=now)))
        return ""
    if now > power.at + timedelta(seconds=BOOT_S):
        return f"nova-compute of {host} did not report within {BOOT_S:g} s after its reboot"
    return ""


def guest_runs(context: RecoveryContext, host: str, server_id: str, power: PowerReturned) -> bool:
    """Whether a guest of a rebooted host already runs: Nova may have restarted the guest.

    The agent's report counts if it is newer than the start of nova-compute; NotYet until then.
    After BOOT_S Nova's state counts.
    """
    beat, reported = context.incidents.agent(host), power.reported_at
    running = beat.running if beat is not None else None
    if beat is not None and running is not None and reported and beat.seen_at > reported:
        return server_id in running
    if context.incidents.now() > power.at + timedelta(seconds=BOOT_S):
        return True
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
    if proof is None or proof.kind != "fenced" or incident.host_progress.powered_on_at:
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
    said = f"{host} is switched on again: [recovery] power_on_after is {rule} in its segment"
    LOG.info("incident %s: %s", incident.id, said)
    shown = said if incident.is_open else None
    work.note(run, shown, lambda one: replace(one, powered_on_at=now))


def _rule(context: RecoveryContext, incident: Incident) -> str:
    """The option `power_on_after` for the host's segment, by segment name or id."""
    rules = context.settings.power_on_after
    if not rules:
        return "never"
    member = context.incidents.member(incident.host)
    names = (member.segment.name, member.segment.uuid) if member is not None else ()
    return next((rules[name] for name in names if name in rules), rules.get("*", "never"))


# a server


def start(
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
    runs = power is not None and power.rebooted and guest_runs(context, host, server.id, power)
    if not server.locked:
        run.memo.pop("server", None)
        cloud.servers.lock(server.id, f"{LOCK} {incident.id}")
    action = next_action(server, move, guest_runs=runs)
    if action == "done":
        context.moves.note(move.uuid, run.claim, after_migration=STARTED)
        state = "runs" if move.was in evacuation_plan.RAN else f"is {server.status}"
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
