# SPDX-License-Identifier: Apache-2.0
"""HTTP clients of agents and host monitors.

Agents and monitors send reports to Holdfast; monitors may also send notifications to any instance
HA API. Agents read expected guests and alarm rules, and send heartbeats and samples.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from holdfast.alarms.scopes import Held
from holdfast.client import errors
from holdfast.client.client import Client
from holdfast.client.http import path
from holdfast.model.errors import Forbidden, InvalidInput, NotFound, Unavailable
from holdfast.model.observation import EXPECTED_STATES, GUEST, PROCESS, Expectation, Expected, Heard
from holdfast.model.votes import HOST_HEALTH


class LazyClient:
    """Client of a long-running program: connects on first use, reconnects after a 401.

    A new client reads token and password again, because both may have been replaced. Only one
    thread at a time may use the object.
    """

    def __init__(self, connect: Callable[[], Client]) -> None:
        self._connect = connect
        self._client: Client | None = None

    def call(
        self,
        method: str,
        where: str,
        *,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, Any] | None = None,
        key: str | None = None,
    ) -> Any:
        """Send a request; arguments as for `Wire.call`."""
        if self._client is None:
            self._client = self._connect()
        try:
            return self._client.wire.call(method, where, body=body, query=query, key=key)
        except errors.Unauthorized:
            self.close()
            raise

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None


#: Prefix of the error codes of Holdfast.
OWN_CODES = "holdfast."
#: Status codes for a permanently invalid report: invalid content, or too large.
NEVER = (400, 413)
_EVENT = {"failed": ("STOPPED", "OFFLINE"), "well": ("STARTED", "ONLINE")}


class HoldfastReports:
    """Implements `ports.reports.Reports` by /holdfast/v1, with a connection per thread.

    Reports on guests and services contain `sent_at`, the current time by the clock of their dates
    (`now`), because this clock may be wrong.
    """

    def __init__(
        self, connect: Callable[[], Client], now: Callable[[], datetime] | None = None
    ) -> None:
        self._own = _OfThread(connect)
        self._now = now

    def report(self, body: Mapping[str, Any]) -> None:
        if self._now is not None and body["kind"] in (GUEST, PROCESS):
            body = {**body, "sent_at": self._now().isoformat()}
        with _translated():
            self._own.client.call("POST", "/holdfast/v1/observations", body=body)

    def view(self, observer: str, body: Mapping[str, Any]) -> None:
        with _translated():
            where = path("holdfast", "v1", "monitors", observer)
            self._own.client.call("PUT", where, body=body)


class InstanceHaReports:
    """Implements `ports.reports.Reports` by notifications of the instance HA contract.

    The contract has no fields for alerts, for evidence, or for a monitor's view.
    """

    def __init__(self, connect: Callable[[], Client]) -> None:
        self._own = _OfThread(connect)

    def report(self, body: Mapping[str, Any]) -> None:
        if body["kind"] != HOST_HEALTH or body["state"] not in _EVENT:
            return
        event, cluster = _EVENT[body["state"]]
        when = datetime.fromisoformat(body["observed_at"]).astimezone(UTC)
        notification = {
            "type": "COMPUTE_HOST",
            "hostname": body["subject"].removeprefix("host:"),
            "generated_time": f"{when:%Y-%m-%dT%H:%M:%S}",
            "payload": {"event": event, "cluster_status": cluster, "host_status": "NORMAL"},
        }
        with _translated(_is_masakari, duplicate_is_done=True):
            self._own.client.call("POST", "/notifications", body={"notification": notification})

    def view(self, observer: str, body: Mapping[str, Any]) -> None:
        """Do nothing: the instance HA contract has no monitor views."""


class _OfThread:
    """Holds a client per thread, because threads must not share sessions."""

    def __init__(self, connect: Callable[[], Client]) -> None:
        self._connect = connect
        self._kept = threading.local()

    @property
    def client(self) -> LazyClient:
        if not hasattr(self._kept, "client"):
            self._kept.client = LazyClient(self._connect)
        lazy_client: LazyClient = self._kept.client
        return lazy_client


def _is_own(error: errors.ClientError) -> bool:
    """Return whether the error comes from Holdfast itself rather than from a proxy.

    A proxy may return its own error pages and may be repaired later; Holdfast never read a request
    that the proxy refused.
    """
    return (error.code or "").startswith(OWN_CODES)


def _is_masakari(error: errors.ClientError) -> bool:
    """Return whether a body is a fault of the contract: {"badRequest": {"code": 400, …}}."""
    body = error.body if isinstance(error.body, dict) else {}
    return any(isinstance(fault, dict) and "message" in fault for fault in body.values())


@contextlib.contextmanager
def _translated(
    is_theirs: Callable[[errors.ClientError], bool] = _is_own, *, duplicate_is_done: bool = False
) -> Iterator[None]:
    """Translate client errors: InvalidInput (never retry), Forbidden, Unavailable (retry).

    A duplicate (409) counts as success if `duplicate_is_done`. Only errors from the server itself,
    not from a proxy, count as a duplicate or as final.
    """
    try:
        yield
    except errors.Conflict as error:
        is_duplicate = duplicate_is_done and is_theirs(error)
        if is_duplicate and "maintenance" not in error.message.lower():
            return
        raise Unavailable(error.message) from error
    except errors.BadRequest as error:
        never = error.status in NEVER and is_theirs(error)
        if error.code != errors.WRONG_CLOCK and (never or error.code == errors.UNSAYABLE):
            raise InvalidInput(error.message) from error
        raise Unavailable(error.message) from error
    except errors.Forbidden as error:
        raise Forbidden(str(error)) from error
    except errors.ClientError as error:
        raise Unavailable(str(error)) from error


class HoldfastExpected:
    """Implements `ports.expected.ExpectedGuests` by /holdfast/v1, for use by a single thread."""

    def __init__(self, connect: Callable[[], Client]) -> None:
        self._client = LazyClient(connect)

    def expected(self, host: str, also: Sequence[str] = ()) -> Expectation:
        where = path("holdfast", "v1", "hosts", host, "expected")
        query = {"also": ",".join(also)} if also else {}
        try:
            return _read(self._client.call("GET", where, query=query, key="expected"))
        except errors.NotFound as error:
            raise NotFound(error.message) from error
        except (errors.BadRequest, errors.Forbidden) as error:
            raise InvalidInput(error.message) from error
        except errors.ClientError as error:
            raise Unavailable(str(error)) from error

    def close(self) -> None:
        self._client.close()


def _read(answer: Any) -> Expectation:
    """Parse the expected servers; Unavailable if the response is malformed.

    A partial list must not be used: the missing entries would look like missing servers.
    """
    try:
        servers = tuple(
            Expected(
                str(server["id"]).lower(),
                str(server["name"]),
                _state(server["state"]),
                str(server["why"]),
            )
            for server in answer["servers"]
        )
        return Expectation(str(answer["host"]), datetime.fromisoformat(answer["at"]), servers)
    except (KeyError, TypeError, ValueError) as error:
        raise Unavailable(f"what should run here was not answered in our words: {error}") from error


def _state(state: Any) -> str:
    if state not in EXPECTED_STATES:
        raise ValueError(f"{state!r} is no state")
    return str(state)


# Agents: heartbeats, alarm rules and samples.


_AGENTS = "/holdfast/v1/agents"


class HoldfastCentre:
    """Implements `ports.agents.Centre` by /holdfast/v1, for use by a single thread."""

    def __init__(self, connect: Callable[[], Client]) -> None:
        self._client = LazyClient(connect)

    def beat(self, host: str, body: Mapping[str, Any]) -> Heard:
        answer = self._call("PUT", _AGENTS + path(host), "agent", body)
        wanted = answer.get("samples")  # an older Holdfast does not send the field
        return Heard(str(answer["rules"]["version"]), int(wanted["after"]) if wanted else None)

    def rules(self, host: str) -> Held:
        answer = self._call("GET", _AGENTS + path(host, "alarm-rules"), "alarm_rules", None)
        return Held(str(answer["version"]), str(answer["text"]))

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
