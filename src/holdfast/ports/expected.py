# SPDX-License-Identifier: Apache-2.0
"""Who knows what should run on a host."""

from collections.abc import Sequence
from typing import Protocol

from holdfast.model.expected import Expectation

#: So many guests can be asked about beside those of the host, at a time.
MOST_ALSO = 50


class ExpectedGuests(Protocol):
    def expected(self, host: str, also: Sequence[str] = ()) -> Expectation:
        """What the cloud says of the servers of that host, and of these (ids), MOST_ALSO at most.
        Unavailable, NotFound or InvalidInput if it cannot be said: then nothing is known."""
        ...
