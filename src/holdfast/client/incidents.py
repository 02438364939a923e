# SPDX-License-Identifier: Apache-2.0
"""Incidents over the wire: `{url}/holdfast/v1/incidents`."""

import builtins
from typing import Any

from holdfast.client import clock
from holdfast.client.refs import UUID, only
from holdfast.client.wire import Wire, path

_PATH = "/holdfast/v1/incidents"
_REPORTS = "/instance-ha/v1/notifications"
_APPROVALS = "/holdfast/v1/approvals"
MOST = 1000

#: id, kind, host, status, sentence, opened_at, closed_at, moves, …, as docs/api.md says.
Incident = dict[str, Any]


class Incidents:
    """client.incidents; for administrators."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def list(self, *, open: bool | None = None, **wanted: Any) -> builtins.list[Incident]:
        """The newest first; of one `status`, `kind`, `host`, `segment`, opened `since`, at most
        `limit`, older than the one `marker`; `open` those that are not over, or only those that
        are."""
        query = {"open": None if open is None else str(open).lower(), **wanted}
        # requests leaves out what is None
        found: list[Incident] = self._wire.call("GET", _PATH, query=query, key="incidents")
        return found

    def show(self, incident_id: str) -> Incident:
        """With verdicts, steps, servers, reports and timeline."""
        return self._ask("GET", incident_id)

    def find(self, ref: str) -> Incident:
        """Of that id, or of the beginning of one that only one incident has."""
        if UUID.fullmatch(ref):
            return self.show(ref)
        found = [one for one in self.list(limit=MOST) if one["id"].startswith(ref.lower())]
        missing = f"there is no incident {ref!r}: `holdfast incident list` shows them"
        return self.show(only("incident", ref, found, missing)["id"])

    def explain(self, incident_id: str) -> dict[str, Any]:
        """Its story: title, parts, and all of it as text."""
        return self._ask("GET", incident_id, "explanation", key="explanation")

    def retry(self, incident_id: str, reason: str = "") -> Incident:
        body = {"reason": reason} if reason else {}
        return self._ask("POST", incident_id, "retry", body=body)

    def abort(self, incident_id: str, reason: str) -> Incident:
        return self._ask("POST", incident_id, "abort", body={"reason": reason})

    def confirm_off(
        self, incident_id: str, reason: str, *, despite_power_on: bool = False
    ) -> Incident:
        """You know that its host is off; servers are started elsewhere on your word. Conflict if
        its fence reads on, unless `despite_power_on`."""
        body: dict[str, Any] = {"reason": reason}
        if despite_power_on:
            body["despite_power_on"] = True
        return self._ask("POST", incident_id, "confirm-off", body=body)

    def report(
        self, host: str, *, server: str | None = None, process: str | None = None
    ) -> dict[str, Any]:
        """The host died, or only that server or process on it: a notification of instance HA."""
        kind, payload = "COMPUTE_HOST", {"event": "STOPPED", "host_status": "NORMAL"}
        if server:
            kind, payload = "VM", {"event": "LIFECYCLE", "vir_domain_event": "STOPPED_FAILED"}
            payload["instance_uuid"] = server
        elif process:
            kind, payload = "PROCESS", {"event": "STOPPED", "process_name": process}
        body = {
            "type": kind,
            "hostname": host,
            "generated_time": clock.now().isoformat(),
            "payload": payload,
        }
        made: dict[str, Any] = self._wire.call(
            "POST", _REPORTS, body={"notification": body}, key="notification"
        )
        return made

    def approve(self, reason: str, domain: str = "") -> dict[str, Any]:
        """So much did fail, in one rack or zone or wherever something is held."""
        body = {"reason": reason, **({"domain": domain} if domain else {})}
        made: dict[str, Any] = self._wire.call("POST", _APPROVALS, body=body, key="approval")
        return made

    def _ask(
        self, method: str, *where: str, body: dict[str, Any] | None = None, key: str = "incident"
    ) -> dict[str, Any]:
        found: dict[str, Any] = self._wire.call(method, _PATH + path(*where), body=body, key=key)
        return found
