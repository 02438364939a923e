# SPDX-License-Identifier: Apache-2.0
"""Puts the monitors of a manager together: what `service.py` is to a process."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.api.monitor_metrics import MonitorMetrics
from holdfast.model.errors import DriverError
from holdfast.ports.cloud import Cloud
from holdfast.ports.notices import Notices
from holdfast.ports.notices import Tally as NoticeTally
from holdfast.ports.standings import Repair
from holdfast.watch import monitor, poll
from holdfast.watch.guest_news import GuestNews
from holdfast.watch.hosts import HostWatch
from holdfast.watch.part import Connect, Monitors, report
from holdfast.watch.poll import Watch
from holdfast.work.kind import Kind

if TYPE_CHECKING:
    from holdfast.service import Core


class Watching:
    """`hosts` is the road for whoever else knows something of a host."""

    def __init__(
        self,
        core: "Core",
        cloud: Cloud,
        *,
        repair: Repair | None,
        new_id: Callable[[], str],
        ring: Callable[[], None],
    ) -> None:
        settings, standings = core.conf.monitors, core.store.standings
        tally = MonitorMetrics(core.metrics.registry, core.clock, standings.by_state)
        plugins, broken = monitor.load(core.conf)
        report(plugins, broken, settings.enabled, tally)
        self.hosts = HostWatch(standings, settings, repair=repair, ring=ring)
        guests = GuestNews(core.store.observations, new_id, ring)
        watch = Watch(self.hosts, plugins, tally, core.clock, guests=guests.write)
        self.kinds: dict[str, Kind] = poll.kinds(watch, cloud, settings, standings.now)
        listener = _listener(core, monitor.topics(plugins))
        self.part = Monitors(watch, standings, settings, listener, ring)


def _listener(core: "Core", topics: list[str]) -> Connect | None:
    """How to listen to Nova; None where there is no Nova, or no broker."""
    conf = core.conf
    if conf.cloud.driver == "sim" or not (conf.notifications.transport_url or conf.transport_url):
        return None
    return functools.partial(_connect, core, topics)


def _connect(core: "Core", topics: list[str], tally: NoticeTally) -> Notices:
    try:
        from holdfast.drivers.notices.nova import NovaNotices
    except ImportError as error:
        raise DriverError(
            "notices",
            f"[monitors] push is on but {error.name} is not installed: pip install"
            " holdfast[rabbit], or switch it off",
            retryable=False,
        ) from error
    return NovaNotices(core.conf, core.clock, tally, topics=topics)
