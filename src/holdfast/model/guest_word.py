# SPDX-License-Identifier: Apache-2.0
"""What a monitor says about one guest, as it is kept: a report like that of the host's agent."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from holdfast.model.observed import GUEST, subject


@dataclass(frozen=True, kw_only=True)
class GuestWord:
    """`key` is the same however often the same thing is heard: it is written once."""

    observer: str
    server_id: str
    host: str
    state: str  # failed: to be recovered | noted: to be told
    at: datetime
    key: str
    sentence: str
    evidence: Mapping[str, Any] = field(default_factory=dict)

    def values(self) -> dict[str, Any]:
        """Of its row; InvalidInput if it is about nothing."""
        return {
            "observer": self.observer,
            "subject": subject(GUEST, f"server:{self.server_id}", self.host),
            "kind": GUEST,
            "state": self.state,
            "since": self.at,
            "observed_at": self.at,
            "key": self.key[:255],
            "evidence": {**self.evidence, "host": self.host, "sentence": self.sentence},
        }
