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
_SHOWN_ELSEWHERE = {"event", "key", "at", "version", "project", "first_at", "last_at", "central"}
_SHOWN = frozenset(alarms.WHOLE["properties"]) | _SHOWN_ELSEWHERE
_FILTERS = ("host", "rule", "state", "project")


def show(request: Request) -> Response:
    return page(request, "alarms.html", title="Alarms", **_alarms(request))


def rows(request: Request) -> Response:
    return part(request, "alarms_rows.html", **_alarms(request))


def show_alarm(request: Request) -> Response:
    alarm = _alarm(request)
    return page(request, "alarm.html", title=f"Alarm {alarm['rule']}", **_details(alarm))


def state(request: Request) -> Response:
    return part(request, "alarm_state.html", **_details(_alarm(request)))


def acknowledge(request: Request) -> Response:
    alarm = api_calls.call(request, alarms.acknowledge, path=request.path)["alarm"]
    message = f"{alarm['acked_by']} acknowledged the alarm: no further notifications"
    return away(_url(request), message=message)


def mute(request: Request) -> Response:
    """Mute an alarm. The form field `for` is a key of SECONDS, or 0 to end the mute."""
    duration = request.body.get("for", "")
    if duration != "0" and duration not in SECONDS:
        raise InvalidInput(f"for: one of {', '.join(SECONDS)}, or 0 to end the mute")
    body = {"duration_s": SECONDS.get(duration, 0)}
    api_calls.call(request, alarms.mute, path=request.path, body=body)
    message = f"alarm muted for {duration}" if body["duration_s"] else "mute ended"
    return away(_url(request), message=message)


def end(request: Request) -> Response:
    api_calls.call(request, alarms.end, path=request.path)
    return away(_url(request), message="alarm ended")


def _alarms(request: Request) -> dict[str, Any]:
    filters = {
        name: value for name in _FILTERS if (value := str(request.query.get(name, "")).strip())
    }
    if filters.get("state") not in (None, *STATES):
        del filters["state"]
    with_resolved = request.query.get("all") == "true"
    query = {**filters, **({"all": "true"} if with_resolved else {}), "limit": MOST + 1}
    rows = api_calls.call(request, alarms.index, query=query)["alarms"]
    command = ["holdfast", "alarm", "list", "--limit", str(MOST)]
    command += [part for name, value in filters.items() for part in (f"--{name}", value)]
    command += ["--all"] if with_resolved else []
    return {
        "alarms": [{**alarm, "muted": _is_muted(request, alarm)} for alarm in rows[:MOST]],
        "more": len(rows) > MOST,
        "filters": filters,
        "with_resolved": with_resolved,
        "command": command,
    }


def _alarm(request: Request) -> dict[str, Any]:
    alarm: dict[str, Any] = api_calls.call(request, alarms.show, path=request.path)["alarm"]
    return {**alarm, "muted": _is_muted(request, alarm)}


def _is_muted(request: Request, alarm: Mapping[str, Any]) -> bool:
    until = alarm["muted_until"]
    return until is not None and read_time(until) > request.services.clock.now()


def _details(alarm: Mapping[str, Any]) -> dict[str, Any]:
    more = {name: _text(value) for name, value in alarm["details"].items() if name not in _SHOWN}
    return {"alarm": alarm, "more": more, "lengths": LENGTHS}


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _url(request: Request) -> str:
    return f"{PREFIX}/alarms/{quote(request.path['alarm_id'], safe='')}"
