# SPDX-License-Identifier: Apache-2.0
"""Authentication: `NoAuth`, `Basic` and `Keystone` by `auth_strategy`, auth cache, login throttle.

The middleware authenticates each request before its handler runs, and after falcon has routed it:
different spellings of a URL make no difference.

noauth makes every caller an admin. Under any WSGI server `NoAuth` therefore accepts requests from
the loopback interface only, and refuses requests that came through a proxy or from a page of
another site.
"""

import contextlib
import functools
import hashlib
import hmac
import ipaddress
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Generic, TypeVar
from urllib.parse import urlsplit

import falcon
import webob
import webob.exc
from keystoneauth1.exceptions import ClientException
from oslo_config import cfg
from oslo_middleware import basic_auth

from holdfast.api import tokens
from holdfast.api.concurrency import ConcurrencyLimiter
from holdfast.api.policies import Policy
from holdfast.model.errors import (
    Forbidden,
    InvalidDocument,
    InvalidInput,
    Problem,
    TooMany,
    Unauthorized,
    Unavailable,
)
from holdfast.model.observation import AGENT_HEADER
from holdfast.ports.manager import Caller
from holdfast.runtime.clock import Clock
from holdfast.runtime.documents import INVENTORY, Followed, Node, Reading, Scalar
from holdfast.runtime.text import printable

T = TypeVar("T")
#: In the last quarter of an entry's lifetime one request verifies the secret again; meanwhile
#: other requests with the same secret use the cached entry.
SOON: Final = 0.25
#: Longest time a request waits for another request that verifies the same secret.
PATIENCE_S: Final = 5.0


class AuthCache(Generic[T]):
    """Auth cache: results of verified passwords and tokens, keyed by salted hashes of the secrets.

    cache.put(b"token", identity, lasts_s=60.0)
    cache.get(b"token")                       # None after 60 s
    cache.once(b"password", 60.0, check)      # cached result, or the result of one check()

    The cache holds hashes only, never secrets.
    """

    MOST = 10_000

    def __init__(self, clock: Clock, most_waiting: int = 8) -> None:
        """Create an empty cache.

        At most `most_waiting` requests wait for the check of another request, because each waiting
        request occupies an API thread.
        """
        self._clock = clock
        self._salt = os.urandom(16)
        self._found: dict[bytes, tuple[T, float]] = {}
        self._going: dict[bytes, Future[T]] = {}
        self._room = threading.BoundedSemaphore(most_waiting)
        self._lock = threading.Lock()

    def get(self, secret: bytes) -> T | None:
        found = self._found.get(self._key(secret))
        return found[0] if found and found[1] > self._clock.monotonic() else None

    def put(self, secret: bytes, value: T, lasts_s: float) -> None:
        if lasts_s <= 0:
            return
        key, now = self._key(secret), self._clock.monotonic()
        with self._lock:
            self._found.pop(key, None)  # new entries go to the end of the dict
            self._found[key] = (value, now + lasts_s)
            while (first := next(iter(self._found))) != key and (
                len(self._found) > self.MOST or self._found[first][1] <= now
            ):
                del self._found[first]

    def once(self, secret: bytes, lasts_s: float, find: Callable[[], T]) -> T:
        """Return the cached result for `secret`, or run `find` once for all concurrent requests.

        A client may send many requests in parallel with the same secret: one request runs `find`,
        the others wait for the result. Raises Unavailable if too many wait or the wait is too long.
        """
        key, now = self._key(secret), self._clock.monotonic()
        with self._lock:
            found, going = self._found.get(key), self._going.get(key)
            left_s = found[1] - now if found else 0.0
            if found and left_s > 0 and (going or left_s > lasts_s * SOON):
                return found[0]
            if going is None:
                mine = self._going[key] = Future[T]()
        return self._follow(going) if going else self._lead(secret, lasts_s, find, mine)

    def _follow(self, going: "Future[T]") -> T:
        if not self._room.acquire(blocking=False):
            raise Unavailable("too many logins at once: try again")
        try:
            return going.result(PATIENCE_S)
        except TimeoutError:
            raise Unavailable("the password check takes too long: try again") from None
        finally:
            self._room.release()

    def _lead(self, secret: bytes, lasts_s: float, find: Callable[[], T], mine: "Future[T]") -> T:
        try:
            made = self._found_out(secret, lasts_s, find)
        except BaseException as error:
            mine.set_exception(error)
            raise
        else:
            mine.set_result(made)
            return made
        finally:
            with self._lock:
                del self._going[self._key(secret)]

    def _found_out(self, secret: bytes, lasts_s: float, find: Callable[[], T]) -> T:
        try:
            made = find()
        except (TooMany, Unavailable):
            if (known := self.get(secret)) is None:
                raise
            return known  # the entry is still valid: the next request tries again
        self.put(secret, made, lasts_s)
        return made

    def _key(self, secret: bytes) -> bytes:
        return hmac.digest(self._salt, secret, "sha256")


LOG = logging.getLogger(__name__)
#: Wrong passwords per user and address before the throttle delays attempts: people mistype.
FREE: Final = 5
#: Delay after the first wrong password beyond these; the delay doubles with each further one.
FIRST_S: Final = 1.0
LONGEST_S: Final = 60.0
#: After this time without a wrong password the throttle forgets the user and address.
FORGOTTEN_S: Final = 900.0
#: Pairs of user and address that the throttle remembers; it drops the oldest first.
MOST: Final = 10_000

#: Hash of user and address. It has a fixed length, because strangers choose the user names.
Key = bytes


@dataclass(frozen=True)
class _Wrong:
    """Wrong passwords of a user and address: count and time of the last attempt."""

    count: int
    last: float

    @property
    def until(self) -> float:
        return self.last + min(LONGEST_S, FIRST_S * 2.0 ** min(self.count - FREE, 10))


class LoginThrottle:
    """Login throttle: delays attempts after `FREE` wrong passwords for one user from one address.

    with throttle.attempt("alice", "192.0.2.7"):    # TooMany while the delay lasts
        check(password)                             # Unauthorized counts as a wrong password

    The delay doubles each time, up to `LONGEST_S`. A user with the right password on another
    address is not delayed. Behind a proxy all clients share the proxy's address: there a stranger
    can lock a user out for up to a minute at a time, unless the auth cache holds the user's
    password.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wrong: dict[Key, _Wrong] = {}
        #: Networks whose last password was wrong, and when.
        self._suspects: OrderedDict[str, float] = OrderedDict()
        self._lock = threading.Lock()

    def is_suspect(self, address: str) -> bool:
        """Return whether the last password from the client's network was wrong."""
        with self._lock:
            last = self._suspects.get(client_network(address))
            return last is not None and self._clock.monotonic() - last <= FORGOTTEN_S

    @contextlib.contextmanager
    def attempt(self, user: str, address: str) -> Iterator[None]:
        """Count an attempt as wrong until the check succeeds; TooMany while the delay lasts.

        The attempt counts from the start, because parallel attempts would bypass the limit
        otherwise.
        """
        key = hashlib.blake2b(
            f"{user}\n{address}".encode(errors="replace"), digest_size=16
        ).digest()
        before = self._begin(key)
        try:
            yield
        except Unauthorized:
            LOG.warning("wrong password for %s from %s", printable(user)[:64], address)
            self._suspect(address)
            raise
        except BaseException:
            self._put(key, before)  # the password was not checked
            raise
        self._put(key, None)
        with self._lock:
            self._suspects.pop(client_network(address), None)

    def _suspect(self, address: str) -> None:
        with self._lock:
            network = client_network(address)
            self._suspects[network] = self._clock.monotonic()
            self._suspects.move_to_end(network)
            while len(self._suspects) > MOST:
                self._suspects.popitem(last=False)

    def _begin(self, key: Key) -> _Wrong | None:
        now = self._clock.monotonic()
        with self._lock:
            before = self._wrong.pop(key, None)
            if before is not None and now - before.last > FORGOTTEN_S:
                before = None
            early = before is not None and before.count >= FREE and now < before.until
            count = before.count if before else 0
            self._wrong[key] = before if early and before else _Wrong(count + 1, now)
            self._tidy(now)
        if early and before is not None:
            wait_s = max(1, round(before.until - now))
            raise TooMany(f"too many wrong passwords: try again in {wait_s} s", wait_s=wait_s)
        return before

    def _tidy(self, now: float) -> None:
        """Drop entries older than `FORGOTTEN_S`, and the oldest above `MOST`."""
        while (first := next(iter(self._wrong), None)) is not None and (
            len(self._wrong) > MOST or now - self._wrong[first].last > FORGOTTEN_S
        ):
            del self._wrong[first]

    def _put(self, key: Key, known: _Wrong | None) -> None:
        with self._lock:
            self._wrong.pop(key, None)
            if known is not None:
                self._wrong[key] = known


def client_network(address: str) -> str:
    """Return the network that a single client can have: an IPv4 address, or the /64 of an IPv6."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if found.version == 4:
        return address
    return str(ipaddress.IPv6Network((int(found), 64), strict=False))


class KnownLogins:
    """Remembers addresses and users with a right password, so that a flood does not keep them out.

    The process keeps hashes of the latest `MOST` addresses and users in memory.
    """

    def __init__(self) -> None:
        self._keys: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()

    def key(self, user: str, address: str) -> str | None:
        """Return the key that vouches for a login: the address, else the user, else None."""
        with self._lock:
            return next((key for key in _login_keys(user, address) if key in self._keys), None)

    def add(self, user: str, address: str) -> None:
        with self._lock:
            for key in _login_keys(user, address):
                self._keys[key] = None
                self._keys.move_to_end(key)
            while len(self._keys) > MOST:
                self._keys.popitem(last=False)


def _login_keys(user: str, address: str) -> tuple[str, str]:
    name = hashlib.sha256(user.encode(errors="replace")).hexdigest()
    return f"address {address}", f"user {name}"


#: Headers that proxies add, as WSGI names them: each shows that a request came through a proxy.
_PROXY_HEADERS = frozenset(
    f"HTTP_{name}"
    for name in (
        *("FORWARDED", "VIA", "X_REAL_IP", "X_CLIENT_IP", "CLIENT_IP", "X_CLUSTER_CLIENT_IP"),
        *("TRUE_CLIENT_IP", "CF_CONNECTING_IP", "FASTLY_CLIENT_IP", "X_AZURE_CLIENTIP"),
        *("X_ORIGINAL_HOST", "X_ORIGINAL_URL", "X_HOST", "X_PROXYUSER_IP", "X_REQUEST_START"),
        *("X_AMZN_TRACE_ID", "X_SCHEME", "X_SSL", "PROXY_CONNECTION", "MAX_FORWARDS"),
        *("CDN_LOOP", "X_VARNISH", "WL_PROXY_CLIENT_IP", "X_REMOTE_ADDR", "X_REMOTE_IP"),
    )
)
_PROXY_PREFIXES = ("HTTP_X_FORWARDED", "HTTP_X_ENVOY_", "HTTP_X_ORIGINAL_FORWARDED", "HTTP_X_ARR_")
LONGEST_NAME = 64  # column length of user and project ids in the database
_LONGEST_PASSWORD = 72  # bytes; bcrypt does not check more
_MOST_CHECKING = 4  # concurrent password checks: each uses a CPU for a quarter of a second
_TURN_S = 2.0  # how long a request waits for a free slot to check a password or token

#: user id, project id, roles
Identity = tuple[str, str, tuple[str, ...]]
Identify = Callable[[falcon.Request], Identity]


def authenticator(conf: cfg.ConfigOpts, clock: Clock) -> "NoAuth | Basic | Keystone":
    """Return the authenticator for `auth_strategy`."""
    if conf.auth_strategy == "noauth":
        return NoAuth(conf)
    return Basic(conf, clock) if conf.auth_strategy == "http_basic" else Keystone(conf, clock)


class Middleware:
    """falcon middleware: authenticates the caller, checks the route's policy rule, sets the Caller.

    Routes without a rule are public and get no Caller. Console pages authenticate by the session
    cookie (`login`), all other routes by the credentials in the request.
    """

    def __init__(
        self, conf: cfg.ConfigOpts, policy: Policy, identify: Identify, people: Identify
    ) -> None:
        self._policy = policy
        self._conf = conf
        self._identify = identify
        self._people = people

    def process_resource(
        self, req: falcon.Request, _resp: falcon.Response, resource: Any, _params: Any
    ) -> None:
        route = resource.route(req.method) if resource is not None else None
        req.context.page = route is not None and route.page
        if route is None or route.rule is None:
            return
        if not route.page:  # `login.read` checks the forms of pages
            refuse_other_sites(req, self._conf.api.public_url)
        user, project, roles = self._people(req) if route.page else self._who(req)
        credentials = {"user_id": user, "project_id": project, "roles": list(roles)}
        req.context.caller = Caller(
            user_id=user,
            project_id=project,
            roles=roles,
            request_id=req.context.request_id,
            is_admin=self._policy.is_admin(credentials),
        )
        req.context.oslo.user_id, req.context.oslo.project_id = user, project
        req.context.may = functools.partial(self._policy.allows, credentials=credentials)
        self._policy.check(route.rule, credentials)

    def _who(self, req: falcon.Request) -> Identity:
        """Authenticate an API request.

        Agents and host monitors use their own tokens; all other callers use `auth_strategy`.
        """
        shown = req.get_header(AGENT_HEADER)
        if shown is None:
            return self._identify(req)
        if tokens.is_token(shown):
            name = tokens.observer_of(shown, self._conf.auth.agent_secret_file)
            return f"{tokens.MONITOR_PREFIX}{name}", tokens.MONITOR_PROJECT, (tokens.MONITOR_ROLE,)
        host = tokens.host_of(shown, self._conf.auth.agent_secret_file)
        return f"{tokens.AGENT_PREFIX}{host}", tokens.AGENT_PROJECT, (tokens.AGENT_ROLE,)


def refuse_other_sites(
    req: falcon.Request, public_url: str = "", *, allow_null: bool = False
) -> None:
    """Refuse writes that a page of another site sends, by Sec-Fetch-Site and Origin.

    A browser adds the user's cookies and remembered passwords to requests from any page.
    `public_url` is the URL that browsers use if a proxy forwards requests under another host name.
    """
    if req.method in ("GET", "HEAD"):
        return
    origin = req.get_header("Origin")
    ours = {req.netloc.lower(), site_of(public_url)} - {""}
    unknown = origin is None or (allow_null and origin == "null")
    other = not unknown and site_of(origin or "") not in ours
    if other or req.get_header("Sec-Fetch-Site") in ("cross-site", "same-site"):
        raise Forbidden("another site's page cannot change anything here")


def site_of(url: str) -> str:
    """Return host and port of a URL; empty if the URL has no host or is invalid."""
    try:
        return urlsplit(url).netloc.lower()
    except ValueError:
        return ""


class NoAuth:
    """Authenticator for `auth_strategy = noauth`: every loopback caller is an admin.

    Nothing tells a local client from a proxy that adds no header, speaks HTTP/1.1 and names a
    loopback address as Host.
    """

    def __init__(self, conf: cfg.ConfigOpts) -> None:
        self._project = conf.auth.noauth_project

    def __call__(self, req: falcon.Request) -> Identity:
        if any(name in _PROXY_HEADERS or name.startswith(_PROXY_PREFIXES) for name in req.env):
            raise Forbidden("auth_strategy noauth does not work behind a proxy")
        if req.env.get("SERVER_PROTOCOL") == "HTTP/1.0":  # nginx with a bare `proxy_pass`
            raise Forbidden("auth_strategy noauth does not work behind a proxy, nor with HTTP/1.0")
        named = [req.env.get("REMOTE_ADDR", ""), *_names(req)]
        if not all(is_loopback(name) for name in named):
            raise Forbidden("auth_strategy noauth answers this machine's loopback only")
        return "admin", self._project, ("admin", "member", "reader", "service")


def _names(req: falcon.Request) -> list[str]:
    """Return the host names from the Host and Origin headers."""
    try:
        origin = req.get_header("Origin")
        return [req.host, *([urlsplit(origin).hostname or origin] if origin is not None else [])]
    except ValueError:
        return [""]


def host_of(req: falcon.Request) -> str:
    """Return the host name of the Host header without the port; empty if the header is invalid."""
    try:
        return str(req.host)
    except ValueError:
        return ""


def is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


#: Project and roles of a user, or the problem of the user's entry.
Account = tuple[str, tuple[str, ...]] | Problem
Users = Mapping[str, Account]


class _UsersReading(Reading):
    """Reader of a users file. An invalid entry locks out its own user only."""

    def users(self, tree: Node | None) -> Users | None:
        root = self.root(tree, "write `alice: {project: …}`", "write a map: `alice: {project: …}`")
        pairs = self.pairs(root, "{alice: …}", "user") if root else ()
        return {key.text: self._user(key, node) for key, node in pairs}

    def _user(self, key: Scalar, node: Node) -> Account:
        before = len(self.problems)
        fields = self.fields(node, ("project", "roles"), needed=("project",))
        project = self.word(fields.get("project"), "project")
        roles: tuple[str, ...] = ("reader",)
        if "roles" in fields:
            roles = tuple(self.word(role, "roles") for role in self.items(fields["roles"], "roles"))
        wrong = self.problems[before:]
        del self.problems[before:]
        return Problem(key.line, f"user {key.text}: {wrong[0].text}") if wrong else (project, roles)


def parse_users(data: bytes, _path: str) -> Users:
    """Parse a users file; raise InvalidDocument without the path, because callers see the error."""
    reading = _UsersReading()
    because = functools.partial(InvalidDocument.because, "the file")
    return reading.whole(data, reading.users, because, quick=True, limits=INVENTORY)


class Basic:
    """Authenticator for `auth_strategy = http_basic`.

    oslo.middleware checks the password against `[auth] htpasswd_file`; `[auth] users_file` holds
    project and roles of each user.
    """

    def __init__(self, conf: cfg.ConfigOpts, clock: Clock) -> None:
        self._conf = conf
        # bcrypt is slow on purpose: the limits keep one address from occupying all API threads.
        threads = conf.api.threads
        most, waiting = max(1, min(_MOST_CHECKING, threads // 4)), threads // 2
        self._verified: AuthCache[bool] = AuthCache(clock, most_waiting=max(1, threads // 4))
        self._guesses = LoginThrottle(clock)
        self._known_logins = KnownLogins()
        self._checking = ConcurrencyLimiter(
            most, waiting, _TURN_S, "too many logins at once: try again"
        )
        self._users: Followed[Users] = Followed(
            conf.auth.users_file, "users", dict, parse_users, limits=INVENTORY, at_once=False
        )

    def __call__(self, req: falcon.Request) -> Identity:
        user, password = self._credentials(req)
        return self.enter(user, password, req.remote_addr)

    def enter(self, user: str, password: bytes, address: str) -> Identity:
        """Check the password and return the user's identity.

        Raises Unauthorized for a wrong password, TooMany after several wrong ones.
        """
        # The cache key contains the state of htpasswd_file: a changed file invalidates all entries
        # at once. The key also contains the address: an entry for one address does not help a
        # client on another address to guess.
        known = f"{_stamp(self._conf.auth.htpasswd_file)}\n{user}\n{address}\n"
        secret = known.encode() + password

        def check() -> bool:
            vouched = self._known_logins.key(user, address)
            suspect = self._guesses.is_suspect(address)
            turn = self._checking.turn(address, vouched, is_suspect=suspect)
            with self._guesses.attempt(user, address), turn:
                self._verify(user, password)
            self._known_logins.add(user, address)
            return True

        self._verified.once(secret, self._conf.auth.auth_cache_s, check)
        return self.known(user)

    def known(self, user: str) -> Identity:
        """Return the identity of an authenticated user; Forbidden if users_file has no entry."""
        return user, *self._project_and_roles(user)

    def proof(self, user: str) -> str:
        """Return a hash of the user's htpasswd line; empty if the file has no line for the user.

        The hash changes with the password.
        """
        mine = next((line for line in self._lines() if line.partition(":")[0] == user), "")
        return hashlib.sha256(mine.encode()).hexdigest() if mine else ""

    def _take_as_long(self, path: str, password: bytes) -> None:
        """Check the password against another user's hash.

        An unknown user then takes as long as a known user: the response time does not reveal
        which user names exist.
        """
        somebody = next((line.partition(":")[0] for line in self._lines()), "")
        if somebody:
            with contextlib.suppress(webob.exc.HTTPException, ValueError):
                basic_auth.authenticate(path, somebody, password)

    def _lines(self) -> list[str]:
        """Return the lines of htpasswd_file; empty if the file cannot be read."""
        try:
            lines = Path(self._conf.auth.htpasswd_file).read_text("utf-8").splitlines()
        except (OSError, ValueError):
            return []
        return [line.strip() for line in lines if line.strip()]

    def _credentials(self, req: falcon.Request) -> tuple[str, bytes]:
        try:
            token = basic_auth.parse_header(req.env)
            user, password = basic_auth.parse_token(token)
            return str(user), bytes(password)
        except (webob.exc.HTTPException, ValueError):
            raise _challenge("log in with user and password") from None

    def _verify(self, user: str, password: bytes) -> None:
        path = self._conf.auth.htpasswd_file
        try:
            if len(password) > _LONGEST_PASSWORD:
                raise webob.exc.HTTPUnauthorized
            if not self.proof(user):
                self._take_as_long(path, password)
            basic_auth.authenticate(path, user, password)
        except webob.exc.HTTPUnauthorized:
            raise _challenge("wrong user or password") from None
        except (webob.exc.HTTPException, ValueError) as error:
            LOG.error("[auth] htpasswd_file %s: %s", path, error)
            raise Unavailable(f"[auth] htpasswd_file cannot be used: {error}") from error

    def _project_and_roles(self, user: str) -> tuple[str, tuple[str, ...]]:
        entry = self._load().get(user)
        if entry is None:
            raise Forbidden(f"user {user} has a password but no project in the users file")
        if isinstance(entry, Problem):
            raise Unavailable(f"[auth] users_file cannot be used: {entry}")
        project, roles = entry
        if max(len(user), len(project)) > LONGEST_NAME:
            raise Forbidden(f"user and project names have at most {LONGEST_NAME} characters")
        return project, roles

    def _load(self) -> Users:
        """Return the content of users_file; parse the file again only when the file changes."""
        try:
            self._users.reload()
        except InvalidInput as error:
            LOG.error("[auth] users_file: %s", error.message)
            cause = error.__cause__  # callers must not learn the path that the message names
            why = cause.strerror if isinstance(cause, OSError) else error.message
            raise Unavailable(f"[auth] users_file cannot be used: {why}") from error
        return self._users.value


def _stamp(path: str) -> str:
    """Return inode, size and mtime of a file as text; empty if the file does not exist."""
    try:
        found = os.stat(path)
    except OSError:
        return ""
    return f"{found.st_ino} {found.st_size} {found.st_mtime_ns}"


def _challenge(message: str) -> Unauthorized:
    return Unauthorized(message, scheme='Basic realm="holdfast"')


#: Defaults for options that [keystone_authtoken] does not set. By itself keystonemiddleware waits
#: without a timeout and tries four times: a Keystone that hangs would occupy every thread.
#: keystonemiddleware caches a token for 300 s by default and refuses a revoked token after that.
#: token_cache_time is lower here, so that both caches (its own and the auth cache) together keep
#: a token for 300 s.
_DEFAULTS = {
    "http_connect_timeout": 5,
    "http_request_max_retries": 1,
    "token_cache_time": 240,
    "service_type": "reservation",  # named by access rules of application credentials
}


class Keystone:
    """Authenticator for `auth_strategy = keystone`: runs keystonemiddleware on routes with a rule.

    keystonemiddleware removes identity headers that clients send and then writes its own; the WSGI
    application behind it (`_take_down`) only copies these headers. `Keystone` raises Holdfast
    errors for refused tokens, so that the response has the error format of the contract. The auth
    cache holds identities that a token alone proves.
    """

    def __init__(self, conf: cfg.ConfigOpts, clock: Clock) -> None:
        from keystonemiddleware import auth_token

        for group, options in auth_token.list_opts():
            conf.register_opts(options, group)
        for name, value in _DEFAULTS.items():
            conf.set_default(name, value, "keystone_authtoken")
        self._conf = conf
        self._clock = clock
        self._known: AuthCache[Identity] = AuthCache(clock)
        self._asking = threading.BoundedSemaphore(max(1, conf.api.threads // 2))
        # With delay_auth_decision an unreachable Keystone would look like a wrong token.
        settings = {
            "oslo_config_config": conf,
            "oslo_config_project": "holdfast",
            "delay_auth_decision": False,
        }
        try:
            self._guard = auth_token.AuthProtocol(_take_down, settings)
        except ClientException as error:
            raise Unavailable(f"[keystone_authtoken] cannot be used: {error}") from error

    def __call__(self, req: falcon.Request) -> Identity:
        token = req.env.get("HTTP_X_AUTH_TOKEN", "")
        if not token or "HTTP_X_SERVICE_TOKEN" in req.env:
            return self._ask(req)[0]
        secret = token.encode(errors="surrogatepass")
        known = self._known.get(secret)
        if known is not None:
            return known
        identity, details = self._ask(req)
        self._known.put(secret, identity, self._lasts_s(details))
        return identity

    def _ask(self, req: falcon.Request) -> tuple[Identity, Mapping[str, Any]]:
        """Validate the token with Keystone; return the identity and the token's details.

        A Keystone that hangs occupies at most half of the API threads. The other threads serve
        callers that the auth cache knows.
        """
        environ = {name: req.env[name] for name in req.env if name not in _IDENTITY}
        try:
            with self.turn():
                answer = webob.Request(environ).send(self._guard)
        except ClientException as error:
            LOG.error("Keystone: %s", error)
            raise Unavailable("Keystone cannot check the token, try again") from error
        if answer.status_code == 401:
            raise Unauthorized(
                "a valid X-Auth-Token is required",
                scheme=answer.headers.get("WWW-Authenticate", "Keystone"),
            )
        if answer.status_code != 200:
            raise Unavailable("Keystone cannot check the token, try again")
        user, project, roles = environ[_FOUND]
        if not user or not project:
            raise Forbidden("a token scoped to a project is required")
        identity = user, project, tuple(filter(None, roles.split(",")))
        return identity, environ["keystone.token_info"]["token"]

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Hold a slot for a request to Keystone; Unavailable if none is free within `_TURN_S`."""
        if not self._asking.acquire(timeout=_TURN_S):
            raise Unavailable("Keystone does not validate the token in time, try again")
        try:
            yield
        finally:
            self._asking.release()

    def _lasts_s(self, token: Mapping[str, Any]) -> float:
        """Return for how many seconds the auth cache may keep the token.

        Returns 0 for tokens with access rules or a binding, because Keystone must see the request
        as well as the token.
        """
        rules = (token.get("application_credential") or {}).get("access_rules")
        if rules is not None or token.get("bind"):
            return 0.0
        lasts = float(self._conf.auth.auth_cache_s)
        cached = self._conf.keystone_authtoken.token_cache_time
        if cached:  # 0: no limit; negative: the operator wants Keystone asked every time
            lasts = min(lasts, max(0.0, cached))
        expires = datetime.fromisoformat(token["expires_at"])
        return min(lasts, (expires - self._clock.now()).total_seconds())


_FOUND = "holdfast.identity"
_IDENTITY = ("HTTP_X_IDENTITY_STATUS", "HTTP_X_USER_ID", "HTTP_X_PROJECT_ID", "HTTP_X_ROLES")


def _take_down(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    """Copy the identity headers of keystonemiddleware into `environ`; 401 unless confirmed."""
    confirmed = environ.get(_IDENTITY[0]) == "Confirmed"
    environ[_FOUND] = tuple(environ.get(name, "") for name in _IDENTITY[1:])
    start_response("200 OK" if confirmed else "401 Unauthorized", [("Content-Length", "0")])
    return []
