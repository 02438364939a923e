# SPDX-License-Identifier: Apache-2.0
"""A sink for tests of what is announced."""

from collections.abc import Callable
from dataclasses import dataclass, field

from holdfast.ports.publishers import NEWS, LeaseNotice


@dataclass
class Ear:
    """A sink that hears, or raises what it is told to."""

    name: str = "ear"
    timeout_s: float = 5.0
    heard: list[LeaseNotice] = field(default_factory=list)
    trouble: Exception | None = None
    tries: int = 0
    hears: str = NEWS
    meanwhile: Callable[[], None] = lambda: None  # what happens while it listens

    def send(self, notice: LeaseNotice) -> None:
        self.tries += 1
        self.meanwhile()
        if self.trouble is not None:
            raise self.trouble
        self.heard.append(notice)

    def close(self) -> None: ...
