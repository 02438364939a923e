# SPDX-License-Identifier: Apache-2.0
"""Consul: the members of one cluster, asked of the agent on this host.

    look:  GET /v1/health/state/any    blocking, consistent: the leader made sure of its majority
           GET /v1/agent/members       who left, who is a server
    prove: GET /v1/health/node/<me>    consistent: the leader, with its majority, hears us
           GET /v1/agent/members       our own agent's opinion of everybody
           a TCP connection to gossip ports, where the cluster has fewer than 3 servers

A leader that dies silently leaves a question waiting at it for up to a minute; so when `prove`
hears of another leader, looks that wait are asked again there.

A cluster with fewer than 3 servers proves nothing about itself: its one server, cut off, is leader
and majority and takes all others for dead. There, while a member is lost, a proof has a probe: at
least half of the other members accept a connection on their gossip port, from our agent's own
address. Only then are the lost ones asked; one that answers is not lost, for gossip that was cut
off notices only seconds later that it is back.
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from holdfast.conf import networks
from holdfast.drivers.membership.conversation import Answer, Conversation, Door, Unbelievable
from holdfast.drivers.membership.probe import Address, Probe, address, probe
from holdfast.model.errors import DriverError
from holdfast.model.matrix import DOWN, UP
from holdfast.ports.clock import Clock, SystemClock
from holdfast.ports.membership import LEFT, Members, Proof

PORT: Final = "membership"
#: For a proof, and for what follows a look that has waited.
SHORT_S: Final = 2.0
#: What a look may take longer than it waits; Consul itself adds up to a sixteenth.
SPARE_S: Final = 3.0
#: A server that heard so long nothing of its leader is not believed.
CONTACT_MS: Final = 1000
#: With fewer servers a majority is no proof: see above.
FEWEST_SERVERS: Final = 3
#: How long a member has to accept a connection.
PROBE_S: Final = 0.5
_LONGEST_NAME = 255
_CHECK = "serfHealth"
_ONLY_CHECK = f'CheckID == "{_CHECK}"'
_BY_CHECK = {"passing": UP, "critical": DOWN}
_BY_GOSSIP = {1: UP, 2: LEFT, 3: LEFT, 4: DOWN}


class LeaderMoved(Exception):
    """While a look waited."""


@dataclass(frozen=True)
class Gossip:
    """What one agent says: all nodes, which of them are servers of the cluster, and where each
    one's gossip is."""

    states: Mapping[str, str]
    servers: frozenset[str]
    addresses: Mapping[str, Address]

    def servers_alive(self) -> int:
        return sum(self.states.get(name) == UP for name in self.servers)

    def servers_here(self) -> int:
        """Without those that left for good."""
        return sum(self.states.get(name) != LEFT for name in self.servers)


class ConsulMembership:
    def __init__(
        self, network: str, door: Door, clock: Clock, *, watch_servers: bool = False
    ) -> None:
        self.network = network
        self._door = door
        self._clock = clock
        self._watch_servers = watch_servers
        self._lock = threading.Lock()
        self._talks: dict[Conversation, bool] = {}  # and whether it is a look that waits
        self._closed = False
        self._leader = ""
        self._me = ""
        self._lost: frozenset[str] = frozenset()  # by the leader's last answer

    def look(self, after: int | None, wait_s: float) -> Members:
        with self._told():
            try:
                return self._look(after, wait_s)
            except LeaderMoved:
                return self._look(None, 0.0)

    def _look(self, after: int | None, wait_s: float) -> Members:
        waits = after is not None and wait_s > 0
        query = {"consistent": "", "filter": _ONLY_CHECK}
        if waits:
            # index 0 and wait 0 would mean something else to Consul
            query |= {"index": str(max(1, after or 0)), "wait": f"{max(1, int(wait_s * 1000))}ms"}
        with self._talk(wait_s * 17 / 16 + SPARE_S, waits=waits) as talk:
            answer = talk.ask("/v1/health/state/any", query)
            talk.allow(SHORT_S)
            version = _version(answer)
            checks = _checks(answer)
            gossip = _gossip(talk.ask("/v1/agent/members"))
            me, leader = self._my_name(talk), _leader(talk)
        hidden = {me} if self._watch_servers else {me, *gossip.servers}
        states = combine(checks, gossip.states, hidden)
        self._lost = frozenset(name for name, state in states.items() if state == DOWN)
        return Members(states, version, leader)

    def prove(self) -> Proof:
        try:
            with self._told(), self._talk(SHORT_S) as talk:
                return self._prove(talk)
        except DriverError:
            self._me = ""  # perhaps it was another agent's
            raise

    def _prove(self, talk: Conversation) -> Proof:
        me = self._my_name(talk)
        gossip = _gossip(talk.ask("/v1/agent/members"))
        health = _checks(talk.ask(f"/v1/health/node/{me}", {"consistent": ""}))
        leader = _leader(talk)  # after that: the answer may have come from a new one
        if health.get(me) != UP:
            seen = "does not hear us" if me in health else "does not know us, or the token shows no"
            raise Unbelievable(f"the leader {leader} {seen} ({me})")
        alive, servers = gossip.servers_alive(), gossip.servers_here()
        if alive * 2 <= servers:
            raise Unbelievable(f"of {servers} servers {alive} are alive to us ({me})")
        self._led_by(leader)
        if servers >= FEWEST_SERVERS:
            return Proof(leader, me, alive, servers, gossip.states)
        unanswered, said = self._probe(me, gossip)
        return Proof(leader, me, alive, servers, gossip.states, unanswered, said, _warning(servers))

    def _probe(self, me: str, gossip: Gossip) -> tuple[frozenset[str], str]:
        """Who is lost and does not answer, and how it was proven that we see; Unbelievable if it
        is not. Nobody is asked while nobody is lost."""
        states, here = gossip.states, gossip.addresses.get(me)
        others = {name for name, state in states.items() if name != me and state != LEFT}
        lost = {name for name in others if states[name] == DOWN or name in self._lost}
        if not lost:
            return frozenset(), ""
        if here is None:
            raise Unbelievable(f"it does not say its own address ({me})")
        # an agent on our own machine answers however cut off we are
        order = [name for name in sorted(others, key=lost.__contains__) if name in gossip.addresses]
        found = {name: gossip.addresses[name] for name in order}
        asked = {name: at for name, at in found.items() if at[0] != here[0]}
        needed = (len(others) + 1) // 2
        first = self._ask(asked, here, needed).answered
        said = f"{len(first)} of {len(others)} other members answer on their gossip port"
        if len(first) < needed:
            few = _servers(gossip.servers_here())
            raise Unbelievable(f"the cluster has {few}, and {said}: we may be cut off ({me})")
        again = {name: at for name, at in asked.items() if name in lost and name not in first}
        return frozenset(self._ask(again, here, len(again)).silent), said

    def _ask(self, asked: Mapping[str, Address], here: Address, enough: int) -> Probe:
        until = self._clock.monotonic() + PROBE_S
        try:
            return probe(asked, here[0], enough, lambda: until - self._clock.monotonic())
        except OSError as error:
            why = f"no probe can be sent from its address {here[0]}: {error.strerror or error}"
            raise Unbelievable(f"{why}; is it the agent of this machine?") from error

    def close(self) -> None:
        with self._lock:
            self._closed = True
            talks = list(self._talks)
        for talk in talks:
            talk.end(Unbelievable("we are closing"))

    def _led_by(self, leader: str) -> None:
        with self._lock:
            before, self._leader = self._leader, leader
            moved = before not in ("", leader)
            waiting = [talk for talk, waits in self._talks.items() if waits] if moved else []
        for talk in waiting:
            talk.end(LeaderMoved())

    def _my_name(self, talk: Conversation) -> str:
        """Of our agent; kept until something goes wrong, for the answer is large."""
        if not self._me:
            body = talk.ask("/v1/agent/self").body
            member = body.get("Member") if isinstance(body, dict) else None
            if not isinstance(member, dict):
                raise _nonsense("/v1/agent/self")
            self._me = _name(member.get("Name"))
        return self._me

    @contextmanager
    def _talk(self, seconds: float, *, waits: bool = False) -> Iterator[Conversation]:
        talk = Conversation(self._door, self._clock, seconds)
        with self._lock:
            if self._closed:
                raise Unbelievable("we are closing")
            self._talks[talk] = waits
        try:
            yield talk
        finally:
            with self._lock:
                self._talks.pop(talk, None)
            talk.close()

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except Unbelievable as error:
            why = f"{self.network}: the agent at {self._door.url}: {error}"
            raise DriverError(PORT, why, retryable=True) from error


def combine(
    checks: Mapping[str, str], gossip: Mapping[str, str], hidden: set[str]
) -> dict[str, str]:
    """The leader's word, but that a node that left is not down, and is shown though the leader has
    forgotten it."""
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
    """Node by node what the leader says; Unbelievable if no leader stands behind it."""
    if answer.headers.get("x-consul-knownleader") != "true":
        raise Unbelievable("it knows no leader")
    silent_ms = _number(answer, "x-consul-lastcontact")
    if silent_ms > CONTACT_MS:
        raise Unbelievable(f"its server has heard nothing of the leader for {silent_ms} ms")
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


def _leader(talk: Conversation) -> str:
    leader = talk.ask("/v1/status/leader").body
    if not isinstance(leader, str) or len(leader) > _LONGEST_NAME:
        raise _nonsense("the leader")
    if not leader:
        raise Unbelievable("the cluster has no leader")
    return leader


def _rows(body: Any, what: str) -> list[dict[str, Any]]:
    if not isinstance(body, list) or not all(isinstance(each, dict) for each in body):
        raise _nonsense(what)
    return body


def _name(value: Any) -> str:
    good = isinstance(value, str) and 0 < len(value) <= _LONGEST_NAME and value.isprintable()
    if not good:
        raise _nonsense("the name of a node")
    return str(value)


def _version(answer: Answer) -> int:
    """Consul's index. One that went back is simply the new one: all there is came with it."""
    return max(1, _number(answer, "x-consul-index"))


def _number(answer: Answer, header: str) -> int:
    text = answer.headers.get(header) or ""
    if not (text.isascii() and text.isdigit() and len(text) <= 20):
        raise _nonsense(header)
    return int(text)


def _nonsense(what: str) -> Unbelievable:
    return Unbelievable(f"its answer makes no sense ({what}): is that a Consul agent?")


def connect(conf: Any, network: str) -> ConsulMembership:
    group = networks.group(network)
    options = conf[group]
    try:
        door = Door(
            options.url,
            token_file=options.token_file,
            ca_file=options.ca_file,
            cert_file=options.cert_file,
            key_file=options.key_file,
        )
    except ValueError as error:
        raise DriverError(PORT, f"[{group}] url: {error}", retryable=False) from error
    return ConsulMembership(network, door, SystemClock(), watch_servers=options.watch_servers)
