# SPDX-License-Identifier: Apache-2.0
"""The edge to one OpenStack: one session, one token, calls that end in time, errors of our own.

    with edge.call("pools.add_host", f"{pool_id}/{host}") as cloud:
        answer(cloud.compute.post(f"/os-aggregates/{pool_id}/action", json=…, microversion="2.1"))

Nothing is sent before the first call: a manager starts while Keystone is away. Everything done in
the block shares the time of one call, a token's fetch and a second try included.
"""

import contextlib
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

import holdfast
from holdfast.conf.openstack import GROUP
from holdfast.drivers.cloud.nova.transport import Patience, Transport, Watchman
from holdfast.model.errors import Conflict, DriverError, HoldfastError, NotFound

PORT = "nova cloud"
#: The microversion of every request that needs no other: Train's newest, our oldest Nova.
BASE = "2.79"
#: Answers that a later, equal call may not get: not logged in, asked too often.
PASSING = frozenset({401, 408, 425, 429})


def failed(message: str, *, retryable: bool) -> DriverError:
    """The one kind of failure this driver has."""
    return DriverError(PORT, message, retryable=retryable)


class Edge:
    """One connection to one OpenStack; safe from as many threads as `[cloud] parallel_calls`."""

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self.call_timeout_s: float = conf.cloud.call_timeout_s
        self._patience = Patience(self.call_timeout_s)
        self._watchman = Watchman()
        self._turn = threading.Lock()
        self._session = self._new_session(conf)
        region = openstack.config.cloud_region.from_session(
            session=self._session,
            name="holdfast",
            region_name=conf.openstack.region_name,
            interface=list(conf.openstack.interface),
        )
        # Strict: an endpoint that is missing today is looked for again tomorrow.
        self._cloud = openstack.connection.Connection(config=region, strict_proxies=True)

    @contextlib.contextmanager
    def call(self, what: str, subject: str = "") -> Iterator[openstack.connection.Connection]:
        """The connection, for the time of one call; foreign errors in the block become ours.

        not there                                    NotFound
        refused in its present state (409)           Conflict
        refused for good (400, 403, 413, …)          DriverError, not retryable
        nobody there, no answer, 401, 429, 5xx       DriverError, retryable; it may have happened
        """
        where = f"{what} {subject}".rstrip()
        self._patience.begin()
        try:
            self._log_in(where)
            yield self._cloud
        except (sdk.SDKException, login.ClientException, OSError) as error:
            # Those of requests are OSErrors, and so is a certificate's file that is not there now.
            raise self._translate(where, error) from error
        finally:
            self._patience.end()

    def time_left(self) -> float:
        """Seconds that the thread's present call may still take."""
        return self._patience.left()

    def close(self) -> None:
        """Close idle connections; what is under way ends as it may."""
        self._watchman.stop()
        self._session.session.close()

    def _new_session(self, conf: cfg.ConfigOpts) -> sessions.Session:
        own = conf.openstack
        http = requests.Session()
        transport = Transport(
            self._patience, self._watchman, connections=conf.cloud.parallel_calls + 8
        )
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
        """Make sure of a token. One thread fetches it; the others wait, but no longer than they
        have: keystoneauth's own lock knows no time."""
        if not self._turn.acquire(timeout=max(0.0, self._patience.left())):
            raise failed(f"{where}: Keystone gave no token in time", retryable=True)
        try:
            self._session.get_auth_headers()
        except login.NotFound as lost:  # whatever we came for, that is no word on it
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
        # No endpoint in the catalog, nobody listening, an answer that is none: all of it may pass.
        return failed(f"{where}: {error}", retryable=True)


def answer(response: requests.Response) -> Any:
    """The JSON that a raw request was answered with, None if there is none; refusals are raised."""
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
    """All items of a list that comes in pages by `marker`, however short the cloud cuts them.

    Name no limit in `params`: the cloud's own is the largest it allows. `until_empty` goes on until
    there is nothing left, whatever the cloud says of a next page.
    """
    marker: str | None = None
    while True:
        asked = {**(params or {}), **({"marker": marker} if marker else {})}
        try:
            body = answer(service.get(path, params=asked, microversion=microversion))
        except sdk.BadRequestException as refused:
            if marker is None:
                raise
            # The last item of the page before was deleted meanwhile: the next reading has another.
            raise failed(f"{path}: {refused.details}", retryable=True) from refused
        items = body[key]
        yield from items
        if not items or not (until_empty or _more(body, key)):
            return
        marker = str(items[-1].get("uuid") or items[-1]["id"])


def supports(service: Any, microversion: str) -> bool:
    """Whether this service is new enough for that microversion; known from its own front page."""
    data = service.get_endpoint_data()
    newest = data.max_microversion if data else None
    return newest is not None and newest >= discover.normalize_version_number(microversion)


def _more(body: Mapping[str, Any], key: str) -> bool:
    """Whether the cloud says that there is another page."""
    links = body.get(f"{key}_links") or ()
    return bool(body.get("next")) or any(link.get("rel") == "next" for link in links)


def _plugin(conf: cfg.ConfigOpts) -> Any:
    section = conf.openstack.auth_section or GROUP
    if section != GROUP:
        # As keystonemiddleware will, word by word: an option is registered twice only if equal.
        loading.register_auth_conf_options(conf, section)
    try:
        plugin = loading.load_auth_from_conf_options(conf, GROUP)
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
    if status == 404:  # a proxy without its service says 404 to everything
        return failed(f"{message} (404 from {response.url}, not by its service)", retryable=True)
    if status == 409:
        return Conflict(message)
    if status == 403:
        message += "; give the user of [openstack] the role admin (and service)"
    return failed(f"{message} ({status})", retryable=status >= 500 or status in PASSING)


def spoken_by_a_service(response: requests.Response) -> bool:
    """Whether an error is a service's word; a proxy whose service is away has its own."""
    return "json" in response.headers.get("content-type", "")


def _sentence(error: Exception, response: requests.Response) -> str:
    try:
        said = response.json()["errors"][0]["detail"]  # Placement's way, unread by the SDK
    except (ValueError, LookupError, TypeError):
        said = getattr(error, "details", None) or str(error) or response.reason
    return " ".join(str(said).split())
