# SPDX-License-Identifier: Apache-2.0
"""The client: an object per server, with an attribute per REST resource.

    Client().operations.list()

Without arguments, URL and credentials come from the environment (see `auth`). A resource is a class
with its route and the keys of its answers; docs/reference/api.md has the fields of each object.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, ClassVar

from holdfast.client import dates
from holdfast.client.auth import Access, Session, find, url_from
from holdfast.client.errors import NotFound, NotUnique, Unauthorized
from holdfast.client.http import Wire, path
from holdfast.model import host as names

MOST = 1000
HOUR = timedelta(hours=1)
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)

#: An object of the API, as plain JSON.
Object = dict[str, Any]
Objects = list[Object]


class Resource:
    """A REST resource: calls below a route."""

    route: ClassVar[str]
    #: The keys of an object and of a list in the answers.
    one: ClassVar[str]
    many: ClassVar[str]
    #: The version of the contract to request.
    version: ClassVar[str | None] = None

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def _get(self, *where: object, key: str = "", **query: Any) -> Object:
        value: Object = self._wire.call(
            "GET",
            self.route + path(*where),
            query=given(query),
            key=key or self.one,
            version=self.version,
        )
        return value

    def _list(self, *where: object, key: str = "", **query: Any) -> Objects:
        value: Any = self._get(*where, key=key or self.many, **query)
        listed: Objects = value
        return listed

    def _send(
        self, method: str, *where: object, body: Mapping[str, Any] | None = None, key: str = ""
    ) -> Object:
        """Send a change and return the changed object."""
        made: Object = self._wire.call(
            method,
            self.route + path(*where),
            body=body,
            key=key or self.one,
            version=self.version,
        )
        return made

    def _delete(self, *where: object) -> None:
        self._wire.call("DELETE", self.route + path(*where))


def given(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def only(noun: str, ref: str, matches: Objects, missing: str) -> Object:
    """Return the only match; NotFound with the message `missing`, NotUnique with the ids."""
    if not matches:
        raise NotFound(missing, status=404)
    if len(matches) > 1:
        raise NotUnique(noun, ref, [str(each["id"]) for each in matches])
    return matches[0]


class Agents(Resource):
    """client.agents: agents, their alarm rules, and stored samples; for administrators."""

    route, many = "/holdfast/v1/agents", "agents"

    def list(self) -> Objects:
        """List agents seen within a week; `fresh` agents were seen just now."""
        return self._list()

    def rules(self, host: str) -> Object:
        """Return the alarm rules in force for a host: version, text, origins."""
        return self._get(host, "alarm-rules", key="alarm_rules")

    def samples(self, host: str) -> Object:
        """Return the stored last hour of a host and the guests (metrics/history.plain).

        The result also has `at`, `fresh` and `wanted_until`. The call does not make the agent send
        samples.
        """
        return HostHealth(self._wire).samples(host)

    def want_samples(self, host: str) -> str:
        """Request samples of a host; return until when the agent sends samples.

        The agent starts with its next heartbeat.
        """
        return HostHealth(self._wire).want_samples(host)


class AlarmRules(Resource):
    """client.alarm_rules: alarm rule documents; for administrators.

    A document has name, scope, version, author and created_at; lists add `rules`, a single
    document adds `text`.
    """

    route, one, many = "/holdfast/v1/alarm-rules", "alarm_rules", "alarm_rules"

    def list(self) -> Objects:
        return self._list()

    def show(self, name: str, version: int | None = None) -> Object:
        """Return the current document, or an older version."""
        return self._get(name, version=version)

    def set(self, name: str, text: str, **more: Any) -> Object:
        """Create or replace a document.

        `more`: `scope`, and `replaces`, the version that the caller saw. BadRequest lists all
        problems of the document in `details`.
        """
        return self._send("PUT", name, body={"text": text, **more})

    def roll_back(self, name: str, version: int | None = None) -> Object:
        """Restore the previous text of a document, or the text of `version`."""
        return self._send("POST", name, "rollback", body=given({"version": version}))

    def history(self, name: str) -> Objects:
        """Return all versions, newest first."""
        return self._list(name, "history", key="versions")

    def preview(self, text: str, hosts: Sequence[str]) -> Object:
        """Evaluate rules over the last hour of `hosts`; changes nothing.

        Only hosts whose samples somebody views have data. Returns `hosts` with data, `stories`,
        and `silent` rules.
        """
        body = {"text": text, "hosts": [*hosts]}
        preview: Object = self._wire.call("POST", f"{self.route}-preview", body=body, key="preview")
        return preview

    def delete(self, name: str) -> None:
        self._delete(name)


class Alarms(Resource):
    """client.alarms: alarms of the own project's servers; administrators see all alarms."""

    route, one, many = "/holdfast/v1/alarms", "alarm", "alarms"

    def list(self, *, all: bool = False, **wanted: Any) -> Objects:
        """List current alarms, newest first.

        `wanted`: host, rule, project, state, limit; `all` includes alarms that are over.
        """
        return self._list(**wanted, all="true" if all else None)

    def show(self, alarm_id: str) -> Object:
        return self._get(alarm_id)

    def acknowledge(self, alarm_id: str) -> Object:
        """Acknowledge an alarm: no further notifications until the alarm is over."""
        return self._send("POST", alarm_id, "ack", body={})

    def mute(self, alarm_id: str, lasts: timedelta) -> Object:
        """Mute an alarm for a duration; zero ends the mute.

        Zero also sends the notifications that were withheld for an alarm that still lasts.
        """
        return self._send("POST", alarm_id, "mute", body={"duration_s": int(lasts.total_seconds())})

    def end(self, alarm_id: str) -> Object:
        """End an alarm although the agent does not report the end."""
        return self._send("POST", alarm_id, "end", body={})


class Audit(Resource):
    """client.audit: audit lines of the own project, for administrators of all projects."""

    route, many = "/holdfast/v1/audit", "audit"

    def list(self, **wanted: Any) -> Objects:
        """List audit lines, newest first.

        Filters: `subject`, `actor`, `project_id`, `text`, `since`, `until` (exclusive). `limit`
        (default 100) and `marker`, the id of the last line seen, page through the list.
        """
        return self._list(**wanted)

    def all(self, **wanted: Any) -> Iterator[Object]:
        """Yield every audit line; reads page by page."""
        while page := self.list(**{**wanted, "limit": MOST}):
            yield from page
            if len(page) < MOST:
                return
            wanted["marker"] = page[-1]["id"]


class Availability(Resource):
    """client.availability: whether and when a reservation fits."""

    route, one = "/holdfast/v1/availability", "availability"

    def then(
        self, reservation: Mapping[str, Any], *, end_date: str, start_date: str = "now"
    ) -> Object:
        """Check whether a reservation fits between `start_date` and `end_date`."""
        wanted = json.dumps(dict(reservation))
        return self._get(reservation=wanted, start_date=start_date, end_date=end_date)

    def first(
        self,
        reservation: Mapping[str, Any],
        *,
        duration_s: int,
        start: str | None = None,
        until: str | None = None,
        limit: int | None = None,
    ) -> Object:
        """Return the first free windows of `duration_s`, starting from `start` (now) to `until`."""
        window: dict[str, Any] = {"from": start, "until": until}
        wanted = json.dumps(dict(reservation))
        return self._get(reservation=wanted, duration_s=duration_s, limit=limit, **window)


class Failover(Resource):
    """client.failover: hosts kept free for failures; for administrators."""

    route, one, many = "/holdfast/v1/failover", "failover", "failover"

    def list(self) -> Objects:
        """List all segments with the hosts to keep free and the free hosts."""
        return self._list()

    def keep(self, segment_id: str, hosts: int) -> Object:
        """Set how many hosts a segment keeps free; 0: none."""
        return self._send("PUT", segment_id, body={"kept": hosts})

    def find(self, ref: str) -> Object:
        """Find a segment by id or name."""
        matches = [
            segment for segment in self.list() if ref in (segment["segment_id"], segment["segment"])
        ]
        missing = f"there is no segment {ref!r}: `holdfast failover` shows them"
        return only("segment", ref, matches, missing)


class FloatingIps(Resource):
    """client.floatingips: reservable floating IPs."""

    route, one, many = "/reservation/v1/floatingips", "floatingip", "floatingips"

    def list(self) -> Objects:
        return self._list()

    def show(self, floatingip_id: str) -> Object:
        return self._get(floatingip_id)

    def create(self, network_id: str, address: str) -> Object:
        """Enrol an address of a network for reservation."""
        body = {"floating_network_id": network_id, "floating_ip_address": address}
        return self._send("POST", body=body)

    def delete(self, floatingip_id: str) -> None:
        self._delete(floatingip_id)

    def find(self, ref: str) -> Object:
        """Find a floating IP by id or address."""
        if UUID.fullmatch(ref):
            return self.show(ref)
        matches = [each for each in self.list() if each["floating_ip_address"] == ref]
        missing = f"there is no floating IP {ref!r}: `holdfast floatingip list` shows them"
        return only("floating IP", ref, matches, missing)


class Hosts(Resource):
    """client.hosts: enrolled hosts, their allocations and properties, and host status."""

    route, one, many = "/reservation/v1/os-hosts", "host", "hosts"

    def list(self) -> Objects:
        return self._list()

    def show(self, host_id: str | int) -> Object:
        return self._get(host_id)

    def create(self, name: str, extra: Mapping[str, str] | None = None) -> Object:
        """Enrol a hypervisor; `extra` holds capabilities for leases to request."""
        return self._send("POST", body={**(extra or {}), "name": name})

    def update(self, host_id: str | int, extra: Mapping[str, str | None]) -> Object:
        """Set capabilities; None removes a capability."""
        return self._send("PUT", host_id, body=extra)

    def delete(self, host_id: str | int) -> None:
        self._delete(host_id)

    def allocations(
        self, *, lease_id: str | None = None, reservation_id: str | None = None
    ) -> Objects:
        """Return the reservations of every host."""
        query = {"lease_id": lease_id or None, "reservation_id": reservation_id or None}
        return self._list("allocations", key="allocations", **query)

    def allocation(
        self,
        host_id: str | int,
        *,
        lease_id: str | None = None,
        reservation_id: str | None = None,
    ) -> Object:
        query = {"lease_id": lease_id or None, "reservation_id": reservation_id or None}
        return self._get(host_id, "allocation", key="allocation", **query)

    def properties(self, *, detail: bool = False, private: bool = False) -> Objects:
        """List properties for leases; `private` (administrators) includes private properties."""
        # the API takes any text as true, also "False": false is left out
        query = {"detail": "True" if detail else None, "all": "True" if private else None}
        return self._list("properties", key="resource_properties", **query)

    def set_property(self, name: str, *, private: bool) -> Object:
        body = {"private": private}
        return self._send("PATCH", "properties", name, body=body, key="resource_property")

    def statuses(self, state: str | None = None) -> Objects:
        """List the host status of every known host, enrolled or not: state, since, why."""
        return HostHealth(self._wire).statuses(state)

    def find(self, ref: str) -> Object:
        """Find a host by id or by hypervisor_hostname, short or full."""
        if ref.isdecimal() or UUID.fullmatch(ref):
            return self.show(ref)
        matches = [h for h in self.list() if names.same(h["hypervisor_hostname"], ref)]
        missing = (
            f"there is no host {ref!r} enrolled: `holdfast host list` shows them,"
            f" `holdfast host create {ref}` enrols it"
        )
        return only("host", ref, matches, missing)


class HostHealth(Resource):
    """Status, health and samples of all known hosts, enrolled or not; for administrators."""

    route, one, many = "/holdfast/v1/hosts", "health", "hosts"

    def statuses(self, state: str | None = None) -> Objects:
        return self._list(state=state or None)

    def list(self, *, bad: bool = False) -> Objects:
        return self._list("health", health="bad" if bad else None)

    def show(self, name: str) -> Object:
        return self._get(name, "health")

    def samples(self, name: str) -> Object:
        return self._get(name, "samples", key="samples")

    def want_samples(self, name: str) -> str:
        return str(self._send("POST", name, "samples", key="samples")["wanted_until"])


class Incidents(Resource):
    """client.incidents: failures and their recovery; for administrators."""

    route, one, many = "/holdfast/v1/incidents", "incident", "incidents"

    def list(self, *, open: bool | None = None, **wanted: Any) -> Objects:
        """List incidents, newest first.

        Filters: `status`, `kind`, `host`, `segment`, `since` (opened at or after), `open` (True:
        open incidents only, False: closed ones only). `limit` and `marker`, the id of the last
        incident seen, page through the list.
        """
        return self._list(open=None if open is None else str(open).lower(), **wanted)

    def show(self, incident_id: str) -> Object:
        """Return an incident with verdicts, steps, servers, reports and timeline."""
        return self._get(incident_id)

    def find(self, ref: str) -> Object:
        """Find an incident by id or by a unique prefix of the id."""
        if UUID.fullmatch(ref):
            return self.show(ref)
        matches = [
            incident for incident in self.list(limit=MOST) if incident["id"].startswith(ref.lower())
        ]
        missing = f"there is no incident {ref!r}: `holdfast incident list` shows them"
        return self.show(only("incident", ref, matches, missing)["id"])

    def explain(self, incident_id: str) -> Object:
        """Return the explanation of an incident: title, parts, and the full text."""
        return self._get(incident_id, "explanation", key="explanation")

    def retry(self, incident_id: str, reason: str = "") -> Object:
        return self._send("POST", incident_id, "retry", body=given({"reason": reason or None}))

    def abort(self, incident_id: str, reason: str) -> Object:
        return self._send("POST", incident_id, "abort", body={"reason": reason})

    def confirm_off(
        self, incident_id: str, reason: str, *, despite_power_on: bool = False
    ) -> Object:
        """Confirm power off for the host of an incident; recovery starts the servers elsewhere.

        Raises Conflict if the host's fence reads on, unless `despite_power_on`.
        """
        body = given({"reason": reason, "despite_power_on": despite_power_on or None})
        return self._send("POST", incident_id, "confirm-off", body=body)

    def report(self, host: str, *, server: str | None = None, process: str | None = None) -> Object:
        """Report a failed host, server or process, as an instance HA notification."""
        kind, payload = "COMPUTE_HOST", {"event": "STOPPED", "host_status": "NORMAL"}
        if server:
            kind, payload = "VM", {"event": "LIFECYCLE", "vir_domain_event": "STOPPED_FAILED"}
            payload["instance_uuid"] = server
        elif process:
            kind, payload = "PROCESS", {"event": "STOPPED", "process_name": process}
        at = dates.now().isoformat()
        notification = {"type": kind, "hostname": host, "generated_time": at, "payload": payload}
        made: Object = self._wire.call(
            "POST",
            "/instance-ha/v1/notifications",
            body={"notification": notification},
            key="notification",
        )
        return made

    def approve(self, reason: str, domain: str = "") -> Object:
        """Approve a mass failure in a rack or zone, or everywhere.

        Recovery held by the mass-failure guard continues.
        """
        body = given({"reason": reason, "domain": domain or None})
        made: Object = self._wire.call("POST", "/holdfast/v1/approvals", body=body, key="approval")
        return made


class Leases(Resource):
    """client.leases: reservations of resources for a time."""

    route, one, many = "/reservation/v1/leases", "lease", "leases"
    #: The version that shows the hosts of a lease, and has filters and paging in lists.
    version = "reservation 1.1"

    def list(self, *, limit: int | None = None, **which: str | None) -> Objects:
        """List all leases, page by page, or at most `limit`.

        `which`: status, name, resource_type, project_id (administrators), start_after,
        start_before, end_after, end_before, sort ("end_date:desc"), marker (the id of the lease
        to begin after).
        """
        listed: Objects = []
        while True:
            query = given({**which, "limit": limit})
            page = self._wire.call("GET", self.route, query=query, version=self.version)
            leases: Objects = self._wire.under("leases", page)
            listed += leases
            if limit is not None or not leases or not page.get("leases_links"):
                return listed
            which["marker"] = leases[-1]["id"]

    def show(self, lease_id: str) -> Object:
        return self._get(lease_id)

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
        **further: Any,
    ) -> Object:
        """Create a lease. Dates are "YYYY-MM-DD HH:MM[:SS]" in UTC, or "now".

        With `dry_run` the server books nothing and returns the lease it would create. The server
        gets `further` keys as they are, except None.
        """
        body: dict[str, Any] = {
            **given(further),
            "name": name,
            "start_date": start_date,
            "end_date": end_date,
            "before_end_date": before_end_date,
            "reservations": [dict(each) for each in reservations],
            "events": [dict(each) for each in events],
        }
        if dry_run:
            body["dry_run"] = True
        return self._send("POST", body=body)

    def update(self, lease_id: str, **changes: Any) -> Object:
        """Change name, start_date, end_date, before_end_date or reservations of a lease.

        With dry_run=True the server changes nothing and returns the lease after the change.
        """
        return self._send("PUT", lease_id, body=changes)

    def delete(self, lease_id: str) -> None:
        self._delete(lease_id)

    def replace_host(self, lease_id: str, reservation_id: str, host: str) -> None:
        """Replace a host of a reservation before the start; for administrators."""
        where = path(lease_id, "reservations", reservation_id, "replace-host")
        self._wire.call("POST", f"/holdfast/v1/leases{where}", body={"host": host})

    def acknowledge(self, lease_id: str) -> None:
        """Acknowledge changed resources of a lease; resets `resources_changed`."""
        self._wire.call("POST", f"/holdfast/v1/leases{path(lease_id, 'acknowledge')}")

    def find(self, ref: str) -> Object:
        """Find a lease by id or unique name."""
        if UUID.fullmatch(ref):
            return self.show(ref)
        matches = [lease for lease in self.list(name=ref) if lease["name"] == ref]
        missing = f"there is no lease {ref!r} that you may see: `holdfast lease list` shows them"
        return only("lease", ref, matches, missing)


class MaintenanceWindows(Resource):
    """client.maintenance: maintenance windows; for administrators."""

    route = "/holdfast/v1/maintenance-windows"
    one, many = "maintenance_window", "maintenance_windows"

    def list(self) -> Objects:
        """List current and future maintenance windows."""
        return self._list()

    def add(self, matcher: dict[str, str], reason: str, **when: Any) -> Object:
        """Add a maintenance window: recovery ignores matching failures.

        `matcher`: kind, host, segment, server. `when`: starts_at, and expires_at or duration_s.
        """
        return self._send("POST", body={"matcher": matcher, "reason": reason, **when})

    def remove(self, window_id: str) -> None:
        self._delete(window_id)


class Monitors(Resource):
    """client.monitors: host monitors, HA matrix and host health; for administrators."""

    route, one, many = "/holdfast/v1/monitors", "monitor", "monitors"

    def list(self) -> Objects:
        """List `registered` monitors and reporting monitors; `fresh` monitors reported lately."""
        return self._list()

    def register(self, observer: str) -> str:
        """Register a host monitor, which may then vote; return the monitor's token.

        A second registration returns the same token.
        """
        return str(self._send("POST", body={"observer": observer})["token"])

    def unregister(self, observer: str) -> None:
        """Unregister a monitor: the monitor has no vote, and the API refuses the token."""
        self._delete(observer)

    def matrix(self) -> Object:
        """Return the HA matrix in force, with the hosts in each row now."""
        matrix: Object = self._wire.call("GET", "/holdfast/v1/matrix", key="matrix")
        return matrix

    def hosts(self, *, bad: bool = False) -> Objects:
        """List host health per network; `bad`: only hosts not up on every network."""
        return HostHealth(self._wire).list(bad=bad)

    def host(self, name: str) -> Object:
        """Return the health of a host (short or full name): reports per monitor, action, votes."""
        return HostHealth(self._wire).show(name)


class Observations(Resource):
    """client.observations: reports of monitors and agents; for administrators."""

    route, many = "/holdfast/v1/observations", "observations"

    def list(self, **wanted: Any) -> Objects:
        """List observations, newest first.

        Filters: `subject`, `host` (the host, and everything on it), `kind`, `state`, `since`;
        `limit` defaults to 100.
        """
        return self._list(**wanted)


class Operations(Resource):
    """client.operations: durable operations."""

    route, one, many = "/holdfast/v1/operations", "operation", "operations"

    def list(
        self, *, subject: str | None = None, status: str | None = None, limit: int | None = None
    ) -> Objects:
        """List operations, newest first; filters: subject (for example a lease id), status."""
        return self._list(subject=subject, status=status, limit=limit)

    def show(self, operation_id: str) -> Object:
        return self._get(operation_id)


class Pauses(Resource):
    """client.pauses: pauses of recovery; for administrators."""

    route, one, many = "/holdfast/v1/pauses", "pause", "pauses"

    def list(self) -> Objects:
        """List the pauses in force."""
        return self._list()

    def pause(self, reason: str, *, segment: str = "", lasts: timedelta | None = HOUR) -> Object:
        """Pause recovery everywhere, or in a segment (name or id).

        The pause has no end if `lasts` is None.
        """
        duration = None if lasts is None else int(lasts.total_seconds())
        where = {"segment": segment} if segment else {}
        return self._send("POST", body={"reason": reason, "duration_s": duration, **where})

    def resume(self, *, segment: str = "") -> None:
        """End a pause; NotFound if recovery is not paused there."""
        self._wire.call("DELETE", self.route, query=given({"segment": segment or None}))


class Repair(Resource):
    """client.repair: repair of reservations; for administrators."""

    route, one = "/holdfast/v1/repair", "repair"

    def plan(self, *, hosts: Iterable[str] = (), racks: Iterable[str] = ()) -> Object:
        """Return the repair plan for now, or after a failure of given hosts or racks."""
        return self._send("POST", "plan", body={"hosts": list(hosts), "racks": list(racks)})

    def what_if(self, *, hosts: Iterable[str] = (), racks: Iterable[str] = ()) -> Object:
        """Return repair plan, recovery preview and capacity left after a failure."""
        body = {"hosts": list(hosts), "racks": list(racks)}
        effects: Object = self._wire.call("POST", "/holdfast/v1/what-if", body=body, key="what_if")
        return effects

    def run(self, *, approve: bool = False, reason: str = "", domain: str = "") -> Object:
        """Start a repair now and return the plan.

        `approve`, with a reason, lifts the hold of a mass failure, everywhere or in the rack or
        zone `domain`.
        """
        where = {"domain": domain} if domain else {}
        return self._send("POST", body={"approve": approve, "reason": reason, **where})


class Sim(Resource):
    """client.sim: fault injection for the simulated cloud.

    A server on a real cloud returns 404 (NotFound). The actions return their result as a sentence.
    """

    route, one = "/holdfast/v1/sim", "sim"

    def show(self) -> Object:
        """Return hosts, servers and settings of the simulated cloud."""
        return self._get()

    def change(self, **settings: Any) -> Object:
        """Change settings, for example latency_s; return all settings."""
        return self._send("PUT", "settings", body=settings, key="settings")

    def fail_host(self, name: str) -> str:
        """Power off a host."""
        return self._do("hosts", name, "fail")

    def recover_host(self, name: str) -> str:
        return self._do("hosts", name, "recover")

    def cut_host(self, name: str, network: str | None = None) -> str:
        """Disconnect a host from a network, or from all networks; the servers keep running."""
        return self._do("hosts", name, "cut", body=given({"network": network}))

    def reconnect_host(self, name: str, network: str | None = None) -> str:
        return self._do("hosts", name, "reconnect", body=given({"network": network}))

    def crash_server(self, ref: str) -> str:
        """Crash a server, by name or id."""
        return self._do("servers", ref, "crash")

    def _do(self, *where: str, body: dict[str, str] | None = None) -> str:
        sentence: str = self._wire.call("POST", self.route + path(*where), body=body, key="said")
        return sentence


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
        own = Access(session=session, basic=basic, token=token, agent=agent)
        access = find(own, user, os.environ)
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
        self.maintenance = MaintenanceWindows(self._wire)
        self.monitors = Monitors(self._wire)
        self.agents = Agents(self._wire)
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
        health: dict[str, Any] = self._wire.call("GET", "/readyz", retries=0)
        return health
