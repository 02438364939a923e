# SPDX-License-Identifier: Apache-2.0
"""Hosts over the wire: reservation v1, `{url}/reservation/v1/os-hosts`."""

import builtins
from collections.abc import Mapping
from typing import Any

from holdfast.client.refs import UUID, only
from holdfast.client.wire import Wire, path
from holdfast.model import host as names

_PREFIX = "/reservation/v1/os-hosts"

Host = dict[str, Any]
Allocation = dict[str, Any]
Property = dict[str, Any]
Standing = dict[str, Any]


class Hosts:
    """client.hosts"""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def list(self) -> builtins.list[Host]:
        hosts: list[Host] = self._wire.call("GET", _PREFIX, key="hosts")
        return hosts

    def show(self, host_id: str | int) -> Host:
        host: Host = self._wire.call("GET", _PREFIX + path(host_id), key="host")
        return host

    def create(self, name: str, extra: Mapping[str, str] | None = None) -> Host:
        """Enrol a hypervisor; `extra` are capabilities to ask for in leases."""
        body = {**(extra or {}), "name": name}
        host: Host = self._wire.call("POST", _PREFIX, body=body, key="host")
        return host

    def update(self, host_id: str | int, extra: Mapping[str, str | None]) -> Host:
        """Set capabilities; None takes one away."""
        where = _PREFIX + path(host_id)
        host: Host = self._wire.call("PUT", where, body=extra, key="host")
        return host

    def delete(self, host_id: str | int) -> None:
        self._wire.call("DELETE", _PREFIX + path(host_id))

    def allocations(
        self, *, lease_id: str | None = None, reservation_id: str | None = None
    ) -> builtins.list[Allocation]:
        """For every host, the reservations that hold it."""
        where = _PREFIX + "/allocations"
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
        where = _PREFIX + path(host_id, "allocation")
        query = _query(lease_id, reservation_id)
        found: Allocation = self._wire.call("GET", where, query=query, key="allocation")
        return found

    def properties(self, *, detail: bool = False, private: bool = False) -> builtins.list[Property]:
        """What leases can ask for; `private` ones too needs an administrator."""
        # the wire takes any text as yes, "False" too: a no is left out
        query = {"detail": "True"} if detail else {}
        if private:
            query["all"] = "True"
        where = _PREFIX + "/properties"
        key = "resource_properties"
        found: list[Property] = self._wire.call("GET", where, query=query, key=key)
        return found

    def set_property(self, name: str, *, private: bool) -> Property:
        where = _PREFIX + path("properties", name)
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
