# SPDX-License-Identifier: Apache-2.0
"""Who is asking: noauth, http_basic or keystone, chosen by `auth_strategy`. Runs before every handler.

noauth makes everybody an admin, so it answers to this machine only, whatever server it runs under:
the peer must be loopback, with no proxy in between and no other site's page behind it.
"""

import hashlib
import hmac
import ipaddress
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import falcon
import webob.exc
import yaml
from oslo_config import cfg
from oslo_middleware import basic_auth

from holdfast.api.policies import Policy
from holdfast.model.caller import Caller
from holdfast.model.errors import Forbidden, Unauthorized, Unavailable
from holdfast.ports.clock import Clock

LOG = logging.getLogger(__name__)
_FORWARDED = ("X-Forwarded-For", "X-Forwarded-Host", "Forwarded", "X-Real-Ip")

#: user id, project id, roles
Identity = tuple[str, str, tuple[str, ...]]
Identify = Callable[[falcon.Request], Identity]


class Middleware:
    """Puts the Caller into the request; routes open to everybody are let through without one."""

    def __init__(self, conf: cfg.ConfigOpts, policy: Policy, clock: Clock) -> None:
        self._policy = policy
        strategies: dict[str, Callable[[], Identify]] = {
            "noauth": lambda: NoAuth(conf),
            "http_basic": lambda: Basic(conf, clock),
            "keystone": lambda: from_keystone,
        }
        self._identify = strategies[conf.auth_strategy]()

    def process_resource(
        self, req: falcon.Request, _resp: falcon.Response, resource: Any, _params: Any
    ) -> None:
        route = resource.route(req.method) if resource is not None else None
        if route is None or route.rule is None:
            return
        user, project, roles = self._identify(req)
        credentials = {"user_id": user, "project_id": project, "roles": list(roles)}
        req.context.caller = Caller(
            user_id=user,
            project_id=project,
            roles=roles,
            request_id=req.context.request_id,
            is_admin=self._policy.is_admin(credentials),
        )
        req.context.oslo.user_id, req.context.oslo.project_id = user, project
        self._policy.check(route.rule, credentials)


class NoAuth:
    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._project = conf.auth.noauth_project

    def __call__(self, req: falcon.Request) -> Identity:
        for name in _FORWARDED:
            if req.get_header(name):
                raise Forbidden("auth_strategy noauth does not work behind a proxy")
        origin = req.get_header("Origin")
        named = [req.remote_addr, req.host]
        if origin:
            named.append(urlsplit(origin).hostname or origin)
        if not all(is_loopback(name) for name in named):
            raise Forbidden("auth_strategy noauth answers this machine's loopback only")
        return "admin", self._project, ("admin", "member", "reader", "service")


def is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Basic:
    """oslo.middleware checks the password; a file beside it says project and roles."""

    def __init__(self, conf: cfg.ConfigOpts, clock: Clock) -> None:
        self._conf = conf
        self._clock = clock
        self._salt = os.urandom(16)
        self._seen: dict[bytes, float] = {}
        self._lock = threading.Lock()

    def __call__(self, req: falcon.Request) -> Identity:
        user, password = self._credentials(req)
        if not self._remembered(user, password):
            self._verify(user, password)
        entry = self._users().get(user)
        if not isinstance(entry, dict) or "project" not in entry:
            raise Forbidden(f"user {user} has a password but no project in the users file")
        roles = tuple(str(role) for role in entry.get("roles") or ("reader",))
        return user, str(entry["project"]), roles

    def _credentials(self, req: falcon.Request) -> tuple[str, bytes]:
        try:
            token = basic_auth.parse_header(req.env)
            user, password = basic_auth.parse_token(token)
            return str(user), bytes(password)
        except (webob.exc.HTTPException, ValueError):
            raise _challenge("log in with user and password") from None

    def _verify(self, user: str, password: bytes) -> None:
        try:
            basic_auth.authenticate(self._conf.auth.htpasswd_file, user, password)
        except webob.exc.HTTPUnauthorized:
            raise _challenge("wrong user or password") from None
        except (webob.exc.HTTPException, ValueError) as error:
            raise Unavailable(f"the password file cannot be used: {error}") from error
        with self._lock:
            now = self._clock.monotonic()
            self._seen = {key: until for key, until in self._seen.items() if until > now}
            self._seen[self._key(user, password)] = now + self._conf.auth.remember_s

    def _remembered(self, user: str, password: bytes) -> bool:
        with self._lock:
            until = self._seen.get(self._key(user, password), 0.0)
        return until > self._clock.monotonic()

    def _key(self, user: str, password: bytes) -> bytes:
        """Keyed by the file's age too: a changed file forgets everybody at once."""
        try:
            stamp = str(os.stat(self._conf.auth.htpasswd_file).st_mtime_ns)
        except OSError:
            stamp = ""
        text = f"{stamp}\n{user}\n".encode() + password
        return hmac.new(self._salt, text, hashlib.sha256).digest()

    def _users(self) -> dict[str, Any]:
        try:
            loaded = yaml.safe_load(Path(self._conf.auth.users_file).read_text())
        except (OSError, yaml.YAMLError) as error:
            raise Unavailable(f"the users file cannot be read: {error}") from error
        return loaded if isinstance(loaded, dict) else {}


def _challenge(message: str) -> Unauthorized:
    return Unauthorized(message, scheme='Basic realm="holdfast"')


def from_keystone(req: falcon.Request) -> Identity:
    """What keystonemiddleware found out; it strips these headers from what clients send."""
    if req.get_header("X-Identity-Status") != "Confirmed":
        raise Unauthorized("a valid X-Auth-Token is required", scheme="Keystone")
    user, project = req.get_header("X-User-Id"), req.get_header("X-Project-Id")
    if not user or not project:
        raise Forbidden("a token scoped to a project is required")
    roles = tuple(filter(None, (req.get_header("X-Roles") or "").split(",")))
    return user, project, roles


def behind_keystone(app: Any, conf: cfg.ConfigOpts) -> Any:
    """The app behind keystonemiddleware, which leaves the decision to us (open routes exist)."""
    from keystonemiddleware import auth_token

    settings = {
        "oslo_config_config": conf,
        "oslo_config_project": "holdfast",
        "delay_auth_decision": True,
    }
    return auth_token.AuthProtocol(app, settings)
