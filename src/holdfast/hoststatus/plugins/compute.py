# SPDX-License-Identifier: Apache-2.0
"""The compute host monitor: Nova's compute services and hypervisors.

Nova says `service.update` when a service is disabled, its reason changes, or it is forced down; a
compute that dies says nothing, so its death is found by looking. Both speak as one source: what is
newer counts. A service of a cell that does not answer is not in Nova's list, so it is unknown.
"""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta

from oslo_config import cfg

from holdfast.hoststatus.status import AUTO_DISABLED, DISABLED, DOWN, UNKNOWN, UP, StatusReport
from holdfast.model.nova_notification import Notice, ServiceNotice
from holdfast.ports.cloud import Cloud, CloudHost, Service

SERVICE, HYPERVISOR = "nova:service", "nova:hypervisor"
BINARY = "nova-compute"
#: How the libvirt driver begins its reason when it disables its own service.
AUTO = "AUTO:"
#: A message is no proof of life; a report of the compute within Nova's usual patience is.
SEEN_WITHIN = timedelta(seconds=60)


class ComputeMonitor:
    name = "compute"
    topics: Sequence[str] = ("versioned_notifications",)
    event_types: Sequence[str] = ("service.update",)

    def __init__(self, _conf: cfg.ConfigOpts) -> None:
        """It has no options of its own: what a failure is, [monitors] says for all."""

    def heard(self, notice: Notice) -> Sequence[StatusReport]:
        if not isinstance(notice, ServiceNotice) or notice.binary != BINARY:
            return []
        verdict, reason, decisive = _closed(
            notice.forced_down, notice.disabled, notice.disabled_reason or ""
        )
        if not verdict:
            seen = notice.last_seen_up
            verdict = UP if seen and notice.at - seen < SEEN_WITHIN else UNKNOWN
        return [
            StatusReport(
                host=notice.host,
                source=SERVICE,
                verdict=verdict,
                at=notice.at,
                reason=reason,
                decisive=decisive,
            )
        ]

    def states(self, cloud: Cloud, at: datetime) -> Sequence[StatusReport]:
        seen = [_of_service(one, at) for one in cloud.services.list()]
        hypervisors = cloud.hosts.list()
        alone = Counter(one.service_host for one in hypervisors)
        # Bare metal has many nodes behind one service: none of them speaks for it.
        return seen + [_of_host(one, at) for one in hypervisors if alone[one.service_host] == 1]


def _of_service(service: Service, at: datetime) -> StatusReport:
    verdict, reason, decisive = _closed(
        service.forced_down, not service.enabled, service.disabled_reason
    )
    since = None
    if service.state == DOWN and verdict != DOWN:
        verdict, reason, decisive = DOWN, "the compute service does not report", False
        since = service.updated_at
    if not verdict:
        verdict = UP if service.state == UP else UNKNOWN
    return StatusReport(
        host=service.host,
        source=SERVICE,
        verdict=verdict,
        at=at,
        since=since,
        reason=reason,
        decisive=decisive,
    )


def _closed(forced_down: bool, disabled: bool, why: str) -> tuple[str, str, bool]:
    """The verdict of who closed a service, why, and if that alone decides; "" if nobody did."""
    if forced_down:
        return DOWN, "forced down", True
    if not disabled:
        return "", "", False
    if why.startswith(AUTO):
        return AUTO_DISABLED, why, False
    return DISABLED, why, True


def _of_host(host: CloudHost, at: datetime) -> StatusReport:
    known = host.state in (UP, DOWN)
    return StatusReport(
        host=host.service_host,
        source=HYPERVISOR,
        verdict=host.state if known else UNKNOWN,
        at=at,
        reason="the hypervisor is down" if host.state == DOWN else "",
    )
