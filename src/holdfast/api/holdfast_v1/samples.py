# SPDX-License-Identifier: Apache-2.0
"""/holdfast/v1/hosts/HOST/samples: the last hour of a host and its guests. Its agent sends it only
while somebody looks, and whoever looks says so by a POST: a GET changes nothing."""

from typing import Any

from holdfast.api.ask import Ask, Reply
from holdfast.api.holdfast_v1.agents import own_host
from holdfast.api.holdfast_v1.monitors import shape
from holdfast.api.holdfast_v1.observations import plain
from holdfast.model import samples
from holdfast.model.errors import InvalidInput, StaleWrite, Unavailable
from holdfast.model.host import normalise
from holdfast.model.samples import FIELDS, MOST_BYTES, POINTS

__all__ = ["MOST_BYTES", "PUT", "VIEW", "WANT", "WANTED", "put", "show", "want"]

_TEXT = {"type": "string"}
_DATE = {"type": ["string", "null"], "format": "date-time"}
_COUNT = {"type": "integer", "minimum": 0}
_POINTS = {
    "type": "string",
    "description": "A float of four bytes, little-endian, for each point, in base64; NaN: unknown.",
}
_LINE = {
    "type": "object",
    "required": ["kind", "id", "values"],
    "properties": {
        "kind": {"type": "string", "enum": list(FIELDS)},
        "id": _TEXT,
        **dict.fromkeys(("name", "project", "project_name", "flavor", "guest"), _TEXT),
        "contracts": {"type": "object", "additionalProperties": {"type": "number"}},
        "values": {"type": "object", "additionalProperties": _POINTS},
    },
}
_HOUR: dict[str, Any] = {
    "begin": {**_COUNT, "description": "The first point; point n is of second 10 n since 1970."},
    "points": {**_COUNT, "maximum": POINTS},
    "lines": {"type": "array", "items": _LINE},
    "left_out": {**_COUNT, "description": "So many there was no room for."},
    "simulated": {"type": "boolean", "description": "There is no host: these are made up."},
}
WANT: dict[str, Any] = {"type": "object", "additionalProperties": False, "properties": {}}
#: What is in it is looked at by model/samples: a schema takes seconds for what may be megabytes.
PUT: dict[str, Any] = {
    "type": "object",
    "required": ["begin", "points", "lines"],
    "properties": {**_HOUR, "lines": {"type": "array"}},
}
_WANTED = {"host": _TEXT, "wanted_until": {**_DATE, "description": "null: nobody ever looked."}}
WANTED = shape(_WANTED)
VIEW = shape(
    {
        **_WANTED,
        "at": {**_DATE, "description": "When numbers came last; null: none did."},
        "fresh": {"type": "boolean", "description": "Whether they come in just now."},
        **_HOUR,
    }
)


def show(ask: Ask) -> Reply:
    found = ask.services.store.samples.look(_host(ask))
    hour = {"left_out": 0, "simulated": False, **samples.plain(found.hour)}
    said = {
        "host": found.host,
        "wanted_until": plain(found.wanted_until),
        "at": plain(found.at),
        "fresh": found.fresh,
    }
    return Reply({"samples": {**said, **hour}})


def want(ask: Ask) -> Reply:
    host = _host(ask)
    try:
        until = ask.services.store.samples.want(host)
    except StaleWrite as error:
        raise Unavailable("it could not be written just now, ask again") from error
    return Reply({"samples": {"host": host, "wanted_until": plain(until)}}, 202)


def put(ask: Ask) -> Reply:
    """By the agent of the host. What nobody wants any more is no mistake of its."""
    host, hour = own_host(ask), samples.read(ask.body)
    try:
        ask.services.store.samples.put(host, hour)
    except StaleWrite as error:
        raise Unavailable("it could not be written just now, send it again") from error
    return Reply(status=204)


def _host(ask: Ask) -> str:
    host = normalise(ask.path["host"])
    if not 0 < len(host) <= 255:
        raise InvalidInput("host: its name has 1 to 255 characters")
    return host
