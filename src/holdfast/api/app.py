# SPDX-License-Identifier: Apache-2.0
"""The WSGI application: the route table turned into falcon resources, behind a fixed order of middleware."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import falcon

from holdfast.api import auth, body, faults, microversions, requests
from holdfast.api.ask import Ask, Route, Services
from holdfast.api.metrics import Metrics
from holdfast.api.policies import Policy
from holdfast.api.routes import table

Wsgi = Callable[[Any, Any], Any]


def build(services: Services, metrics: Metrics, routes: Sequence[Route] | None = None) -> Wsgi:
    """The application of `services`. `routes` is the whole table unless a program serves less."""
    middleware: list[Any] = [
        requests.Middleware(metrics),  # first: whatever fails later has an id and a log line
        microversions.Middleware(),  # before auth: a version we do not speak is nobody's secret
        auth.Middleware(services.conf, Policy(services.conf), services.clock),  # last
    ]
    app = falcon.App(middleware=middleware)
    app.req_options.strip_url_path_trailing_slash = True
    app.req_options.auto_parse_qs_csv = False
    faults.install(app)
    chosen = table(services, metrics) if routes is None else routes
    for path, methods in _by_path(chosen).items():
        app.add_route(path, _Endpoint(services, methods))
    if services.conf.auth_strategy == "keystone":
        return _Split(app, auth.behind_keystone(app, services.conf))
    return app


class _Split:
    """Health and version documents do not wait for Keystone; everything else goes through it."""

    def __init__(self, plain: Wsgi, guarded: Wsgi) -> None:
        self._plain = plain
        self._guarded = guarded

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        guarded = path.startswith(("/reservation/v1/", "/instance-ha/v1/", "/holdfast/v1/"))
        if not guarded:
            # What only keystonemiddleware may say must not come from outside.
            for name in ("HTTP_X_IDENTITY_STATUS", "HTTP_X_ROLES", "HTTP_X_USER_ID"):
                environ.pop(name, None)
        app = self._guarded if guarded else self._plain
        answer: Iterable[bytes] = app(environ, start_response)
        return answer


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
        def respond(req: falcon.Request, resp: falcon.Response, **params: str) -> None:
            reply = route.handler(self._ask(route, req, params))
            resp.status = falcon.code_to_http_status(reply.status)
            for name, value in reply.headers.items():
                resp.set_header(name, value)
            if reply.body is not None:
                resp.content_type = reply.content_type
                resp.data = reply.data

        return respond

    def _ask(self, route: Route, req: falcon.Request, params: dict[str, str]) -> Ask:
        for name, value in [*params.items(), *req.params.items()]:
            body.check_text(str(value), name)
        content = None
        if req.method in ("POST", "PUT", "PATCH"):
            content = body.read(req, self._services.conf.api.max_body)
            if route.schema is not None:
                content = body.validate(content, route.schema)
        public = self._services.conf.api.public_url
        return Ask(
            services=self._services,
            caller=getattr(req.context, "caller", None),  # type: ignore[arg-type]
            path=params,
            query={k: v if isinstance(v, str) else v[-1] for k, v in req.params.items()},
            body=content,
            base_url=(public or f"{req.scheme}://{req.netloc}").rstrip("/"),
            microversion=getattr(req.context, "microversion", (1, 0)),
        )
