# SPDX-License-Identifier: Apache-2.0
"""What should run on a host: the cloud's servers, in the words of `model.expected`.

Whatever is being done about a server, by its users, by the cloud or by us, makes it busy: how it is
found on its host then says nothing. Better a failure that is noticed a minute later than a server
that is restarted because somebody was moving it.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from holdfast.model.errors import InvalidInput, NotFound
from holdfast.model.host import normalise, same
from holdfast.model.observation import BUSY, ELSEWHERE, OFF, RUNS, UNKNOWN, Expectation, Expected
from holdfast.ports.cloud import Cloud, Server
from holdfast.ports.recovery import Incidents, KnownHosts

#: What a status means; what is not here, such as BUILD, ERROR or VERIFY_RESIZE, says too little.
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
    """`ports.expected.ExpectedGuests`, asked of the cloud itself."""

    def __init__(self, incidents: Incidents, cloud: Cloud) -> None:
        self._incidents = incidents
        self._cloud = cloud

    def expected(self, host: str, also: Sequence[str] = ()) -> Expectation:
        at = self._incidents.now()
        servers = self._cloud.servers.list(host=host)
        listed = {server.id for server in servers}
        asked = [one for one in dict.fromkeys(also) if one not in listed]
        found = [self._shown(one, host) for one in asked]
        # read last: an incident that was opened meanwhile counts
        troubled = self._incidents.open_on(host)
        found += [of_server(server, host, troubled) for server in servers]
        return Expectation(normalise(host), at, tuple(found))

    def _shown(self, server_id: str, host: str) -> Expected:
        """Of one that is not listed there."""
        try:
            server = self._cloud.servers.show(server_id)
        except NotFound:
            return Expected(server_id, "", UNKNOWN, "the cloud knows no such server")
        if same(server.host or "", host):
            return Expected(server.id, server.name, BUSY, "it came to this host just now")
        return of_server(server, host, ())


def of_server(server: Server, host: str, troubled: Collection[str]) -> Expected:
    """`troubled`: subjects of open incidents about the host and its servers."""
    state, why = _state(server, host, troubled)
    return Expected(server.id, server.name, state, why)


def _state(server: Server, host: str, troubled: Collection[str]) -> tuple[str, str]:
    if server.task_state:
        return BUSY, f"it is {server.task_state}"
    if f"server:{server.id}" in troubled:
        return BUSY, "an incident about it is open"
    if any(one.startswith("host:") for one in troubled):
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


# What of segments needs the cloud: that a host is there before it becomes a member.


class SegmentHosts:
    def __init__(self, known: KnownHosts, cloud: Cloud, region: str) -> None:
        self._known = known
        self._cloud = cloud
        self._region = region

    def know(self, name: str) -> int:
        """The id in the list of hosts of what the cloud runs under that name, short or full."""
        try:
            found = self._cloud.hosts.find(name)
        except NotFound as missing:
            raise InvalidInput(
                f"Compute service with name {name} could not be found; name a host as the cloud"
                " lists it"
            ) from missing
        return self._known.know(found, self._region)
