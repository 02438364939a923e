# SPDX-License-Identifier: Apache-2.0
"""Finds Nova's names of a host, and the Services port: compute services of the hosts.

Nova addresses services by `host` and hypervisors by `hypervisor_hostname`, and requires the exact
name; operators and agents say `cmp-7` or `cmp-7.example.org`. The directory caches the names. They
change only when a host is deleted and recreated; the caller then calls `forget`.
"""

import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from openstack.exceptions import BadRequestException, NotFoundException

from holdfast.drivers.nova.session import BASE, Edge, answer, pages
from holdfast.model.errors import Conflict, NotFound
from holdfast.model.host import normalise, same, short
from holdfast.ports.cloud import Service

#: Service ids are uuids from 2.53 on. Below 2.69 a service whose cell is away is missing from
#: the list; from 2.69 on it is listed without a state, which could be mistaken for "down".
SERVICES = "2.53"
MOST = 20_000
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True)
class Entry:
    """A compute service. Only a bare-metal service has more than one hypervisor."""

    service_host: str
    hypervisors: tuple[str, ...] = ()  # uuids, also those of the resource providers


class Directory:
    """A cache of compute services by host name."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._lock = threading.Lock()

    def find(self, cloud: Any, name: str) -> Entry:
        """Return the compute service of a host by short name, full name or hypervisor uuid.

        Raises NotFound, or Conflict if the name fits several hosts.
        """
        key = normalise(name)
        with self._lock:
            if key in self._entries:
                return self._entries[key]
        matches = hypervisors_of(cloud, name)
        entry = Entry(
            matches[0]["service"]["host"], tuple(hypervisor["id"] for hypervisor in matches)
        )
        with self._lock:
            if len(self._entries) >= MOST:
                self._entries.clear()
            self._entries[key] = entry
        return entry

    def forget(self, name: str) -> None:
        with self._lock:
            self._entries.pop(normalise(name), None)


def hypervisors(cloud: Any) -> Iterator[dict[str, Any]]:
    """List all hypervisors with details, until a page is empty.

    Nova removes hypervisors whose service is gone *after* it has cut the page, and then announces
    no next page. At 2.79 the answer includes sizes and cpu_info; from 2.88 on it does not.
    """
    return pages(
        cloud.compute, "/os-hypervisors/detail", "hypervisors", microversion=BASE, until_empty=True
    )


def services(cloud: Any, host: str | None = None) -> list[dict[str, Any]]:
    """List the compute services; Nova's list has no pages."""
    params = {"binary": "nova-compute", **({"host": host} if host else {})}
    body = answer(cloud.compute.get("/os-services", params=params, microversion=SERVICES))
    return list(body["services"])


def hypervisors_of(cloud: Any, name: str) -> list[dict[str, Any]]:
    """Return the hypervisors, with details, of the host that `name` means; NotFound, Conflict.

    The driver first asks Nova for similar names. Only if there is no match it lists all hosts,
    which takes seconds in a large cloud.
    """
    for some in (_alike, lambda cloud, _name: list(hypervisors(cloud))):
        try:
            return pick(some(cloud, name), name)
        except NotFound as nothing:
            unknown = nothing
    raise unknown


def _alike(cloud: Any, name: str) -> list[dict[str, Any]]:
    params = {"hypervisor_hostname_pattern": short(name)}
    try:
        if _UUID.fullmatch(name):
            body = answer(cloud.compute.get(f"/os-hypervisors/{name}", microversion=BASE))
            return [body["hypervisor"]]
        path = "/os-hypervisors/detail"
        body = answer(cloud.compute.get(path, params=params, microversion=BASE))
    except NotFoundException:
        return []
    return list(body["hypervisors"])


def pick(candidates: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """Return the hypervisors that `name` means; Conflict if several services match."""
    exact = [
        h for h in candidates if name in (h["id"], h["hypervisor_hostname"], h["service"]["host"])
    ]
    chosen = exact or [
        h
        for h in candidates
        if same(h["hypervisor_hostname"], name) or same(h["service"]["host"], name)
    ]
    hosts = sorted({h["service"]["host"] for h in chosen})
    if len(hosts) > 1:
        raise Conflict(f"{name} could be any of {', '.join(hosts)}; give the full name")
    if not chosen:
        raise NotFound(f"Nova has no host {name}")
    return chosen


LONGEST_REASON = 255


class NovaServices:
    """The Services port on Nova: the nova-compute service of each host.

    Disabling a service whose compute is dead makes nova-api wait for that compute
    (`rpc_response_timeout`, a minute), unless the service is down: the driver's call then ends
    earlier, with a retryable error, although the service is disabled. So force the service down
    first.

    The scheduler obeys a trait in Placement that the compute itself sets and removes on request. A
    compute that was down when it was enabled got no request, and a compute that was dead when it
    was disabled may learn of it only when it is back: until its next periodic task (a minute) it
    gets no server. So enable last, after un-forcing, when the service is up.
    """

    def __init__(self, edge: Edge, directory: Directory) -> None:
        self._edge = edge
        self._directory = directory

    def list(self) -> Sequence[Service]:
        with self._edge.call("services.list") as cloud:
            listed = [_service(body) for body in services(cloud)]
        return sorted(listed, key=lambda service: service.host)

    def disable(self, host: str, reason: str) -> None:
        wanted: dict[str, Any] = {"status": "disabled"}
        if reason:
            wanted["disabled_reason"] = reason[:LONGEST_REASON]
        self._update("services.disable", host, wanted)

    def enable(self, host: str) -> None:
        self._update("services.enable", host, {"status": "enabled"})

    def force_down(self, host: str) -> None:
        self._update("services.force_down", host, {"forced_down": True})

    def unforce(self, host: str) -> None:
        self._update("services.unforce", host, {"forced_down": False})

    def _update(self, call_name: str, host: str, wanted: Mapping[str, Any]) -> None:
        """Change the service unless it is already as wanted: Nova would answer 400."""
        with self._edge.call(call_name, host) as cloud:
            service = self._own(cloud, host)
            if _is(service, wanted):
                return
            path = f"/os-services/{service['id']}"
            try:
                answer(cloud.compute.put(path, json=dict(wanted), microversion=SERVICES))
            except BadRequestException as refused:
                if _is(self._own(cloud, host), wanted):  # another caller was faster
                    return
                raise Conflict(f"{call_name} {host}: {refused.details}") from refused

    def _own(self, cloud: Any, host: str) -> dict[str, Any]:
        matches = services(cloud, host)
        if not matches:
            matches = services(cloud, self._directory.find(cloud, host).service_host)
        if not matches:
            self._directory.forget(host)
            raise NotFound(f"Nova has no compute service on {host}")
        return matches[0]


def _is(service: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return all(service.get(name) == value for name, value in wanted.items())


def _service(body: Mapping[str, Any]) -> Service:
    return Service(
        host=body["host"],
        state=body["state"],
        enabled=body["status"] == "enabled",
        disabled_reason=body["disabled_reason"] or "",
        forced_down=body["forced_down"],
        updated_at=moment(body["updated_at"]),
    )


def moment(text: str | None) -> datetime | None:
    """Parse a time of Nova, which is UTC with or without a zone."""
    if not text:
        return None
    read = datetime.fromisoformat(text)
    return read.replace(tzinfo=UTC) if read.tzinfo is None else read.astimezone(UTC)
