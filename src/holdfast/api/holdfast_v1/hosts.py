# SPDX-License-Identifier: Apache-2.0
"""/holdfast/v1/hosts: whether each host can be used and since when, and who says so."""

from typing import Any

from holdfast.api.ask import Ask, Reply
from holdfast.api.holdfast_v1.observations import plain
from holdfast.model.standing import DOWN, RETURNING, SUSPECT, UP
from holdfast.store.standings import Seen

_STATE = {"type": "string", "enum": [UP, SUSPECT, DOWN, RETURNING]}
QUERY: dict[str, Any] = {"state": _STATE}
_TEXT = {"type": "string"}
_SHOWN: dict[str, Any] = {
    "id": {"type": "integer"},
    "uuid": _TEXT,
    "name": _TEXT,
    "zone": _TEXT,
    "rack": _TEXT,
    "state": _STATE,
    "since": {"type": ["string", "null"], "format": "date-time"},
    "why": {**_TEXT, "description": "Who says so; empty where nobody ever said anything."},
    "enrolled": {"type": "boolean"},
    "reservable": {
        "type": "boolean",
        "description": "Enrolled and where it belongs; a booking needs a usable state as well.",
    },
    "segment": {"type": ["string", "null"]},
}
VIEW = {"type": "object", "required": list(_SHOWN), "properties": _SHOWN}


def index(ask: Ask) -> Reply:
    found = ask.services.store.standings.shown(state=ask.query.get("state"))
    return Reply({"hosts": [view(one) for one in found]})


def view(seen: Seen) -> dict[str, Any]:
    standing = seen.standing
    return {
        "id": seen.id,
        "uuid": seen.uuid,
        "name": seen.name,
        "zone": seen.zone,
        "rack": seen.rack,
        "state": standing.state,
        "since": plain(standing.since),
        "why": standing.why,
        "enrolled": seen.enrolled,
        "reservable": seen.reservable,
        "segment": seen.segment,
    }
