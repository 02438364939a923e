# SPDX-License-Identifier: Apache-2.0
"""Plan of an evacuation: which servers leave a dead host, in which order, and to which hosts.

Pure functions without I/O.
"""

import fnmatch
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from holdfast.model.host import same
from holdfast.model.segment import AUTO, AUTO_PRIORITY, RESERVED_HOST, RH_PRIORITY, SegmentHost
from holdfast.nova.names import KEPT, OWNER, SERVER, SLOTS
from holdfast.ports.cloud import Pool, Server
from holdfast.ports.recovery import IGNORED, PENDING, ServerMove
from holdfast.recovery.context import Settings
from holdfast.recovery.guards import HaSetting, HaSettings

#: Nova evacuates servers with these statuses directly; any other server is set to ERROR first.
READY = frozenset({"ACTIVE", "SHUTOFF", "ERROR"})
#: Servers with these statuses ran before the failure and must run again afterwards.
RAN = frozenset({"ACTIVE"})
RESIZED = "VERIFY_RESIZE"


@dataclass(frozen=True)
class Known:
    """The dead host and its servers which ran at its death."""

    host: str
    ran: Collection[str] = ()


def ran(
    servers: Sequence[Server],
    died: Collection[str],
    settings: Settings,
    said: HaSettings | None = None,
) -> list[str]:
    """Ids of the servers to run again: active, or powered with an unconfirmed resize.

    Servers in `died`, which crashed just before the host, count too if they are to be kept
    running.
    """
    ha_settings = said or HaSettings(settings.ha_key)

    def is_kept(server: Server) -> bool:
        enabled = ha_settings.of(server).enabled
        return settings.restart_all if enabled is None else enabled

    return [
        one.id
        for one in servers
        if one.status in RAN
        or (one.status == RESIZED and one.powered)
        or (one.id in died and is_kept(one))
    ]


def moves(
    servers: Sequence[Server],
    pools: Sequence[Pool],
    known: Known,
    settings: Settings,
    said: HaSettings | None = None,
) -> list[ServerMove]:
    """Moves of all servers in evacuation order; servers to leave in place have status ignored."""
    source = known.host
    owners = owning(pools, source)
    ha_settings = said or HaSettings(settings.ha_key)
    ha_setting = {server.id: ha_settings.of(server) for server in servers}
    ordered = sorted(servers, key=lambda one: _rank(one, settings, ha_setting[one.id]))
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
                was="ACTIVE" if server.id in known.ran else server.status,
                locked_before=server.locked,
                reservation=owners.get(server.project_id, ""),
                position=position,
            )
        )
    return server_moves


def owning(pools: Sequence[Pool], source: str) -> dict[str, str]:
    """Map each project to its reservation of the whole host.

    A host stays in the reservation's aggregate until its servers have left, even if repair has
    already assigned another host.
    """
    return {
        pool.metadata[OWNER]: pool.name
        for pool in pools
        if OWNER in pool.metadata
        and not pool.metadata.keys() & {SLOTS, SERVER}
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
class Aim:
    """Destination of the next attempt: a named host, or None for the scheduler's choice.

    `wait` says why the server cannot go anywhere now.
    """

    host: str | None = None
    wait: str = ""
    spare: str = ""  # uuid of the spare host that the move uses up


def aim(
    move: ServerMove,
    method: str,
    members: Sequence[SegmentHost],
    reserved: Sequence[str],
    up: Collection[str],
    load: Mapping[str, int],
    used: Collection[str] = (),
) -> Aim:
    """Choose the destination of the next attempt.

    `reserved`: hosts which the server's reservation has now. `up`: hosts whose service is
    alive. `load`: number of servers under way to each host. `used`: spares that this incident
    has used already.
    """
    if move.reservation:
        fit = [host for host in reserved if not same(host, move.source_host)]
        if not fit:
            said = f"reservation {move.reservation} has no other host yet"
            return Aim(wait=said)
        return Aim(host=min(fit, key=lambda host: (load.get(host, 0), host)))
    spares = sorted(
        (
            member
            for member in members
            if (member.reserved or member.uuid in used)
            and not member.on_maintenance
            and not same(member.name, move.source_host)
            and any(same(member.name, host) for host in up)
        ),
        key=lambda one: (one.uuid not in used, one.name),
    )
    turn = move.attempts
    if method == AUTO or (method == AUTO_PRIORITY and turn % 2 == 0):
        return Aim()
    if method == RH_PRIORITY and (turn % 2 == 1 or not spares):
        return Aim()
    if not spares:
        return Aim(wait="no spare host of its segment is left")
    at = turn if method == RESERVED_HOST else turn // 2
    one = spares[at % len(spares)]
    return Aim(host=one.name, spare=one.uuid)
