# SPDX-License-Identifier: Apache-2.0
"""nova-compute monitor: Nova's host CPU metrics, and the data feed of metric plugins.

    [DEFAULT]
    compute_monitors = cpu.holdfast
    [holdfast]
    metric_plugins_file = /etc/holdfast/plugins.yaml

Nova calls the monitor at the end of each resource update, once a minute by default. The monitor
returns the same metrics as Nova's own monitor `virt_driver`, but does not fail if the driver has no
counters or if they stand still. Feeding the plugins costs one write to a pipe (`feed`).

Nova instantiates every installed monitor before it selects some, so the constructor starts nothing.
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

#: Least seconds between two messages: on bare metal Nova calls the monitor once for each node of
#: the service.
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
        """Append the current CPU metrics to the list (called by Nova), and feed the plugins."""
        now = timeutils.utcnow()
        for name, value in self._cpu.read().items():
            metric = monitor_metric.MonitorMetric(
                name=name, value=value, timestamp=now, source=self.source
            )
            metric_list.objects.append(metric)
        self._feed_plugins()

    def _feed_plugins(self) -> None:
        chosen, now = options.read_metrics(CONF), time.monotonic()
        if not chosen.plugins_file or (self._fed is not None and now - self._fed < LEAST_S):
            return
        self._fed = now
        if self._feed is None:
            python = chosen.python or sys.executable
            words = ("-P", "-m", "holdfast.cmd.nova_plugins", "--file", chosen.plugins_file)
            self._feed = Feed([python, *words])
        self._feed.send(self._message())

    def _message(self) -> dict[str, Any]:
        """Build the plugin message from Nova's memory, without any call."""
        stats, tracker = self._cpu.stats, self._tracker
        cpu = {f"cpu_{name}_ns": stats[name] for name in TIMES}
        if stats["frequency"]:
            cpu["cpu_mhz"] = stats["frequency"]
        return {
            "host": tracker.host,
            "at": time.time(),
            # if the counters are Linux's, the plugin process reads them itself, in more detail
            "cpu": {} if self._cpu.source == KERNEL else cpu,
            "promised": dict(_promised(tracker)),
            "guests": sorted(tracker.tracked_instances),
        }


def _promised(tracker: Any) -> Iterator[tuple[str, int]]:
    """Yield the resources allocated on this host as Nova counts them, host reserve included."""
    nodes = list(tracker.compute_nodes.values())
    for name, ours, unit in (
        ("vcpus_used", "vcpus_promised", 1),
        ("memory_mb_used", "mem_promised_bytes", 2**20),
        ("local_gb_used", "disk_promised_bytes", 2**30),
        ("running_vms", "vms_running", 1),
    ):
        amounts = [getattr(node, name) for node in nodes if node.obj_attr_is_set(name)]
        if nodes and len(amounts) == len(nodes):
            yield ours, sum(amount or 0 for amount in amounts) * unit
