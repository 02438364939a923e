# SPDX-License-Identifier: Apache-2.0
"""The Keystone session to an OpenStack cloud, with call deadlines and Holdfast's own errors.

    with edge.call("pools.add_host", f"{pool_id}/{host}") as cloud:
        answer(cloud.compute.post(f"/os-aggregates/{pool_id}/action", json=…, microversion="2.1"))

The session sends nothing before the first call, so a manager can start while Keystone is away. All
requests of the block share the time limit of one call, including a token request and a retry.
"""

import contextlib
import logging
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import openstack.config.cloud_region
import openstack.connection
import requests
from keystoneauth1 import discover, loading
from keystoneauth1 import exceptions as login
from keystoneauth1 import session as sessions
from openstack import exceptions as sdk
from oslo_config import cfg
from urllib3.exceptions import NewConnectionError

import holdfast
from holdfast.conf.cloud import OPENSTACK_GROUP
from holdfast.drivers.deadline_adapter import DeadlineAdapter, TooLarge
from holdfast.model.errors import Conflict, DriverError, HoldfastError, NotFound
from holdfast.runtime.http import Deadline

LOG = logging.getLogger(__name__)
#: Exceptions of code that reads an answer of unexpected form: missing keys, other types, nesting.
NONSENSE = (LookupError, TypeError, ValueError, AttributeError, RecursionError, ArithmeticError)


class Patience(threading.local):
    """The deadline of the current thread's call."""

    def __init__(self, usual_s: float) -> None:
        self._usual_s = usual_s
        self._deadline: Deadline | None = None

    def begin(self) -> None:
        self._deadline = Deadline(self._usual_s)

    def end(self) -> None:
        self._deadline = None

    def deadline(self) -> Deadline:
        return self._deadline or Deadline(self._usual_s)

    def left(self) -> float:
        return self.deadline().left()


class Transport(DeadlineAdapter):
    """The HTTP adapter for all requests of a cloud connection; used by many threads at once.

    All requests of a call share the remaining time of the call.
    """

    def __init__(self, patience: Patience, *, connections: int) -> None:
        self._patience = patience
        super().__init__(patience.deadline, connections=connections)

    def send(
        self, request: requests.PreparedRequest, *args: Any, **kwargs: Any
    ) -> requests.Response:
        """Send a request and read the whole answer within the time of the thread's call.

        If the connection is lost and a repetition does no harm, the adapter sends the request once
        more.
        """
        try:
            return super().send(request, *args, **kwargs)
        except (requests.ConnectionError, requests.exceptions.ChunkedEncodingError) as lost:
            if isinstance(lost, requests.Timeout | TooLarge) or self._patience.left() <= 0:
                raise
            if not _harmless(request, lost):
                raise
        return super().send(request, *args, **kwargs)


def _harmless(request: requests.PreparedRequest, lost: requests.RequestException) -> bool:
    """Return whether a request may be repeated after the connection was lost.

    This holds for a read, a token request, and a request that was never sent.
    """
    if request.method in ("GET", "HEAD"):
        return True
    if request.method == "POST" and (request.url or "").endswith("/auth/tokens"):
        return True
    reason = getattr(lost.args[0], "reason", None) if lost.args else None
    return isinstance(reason, NewConnectionError)


PORT = "nova cloud"
#: The microversion of requests that need no other: the newest of Train, the oldest supported
#: Nova.
BASE = "2.79"
#: HTTP status codes that a later, equal call may not get: not logged in, too many requests.
PASSING = frozenset({401, 408, 425, 429})


def failed(message: str, *, retryable: bool) -> DriverError:
    """Create the driver's DriverError."""
    return DriverError(PORT, message, retryable=retryable)


class Edge:
    """A connection to an OpenStack cloud; safe from `[cloud] parallel_calls` threads at once."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self.call_timeout_s: float = conf.cloud.call_timeout_s
        self._patience = Patience(self.call_timeout_s)
        self._turn = threading.Lock()
        self._session = self._new_session(conf)
        region = openstack.config.cloud_region.from_session(
            session=self._session,
            name="holdfast",
            region_name=conf.openstack.region_name,
            interface=list(conf.openstack.interface),
        )
        # Strict: the SDK searches a missing endpoint again at the next call.
        self._cloud = openstack.connection.Connection(config=region, strict_proxies=True)

    @contextlib.contextmanager
    def call(self, call_name: str, subject: str = "") -> Iterator[openstack.connection.Connection]:
        """Yield the connection for a single call; errors in the block become Holdfast's errors.

        Errors of the cloud and the resulting exceptions:

            not there                                 NotFound
            refused in its present state (409)        Conflict
            refused for good (400, 403, 413, …)       DriverError, not retryable
            unreachable, no answer, 401, 429, 5xx     DriverError, retryable, may have taken effect
            an answer of unexpected form              DriverError, retryable, with a log line
        """
        where = f"{call_name} {subject}".rstrip()
        self._patience.begin()
        try:
            self._log_in(where)
            yield self._cloud
        except (sdk.SDKException, login.ClientException, OSError) as error:
            # Errors of requests are OSErrors, and so is a missing certificate file.
            raise self._translate(where, error) from error
        except NONSENSE as error:
            why = f"{where}: its answer makes no sense ({type(error).__name__}: {str(error)[:200]})"
            LOG.warning("%s: %s", PORT, why)
            raise failed(why, retryable=True) from error
        finally:
            self._patience.end()

    def time_left(self) -> float:
        """Return the seconds that the current thread's call may still take."""
        return self._patience.left()

    def close(self) -> None:
        """Close idle connections; requests in progress end on their own."""
        self._session.session.close()

    def _new_session(self, conf: cfg.ConfigOpts) -> sessions.Session:
        own = conf.openstack
        http = requests.Session()
        transport = Transport(self._patience, connections=conf.cloud.parallel_calls + 8)
        http.mount("http://", transport)
        http.mount("https://", transport)
        return sessions.Session(
            auth=_plugin(conf),
            session=http,
            verify=False if own.insecure else own.cafile or True,
            cert=(own.certfile, own.keyfile) if own.certfile and own.keyfile else own.certfile,
            app_name="holdfast",
            app_version=holdfast.__version__,
        )

    def _log_in(self, where: str) -> None:
        """Make sure that the session has a token.

        One thread fetches the token; the others wait, at most until their own deadline:
        keystoneauth's own lock has no timeout.
        """
        if not self._turn.acquire(timeout=max(0.0, self._patience.left())):
            raise failed(f"{where}: Keystone gave no token in time", retryable=True)
        try:
            self._session.get_auth_headers()
        except login.NotFound as lost:  # this 404 is not about the resource
            raise failed(f"{where}: no Keystone at its address: {lost}", retryable=True) from lost
        finally:
            self._turn.release()

    def _translate(self, where: str, error: Exception) -> HoldfastError:
        response = getattr(error, "response", None)
        if isinstance(response, requests.Response):
            return _refusal(where, response, _sentence(error, response))
        if isinstance(error, login.ConnectTimeout | requests.Timeout):
            return failed(
                f"{where}: no answer within {self.call_timeout_s:g} s; it may have happened all"
                f" the same ({error})",
                retryable=True,
            )
        # A missing endpoint, a refused connection or an invalid answer may be temporary.
        return failed(f"{where}: {error}", retryable=True)


def answer(response: requests.Response) -> Any:
    """Return the JSON body of a raw response, None if empty; raise if the service refused."""
    sdk.raise_from_response(response)
    if not response.content:
        return None
    return response.json()


def pages(
    service: Any,
    path: str,
    key: str,
    *,
    microversion: str | None = None,
    params: Mapping[str, Any] | None = None,
    until_empty: bool = False,
) -> Iterator[dict[str, Any]]:
    """Yield all items of a list that is paginated by `marker`, whatever the page size.

    Set no limit in `params`: the cloud's default is the largest it allows. `until_empty` continues
    until a page is empty, even if the cloud announces no next page.
    """
    marker: str | None = None
    while True:
        query = {**(params or {}), **({"marker": marker} if marker else {})}
        try:
            body = answer(service.get(path, params=query, microversion=microversion))
        except sdk.BadRequestException as refused:
            if marker is None:
                raise
            # The last item of the previous page was deleted meanwhile: a new listing has
            # another marker.
            raise failed(f"{path}: {refused.details}", retryable=True) from refused
        items = body[key]
        yield from items
        if not items or not (until_empty or _more(body, key)):
            return
        marker = str(items[-1].get("uuid") or items[-1]["id"])


def supports(service: Any, microversion: str) -> bool:
    """Return whether the service supports the microversion, from the service's version document."""
    data = service.get_endpoint_data()
    newest = data.max_microversion if data else None
    return newest is not None and newest >= discover.normalize_version_number(microversion)


def _more(body: Mapping[str, Any], key: str) -> bool:
    """Return whether the cloud announces another page."""
    links = body.get(f"{key}_links") or ()
    return bool(body.get("next")) or any(link.get("rel") == "next" for link in links)


def _plugin(conf: cfg.ConfigOpts) -> Any:
    section = conf.openstack.auth_section or OPENSTACK_GROUP
    if section != OPENSTACK_GROUP:
        # Register exactly as keystonemiddleware does: oslo.config accepts a second registration
        # only if equal.
        loading.register_auth_conf_options(conf, section)
    try:
        plugin = loading.load_auth_from_conf_options(conf, OPENSTACK_GROUP)
    except login.ClientException as error:  # no such plugin, or one of its options is missing
        raise failed(f"[{section}] cannot log in: {error}", retryable=False) from error
    if plugin is None:
        raise failed(
            f"[{section}] auth_type is not set, so there are no credentials: set auth_type,"
            " auth_url and what belongs to them, or [openstack] auth_section = keystone_authtoken",
            retryable=False,
        )
    return plugin


def _refusal(where: str, response: requests.Response, sentence: str) -> HoldfastError:
    status = response.status_code
    message = f"{where}: {sentence}"
    if status == 404 and spoken_by_a_service(response):
        return NotFound(message)
    if status == 404:  # a proxy without its service sends 404
        return failed(f"{message} (404 from {response.url}, not by its service)", retryable=True)
    if status == 409:
        return Conflict(message)
    if status == 403:
        message += "; give the user of [openstack] the role admin (and service)"
    return failed(f"{message} ({status})", retryable=status >= 500 or status in PASSING)


def spoken_by_a_service(response: requests.Response) -> bool:
    """Return whether the service sent the error; a proxy without its service sends no JSON."""
    return "json" in response.headers.get("content-type", "")


def _sentence(error: Exception, response: requests.Response) -> str:
    try:
        # Placement's error format, which the SDK does not read
        detail = response.json()["errors"][0]["detail"]
    except (ValueError, LookupError, TypeError):
        detail = getattr(error, "details", None) or str(error) or response.reason
    return " ".join(str(detail).split())
