# SPDX-License-Identifier: Apache-2.0
"""What could be had, and when: `{url}/holdfast/v1/availability`."""

import json
from collections.abc import Mapping
from typing import Any

from holdfast.client.wire import Wire

_PATH = "/holdfast/v1/availability"


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
        found: dict[str, Any] = self._wire.call("GET", _PATH, query=asked, key="availability")
        return found
