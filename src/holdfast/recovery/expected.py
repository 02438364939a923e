# SPDX-License-Identifier: Apache-2.0
"""Expected state of the guests on a host, as Nova lists its servers (`model.observation`).

A server with a task in progress is busy, whether a user, Nova or Holdfast started the task. The
observed state of a busy guest on its host means nothing. A failure noticed one minute later is
better than a restart of a server that somebody was moving.

`SegmentHosts` checks that Nova knows a host before it joins a segment.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from holdfast.model.errors import InvalidInput, NotFound
from holdfast.model.host import normalise, same
from holdfast.model.observation import BUSY, ELSEWHERE, OFF, RUNS, UNKNOWN, Expectation, Expected
from holdfast.ports.cloud import Cloud, Server
from holdfast.ports.recovery import Incidents, KnownHosts

#: Meaning of each server status. Missing statuses, for example BUILD, ERROR or VERIFY_RESIZE,
#: do not tell whether the guest should run.
_MEANS: Final[Mapping[str, str]] = {
    "ACTIVE": RUNS,
    "PAUSED": RUNS,
    "RESCUE": RUNS,
    "SHUTOFF": OFF,
    "SUSPENDED": OFF,
    "SHELVED": OFF,
    "SOFT_DELETED": OFF,
    "SHELVED_OFFLOADED": OFF,
    "DELETED": UNKNOWN,
}


class ExpectedOnHosts:
    """Implements `ports.reports.ExpectedGuests` with queries to Nova."""

    def __init__(self, incidents: Incidents, cloud: Cloud) -> None:
        self._incidents = incidents
        self._cloud = cloud

    def expected(self, host: str, also: Sequence[str] = ()) -> Expectation:
        at = self._incidents.now()
        servers = self._cloud.servers.list(host=host)
        listed = {server.id for server in servers}
        unlisted = [server_id for server_id in dict.fromkeys(also) if server_id not in listed]
        guests = [self._shown(server_id, host) for server_id in unlisted]
        # read last: an incident opened during the queries counts
        troubled = self._incidents.open_on(host)
        guests += [of_server(server, host, troubled) for server in servers]
        return Expectation(normalise(host), at, tuple(guests))

    def _shown(self, server_id: str, host: str) -> Expected:
        """Expected state of a server which Nova does not list on the host."""
        try:
            server = self._cloud.servers.show(server_id)
        except NotFound:
            return Expected(server_id, "", UNKNOWN, "the cloud knows no such server")
        if same(server.host or "", host):
            return Expected(server.id, server.name, BUSY, "it came to this host just now")
        return of_server(server, host, ())


def of_server(server: Server, host: str, troubled: Collection[str]) -> Expected:
    """Expected state of a server on the host.

    `troubled`: subjects of open incidents about the host and its servers.
    """
    state, why = _state(server, host, troubled)
    return Expected(server.id, server.name, state, why)


def _state(server: Server, host: str, troubled: Collection[str]) -> tuple[str, str]:
    if server.task_state:
        return BUSY, f"it is {server.task_state}"
    if f"server:{server.id}" in troubled:
        return BUSY, "an incident about it is open"
    if any(subject.startswith("host:") for subject in troubled):
        return BUSY, "an incident about its host is open"
    means = _MEANS.get(server.status, BUSY)
    if means == BUSY:
        return BUSY, f"it is {server.status}"
    if means == UNKNOWN:
        return UNKNOWN, "it is deleted"
    if server.host is None:
        shelved = server.status.startswith("SHELVED")
        return (ELSEWHERE, "it is on no host") if shelved else (BUSY, "it is being placed")
    if not same(server.host, host):
        return ELSEWHERE, f"it is on {server.host}, {server.status}"
    return means, f"it is {server.status}"


class SegmentHosts:
    """Registers hosts for segments after Nova has confirmed their existence."""

    def __init__(self, hosts: KnownHosts, cloud: Cloud, region: str) -> None:
        self._hosts = hosts
        self._cloud = cloud
        self._region = region

    def know(self, name: str) -> int:
        """Id of the host which Nova lists under this short or full name; InvalidInput if none."""
        try:
            cloud_host = self._cloud.hosts.find(name)
        except NotFound as missing:
            raise InvalidInput(
                f"Compute service with name {name} could not be found; name a host as the cloud"
                " lists it"
            ) from missing
        return self._hosts.know(cloud_host, self._region)
