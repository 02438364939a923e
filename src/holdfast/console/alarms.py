# SPDX-License-Identifier: Apache-2.0
"""Alarms that stand on hosts and guests, one of them with all that was said of it, and what people
answer. A project sees those of its own guests."""

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

#: How long an alarm can be silenced by a button, in seconds.
SECONDS: Final[Mapping[str, int]] = {name: int(seconds) for seconds, name, _ in LENGTHS}
#: So many are listed, the newest; the others are found by host, rule or project.
MOST: Final = 200
#: What is shown of an alarm elsewhere on its page.
_SAID_ELSEWHERE = {"event", "key", "at", "version", "project", "first_at", "last_at", "central"}
_SHOWN = frozenset(alarms.WHOLE["properties"]) | _SAID_ELSEWHERE
_FILTERS = ("host", "rule", "state", "project")


def show(ask: Request) -> Response:
    return page(ask, "alarms.html", title="Alarms", **_listed(ask))


def rows(ask: Request) -> Response:
    return part(ask, "alarms_rows.html", **_listed(ask))


def one(ask: Request) -> Response:
    alarm = _alarm(ask)
    return page(ask, "alarm.html", title=f"Alarm {alarm['rule']}", **_whole(alarm))


def state(ask: Request) -> Response:
    return part(ask, "alarm_state.html", **_whole(_alarm(ask)))


def acknowledge(ask: Request) -> Response:
    found = api_calls.call(ask, alarms.acknowledge, path=ask.path)["alarm"]
    return away(_place(ask), said=f"{found['acked_by']} takes care of it: it is not told again")


def silence(ask: Request) -> Response:
    """`for` is one of SECONDS, or 0: it is not silent any more."""
    asked = ask.body.get("for", "")
    if asked != "0" and asked not in SECONDS:
        raise InvalidInput(f"silence: for one of {', '.join(SECONDS)}, or 0 to end it")
    body = {"duration_s": SECONDS.get(asked, 0)}
    api_calls.call(ask, alarms.silence, path=ask.path, body=body)
    said = f"nothing is told of it for {asked}" if body["duration_s"] else "it is told of again"
    return away(_place(ask), said=said)


def end(ask: Request) -> Response:
    api_calls.call(ask, alarms.end, path=ask.path)
    return away(_place(ask), said="it is over")


def _listed(ask: Request) -> dict[str, Any]:
    asked = {name: value for name in _FILTERS if (value := str(ask.query.get(name, "")).strip())}
    if asked.get("state") not in (None, *STATES):
        del asked["state"]
    every = ask.query.get("all") == "true"
    wanted = {**asked, **({"all": "true"} if every else {}), "limit": MOST + 1}
    found = api_calls.call(ask, alarms.index, query=wanted)["alarms"]
    shown = [{**one, "silent": _is_silent(ask, one)} for one in found[:MOST]]
    command = ["holdfast", "alarms", "list", "--limit", str(MOST)]
    command += [part for name, value in asked.items() for part in (f"--{name}", value)]
    command += ["--all"] if every else []
    more = len(found) > MOST
    return {"alarms": shown, "more": more, "asked": asked, "every": every, "command": command}


def _alarm(ask: Request) -> dict[str, Any]:
    found: dict[str, Any] = api_calls.call(ask, alarms.show, path=ask.path)["alarm"]
    return {**found, "silent": _is_silent(ask, found)}


def _is_silent(ask: Request, alarm: Mapping[str, Any]) -> bool:
    until = alarm["silent_until"]
    return until is not None and read_time(until) > ask.services.clock.now()


def _whole(alarm: Mapping[str, Any]) -> dict[str, Any]:
    more = {name: _text(value) for name, value in alarm["details"].items() if name not in _SHOWN}
    return {"alarm": alarm, "more": more, "lengths": LENGTHS}


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _place(ask: Request) -> str:
    return f"{PREFIX}/alarms/{quote(ask.path['alarm_id'], safe='')}"
