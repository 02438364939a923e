# SPDX-License-Identifier: Apache-2.0
"""Alarms over the wire: `{url}/holdfast/v1/alarms`."""

import builtins
from datetime import timedelta
from typing import Any

from holdfast.client.wire import Wire, path

_ALARMS = "/holdfast/v1/alarms"

#: id, rule, state, severity, host, subject, name, value, threshold, …; of one also `details`
Alarm = dict[str, Any]


class Alarms:
    """client.alarms; a project sees those of its own servers, an administrator all."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def list(self, **wanted: Any) -> builtins.list[Alarm]:
        """Those that stand, the newest first. `wanted`: host, rule, project, state, limit; `all`:
        also those that are over."""
        query = {name: value for name, value in wanted.items() if value not in (None, False)}
        if query.get("all"):
            query["all"] = "true"
        found: list[Alarm] = self._wire.call("GET", _ALARMS, query=query, key="alarms")
        return found

    def show(self, alarm_id: str) -> Alarm:
        found: Alarm = self._wire.call("GET", _ALARMS + path(alarm_id), key="alarm")
        return found

    def acknowledge(self, alarm_id: str) -> Alarm:
        """Somebody takes care: it is not told again until it is over."""
        where = _ALARMS + path(alarm_id, "ack")
        found: Alarm = self._wire.call("POST", where, body={}, key="alarm")
        return found

    def silence(self, alarm_id: str, lasts: timedelta) -> Alarm:
        """Nothing is told of it for so long; no time at all ends a silence, and what was kept back
        of an alarm that stands is told."""
        where, body = (
            _ALARMS + path(alarm_id, "silence"),
            {"duration_s": int(lasts.total_seconds())},
        )
        found: Alarm = self._wire.call("POST", where, body=body, key="alarm")
        return found

    def end(self, alarm_id: str) -> Alarm:
        """It is over, though its agent does not say so."""
        where = _ALARMS + path(alarm_id, "end")
        found: Alarm = self._wire.call("POST", where, body={}, key="alarm")
        return found
