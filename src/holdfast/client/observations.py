# SPDX-License-Identifier: Apache-2.0
"""What monitors and agents saw, over the wire: `{url}/holdfast/v1/observations`."""

import builtins
from typing import Any

from holdfast.client.wire import Wire

_PATH = "/holdfast/v1/observations"

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
        found: list[Seen] = self._wire.call("GET", _PATH, query=wanted, key="observations")
        return found
