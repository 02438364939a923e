# SPDX-License-Identifier: Apache-2.0
"""The client: one object per server, one attribute per REST resource."""

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

# Alarm rules over the wire: `{url}/holdfast/v1/alarm-rules`.


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


# Alarms over the wire: `{url}/holdfast/v1/alarms`.


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


# The audit over the wire: `{url}/holdfast/v1/audit`.


_PATH = "/holdfast/v1/audit"
MOST = 1000

#: id, at, subject, project_id, actor, request_id, sentence
Line = dict[str, Any]


class Audit:
    """client.audit; of your project, for administrators of all."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def list(self, **wanted: Any) -> builtins.list[Line]:
        """The newest first; by `subject`, `actor`, `project_id`, `text`, from `since`, before
        `until`; at most `limit` (100), those before the line `marker`."""
        # requests leaves out what is None
        found: list[Line] = self._wire.call("GET", _PATH, query=wanted, key="audit")
        return found

    def all(self, **wanted: Any) -> Iterator[Line]:
        """Every line, asked for page by page."""
        while found := self.list(**{**wanted, "limit": MOST}):
            yield from found
            if len(found) < MOST:
                return
            wanted["marker"] = found[-1]["id"]


# What could be had, and when: `{url}/holdfast/v1/availability`.


_availability_PATH = "/holdfast/v1/availability"


class Availability:
    """client.availability"""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def then(
        self, reservation: Mapping[str, Any], *, end_date: str, start_date: str = "now"
    ) -> dict[str, Any]:
        """Could I get it from then to then?"""
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
        """The first windows of that length that begin between `start` (now) and `until`."""
        query = {"duration_s": duration_s, "from": start, "until": until, "limit": limit}
        return self._ask(reservation, query)

    def _ask(self, reservation: Mapping[str, Any], query: Mapping[str, Any]) -> dict[str, Any]:
        # requests leaves out what is None
        asked = {"reservation": json.dumps(dict(reservation)), **query}
        found: dict[str, Any] = self._wire.call(
            "GET", _availability_PATH, query=asked, key="availability"
        )
        return found


# What people call things: an id, or a name that only one of them has.


UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


def only(noun: str, ref: str, found: list[dict[str, Any]], missing: str) -> dict[str, Any]:
    """The one that was found; NotFound says `missing`, NotUnique lists the ids."""
    if not found:
        raise NotFound(missing, status=404)
    if len(found) > 1:
        raise NotUnique(noun, ref, [str(each["id"]) for each in found])
    return found[0]


# Hosts kept free for the case that others fail, over the wire: `{url}/holdfast/v1/failover`.


_failover_PATH = "/holdfast/v1/failover"

#: segment, kept, members, enrolled, usable, free, least_free, short, why, as docs/api.md says.
Capacity = dict[str, Any]


class Failover:
    """client.failover; for administrators."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def list(self) -> builtins.list[Capacity]:
        """Every segment, what it keeps and what it has."""
        found: list[Capacity] = self._wire.call("GET", _failover_PATH, key="failover")
        return found

    def keep(self, segment_id: str, hosts: int) -> Capacity:
        """From now on that segment keeps so many hosts free; 0: none."""
        body, where = {"kept": hosts}, _failover_PATH + path(segment_id)
        found: Capacity = self._wire.call("PUT", where, body=body, key="failover")
        return found

    def find(self, ref: str) -> Capacity:
        """The segment of that id or name."""
        found = [one for one in self.list() if ref in (one["segment_id"], one["segment"])]
        missing = f"there is no segment {ref!r}: `holdfast failover` shows them"
        return only("segment", ref, found, missing)


# Floating IPs that leases can reserve: reservation v1, `{url}/reservation/v1/floatingips`.


_PREFIX = "/reservation/v1/floatingips"

FloatingIp = dict[str, Any]


class FloatingIps:
    """client.floatingips"""

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
        """Let leases reserve an address of that network."""
        body = {"floating_network_id": network_id, "floating_ip_address": address}
        made: FloatingIp = self._wire.call("POST", _PREFIX, body=body, key="floatingip")
        return made

    def delete(self, floatingip_id: str) -> None:
        self._wire.call("DELETE", _PREFIX + path(floatingip_id))

    def find(self, ref: str) -> FloatingIp:
        """The one of that id, or of that address."""
        if UUID.fullmatch(ref):
            return self.show(ref)
        found = [each for each in self.list() if each["floating_ip_address"] == ref]
        missing = f"there is no floating IP {ref!r}: `holdfast floatingip list` shows them"
        return only("floating IP", ref, found, missing)


# Hosts over the wire: reservation v1, `{url}/reservation/v1/os-hosts`.


_hosts_PREFIX = "/reservation/v1/os-hosts"

Host = dict[str, Any]
Allocation = dict[str, Any]
Property = dict[str, Any]
Standing = dict[str, Any]


class Hosts:
    """client.hosts"""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def list(self) -> builtins.list[Host]:
        hosts: list[Host] = self._wire.call("GET", _hosts_PREFIX, key="hosts")
        return hosts

    def show(self, host_id: str | int) -> Host:
        host: Host = self._wire.call("GET", _hosts_PREFIX + path(host_id), key="host")
        return host

    def create(self, name: str, extra: Mapping[str, str] | None = None) -> Host:
        """Enrol a hypervisor; `extra` are capabilities to ask for in leases."""
        body = {**(extra or {}), "name": name}
        host: Host = self._wire.call("POST", _hosts_PREFIX, body=body, key="host")
        return host

    def update(self, host_id: str | int, extra: Mapping[str, str | None]) -> Host:
        """Set capabilities; None takes one away."""
        where = _hosts_PREFIX + path(host_id)
        host: Host = self._wire.call("PUT", where, body=extra, key="host")
        return host

    def delete(self, host_id: str | int) -> None:
        self._wire.call("DELETE", _hosts_PREFIX + path(host_id))

    def allocations(
        self, *, lease_id: str | None = None, reservation_id: str | None = None
    ) -> builtins.list[Allocation]:
        """For every host, the reservations that hold it."""
        where = _hosts_PREFIX + "/allocations"
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
        where = _hosts_PREFIX + path(host_id, "allocation")
        query = _query(lease_id, reservation_id)
        found: Allocation = self._wire.call("GET", where, query=query, key="allocation")
        return found

    def properties(self, *, detail: bool = False, private: bool = False) -> builtins.list[Property]:
        """What leases can ask for; `private` ones too needs an administrator."""
        # the wire takes any text as yes, "False" too: a no is left out
        query = {"detail": "True"} if detail else {}
        if private:
            query["all"] = "True"
        where = _hosts_PREFIX + "/properties"
        key = "resource_properties"
        found: list[Property] = self._wire.call("GET", where, query=query, key=key)
        return found

    def set_property(self, name: str, *, private: bool) -> Property:
        where = _hosts_PREFIX + path("properties", name)
        body, key = {"private": private}, "resource_property"
        changed: Property = self._wire.call("PATCH", where, body=body, key=key)
        return changed

    def standings(self, state: str | None = None) -> builtins.list[Standing]:
        """Every host Holdfast knows, enrolled or not: whether it can be used, since when, why."""
        query = {"state": state} if state else {}
        where = "/holdfast/v1/hosts"
        found: list[Standing] = self._wire.call("GET", where, query=query, key="hosts")
        return found

    def find(self, ref: str) -> Host:
        """The host of that id, or of that hypervisor_hostname, short or full."""
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


# Incidents over the wire: `{url}/holdfast/v1/incidents`.


_incidents_PATH = "/holdfast/v1/incidents"
_REPORTS = "/instance-ha/v1/notifications"
_APPROVALS = "/holdfast/v1/approvals"

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
        found: list[Incident] = self._wire.call(
            "GET", _incidents_PATH, query=query, key="incidents"
        )
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
            "generated_time": dates.now().isoformat(),
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
        found: dict[str, Any] = self._wire.call(
            method, _incidents_PATH + path(*where), body=body, key=key
        )
        return found


# Leases over the wire: reservation v1, `{url}/reservation/v1/leases`.


_leases_PREFIX = "/reservation/v1/leases"
#: Says which hosts a lease got, and lists with filters and pages.
_VERSION = "reservation 1.1"

Lease = dict[str, Any]


class Leases:
    """client.leases"""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def list(self, *, limit: int | None = None, **which: str | None) -> builtins.list[Lease]:
        """All, page by page, or at most `limit`.

        `which`: status, name, resource_type, project_id (administrators), start_after,
        start_before, end_after, end_before, sort ("end_date:desc"), marker (the id of the lease
        to begin after).
        """
        found: list[Lease] = []
        while True:
            # requests leaves out what is None
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
        """Dates are "YYYY-MM-DD HH:MM[:SS]" in UTC, or "now". With `dry_run`, the lease as it
        would be: nothing is booked."""
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
        """Change name, start_date, end_date, before_end_date or reservations; dry_run=True only
        tells what the lease would be."""
        where = _leases_PREFIX + path(lease_id)
        lease: Lease = self._call("PUT", where, body=changes, key="lease")
        return lease

    def delete(self, lease_id: str) -> None:
        self._wire.call("DELETE", _leases_PREFIX + path(lease_id))

    def replace_host(self, lease_id: str, reservation_id: str, host: str) -> None:
        """Before its start: another host instead of that one (for administrators)."""
        where = f"/holdfast/v1/leases{path(lease_id)}/reservations{path(reservation_id)}"
        self._wire.call("POST", f"{where}/replace-host", body={"host": host})

    def acknowledge(self, lease_id: str) -> None:
        """You have seen that it got something else: its `resources_changed` goes."""
        self._wire.call("POST", f"/holdfast/v1/leases{path(lease_id)}/acknowledge")

    def find(self, ref: str) -> Lease:
        """The lease of that id, or the only one of that name."""
        if UUID.fullmatch(ref):
            return self.show(ref)
        found = [lease for lease in self.list(name=ref) if lease["name"] == ref]
        missing = f"there is no lease {ref!r} that you may see: `holdfast lease list` shows them"
        return only("lease", ref, found, missing)


# What host monitors see, over the wire: `{url}/holdfast/v1/monitors`, `…/matrix` and
# `…/hosts/health`.


_MONITORS = "/holdfast/v1/monitors"
_MATRIX = "/holdfast/v1/matrix"
_HOSTS = "/holdfast/v1/hosts"

#: observer, registered, hint, kind, seen_at, fresh, networks, strategy_source, hosts
Monitor = dict[str, Any]
#: networks, source, strategy, rows, undecided, differing
Matrix = dict[str, Any]
#: host, health, action, since, monitors; of one host also who sees what, and the votes
Health = dict[str, Any]


class Monitors:
    """client.monitors; for administrators."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def list(self) -> builtins.list[Monitor]:
        """Those that are `registered` or say what they see; `fresh` ones did so lately."""
        found: list[Monitor] = self._wire.call("GET", _MONITORS, key="monitors")
        return found

    def register(self, observer: str) -> str:
        """Let the host monitor of that name vote; its token, the same one however often."""
        made = self._wire.call("POST", _MONITORS, body={"observer": observer}, key="monitor")
        return str(made["token"])

    def unregister(self, observer: str) -> None:
        """It votes no more, and its token is refused."""
        self._wire.call("DELETE", _MONITORS + path(observer))

    def matrix(self) -> Matrix:
        """The strategy that they go by, with the hosts that are in each of its rows now."""
        found: Matrix = self._wire.call("GET", _MATRIX, key="matrix")
        return found

    def hosts(self, *, bad: bool = False) -> builtins.list[Health]:
        """What is seen of every host on each network; `bad`: of those not up everywhere."""
        query = {"health": "bad"} if bad else {}
        where = f"{_HOSTS}/health"
        found: list[Health] = self._wire.call("GET", where, query=query, key="hosts")
        return found

    def host(self, name: str) -> Health:
        """Of one host, short or full name: who sees what, what follows, and who votes for it."""
        where = _HOSTS + path(name, "health")
        found: Health = self._wire.call("GET", where, key="health")
        return found


# What monitors and agents saw, over the wire: `{url}/holdfast/v1/observations`.


_observations_PATH = "/holdfast/v1/observations"

#: id, key, observer, subject, kind, state, since, observed_at, evidence, incident_id
Seen = dict[str, Any]


class Observations:
    """client.observations; for administrators."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def list(self, **wanted: Any) -> builtins.list[Seen]:
        """The newest first; by `subject`, `host` (it, and what was seen on it), `kind`, `state`,
        from `since`; at most `limit` (100)."""
        # requests leaves out what is None
        found: list[Seen] = self._wire.call(
            "GET", _observations_PATH, query=wanted, key="observations"
        )
        return found


# Durable work over the wire: `{url}/holdfast/v1/operations`.


_operations_PATH = "/holdfast/v1/operations"

Operation = dict[str, Any]


class Operations:
    """client.operations"""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def list(
        self, *, subject: str | None = None, status: str | None = None, limit: int = 100
    ) -> builtins.list[Operation]:
        """The newest first; of one subject (a lease's id) or one status if asked."""
        # requests leaves out what is None
        query = {"subject": subject, "status": status, "limit": limit}
        operations: list[Operation] = self._wire.call(
            "GET", _operations_PATH, query=query, key="operations"
        )
        return operations


# The operator's switches of recovery over the wire: pauses and silences.


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


# Repair over the wire: `{url}/holdfast/v1/repair`.


_repair_PATH = "/holdfast/v1/repair"

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
        report: Report = self._wire.call("POST", _repair_PATH + where, body=body, key="repair")
        return report


# The simulated cloud over the wire, `{url}/holdfast/v1/sim`: look at it, and break it.


_sim_PREFIX = "/holdfast/v1/sim"


class Sim:
    """client.sim; a server on a real cloud answers NotFound."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def show(self) -> dict[str, Any]:
        """Hosts, servers and settings."""
        sim: dict[str, Any] = self._wire.call("GET", _sim_PREFIX, key="sim")
        return sim

    def change(self, **settings: Any) -> dict[str, Any]:
        """Change settings such as latency_s; all of them come back."""
        where = _sim_PREFIX + "/settings"
        now: dict[str, Any] = self._wire.call("PUT", where, body=settings, key="settings")
        return now

    def fail_host(self, name: str) -> str:
        """Pull a host's plug. Returns what happened, as a sentence."""
        return self._do("hosts", name, "fail")

    def recover_host(self, name: str) -> str:
        return self._do("hosts", name, "recover")

    def cut_host(self, name: str, network: str | None = None) -> str:
        """Cut a host off on one network, or from everybody; its servers run on."""
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


# The client: one object per server, one attribute per noun.
#
#     Client().operations.list()
#
# Where no argument says otherwise, address and credentials come from the environment (see
# access).


class Client:
    """Holdfast at `url`. Threads may share one as far as they may share its session."""

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
        """`agent`: the token of a host's agent or of a host monitor. `retries`: how often a GET is
        repeated after a lost connection or a 503."""
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
        """The way to the server, for what has no attribute here."""
        return self._wire

    @property
    def url(self) -> str:
        """Where the server is; by Keystone, what the catalog says."""
        return self._wire.url

    def close(self) -> None:
        """Let idle connections go; a session you gave stays yours."""
        self._wire.close()

    def health(self) -> dict[str, Any]:
        """What /readyz says; Unavailable, with the answer as its `body`, if it is not ready."""
        said: dict[str, Any] = self._wire.call("GET", "/readyz", retries=0)
        return said
