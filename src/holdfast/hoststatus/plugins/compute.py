# SPDX-License-Identifier: Apache-2.0
"""The compute host monitor: Nova's compute services and hypervisors.

Nova sends `service.update` when a service is disabled, its reason changes, or it is forced
down. A nova-compute that dies sends nothing, so polling finds its death. Notification and poll
count as one source: the newer report wins. A service of a cell that does not answer is missing
in Nova's list, so its status is unknown.
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
#: Prefix of the reason with which the libvirt driver disables its own service.
AUTO = "AUTO:"
#: A notification is no proof of life; a report of nova-compute within this time is.
SEEN_WITHIN = timedelta(seconds=60)


class ComputeMonitor:
    """Monitor of nova-compute services and hypervisors."""

    name = "compute"
    topics: Sequence[str] = ("versioned_notifications",)
    event_types: Sequence[str] = ("service.update",)
    push_only = False

    def __init__(self, _conf: cfg.ConfigOpts) -> None:
        """Create the monitor without options: [monitors] defines failures for all monitors."""

    def heard(self, notice: Notice) -> Sequence[StatusReport]:
        if not isinstance(notice, ServiceNotice) or notice.binary != BINARY:
            return []
        verdict, reason, decisive = _closed(
            notice.forced_down, notice.disabled, notice.disabled_reason or ""
        )
        if not verdict:
            seen_up_at = notice.last_seen_up
            verdict = UP if seen_up_at and notice.at - seen_up_at < SEEN_WITHIN else UNKNOWN
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
        status_reports = [_of_service(service, at) for service in cloud.services.list()]
        hypervisors = cloud.hosts.list()
        alone = Counter(cloud_host.service_host for cloud_host in hypervisors)
        # Bare metal has many nodes behind one service: no node speaks for the service.
        return status_reports + [
            _of_host(cloud_host, at)
            for cloud_host in hypervisors
            if alone[cloud_host.service_host] == 1
        ]


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
    """Verdict, reason and decisiveness of a closed service; verdict "" if it is open."""
    if forced_down:
        return DOWN, "forced down", True
    if not disabled:
        return "", "", False
    if why.startswith(AUTO):
        return AUTO_DISABLED, why, False
    return DISABLED, why, True


def _of_host(host: CloudHost, at: datetime) -> StatusReport:
    is_known = host.state in (UP, DOWN)
    return StatusReport(
        host=host.service_host,
        source=HYPERVISOR,
        verdict=host.state if is_known else UNKNOWN,
        at=at,
        reason="the hypervisor is down" if host.state == DOWN else "",
    )
