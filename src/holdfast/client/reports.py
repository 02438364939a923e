# SPDX-License-Identifier: Apache-2.0
"""What monitors saw, sent over HTTP: to Holdfast, or as notifications to any instance HA API."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from holdfast.client import errors
from holdfast.client.client import Client
from holdfast.client.kept import Kept
from holdfast.client.wire import path
from holdfast.model.errors import Forbidden, InvalidInput, Unavailable
from holdfast.model.observed import GUEST, PROCESS
from holdfast.model.votes import HOST_HEALTH

#: How the codes of what Holdfast refuses begin.
OWN_CODES = "holdfast."
#: What is wrong with a report itself, and stays so: what it says, or how long it is.
NEVER = (400, 413)
_EVENT = {"failed": ("STOPPED", "OFFLINE"), "well": ("STARTED", "ONLINE")}


class HoldfastReports:
    """`ports.reports.Reports` by /holdfast/v1; each thread has a connection of its own. What is
    said of guests and services also says what time it is `now`, by the clock of its dates: that may
    be wrong."""

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
    """The same by notifications of the instance HA contract. It has no word for alerts, for
    evidence, or for what a monitor sees."""

    def __init__(self, connect: Callable[[], Client]) -> None:
        self._own = _OfThread(connect)

    def report(self, body: Mapping[str, Any]) -> None:
        if body["kind"] != HOST_HEALTH or body["state"] not in _EVENT:
            return
        event, cluster = _EVENT[body["state"]]
        when = datetime.fromisoformat(body["observed_at"]).astimezone(UTC)
        said = {
            "type": "COMPUTE_HOST",
            "hostname": body["subject"].removeprefix("host:"),
            "generated_time": f"{when:%Y-%m-%dT%H:%M:%S}",
            "payload": {"event": event, "cluster_status": cluster, "host_status": "NORMAL"},
        }
        with _translated(_is_masakari, duplicate_is_done=True):
            self._own.client.call("POST", "/notifications", body={"notification": said})

    def view(self, observer: str, body: Mapping[str, Any]) -> None:
        """Nobody asks."""


class _OfThread:
    """A client for each thread: their sessions are not to be shared."""

    def __init__(self, connect: Callable[[], Client]) -> None:
        self._connect = connect
        self._kept = threading.local()

    @property
    def client(self) -> Kept:
        if not hasattr(self._kept, "client"):
            self._kept.client = Kept(self._connect)
        found: Kept = self._kept.client
        return found


def _is_own(error: errors.ClientError) -> bool:
    """Whether Holdfast itself said so. A proxy before it has pages for whatever it does not like,
    and may be put right: what it refuses was not read by anybody."""
    return (error.code or "").startswith(OWN_CODES)


def _is_masakari(error: errors.ClientError) -> bool:
    """By the contract, a fault with a name: {"badRequest": {"code": 400, "message": …}}."""
    body = error.body if isinstance(error.body, dict) else {}
    return any(isinstance(one, dict) and "message" in one for one in body.values())


@contextlib.contextmanager
def _translated(
    is_theirs: Callable[[errors.ClientError], bool] = _is_own, *, duplicate_is_done: bool = False
) -> Iterator[None]:
    """What the other side says, in our words: taken, never, not by us, or later. Done or never is
    only what it said itself."""
    try:
        yield
    except errors.Conflict as error:
        known = duplicate_is_done and is_theirs(error)
        if known and "maintenance" not in error.message.lower():
            return
        raise Unavailable(error.message) from error
    except errors.BadRequest as error:
        never = error.status in NEVER and is_theirs(error)
        if never or error.code == errors.UNSAYABLE:
            raise InvalidInput(error.message) from error
        raise Unavailable(error.message) from error
    except errors.Forbidden as error:
        raise Forbidden(str(error)) from error
    except errors.ClientError as error:
        raise Unavailable(str(error)) from error
