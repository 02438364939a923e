# SPDX-License-Identifier: Apache-2.0
"""/holdfast/v1/hosts/{host}/expected: what should run on a host. The cloud is asked at once; if it
cannot be, that is a 503 and never an empty list."""

import uuid
from typing import Any

from holdfast.api import agents
from holdfast.api.ask import Ask, Reply
from holdfast.api.holdfast_v1.monitors import shape
from holdfast.model.errors import InvalidInput
from holdfast.model.expected import STATES
from holdfast.ports.expected import MOST_ALSO

_TEXT = {"type": "string"}
QUERY: dict[str, Any] = {
    "also": {
        **_TEXT,
        "maxLength": MOST_ALSO * 37,
        "description": f"Ids of up to {MOST_ALSO} more servers, with commas between them: guests"
        " that run there and are not listed.",
    }
}
_SERVER = shape(
    {"id": _TEXT, "name": _TEXT, "state": {**_TEXT, "enum": list(STATES)}, "why": _TEXT}
)
VIEW = shape(
    {
        "host": _TEXT,
        "at": {**_TEXT, "format": "date-time"},
        "servers": {"type": "array", "items": _SERVER},
    }
)


def show(ask: Ask) -> Reply:
    host = ask.path["host"]
    agents.check_host(ask.caller, host)
    # of another one that is called so for short it learns nothing
    host = max(host, agents.own_host(ask.caller) or "", key=len)
    said = ask.services.manager.expected(ask.caller, host, _ids(ask))
    servers = [
        {"id": one.uuid, "name": one.name, "state": one.state, "why": one.why}
        for one in said.servers
    ]
    shown = {"host": said.host, "at": said.at.isoformat(), "servers": servers}
    return Reply({"expected": shown})


def _ids(ask: Ask) -> list[str]:
    words = [word for said in ask.every.get("also", ()) for word in said.split(",") if word]
    if len(words) > MOST_ALSO:
        raise InvalidInput(f"also: {len(words)} ids; ask about {MOST_ALSO} at a time")
    try:
        return [str(uuid.UUID(word)) for word in words]
    except ValueError:
        raise InvalidInput("also: write ids of servers, with commas between them") from None
