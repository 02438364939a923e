# SPDX-License-Identifier: Apache-2.0
"""The WSGI application: the route table as falcon resources, behind middleware in a fixed order."""

import logging
import re
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import falcon
from oslo_config import cfg
from oslo_context import context as oslo_context

from holdfast import console
from holdfast.api import auth, errors, login, versions
from holdfast.api import request as http_request
from holdfast.api.health import Metrics
from holdfast.api.instance_ha_v1 import extensions
from holdfast.api.policies import Policy
from holdfast.api.request import Request, Route, Services
from holdfast.api.routes import table

LOG = logging.getLogger(__name__)
_ID = re.compile(r"req-[0-9a-fA-F-]{36}")
HEADER = "x-openstack-request-id"


class Middleware:
    """falcon middleware: gives each request an id, a log line and a metrics sample.

    The middleware also strips the suffix `.json` from paths of the two OpenStack contracts.
    """

    def __init__(self, metrics: Metrics, conf: cfg.ConfigOpts) -> None:
        self._metrics = metrics
        self._conf = conf

    def process_request(self, req: falcon.Request, resp: falcon.Response) -> None:
        req.context.began = time.perf_counter()
        req.context.request_id = f"req-{uuid.uuid4()}"
        asked = req.get_header(HEADER)
        context = oslo_context.RequestContext(
            request_id=req.context.request_id,
            global_request_id=asked if asked and _ID.fullmatch(asked) else None,
            overwrite=True,
        )
        req.context.oslo = context
        resp.set_header(HEADER, req.context.request_id)
        resp.set_headers(_SAFE_HEADERS)  # a page replaces some of them
        if _is_https(req, self._conf):
            resp.set_header("Strict-Transport-Security", "max-age=31536000")
        if "//" in req.path or req.path[1:].endswith("/"):  # falcon accepts some of these
            raise falcon.HTTPRouteNotFound
        if req.path.endswith(".json") and req.path.startswith(("/reservation", "/instance-ha")):
            req.path = req.path.removesuffix(".json")

    def process_response(
        self, req: falcon.Request, resp: falcon.Response, _resource: Any, _ok: bool
    ) -> None:
        took = time.perf_counter() - getattr(req.context, "began", time.perf_counter())
        route = req.uri_template or "none"
        method = req.method if req.method in falcon.HTTP_METHODS else "other"
        self._metrics.request(method, route, resp.status_code, took)
        level = logging.DEBUG if req.method in ("GET", "HEAD") else logging.INFO
        if resp.status_code >= 500:
            level = logging.WARNING
        if LOG.isEnabledFor(level):
            path, status = quote(req.path, safe="/:"), resp.status_code  # a path may hold newlines
            LOG.log(level, "%s %s %s %.1f ms", req.method, path, status, took * 1000)


Wsgi = Callable[[Any, Any], Any]


def build(services: Services, metrics: Metrics, routes: Sequence[Route] | None = None) -> Wsgi:
    """Build the WSGI application. A program that serves fewer routes passes `routes`."""
    conf, clock = services.conf, services.clock
    identify = auth.authenticator(conf, clock)
    people = login.make(identify, services.store.sessions, conf, clock)
    services = replace(services, login=people)
    middleware: list[Any] = [
        Middleware(metrics, conf),  # first: every later failure has an id and a log line
        versions.Middleware(),  # before auth: supported versions are public
        auth.Middleware(conf, Policy(conf, clock), identify, people),
        extensions.Middleware(),  # last: compares the project in the URL with the caller
    ]
    app = falcon.App(middleware=middleware)
    app.req_options.strip_url_path_trailing_slash = True
    app.req_options.auto_parse_qs_csv = False
    errors.install(app)
    if routes is None:
        moved = "/metrics" if conf.api.health_port else ""
        routes = [r for r in (*table(metrics), *console.ROUTES) if r.path != moved]
    for path, methods in _by_path(routes).items():
        app.add_route(path, _Endpoint(services, methods))
    return app


def _by_path(routes: Sequence[Route]) -> dict[str, dict[str, Route]]:
    by_path: dict[str, dict[str, Route]] = {}
    for route in routes:
        by_path.setdefault(route.path, {})[route.method] = route
    return by_path


def _is_https(req: falcon.Request, conf: cfg.ConfigOpts) -> bool:
    """Return whether the client uses HTTPS, to this server or to a proxy at [api] public_url."""
    return req.scheme == "https" or conf.api.public_url.startswith("https:")


#: Browsers neither guess the type of an answer nor keep it.
_SAFE_HEADERS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}


class _Endpoint:
    """falcon resource for a path: a responder for each of the path's routes."""

    def __init__(self, services: Services, routes: dict[str, Route]) -> None:
        self._services = services
        self._routes = routes
        for method, route in routes.items():
            setattr(self, f"on_{method.lower()}", self._responder(route))
        if "GET" in routes and "HEAD" not in routes:
            self.on_head = self._responder(routes["GET"])

    def route(self, method: str) -> Route | None:
        return self._routes.get("GET" if method == "HEAD" else method)

    def _responder(self, route: Route) -> Callable[..., None]:
        schema = None if route.schema is None else http_request.Schema(route.schema)
        query = None
        if route.query is not None:
            query = http_request.Schema(http_request.query_schema(route.query, route.needs))

        def respond(req: falcon.Request, resp: falcon.Response, **params: str) -> None:
            caller = getattr(req.context, "caller", None)
            with self._services.share_of(route, caller), self._services.room_for(req):
                request = self._ask(req, params, (route, schema), query)
                reply = route.handler(request)
            resp.status = falcon.code_to_http_status(reply.status)
            for name, value in reply.headers.items():
                resp.set_header(name, value)
            secure = "; Secure" if _is_https(req, self._services.conf) else ""
            for cookie in reply.cookies:
                resp.append_header("Set-Cookie", cookie + secure)
            if reply.stream is not None and req.method == "HEAD":
                reply.stream.close()
            elif reply.stream is not None:
                resp.content_type = reply.content_type
                resp.stream = reply.stream
            elif reply.body is not None:
                resp.content_type = reply.content_type
                resp.data = reply.data

        return respond

    def _ask(
        self,
        req: falcon.Request,
        path: dict[str, str],
        wanted: tuple[Route, http_request.Schema | None],
        query: http_request.Schema | None,
    ) -> Request:
        route, schema = wanted
        every = {k: [v] if isinstance(v, str) else v for k, v in req.params.items()}
        asked = {k: v[-1] for k, v in every.items()}
        for name, values in [*((k, [v]) for k, v in path.items()), *every.items()]:
            for value in values:
                http_request.check_field(value, name)
        content: Any = None
        limit = max(route.max_body, self._services.conf.api.max_body)
        if route.page and req.method == "POST":
            longest = route.max_body or http_request.MAX_FIELD
            every |= login.read(req, limit, longest, self._services.conf.api.public_url)
            content = {k: v[-1] for k, v in every.items()}
        elif req.method in ("POST", "PUT", "PATCH"):
            content = http_request.read(req, limit)
            if schema is not None:
                content = schema.body(content)
        return Request(
            services=self._services,
            caller=getattr(req.context, "caller", None),  # type: ignore[arg-type]
            path=path,
            query=asked if query is None else query.query(asked),
            body=content,
            base_url=self._base_url(req, anybody=route.rule is None),
            microversion=getattr(req.context, "microversion", (1, 0)),
            every=every,
            allowed=getattr(req.context, "may", Request.allowed),
            cookies=req.cookies,
            address=req.remote_addr,
            url=req.relative_uri,
            last_event_id=req.get_header("Last-Event-ID") or "",
            feed_position=self._services.feed.since("")[0] if route.page and route.rule else "",
        )

    def _base_url(self, req: falcon.Request, *, anybody: bool) -> str:
        """Return the URL before the paths of links: [api] public_url, or the URL of the request.

        Empty, for relative links, in a public document that was requested by a foreign host name:
        a cache could hand the document to other clients.
        """
        api = self._services.conf.api
        if api.public_url:
            return str(api.public_url).rstrip("/")
        host = auth.host_of(req)
        if anybody and host != api.host and not auth.is_loopback(host):
            return ""
        return f"{req.scheme}://{req.netloc}"
