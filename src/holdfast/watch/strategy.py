# SPDX-License-Identifier: Apache-2.0
"""The strategy in force: the operator's file, followed as it changes, or the default."""

import functools
from collections.abc import Sequence

from holdfast.model import matrix
from holdfast.model.matrix import Strategy
from holdfast.watch.followed import Followed


class StrategyFile(Followed[Strategy]):
    def __init__(self, path: str | None, networks: Sequence[str]) -> None:
        names = tuple(networks)
        super().__init__(
            path,
            "strategy",
            functools.partial(matrix.default, names),
            lambda data, source: matrix.parse(data, names, source),
        )

    @property
    def strategy(self) -> Strategy:
        return self.value
