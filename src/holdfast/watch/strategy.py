# SPDX-License-Identifier: Apache-2.0
"""The strategy in force: the operator's file, followed as it changes, or the default."""

import functools
import logging
from collections.abc import Sequence

from holdfast.model import matrix
from holdfast.model.matrix import Strategy
from holdfast.watch.followed import Followed

LOG = logging.getLogger(__name__)


class StrategyFile(Followed[Strategy]):
    def __init__(self, path: str | None, networks: Sequence[str]) -> None:
        names = tuple(networks)
        super().__init__(
            path,
            "strategy",
            functools.partial(matrix.default, names),
            lambda data, source: _parse(data, names, source),
        )

    @property
    def strategy(self) -> Strategy:
        return self.value


def _parse(data: bytes, networks: Sequence[str], source: str) -> Strategy:
    """The strategy of a file; rows that it leaves out are named in the log."""
    strategy = matrix.parse(data, networks, source)
    if strategy.warning:
        LOG.warning("strategy file %s: %s", source, strategy.warning)
    return strategy
