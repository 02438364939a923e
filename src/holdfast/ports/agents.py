# SPDX-License-Identifier: Apache-2.0
"""Where the agent of a host says that it lives, and learns which alarm rules hold for it and
whether somebody looks at its numbers."""

from collections.abc import Mapping
from typing import Any, Protocol

from holdfast.model.agent import Heard
from holdfast.model.alarm_rules_scope import Held


class Centre(Protocol):
    """Unavailable if it cannot be asked now, InvalidInput if it will never listen to that."""

    def beat(self, host: str, body: Mapping[str, Any]) -> Heard:
        """Say how the agent is."""
        ...

    def rules(self, host: str) -> Held: ...

    def samples(self, host: str, body: Mapping[str, Any]) -> None:
        """What was wanted (model/samples.plain)."""
        ...
