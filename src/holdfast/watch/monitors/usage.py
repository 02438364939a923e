# SPDX-License-Identifier: Apache-2.0
"""The usage monitor: what Nova says of its own periodic work, for the metric plugins of a manager.

It sees no failures and answers with nothing; off unless [monitors] enabled names it. Nova has to be
told to speak: volume_usage_poll_interval, instance_usage_audit and compute_monitors in nova.conf.
"""

from collections.abc import Callable, Sequence
from datetime import datetime

from holdfast.model.notice import Notice
from holdfast.model.standing import Sighting
from holdfast.ports.clock import Clock
from holdfast.ports.cloud import Cloud
from holdfast.ports.metrics import Snapshot
from holdfast.watch.metrics.usage import EXISTS, METRICS, VOLUME, Usage


class UsageMonitor:
    name = "usage"
    topics: Sequence[str] = ("versioned_notifications",)
    event_types: Sequence[str] = (VOLUME, EXISTS, METRICS)
    only_hears = True

    def __init__(self, offer: Callable[[Snapshot], None], clock: Clock) -> None:
        """`offer` must not wait."""
        self._offer = offer
        self._usage = Usage(clock)

    def heard(self, notice: Notice) -> Sequence[Sighting]:
        snapshot = self._usage.snapshot(notice)
        if snapshot is not None:
            self._offer(snapshot)
        return []

    def states(self, cloud: Cloud, at: datetime) -> Sequence[Sighting]:
        return []
