# SPDX-License-Identifier: Apache-2.0
"""Composition root of a manager: host status monitors, recovery, publishers, usage monitor."""

import functools
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from oslo_config import cfg
from stevedore import extension

from holdfast.api.health import MonitorMetrics
from holdfast.app.daemon import BadSetup
from holdfast.db import Store
from holdfast.drivers.fence import connect as connect_fence
from holdfast.drivers.publishers import connect
from holdfast.hoststatus import poll
from holdfast.hoststatus.plugins.guests import GuestReportWriter
from holdfast.hoststatus.plugins.usage import UsageMonitor
from holdfast.hoststatus.poll import HostWatch, Watch
from holdfast.hoststatus.push import Connect, Monitors, report
from holdfast.jobs.job import Kind
from holdfast.model.errors import DriverError, HoldfastError
from holdfast.ports.cloud import Cloud
from holdfast.ports.fence import Fence
from holdfast.ports.metrics import Snapshot
from holdfast.ports.publishers import ALARMS, INSTANCE_HA, NEWS, Sink, sinks_for
from holdfast.ports.recovery import Repair
from holdfast.ports.reports import Notices
from holdfast.ports.reports import Tally as NoticeTally
from holdfast.recovery import alarm_actions, evacuation, guest, host, host_return, intake, votes
from holdfast.recovery.context import Announce, OwnStep, RecoveryContext
from holdfast.recovery.events import IncidentPublisher
from holdfast.runtime.clock import Clock, SystemClock

if TYPE_CHECKING:
    from holdfast.app.service import Core
    from holdfast.metrics.plugin_manager import PluginManager
    from holdfast.metrics.plugin_runner import PluginRunner


class Watching:
    """The host status monitors of a manager; other parts report host status through `hosts`."""

    def __init__(
        self,
        core: "Core",
        cloud: Cloud,
        *,
        repair: Repair | None,
        new_id: Callable[[], str],
        wake: Callable[[], None],
    ) -> None:
        settings, host_statuses = core.conf.monitors, core.store.host_status
        tally = MonitorMetrics(core.metrics.registry, core.clock, host_statuses.by_state)
        plugins, broken = poll.load(core.conf)
        report(plugins, broken, settings.enabled, tally)
        self.hosts = HostWatch(host_statuses, settings, repair=repair, wake=wake)
        guests = GuestReportWriter(core.store.observations, new_id, wake)
        watch = Watch(self.hosts, plugins, tally, core.clock, guests=guests.write)
        self.kinds: dict[str, Kind] = poll.kinds(watch, cloud, settings, host_statuses.now)
        listener = _listener(core, poll.topics(plugins))
        self.part = Monitors(watch, host_statuses, settings, listener, wake)


def _listener(core: "Core", topics: list[str]) -> Connect | None:
    """Return the listener for Nova's notifications; None without Nova or broker."""
    conf = core.conf
    if conf.cloud.driver == "sim" or not (conf.notifications.transport_url or conf.transport_url):
        return None
    return functools.partial(_connect, core, topics)


def _connect(core: "Core", topics: list[str], tally: NoticeTally) -> Notices:
    try:
        from holdfast.drivers.nova_notifications import NovaNotices
    except ImportError as error:
        raise DriverError(
            "notices",
            f"[monitors] push is on but {error.name} is not installed: pip install"
            " holdfast[rabbit], or switch it off",
            retryable=False,
        ) from error
    return NovaNotices(core.conf, core.clock, tally, topics=topics)


STEPS = "holdfast.recovery_steps"


class Recovering:
    """The recovery jobs of a manager, and their context."""

    def __init__(
        self,
        core: "Core",
        cloud: Cloud,
        watch: HostWatch,
        *,
        new_id: Callable[[], str],
        wake: Callable[[], None],
        announce: Announce,
    ) -> None:
        conf = core.conf
        reservation = conf.reservation
        self.fence = fence(core)
        self.context = RecoveryContext(
            incidents=core.store.incidents,
            moves=core.store.vmoves,
            votes=core.store.votes,
            cloud=cloud,
            fence=self.fence,
            settings=conf.recovery,
            new_id=new_id,
            see=watch.see,
            clock=core.clock,
            own_steps=own_steps(),
            wake=wake,
            announce=announce,
            freepool=conf.cloud.freepool,
            repairs=lambda: bool(reservation.repair),
            mass_failure=conf.mass_failure,
        )
        self.kinds = {**kinds(self.context), **alarm_actions.kinds(self.context, core.store.alarms)}


def kinds(context: RecoveryContext) -> dict[str, Kind]:
    return {
        name: kind
        for module in (intake, votes, host, guest, evacuation, host_return)
        for name, kind in module.kinds(context).items()
    }


def fence(core: "Core") -> Fence:
    try:
        return connect_fence(core.conf, core.clock)
    except HoldfastError as error:
        raise BadSetup(error.message) from error


def own_steps() -> Mapping[str, OwnStep]:
    """Load the site's recovery steps; BadSetup if a step cannot be loaded."""

    def failed(_manager: Any, entry: Any, error: BaseException) -> None:
        raise BadSetup(f"recovery step {entry.name} cannot be loaded: {error}") from error

    extensions: Any = extension.ExtensionManager(STEPS, on_load_failure_callback=failed)
    return {item.name: item.plugin for item in extensions}


def speak(conf: cfg.ConfigOpts, clock: Clock, store: Store) -> Sequence[Sink]:
    """Connect the configured publishers, and make the store record events for them.

    From now on each write to the store records its events; managers deliver the events.
    """
    try:
        sinks = connect(conf, clock)
    except DriverError as error:
        raise BadSetup(error.message) from error
    store.database.publisher = IncidentPublisher(
        people=sinks_for(sinks, NEWS),
        programs=sinks_for(sinks, INSTANCE_HA),
        boards=sinks_for(sinks, ALARMS),
        host=socket.gethostname(),
    )
    return sinks


# The usage monitor: metric plugins that get snapshots made from Nova's notifications.


#: Queue length. Each notification is a snapshot, and Nova sends all of a host at once.
WAITING: Final = 1000


class Plugins:
    """Metric plugins of a manager, started by the first snapshot.

    The constructor starts nothing, because monitors are built even if they are not enabled. The
    plugins end with the process, because a monitor gets no stop call.
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        settings: Any = conf.monitors
        self._path: str = settings.metric_plugins_file
        self.runner: PluginRunner | None = None
        self.context: PluginManager | None = None

    def offer(self, snapshot: Snapshot) -> None:
        if self._path:
            self._started().offer(snapshot)

    def _started(self) -> "PluginRunner":
        if self.runner is None:
            from holdfast.metrics.plugin_events import PluginLog
            from holdfast.metrics.plugin_manager import PluginManager
            from holdfast.metrics.plugin_runner import Limits, PluginRunner

            self.runner = PluginRunner(Limits(waiting=WAITING), PluginLog())
            self.context = PluginManager(self.runner, self._path, SystemClock())
            self.context.start()
        return self.runner


def monitor(conf: cfg.ConfigOpts) -> UsageMonitor:
    """Build the usage monitor (entry point `usage` of holdfast.monitors)."""
    return UsageMonitor(Plugins(conf).offer, SystemClock())
