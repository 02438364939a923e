# SPDX-License-Identifier: Apache-2.0
"""The Consul membership driver: asks the Consul agent on this host about the cluster's members.

    poll:  GET /v1/health/state/any    blocking, consistent: the leader confirmed its majority
           GET /v1/agent/members       which nodes left, which are servers
    prove: GET /v1/health/node/<me>    consistent: the leader, with its majority, hears this node
           GET /v1/agent/members       this agent's own view of all members
           a TCP connection to gossip ports, if the cluster has fewer than 3 servers

When a leader dies silently, a blocking poll waits at it for up to a minute. So when `prove` finds
a new leader, the driver repeats waiting polls there.

A cluster with fewer than 3 servers proves nothing about itself: a single server that is cut off is
leader and majority and takes all others for dead. In such a cluster, while a member is lost, a
proof includes a probe: at least half of the other members must accept a connection on their gossip
port, from the agent's own address. Only then are the lost members probed. A member that answers is
not lost, because gossip that was cut off notices only seconds later that the member is back.
"""

import contextlib
import errno
import ipaddress
import json
import selectors
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from holdfast.conf import hostmonitor
from holdfast.hostmonitor.matrix import DOWN, UP
from holdfast.model.errors import DriverError
from holdfast.ports.membership import LEFT, Members, Proof
from holdfast.runtime.clock import Clock, SystemClock
from holdfast.runtime.http import Deadline, HttpClient, HttpError, Tls

# TCP probes: which members accept a connection, all asked in parallel.
#
#     >>> address("10.0.0.1", 8301), address("cmp-1", 8301)
#     (('10.0.0.1', 8301), None)


Address = tuple[str, int]
#: Maximum number of parallel connections; each is a file descriptor.
MOST_AT_ONCE: Final = 256
#: Linux chooses the source port by destination too, so that thousands of probes do not use up
#: all ports.
_IP_BIND_ADDRESS_NO_PORT: Final = 24


@dataclass(frozen=True)
class Probe:
    """The result of a probe: members that accepted a connection, and members that did not."""

    answered: set[str] = field(default_factory=set)
    silent: set[str] = field(default_factory=set)


def address(host: Any, port: Any) -> Address | None:
    """Parse an IP address and a port of an agent's answer; None if invalid."""
    if not isinstance(host, str) or not isinstance(port, int) or not 0 < port < 65536:
        return None
    try:
        return str(ipaddress.ip_address(host)), port
    except ValueError:
        return None


def probe(
    members: Mapping[str, Address], source: str, enough: int, left: Callable[[], float]
) -> Probe:
    """Connect from the address `source` to all members in parallel, in the given order.

    Ends when `enough` members have answered or no time is left. Raises OSError if nothing can be
    sent from `source`.
    """
    made = Probe()
    names = iter(members)
    with contextlib.ExitStack() as opened, selectors.DefaultSelector() as selector:
        while len(made.answered) < enough:
            _begin(members, names, source, made, selector, opened)
            if not selector.get_map():
                break
            seconds = left()
            # Answers that arrived while this process got no CPU still count.
            for key, _ in selector.select(max(0.0, seconds)):
                sock: Any = key.fileobj
                selector.unregister(sock)
                if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                    made.silent.discard(key.data)
                    made.answered.add(key.data)
                sock.close()  # an orderly close: agents log a reset connection
            if seconds <= 0:
                break
    return made


def _begin(
    members: Mapping[str, Address],
    names: Iterator[str],
    source: str,
    made: Probe,
    selector: selectors.BaseSelector,
    opened: contextlib.ExitStack,
) -> None:
    """Open connections up to MOST_AT_ONCE; a member counts as silent until it answers."""
    while len(selector.get_map()) < MOST_AT_ONCE and (name := next(names, None)) is not None:
        sock = opened.enter_context(_socket(source))
        made.silent.add(name)
        if sock.connect_ex(members[name]) in (0, errno.EINPROGRESS):
            selector.register(sock, selectors.EVENT_WRITE, name)
        else:
            sock.close()


def _socket(source: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in source else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_IP, _IP_BIND_ADDRESS_NO_PORT, 1)
        sock.bind((source, 0))
    except BaseException:
        sock.close()
        raise
    return sock


# HTTP session with the agent: a few requests over one connection, each answered by JSON.
#
# Why not a Consul library: py-consul 1.8 cannot read health with consistent reads, hides the
# headers that say whether there is a leader, limits neither the size of an answer nor the total
# time, cannot interrupt a blocking query, and lets the environment override the token.


#: The host in requests over a Unix socket.
_AGENT = "http://agent"


class Endpoint:
    """The agent's URL, token and TLS files. Raises ValueError for an invalid URL."""

    def __init__(
        self,
        url: str,
        *,
        token_file: str = "",
        ca_file: str = "",
        cert_file: str = "",
        key_file: str = "",
    ) -> None:
        self.url = url
        self._token_file = token_file
        self._tls = Tls(ca_file, cert_file, key_file)
        parts = urlsplit(url)
        self._unix_path = parts.path if parts.scheme == "unix" else ""
        self.base = _AGENT if self._unix_path else f"{parts.scheme}://{parts.netloc}"
        web = parts.scheme in ("http", "https") and parts.hostname and not parts.username
        if not self._unix_path and not web:
            raise ValueError(f"{url!r} is none of http://…, https://…, unix:///path")
        _ = parts.port  # raises ValueError for an invalid port

    def headers(self) -> dict[str, str]:
        """Return the request headers.

        The endpoint reads the token file each time, so a new token needs no restart.
        """
        if not self._token_file:
            return {}
        with open(self._token_file, encoding="ascii") as file:
            token = file.readline(4096).strip()
        if not token.isprintable() or not token:
            raise ValueError(f"{self._token_file} must have a token in its first line")
        return {"X-Consul-Token": token}

    def client(self) -> HttpClient:
        """Return a new client; requests to the agent use neither proxies nor redirects."""
        return HttpClient(tls=self._tls, unix_path=self._unix_path)


@dataclass(frozen=True)
class Answer:
    """The decoded JSON body and the headers, whose names ignore case."""

    body: Any
    headers: Mapping[str, str]


class HttpSession:
    """Requests to the agent that share a deadline.

    Used by one thread; any thread may call `end`. Raises UntrustedAnswer with a sentence.
    """

    def __init__(self, endpoint: Endpoint, clock: Clock, seconds: float) -> None:
        self._endpoint = endpoint
        self._clock = clock
        self._http = endpoint.client()
        self._ended: Exception | None = None
        self.allow(seconds)

    def allow(self, seconds: float) -> None:
        """Set a new deadline, `seconds` from now, for all following requests."""
        self._deadline = Deadline(seconds, self._clock)

    def get(self, path: str, query: Mapping[str, str] | None = None) -> Answer:
        """Send a GET request; return the answer, which has status 200 and a JSON body.

        This method quotes `path`.
        """
        try:
            return self._get(quote(path) + (f"?{urlencode(query)}" if query else ""))
        except (HttpError, OSError, ValueError, RecursionError) as error:
            if self._ended is not None:
                raise self._ended from None
            raise UntrustedAnswer(_why(path, error)) from error

    def _get(self, target: str) -> Answer:
        url = f"{self._endpoint.base}{target}"
        answer = self._http.request("GET", url, self._deadline, headers=self._endpoint.headers())
        if answer.status != 200:
            raise ValueError(f"HTTP {answer.status}: {_shown(answer.body)}")
        return Answer(json.loads(answer.body, parse_constant=_no_constant), answer.headers)

    def end(self, why: Exception) -> None:
        """Interrupt a waiting request, which then raises `why`."""
        self._ended = self._ended or why
        self._http.abort()

    def close(self) -> None:
        self._http.close()


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


class UntrustedAnswer(Exception):
    """The agent gave no answer, or an untrusted answer."""


def _why(path: str, error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError | UnicodeDecodeError | RecursionError):
        return f"{path}: its answer is not JSON"
    return f"{path}: {_shown(str(error).encode()) or type(error).__name__}"


def _shown(body: bytes) -> str:
    """Return text of an outside component, short and on a single line."""
    text = " ".join(body[:200].decode("utf-8", "replace").split())
    return "".join(sign if sign.isprintable() else "?" for sign in text)


PORT: Final = "membership"
#: Seconds for a proof, and for the requests that follow a blocking poll.
SHORT_S: Final = 2.0
#: Seconds that a poll may take longer than its wait; Consul itself adds up to a sixteenth.
SPARE_S: Final = 3.0
#: A server without contact to its leader for longer than this is not trusted.
CONTACT_MS: Final = 1000
#: With fewer servers a majority proves nothing: see the module docstring.
FEWEST_SERVERS: Final = 3
#: Seconds that a member has to accept a connection.
PROBE_S: Final = 0.5
_LONGEST_NAME = 255
_CHECK = "serfHealth"
_ONLY_CHECK = f'CheckID == "{_CHECK}"'
_BY_CHECK = {"passing": UP, "critical": DOWN}
_BY_GOSSIP = {1: UP, 2: LEFT, 3: LEFT, 4: DOWN}


class LeaderMoved(Exception):
    """The leader changed while a poll waited."""


@dataclass(frozen=True)
class Gossip:
    """An agent's view of the cluster: node states, server nodes, and gossip addresses."""

    states: Mapping[str, str]
    servers: frozenset[str]
    addresses: Mapping[str, Address]

    def servers_alive(self) -> int:
        return sum(self.states.get(name) == UP for name in self.servers)

    def servers_here(self) -> int:
        """Return the number of servers, without servers that left for good."""
        return sum(self.states.get(name) != LEFT for name in self.servers)


class ConsulMembership:
    """The membership driver for a Consul cluster; see the module docstring."""

    def __init__(
        self, network: str, endpoint: Endpoint, clock: Clock, *, watch_servers: bool = False
    ) -> None:
        self.network = network
        self._endpoint = endpoint
        self._clock = clock
        self._watch_servers = watch_servers
        self._lock = threading.Lock()
        self._sessions: dict[HttpSession, bool] = {}  # whether the session is a blocking poll
        self._closed = False
        self._leader = ""
        self._me = ""
        self._lost: frozenset[str] = frozenset()  # members down by the leader's last answer

    def poll(self, after: int | None, wait_s: float) -> Members:
        with self._as_driver_errors():
            try:
                return self._poll(after, wait_s)
            except LeaderMoved:
                return self._poll(None, 0.0)

    def _poll(self, after: int | None, wait_s: float) -> Members:
        waits = after is not None and wait_s > 0
        query = {"consistent": "", "filter": _ONLY_CHECK}
        if waits:
            # Consul gives index 0 and wait 0 another meaning.
            query |= {"index": str(max(1, after or 0)), "wait": f"{max(1, int(wait_s * 1000))}ms"}
        with self._session(wait_s * 17 / 16 + SPARE_S, waits=waits) as session:
            answer = session.get("/v1/health/state/any", query)
            session.allow(SHORT_S)
            version = _version(answer)
            checks = _checks(answer)
            gossip = _gossip(session.get("/v1/agent/members"))
            me, leader = self._my_name(session), _leader(session)
        hidden = {me} if self._watch_servers else {me, *gossip.servers}
        states = combine(checks, gossip.states, hidden)
        self._lost = frozenset(name for name, state in states.items() if state == DOWN)
        return Members(states, version, leader)

    def prove(self) -> Proof:
        try:
            with self._as_driver_errors(), self._session(SHORT_S) as session:
                return self._prove(session)
        except DriverError:
            self._me = ""  # the name may have been another agent's
            raise

    def _prove(self, session: HttpSession) -> Proof:
        me = self._my_name(session)
        gossip = _gossip(session.get("/v1/agent/members"))
        health = _checks(session.get(f"/v1/health/node/{me}", {"consistent": ""}))
        leader = _leader(session)  # read last: the answer may have come from a new leader
        if health.get(me) != UP:
            reason = (
                "does not hear us" if me in health else "does not know us, or the token shows no"
            )
            raise UntrustedAnswer(f"the leader {leader} {reason} ({me})")
        alive, servers = gossip.servers_alive(), gossip.servers_here()
        if alive * 2 <= servers:
            raise UntrustedAnswer(f"of {servers} servers {alive} are alive to us ({me})")
        self._led_by(leader)
        if servers >= FEWEST_SERVERS:
            return Proof(leader, me, alive, servers, gossip.states)
        unanswered, result = self._probe(me, gossip)
        return Proof(
            leader, me, alive, servers, gossip.states, unanswered, result, _warning(servers)
        )

    def _probe(self, me: str, gossip: Gossip) -> tuple[frozenset[str], str]:
        """Return the lost members that do not answer, and a sentence about the probe's result.

        Raises UntrustedAnswer if fewer than half of the other members answer. Sends nothing while
        no member is lost.
        """
        states, here = gossip.states, gossip.addresses.get(me)
        others = {name for name, state in states.items() if name != me and state != LEFT}
        lost = {name for name in others if states[name] == DOWN or name in self._lost}
        if not lost:
            return frozenset(), ""
        if here is None:
            raise UntrustedAnswer(f"it does not say its own address ({me})")
        # Skip agents on this machine: they answer however cut off the machine is.
        order = [name for name in sorted(others, key=lost.__contains__) if name in gossip.addresses]
        addresses = {name: gossip.addresses[name] for name in order}
        members = {name: at for name, at in addresses.items() if at[0] != here[0]}
        needed = (len(others) + 1) // 2
        first = self._send_probe(members, here, needed).answered
        result = f"{len(first)} of {len(others)} other members answer on their gossip port"
        if len(first) < needed:
            few = _servers(gossip.servers_here())
            raise UntrustedAnswer(f"the cluster has {few}, and {result}: we may be cut off ({me})")
        again = {name: at for name, at in members.items() if name in lost and name not in first}
        return frozenset(self._send_probe(again, here, len(again)).silent), result

    def _send_probe(self, members: Mapping[str, Address], here: Address, enough: int) -> Probe:
        until = self._clock.monotonic() + PROBE_S
        try:
            return probe(members, here[0], enough, lambda: until - self._clock.monotonic())
        except OSError as error:
            why = f"no probe can be sent from its address {here[0]}: {error.strerror or error}"
            raise UntrustedAnswer(f"{why}; is it the agent of this machine?") from error

    def close(self) -> None:
        with self._lock:
            self._closed = True
            sessions = list(self._sessions)
        for session in sessions:
            session.end(UntrustedAnswer("we are closing"))

    def _led_by(self, leader: str) -> None:
        with self._lock:
            before, self._leader = self._leader, leader
            moved = before not in ("", leader)
            waiting = (
                [session for session, waits in self._sessions.items() if waits] if moved else []
            )
        for session in waiting:
            session.end(LeaderMoved())

    def _my_name(self, session: HttpSession) -> str:
        """Return the agent's node name; cached until an error, because the answer is large."""
        if not self._me:
            body = session.get("/v1/agent/self").body
            member = body.get("Member") if isinstance(body, dict) else None
            if not isinstance(member, dict):
                raise _nonsense("/v1/agent/self")
            self._me = _name(member.get("Name"))
        return self._me

    @contextmanager
    def _session(self, seconds: float, *, waits: bool = False) -> Iterator[HttpSession]:
        session = HttpSession(self._endpoint, self._clock, seconds)
        with self._lock:
            if self._closed:
                raise UntrustedAnswer("we are closing")
            self._sessions[session] = waits
        try:
            yield session
        finally:
            with self._lock:
                self._sessions.pop(session, None)
            session.close()

    @contextmanager
    def _as_driver_errors(self) -> Iterator[None]:
        try:
            yield
        except UntrustedAnswer as error:
            why = f"{self.network}: the agent at {self._endpoint.url}: {error}"
            raise DriverError(PORT, why, retryable=True) from error


def combine(
    checks: Mapping[str, str], gossip: Mapping[str, str], hidden: set[str]
) -> dict[str, str]:
    """Combine the leader's checks with gossip: a node that left is LEFT, not down.

    A node that left is included even though the leader has forgotten it. A node that is up by the
    leader's check stays up.
    """
    left = {name: LEFT for name, state in gossip.items() if state == LEFT}
    up = {name: state for name, state in checks.items() if state == UP}
    states = {**checks, **left, **up}
    return {name: state for name, state in states.items() if name not in hidden}


def _warning(servers: int) -> str:
    return (
        f"the cluster has {_servers(servers)}, and fewer than {FEWEST_SERVERS} prove nothing about"
        " themselves: a loss counts only while half of the other members answer a probe"
    )


def _servers(count: int) -> str:
    return f"{count} server{'s' * (count != 1)}"


def _checks(answer: Answer) -> dict[str, str]:
    """Return the state of each node by the leader.

    Raises UntrustedAnswer if no leader confirmed the answer.
    """
    if answer.headers.get("x-consul-knownleader") != "true":
        raise UntrustedAnswer("it knows no leader")
    silent_ms = _number(answer, "x-consul-lastcontact")
    if silent_ms > CONTACT_MS:
        raise UntrustedAnswer(f"its server has heard nothing of the leader for {silent_ms} ms")
    states: dict[str, str] = {}
    for each in _rows(answer.body, "health"):
        if each.get("CheckID") != _CHECK:
            continue
        name, state = _name(each.get("Node")), _BY_CHECK.get(str(each.get("Status")))
        if state is None:
            raise _nonsense(f"the state of {name}")
        if states.setdefault(name, state) != state:
            raise _nonsense(f"that {name} is both up and down")
    return states


def _gossip(answer: Answer) -> Gossip:
    states: dict[str, str] = {}
    servers: set[str] = set()
    addresses: dict[str, Address] = {}
    for each in _rows(answer.body, "members"):
        name, tags, status = _name(each.get("Name")), each.get("Tags"), each.get("Status")
        if not isinstance(tags, dict) or not isinstance(status, int):
            raise _nonsense(f"member {name}")
        if status in _BY_GOSSIP:
            states[name] = _BY_GOSSIP[status]
        if (at := address(each.get("Addr"), each.get("Port"))) is not None:
            addresses[name] = at
        if tags.get("role") == "consul":
            servers.add(name)
    return Gossip(states, frozenset(servers), addresses)


def _leader(session: HttpSession) -> str:
    leader = session.get("/v1/status/leader").body
    if not isinstance(leader, str) or len(leader) > _LONGEST_NAME:
        raise _nonsense("the leader")
    if not leader:
        raise UntrustedAnswer("the cluster has no leader")
    return leader


def _rows(body: Any, subject: str) -> list[dict[str, Any]]:
    if not isinstance(body, list) or not all(isinstance(each, dict) for each in body):
        raise _nonsense(subject)
    return body


def _name(value: Any) -> str:
    good = isinstance(value, str) and 0 < len(value) <= _LONGEST_NAME and value.isprintable()
    if not good:
        raise _nonsense("the name of a node")
    return str(value)


def _version(answer: Answer) -> int:
    """Return Consul's index.

    An index that went back simply counts as new: the answer is complete.
    """
    return max(1, _number(answer, "x-consul-index"))


def _number(answer: Answer, header: str) -> int:
    text = answer.headers.get(header) or ""
    if not (text.isascii() and text.isdigit() and len(text) <= 20):
        raise _nonsense(header)
    return int(text)


def _nonsense(subject: str) -> UntrustedAnswer:
    return UntrustedAnswer(f"its answer makes no sense ({subject}): is that a Consul agent?")


def connect(conf: Any, network: str) -> ConsulMembership:
    group = hostmonitor.group(network)
    options = conf[group]
    try:
        endpoint = Endpoint(
            options.url,
            token_file=options.token_file,
            ca_file=options.ca_file,
            cert_file=options.cert_file,
            key_file=options.key_file,
        )
    except ValueError as error:
        raise DriverError(PORT, f"[{group}] url: {error}", retryable=False) from error
    return ConsulMembership(network, endpoint, SystemClock(), watch_servers=options.watch_servers)
