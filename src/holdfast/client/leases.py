# SPDX-License-Identifier: Apache-2.0
"""Leases over the wire: reservation v1, `{url}/reservation/v1/leases`."""

import builtins
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.client.refs import UUID, only
from holdfast.client.wire import Wire, path

_PREFIX = "/reservation/v1/leases"
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
            page = self._call("GET", _PREFIX, query={**which, "limit": limit})
            leases: list[Lease] = self._wire.under("leases", page)
            found += leases
            if limit is not None or not leases or not page.get("leases_links"):
                return found
            which["marker"] = leases[-1]["id"]

    def _call(self, method: str, where: str, **more: Any) -> Any:
        return self._wire.call(method, where, version=_VERSION, **more)

    def show(self, lease_id: str) -> Lease:
        lease: Lease = self._call("GET", _PREFIX + path(lease_id), key="lease")
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
        lease: Lease = self._call("POST", _PREFIX, body=body, key="lease")
        return lease

    def update(self, lease_id: str, **changes: Any) -> Lease:
        """Change name, start_date, end_date, before_end_date or reservations; dry_run=True only
        tells what the lease would be."""
        where = _PREFIX + path(lease_id)
        lease: Lease = self._call("PUT", where, body=changes, key="lease")
        return lease

    def delete(self, lease_id: str) -> None:
        self._wire.call("DELETE", _PREFIX + path(lease_id))

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
