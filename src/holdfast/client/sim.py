# SPDX-License-Identifier: Apache-2.0
"""The simulated cloud over the wire, `{url}/holdfast/v1/sim`: look at it, and break it."""

from typing import Any

from holdfast.client.wire import Wire, path

_PREFIX = "/holdfast/v1/sim"


class Sim:
    """client.sim; a server on a real cloud answers NotFound."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def show(self) -> dict[str, Any]:
        """Hosts, servers and settings."""
        sim: dict[str, Any] = self._wire.call("GET", _PREFIX, key="sim")
        return sim

    def change(self, **settings: Any) -> dict[str, Any]:
        """Change settings such as latency_s; all of them come back."""
        where = _PREFIX + "/settings"
        now: dict[str, Any] = self._wire.call("PUT", where, body=settings, key="settings")
        return now

    def fail_host(self, name: str) -> str:
        """Pull a host's plug. Returns what happened, as a sentence."""
        return self._do("hosts", name, "fail")

    def recover_host(self, name: str) -> str:
        return self._do("hosts", name, "recover")

    def cut_host(self, name: str, network: str | None = None) -> str:
        """Cut a host off on one network, or from everybody; its servers run on."""
        return self._do("hosts", name, "cut", body=_of(network))

    def mend_host(self, name: str, network: str | None = None) -> str:
        return self._do("hosts", name, "mend", body=_of(network))

    def crash_server(self, ref: str) -> str:
        """Crash a server, by name or id."""
        return self._do("servers", ref, "crash")

    def _do(self, *parts: str, body: dict[str, str] | None = None) -> str:
        said: str = self._wire.call("POST", _PREFIX + path(*parts), body=body, key="said")
        return said


def _of(network: str | None) -> dict[str, str]:
    return {} if network is None else {"network": network}
