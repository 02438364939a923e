# SPDX-License-Identifier: Apache-2.0
"""What host monitors see, over the wire: `{url}/holdfast/v1/monitors`, `…/matrix` and
`…/hosts/health`."""

import builtins
from typing import Any

from holdfast.client.wire import Wire, path

_MONITORS = "/holdfast/v1/monitors"
_MATRIX = "/holdfast/v1/matrix"
_HOSTS = "/holdfast/v1/hosts"

#: observer, registered, hint, kind, seen_at, fresh, networks, strategy_source, hosts
Monitor = dict[str, Any]
#: networks, source, strategy, rows, undecided, differing
Matrix = dict[str, Any]
#: host, health, action, since, monitors; of one host also who sees what, and the votes
Health = dict[str, Any]


class Monitors:
    """client.monitors; for administrators."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def list(self) -> builtins.list[Monitor]:
        """Those that are `registered` or say what they see; `fresh` ones did so lately."""
        found: list[Monitor] = self._wire.call("GET", _MONITORS, key="monitors")
        return found

    def register(self, observer: str) -> str:
        """Let the host monitor of that name vote; its token, the same one however often."""
        made = self._wire.call("POST", _MONITORS, body={"observer": observer}, key="monitor")
        return str(made["token"])

    def unregister(self, observer: str) -> None:
        """It votes no more, and its token is refused."""
        self._wire.call("DELETE", _MONITORS + path(observer))

    def matrix(self) -> Matrix:
        """The strategy that they go by, with the hosts that are in each of its rows now."""
        found: Matrix = self._wire.call("GET", _MATRIX, key="matrix")
        return found

    def hosts(self, *, bad: bool = False) -> builtins.list[Health]:
        """What is seen of every host on each network; `bad`: of those not up everywhere."""
        query = {"health": "bad"} if bad else {}
        where = f"{_HOSTS}/health"
        found: list[Health] = self._wire.call("GET", where, query=query, key="hosts")
        return found

    def host(self, name: str) -> Health:
        """Of one host, short or full name: who sees what, what follows, and who votes for it."""
        where = _HOSTS + path(name, "health")
        found: Health = self._wire.call("GET", where, key="health")
        return found
