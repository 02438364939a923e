# SPDX-License-Identifier: Apache-2.0
"""Evacuation of a server from a dead host.

The manager locks the server, evacuates it, waits for the migration that proves the arrival,
starts the server if it ran before, and unlocks it. One run of the work is one attempt. After a
failed attempt the server waits and tries again, on another host if there is a choice. Every
step reads the current state first, so any manager can continue at any point.
"""

import logging
import threading
import uuid
from collections.abc import Sequence
from datetime import datetime, timedelta

from holdfast.jobs.job import Kind, NotYet, Run, Step
from holdfast.model.errors import Conflict, NotFound
from holdfast.model.host import same
from holdfast.model.incident import Incident
from holdfast.model.operation import Operation
from holdfast.model.segment import AUTO
from holdfast.ports.cloud import Cloud, Migration, Server
from holdfast.ports.recovery import ANSWERED, FAILED, IGNORED, ONGOING, SUCCEEDED, ServerMove
from holdfast.recovery import evacuation_plan, in_place
from holdfast.recovery.context import LOCK, MOVE, UNDER_WAY, CloudCache, RecoveryContext, number
from holdfast.recovery.fencing import StillOff

LOG = logging.getLogger(__name__)

#: Seconds between two polls of a migration that is under way; polls become rarer with its age.
LOOK_S, LONGEST_LOOK_S = 0.4, 3.0
LONGEST_PAUSE_S = 60.0
#: Number of servers that one manager locks and evacuates at once: the first servers are under
#: way while the others still wait. A thread waits at most TURN_S seconds for its turn.
IN_TURN, TURN_S = 4, 10.0
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
        self._looks = CloudCache(context.clock)
        self._turns = threading.BoundedSemaphore(IN_TURN)

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
            said = self._go_on(run, move)
        except Over as over:
            self._unlock(run, move)
            self._end(run, move, over.status, over.sentence)
            return over.sentence
        self._unlock(run, move)
        self._end(run, move, SUCCEEDED, said)
        return said

    def _go_on(self, run: Run, move: ServerMove) -> str:
        cloud = self._context.guarded_cloud(run)
        known = self._incident(run).host_progress.last_migration or 0
        last = self._looks.last(cloud, move.source_host, move.server_id, known)
        if last is not None and last.status in UNDER_WAY:
            self._under_way(run, cloud, move, last)
        if last is not None and last.status == "done":
            return self._settle(run, cloud, self._server(run, cloud, move), move, last)
        if not self._turns.acquire(timeout=TURN_S):
            raise NotYet(f"{move.server_name}: other servers are evacuated first", LOOK_S)
        try:
            return self._leave(run, cloud, move, last)
        finally:
            self._turns.release()

    def _leave(self, run: Run, cloud: Cloud, move: ServerMove, last: Migration | None) -> str:
        """Evacuate a server without a successful evacuation; NotYet until it has arrived."""
        server = self._server(run, cloud, move)
        if not same(server.host or "", move.source_host):
            return self._elsewhere(cloud, server, last)
        if in_place.is_in_place(self._incident(run)):
            raise Over(IGNORED, self._start_in_place(run, server, move, last))
        failed = last is not None and last.status == "failed"
        if last is not None and failed and number(last.id) > move.after_migration >= 0:
            self._context.moves.note(move.uuid, run.claim, after_migration=ANSWERED, dest_host=None)
            raise Conflict(f"the cloud could not move it to {move.dest_host or 'any host'}")
        self._evacuate(run, cloud, server, move, last)
        raise NotYet(f"{move.server_name} leaves {move.source_host}", LOOK_S)

    def _server(self, run: Run, cloud: Cloud, move: ServerMove) -> Server:
        """Read the server again, because a user may have deleted it meanwhile."""
        try:
            server = cloud.servers.show(move.server_id)
        except NotFound:
            raise Over(IGNORED, "it was deleted meanwhile") from None
        run.memo["server"] = server
        if server.task_state == "deleting":
            raise Over(IGNORED, "it is being deleted")
        return server

    # arrived

    def _settle(
        self, run: Run, cloud: Cloud, server: Server, move: ServerMove, last: Migration
    ) -> str:
        """Bring the server on its new host to its previous power state."""
        where = server.host or last.dest_host or "another host"
        if where != move.dest_host:
            self._context.moves.note(move.uuid, run.claim, dest_host=where)
        if self._looks.is_dead(cloud, where):
            raise Over(IGNORED, f"it reached {where}, which died too: it leaves from there")
        self._use_up(run, where)
        if server.task_state:
            raise NotYet(f"{move.server_name} is {server.task_state} on {where}", LOOK_S)
        runs = move.was in evacuation_plan.RAN
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
        if in_place.is_unanswered(move, [last] if last else []):
            raise NotYet(f"a migration of {move.server_name} may still take effect", LOOK_S)
        return in_place.start(self._context, run, server, move, incident)

    # under way

    def _under_way(self, run: Run, cloud: Cloud, move: ServerMove, last: Migration) -> None:
        """Raise NotYet, unless the destination is dead: a migration to a dead host never ends."""
        dest = last.dest_host
        if dest and dest != move.dest_host:
            self._context.moves.note(move.uuid, run.claim, dest_host=dest)
        if dest and self._looks.is_dead(cloud, dest):
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
            del run.memo["server"]
            cloud.servers.lock(server.id, f"{LOCK} {incident.id}")
        seen: Server | None = server
        if server.status not in evacuation_plan.READY or server.task_state:
            cloud.servers.reset(server.id)
            seen = None
        after = number(last.id) if last else 0
        # The destination was chosen before, but a crash or a failed call left no migration.
        again = move.dest_host is not None and after == move.after_migration
        target = (
            evacuation_plan.Aim(move.dest_host) if again else self._aim(run, cloud, move, incident)
        )
        if target.spare:
            self._open_spare(cloud, incident, target)
        self._still_off.check(run, incident)  # last, because the calls above may have taken long
        if not again and not context.moves.aim(
            move.uuid, target.host, after, context.limits(), run.claim
        ):
            raise NotYet(f"{target.host or 'the cloud'} takes no more now", LOOK_S)
        try:
            as_it_was = move.was in evacuation_plan.RAN
            cloud.moves.evacuate(server.id, target.host, as_it_was=as_it_was, seen=seen)
        except Conflict:
            # Nova refused this call. If no earlier call is unanswered, nothing can take effect.
            if not in_place.is_unanswered(move, [last] if last else []):
                context.moves.note(move.uuid, run.claim, after_migration=ANSWERED)
            raise

    def _aim(
        self, run: Run, cloud: Cloud, move: ServerMove, incident: Incident
    ) -> evacuation_plan.Aim:
        incidents = self._context.incidents
        member = incidents.member(incident.host)
        method = member.segment.recovery_method if member else AUTO
        if method == AUTO and not move.reservation:
            return evacuation_plan.Aim()  # without reading all hosts of a large segment
        reserved = incidents.hosts_of(move.reservation) if move.reservation else ()
        up: set[str] = set()
        if not move.reservation and method != AUTO:
            up = {service.host for service in cloud.services.list() if service.state == "up"}
        load = {host: len(self._context.moves.to(host)) for host in reserved}
        members = incidents.members(incident.segment) if member else ()
        used = incident.host_progress.spares
        aim = evacuation_plan.aim(move, method, members, reserved, up, load, used)
        if aim.wait:
            raise Conflict(aim.wait)
        return aim

    def _open_spare(self, cloud: Cloud, incident: Incident, target: evacuation_plan.Aim) -> None:
        """Enable the spare host in Nova and add it to aggregates of the failed host.

        `add_spare_to_aggregates` controls the second part.
        """
        assert target.host is not None
        cloud.services.enable(target.host)
        if not self._context.settings.add_spare_to_aggregates:
            return
        for pool in cloud.pools.list():
            if evacuation_plan.is_ours(pool, self._context.freepool):
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

    def _end(self, run: Run, move: ServerMove, status: str, said: str) -> None:
        context = self._context
        context.moves.end(move.uuid, run.claim, status, said)
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
            if not pending and not in_place.is_unanswered(move, mine):
                in_place.restore_status(cloud, cloud.servers.show(move.server_id), move)
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
