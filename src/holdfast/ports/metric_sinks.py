# SPDX-License-Identifier: Apache-2.0
"""Where numbers of a host go, if its operator wants any to leave it: statsd, graphite, Ceilometer.

An outlet knows a format and a way. When something is sent, and how much of it, is not its affair
but that of `watch/metrics/sink_lane.py`, which calls it on one thread that may wait.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple, Protocol

from holdfast.ports.metrics import Entity

#: The field of a sample that says how an alarm stands, and the numbers that say it.
ALARM: Final = "alarm"
OK: Final = 0.0
FIRING: Final = 1.0
NO_DATA: Final = 2.0
_NOTHING: Final[Mapping[str, str]] = {}


class Transition(Protocol):
    """An alarm that changed: what a sink reads of `watch.alarms.change.Change`."""

    @property
    def rule(self) -> str: ...
    @property
    def host(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def entity(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def project(self) -> str: ...
    @property
    def before(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def severity(self) -> str: ...
    @property
    def value(self) -> float | None: ...
    @property
    def threshold(self) -> float: ...
    @property
    def at(self) -> datetime: ...
    @property
    def event(self) -> str: ...


class Sample(NamedTuple):
    """One number of one entity at one moment."""

    host: str
    entity: Entity
    field: str
    value: float
    at: datetime
    monotonic: float
    #: Of a counter: by how much it grew since it was sent last; None: nobody knows.
    step: float | None = None
    #: Of an alarm: its rule, its severity.
    about: Mapping[str, str] = _NOTHING


class Outlet(Protocol):
    name: str

    def encode(self, sample: Sample) -> bytes:
        """The sample alone, as it will be sent; nothing if there is nothing to say."""
        ...

    def send(self, samples: Sequence[bytes], now: float) -> None:
        """All of them, in as few pieces as go; DriverError if one cannot be. `now` is monotonic."""
        ...

    def close(self) -> None: ...
