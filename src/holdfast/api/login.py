# SPDX-License-Identifier: Apache-2.0
"""Console login by form, session cookies, CSRF tokens.

noauth      no login: the same rules as for the API (loopback only)
http_basic  the cookie is random text; the session ends when the user's password changes
keystone    the cookie is a Keystone token, issued for the password and revoked at logout; the
            session also ends when Keystone no longer accepts the token

With http_basic and keystone the database keeps a hash of the cookie (db/sessions). The row expires
or is deleted at logout; that ends the session at once for the pages of every API process, whatever
their auth caches hold. If somebody copies a Keystone token from the cookie and sends the token as
X-Auth-Token, the API accepts the token until the auth cache drops the entry (`auth`).

    login.enter({"user": "alice", "password": "…"}, "192.0.2.7") -> Entered(cookie, lasts_s)
    login(req)                              -> the identity; LoginWanted if nobody is logged in

Every form that the console sends carries a CSRF token. The token is an HMAC over the session
cookie, keyed with a second cookie per browser that no script and no other site can read. `read`,
the only way to get the fields of a form, refuses forms without the token.

    login.token(cookies)          # for the page
    login.read(req, limit, longest)  # {"name": ["blue"]}; Forbidden without the right token
"""

import hashlib
import hmac
import logging
import secrets
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, timedelta
from typing import Any, Protocol
from urllib.parse import parse_qs

import falcon
from keystoneauth1 import exceptions as keystone_errors
from oslo_config import cfg

from holdfast.api import request as http_request
from holdfast.api.auth import (
    LONGEST_NAME,
    Basic,
    Identity,
    Keystone,
    KnownLogins,
    LoginThrottle,
    NoAuth,
    refuse_other_sites,
)
from holdfast.api.concurrency import ConcurrencyLimiter
from holdfast.db.sessions import Session, SessionStore
from holdfast.model.errors import Forbidden, InvalidInput, Unauthorized, Unavailable
from holdfast.runtime.clock import Clock

#: The form field that carries the CSRF token, and the header that scripts use instead.
FIELD, HEADER = "form_token", "X-Form-Token"
COOKIE, SESSION = "holdfast_form", "holdfast_session"
_MOST_FIELDS = 5_000


def new_cookie() -> str:
    return secrets.token_urlsafe(24)


def token(cookies: Mapping[str, str]) -> str:
    """Return the CSRF token for a browser and the session."""
    said = f"form\n{cookies.get(SESSION, '')}".encode(errors="replace")
    return hmac.new(cookies.get(COOKIE, "").encode(errors="replace"), said, "sha256").hexdigest()


def read(
    req: falcon.Request, limit: int, longest: int, public_url: str = ""
) -> dict[str, list[str]]:
    """Check the CSRF token and return the form's fields, each with all values.

    A field has at most `longest` characters. `public_url` is the URL that browsers use if a proxy
    forwards requests under another host name.
    """
    if (req.content_type or "").partition(";")[0].strip() != "application/x-www-form-urlencoded":
        raise InvalidInput("pages send forms: Content-Type application/x-www-form-urlencoded")
    data = http_request.data(req, limit)
    try:
        found = parse_qs(
            data.decode(), keep_blank_values=True, errors="strict", max_num_fields=_MOST_FIELDS
        )
    except ValueError as error:
        raise InvalidInput(f"this form cannot be read: {error}") from None
    for name, values in found.items():
        http_request.check_field(name, "form")
        for value in values:
            http_request.check_field(value, name, longest)
    given = found.pop(FIELD, [""])[-1] or req.get_header(HEADER) or ""
    _check(req, given, public_url)
    return found


def _check(req: falcon.Request, given: str, public_url: str) -> None:
    # a strict referrer policy makes the origin "null"; the token proves that the page is ours
    refuse_other_sites(req, public_url, allow_null=True)
    cookies = req.cookies
    if not cookies.get(COOKIE) or not hmac.compare_digest(token(cookies).encode(), given.encode()):
        raise Forbidden("this form is too old: open the page again, then send it once more")


LOG = logging.getLogger(__name__)
_PATIENCE_S = 10.0
#: Concurrent password logins at Keystone, and how long further logins wait for a free slot.
_MOST_ENTERING = 2
_ENTERING_S = 5.0
#: Longest name that Keystone accepts.
_LONGEST_IN_KEYSTONE = 255


class LoginWanted(Unauthorized):
    """No user is logged in, or the session has ended."""

    code = "holdfast.auth.login"
    title = "Log in first"
    advice = "Log in on the page /console/login."


@dataclass(frozen=True)
class Entered:
    """A new session: the value of the session cookie and the lifetime."""

    cookie: str
    lasts_s: int


class Login(Protocol):
    """Console login: authenticates page requests, opens and ends sessions."""

    #: Fields of the login form; empty if no login is needed.
    fields: tuple[str, ...]

    def __call__(self, req: falcon.Request) -> Identity: ...

    def enter(self, form: Mapping[str, str], address: str) -> Entered: ...

    def leave(self, cookie: str) -> None: ...

    def is_open(self, cookie: str) -> bool:
        """Return whether the database still has the session, without asking Keystone."""
        ...


def make(
    identify: NoAuth | Basic | Keystone, sessions: SessionStore, conf: cfg.ConfigOpts, clock: Clock
) -> Login:
    """Return the Login for the API's authenticator."""
    if isinstance(identify, Basic):
        return BasicLogin(identify, sessions, conf)
    if isinstance(identify, Keystone):
        return KeystoneLogin(identify, sessions, conf, clock)
    return NoLogin(identify)


class NoLogin:
    """Login for noauth: pages follow the same rules as the API."""

    fields: tuple[str, ...] = ()

    def __init__(self, identify: NoAuth) -> None:
        self._identify = identify

    def __call__(self, req: falcon.Request) -> Identity:
        return self._identify(req)

    def enter(self, form: Mapping[str, str], address: str) -> Entered:
        raise InvalidInput("this service has no login: auth_strategy is noauth")

    def leave(self, cookie: str) -> None:
        """Do nothing: noauth has no sessions."""

    def is_open(self, cookie: str) -> bool:
        return True


class BasicLogin:
    """Login for http_basic: the session cookie is random text."""

    fields: tuple[str, ...] = ("user", "password")

    def __init__(self, basic: Basic, sessions: SessionStore, conf: cfg.ConfigOpts) -> None:
        self._basic = basic
        self._sessions = sessions
        self._conf = conf

    def __call__(self, req: falcon.Request) -> Identity:
        found = self._open_session(req.cookies.get(SESSION, ""))
        if found is None:
            raise LoginWanted("log in first")
        return self._basic.known(found.user_id)

    def _open_session(self, cookie: str) -> Session | None:
        found = self._sessions.get(_hash(cookie)) if cookie else None
        if found is None or not found.proof or found.proof != self._basic.proof(found.user_id):
            return None
        return found

    def is_open(self, cookie: str) -> bool:
        return self._open_session(cookie) is not None

    def enter(self, form: Mapping[str, str], address: str) -> Entered:
        user = form.get("user", "")
        if not 0 < len(user) <= LONGEST_NAME or ":" in user:
            raise LoginWanted("wrong user or password")
        try:
            self._basic.enter(user, form.get("password", "").encode(), address)
        except Unauthorized as error:
            raise LoginWanted(error.message) from None
        cookie = secrets.token_urlsafe(32)
        lasts = timedelta(hours=self._conf.console.session_hours)
        self._sessions.add(_hash(cookie), user, self._basic.proof(user), lasts)
        return Entered(cookie, int(lasts.total_seconds()))

    def leave(self, cookie: str) -> None:
        self._sessions.remove(_hash(cookie))


def _hash(cookie: str) -> str:
    return hashlib.sha256(cookie.encode(errors="replace")).hexdigest()


def _check_lengths(form: Mapping[str, str]) -> None:
    for name in ("user", "domain", "project", "project_domain"):
        if len(form.get(name, "")) > _LONGEST_IN_KEYSTONE:
            raise LoginWanted(
                f"{name.replace('_', ' ')}: at most {_LONGEST_IN_KEYSTONE} characters"
            )


def _folded(name: str) -> str:
    """Fold a user or domain name, for the login throttle.

    A database or directory behind Keystone may ignore case, accents, surrounding spaces and
    invisible characters when it compares names. The throttle must count such spellings together.
    """
    plain = unicodedata.normalize("NFKD", name.casefold())
    seen = (one for one in plain if unicodedata.category(one) not in ("Mn", "Me", "Cf"))
    return " ".join("".join(seen).casefold().split())


class KeystoneLogin:
    """Login for keystone: the session cookie is a Keystone token."""

    fields: tuple[str, ...] = ("user", "password", "project", "domain", "project_domain")

    def __init__(
        self, keystone: Keystone, sessions: SessionStore, conf: cfg.ConfigOpts, clock: Clock
    ) -> None:
        self._keystone = keystone
        self._sessions = sessions
        self._conf = conf
        self._clock = clock
        self._guesses = LoginThrottle(clock)
        self._known_logins = KnownLogins()
        # the limit keeps strangers who try passwords from slowing down token validation
        why, waiting = "too many logins at once: try again", conf.api.threads // 4
        self._entering = ConcurrencyLimiter(_MOST_ENTERING, waiting, _ENTERING_S, why)

    def __call__(self, req: falcon.Request) -> Identity:
        cookie = req.cookies.get(SESSION, "")
        if not cookie or self._sessions.get(_hash(cookie)) is None:
            raise LoginWanted("log in first")
        req.env["HTTP_X_AUTH_TOKEN"] = cookie
        req.env.pop("HTTP_X_SERVICE_TOKEN", None)
        try:
            return self._keystone(req)
        except Unauthorized:
            raise LoginWanted("log in again: Keystone does not know the session any more") from None

    def enter(self, form: Mapping[str, str], address: str) -> Entered:
        _check_lengths(form)
        user, domain = form.get("user", ""), form.get("domain", "") or "Default"
        name = f"{_folded(user)}@{_folded(domain)}"
        vouched = self._known_logins.key(name, address)
        suspect = self._guesses.is_suspect(address)
        turn = self._entering.turn(address, vouched, is_suspect=suspect)
        with self._guesses.attempt(name, address), turn:
            access = self._access(form, domain)
        self._known_logins.add(name, address)
        if not access.project_id:
            raise Forbidden("name a project: you have no default one")
        expires = access.expires if access.expires.tzinfo else access.expires.replace(tzinfo=UTC)
        lasts = max(timedelta(seconds=1), expires - self._clock.now())
        self._sessions.add(_hash(access.auth_token), access.user_id, "", lasts)
        return Entered(access.auth_token, int(lasts.total_seconds()))

    def _access(self, form: Mapping[str, str], domain: str) -> Any:
        """Log in to Keystone with the password; return keystoneauth1's AccessInfo."""
        from keystoneauth1.identity import v3

        project = form.get("project", "")
        password = v3.Password(
            self._url,
            username=form.get("user", ""),
            password=form.get("password", ""),
            user_domain_name=domain,
            project_name=project or None,
            project_domain_name=(form.get("project_domain") or domain) if project else None,
        )
        try:
            with self._keystone.turn():
                return password.get_access(self._session())
        except (
            keystone_errors.Unauthorized,
            keystone_errors.NotFound,
            keystone_errors.BadRequest,  # an invalid name
        ):
            raise LoginWanted("wrong user, password, project or domain") from None
        except keystone_errors.ClientException as error:
            LOG.warning("Keystone: %s", error)
            raise Unavailable("Keystone cannot check the password, try again") from error

    def is_open(self, cookie: str) -> bool:
        return self._sessions.get(_hash(cookie)) is not None

    def leave(self, cookie: str) -> None:
        """End the session and revoke the token in Keystone.

        If Keystone cannot be reached, the token stays valid there until it expires. A cookie that
        is not a Holdfast session is not sent to Keystone, because anybody can send a cookie.
        """
        if not self._sessions.remove(_hash(cookie)):
            return
        headers = {"X-Auth-Token": cookie, "X-Subject-Token": cookie}
        try:
            with self._keystone.turn():
                self._session().delete(
                    f"{self._url}/auth/tokens", headers=headers, authenticated=False
                )
        except (keystone_errors.ClientException, Unavailable) as error:
            LOG.warning("a session's token could not be revoked: %s", error)

    @property
    def _url(self) -> str:
        told = self._conf.keystone_authtoken
        url = (told.www_authenticate_uri or told.auth_url or "").rstrip("/")
        if not url:
            raise Unavailable("[keystone_authtoken] www_authenticate_uri is not set")
        return url if url.endswith("/v3") else f"{url}/v3"

    def _session(self) -> Any:
        from keystoneauth1 import session

        told = self._conf.keystone_authtoken
        verify = False if told.insecure else (told.cafile or True)
        return session.Session(timeout=_PATIENCE_S, verify=verify)
