# SPDX-License-Identifier: Apache-2.0
"""The services of the host itself, as processes: is one there, and can it be started again."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Service:
    """One that must run. `probe` and `restart` are commands, word by word; no shell reads them.

    Without a probe it runs if a process of that name is there that is neither dead nor stopped.
    Without a restart it is only watched.
    """

    name: str
    probe: tuple[str, ...] = ()
    restart: tuple[str, ...] = ()
    tries: int = 3
    #: After a restart it gets so long to be there.
    patience_s: float = 10.0
    #: Running so long, it counts as well again: whatever dies sooner is still the same trouble.
    stable_s: float = 60.0


class Processes(Protocol):
    def runs(self, service: Service) -> str:
        """Why it does not run, "" if it does."""
        ...

    def restart(self, service: Service) -> str:
        """Why that could not be done, "" if it was; that it runs then is seen by looking."""
        ...
