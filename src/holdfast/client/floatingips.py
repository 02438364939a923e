# SPDX-License-Identifier: Apache-2.0
"""Floating IPs that leases can reserve: reservation v1, `{url}/reservation/v1/floatingips`."""

import builtins
from typing import Any

from holdfast.client.refs import UUID, only
from holdfast.client.wire import Wire, path

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
