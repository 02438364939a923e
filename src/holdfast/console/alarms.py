# SPDX-License-Identifier: Apache-2.0
"""The alarm pages: a list of alarms on hosts and guests, and the page of an alarm.

Operators acknowledge, mute and end alarms here. A project sees only the alarms of its own
guests.
"""

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from holdfast.alarms.central import STATES
from holdfast.api.holdfast_v1 import alarms
from holdfast.api.request import Request, Response
from holdfast.console import api_calls
from holdfast.console.format import LENGTHS, read_time
from holdfast.console.pages import PREFIX, away, page, part
from holdfast.model.errors import InvalidInput

#: The durations of the mute buttons, in seconds.
SECONDS: Final[Mapping[str, int]] = {name: int(seconds) for seconds, name, _ in LENGTHS}
#: The list shows at most this many alarms, newest first. The filters by host, rule and project
#: find the others.
MOST: Final = 200
#: Detail fields that the alarm page shows elsewhere.
_SAID_ELSEWHERE = {"event", "key", "at", "version", "project", "first_at", "last_at", "central"}
_SHOWN = frozenset(alarms.WHOLE["properties"]) | _SAID_ELSEWHERE
_FILTERS = ("host", "rule", "state", "project")


def show(request: Request) -> Response:
    return page(request, "alarms.html", title="Alarms", **_listed(request))


def rows(request: Request) -> Response:
    return part(request, "alarms_rows.html", **_listed(request))


def one(request: Request) -> Response:
    alarm = _alarm(request)
    return page(request, "alarm.html", title=f"Alarm {alarm['rule']}", **_whole(alarm))


def state(request: Request) -> Response:
    return part(request, "alarm_state.html", **_whole(_alarm(request)))


def acknowledge(request: Request) -> Response:
    found = api_calls.call(request, alarms.acknowledge, path=request.path)["alarm"]
    return away(_place(request), said=f"{found['acked_by']} takes care of it: it is not told again")


def mute(request: Request) -> Response:
    """Mute an alarm. The form field `for` is a key of SECONDS, or 0 to end the mute."""
    asked = request.body.get("for", "")
    if asked != "0" and asked not in SECONDS:
        raise InvalidInput(f"mute: for one of {', '.join(SECONDS)}, or 0 to end it")
    body = {"duration_s": SECONDS.get(asked, 0)}
    api_calls.call(request, alarms.mute, path=request.path, body=body)
    said = f"nothing is told of it for {asked}" if body["duration_s"] else "it is told of again"
    return away(_place(request), said=said)


def end(request: Request) -> Response:
    api_calls.call(request, alarms.end, path=request.path)
    return away(_place(request), said="it is over")


def _listed(request: Request) -> dict[str, Any]:
    asked = {
        name: value for name in _FILTERS if (value := str(request.query.get(name, "")).strip())
    }
    if asked.get("state") not in (None, *STATES):
        del asked["state"]
    every = request.query.get("all") == "true"
    wanted = {**asked, **({"all": "true"} if every else {}), "limit": MOST + 1}
    found = api_calls.call(request, alarms.index, query=wanted)["alarms"]
    shown = [{**one, "silent": _is_silent(request, one)} for one in found[:MOST]]
    command = ["holdfast", "alarm", "list", "--limit", str(MOST)]
    command += [part for name, value in asked.items() for part in (f"--{name}", value)]
    command += ["--all"] if every else []
    more = len(found) > MOST
    return {"alarms": shown, "more": more, "asked": asked, "every": every, "command": command}


def _alarm(request: Request) -> dict[str, Any]:
    found: dict[str, Any] = api_calls.call(request, alarms.show, path=request.path)["alarm"]
    return {**found, "silent": _is_silent(request, found)}


def _is_silent(request: Request, alarm: Mapping[str, Any]) -> bool:
    until = alarm["silent_until"]
    return until is not None and read_time(until) > request.services.clock.now()


def _whole(alarm: Mapping[str, Any]) -> dict[str, Any]:
    more = {name: _text(value) for name, value in alarm["details"].items() if name not in _SHOWN}
    return {"alarm": alarm, "more": more, "lengths": LENGTHS}


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _place(request: Request) -> str:
    return f"{PREFIX}/alarms/{quote(request.path['alarm_id'], safe='')}"
