# SPDX-License-Identifier: Apache-2.0
"""Leases over the wire: reservation v1, `{url}/reservation/v1/leases`."""

import builtins
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.client.refs import UUID, only
from holdfast.client.wire import Wire, path

_PREFIX = "/reservation/v1/leases"

Lease = dict[str, Any]


class Leases:
    """client.leases"""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def list(self) -> builtins.list[Lease]:
        leases: list[Lease] = self._wire.call("GET", _PREFIX, key="leases")
        return leases

    def show(self, lease_id: str) -> Lease:
        lease: Lease = self._wire.call("GET", _PREFIX + path(lease_id), key="lease")
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
    ) -> Lease:
        """Dates are "YYYY-MM-DD HH:MM[:SS]" in UTC, or "now"."""
        body = {
            "name": name,
            "start_date": start_date,
            "end_date": end_date,
            "before_end_date": before_end_date,
            "reservations": [dict(each) for each in reservations],
            "events": [dict(each) for each in events],
        }
        lease: Lease = self._wire.call("POST", _PREFIX, body=body, key="lease")
        return lease

    def update(self, lease_id: str, **changes: Any) -> Lease:
        """Change name, start_date, end_date, before_end_date or reservations."""
        where = _PREFIX + path(lease_id)
        lease: Lease = self._wire.call("PUT", where, body=changes, key="lease")
        return lease

    def delete(self, lease_id: str) -> None:
        self._wire.call("DELETE", _PREFIX + path(lease_id))

    def find(self, ref: str) -> Lease:
        """The lease of that id, or the only one of that name."""
        if UUID.fullmatch(ref):
            return self.show(ref)
        found = [lease for lease in self.list() if lease["name"] == ref]
        missing = f"there is no lease {ref!r} that you may see: `holdfast lease list` shows them"
        return only("lease", ref, found, missing)
