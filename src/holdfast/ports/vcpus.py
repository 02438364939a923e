# SPDX-License-Identifier: Apache-2.0
"""The processors of guests as their host sees them: threads that run, wait or sleep."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Vcpu:
    """One, at one moment. `ran_ns` and `waited_ns` (for a processor) only grow, as long as it is
    the same `thread`. `wants`: it could go on, and is kept from it just now. What sleeps because
    the guest has nothing to do wants nothing, nor does one of a guest that is paused."""

    uuid: str
    name: str
    number: int
    thread: int
    ran_ns: int
    waited_ns: int
    wants: bool


class Vcpus(Protocol):
    def read(self) -> Sequence[Vcpu]:
        """Of every guest that runs on this machine. Asks no hypervisor, so it cannot hang."""
        ...
