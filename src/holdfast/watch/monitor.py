# SPDX-License-Identifier: Apache-2.0
"""What a monitor is: a plugin that knows one kind of resource, and nothing of what follows.

It is told what Nova says (push) and asked how things stand (poll), and answers with sightings of
hosts, or words about guests. It decides nothing: debouncing, damping and what a failure means are
`model/standing.py`'s. A third party needs one class and one entry point; `plugin(conf)` makes it:

    [project.entry-points."holdfast.monitors"]
    power = "acme_power:PowerMonitor"
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Protocol

from oslo_config import cfg
from stevedore import extension

from holdfast.model.guest_word import GuestWord
from holdfast.model.notice import Notice
from holdfast.model.standing import Sighting
from holdfast.ports.cloud import Cloud

NAMESPACE = "holdfast.monitors"
Seen = Sighting | GuestWord
#: How a call of a monitor can go wrong.
RAISED, HUNG, BUSY, NOT_LOADED = "raised", "hung", "busy", "not loaded"


class Monitor(Protocol):
    name: str
    topics: Sequence[str]  # of Nova's broker, beside those of [notifications] topics
    event_types: Sequence[str]  # what it wants to hear; `service.*` means all of that noun

    def heard(self, notice: Notice) -> Sequence[Seen]:
        """What a message says about hosts and guests. It may come twice, and late."""
        ...

    def states(self, cloud: Cloud, at: datetime) -> Sequence[Sighting]:
        """How all hosts stand; `at` is when this look began. To be left out is to be unknown."""
        ...


class Tally(Protocol):
    """Whoever counts; all methods must be quick and must not raise."""

    def sighted(self, sighting: Sighting) -> None: ...

    def failed(self, monitor: str, how: str) -> None: ...

    def polled(self, monitor: str) -> None:
        """Its look is done."""
        ...

    def connected(self, there: bool) -> None:
        """We listen to Nova's broker now, or no longer."""
        ...

    def message(self, how: str) -> None:
        """A message was heard, not understood, put off or set aside."""
        ...


class NoTally:
    """Nobody counts."""

    def sighted(self, sighting: Sighting) -> None: ...

    def failed(self, monitor: str, how: str) -> None: ...

    def polled(self, monitor: str) -> None: ...

    def connected(self, there: bool) -> None: ...

    def message(self, how: str) -> None: ...


def wants(monitor: Monitor, event_type: str) -> bool:
    noun = event_type.partition(".")[0]
    return any(one in (event_type, f"{noun}.*") for one in monitor.event_types)


def topics(monitors: Iterable[Monitor]) -> list[str]:
    return sorted({topic for monitor in monitors for topic in monitor.topics})


def only_hears(monitor: Monitor) -> bool:
    """Whether it is told and never asked, so of no use where nobody listens; it may say so."""
    return bool(getattr(monitor, "only_hears", False))


def checked(given: Any) -> list[Seen]:
    """What a monitor answered, if it is what a monitor answers."""
    found = list(given)
    for one in found:
        if not isinstance(one, Seen):
            raise TypeError(f"a monitor answers with sightings, not with {type(one).__name__}")
    return found


def load(conf: cfg.ConfigOpts) -> tuple[list[Monitor], dict[str, str]]:
    """Every installed monitor, and of those that do not load, why."""
    broken: dict[str, str] = {}
    made: list[Monitor] = []

    def failed(_manager: Any, entry: Any, error: BaseException) -> None:
        broken[entry.name] = f"{type(error).__name__}: {error}"

    found: Any = extension.ExtensionManager(NAMESPACE, on_load_failure_callback=failed)
    for item in found:
        try:
            monitor: Monitor = item.plugin(conf)
            _ = monitor.name, [*monitor.topics, *monitor.event_types]
            made.append(monitor)
        except Exception as error:  # whatever a stranger's constructor raises
            broken[item.name] = f"{type(error).__name__}: {error}"
    return sorted(made, key=lambda monitor: monitor.name), broken
