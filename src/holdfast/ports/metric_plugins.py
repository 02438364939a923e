# SPDX-License-Identifier: Apache-2.0
"""Ports of metric plugins and of metric sinks.

A metric plugin reads the metrics of a host in every pass and reports only conditions that
matter. A plugin is a class with any of the methods `on_host(d)`, `on_cpu(d)`, `on_ram(d)`,
`on_volume(d)`, `on_bandwidth(d)`; the agent looks them up once and calls only those:

    class Hot:
        def configure(self, config):            # optional; at start, and after a change
            self.limit = float(config.get("limit", 0.95))

        def on_cpu(self, d, ctx):               # once for each guest; `ctx` is optional
            if not d["stale"] and d.get("util_ratio", 0) > self.limit:
                ctx.report(f"{d['name']} uses all of its {d['flavor_vcpus']} CPUs", about=d["uuid"])

        def close(self):                        # optional
            pass

An entry point registers the plugin, or an operator names it as `module:Class` or by its file:

    [project.entry-points."holdfast.metric_plugins"]
    hot = "acme_hot:Hot"

All plugins run in one child process of the agent, on one thread, one after the other. All plugins
get the same read-only dicts; `dict(d)` is a writable copy. A method that takes longer than 50
ms or raises earns its plugin a strike. Five strikes within a minute switch the plugin off. A
method that never returns is ended with the process. See docs/reference/metric-plugins.md.

An `Outlet` sends metrics out of the host to statsd, graphite or Ceilometer, if the operator
wants that.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple, Protocol, SupportsFloat

from holdfast.alarms.rules import SEVERITIES
from holdfast.ports.metrics import Entity

#: The entry point group.
NAMESPACE: Final = "holdfast.metric_plugins"
#: The methods a plugin may have, in the order of calls within a pass.
CALLBACKS: Final = ("on_host", "on_cpu", "on_ram", "on_volume", "on_bandwidth")
#: Longest `about`: with the plugin's name it may become the name of an alarm rule.
LONGEST_ABOUT: Final = 56


@dataclass(frozen=True, slots=True)
class Note:
    """A condition that a plugin reports in a pass."""

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
    """The data of the current pass, and the call that reports a condition."""

    plugin: str
    host: str
    pass_id: int
    at: datetime
    monotonic: float
    elapsed_s: float  # since the pass before
    config_version: int  # grows with each `configure`
    #: True for new code on trial beside the old: its reports are dropped. Send nothing
    #: elsewhere either.
    shadow: bool
    hear: Callable[[Note], None]

    def report(
        self,
        sentence: str,
        *,
        about: str = "",
        severity: str = "warning",
        value: SupportsFloat | None = None,
        threshold: SupportsFloat = 0.0,
    ) -> None:
        """Report a condition; call this in every pass in which the condition holds.

        The report becomes an alarm of the plugin about this guest, or about the host. The alarm
        ends a minute after the last report. A report that cannot be passed on raises: the
        plugin gets a strike, and nothing is reported.
        """
        if severity not in SEVERITIES:
            raise ValueError(f"{severity!r} is no severity: write {', '.join(SEVERITIES)}")
        if not isinstance(about, str) or len(about) > LONGEST_ABOUT:
            raise ValueError(f'about: write the uuid of a guest, or "" of the host: {about!r:.80}')
        number = None if value is None else _finite("value", value)
        level = _finite("threshold", threshold)
        text = str(sentence)[:500]
        self.hear(Note(self.plugin, self.host, about, text, self.at, severity, number, level))


def _finite(name: str, value: SupportsFloat) -> float:
    """Return any kind of number, numpy's too, as a finite float, or raise ValueError.

    Every receiver would refuse a value that is not a finite number.
    """
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{name} is {value!r:.80}: write a finite number, or leave it out")
    return number


# Metric sinks: statsd, graphite, Ceilometer.
#
# An outlet knows a format and a transport. `metrics/sinks/worker.py` decides when and how much
# to send; it calls the outlet on a thread that may wait.


#: The field of a sample that holds the state of an alarm, and its values.
ALARM: Final = "alarm"
OK: Final = 0.0
FIRING: Final = 1.0
NO_DATA: Final = 2.0
_NOTHING: Final[Mapping[str, str]] = {}


class Transition(Protocol):
    """A state change of an alarm, as a sink reads it."""

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
    """A metric of an entity at a moment."""

    host: str
    entity: Entity
    field: str
    value: float
    at: datetime
    monotonic: float
    #: For a counter: growth since the last send; None if unknown.
    step: float | None = None
    #: For an alarm: its rule and its severity.
    about: Mapping[str, str] = _NOTHING


class Outlet(Protocol):
    name: str

    def encode(self, sample: Sample) -> bytes:
        """Encode a single sample as sent; empty bytes if there is nothing to send."""
        ...

    def send(self, samples: Sequence[bytes], now: float) -> None:
        """Send all samples in as few packets as possible; DriverError if a packet fails.

        `now` is monotonic.
        """
        ...

    def close(self) -> None: ...
