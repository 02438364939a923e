# SPDX-License-Identifier: Apache-2.0
"""The one list of hosts, as far as segments need it."""

from typing import Protocol

from holdfast.ports.cloud import CloudHost


class KnownHosts(Protocol):
    def know(self, host: CloudHost, region: str) -> int:
        """The id of that host in the list; it is added if it was not there. Twice is once."""
        ...
