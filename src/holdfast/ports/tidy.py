# SPDX-License-Identifier: Apache-2.0
"""Old rows that nobody will ask for any more."""

from datetime import datetime
from typing import Protocol


class Tidy(Protocol):
    def now(self) -> datetime: ...

    def operations(self, before: datetime, most: int) -> int:
        """Remove up to `most` operations that ended before that moment, but none of a lease that
        still exists; how many were removed."""
        ...

    def reports(self, before: datetime, most: int) -> int:
        """Remove up to `most` notifications that ended before that moment, and with the last one of
        an incident the incident, its verdicts and its moves; how many notifications."""
        ...

    def observations(self, before: datetime, most: int) -> int:
        """Remove up to `most` observations older than that, but none of an incident that is open
        or of a host whose votes are being counted; with the last one of an incident the incident,
        as above; how many observations."""
        ...

    def samples(self, before: datetime, most: int) -> int:
        """Remove up to `most` hosts' numbers that nobody wants since then; how many hosts."""
        ...

    def audit(self, before: datetime, most: int) -> int:
        """Remove up to `most` sentences of the audit older than that; how many were removed."""
        ...

    def alarms(self, before: datetime, most: int) -> int:
        """End up to `most` alarms that stand, of agents that were not heard of since then; how many
        that were. Their rows go when they are over for long enough."""
        ...
