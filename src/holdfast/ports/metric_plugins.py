# SPDX-License-Identifier: Apache-2.0
"""Plugins that look at what is measured on a host, and say only what matters.

Any class will do that has any of `on_host(d)`, `on_cpu(d)`, `on_ram(d)`, `on_volume(d)`,
`on_bandwidth(d)`; which of them there are is looked at once, and only those are called:

    class Hot:
        def configure(self, config):            # may be left out; at first, and when it changes
            self.limit = float(config.get("limit", 0.95))

        def on_cpu(self, d, ctx):               # once for each guest; `ctx` may be left out
            if not d["stale"] and d.get("util_ratio", 0) > self.limit:
                ctx.tell(f"{d['name']} uses all of its {d['flavor_vcpus']} CPUs", about=d["uuid"])

        def close(self):                        # may be left out
            pass

It is made known by an entry point, or named by an operator as `module:Class` or by its file:

    [project.entry-points."holdfast.metric_plugins"]
    hot = "acme_hot:Hot"

Each plugin has a thread of its own: nothing of it is ever called twice at once. The dicts are the
same for all of them and cannot be changed; `dict(d)` is a copy that can. A method that takes longer
than 50 ms or raises gets its plugin a strike, five within a minute switch it off, and one that
never returns is left alone for ever. docs/metric-plugins.md has it all.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple, Protocol, SupportsFloat

from holdfast.alarms.rules import SEVERITIES
from holdfast.ports.metrics import Entity

#: The group of entry points.
NAMESPACE: Final = "holdfast.metric_plugins"
#: What a plugin may have, in the order in which they are called in a pass.
CALLBACKS: Final = ("on_host", "on_cpu", "on_ram", "on_volume", "on_bandwidth")
#: Of `about`: with the name of the plugin it may become the name of an alarm's rule.
LONGEST_ABOUT: Final = 56


@dataclass(frozen=True, slots=True)
class Note:
    """What a plugin says in a pass."""

    plugin: str
    host: str
    about: str  # the uuid of a guest; "": the host
    sentence: str
    at: datetime
    severity: str
    value: float | None
    threshold: float


@dataclass(frozen=True, slots=True)
class Context:
    """Which pass this is, and a way to be heard."""

    plugin: str
    host: str
    pass_id: int
    at: datetime
    monotonic: float
    elapsed_s: float  # since the pass before
    config_version: int  # grows with each `configure`
    #: New code on trial, beside the old: what it tells goes nowhere. Send nothing elsewhere either.
    shadow: bool
    hear: Callable[[Note], None]

    def tell(
        self,
        sentence: str,
        *,
        about: str = "",
        severity: str = "warning",
        value: SupportsFloat | None = None,
        threshold: SupportsFloat = 0.0,
    ) -> None:
        """That something is so, in every pass in which it is: it becomes an alarm of the plugin's
        about this guest, or about the host, which is over a minute after it was told last. What
        cannot be passed on raises: it is the plugin's strike, and nobody else hears of it."""
        if severity not in SEVERITIES:
            raise ValueError(f"{severity!r} is no severity: write {', '.join(SEVERITIES)}")
        if not isinstance(about, str) or len(about) > LONGEST_ABOUT:
            raise ValueError(f'about: write the uuid of a guest, or "" of the host: {about!r:.80}')
        number = None if value is None else _finite("value", value)
        level = _finite("threshold", threshold)
        text = str(sentence)[:500]
        self.hear(Note(self.plugin, self.host, about, text, self.at, severity, number, level))


def _finite(name: str, value: SupportsFloat) -> float:
    """Of any kind of number, numpy's too; what is none would be refused by all who are told."""
    try:
        found = float(value)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not math.isfinite(found):
        raise ValueError(f"{name} is {value!r:.80}: write a finite number, or leave it out")
    return found


# Where numbers of a host go, if its operator wants any to leave it: statsd, graphite, Ceilometer.
#
# An outlet knows a format and a way. When something is sent, and how much of it, is not its
# affair
# but that of `metrics/sinks/worker.py`, which calls it on one thread that may wait.


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
