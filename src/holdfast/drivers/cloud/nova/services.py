# SPDX-License-Identifier: Apache-2.0
"""The Nova side of the Services port: the nova-compute of each host.

To disable a service whose compute is dead takes nova-api as long as it waits for that compute
(`rpc_response_timeout`, a minute), unless the service looks down: our call ends before that with a
retryable error although the service is disabled. Force it down first.

The scheduler goes by a mark in Placement that the compute itself sets and takes away when told.
One that looked down when it was enabled was not told, and one that was dead when it was disabled
may hear of that only when it is back: until its next periodic look (a minute) no server comes. So
enable last, after un-forcing, when the service looks up.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from openstack.exceptions import BadRequestException

from holdfast.drivers.cloud.nova.directory import SERVICES, Directory, services
from holdfast.drivers.cloud.nova.edge import Edge, answer
from holdfast.model.errors import Conflict, NotFound
from holdfast.ports.cloud import Service

LONGEST_REASON = 255


class NovaServices:
    def __init__(self, edge: Edge, directory: Directory) -> None:
        self._edge = edge
        self._directory = directory

    def list(self) -> Sequence[Service]:
        with self._edge.call("services.list") as cloud:
            found = [_service(one) for one in services(cloud)]
        return sorted(found, key=lambda service: service.host)

    def disable(self, host: str, reason: str) -> None:
        wanted: dict[str, Any] = {"status": "disabled"}
        if reason:
            wanted["disabled_reason"] = reason[:LONGEST_REASON]
        self._update("services.disable", host, wanted)

    def enable(self, host: str) -> None:
        self._update("services.enable", host, {"status": "enabled"})

    def force_down(self, host: str) -> None:
        self._update("services.force_down", host, {"forced_down": True})

    def unforce(self, host: str) -> None:
        self._update("services.unforce", host, {"forced_down": False})

    def _update(self, what: str, host: str, wanted: Mapping[str, Any]) -> None:
        """Change what is not so yet: Nova answers 400 to a wish that is already true."""
        with self._edge.call(what, host) as cloud:
            service = self._own(cloud, host)
            if _is(service, wanted):
                return
            path = f"/os-services/{service['id']}"
            try:
                answer(cloud.compute.put(path, json=dict(wanted), microversion=SERVICES))
            except BadRequestException as refused:
                if _is(self._own(cloud, host), wanted):  # somebody else was faster
                    return
                raise Conflict(f"{what} {host}: {refused.details}") from refused

    def _own(self, cloud: Any, host: str) -> dict[str, Any]:
        found = services(cloud, host)
        if not found:
            found = services(cloud, self._directory.find(cloud, host).service_host)
        if not found:
            self._directory.forget(host)
            raise NotFound(f"Nova has no compute service on {host}")
        return found[0]


def _is(service: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return all(service.get(name) == value for name, value in wanted.items())


def _service(one: Mapping[str, Any]) -> Service:
    return Service(
        host=one["host"],
        state=one["state"],
        enabled=one["status"] == "enabled",
        disabled_reason=one["disabled_reason"] or "",
        forced_down=one["forced_down"],
        updated_at=moment(one["updated_at"]),
    )


def moment(text: str | None) -> datetime | None:
    """Nova's times are UTC, whether they say so or not."""
    if not text:
        return None
    read = datetime.fromisoformat(text)
    return read.replace(tzinfo=UTC) if read.tzinfo is None else read.astimezone(UTC)
