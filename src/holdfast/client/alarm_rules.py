# SPDX-License-Identifier: Apache-2.0
"""Alarm rules over the wire: `{url}/holdfast/v1/alarm-rules`."""

import builtins
from collections.abc import Sequence
from typing import Any

from holdfast.client.wire import Wire, path

_RULES = "/holdfast/v1/alarm-rules"
_PREVIEW = "/holdfast/v1/alarm-rules-preview"

#: name, scope, version, author, created_at; in lists `rules`, of one `text`
Document = dict[str, Any]


class AlarmRules:
    """client.alarm_rules; for administrators."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def list(self) -> builtins.list[Document]:
        found: list[Document] = self._wire.call("GET", _RULES, key="alarm_rules")
        return found

    def show(self, name: str, version: int | None = None) -> Document:
        """As it is, or was at that version."""
        query = {"version": version} if version is not None else {}
        where = _RULES + path(name)
        found: Document = self._wire.call("GET", where, query=query, key="alarm_rules")
        return found

    def set(self, name: str, text: str, **more: Any) -> Document:
        """Make or replace it; `more`: scope, and `replaces`, the version that you saw. BadRequest
        has all that is wrong with it in `details`."""
        body = {"text": text, **more}
        made: Document = self._wire.call("PUT", _RULES + path(name), body=body, key="alarm_rules")
        return made

    def roll_back(self, name: str, version: int | None = None) -> Document:
        """To what it said before, or at that version."""
        body = {"version": version} if version is not None else {}
        where = _RULES + path(name, "rollback")
        made: Document = self._wire.call("POST", where, body=body, key="alarm_rules")
        return made

    def history(self, name: str) -> builtins.list[Document]:
        """All versions, the newest first."""
        found: list[Document] = self._wire.call(
            "GET", _RULES + path(name, "history"), key="versions"
        )
        return found

    def preview(self, text: str, hosts: Sequence[str]) -> dict[str, Any]:
        """What they would have made of the last hour of hosts that are looked at: `hosts` of which
        something is known, `stories`, `silent` rules. Nothing changes."""
        body = {"text": text, "hosts": builtins.list(hosts)}
        found: dict[str, Any] = self._wire.call("POST", _PREVIEW, body=body, key="preview")
        return found

    def delete(self, name: str) -> None:
        self._wire.call("DELETE", _RULES + path(name))
