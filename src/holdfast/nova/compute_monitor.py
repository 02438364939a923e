# SPDX-License-Identifier: Apache-2.0
"""The compute monitor: Nova's host metrics, and what metric plugins get of them.

    [DEFAULT]
    compute_monitors = cpu.holdfast
    [holdfast]
    metric_plugins_file = /etc/holdfast/plugins.yaml

Nova asks at the end of each update of its resources, once a minute unless configured otherwise. It
gets the numbers that its own monitor `virt_driver` gives; drivers that have none, and counters that
stand still, are no reason to fail. The plugins' part takes a write to a pipe (`feed`).

Nova makes every installed monitor, and then chooses: making one does nothing.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import nova.conf
from nova.compute.monitors import base
from nova.objects import monitor_metric
from oslo_utils import timeutils

from holdfast.nova import options
from holdfast.nova.feed import KERNEL, TIMES, Feed, HostCpu

CONF = nova.conf.CONF
options.register(CONF)

#: Bare metal has many nodes behind one service, and is asked once for each.
LEAST_S = 0.5


class Monitor(base.CPUMonitorBase):  # type: ignore[misc]  # Nova has no annotations
    def __init__(self, resource_tracker: Any) -> None:
        super().__init__(resource_tracker)
        self.source = CONF.compute_driver
        self._tracker = resource_tracker
        self._cpu = HostCpu(resource_tracker.driver.get_host_cpu_stats, self.source)
        self._feed: Feed | None = None
        self._fed: float | None = None

    def populate_metrics(self, metric_list: Any) -> None:
        """Nova's name for it: what is measured now is added to the list."""
        now = timeutils.utcnow()
        for name, value in self._cpu.read().items():
            one = monitor_metric.MonitorMetric(
                name=name, value=value, timestamp=now, source=self.source
            )
            metric_list.objects.append(one)
        self._tell()

    def _tell(self) -> None:
        chosen, now = options.read_metrics(CONF), time.monotonic()
        if not chosen.plugins_file or (self._fed is not None and now - self._fed < LEAST_S):
            return
        self._fed = now
        if self._feed is None:
            python = chosen.python or sys.executable
            words = ("-P", "-m", "holdfast.cmd.nova_plugins", "--file", chosen.plugins_file)
            self._feed = Feed([python, *words])
        self._feed.give(self._message())

    def _message(self) -> dict[str, Any]:
        """What Nova holds in memory; nothing is asked of anybody."""
        stats, tracker = self._cpu.stats, self._tracker
        cpu = {f"cpu_{name}_ns": stats[name] for name in TIMES}
        if stats["frequency"]:
            cpu["cpu_mhz"] = stats["frequency"]
        return {
            "host": tracker.host,
            "at": time.time(),
            # of Linux's own, its process reads more than Nova asks for
            "cpu": {} if self._cpu.source == KERNEL else cpu,
            "promised": dict(_promised(tracker)),
            "guests": sorted(tracker.tracked_instances),
        }


def _promised(tracker: Any) -> Iterator[tuple[str, int]]:
    """What the servers of this host may use, as Nova counts it; its own share is in it."""
    nodes = list(tracker.compute_nodes.values())
    for name, ours, unit in (
        ("vcpus_used", "vcpus_promised", 1),
        ("memory_mb_used", "mem_promised_bytes", 2**20),
        ("local_gb_used", "disk_promised_bytes", 2**30),
        ("running_vms", "vms_running", 1),
    ):
        known = [getattr(one, name) for one in nodes if one.obj_attr_is_set(name)]
        if nodes and len(known) == len(nodes):
            yield ours, sum(one or 0 for one in known) * unit
