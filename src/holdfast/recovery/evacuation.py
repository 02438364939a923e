# SPDX-License-Identifier: Apache-2.0
"""Evacuation of servers from a dead host.

Pure functions plan the evacuation: which servers leave, in which order, and to which hosts.
The manager locks the server, evacuates it, waits for the migration that proves the arrival,
starts the server if it ran before, and unlocks it. One run of the work is one attempt. After a
failed attempt the server waits and tries again, on another host if there is a choice. Every
step reads the current state first, so any manager can continue at any point.
"""

import fnmatch
import logging
import threading
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from holdfast.jobs.job import Kind, NotYet, Run, Step
from holdfast.model.errors import Conflict, NotFound
from holdfast.model.host import same
from holdfast.model.incident import Incident
from holdfast.model.operation import Operation
from holdfast.model.segment import AUTO, AUTO_PRIORITY, RESERVED_HOST, RH_PRIORITY, SegmentHost
from holdfast.nova.names import KEPT, OWNER, SERVER, SLOTS
from holdfast.ports.cloud import Cloud, Migration, Pool, Server
from holdfast.ports.recovery import (
    ANSWERED,
    FAILED,
    IGNORED,
    ONGOING,
    PENDING,
    SUCCEEDED,
    ServerMove,
)
from holdfast.recovery import host_return
from holdfast.recovery.context import (
    LOCK,
    MOVE,
    RAN,
    READY,
    RESIZED,
    UNDER_WAY,
    CloudCache,
    RecoveryContext,
    number,
)
from holdfast.recovery.fencing import StillOff
from holdfast.recovery.guards import HaSetting, HaSettings, Settings

LOG = logging.getLogger(__name__)

#: Seconds between two polls of a migration that is under way; polls become rarer with its age.
LOOK_S, LONGEST_LOOK_S = 0.4, 3.0
LONGEST_PAUSE_S = 60.0
#: Number of servers that one manager locks and evacuates at once: the first servers are under
#: way while the others still wait. A thread waits at most TURN_S seconds for its turn.
IN_TURN, TURN_S = 4, 10.0
DELETED = "it was deleted meanwhile"
_NAMES = uuid.UUID("5b0c8d8e-0d0e-4a53-8c5c-6a3a1b1f9c42")


def work_of(move: ServerMove, now: datetime) -> Operation:
    """The single work row of a move; every attempt schedules the same row again."""
    return Operation(
        id=str(uuid.uuid5(_NAMES, move.uuid)),
        kind=MOVE,
        subject=f"server:{move.server_id}",
        key=f"move/{move.uuid}",
        due_at=now,
        next_try_at=now,
        payload={"move": move.uuid, "incident": move.incident_id},
    )


@dataclass(frozen=True)
class DeadHost:
    """The dead host and its servers which ran at its death."""

    host: str
    ran: Collection[str] = ()


def servers_to_run(
    servers: Sequence[Server],
    died: Collection[str],
    settings: Settings,
    levels: HaSettings | None = None,
) -> list[str]:
    """Ids of the servers to run again: active, or powered with an unconfirmed resize.

    Servers in `died`, which crashed just before the host, count too if they are to be kept
    running.
    """
    ha_settings = levels or HaSettings(settings.ha_key)

    def is_kept(server: Server) -> bool:
        enabled = ha_settings.of(server).enabled
        return settings.restart_all if enabled is None else enabled

    return [
        server.id
        for server in servers
        if server.status in RAN
        or (server.status == RESIZED and server.powered)
        or (server.id in died and is_kept(server))
    ]


def plan_moves(
    servers: Sequence[Server],
    pools: Sequence[Pool],
    dead_host: DeadHost,
    settings: Settings,
    levels: HaSettings | None = None,
) -> list[ServerMove]:
    """Moves of all servers in evacuation order; servers to leave in place have status ignored."""
    source = dead_host.host
    owners = owning(pools, source)
    ha_settings = levels or HaSettings(settings.ha_key)
    ha_setting = {server.id: ha_settings.of(server) for server in servers}
    ordered = sorted(servers, key=lambda server: _rank(server, settings, ha_setting[server.id]))
    server_moves = []
    for position, server in enumerate(ordered):
        why = _stays(server, settings, ha_setting[server.id])
        server_moves.append(
            ServerMove(
                uuid="",
                incident_id="",
                server_id=server.id,
                server_name=server.name,
                source_host=source,
                status=IGNORED if why else PENDING,
                message=why,
                was="ACTIVE" if server.id in dead_host.ran else server.status,
                locked_before=server.locked,
                reservation=owners.get(server.id) or owners.get(server.project_id, ""),
                position=position,
            )
        )
    return server_moves


def owning(pools: Sequence[Pool], source: str) -> dict[str, str]:
    """Map each project to its reservation of the whole host, and each leased server to its own.

    A host stays in the reservation's aggregate until its servers have left, even if repair has
    already assigned another host.
    """
    return {
        pool.metadata.get(SERVER) or pool.metadata[OWNER]: pool.name
        for pool in pools
        if OWNER in pool.metadata
        and SLOTS not in pool.metadata
        and any(same(source, member) for member in pool.hosts)
    }


def is_ours(pool: Pool, freepool: str) -> bool:
    """Whether the aggregate belongs to a reservation, or is the freepool."""
    return pool.name == freepool or bool(pool.metadata.keys() & {OWNER, KEPT})


def _rank(
    server: Server, settings: Settings, ha_setting: HaSetting
) -> tuple[bool, int, str, str, str]:
    priority = str(server.metadata.get(settings.priority_key, "0")).strip()
    number = int(priority) if priority.lstrip("-").isdigit() and len(priority) < 10 else 0
    group = str(server.metadata.get(settings.group_key, ""))
    return not ha_setting.enabled, -number, group, server.name, server.id


def _stays(server: Server, settings: Settings, ha_setting: HaSetting) -> str:
    if server.task_state == "deleting":
        return "it is being deleted"
    if any(fnmatch.fnmatchcase(server.name, name) for name in settings.leave_names):
        return "[recovery] leave_names says that it is left alone"
    if server.status == "BUILD":
        return "it was being built; its owner makes another one"
    if server.status == "ERROR" and settings.ignore_error_state:
        return "it is in ERROR, and [recovery] ignore_error_state is on"
    if ha_setting.enabled is False:
        return f"it is not to be kept running: {ha_setting.sentence(settings.ha_key)}"
    if not settings.evacuate_all and not ha_setting.enabled:
        return f"its metadata do not say {settings.ha_key}, and [recovery] evacuate_all is off"
    return ""


@dataclass(frozen=True)
class Destination:
    """Destination of the next attempt: a named host, or None for the scheduler's choice.

    `wait` says why the server cannot go anywhere now.
    """

    host: str | None = None
    wait: str = ""
    spare: str = ""  # uuid of the spare host that the move uses up


def choose_destination(
    move: ServerMove,
    method: str,
    members: Sequence[SegmentHost],
    reserved: Sequence[str],
    up: Collection[str],
    load: Mapping[str, int],
    used: Collection[str] = (),
) -> Destination:
    """Choose the destination of the next attempt.

    `reserved`: hosts which the server's reservation has now. `up`: hosts whose service is
    alive. `load`: number of servers under way to each host. `used`: spares that this incident
    has used already.
    """
    if move.reservation:
        fit = [host for host in reserved if not same(host, move.source_host)]
        if not fit:
            reason = f"reservation {move.reservation} has no other host yet"
            return Destination(wait=reason)
        return Destination(host=min(fit, key=lambda host: (load.get(host, 0), host)))
    spares = sorted(
        (
            member
            for member in members
            if (member.reserved or member.uuid in used)
            and not member.on_maintenance
            and not same(member.name, move.source_host)
            and any(same(member.name, host) for host in up)
        ),
        key=lambda spare: (spare.uuid not in used, spare.name),
    )
    turn = move.attempts
    if method == AUTO or (method == AUTO_PRIORITY and turn % 2 == 0):
        return Destination()
    if method == RH_PRIORITY and (turn % 2 == 1 or not spares):
        return Destination()
    if not spares:
        return Destination(wait="no spare host of its segment is left")
    at = turn if method == RESERVED_HOST else turn // 2
    spare = spares[at % len(spares)]
    return Destination(host=spare.name, spare=spare.uuid)


class Over(Exception):
    """Nothing is left to do for this server; the sentence says why."""

    def __init__(self, status: str, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence


class Move:
    """Work for the evacuation of a server from a dead host."""

    name = MOVE
    retry_forever = False

    def __init__(self, context: RecoveryContext) -> None:
        self._context = context
        self._still_off = StillOff(context)
        self._cache = CloudCache(context.clock)
        self._starting = threading.BoundedSemaphore(IN_TURN)

    def steps(self) -> Sequence[Step]:
        return (Step("move", self.run, recorded=False),)

    def run(self, run: Run) -> str:
        """Read the state of the server and its migration and do the next action.

        NotYet until the move has ended.
        """
        move = self._context.moves.move(run.operation.payload["move"])
        if move.status != ONGOING:
            return f"it is {move.status}"
        try:
            sentence = self._go_on(run, move)
        except Over as over:
            self._unlock(run, move)
            self._end(run, move, over.status, over.sentence)
            return over.sentence
        self._unlock(run, move)
        self._end(run, move, SUCCEEDED, sentence)
        return sentence

    def _go_on(self, run: Run, move: ServerMove) -> str:
        cloud = self._context.guarded_cloud(run)
        last_migration = self._incident(run).host_progress.last_migration or 0
        last = self._cache.last(cloud, move.source_host, move.server_id, last_migration)
        if last is not None and last.status in UNDER_WAY:
            self._under_way(run, cloud, move, last)
        if last is not None and last.status == "done":
            return self._settle(run, cloud, self._server(run, cloud, move), move, last)
        if not self._starting.acquire(timeout=TURN_S):
            raise NotYet(f"{move.server_name}: other servers are evacuated first", LOOK_S)
        try:
            return self._leave(run, cloud, move, last)
        finally:
            self._starting.release()

    def _leave(self, run: Run, cloud: Cloud, move: ServerMove, last: Migration | None) -> str:
        """Evacuate a server without a successful evacuation; NotYet until it has arrived."""
        server = self._listed(run, cloud, move, last) or self._server(run, cloud, move)
        if not same(server.host or "", move.source_host):
            return self._elsewhere(cloud, server, last)
        if host_return.is_in_place(self._incident(run)):
            raise Over(IGNORED, self._start_in_place(run, server, move, last))
        failed = last is not None and last.status == "failed"
        if last is not None and failed and number(last.id) > move.after_migration >= 0:
            self._context.moves.note(move.uuid, run.claim, after_migration=ANSWERED, dest_host=None)
            raise Conflict(f"the cloud could not move it to {move.dest_host or 'any host'}")
        self._evacuate(run, cloud, server, move, last)
        raise NotYet(f"{move.server_name} leaves {move.source_host}", LOOK_S)

    def _listed(
        self, run: Run, cloud: Cloud, move: ServerMove, last: Migration | None
    ) -> Server | None:
        """The server from the shared list of its host, if nothing happened to the server yet.

        None if the server must be read by itself: absent, with a task, to be reset, or evacuated
        before.
        """
        incident = self._incident(run)
        if move.attempts or last is not None or host_return.is_in_place(incident):
            return None
        server = self._cache.on_source(cloud, move.source_host, move.server_id, incident.id)
        if server is None or server.task_state or server.status not in READY:
            return None
        return server

    def _server(self, run: Run, cloud: Cloud, move: ServerMove) -> Server:
        """Read the server again, because a user may have deleted it meanwhile."""
        try:
            server = cloud.servers.show(move.server_id)
        except NotFound:
            raise Over(IGNORED, DELETED) from None
        run.memo["server"] = server
        if server.task_state == "deleting":
            raise Over(IGNORED, "it is being deleted")
        return server

    # arrived

    def _settle(
        self, run: Run, cloud: Cloud, server: Server, move: ServerMove, last: Migration
    ) -> str:
        """Bring the server on its new host to its previous power state.

        The server is read even if it was ACTIVE in the list: its host may have had power again for
        a moment before the evacuation, and Nova then brings the server back stopped.
        """
        where = server.host or last.dest_host or "another host"
        if where != move.dest_host:
            self._context.moves.note(move.uuid, run.claim, dest_host=where)
        if self._cache.is_dead(cloud, where):
            raise Over(IGNORED, f"it reached {where}, which died too: it leaves from there")
        self._use_up(run, where)
        if server.task_state:
            raise NotYet(f"{move.server_name} is {server.task_state} on {where}", LOOK_S)
        runs = move.was in RAN
        if runs and server.status == "SHUTOFF":
            cloud.servers.start(server.id)
            raise NotYet(f"{move.server_name} starts on {where}", LOOK_S)
        if runs and server.status != "ACTIVE":
            raise Conflict(f"it is {server.status} on {where} and does not run")
        if not runs and server.status == "ACTIVE":
            cloud.servers.stop(server.id)
            raise NotYet(f"{move.server_name} is stopped on {where}, as it was", LOOK_S)
        return f"{'runs' if runs else 'is stopped, as before,'} on {where}"

    def _elsewhere(self, cloud: Cloud, server: Server, last: Migration | None) -> str:
        """End the move of a server which is on another host without a finished evacuation."""
        if server.host is None:
            raise Over(IGNORED, f"it is {server.status}: on no host")
        if last is None or last.status == "failed":
            raise Over(IGNORED, f"another user moved it to {server.host}")
        raise Over(IGNORED, f"it reached {server.host}, which died too: it leaves from there")

    def _start_in_place(
        self, run: Run, server: Server, move: ServerMove, last: Migration | None
    ) -> str:
        """Start the server on its own host: power returned before any evacuation took effect."""
        incident = self._incident(run)
        if not incident.is_open:
            raise Over(IGNORED, f"its incident is {incident.status}: {incident.sentence}")
        if host_return.is_unanswered(move, [last] if last else []):
            raise NotYet(f"a migration of {move.server_name} may still take effect", LOOK_S)
        return host_return.start_in_place(self._context, run, server, move, incident)

    # under way

    def _under_way(self, run: Run, cloud: Cloud, move: ServerMove, last: Migration) -> None:
        """Raise NotYet, unless the destination is dead: a migration to a dead host never ends."""
        dest = last.dest_host
        if dest and dest != move.dest_host:
            self._context.moves.note(move.uuid, run.claim, dest_host=dest)
        if dest and self._cache.is_dead(cloud, dest):
            server = cloud.servers.show(move.server_id)
            if server.task_state and same(server.host or "", move.source_host):
                cloud.servers.reset(server.id)
            return
        age = (self._context.incidents.now() - run.operation.due_at).total_seconds()
        pause = min(LOOK_S + age * 0.3, LONGEST_LOOK_S)
        raise NotYet(f"{move.server_name} is on its way to {dest or 'another host'}", pause)

    def _evacuate(
        self, run: Run, cloud: Cloud, server: Server, move: ServerMove, last: Migration | None
    ) -> None:
        context, incident = self._context, self._incident(run)
        if not incident.is_open:
            raise Over(IGNORED, f"its incident is {incident.status}: {incident.sentence}")
        if not server.locked:
            self._lock(run, cloud, move, incident)
        unchanged: Server | None = server
        if server.status not in READY or server.task_state:
            cloud.servers.reset(server.id)
            unchanged = None
        after = number(last.id) if last else 0
        # The destination was chosen before, but a crash or a failed call left no migration.
        again = move.dest_host is not None and after == move.after_migration
        target = (
            Destination(move.dest_host) if again else self._destination(run, cloud, move, incident)
        )
        if target.spare:
            self._open_spare(cloud, incident, target)
        self._still_off.check(run, incident)  # last, because the calls above may have taken long
        if not again and not context.moves.aim(
            move.uuid, target.host, after, context.limits(), run.claim
        ):
            raise NotYet(f"{target.host or 'the cloud'} takes no more now", LOOK_S)
        try:
            as_it_was = move.was in RAN
            cloud.moves.evacuate(server.id, target.host, as_it_was=as_it_was, last_read=unchanged)
        except Conflict:
            # Nova refused this call. If no earlier call is unanswered, nothing can take effect.
            if not host_return.is_unanswered(move, [last] if last else []):
                context.moves.note(move.uuid, run.claim, after_migration=ANSWERED)
            raise

    def _lock(self, run: Run, cloud: Cloud, move: ServerMove, incident: Incident) -> None:
        """Lock the server: its users could delete it while the new host starts it.

        Nova would then free its volumes although its guest runs on the new host.
        """
        run.memo.pop("server", None)
        try:
            cloud.servers.lock(move.server_id, f"{LOCK} {incident.id}")
        except NotFound:
            raise Over(IGNORED, DELETED) from None

    def _destination(
        self, run: Run, cloud: Cloud, move: ServerMove, incident: Incident
    ) -> Destination:
        incidents = self._context.incidents
        member = incidents.member(incident.host)
        method = member.segment.recovery_method if member else AUTO
        reserved = incidents.hosts_of(move.reservation) if move.reservation else ()
        if all(same(host, move.source_host) for host in reserved) and self._is_leased(cloud, move):
            move = replace(move, reservation="")  # no room is held: any host, as at its start
        if method == AUTO and not move.reservation:
            return Destination()  # without reading all hosts of a large segment
        up: set[str] = set()
        if not move.reservation and method != AUTO:
            up = {service.host for service in cloud.services.list() if service.state == "up"}
        load = {host: len(self._context.moves.to(host)) for host in reserved}
        members = incidents.members(incident.segment) if member else ()
        used = incident.host_progress.spares
        destination = choose_destination(move, method, members, reserved, up, load, used)
        if destination.wait:
            raise Conflict(destination.wait)
        return destination

    def _is_leased(self, cloud: Cloud, move: ServerMove) -> bool:
        """Whether the reservation is a lease on this server, not on a whole host."""
        pool = cloud.pools.find(move.reservation) if move.reservation else None
        return pool is not None and SERVER in pool.metadata

    def _open_spare(self, cloud: Cloud, incident: Incident, target: Destination) -> None:
        """Enable the spare host in Nova and add it to aggregates of the failed host.

        `add_spare_to_aggregates` controls the second part.
        """
        assert target.host is not None
        cloud.services.enable(target.host)
        if not self._context.settings.add_spare_to_aggregates:
            return
        for pool in cloud.pools.list():
            if is_ours(pool, self._context.freepool):
                continue  # reservations decide about the hosts of these aggregates
            if any(same(incident.host, host) for host in pool.hosts):
                cloud.pools.add_host(pool.id, target.host)

    # the end

    def _unlock(self, run: Run, move: ServerMove) -> None:
        """Unlock the server if Holdfast locked it.

        A lock from before the move stays.
        """
        if move.locked_before:
            return
        cloud = self._context.guarded_cloud(run)
        try:
            server = run.memo.get("server") or cloud.servers.show(move.server_id)
            if server.locked and server.locked_reason.startswith(LOCK):
                cloud.servers.unlock(move.server_id)
        except NotFound:
            return

    def _end(self, run: Run, move: ServerMove, status: str, sentence: str) -> None:
        context = self._context
        context.moves.end(move.uuid, run.claim, status, sentence)
        if context.moves.begin(context.limits(), work_of):
            context.wake()

    def _use_up(self, run: Run, host: str) -> None:
        """Mark a spare host as used once a server has really arrived there."""
        incident, segment_host = self._incident(run), self._context.incidents.member(host)
        if segment_host is None or segment_host.segment.uuid != incident.segment:
            return
        if segment_host.uuid in incident.host_progress.spares:
            return
        if segment_host.reserved or segment_host.segment.recovery_method != AUTO:
            self._context.incidents.use_spare(incident.id, segment_host.uuid, run.claim)

    def give_up_at(self, operation: Operation) -> datetime | None:
        return operation.due_at + timedelta(seconds=self._context.settings.move_timeout_s)

    def failed(self, run: Run, why: str) -> bool:
        """End this attempt; True if another attempt follows, False if the move's time is over."""
        context, settings = self._context, self._context.settings
        move = context.moves.move(run.operation.payload["move"])
        if move.status != ONGOING:
            return False
        incident = self._incident(run)
        began = incident.progress.moving_at or incident.opened_at
        until = began + timedelta(seconds=settings.move_give_up_s)
        late = context.incidents.now() >= until or not incident.is_open
        if late:
            self._restore(run, move)
        # Unlock also before another attempt: if the incident ends first, nothing else unlocks it.
        self._unlock(run, move)
        if late:
            self._end(run, move, FAILED, why)
            return False
        pause = min(settings.move_pause_s * 2.0 ** min(move.attempts, 16), LONGEST_PAUSE_S)
        context.moves.put_back(move.uuid, run.claim, why, pause)
        return True

    def _restore(self, run: Run, move: ServerMove) -> None:
        """Reset a server after its move failed to the status from before Holdfast acted."""
        cloud = self._context.guarded_cloud(run)
        try:
            migrations = cloud.moves.migrations(source_host=move.source_host)
            mine = [migration for migration in migrations if migration.server_id == move.server_id]
            pending = any(migration.status in UNDER_WAY for migration in mine)
            if not pending and not host_return.is_unanswered(move, mine):
                host_return.restore_status(cloud, cloud.servers.show(move.server_id), move)
        except NotFound:
            return

    def _incident(self, run: Run) -> Incident:
        if "incident" not in run.memo:
            run.memo["incident"] = self._context.incidents.incident(
                run.operation.payload["incident"]
            )
        incident: Incident = run.memo["incident"]
        return incident


def kinds(context: RecoveryContext) -> dict[str, Kind]:
    return {MOVE: Move(context)}
