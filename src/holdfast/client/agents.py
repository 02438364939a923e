# SPDX-License-Identifier: Apache-2.0
"""Agents of hosts over the wire: which there are, and the way by which one says that it lives."""

import builtins
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.client import errors
from holdfast.client.client import Client
from holdfast.client.kept import Kept
from holdfast.client.wire import Wire, path
from holdfast.model.agent import Heard
from holdfast.model.alarm_rules_scope import Held
from holdfast.model.errors import InvalidInput, Unavailable

_AGENTS = "/holdfast/v1/agents"

#: host, started_at, seen_at, fresh, groups, rules, deaf, firing, …
Agent = dict[str, Any]


class Agents:
    """For administrators."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def list(self) -> builtins.list[Agent]:
        """Those that were heard of within a week; `fresh` ones just now."""
        found: list[Agent] = self._wire.call("GET", _AGENTS, key="agents")
        return found

    def samples(self, host: str) -> dict[str, Any]:
        """The last hour of a host and its guests as it is known here (model/samples.plain), with
        `at`, `fresh` and `wanted_until`. Nothing is sent because of that."""
        found: dict[str, Any] = self._wire.call("GET", _samples(host), key="samples")
        return found

    def want_samples(self, host: str) -> str:
        """Somebody looks: from its next heartbeat on its agent sends them; until when."""
        return str(self._wire.call("POST", _samples(host), key="samples")["wanted_until"])

    def rules(self, host: str) -> dict[str, Any]:
        """The alarm rules that hold for a host: version, text, origins."""
        where = _AGENTS + path(host, "alarm-rules")
        found: dict[str, Any] = self._wire.call("GET", where, key="alarm_rules")
        return found


def _samples(host: str) -> str:
    return "/holdfast/v1/hosts" + path(host, "samples")


class HoldfastCentre:
    """`ports.agents.Centre` by /holdfast/v1; one thread at a time."""

    def __init__(self, connect: Callable[[], Client]) -> None:
        self._client = Kept(connect)

    def beat(self, host: str, body: Mapping[str, Any]) -> Heard:
        said = self._call("PUT", _AGENTS + path(host), "agent", body)
        wanted = said.get("samples")  # a Holdfast of yesterday says nothing of them
        return Heard(str(said["rules"]["version"]), int(wanted["after"]) if wanted else None)

    def rules(self, host: str) -> Held:
        said = self._call("GET", _AGENTS + path(host, "alarm-rules"), "alarm_rules", None)
        return Held(str(said["version"]), str(said["text"]))

    def samples(self, host: str, body: Mapping[str, Any]) -> None:
        self._call("PUT", _AGENTS + path(host, "samples"), None, body)

    def _call(
        self, method: str, where: str, key: str | None, body: Mapping[str, Any] | None
    ) -> Any:
        try:
            return self._client.call(method, where, body=body, key=key)
        except (errors.BadRequest, errors.Forbidden) as error:
            raise InvalidInput(error.message) from error
        except errors.ClientError as error:
            raise Unavailable(str(error)) from error
