# SPDX-License-Identifier: Apache-2.0
"""Repair over the wire: `{url}/holdfast/v1/repair`."""

from collections.abc import Iterable
from typing import Any

from holdfast.client.wire import Wire

_PATH = "/holdfast/v1/repair"

#: failed, held, counts and moves, as docs/api.md says.
Report = dict[str, Any]


class Repair:
    """client.repair; for administrators."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def plan(self, *, hosts: Iterable[str] = (), racks: Iterable[str] = ()) -> Report:
        """What a repair would do now; with hosts or racks: if these failed as well."""
        return self._ask("/plan", {"hosts": list(hosts), "racks": list(racks)})

    def run(self, *, approve: bool = False, reason: str = "", domain: str = "") -> Report:
        """Repair now, and what that will do; `approve`, with a reason, lifts the hold of a mass
        failure: all of it, or in one rack or zone."""
        body = {"approve": approve, "reason": reason}
        return self._ask("", {**body, "domain": domain} if domain else body)

    def _ask(self, where: str, body: dict[str, Any]) -> Report:
        report: Report = self._wire.call("POST", _PATH + where, body=body, key="repair")
        return report
