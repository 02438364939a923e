# SPDX-License-Identifier: Apache-2.0
"""The audit over the wire: `{url}/holdfast/v1/audit`."""

import builtins
from collections.abc import Iterator
from typing import Any

from holdfast.client.wire import Wire

_PATH = "/holdfast/v1/audit"
MOST = 1000

#: id, at, subject, project_id, actor, request_id, sentence
Line = dict[str, Any]


class Audit:
    """client.audit; of your project, for administrators of all."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def list(self, **wanted: Any) -> builtins.list[Line]:
        """The newest first; by `subject`, `actor`, `project_id`, `text`, from `since`, before
        `until`; at most `limit` (100), those before the line `marker`."""
        # requests leaves out what is None
        found: list[Line] = self._wire.call("GET", _PATH, query=wanted, key="audit")
        return found

    def all(self, **wanted: Any) -> Iterator[Line]:
        """Every line, asked for page by page."""
        while found := self.list(**{**wanted, "limit": MOST}):
            yield from found
            if len(found) < MOST:
                return
            wanted["marker"] = found[-1]["id"]
