# SPDX-License-Identifier: Apache-2.0
"""The WSGI application: the route table as falcon resources, behind a fixed order of middleware."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import falcon

from holdfast import console
from holdfast.api import auth, body, faults, forms, login, microversions, requests
from holdfast.api.ask import Ask, Route, Services
from holdfast.api.instance_ha_v1 import project
from holdfast.api.metrics import Metrics
from holdfast.api.policies import Policy
from holdfast.api.routes import table

Wsgi = Callable[[Any, Any], Any]


def build(services: Services, metrics: Metrics, routes: Sequence[Route] | None = None) -> Wsgi:
    """The application of `services`. `routes` is the whole table unless a program serves less."""
    conf, clock = services.conf, services.clock
    identify = auth.strategy(conf, clock)
    people = login.make(identify, services.store.sessions, conf, clock)
    services = replace(services, login=people)
    middleware: list[Any] = [
        requests.Middleware(metrics),  # first: whatever fails later has an id and a log line
        microversions.Middleware(),  # before auth: a version we do not speak is nobody's secret
        auth.Middleware(conf, Policy(conf, clock), identify, people),
        project.Middleware(),  # last: whose project an address names is told by who is asking
    ]
    app = falcon.App(middleware=middleware)
    app.req_options.strip_url_path_trailing_slash = True
    app.req_options.auto_parse_qs_csv = False
    faults.install(app)
    chosen = (*table(metrics), *console.ROUTES) if routes is None else routes
    for path, methods in _by_path(chosen).items():
        app.add_route(path, _Endpoint(services, methods))
    return app


def _by_path(routes: Sequence[Route]) -> dict[str, dict[str, Route]]:
    found: dict[str, dict[str, Route]] = {}
    for route in routes:
        found.setdefault(route.path, {})[route.method] = route
    return found


class _Endpoint:
    """A falcon resource made of the routes of one path."""

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
        schema = None if route.schema is None else body.Schema(route.schema)
        query = None
        if route.query is not None:
            query = body.Schema(body.query_schema(route.query, route.needs))

        def respond(req: falcon.Request, resp: falcon.Response, **params: str) -> None:
            ask = self._ask(req, params, (route, schema), query)
            reply = route.handler(ask)
            resp.status = falcon.code_to_http_status(reply.status)
            for name, value in reply.headers.items():
                resp.set_header(name, value)
            secure = "; Secure" if ask.base_url.startswith("https:") else ""
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
        wanted: tuple[Route, body.Schema | None],
        query: body.Schema | None,
    ) -> Ask:
        route, schema = wanted
        every = {k: [v] if isinstance(v, str) else v for k, v in req.params.items()}
        asked = {k: v[-1] for k, v in every.items()}
        for name, values in [*((k, [v]) for k, v in path.items()), *every.items()]:
            for value in values:
                body.check_text(value, name)
        content: Any = None
        limit = max(route.max_body, self._services.conf.api.max_body)
        if route.page and req.method == "POST":
            every |= forms.read(req, limit, self._services.conf.api.public_url)
            content = {k: v[-1] for k, v in every.items()}
        elif req.method in ("POST", "PUT", "PATCH"):
            content = body.read(req, limit)
            if schema is not None:
                content = schema.body(content)
        public = self._services.conf.api.public_url
        return Ask(
            services=self._services,
            caller=getattr(req.context, "caller", None),  # type: ignore[arg-type]
            path=path,
            query=asked if query is None else query.query(asked),
            body=content,
            base_url=(public or f"{req.scheme}://{req.netloc}").rstrip("/"),
            microversion=getattr(req.context, "microversion", (1, 0)),
            every=every,
            may=getattr(req.context, "may", Ask.may),
            cookies=req.cookies,
            address=req.remote_addr,
            here=req.relative_uri,
            known=req.get_header("Last-Event-ID") or "",
            at=self._services.feed.since("")[0] if route.page and route.rule else "",
        )
