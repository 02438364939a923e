# SPDX-License-Identifier: Apache-2.0
"""Answers that no agent of ours should give: none is believed, none hurts."""

from __future__ import annotations

import json
import random
import socket
import time
from collections.abc import Iterator

import pytest

from holdfast.drivers import consul
from holdfast.drivers.consul import ConsulMembership, Endpoint
from holdfast.hostmonitor.matrix import DOWN, UP
from holdfast.model.errors import DriverError
from holdfast.ports.membership import LEFT
from holdfast.runtime.clock import Clock, SystemClock
from holdfast.runtime.http import LARGEST
from tests.consul import liar as lies
from tests.consul.liar import HEADERS, LEADER, MEMBERS, NODE, SELF, STATE, Liar, Raw, answer
from tests.simclock import SimClock

SHORT_S = consul.SHORT_S


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """The liar gets no processor before others, so its answers have time to come."""
    allow(monkeypatch, 60.0)


def allow(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    for name in ("SHORT_S", "SPARE_S"):
        monkeypatch.setattr(consul, name, seconds)


@pytest.fixture
def liar() -> Iterator[Liar]:
    with lies.liar() as made:
        yield made


def asking(liar: Liar, clock: Clock | None = None) -> ConsulMembership:
    return ConsulMembership("storage", Endpoint(liar.url), clock or SystemClock())


def without(name: str) -> dict[str, str]:
    return {key: value for key, value in HEADERS.items() if key != name}


def endless(line: socket.socket) -> None:
    """A body without an end, as fast as it can."""
    line.sendall(b"HTTP/1.1 200 OK\r\n\r\n[")
    for _ in range(LARGEST // 2**16 + 16):
        line.sendall(b" " * 2**16)


ROW = lies.check("h1")
NONSENSE: dict[str, tuple[str, Raw]] = {
    "huge": (STATE, endless),
    "huge by its own word": (STATE, answer(b"[]", length=10**15)),
    "not JSON": (STATE, answer(b"<html>gateway</html>")),
    "not text": (STATE, answer(b"\xff\xfe\x00")),
    "nothing": (STATE, answer(b"")),
    "half of it": (STATE, answer(b'[{"Node": "h1"', length=500)),
    "a number of many digits": (STATE, answer(b"[" + b"9" * 100_000 + b"]")),
    "very deep": (STATE, answer(b"[" * 100_000)),
    "null": (STATE, answer(None)),
    "an object": (STATE, answer({"Node": "h1"})),
    "a list of texts": (STATE, answer(["h1"])),
    "no name": (STATE, answer([{**ROW, "Node": None}])),
    "a number for a name": (STATE, answer([{**ROW, "Node": 1}])),
    "an endless name": (STATE, answer([{**ROW, "Node": "h" * 300}])),
    "a name of two lines": (STATE, answer([{**ROW, "Node": "h1\nh2"}])),
    "a state nobody knows": (STATE, answer([{**ROW, "Status": "fine"}])),
    "a list for a state": (STATE, answer([{**ROW, "Status": ["critical"]}])),
    "up and down": (STATE, answer([ROW, {**ROW, "Status": "critical"}])),
    "no leader": (STATE, answer([ROW], {**HEADERS, "X-Consul-Knownleader": "false"})),
    "nothing of a leader": (STATE, answer([ROW], without("X-Consul-Knownleader"))),
    "stale": (STATE, answer([ROW], {**HEADERS, "X-Consul-Lastcontact": "60000"})),
    "no age": (STATE, answer([ROW], without("X-Consul-Lastcontact"))),
    "no index": (STATE, answer([ROW], without("X-Consul-Index"))),
    "an index below zero": (STATE, answer([ROW], {**HEADERS, "X-Consul-Index": "-1"})),
    "an index of many digits": (STATE, answer([ROW], {**HEADERS, "X-Consul-Index": "9" * 5000})),
    "an error": (STATE, answer(b"No cluster leader", status="500 Internal Server Error")),
    "elsewhere": (STATE, answer(b"", {"Location": "http://127.0.0.1:1/"}, "302 Found")),
    "no HTTP": (STATE, b"SSH-2.0-OpenSSH_9.2\r\n"),
    "a thousand headers": (STATE, answer([ROW], {f"X-{i}": "x" for i in range(1000)})),
    "members: an object": (MEMBERS, answer({})),
    "members: no tags": (MEMBERS, answer([{**lies.member("h1"), "Tags": None}])),
    "members: a text for a status": (MEMBERS, answer([{**lies.member("h1"), "Status": "4"}])),
    "leader: none": (LEADER, answer("")),
    "leader: a number": (LEADER, answer(5)),
    "leader: endless": (LEADER, answer("1" * 1000)),
    "self: a list": (SELF, answer([])),
    "self: nobody": (SELF, answer({"Member": {}})),
}


@pytest.mark.parametrize("what", NONSENSE)
def test_a_senseless_answer_is_not_trusted(
    liar: Liar, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, lie = NONSENSE[what]
    if what == "half of it":  # the rest is waited for
        allow(monkeypatch, 0.5)
    liar.answers[path] = lie
    with pytest.raises(DriverError, match="membership: storage: the agent at http") as caught:
        asking(liar).poll(None, 0)
    assert caught.value.retryable
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("path", "lie", "says"),
    [
        (NODE, answer([]), "does not know us"),
        (NODE, answer([lies.check("k1", "critical")]), "does not hear us"),
        (NODE, answer([lies.check("k2")]), "does not know us"),
        (NODE, answer([lies.check("k1")], {**HEADERS, "X-Consul-Knownleader": "no"}), "no leader"),
        (LEADER, answer(""), "no leader"),
        (MEMBERS, answer([lies.member("k1", role="consul")] * 1 + [
            lies.member(name, 4, "consul") for name in ("k2", "k3")]), "of 3 servers 1 are alive"),
        (MEMBERS, answer([]), "of 0 servers 0 are alive"),
    ],
)  # fmt: skip
def test_a_monitor_without_proof_of_sight_says_why(
    liar: Liar, path: str, lie: Raw, says: str
) -> None:
    assert asking(liar).prove().servers_alive == 3
    liar.answers[path] = lie
    with pytest.raises(DriverError, match=says):
        asking(liar).prove()


@pytest.mark.parametrize("path", [STATE, MEMBERS])
def test_a_dripping_answer_is_cut_off_in_time(
    liar: Liar, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow(monkeypatch, 0.5)
    whole = liar.answers[path]
    assert isinstance(whole, bytes)
    liar.answers[path] = lies.drip(whole)
    began = time.monotonic()
    with pytest.raises(DriverError, match="no whole answer in time"):
        asking(liar).poll(None, 0)
    assert time.monotonic() - began < 60  # the whole answer takes minutes


def test_a_proof_takes_two_seconds_at_most_however_slow_each_answer_is(
    liar: Liar, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow(monkeypatch, SHORT_S)
    clock = SimClock()
    for path, whole in list(liar.answers.items()):
        assert isinstance(whole, bytes)

        def slow(line: socket.socket, whole: bytes = whole) -> None:
            clock.advance(0.9)
            line.sendall(whole)

        liar.answers[path] = slow
    with pytest.raises(DriverError, match="no whole answer in time"):
        asking(liar, clock).prove()
    assert len(liar.asked) <= 3  # the third comes too late, and nothing is asked after it


def test_an_unreachable_agent_is_a_driver_error() -> None:
    with lies.liar() as gone:
        url = gone.url
    lonely = ConsulMembership("storage", Endpoint(url), SystemClock())
    with pytest.raises(DriverError, match="Connection refused"):
        lonely.prove()


def test_an_index_going_back_is_followed(liar: Liar) -> None:
    asked = asking(liar)
    liar.answers[STATE] = answer([ROW], {**HEADERS, "X-Consul-Index": "5"})
    assert asked.poll(100, 1).version == 5
    assert asked.poll(5, 1).version == 5
    assert [q for q in liar.asked if "index=5&" in q]
    liar.answers[STATE] = answer([ROW], {**HEADERS, "X-Consul-Index": "0"})
    zero = asked.poll(5, 1).version
    liar.asked.clear()
    asked.poll(zero, 1)
    # an index of 0 would not wait: the processor would burn
    assert "index=1&wait=1000ms" in liar.asked[0]


def test_a_poll_without_time_does_not_wait(liar: Liar) -> None:
    asking(liar).poll(7, 0)
    assert "index" not in liar.asked[0]


def test_a_member_which_left_is_not_down_even_if_the_leader_says_down(liar: Liar) -> None:
    nodes = {"gone": 3, "going": 2, "dead": 4, "back": 3, "forgotten": 3, "new": 1}
    liar.answers[MEMBERS] = answer([lies.member(name, how) for name, how in nodes.items()])
    states = {"gone": "critical", "going": "critical", "dead": "critical", "back": "passing"}
    liar.answers[STATE] = answer([lies.check(name, how) for name, how in states.items()])
    assert asking(liar).poll(None, 0).states == {
        **{"gone": LEFT, "going": LEFT, "forgotten": LEFT},
        **{"dead": DOWN, "back": UP},
    }


def test_ten_thousand_nodes_fit(liar: Liar) -> None:
    names = [f"compute-{number:05}.site-1.cloud.example.org" for number in range(10_000)]
    liar.answers[STATE] = answer([lies.check(name) for name in names])
    liar.answers[MEMBERS] = answer([lies.member(name) for name in names])
    began = time.thread_time()
    assert len(asking(liar).poll(None, 0).states) == 10_000
    assert time.thread_time() - began < 10


def test_any_bytes_give_an_error_or_an_answer(liar: Liar) -> None:
    chance = random.Random(7)
    asked = asking(liar)
    whole = {path: lie for path, lie in liar.answers.items() if isinstance(lie, bytes)}
    believed = 0
    for _ in range(400):
        path = chance.choice([STATE, MEMBERS, LEADER])
        liar.answers = {**whole, path: answer(mutated(whole[path], chance))}
        try:
            members = asked.poll(None, 0)
        except DriverError:
            continue
        believed += 1
        assert set(members.states.values()) <= {UP, DOWN, LEFT}
        assert members.leader
    assert 0 < believed < 400  # both were tried


def mutated(whole: bytes, chance: random.Random) -> bytes:
    """Its body with something else in one place."""
    body = json.loads(whole.partition(b"\r\n\r\n")[2])
    strange = chance.choice([None, True, -1, 10**30, 1.5, "", "x" * 1000, [], {}, [[]], "\x00"])
    if not isinstance(body, list) or chance.random() < 0.1:
        return json.dumps(strange).encode()
    row = chance.choice(body)
    row[chance.choice(list(row))] = strange
    text = json.dumps(body).encode()
    if chance.random() < 0.3:
        place = chance.randrange(len(text))
        text = text[:place] + bytes([chance.randrange(256)]) + text[place + 1 :]
    return text
