# SPDX-License-Identifier: Apache-2.0
"""What Nova calls a host: its service, its hypervisors and their names, found by any of its names.

Nova addresses services by `host` and hypervisors by `hypervisor_hostname`, and wants each letter
right; people and agents say `cmp-7` or `cmp-7.example.org`. What was found is remembered: these are
names, they change when a host is deleted and made anew, and then `forget` is called.
"""

import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from openstack.exceptions import NotFoundException

from holdfast.drivers.cloud.nova.edge import BASE, answer, pages
from holdfast.model.errors import Conflict, NotFound
from holdfast.model.host import normalise, same, short

#: Ids of services are uuids from 2.53 on; below 2.69 a service whose cell is away is not in the
#: list, from there on it is in it without a state, which could be taken for "down".
SERVICES = "2.53"
MOST = 20_000
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True)
class Entry:
    """One compute service. Only bare metal has more than one hypervisor behind it."""

    service_host: str
    hypervisors: tuple[str, ...] = ()  # uuids; they are the ids of the resource providers too


class Directory:
    def __init__(self) -> None:
        self._known: dict[str, Entry] = {}
        self._lock = threading.Lock()

    def find(self, cloud: Any, name: str) -> Entry:
        """The host of that name, short or full, or of that hypervisor uuid; NotFound, or Conflict
        if it could be several."""
        key = normalise(name)
        with self._lock:
            if key in self._known:
                return self._known[key]
        found = hypervisors_of(cloud, name)
        entry = Entry(found[0]["service"]["host"], tuple(one["id"] for one in found))
        with self._lock:
            if len(self._known) >= MOST:
                self._known.clear()
            self._known[key] = entry
        return entry

    def forget(self, name: str) -> None:
        with self._lock:
            self._known.pop(normalise(name), None)


def hypervisors(cloud: Any) -> Iterator[dict[str, Any]]:
    """All hypervisors in full. Until a page is empty: Nova leaves out some whose service is gone
    *after* it cut the page, and then does not say that there are more.

    At 2.79 sizes and cpu_info are in the answer; from 2.88 on they are not.
    """
    return pages(
        cloud.compute, "/os-hypervisors/detail", "hypervisors", microversion=BASE, until_empty=True
    )


def services(cloud: Any, host: str | None = None) -> list[dict[str, Any]]:
    """The compute services; this list has no pages in Nova."""
    asked = {"binary": "nova-compute", **({"host": host} if host else {})}
    body = answer(cloud.compute.get("/os-services", params=asked, microversion=SERVICES))
    return list(body["services"])


def hypervisors_of(cloud: Any, name: str) -> list[dict[str, Any]]:
    """The hypervisors, in full, of the host that `name` means; NotFound, Conflict.

    Nova is asked for names that look like it. Only if there is none are all hosts listed: it takes
    a large cloud seconds to do that.
    """
    for some in (_alike, lambda cloud, _name: list(hypervisors(cloud))):
        try:
            return pick(some(cloud, name), name)
        except NotFound as nothing:
            unknown = nothing
    raise unknown


def _alike(cloud: Any, name: str) -> list[dict[str, Any]]:
    asked = {"hypervisor_hostname_pattern": short(name)}
    try:
        if _UUID.fullmatch(name):
            found = answer(cloud.compute.get(f"/os-hypervisors/{name}", microversion=BASE))
            return [found["hypervisor"]]
        path = "/os-hypervisors/detail"
        body = answer(cloud.compute.get(path, params=asked, microversion=BASE))
    except NotFoundException:
        return []
    return list(body["hypervisors"])


def pick(found: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """The hypervisors that `name` means; Conflict if they belong to several services."""
    exact = [h for h in found if name in (h["id"], h["hypervisor_hostname"], h["service"]["host"])]
    chosen = exact or [
        h for h in found if same(h["hypervisor_hostname"], name) or same(h["service"]["host"], name)
    ]
    hosts = sorted({h["service"]["host"] for h in chosen})
    if len(hosts) > 1:
        raise Conflict(f"{name} could be any of {', '.join(hosts)}; give the full name")
    if not chosen:
        raise NotFound(f"Nova has no host {name}")
    return chosen
