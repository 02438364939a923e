# SPDX-License-Identifier: Apache-2.0
"""What monitors say about guests is written down, by the same road as an agent's reports.

A message is acknowledged after this; who dies before hears it again and writes it then, who dies
after hears it again and finds it written.
"""

import logging
from collections.abc import Callable, Sequence

from holdfast.model.guest_word import GuestWord
from holdfast.model.observed import FAILED
from holdfast.ports.observations import Observations

LOG = logging.getLogger(__name__)


class GuestNews:
    """`ring`: there is something to do."""

    def __init__(
        self, observations: Observations, new_id: Callable[[], str], ring: Callable[[], None]
    ) -> None:
        self._observations = observations
        self._new_id = new_id
        self._ring = ring

    def write(self, words: Sequence[GuestWord]) -> None:
        """What it raises, the listener understands: it comes again."""
        for word in words:
            _row, new = self._observations.add(self._new_id(), word.values())
            if new:
                level = logging.WARNING if word.state == FAILED else logging.INFO
                LOG.log(level, "server %s on %s: %s", word.server_id, word.host, word.sentence)
        if any(word.state == FAILED for word in words):
            self._ring()
