# SPDX-License-Identifier: Apache-2.0
"""How far plugins may go, what is counted of one, and by what it is judged."""

from dataclasses import dataclass
from typing import Final, Protocol

LOADING: Final = "loading"
ON: Final = "on"
OFF: Final = "off"


@dataclass(frozen=True, slots=True)
class Limits:
    slow_s: float = 0.05
    strikes: int = 5
    within_s: float = 60.0
    hang_s: float = 5.0
    #: For an import, a `configure` or `close`.
    change_s: float = 10.0
    cpu_s: float = 0.25  # of the processor, in one pass
    waiting: int = 2
    rss_bytes: int = 192 * 2**20
    plugins: int = 32


@dataclass(slots=True)
class Tally:
    """What is counted; one thread writes each."""

    passes: int = 0
    dropped: int = 0
    calls: int = 0
    busy_s: float = 0.0
    cpu_s: float = 0.0
    slowest_s: float = 0.0
    notes: int = 0
    grew_bytes: int = 0
    last_pass: int = 0


class Waits(Protocol):
    """For how long a thread has waited for what is not in its hands, since it began."""

    def seconds(self) -> float: ...

    def close(self) -> None: ...


class Own(Protocol):
    """What this process takes."""

    def rss(self) -> int:
        """Bytes of memory."""
        ...

    def waits(self) -> Waits:
        """Of the thread that asks."""
        ...
