# SPDX-License-Identifier: Apache-2.0
"""Hosts kept free for the case that others fail, over the wire: `{url}/holdfast/v1/failover`."""

import builtins
from typing import Any

from holdfast.client.refs import only
from holdfast.client.wire import Wire, path

_PATH = "/holdfast/v1/failover"

#: segment, kept, members, enrolled, usable, free, least_free, short, why, as docs/api.md says.
Capacity = dict[str, Any]


class Failover:
    """client.failover; for administrators."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def list(self) -> builtins.list[Capacity]:
        """Every segment, what it keeps and what it has."""
        found: list[Capacity] = self._wire.call("GET", _PATH, key="failover")
        return found

    def keep(self, segment_id: str, hosts: int) -> Capacity:
        """From now on that segment keeps so many hosts free; 0: none."""
        body, where = {"kept": hosts}, _PATH + path(segment_id)
        found: Capacity = self._wire.call("PUT", where, body=body, key="failover")
        return found

    def find(self, ref: str) -> Capacity:
        """The segment of that id or name."""
        found = [one for one in self.list() if ref in (one["segment_id"], one["segment"])]
        missing = f"there is no segment {ref!r}: `holdfast failover` shows them"
        return only("segment", ref, found, missing)
