# SPDX-License-Identifier: Apache-2.0
"""/holdfast/v1/what-if: the effects of an assumed failure of hosts and racks; nothing changes.

The response holds the repair plan, the preview of recovery and the capacity left.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from holdfast.api.holdfast_v1 import repair
from holdfast.api.holdfast_v1.agents import guest_counts
from holdfast.api.request import Request, Response
from holdfast.db.views import WallSnapshot
from holdfast.hoststatus.status import USABLE
from holdfast.model.errors import NotFound
from holdfast.model.host import same, short
from holdfast.model.incident import HOST
from holdfast.ports.manager import RepairReport
from holdfast.ports.recovery import Switch
from holdfast.recovery import what_if
from holdfast.recovery.what_if import Holder, Host, Left, RecoveryPreview

#: The most failed hosts that the planner takes at once.
MOST_FAILED = repair.MOST_NAMED
HOLDERS, FAILOVER = "reservation:host:allocations", "holdfast:failover:list"
ASK: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        name: {**repair.NAMES, "description": f"{what} that fail as well."}
        for name, what in (("hosts", "Hosts, by name or id,"), ("racks", "All hosts of racks"))
    },
}
_TEXT = {"type": "string"}
_TEXTS = {"type": "array", "items": _TEXT}
_COUNT = {"type": "integer", "minimum": 0}
_MAYBE = {"type": ["integer", "null"], "description": "Null: not known."}


def _object(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "required": list(properties), "properties": dict(properties)}


def _list(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": _object(properties)}


_SERVERS = {
    "host": _TEXT,
    "guests": _MAYBE,
    "segment": _TEXT,
    "why": {**_TEXT, "description": "Why the servers stay down; empty: they move."},
    "how": _TEXT,
    "sentence": _TEXT,
}
_SIZE = _object({name: _COUNT for name in ("vcpus", "memory_mb", "local_gb")})
_HOSTS = ("up", "still_up", "usable", "still_usable", "free", "still_free")
_LEFT: dict[str, Any] = {
    "name": _TEXT,
    **dict.fromkeys(_HOSTS, _COUNT),
    "size": _SIZE,
    "still_size": _SIZE,
    "kept": {**_COUNT, "description": "Hosts that the segment keeps free for failures."},
    "is_short": {"type": "boolean"},
}
VIEW = _object(
    {
        "hosts": {**_TEXTS, "description": "The hosts that fail."},
        "left_out": {**_TEXTS, "description": "Too many for the planner: thought alive."},
        "already": {**_TEXTS, "description": "Enrolled hosts that are out of use already."},
        "repair": repair.VIEW,
        "recovery": _object(
            {
                "move": _COUNT,
                "stay": _COUNT,
                "uncounted": {**_COUNT, "description": "Hosts with an unknown server count."},
                "evacuate_all": {"type": "boolean"},
                "ha_key": _TEXT,
                "hosts": _list(_SERVERS),
            }
        ),
        "racks": _list(_LEFT),
        "segments": _list(_LEFT),
    }
)


def ask(request: Request) -> Response:
    """Preview repair and recovery after a failure; NotFound for an unknown host or rack."""
    hosts = _hosts(request)
    dead = _dead(hosts, *(request.body.get(name, ()) for name in ("hosts", "racks")))
    thought = [host.name for host in dead if host.enrolled]
    failing, left_out = thought[:MOST_FAILED], thought[MOST_FAILED:]
    report = request.services.manager.plan_repair(request.caller, tuple(failing), ())
    gone = {host.name for host in dead} - {*left_out}
    return Response({"what_if": _view(request, hosts, report, gone, dead, left_out)})


def _view(
    request: Request,
    hosts: Sequence[Host],
    report: RepairReport,
    gone: set[str],
    dead: Sequence[Host],
    left_out: Sequence[str],
) -> dict[str, Any]:
    replacements: dict[str, set[str]] = {}
    for move in report.moves:
        if move.active:
            replacements.setdefault(move.lease_id, set()).update(move.joins)
    taken = {name for names in replacements.values() for name in names}
    previews = what_if.preview(_inputs(request, hosts), gone, replacements)
    sizes = request.services.store.ledger.sizes()
    after = what_if.After(gone | {*report.failed}, taken, sizes)
    settings = request.services.conf.recovery
    return {
        "hosts": [host.name for host in dead],
        "left_out": list(left_out),
        "already": [host.name for host in hosts if host.enrolled and host.state not in USABLE],
        "repair": repair.view(report),
        "recovery": {
            **asdict(what_if.sums(previews)),
            "evacuate_all": settings.evacuate_all,
            "ha_key": settings.ha_key,
            "hosts": [_servers(preview) for preview in previews],
        },
        "racks": [_left(rack) for rack in what_if.left(hosts, after, what_if.RACK)],
        "segments": [_left(segment) for segment in _segments(request, hosts, after)],
    }


def _servers(preview: RecoveryPreview) -> dict[str, Any]:
    return {**asdict(preview), "sentence": preview.sentence}


def _left(left: Left) -> dict[str, Any]:
    return {**asdict(left), "is_short": left.is_short}


def _segments(request: Request, hosts: Sequence[Host], after: what_if.After) -> Sequence[Left]:
    """Return the segments that keep hosts free for failures."""
    if not request.allowed(FAILOVER):
        return ()
    kept = {capacity.name: capacity.kept for capacity in request.services.store.failover.report()}
    segments = what_if.left(hosts, after, what_if.SEGMENT, kept)
    return [segment for segment in segments if segment.kept]


def _hosts(request: Request) -> list[Host]:
    """Return all hosts. Open incidents count even if the caller may not list incidents."""
    snapshot, counts = request.services.store.wall.snapshot(), guest_counts(request)
    hit = {short(incident.host) for incident in snapshot.open if incident.kind == HOST}
    hidden = not (request.caller.is_admin or request.allowed(HOLDERS))
    return [
        Host(
            row.id,
            row.service_host,
            row.state,
            row.rack,
            row.zone,
            row.segment or "",
            row.enrolled,
            row.reservable,
            _holders(snapshot, row.id, hidden=hidden),
            bool(row.on_maintenance),
            bool(row.spare),
            counts.get(row.name, counts.get(short(row.name))),
            short(row.name) in hit,
        )
        for row in snapshot.hosts
    ]


def _holders(snapshot: WallSnapshot, host_id: int, *, hidden: bool) -> Sequence[Holder]:
    held = snapshot.held.get(host_id, ())
    if hidden:
        return [Holder("", "reserved")] if held else ()
    return [Holder(hold.lease_id, hold.lease) for hold in held]


def _dead(hosts: Sequence[Host], names: Sequence[str], racks: Sequence[str]) -> list[Host]:
    known = {host.rack for host in hosts if host.rack}
    for rack in racks:
        if rack not in known:
            shown = ", ".join(sorted(known)[:20]) or "none"
            raise NotFound(f"no host is in rack {rack[:80]!r}; racks known: {shown}")
    by: dict[str, list[Host]] = {}
    for enrolled in hosts:
        by.setdefault(short(enrolled.name), []).append(enrolled)
        by.setdefault(str(enrolled.id), []).append(enrolled)
    chosen = {_named(by.get(short(name), ()), name) for name in names}
    return [host for host in hosts if host.id in chosen or host.rack in {*racks}]


def _named(alike: Sequence[Host], name: str) -> int:
    for host in alike:
        if same(host.name, name) or str(host.id) == name:
            return host.id
    raise NotFound(f"no host has the name or id {name[:80]!r}: holdfast host list")


def _inputs(request: Request, hosts: Sequence[Host]) -> what_if.Inputs:
    store, conf = request.services.store, request.services.conf
    now, given = store.database.now(), conf.reservation
    return what_if.Inputs(
        now,
        hosts,
        {segment_host.host_id: segment_host for segment_host in store.segments.all_members()},
        {_segment_of(row): _switch(row) for row in store.switches.all_pauses()},
        [
            (row["matcher"], _switch(row))
            for row in store.switches.all_windows()
            if row["starts_at"] <= now
        ],
        [row["domain"] for row in store.switches.all_approvals()],
        conf.mass_failure,
        conf.recovery.dry_run,
        given.repair,
    )


def _segment_of(pause: Mapping[str, Any]) -> str:
    """Return the segment of a pause; empty for a pause everywhere."""
    return str(pause["scope"]).partition(":")[2]


def _switch(row: Mapping[str, Any]) -> Switch:
    return Switch(str(row.get("scope", "")), row["author"], row["reason"], row["expires_at"])
