# SPDX-License-Identifier: Apache-2.0
"""The client: an object per server, with an attribute per REST resource.

    Client().operations.list()

Without arguments, URL and credentials come from the environment (see `auth`).
"""

import builtins
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

from holdfast.client import dates
from holdfast.client.auth import Access, Session, find, url_from
from holdfast.client.errors import NotFound, NotUnique, Unauthorized
from holdfast.client.http import Wire, path
from holdfast.model import host as names

_RULES = "/holdfast/v1/alarm-rules"
_PREVIEW = "/holdfast/v1/alarm-rules-preview"

#: name, scope, version, author, created_at; lists add `rules`, single documents `text`
Document = dict[str, Any]


class AlarmRules:
    """client.alarm_rules: alarm rule documents, /holdfast/v1/alarm-rules; for administrators."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def list(self) -> builtins.list[Document]:
        found: list[Document] = self._wire.call("GET", _RULES, key="alarm_rules")
        return found

    def show(self, name: str, version: int | None = None) -> Document:
        """Return the current document, or an older version."""
        query = {"version": version} if version is not None else {}
        where = _RULES + path(name)
        found: Document = self._wire.call("GET", where, query=query, key="alarm_rules")
        return found

    def set(self, name: str, text: str, **more: Any) -> Document:
        """Create or replace a document.

        `more`: `scope`, and `replaces`, the version that the caller saw. BadRequest lists all
        problems of the document in `details`.
        """
        body = {"text": text, **more}
        made: Document = self._wire.call("PUT", _RULES + path(name), body=body, key="alarm_rules")
        return made

    def roll_back(self, name: str, version: int | None = None) -> Document:
        """Restore the previous text of a document, or the text of `version`."""
        body = {"version": version} if version is not None else {}
        where = _RULES + path(name, "rollback")
        made: Document = self._wire.call("POST", where, body=body, key="alarm_rules")
        return made

    def history(self, name: str) -> builtins.list[Document]:
        """Return all versions, newest first."""
        found: list[Document] = self._wire.call(
            "GET", _RULES + path(name, "history"), key="versions"
        )
        return found

    def preview(self, text: str, hosts: Sequence[str]) -> dict[str, Any]:
        """Evaluate rules over the last hour of `hosts`; changes nothing.

        Only hosts whose samples somebody views have data. Returns `hosts` with data, `stories`,
        and `silent` rules.
        """
        body = {"text": text, "hosts": builtins.list(hosts)}
        found: dict[str, Any] = self._wire.call("POST", _PREVIEW, body=body, key="preview")
        return found

    def delete(self, name: str) -> None:
        self._wire.call("DELETE", _RULES + path(name))


_ALARMS = "/holdfast/v1/alarms"

#: id, rule, state, severity, host, subject, name, value, threshold, …; one alarm adds `details`
Alarm = dict[str, Any]


class Alarms:
    """client.alarms: /holdfast/v1/alarms.

    A project sees the alarms of its own servers, an administrator sees all alarms.
    """

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def list(self, **wanted: Any) -> builtins.list[Alarm]:
        """List current alarms, newest first.

        `wanted`: host, rule, project, state, limit; `all` includes alarms that are over.
        """
        query = {name: value for name, value in wanted.items() if value not in (None, False)}
        if query.get("all"):
            query["all"] = "true"
        found: list[Alarm] = self._wire.call("GET", _ALARMS, query=query, key="alarms")
        return found

    def show(self, alarm_id: str) -> Alarm:
        found: Alarm = self._wire.call("GET", _ALARMS + path(alarm_id), key="alarm")
        return found

    def acknowledge(self, alarm_id: str) -> Alarm:
        """Acknowledge an alarm: no further notifications until the alarm is over."""
        where = _ALARMS + path(alarm_id, "ack")
        found: Alarm = self._wire.call("POST", where, body={}, key="alarm")
        return found

    def silence(self, alarm_id: str, lasts: timedelta) -> Alarm:
        """Mute an alarm for a duration; zero ends the mute.

        Zero also sends the notifications that were withheld for an alarm that still stands.
        """
        where, body = (
            _ALARMS + path(alarm_id, "silence"),
            {"duration_s": int(lasts.total_seconds())},
        )
        found: Alarm = self._wire.call("POST", where, body=body, key="alarm")
        return found

    def end(self, alarm_id: str) -> Alarm:
        """End an alarm although the agent does not report the end."""
        where = _ALARMS + path(alarm_id, "end")
        found: Alarm = self._wire.call("POST", where, body={}, key="alarm")
        return found


_PATH = "/holdfast/v1/audit"
MOST = 1000

#: id, at, subject, project_id, actor, request_id, sentence
Line = dict[str, Any]


class Audit:
    """client.audit: /holdfast/v1/audit; the own project, for administrators all projects."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def list(self, **wanted: Any) -> builtins.list[Line]:
        """List audit lines, newest first.

        Filters: `subject`, `actor`, `project_id`, `text`, `since`, `until` (exclusive). `limit`
        (default 100) and `marker`, the id of the last line seen, page through the list.
        """
        # requests omits parameters with the value None
        found: list[Line] = self._wire.call("GET", _PATH, query=wanted, key="audit")
        return found

    def all(self, **wanted: Any) -> Iterator[Line]:
        """Yield every audit line; reads page by page."""
        while found := self.list(**{**wanted, "limit": MOST}):
            yield from found
            if len(found) < MOST:
                return
            wanted["marker"] = found[-1]["id"]


_AVAILABILITY_PATH = "/holdfast/v1/availability"


class Availability:
    """client.availability: whether and when a reservation fits, /holdfast/v1/availability."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def then(
        self, reservation: Mapping[str, Any], *, end_date: str, start_date: str = "now"
    ) -> dict[str, Any]:
        """Check whether a reservation fits between `start_date` and `end_date`."""
        return self._ask(reservation, {"start_date": start_date, "end_date": end_date})

    def first(
        self,
        reservation: Mapping[str, Any],
        *,
        duration_s: int,
        start: str | None = None,
        until: str | None = None,
        limit: int | None = None,
    ) -> dict[str, Any]:
        """Return the first free windows of `duration_s`, starting from `start` (now) to `until`."""
        query = {"duration_s": duration_s, "from": start, "until": until, "limit": limit}
        return self._ask(reservation, query)

    def _ask(self, reservation: Mapping[str, Any], query: Mapping[str, Any]) -> dict[str, Any]:
        # requests omits parameters with the value None
        asked = {"reservation": json.dumps(dict(reservation)), **query}
        found: dict[str, Any] = self._wire.call(
            "GET", _AVAILABILITY_PATH, query=asked, key="availability"
        )
        return found


# References: an id, or a unique name.


UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


def only(noun: str, ref: str, found: list[dict[str, Any]], missing: str) -> dict[str, Any]:
    """Return the only match; NotFound with the message `missing`, NotUnique with the ids."""
    if not found:
        raise NotFound(missing, status=404)
    if len(found) > 1:
        raise NotUnique(noun, ref, [str(each["id"]) for each in found])
    return found[0]


_FAILOVER_PATH = "/holdfast/v1/failover"

#: segment, kept, members, enrolled, usable, free, least_free, short, why, as docs/api.md says.
Capacity = dict[str, Any]


class Failover:
    """client.failover: hosts kept free for failures, /holdfast/v1/failover; for administrators."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def list(self) -> builtins.list[Capacity]:
        """List all segments with the hosts to keep free and the free hosts."""
        found: list[Capacity] = self._wire.call("GET", _FAILOVER_PATH, key="failover")
        return found

    def keep(self, segment_id: str, hosts: int) -> Capacity:
        """Set how many hosts a segment keeps free; 0: none."""
        body, where = {"kept": hosts}, _FAILOVER_PATH + path(segment_id)
        found: Capacity = self._wire.call("PUT", where, body=body, key="failover")
        return found

    def find(self, ref: str) -> Capacity:
        """Find a segment by id or name."""
        found = [one for one in self.list() if ref in (one["segment_id"], one["segment"])]
        missing = f"there is no segment {ref!r}: `holdfast failover` shows them"
        return only("segment", ref, found, missing)


_PREFIX = "/reservation/v1/floatingips"

FloatingIp = dict[str, Any]


class FloatingIps:
    """client.floatingips: reservable floating IPs, /reservation/v1/floatingips."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def list(self) -> builtins.list[FloatingIp]:
        found: list[FloatingIp] = self._wire.call("GET", _PREFIX, key="floatingips")
        return found

    def show(self, floatingip_id: str) -> FloatingIp:
        where = _PREFIX + path(floatingip_id)
        found: FloatingIp = self._wire.call("GET", where, key="floatingip")
        return found

    def create(self, network_id: str, address: str) -> FloatingIp:
        """Enrol an address of a network for reservation."""
        body = {"floating_network_id": network_id, "floating_ip_address": address}
        made: FloatingIp = self._wire.call("POST", _PREFIX, body=body, key="floatingip")
        return made

    def delete(self, floatingip_id: str) -> None:
        self._wire.call("DELETE", _PREFIX + path(floatingip_id))

    def find(self, ref: str) -> FloatingIp:
        """Find a floating IP by id or address."""
        if UUID.fullmatch(ref):
            return self.show(ref)
        found = [each for each in self.list() if each["floating_ip_address"] == ref]
        missing = f"there is no floating IP {ref!r}: `holdfast floatingip list` shows them"
        return only("floating IP", ref, found, missing)


_HOSTS_PREFIX = "/reservation/v1/os-hosts"

Host = dict[str, Any]
Allocation = dict[str, Any]
Property = dict[str, Any]
HostStatus = dict[str, Any]


class Hosts:
    """client.hosts: enrolled hosts (/reservation/v1/os-hosts), host status (/holdfast/v1/hosts)."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def list(self) -> builtins.list[Host]:
        hosts: list[Host] = self._wire.call("GET", _HOSTS_PREFIX, key="hosts")
        return hosts

    def show(self, host_id: str | int) -> Host:
        host: Host = self._wire.call("GET", _HOSTS_PREFIX + path(host_id), key="host")
        return host

    def create(self, name: str, extra: Mapping[str, str] | None = None) -> Host:
        """Enrol a hypervisor; `extra` holds capabilities for leases to request."""
        body = {**(extra or {}), "name": name}
        host: Host = self._wire.call("POST", _HOSTS_PREFIX, body=body, key="host")
        return host

    def update(self, host_id: str | int, extra: Mapping[str, str | None]) -> Host:
        """Set capabilities; None removes a capability."""
        where = _HOSTS_PREFIX + path(host_id)
        host: Host = self._wire.call("PUT", where, body=extra, key="host")
        return host

    def delete(self, host_id: str | int) -> None:
        self._wire.call("DELETE", _HOSTS_PREFIX + path(host_id))

    def allocations(
        self, *, lease_id: str | None = None, reservation_id: str | None = None
    ) -> builtins.list[Allocation]:
        """Return the reservations of every host."""
        where = _HOSTS_PREFIX + "/allocations"
        query = _query(lease_id, reservation_id)
        found: list[Allocation] = self._wire.call("GET", where, query=query, key="allocations")
        return found

    def allocation(
        self,
        host_id: str | int,
        *,
        lease_id: str | None = None,
        reservation_id: str | None = None,
    ) -> Allocation:
        where = _HOSTS_PREFIX + path(host_id, "allocation")
        query = _query(lease_id, reservation_id)
        found: Allocation = self._wire.call("GET", where, query=query, key="allocation")
        return found

    def properties(self, *, detail: bool = False, private: bool = False) -> builtins.list[Property]:
        """List properties for leases; `private` (administrators) includes private properties."""
        # the API takes any text as true, also "False": false is left out
        query = {"detail": "True"} if detail else {}
        if private:
            query["all"] = "True"
        where = _HOSTS_PREFIX + "/properties"
        key = "resource_properties"
        found: list[Property] = self._wire.call("GET", where, query=query, key=key)
        return found

    def set_property(self, name: str, *, private: bool) -> Property:
        where = _HOSTS_PREFIX + path("properties", name)
        body, key = {"private": private}, "resource_property"
        changed: Property = self._wire.call("PATCH", where, body=body, key=key)
        return changed

    def standings(self, state: str | None = None) -> builtins.list[HostStatus]:
        """List the host status of every known host, enrolled or not: state, since, why."""
        query = {"state": state} if state else {}
        where = "/holdfast/v1/hosts"
        found: list[HostStatus] = self._wire.call("GET", where, query=query, key="hosts")
        return found

    def find(self, ref: str) -> Host:
        """Find a host by id or by hypervisor_hostname, short or full."""
        if ref.isdecimal() or UUID.fullmatch(ref):
            return self.show(ref)
        found = [h for h in self.list() if names.same(h["hypervisor_hostname"], ref)]
        missing = (
            f"there is no host {ref!r} enrolled: `holdfast host list` shows them,"
            f" `holdfast host create {ref}` enrols it"
        )
        return only("host", ref, found, missing)


def _query(lease_id: str | None, reservation_id: str | None) -> dict[str, str]:
    asked = {"lease_id": lease_id, "reservation_id": reservation_id}
    return {key: value for key, value in asked.items() if value}


_INCIDENTS_PATH = "/holdfast/v1/incidents"
_REPORTS = "/instance-ha/v1/notifications"
_APPROVALS = "/holdfast/v1/approvals"

#: id, kind, host, status, sentence, opened_at, closed_at, moves, …, as docs/api.md says.
Incident = dict[str, Any]


class Incidents:
    """client.incidents: /holdfast/v1/incidents and /approvals; for administrators."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def list(self, *, open: bool | None = None, **wanted: Any) -> builtins.list[Incident]:
        """List incidents, newest first.

        Filters: `status`, `kind`, `host`, `segment`, `since` (opened at or after), `open` (True:
        open incidents only, False: closed ones only). `limit` and `marker`, the id of the last
        incident seen, page through the list.
        """
        query = {"open": None if open is None else str(open).lower(), **wanted}
        # requests omits parameters with the value None
        found: list[Incident] = self._wire.call(
            "GET", _INCIDENTS_PATH, query=query, key="incidents"
        )
        return found

    def show(self, incident_id: str) -> Incident:
        """Return an incident with verdicts, steps, servers, reports and timeline."""
        return self._ask("GET", incident_id)

    def find(self, ref: str) -> Incident:
        """Find an incident by id or by a unique prefix of the id."""
        if UUID.fullmatch(ref):
            return self.show(ref)
        found = [one for one in self.list(limit=MOST) if one["id"].startswith(ref.lower())]
        missing = f"there is no incident {ref!r}: `holdfast incident list` shows them"
        return self.show(only("incident", ref, found, missing)["id"])

    def explain(self, incident_id: str) -> dict[str, Any]:
        """Return the explanation of an incident: title, parts, and the full text."""
        return self._ask("GET", incident_id, "explanation", key="explanation")

    def retry(self, incident_id: str, reason: str = "") -> Incident:
        body = {"reason": reason} if reason else {}
        return self._ask("POST", incident_id, "retry", body=body)

    def abort(self, incident_id: str, reason: str) -> Incident:
        return self._ask("POST", incident_id, "abort", body={"reason": reason})

    def confirm_off(
        self, incident_id: str, reason: str, *, despite_power_on: bool = False
    ) -> Incident:
        """Confirm power off for the host of an incident; recovery starts the servers elsewhere.

        Raises Conflict if the host's fence reads on, unless `despite_power_on`.
        """
        body: dict[str, Any] = {"reason": reason}
        if despite_power_on:
            body["despite_power_on"] = True
        return self._ask("POST", incident_id, "confirm-off", body=body)

    def report(
        self, host: str, *, server: str | None = None, process: str | None = None
    ) -> dict[str, Any]:
        """Report a failed host, server or process, as an instance HA notification."""
        kind, payload = "COMPUTE_HOST", {"event": "STOPPED", "host_status": "NORMAL"}
        if server:
            kind, payload = "VM", {"event": "LIFECYCLE", "vir_domain_event": "STOPPED_FAILED"}
            payload["instance_uuid"] = server
        elif process:
            kind, payload = "PROCESS", {"event": "STOPPED", "process_name": process}
        body = {
            "type": kind,
            "hostname": host,
            "generated_time": dates.now().isoformat(),
            "payload": payload,
        }
        made: dict[str, Any] = self._wire.call(
            "POST", _REPORTS, body={"notification": body}, key="notification"
        )
        return made

    def approve(self, reason: str, domain: str = "") -> dict[str, Any]:
        """Approve a mass failure in a rack or zone, or everywhere.

        Recovery held by the mass-failure guard continues.
        """
        body = {"reason": reason, **({"domain": domain} if domain else {})}
        made: dict[str, Any] = self._wire.call("POST", _APPROVALS, body=body, key="approval")
        return made

    def _ask(
        self, method: str, *where: str, body: dict[str, Any] | None = None, key: str = "incident"
    ) -> dict[str, Any]:
        found: dict[str, Any] = self._wire.call(
            method, _INCIDENTS_PATH + path(*where), body=body, key=key
        )
        return found


_leases_PREFIX = "/reservation/v1/leases"
#: The version that shows the hosts of a lease, and has filters and paging in lists.
_VERSION = "reservation 1.1"

Lease = dict[str, Any]


class Leases:
    """client.leases: /reservation/v1/leases."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def list(self, *, limit: int | None = None, **which: str | None) -> builtins.list[Lease]:
        """List all leases, page by page, or at most `limit`.

        `which`: status, name, resource_type, project_id (administrators), start_after,
        start_before, end_after, end_before, sort ("end_date:desc"), marker (the id of the lease
        to begin after).
        """
        found: list[Lease] = []
        while True:
            # requests omits parameters with the value None
            page = self._call("GET", _leases_PREFIX, query={**which, "limit": limit})
            leases: list[Lease] = self._wire.under("leases", page)
            found += leases
            if limit is not None or not leases or not page.get("leases_links"):
                return found
            which["marker"] = leases[-1]["id"]

    def _call(self, method: str, where: str, **more: Any) -> Any:
        return self._wire.call(method, where, version=_VERSION, **more)

    def show(self, lease_id: str) -> Lease:
        lease: Lease = self._call("GET", _leases_PREFIX + path(lease_id), key="lease")
        return lease

    def create(
        self,
        name: str,
        *,
        end_date: str,
        start_date: str = "now",
        reservations: Sequence[Mapping[str, Any]] = (),
        before_end_date: str | None = None,
        events: Sequence[Mapping[str, Any]] = (),
        dry_run: bool = False,
    ) -> Lease:
        """Create a lease. Dates are "YYYY-MM-DD HH:MM[:SS]" in UTC, or "now".

        With `dry_run` the server books nothing and returns the lease it would create.
        """
        body: dict[str, Any] = {
            "name": name,
            "start_date": start_date,
            "end_date": end_date,
            "before_end_date": before_end_date,
            "reservations": [dict(each) for each in reservations],
            "events": [dict(each) for each in events],
        }
        if dry_run:
            body["dry_run"] = True
        lease: Lease = self._call("POST", _leases_PREFIX, body=body, key="lease")
        return lease

    def update(self, lease_id: str, **changes: Any) -> Lease:
        """Change name, start_date, end_date, before_end_date or reservations of a lease.

        With dry_run=True the server changes nothing and returns the lease after the change.
        """
        where = _leases_PREFIX + path(lease_id)
        lease: Lease = self._call("PUT", where, body=changes, key="lease")
        return lease

    def delete(self, lease_id: str) -> None:
        self._wire.call("DELETE", _leases_PREFIX + path(lease_id))

    def replace_host(self, lease_id: str, reservation_id: str, host: str) -> None:
        """Replace a host of a reservation before the start; for administrators."""
        where = f"/holdfast/v1/leases{path(lease_id)}/reservations{path(reservation_id)}"
        self._wire.call("POST", f"{where}/replace-host", body={"host": host})

    def acknowledge(self, lease_id: str) -> None:
        """Acknowledge changed resources of a lease; resets `resources_changed`."""
        self._wire.call("POST", f"/holdfast/v1/leases{path(lease_id)}/acknowledge")

    def find(self, ref: str) -> Lease:
        """Find a lease by id or unique name."""
        if UUID.fullmatch(ref):
            return self.show(ref)
        found = [lease for lease in self.list(name=ref) if lease["name"] == ref]
        missing = f"there is no lease {ref!r} that you may see: `holdfast lease list` shows them"
        return only("lease", ref, found, missing)


_MONITORS = "/holdfast/v1/monitors"
_MATRIX = "/holdfast/v1/matrix"
_HOSTS = "/holdfast/v1/hosts"

#: observer, registered, hint, kind, seen_at, fresh, networks, strategy_source, hosts
Monitor = dict[str, Any]
#: networks, source, strategy, rows, undecided, differing
Matrix = dict[str, Any]
#: host, health, action, since, monitors; a single host adds reports per monitor, and votes
Health = dict[str, Any]


class Monitors:
    """client.monitors: host monitors, HA matrix and host health; for administrators.

    Uses /holdfast/v1/monitors, /matrix and /hosts/health.
    """

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def list(self) -> builtins.list[Monitor]:
        """List `registered` monitors and reporting monitors; `fresh` monitors reported lately."""
        found: list[Monitor] = self._wire.call("GET", _MONITORS, key="monitors")
        return found

    def register(self, observer: str) -> str:
        """Register a host monitor, which may then vote; return the monitor's token.

        A second registration returns the same token.
        """
        made = self._wire.call("POST", _MONITORS, body={"observer": observer}, key="monitor")
        return str(made["token"])

    def unregister(self, observer: str) -> None:
        """Unregister a monitor: the monitor has no vote, and the API refuses the token."""
        self._wire.call("DELETE", _MONITORS + path(observer))

    def matrix(self) -> Matrix:
        """Return the HA matrix in force, with the hosts in each row now."""
        found: Matrix = self._wire.call("GET", _MATRIX, key="matrix")
        return found

    def hosts(self, *, bad: bool = False) -> builtins.list[Health]:
        """List host health per network; `bad`: only hosts not up on every network."""
        query = {"health": "bad"} if bad else {}
        where = f"{_HOSTS}/health"
        found: list[Health] = self._wire.call("GET", where, query=query, key="hosts")
        return found

    def host(self, name: str) -> Health:
        """Return the health of a host (short or full name): reports per monitor, action, votes."""
        where = _HOSTS + path(name, "health")
        found: Health = self._wire.call("GET", where, key="health")
        return found


_observations_PATH = "/holdfast/v1/observations"

#: id, key, observer, subject, kind, state, since, observed_at, evidence, incident_id
Seen = dict[str, Any]


class Observations:
    """client.observations: monitor and agent reports, /holdfast/v1/observations; administrators."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def list(self, **wanted: Any) -> builtins.list[Seen]:
        """List observations, newest first.

        Filters: `subject`, `host` (the host, and everything on it), `kind`, `state`, `since`;
        `limit` defaults to 100.
        """
        # requests omits parameters with the value None
        found: list[Seen] = self._wire.call(
            "GET", _observations_PATH, query=wanted, key="observations"
        )
        return found


_operations_PATH = "/holdfast/v1/operations"

Operation = dict[str, Any]


class Operations:
    """client.operations: durable operations, /holdfast/v1/operations."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def list(
        self, *, subject: str | None = None, status: str | None = None, limit: int = 100
    ) -> builtins.list[Operation]:
        """List operations, newest first; filters: subject (for example a lease id), status."""
        # requests omits parameters with the value None
        query = {"subject": subject, "status": status, "limit": limit}
        operations: list[Operation] = self._wire.call(
            "GET", _operations_PATH, query=query, key="operations"
        )
        return operations


# Recovery switches for operators.


_PAUSES, _SILENCES = "/holdfast/v1/pauses", "/holdfast/v1/silences"
HOUR = timedelta(hours=1)

Pause = dict[str, Any]
Silence = dict[str, Any]


class Pauses:
    """client.pauses: pauses of recovery, /holdfast/v1/pauses; for administrators."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def list(self) -> builtins.list[Pause]:
        """List the pauses in force."""
        found: list[Pause] = self._wire.call("GET", _PAUSES, key="pauses")
        return found

    def pause(self, reason: str, *, segment: str = "", lasts: timedelta | None = HOUR) -> Pause:
        """Pause recovery everywhere, or in a segment (name or id).

        The pause has no end if `lasts` is None.
        """
        body: dict[str, Any] = {"reason": reason}
        body["duration_s"] = None if lasts is None else int(lasts.total_seconds())
        if segment:
            body["segment"] = segment
        made: Pause = self._wire.call("POST", _PAUSES, body=body, key="pause")
        return made

    def resume(self, *, segment: str = "") -> None:
        """End a pause; NotFound if recovery is not paused there."""
        self._wire.call("DELETE", _PAUSES, query={"segment": segment or None})


class Silences:
    """client.silences: maintenance windows, /holdfast/v1/silences; for administrators."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def list(self) -> builtins.list[Silence]:
        """List current and future maintenance windows."""
        found: list[Silence] = self._wire.call("GET", _SILENCES, key="silences")
        return found

    def add(self, matcher: dict[str, str], reason: str, **when: Any) -> Silence:
        """Add a maintenance window: recovery ignores matching failures.

        `matcher`: kind, host, segment, server. `when`: starts_at, and expires_at or duration_s.
        """
        body = {"matcher": matcher, "reason": reason, **when}
        made: Silence = self._wire.call("POST", _SILENCES, body=body, key="silence")
        return made

    def remove(self, silence_id: str) -> None:
        self._wire.call("DELETE", _SILENCES + path(silence_id))


_repair_PATH = "/holdfast/v1/repair"
_WHAT_IF = "/holdfast/v1/what-if"

#: failed, held, counts and moves, as docs/api.md says.
Report = dict[str, Any]


class Repair:
    """client.repair: repair of reservations, /holdfast/v1/repair; for administrators."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def plan(self, *, hosts: Iterable[str] = (), racks: Iterable[str] = ()) -> Report:
        """Return the repair plan for now, or after a failure of given hosts or racks."""
        return self._ask("/plan", {"hosts": list(hosts), "racks": list(racks)})

    def what_if(self, *, hosts: Iterable[str] = (), racks: Iterable[str] = ()) -> Report:
        """Return repair plan, recovery preview and capacity left after a failure."""
        body = {"hosts": list(hosts), "racks": list(racks)}
        found: Report = self._wire.call("POST", _WHAT_IF, body=body, key="what_if")
        return found

    def run(self, *, approve: bool = False, reason: str = "", domain: str = "") -> Report:
        """Start a repair now and return the plan.

        `approve`, with a reason, lifts the hold of a mass failure, everywhere or in the rack or
        zone `domain`.
        """
        body = {"approve": approve, "reason": reason}
        return self._ask("", {**body, "domain": domain} if domain else body)

    def _ask(self, where: str, body: dict[str, Any]) -> Report:
        report: Report = self._wire.call("POST", _repair_PATH + where, body=body, key="repair")
        return report


_sim_PREFIX = "/holdfast/v1/sim"


class Sim:
    """client.sim: fault injection for the simulated cloud, /holdfast/v1/sim.

    A server on a real cloud returns 404 (NotFound).
    """

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def show(self) -> dict[str, Any]:
        """Return hosts, servers and settings of the simulated cloud."""
        sim: dict[str, Any] = self._wire.call("GET", _sim_PREFIX, key="sim")
        return sim

    def change(self, **settings: Any) -> dict[str, Any]:
        """Change settings, for example latency_s; return all settings."""
        where = _sim_PREFIX + "/settings"
        now: dict[str, Any] = self._wire.call("PUT", where, body=settings, key="settings")
        return now

    def fail_host(self, name: str) -> str:
        """Power off a host; return the result as a sentence."""
        return self._do("hosts", name, "fail")

    def recover_host(self, name: str) -> str:
        return self._do("hosts", name, "recover")

    def cut_host(self, name: str, network: str | None = None) -> str:
        """Disconnect a host from a network, or from all networks; the servers keep running."""
        return self._do("hosts", name, "cut", body=_of(network))

    def repair_host(self, name: str, network: str | None = None) -> str:
        return self._do("hosts", name, "mend", body=_of(network))

    def crash_server(self, ref: str) -> str:
        """Crash a server, by name or id."""
        return self._do("servers", ref, "crash")

    def _do(self, *parts: str, body: dict[str, str] | None = None) -> str:
        said: str = self._wire.call("POST", _sim_PREFIX + path(*parts), body=body, key="said")
        return said


def _of(network: str | None) -> dict[str, str]:
    return {} if network is None else {"network": network}


class Client:
    """Client of the Holdfast server at `url`.

    Threads may share a client if they may share its session.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        user: str | None = None,
        password: str | None = None,
        token: str | None = None,
        session: Session | None = None,
        agent: str | None = None,
        timeout_s: float = 30,
        retries: int = 2,
    ) -> None:
        """Create a client; missing arguments come from the environment.

        `agent`: the token of a host's agent or of a host monitor. `retries`: how often the client
        repeats a GET after a lost connection or a 503.
        """
        user = user or (os.environ.get("HOLDFAST_USER") if password else None)
        if password and not user:
            raise Unauthorized("there is a password but no user")
        basic = (user, password) if user and password else None
        given = Access(session=session, basic=basic, token=token, agent=agent)
        access = find(given, user, os.environ)
        self._wire = Wire(
            url_from(url, access, os.environ),
            access,
            timeout_s=timeout_s,
            retries=retries,
        )
        self.leases = Leases(self._wire)
        self.hosts = Hosts(self._wire)
        self.floatingips = FloatingIps(self._wire)
        self.availability = Availability(self._wire)
        self.operations = Operations(self._wire)
        self.repair = Repair(self._wire)
        self.failover = Failover(self._wire)
        self.incidents = Incidents(self._wire)
        self.pauses = Pauses(self._wire)
        self.silences = Silences(self._wire)
        self.monitors = Monitors(self._wire)
        self.alarms = Alarms(self._wire)
        self.alarm_rules = AlarmRules(self._wire)
        self.audit = Audit(self._wire)
        self.observations = Observations(self._wire)
        self.sim = Sim(self._wire)

    @property
    def wire(self) -> Wire:
        """Return the HTTP layer, for API calls without an attribute here."""
        return self._wire

    @property
    def url(self) -> str:
        """Return the server URL; with Keystone, from the catalog."""
        return self._wire.url

    def close(self) -> None:
        """Close idle connections; leaves a session from the caller open."""
        self._wire.close()

    def health(self) -> dict[str, Any]:
        """Return the response of /readyz; Unavailable (response in `body`) if not ready."""
        said: dict[str, Any] = self._wire.call("GET", "/readyz", retries=0)
        return said
