# SPDX-License-Identifier: Apache-2.0
"""Puts the usage monitor of a manager together: metric plugins that hear what Nova says."""

from typing import TYPE_CHECKING, Any, Final

from oslo_config import cfg

from holdfast.ports.clock import SystemClock
from holdfast.ports.metrics import Snapshot
from holdfast.watch.monitors.usage import UsageMonitor

if TYPE_CHECKING:
    from holdfast.watch.metrics.plugin_desk import PluginDesk
    from holdfast.watch.metrics.plugins import PluginRunner

#: A snapshot is a message here, and Nova sends those of a host all at once.
WAITING: Final = 1000
#: Of the whole manager.
RSS_BYTES: Final = 2**30


class Plugins:
    """Nothing is started before the first message: monitors are made whether they are used or
    not. They end with the process, for nobody tells a monitor that it does."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        settings: Any = conf.monitors
        self._path: str = settings.metric_plugins_file
        self.runner: PluginRunner | None = None
        self.desk: PluginDesk | None = None

    def offer(self, snapshot: Snapshot) -> None:
        if self._path:
            self._started().offer(snapshot)

    def _started(self) -> "PluginRunner":
        if self.runner is None:
            from holdfast.drivers.metrics.own import OwnProcess
            from holdfast.watch.metrics.plugin_desk import PluginDesk
            from holdfast.watch.metrics.plugin_limits import Limits
            from holdfast.watch.metrics.plugin_log import PluginLog
            from holdfast.watch.metrics.plugins import PluginRunner

            limits = Limits(waiting=WAITING, rss_bytes=RSS_BYTES)
            self.runner = PluginRunner(limits, PluginLog(), OwnProcess())
            self.desk = PluginDesk(self.runner, self._path, SystemClock())
            self.desk.start()
        return self.runner


def monitor(conf: cfg.ConfigOpts) -> UsageMonitor:
    """The entry point `usage` of holdfast.monitors."""
    return UsageMonitor(Plugins(conf).offer, SystemClock())
