# SPDX-License-Identifier: Apache-2.0
"""Puts together what measures the host of an agent, and who looks at it: plugins, alarms, sinks."""

import logging
from collections.abc import Sequence
from typing import Any, Protocol

from oslo_config import cfg

from holdfast.drivers.metrics.own import OwnProcess
from holdfast.exporting import sinks as wanted_sinks
from holdfast.ports.clock import Clock
from holdfast.ports.measures import Measures
from holdfast.watch.admin import Admin
from holdfast.watch.metrics.admin import MetricsCommands
from holdfast.watch.metrics.alarms import HostAlarms
from holdfast.watch.metrics.collect import Collector
from holdfast.watch.metrics.part import MetricsPart, Sink, Stages
from holdfast.watch.metrics.plugin_desk import PluginDesk
from holdfast.watch.metrics.plugin_limits import Limits
from holdfast.watch.metrics.plugin_news import PluginNews
from holdfast.watch.metrics.plugins import MIB, PluginRunner

LOG = logging.getLogger(__name__)
LIBVIRT = "libvirt"


class Settings(Protocol):
    """[metrics]."""

    every_s: float
    plugins_file: str | None
    plugins_memory_mib: int


class Measuring:
    """Of one host. `admin` learns the commands for plugins."""

    def __init__(
        self,
        host: str,
        measures: Measures,
        settings: Settings,
        admin: Admin,
        clock: Clock,
        *,
        alarms: HostAlarms | None = None,
        sinks: Sequence[Sink] = (),
    ) -> None:
        self._measures = measures
        self._own = OwnProcess()
        self.news = PluginNews(host)
        limits = Limits(rss_bytes=settings.plugins_memory_mib * MIB)
        self.runner = PluginRunner(limits, self.news, self._own)
        self._desk = PluginDesk(self.runner, settings.plugins_file, clock)
        tell, turns = (alarms.tell, alarms.turns) if alarms else (None, None)
        standing = alarms.standing if alarms else tuple
        stages = Stages(self.runner, self.news, alarms, tell, sinks)
        collector = Collector(host, measures, clock)
        self.part = MetricsPart(collector, settings.every_s, clock, stages, turns)
        admin.add(self._desk.commands())
        admin.add(MetricsCommands(lambda: self.part.last, clock, standing, sinks).commands())

    def start(self) -> None:
        self._measures.start()
        self._desk.start()
        self.part.start()

    def stop(self) -> None:
        self.part.stop()
        self._desk.stop()
        self._measures.close()
        self._own.close()


class Losses:
    """What does not work of the metrics of an agent, and what was lost by that, for its status."""

    def __init__(self, alarms: HostAlarms, measured: Sequence[Measuring]) -> None:
        self._alarms = alarms
        self._measured = measured

    def said(self) -> dict[str, Any]:
        troubles: dict[str, str] = {}
        for one in self._measured:
            troubles |= one.part.troubles()
        return {"troubles": troubles, "alarms_lost": self._alarms.lost}


def measuring(
    conf: cfg.ConfigOpts,
    host: str,
    admin: Admin,
    clock: Clock,
    alarms: HostAlarms | None = None,
    more: Sequence[Sink] = (),
) -> Sequence[Measuring]:
    """What [metrics] asks for; nothing if the host is not to be measured, or cannot be. `more`:
    who gets the passes besides the configured sinks."""
    settings, agent = conf.metrics, conf.agent
    if not settings.enabled:
        return ()
    if agent.guests != LIBVIRT:
        LOG.info("guests of %s are not measured: there are no numbers of them", agent.guests)
        return ()
    from holdfast.drivers.metrics.libvirt import LibvirtMeasures

    every_s = settings.libvirt_every_s
    measures = LibvirtMeasures(agent.guests_address, clock, every_s=every_s)
    sinks = [*wanted_sinks(conf.metric_sinks, clock), *more]
    made = Measuring(host, measures, settings, admin, clock, alarms=alarms, sinks=sinks)
    return (made,)
