# SPDX-License-Identifier: Apache-2.0
"""HTTP requests on urllib3, with a deadline for the whole exchange.

    client = HttpClient(tls=Tls(ca_file="/etc/ssl/site.pem"))
    response = client.request("GET", "https://api.example/thing", Deadline(5.0))

The deadline covers name resolution, connection, TLS handshake, request and the last byte of the
response. The timeout of an HTTP library limits each single read, so a server that sends a byte now
and then would keep a request for ever. Here every socket operation gets only the remaining time.

A client reads at most `most_bytes` of a response, follows no redirect, keeps connections for
further requests, and any thread may `abort` the requests under way. An instance of HttpError says
why a response is missing and whether the server may have received the request.

Libraries that bring their own session (requests) get the same deadline: their pool manager takes
POOL_CLASSES, and `limited(deadline)` surrounds the request.
"""

import contextlib
import http.client
import ipaddress
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast
from urllib.parse import unquote

import urllib3
from urllib3 import exceptions
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.util import Url, make_headers, parse_url
from urllib3.util.ssl_ import create_urllib3_context, resolve_cert_reqs

from holdfast.runtime.clock import Clock, SystemClock
from holdfast.runtime.threads import BoundedCall

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
#: Returns why a connection to the address is refused; None if the address is allowed.
AddressCheck = Callable[[IpAddress], str | None]
#: Maximum size of a response in bytes, unless the caller says otherwise.
LARGEST: Final = 32 * 2**20
#: Name resolutions that may hang at once; further ones fail without a query.
_resolver = BoundedCall("resolver", 64)


class HttpError(Exception):
    """No complete response; `sent` says whether the server may have received the request."""

    def __init__(self, message: str, *, sent: bool = False) -> None:
        super().__init__(message)
        self.sent = sent


class HttpTimeout(HttpError):
    """The deadline passed before the end of the response."""


class TlsFailed(HttpError):
    """The TLS handshake failed, for example because of an untrusted certificate."""


class InvalidUrl(HttpError):
    """The URL is not an absolute http or https URL."""


class AddressRefused(HttpError):
    """The name of the host resolves to a refused address; nothing was sent."""


class Aborted(HttpError):
    """Another thread ended the request with `HttpClient.abort`."""


class Deadline:
    """A point in time, `seconds` from now."""

    def __init__(self, seconds: float, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._until = self._clock.monotonic() + seconds

    def left(self) -> float:
        """Return the remaining seconds; 0 or less after the deadline."""
        return self._until - self._clock.monotonic()


class _Exchange:
    """A request under way: its deadline, and the socket that `abort` shuts."""

    def __init__(
        self, deadline: Deadline, unix_path: str = "", check: AddressCheck | None = None
    ) -> None:
        self.deadline = deadline
        self.unix_path = unix_path
        self.check = check
        self.sent = False
        self.aborted = False
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None

    def arm(self, sock: socket.socket, attempts: int = 1) -> None:
        """Limit the socket's next operation to the remaining time, shared by `attempts`."""
        left = self.deadline.left()
        if left <= 0:
            raise TimeoutError("no time left")
        with self._lock:
            if self.aborted:
                raise ConnectionAbortedError("aborted")
            self._socket = sock
        sock.settimeout(left / attempts)

    def abort(self) -> None:
        with self._lock:
            self.aborted = True
            if self._socket is not None:
                # The method of SSLSocket would drop the TLS state, which another thread uses.
                with contextlib.suppress(OSError):  # the connection has ended by itself
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def end(self) -> None:
        with self._lock:
            self._socket = None


class _Thread(threading.local):
    exchange: _Exchange | None = None


_thread = _Thread()


def _arm(sock: socket.socket, *, sends: bool = False) -> None:
    """Limit the socket's next operation to the remaining time of the thread's exchange."""
    exchange = _thread.exchange
    if exchange is not None:
        exchange.arm(sock)
        exchange.sent = exchange.sent or sends


class _Socket(socket.socket):
    def sendall(self, data: Any, flags: int = 0) -> None:
        _arm(self, sends=True)
        super().sendall(data, flags)

    def recv_into(self, *args: Any, **options: Any) -> int:
        _arm(self)
        return super().recv_into(*args, **options)


class _TlsSocket(ssl.SSLSocket):
    def do_handshake(self, block: bool = False) -> None:
        _arm(self)
        super().do_handshake(block)

    def send(self, data: Any, flags: int = 0) -> int:
        _arm(self, sends=True)
        return super().send(data, flags)

    def recv_into(self, *args: Any, **options: Any) -> int:
        _arm(self)
        return super().recv_into(*args, **options)


class _Connection(HTTPConnection):
    def _new_conn(self) -> socket.socket:
        exchange = _thread.exchange
        if exchange is None:
            return super()._new_conn()
        try:
            return _connect(exchange, self._dns_host, int(self.port or 0))
        except socket.gaierror as error:
            raise exceptions.NameResolutionError(self.host, self, error) from error
        except TimeoutError as error:
            raise exceptions.ConnectTimeoutError(self, f"no connection: {error}") from error
        except OSError as error:
            raise exceptions.NewConnectionError(self, f"no connection: {error}") from error

    def connect(self) -> None:
        try:
            super().connect()
        finally:
            if _thread.exchange is not None:
                _thread.exchange.sent = False  # at most a proxy has got a request to connect


class _TlsConnection(_Connection, HTTPSConnection):
    def connect(self) -> None:
        if self.ssl_context is None:
            self.ssl_context = create_urllib3_context(cert_reqs=resolve_cert_reqs(self.cert_reqs))
            if not (self.ca_certs or self.ca_cert_dir or self.ca_cert_data):
                self.ssl_context.load_default_certs()
        self.ssl_context.sslsocket_class = _TlsSocket
        super().connect()


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _TlsPool(HTTPSConnectionPool):
    ConnectionCls = _TlsConnection


#: For `PoolManager.pool_classes_by_scheme`: connections that obey `limited`.
POOL_CLASSES: Final[Mapping[str, type[HTTPConnectionPool]]] = {"http": _Pool, "https": _TlsPool}


@contextlib.contextmanager
def limited(deadline: Deadline) -> Iterator[None]:
    """Limit the requests of the current thread over POOL_CLASSES in the block."""
    with _current(_Exchange(deadline)):
        yield


@contextlib.contextmanager
def _current(exchange: _Exchange) -> Iterator[None]:
    outer, _thread.exchange = _thread.exchange, exchange
    try:
        yield
    finally:
        _thread.exchange = outer
        exchange.end()


def resolve(
    host: str, port: int, deadline: Deadline, check: AddressCheck | None = None
) -> list[Any]:
    """Resolve the name with getaddrinfo; AddressRefused if `check` refuses any address."""

    def query() -> list[Any]:
        return socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)

    try:
        addresses = (
            query() if _is_address(host) else _resolver.run(max(0.0, deadline.left()), query)
        )
    except UnicodeError as error:
        raise OSError(f"{host} is not the name of a host") from error
    if check is not None:
        for *_rest, where in addresses:
            text = str(where[0])
            why = check(ipaddress.ip_address(text.partition("%")[0]))
            if why is not None:
                raise AddressRefused(f"{host} leads to {text}, which {why}")
    return addresses


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return False
    return True


def _connect(exchange: _Exchange, host: str, port: int) -> socket.socket:
    """Connect to the first address that answers; each attempt gets its share of the time."""
    if exchange.unix_path:
        addresses: list[Any] = [(socket.AF_UNIX, socket.SOCK_STREAM, 0, "", exchange.unix_path)]
    else:
        addresses = resolve(host, port, exchange.deadline, exchange.check)
    failed: OSError = OSError("no address")
    for number, (family, kind, protocol, _name, where) in enumerate(addresses):
        sock = _Socket(family, kind, protocol)
        try:
            if family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            exchange.arm(sock, len(addresses) - number)
            sock.connect(where)
        except OSError as error:
            sock.close()
            failed = error
        else:
            return sock
    raise failed


class Tls:
    """Files of TLS: authorities (a file or a directory), own certificate and key.

    Without `ca_file` the authorities of the system count.
    """

    def __init__(self, ca_file: str = "", cert_file: str = "", key_file: str = "") -> None:
        self.ca_file = ca_file
        self._cert_file = cert_file
        self._key_file = key_file
        self._known: tuple[tuple[int, ...], ssl.SSLContext] | None = None

    def context(self) -> ssl.SSLContext:
        """Return the TLS context, a new one after a file has changed.

        Certificates are short-lived. Raises OSError if a file is unusable.
        """
        files = (self.ca_file, self._cert_file, self._key_file)
        stamp = tuple(os.stat(path).st_mtime_ns for path in files if path)
        if self._known is None or self._known[0] != stamp:
            self._known = (stamp, self._read())
        return self._known[1]

    def _read(self) -> ssl.SSLContext:
        folder = os.path.isdir(self.ca_file)
        context = ssl.create_default_context(
            cafile=None if folder else self.ca_file or None,
            capath=self.ca_file if folder else None,
        )
        if self._cert_file:
            context.load_cert_chain(self._cert_file, self._key_file or None)
        return context


@dataclass(frozen=True)
class Response:
    """A response; the names of `headers` ignore case."""

    status: int
    reason: str
    headers: Mapping[str, str]
    body: bytes


class HttpClient:
    """Sends requests; any number of threads may share a client.

    `unix_path` is a Unix socket to connect to, whatever the URL's host. `check` refuses addresses:
    the client resolves the name once for each connection and connects only to a checked address;
    TLS and the Host header still use the name. `environment` takes proxies (http_proxy,
    https_proxy, all_proxy, no_proxy) and authorities (REQUESTS_CA_BUNDLE, CURL_CA_BUNDLE) from the
    environment. The client reads the files of `tls` again when they change.
    """

    def __init__(
        self,
        *,
        tls: Tls | None = None,
        unix_path: str = "",
        check: AddressCheck | None = None,
        environment: bool = False,
    ) -> None:
        self._tls = tls or Tls()
        if environment and not self._tls.ca_file:
            self._tls.ca_file = (
                os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE") or ""
            )
        self._unix_path = unix_path
        self._check = check
        self._environment = environment
        self._lock = threading.Lock()
        self._managers: dict[str, tuple[Any, urllib3.PoolManager]] = {}  # by scheme
        self._exchanges: set[_Exchange] = set()
        self._aborted = False

    def request(
        self,
        method: str,
        url: str,
        deadline: Deadline,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        most_bytes: int = LARGEST,
        whole: bool = True,
    ) -> Response:
        """Send a request and read the response; raises HttpError.

        A response with more than `most_bytes` is an error if `whole`; otherwise the client drops
        the rest. With 0 the client does not wait for the body.
        """
        exchange = _Exchange(deadline, self._unix_path, self._check)
        with self._lock:
            if self._aborted:
                raise Aborted("aborted")
            self._exchanges.add(exchange)
        try:
            with _current(exchange):
                answer = self._send(method, url, deadline, body, headers)
                return _read(answer, most_bytes, whole)
        except (exceptions.HTTPError, http.client.HTTPException, OSError, ValueError) as error:
            raise _failure(exchange, error) from error
        finally:
            with self._lock:
                self._exchanges.discard(exchange)

    def _send(
        self,
        method: str,
        url: str,
        deadline: Deadline,
        body: bytes | None,
        headers: Mapping[str, str] | None,
    ) -> urllib3.BaseHTTPResponse:
        parts = parse_url(url)
        if parts.scheme not in POOL_CLASSES or not parts.host:
            raise exceptions.LocationValueError(f"{url} is not an absolute http or https URL")
        manager = self._manager(parts)
        left = deadline.left()
        if left <= 0:
            raise TimeoutError("no time left")
        return manager.urlopen(
            method,
            url,
            body=body,
            headers=dict(headers or {}),
            timeout=left,
            redirect=False,
            retries=False,
            preload_content=False,
        )

    def _manager(self, url: Url) -> urllib3.PoolManager:
        """Return the connections; new ones after a change of TLS files or proxy."""
        scheme = str(url.scheme)
        proxy = _proxy(url) if self._environment else ""
        context = self._tls.context() if scheme == "https" else None
        with self._lock:
            cached = self._managers.get(scheme)
            if cached is not None and cached[0] == (proxy, context):
                return cached[1]
            options: dict[str, Any] = {"maxsize": 10, "block": False, "ssl_context": context}
            made = _through(proxy, options) if proxy else urllib3.PoolManager(**options)
            made.pool_classes_by_scheme = dict(POOL_CLASSES)
            self._managers[scheme] = ((proxy, context), made)
        if cached is not None:
            cached[1].clear()
        return made

    def abort(self) -> None:
        """End all requests under way, which raise Aborted, and refuse further ones."""
        with self._lock:
            self._aborted = True
            exchanges = list(self._exchanges)
        for exchange in exchanges:
            exchange.abort()

    def close(self) -> None:
        """Close idle connections."""
        with self._lock:
            managers = [manager for _stamp, manager in self._managers.values()]
        for manager in managers:
            manager.clear()


def _read(answer: urllib3.BaseHTTPResponse, most_bytes: int, whole: bool) -> Response:
    try:
        announced = cast(urllib3.HTTPResponse, answer).length_remaining or 0
        body = b""
        if not (whole and announced > most_bytes):
            body = answer.read(most_bytes + 1, decode_content=True) if most_bytes else b""
        if whole and max(announced, len(body)) > most_bytes:
            size = f"{most_bytes >> 20} MB" if most_bytes >= 2**20 else f"{most_bytes} bytes"
            raise exceptions.HTTPError(f"more than {size}")
    except BaseException:
        answer.close()
        raise
    if most_bytes and len(body) <= most_bytes:
        answer.release_conn()
    else:
        answer.close()
    return Response(answer.status, answer.reason or "", answer.headers, body[:most_bytes])


def _failure(exchange: _Exchange, error: Exception) -> HttpError:
    """Translate an error of urllib3, the operating system or the TLS library."""
    cause, sent = _innermost(error), exchange.sent
    text = str(cause) or type(cause).__name__
    if exchange.aborted:
        return Aborted("aborted", sent=sent)
    if isinstance(cause, TimeoutError) or exchange.deadline.left() <= 0:
        return HttpTimeout("no whole answer in time", sent=sent)
    if isinstance(error, exceptions.LocationValueError):
        return InvalidUrl(text)
    if isinstance(cause, ssl.SSLError) and not sent:
        return TlsFailed(text)
    return HttpError(text, sent=sent)


def _innermost(error: BaseException) -> BaseException:
    """Return the first error, without the errors that urllib3 puts around it."""
    while True:
        nested = next((arg for arg in error.args if isinstance(arg, Exception)), error.__cause__)
        if nested is None:
            return error
        error = nested


def _proxy(url: Url) -> str:
    """Return the URL of the environment's proxy for this URL; "" if there is none."""
    if not any(name.lower().endswith("_proxy") for name in os.environ):
        return ""
    from urllib.request import getproxies, proxy_bypass

    proxies, host = getproxies(), str(url.host)
    if proxy_bypass(host, proxies) or _excepted(host, proxies.get("no", "")):
        return ""
    proxy = proxies.get(str(url.scheme)) or proxies.get("all") or ""
    return proxy if "://" in proxy or not proxy else f"http://{proxy}"


def _excepted(host: str, no_proxy: str) -> bool:
    """Return whether the host is an address in a network (10.0.0.0/8) of `no_proxy`."""
    if not _is_address(host):
        return False
    address = ipaddress.ip_address(host.strip("[]").partition("%")[0])
    for text in no_proxy.split(","):
        with contextlib.suppress(ValueError):  # a name
            if address in ipaddress.ip_network(text.strip(), strict=False):
                return True
    return False


def _through(proxy: str, options: Mapping[str, Any]) -> urllib3.ProxyManager:
    auth = parse_url(proxy).auth
    headers = make_headers(proxy_basic_auth=unquote(auth)) if auth else None
    return urllib3.ProxyManager(proxy, proxy_headers=headers, **options)
