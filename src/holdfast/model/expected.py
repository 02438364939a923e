# SPDX-License-Identifier: Apache-2.0
"""What should run on a host, by the word of the cloud: what an agent compares with what does.

    runs       it should run there
    off        it belongs there, and is switched off
    busy       something is under way, or nobody can say: nothing follows from how it is found
    elsewhere  it belongs to another host, or to none
    unknown    the cloud knows no such server

That nothing is said of a server means nothing: who wants to know has to ask about it.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

RUNS: Final = "runs"
OFF: Final = "off"
BUSY: Final = "busy"
ELSEWHERE: Final = "elsewhere"
UNKNOWN: Final = "unknown"
STATES: Final = (RUNS, OFF, BUSY, ELSEWHERE, UNKNOWN)


@dataclass(frozen=True)
class Expected:
    """One server; `why` is a sentence."""

    uuid: str
    name: str
    state: str
    why: str = ""


@dataclass(frozen=True)
class Expectation:
    """Of one host: all servers of it, and those that were asked about. `at`: when the cloud was
    asked, by the clock of who asked it."""

    host: str
    at: datetime
    servers: tuple[Expected, ...] = ()
