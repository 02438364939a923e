# SPDX-License-Identifier: Apache-2.0
"""nova-api pipeline filter: creates the lease for a server create request with a lease hint.

    [filter:holdfast]
    paste.filter_factory = holdfast.nova.api_filter:filter_factory

    [composite:openstack_compute_api_v21]
    keystone = … authtoken keystonecontext holdfast osapi_compute_app_v21

Every other request passes unread. For a create with the hint `lease_params` the filter first asks
Holdfast with a dry run; if Holdfast does not answer, the client gets 503 and no server is created.
Nova then creates the server with the wished lease in its metadata, and the filter creates the
lease. If nova-api is killed in between, the metadata stays, and Holdfast's sweep of servers creates
the lease. Plain WSGI: the module imports nothing of Nova.
"""

from __future__ import annotations

import io
import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import requests
from oslo_config import cfg

from holdfast.nova import lease_hint, names, options
from holdfast.nova.lease_hint import UTC, BadHint, Wish
from holdfast.nova.options import LeaseOptions

# Client of Holdfast's reservation API: find the endpoint, POST a lease. One call, no retries.
#
# The call delays a user's server create, so both timeouts are short. If Holdfast does not answer,
# its own sweep of servers creates the lease later.


#: Status codes of permanent refusals; after any other error a later try may succeed.
LASTING = frozenset((400, 403, 409, 413))
SERVICE_TYPE = "reservation"


class NoEndpoint(Exception):
    """Neither options nor catalog name Holdfast's endpoint; the message says where to set it."""


@dataclass(frozen=True)
class Answer:
    """Holdfast's response; status 0: no response."""

    status: int
    message: str = ""
    lease_id: str = ""

    @property
    def taken(self) -> bool:
        return 200 <= self.status < 300

    @property
    def refused(self) -> bool:
        return self.status in LASTING


def endpoint(options: LeaseOptions, environ: Mapping[str, Any]) -> str:
    """Return the URL of the reservation API, from the options or the token's catalog."""
    if options.endpoint:
        return options.endpoint.rstrip("/")
    urls = _in_catalog(environ.get("HTTP_X_SERVICE_CATALOG") or "[]", options)
    if len(urls) > 1:
        raise NoEndpoint(
            f"the catalog has {len(urls)} endpoints of type {SERVICE_TYPE}:"
            " set region_name in [holdfast] of nova.conf"
        )
    for url in urls:
        return url.rstrip("/")
    where = f" in region {options.region}" if options.region else ""
    raise NoEndpoint(
        f"the catalog has no endpoint of type {SERVICE_TYPE}{where}:"
        " register one, or set endpoint in [holdfast] of nova.conf"
    )


def post_lease(
    url: str, body: Mapping[str, Any], environ: Mapping[str, Any], options: LeaseOptions
) -> Answer:
    """POST a lease with the token of the request."""
    headers = {"Accept": "application/json"}
    for header, key in (
        ("X-Auth-Token", "HTTP_X_AUTH_TOKEN"),
        ("X-OpenStack-Request-ID", "openstack.request_id"),
    ):
        if environ.get(key):
            headers[header] = environ[key]
    try:
        reply = requests.post(
            f"{url}/leases",
            json=body,
            headers=headers,
            timeout=options.timeouts,
            verify=options.cafile or True,
            allow_redirects=False,
        )
    except (requests.RequestException, OSError) as error:  # OSError: the cafile does not exist
        return Answer(0, f"Holdfast does not answer ({type(error).__name__})")
    return _answer(reply.status_code, reply.text)


def _answer(status: int, text: str) -> Answer:
    try:
        body = json.loads(text)
    except ValueError:
        body = {}
    body = body if isinstance(body, dict) else {}
    if 200 <= status < 300:
        lease = body.get("lease")
        return Answer(status, lease_id=str(lease.get("id", "")) if isinstance(lease, dict) else "")
    message = body.get("error_message") or body.get("message") or f"Holdfast answers {status}"
    return Answer(status, str(message)[:1000])


def _in_catalog(text: str, options: LeaseOptions) -> list[str]:
    """Return the distinct endpoint URLs; keystonemiddleware puts the catalog in this form."""
    urls: list[str] = []
    for service in json.loads(text):
        if service.get("type") != SERVICE_TYPE:
            continue
        for entry in service.get("endpoints", ()):
            url = entry.get(f"{options.interface}URL") or entry.get("publicURL")
            fits = not options.region or entry.get("region") == options.region
            if url and fits and url not in urls:
                urls.append(url)
    return urls


LOG = logging.getLogger(__name__)

#: Response header for the client: the lease id, or `later` if the sweep creates the lease.
HEADER = "Holdfast-Lease"
LATER = "later"
#: This long after a create arrived the filter asks for no lease: the sweep may be doing it by then.
ACT_WITHIN_S = 60.0
#: After a call without an answer, creates without a hint skip the lease call for this long.
QUIET_S = 30.0
RETRY_AFTER_S = 30
LARGEST_BODY = 1024 * 1024
_CREATES = frozenset(("servers", "os-volumes_boot"))
_FAULTS = {
    400: ("400 Bad Request", "badRequest"),
    403: ("403 Forbidden", "forbidden"),
    409: ("409 Conflict", "conflictingRequest"),
    413: ("413 Request Entity Too Large", "overLimit"),
    503: ("503 Service Unavailable", "serviceUnavailable"),
}

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
App = Callable[[Environ, StartResponse], Iterable[bytes]]


def filter_factory(_global: Mapping[str, str], **_local: str) -> Callable[[App], App]:
    """Return the filter for paste; its options are in [holdfast] of nova.conf."""
    options.register(cfg.CONF)
    return lambda app: LeaseFilter(app, lambda: options.read_leases(cfg.CONF))


class Fault(Exception):
    """An error to return to the client, in Nova's format."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


@dataclass(frozen=True)
class Create:
    """A server create request with the lease for its server."""

    body: Mapping[str, Any]
    wish: Wish
    hinted: bool  #: the user asked for the lease; otherwise lease_every_server does
    single: bool  #: the request creates one server, and Nova's response names it


@dataclass
class Response:
    """A response of nova-api, held back until the filter decides what to return."""

    status: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""

    @property
    def code(self) -> int:
        return int(self.status.split(" ", 1)[0])

    def server_id(self) -> str:
        """Return the id of the created server, or ""."""
        if self.code != 202:
            return ""
        server = json.loads(self.body).get("server", {})
        return str(server.get("id", ""))


class LeaseFilter:
    """The WSGI filter around nova-api."""

    def __init__(self, app: App, read: Callable[[], LeaseOptions]) -> None:
        self._app = app
        self._read = read
        self._quiet_until = 0.0

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        if not _is_create(environ):
            return self._app(environ, start_response)
        try:
            create = self._create_with_lease(environ)
            if create is None:
                return self._app(environ, start_response)
            response = self._make(environ, create)
        except Fault as fault:
            response = _fault(fault)
        start_response(response.status, list(response.headers))
        return [response.body]

    def _create_with_lease(self, environ: Environ) -> Create | None:
        """Return the create with its lease; None if the request needs no lease."""
        body = _body(environ)
        server = body.get("server") if body else None
        if not body or not isinstance(server, dict):
            return None  # Nova reports the error
        if not isinstance(server.get("metadata") or {}, dict):
            return None
        chosen, now = self._read(), datetime.now(UTC)
        hints, name = lease_hint.hinted(body), str(server.get("name") or "")
        length = chosen.length if chosen.every_server else None
        if names.LEASE_HINT in hints:
            try:
                wish = lease_hint.read(hints[names.LEASE_HINT], name, now, length)
                lease_hint.check_single(server)
            except BadHint as bad:
                raise Fault(400, str(bad)) from bad
            return Create(body, wish, hinted=True, single=True)
        if length is None or names.HINT in hints or self._in_slots(environ, server):
            return None
        wish = lease_hint.default(name, now, length, chosen.on_end)
        return Create(body, wish, hinted=False, single=lease_hint.is_single(server))

    def _make(self, environ: Environ, create: Create) -> Response:
        """Ask Holdfast (dry run), create the server, create the lease."""
        began, before = time.monotonic(), dict(environ)
        if create.hinted:
            self._check_lease(environ, create.wish)
        text = json.dumps(lease_hint.passed_on(create.body, create.wish)).encode()
        _set_body(environ, text)
        response = self._call(environ)
        server_id = response.server_id()
        if not server_id or not create.single:
            return response
        answer = self._lease(before, create, server_id, began)
        if answer.refused and create.hinted:
            raise self._undone(before, server_id, answer)
        if not answer.taken:
            LOG.warning(
                "server %s: no lease yet (%r); Holdfast makes it when it looks for servers",
                server_id,
                answer.message,
            )
        header = (HEADER, answer.lease_id if answer.taken else LATER)
        return Response(response.status, (*response.headers, header), response.body)

    def _check_lease(self, environ: Environ, wish: Wish) -> None:
        """Raise Fault, before anything is created, unless Holdfast would accept the lease."""
        chosen = self._read()
        try:
            url = endpoint(chosen, environ)
            trial = {**wish.lease(None), "dry_run": True}
            answer = post_lease(url, trial, environ, chosen)
        except NoEndpoint as unknown:
            answer = Answer(0, str(unknown))
        if answer.refused:
            raise Fault(answer.status, f"No lease, so no server was made: {answer.message}")
        if not answer.taken:
            LOG.warning("a create with a lease was turned away: %r", answer.message)
            raise Fault(
                503,
                "The lease service cannot be asked now, so no server was made: try again in"
                f" {RETRY_AFTER_S} seconds, or leave out the hint {names.LEASE_HINT}.",
            )

    def _lease(self, environ: Environ, create: Create, server_id: str, began: float) -> Answer:
        """Create the lease of an existing server.

        A create without a hint skips the call for QUIET_S seconds after Holdfast did not answer,
        so that its user does not wait.
        """
        chosen, now = self._read(), time.monotonic()
        if now + sum(chosen.timeouts) > began + ACT_WITHIN_S:
            return Answer(0, "Nova took too long")
        if not create.hinted and now < self._quiet_until:
            return Answer(0, "Holdfast did not answer a moment ago")
        try:
            url = endpoint(chosen, environ)
            answer = post_lease(url, create.wish.lease(server_id), environ, chosen)
        except NoEndpoint as unknown:
            answer = Answer(0, str(unknown))
        self._quiet_until = 0.0 if answer.status else time.monotonic() + QUIET_S
        return answer

    def _undone(self, environ: Environ, server_id: str, answer: Answer) -> Fault:
        """Delete the server because Holdfast refuses its lease; return the error."""
        done = self._call(_request(environ, "DELETE", f"/servers/{server_id}"))
        if done.code in (204, 404):
            LOG.info("server %s deleted: its lease was refused: %r", server_id, answer.message)
            return Fault(answer.status, f"No lease, so no server was kept: {answer.message}")
        LOG.error(
            "server %s: its lease was refused (%r), and it could not be deleted (%s)",
            server_id,
            answer.message,
            done.status,
        )
        return Fault(
            answer.status,
            f"No lease: {answer.message}. Server {server_id} could not be deleted: delete it.",
        )

    def _in_slots(self, environ: Environ, server: Mapping[str, Any]) -> bool:
        """Whether the flavor belongs to a capacity reservation, which already has a lease."""
        flavor = str(server.get("flavorRef") or "").rstrip("/").rpartition("/")[2]
        if not flavor:
            return False
        path = f"/flavors/{flavor}/os-extra_specs"
        specs = self._call(_request(environ, "GET", path))
        return specs.code == 200 and names.SLOTS_SPEC in json.loads(specs.body)["extra_specs"]

    def _call(self, environ: Environ) -> Response:
        """Call nova-api and return its whole response."""
        response = Response()

        def start(status: str, headers: Iterable[tuple[str, str]], _error: Any = None) -> Any:
            response.status, response.headers = status, tuple(headers)
            return written.append

        written: list[bytes] = []
        parts = self._app(environ, start)
        try:
            response.body = b"".join([*written, *parts])
        finally:
            close = getattr(parts, "close", None)
            if close is not None:
                close()
        return response


def _is_create(environ: Mapping[str, Any]) -> bool:
    """Whether the request is POST …/servers, with or without a project id in the path."""
    if environ.get("REQUEST_METHOD") != "POST":
        return False
    parts = _parts(environ)
    return 1 <= len(parts) <= 2 and parts[-1] in _CREATES


def _parts(environ: Mapping[str, Any]) -> list[str]:
    """Split the path; empty parts are dropped, because Nova accepts extra slashes."""
    return [part for part in environ.get("PATH_INFO", "").split("/") if part]


def _body(environ: Environ) -> dict[str, Any] | None:
    """Read the JSON object of the request and put the body back for Nova.

    Return None if the body is no JSON object or its Content-Length is above LARGEST_BODY. Raise
    Fault (413) if a chunked body is too large.
    """
    try:
        length = int(environ.get("CONTENT_LENGTH") or 0)
    except ValueError:
        return None
    ended = environ.get("wsgi.input_terminated")  # a chunked body, of unknown size
    if not 0 <= length <= LARGEST_BODY or not (length or ended):
        return None
    text = environ["wsgi.input"].read(length or LARGEST_BODY + 1)
    if len(text) > LARGEST_BODY:
        raise Fault(413, "The body is too large: send it with its Content-Length.")
    _set_body(environ, text)
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) else None


def _set_body(environ: Environ, text: bytes) -> None:
    """Set the request's body."""
    environ["wsgi.input"] = io.BytesIO(text)
    environ["CONTENT_LENGTH"] = str(len(text))


def _request(environ: Mapping[str, Any], method: str, path: str) -> Environ:
    """Build another request to nova-api with the same token."""
    before = _parts(environ)[:-1]  # the project id, in older paths
    copied = {k: v for k, v in environ.items() if not k.startswith(("webob.", "wsgiorg."))}
    made = {**copied, "REQUEST_METHOD": method, "QUERY_STRING": ""}
    text = "".join(f"/{part}" for part in before) + path
    made["PATH_INFO"] = text.encode(errors="replace").decode("latin-1")  # WSGI's encoding of paths
    _set_body(made, b"")
    return made


def _fault(fault: Fault) -> Response:
    status, name = _FAULTS[fault.status]
    body = json.dumps({name: {"code": fault.status, "message": fault.message}}).encode()
    headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
    if fault.status == 503:
        headers.append(("Retry-After", str(RETRY_AFTER_S)))
    return Response(status, tuple(headers), body)
