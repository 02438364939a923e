# SPDX-License-Identifier: Apache-2.0
"""/holdfast/v1/repair and /leases/…: repair plans and runs, acknowledgement, host replacement.

A repair replaces failed hosts of reservations. A plan shows the effect of a repair now, or after
further failures. Owners acknowledge changed resources; operators replace a host of a reservation.
"""

from typing import Any

from holdfast.api.holdfast_v1.observations import plain
from holdfast.api.request import Request, Response
from holdfast.model.errors import InvalidInput
from holdfast.ports.manager import RepairMove, RepairReport

MOST_NAMED = 1000
LONGEST_DOMAIN = 200
NAMES = {
    "type": "array",
    "maxItems": MOST_NAMED,
    "items": {"type": "string", "minLength": 1, "maxLength": 255},
}
PLAN: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "hosts": {**NAMES, "description": "If these failed as well: by name or id."},
        "racks": {**NAMES, "description": "If all enrolled hosts of these racks did."},
    },
}
RUN: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "approve": {
            "type": "boolean",
            "default": False,
            "description": "Confirm the mass failure: lift the hold for a while.",
        },
        "reason": {
            "type": "string",
            "maxLength": 1000,
            "description": "The reason of the approval; required with approve.",
        },
        "domain": {
            "type": "string",
            "maxLength": LONGEST_DOMAIN,
            "description": "The rack or zone that is approved; empty: all of them.",
        },
    },
}
_TEXT = {"type": "string"}
_MAYBE = {"type": ["string", "null"]}
_TEXTS = {"type": "array", "items": _TEXT}
_DATE = {"type": "string", "format": "date-time"}
_MOVE: dict[str, Any] = {
    "lease_id": _TEXT,
    "lease_name": _TEXT,
    "project_id": _TEXT,
    "reservation_id": _TEXT,
    "resource_type": _TEXT,
    "active": {"type": "boolean"},
    "start_date": _DATE,
    "end_date": _DATE,
    "leaves": _TEXTS,
    "joins": _TEXTS,
    "short": {**_MAYBE, "description": "Missing resources and the reason; null: none is missing."},
}
_COUNTS = ("reservations", "moved", "short", "usable", "free")
_SHOWN: dict[str, Any] = {
    "failed": _TEXTS,
    "held": {**_MAYBE, "description": "Why part of it waits for approval; null: none does."},
    "counts": {
        "type": "object",
        "required": list(_COUNTS),
        "properties": {name: {"type": "integer", "minimum": 0} for name in _COUNTS},
    },
    "moves": {
        "type": "array",
        "items": {"type": "object", "required": list(_MOVE), "properties": _MOVE},
    },
}
VIEW = {"type": "object", "required": list(_SHOWN), "properties": _SHOWN}


def acknowledge(request: Request) -> Response:
    """Acknowledge changed resources of a lease; idempotent.

    Raises NotFound for a lease of another project.
    """
    request.services.manager.acknowledge(request.caller, request.path["lease_id"])
    return Response(status=204)


def plan(request: Request) -> Response:
    """Plan a repair now, or after a failure of given hosts and racks; writes nothing."""
    hosts, racks = (tuple(request.body.get(name, ())) for name in ("hosts", "racks"))
    return _told(request.services.manager.plan_repair(request.caller, hosts, racks))


def run(request: Request) -> Response:
    """Start a repair; 202 with the plan. The manager begins at once."""
    approve, reason = request.body.get("approve", False), request.body.get("reason", "").strip()
    if approve and not reason:
        raise InvalidInput("reason: say why the hold is lifted; it is kept with the approval")
    domain = request.body.get("domain", "").strip()
    if domain and not approve:
        raise InvalidInput("domain: goes with approve; a repair itself looks at all hosts")
    report = request.services.manager.run_repair(request.caller, approve, reason, domain)
    return _told(report, status=202)


def view(report: RepairReport) -> dict[str, Any]:
    short = sum(bool(move.short) for move in report.moves)
    return {
        "failed": list(report.failed),
        "held": report.held or None,
        "counts": {
            "reservations": len(report.moves),
            "moved": len(report.moves) - short,
            "short": short,
            "usable": report.usable,
            "free": report.free,
        },
        "moves": [_move(move) for move in report.moves],
    }


def _told(report: RepairReport, status: int = 200) -> Response:
    return Response({"repair": view(report)}, status)


def _move(move: RepairMove) -> dict[str, Any]:
    return {
        "lease_id": move.lease_id,
        "lease_name": move.lease_name,
        "project_id": move.project_id,
        "reservation_id": move.reservation_id,
        "resource_type": move.resource_type,
        "active": move.active,
        "start_date": plain(move.start),
        "end_date": plain(move.end),
        "leaves": list(move.leaves),
        "joins": list(move.joins),
        "short": move.short or None,
    }


# /holdfast/v1/leases/…/reservations/…: operator actions on a reservation.


REPLACE: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["host"],
    "properties": {
        "host": {
            "type": "string",
            "minLength": 1,
            "maxLength": 255,
            "description": "The host to be given up, by id or name.",
        }
    },
}


def replace_host(request: Request) -> Response:
    """Replace a host of a reservation before the start; on refusal nothing changes."""
    host = request.services.store.ledger.host(request.body["host"])
    request.services.manager.replace_host(
        request.caller, request.path["lease_id"], request.path["reservation_id"], host.id
    )
    return Response(status=204)
