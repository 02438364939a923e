# SPDX-License-Identifier: Apache-2.0
"""Messages about servers as a real Nova sent them (`instance_messages.jsonl`), and variations."""

from __future__ import annotations

import copy
import functools
import json
from pathlib import Path
from typing import Any

from holdfast.model.nova_notification import ServerNotice, parse

FILE = Path(__file__).parent / "instance_messages.jsonl"
FAILED = "nova-compute cannot resume it"
OFF = "nova-compute finds it switched off"
CRASHED = "nova-compute finds it crashed"


@functools.cache
def _all() -> dict[str, Any]:
    lines = [json.loads(line) for line in FILE.read_text().splitlines()]
    return {line["what"]: line["message"] for line in lines}


def names() -> list[str]:
    return list(_all())


def message(what: str, **changes: Any) -> dict[str, Any]:
    """A copy to play with; `changes` are of the server's own data, those of a state's change, and
    of the message's head."""
    made = copy.deepcopy(_all()[what])
    data = made["payload"]["nova_object.data"]
    change = (data.get("state_update") or {}).get("nova_object.data", {})
    for name, value in changes.items():
        where = next((one for one in (made, change, data) if name in one), data)
        where[name] = value
    return made


def notice(what: str, **changes: Any) -> ServerNotice:
    found = parse(message(what, **changes))
    assert isinstance(found, ServerNotice)
    return found


def envelope(said: dict[str, Any]) -> str:
    """As it is on the wire."""
    return json.dumps({"oslo.version": "2.0", "oslo.message": json.dumps(said)})
