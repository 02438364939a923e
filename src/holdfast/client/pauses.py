# SPDX-License-Identifier: Apache-2.0
"""The operator's switches of recovery over the wire: pauses and silences."""

import builtins
from datetime import timedelta
from typing import Any

from holdfast.client.wire import Wire, path

_PAUSES, _SILENCES = "/holdfast/v1/pauses", "/holdfast/v1/silences"
HOUR = timedelta(hours=1)

Pause = dict[str, Any]
Silence = dict[str, Any]


class Pauses:
    """client.pauses; for administrators."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def list(self) -> builtins.list[Pause]:
        """Those in force."""
        found: list[Pause] = self._wire.call("GET", _PAUSES, key="pauses")
        return found

    def pause(self, reason: str, *, segment: str = "", lasts: timedelta | None = HOUR) -> Pause:
        """Recovery everywhere, or in one segment (name or id); without an end if `lasts` is
        None."""
        body: dict[str, Any] = {"reason": reason}
        body["duration_s"] = None if lasts is None else int(lasts.total_seconds())
        if segment:
            body["segment"] = segment
        made: Pause = self._wire.call("POST", _PAUSES, body=body, key="pause")
        return made

    def resume(self, *, segment: str = "") -> None:
        """NotFound if nothing was paused there."""
        self._wire.call("DELETE", _PAUSES, query={"segment": segment or None})


class Silences:
    """client.silences; for administrators."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def list(self) -> builtins.list[Silence]:
        """Those in force, and those to come."""
        found: list[Silence] = self._wire.call("GET", _SILENCES, key="silences")
        return found

    def add(self, matcher: dict[str, str], reason: str, **when: Any) -> Silence:
        """Of what has the matcher's kind, host, segment and server nothing is recovered; `when`:
        starts_at, and expires_at or duration_s."""
        body = {"matcher": matcher, "reason": reason, **when}
        made: Silence = self._wire.call("POST", _SILENCES, body=body, key="silence")
        return made

    def remove(self, silence_id: str) -> None:
        self._wire.call("DELETE", _SILENCES + path(silence_id))
