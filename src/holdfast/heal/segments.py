# SPDX-License-Identifier: Apache-2.0
"""What of segments needs the cloud: that a host is there before it becomes a member."""

from holdfast.model.errors import InvalidInput, NotFound
from holdfast.ports.cloud import Cloud
from holdfast.ports.segments import KnownHosts


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
