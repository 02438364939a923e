# SPDX-License-Identifier: Apache-2.0
"""The probe of a cluster with fewer than three servers: who answers on loopback addresses, and what
is believed then. On real Consul: tests/hostmonitor/test_few_servers.py."""

from __future__ import annotations

import contextlib
import doctest
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.drivers import consul
from holdfast.drivers import consul as probes
from holdfast.drivers.consul import ConsulMembership, Endpoint, probe
from holdfast.hostmonitor.matrix import DOWN
from holdfast.model.errors import DriverError
from holdfast.runtime.clock import SystemClock
from tests.consul import liar as lies
from tests.consul.liar import MEMBERS, NODE, STATE, Liar, answer

#: The agent that is asked is k1, the only server, at 127.0.0.1; h1, h2 … are at .2, .3 …
ALIVE, FAILED, LEFT = 1, 4, 3


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """The liar gets no processor before others, so its answers have time to come."""
    monkeypatch.setattr(consul, "SHORT_S", 60.0)
    monkeypatch.setattr(consul, "SPARE_S", 60.0)


@pytest.fixture
def liar() -> Iterator[Liar]:
    with lies.liar() as made:
        made.answers[NODE] = answer([lies.check("k1")])
        yield made


@contextlib.contextmanager
def listening(*places: int) -> Iterator[int]:
    """On one port of these loopback addresses."""
    with contextlib.ExitStack() as opened:
        first = opened.enter_context(socket.create_server((f"127.0.0.{places[0]}", 0), backlog=64))
        port: int = first.getsockname()[1]
        for place in places[1:]:
            opened.enter_context(socket.create_server((f"127.0.0.{place}", port), backlog=64))
        yield port


def told(liar: Liar, port: int, members: dict[str, int], **more: Any) -> ConsulMembership:
    """A cluster of one server and these computes, with the status of each."""
    rows = [lies.member("k1", role="consul") | {"Addr": "127.0.0.1", "Port": port}]
    for place, (name, status) in enumerate(members.items(), start=2):
        rows.append(lies.member(name, status) | {"Addr": f"127.0.0.{place}", "Port": port} | more)
    liar.answers[MEMBERS] = answer(rows)
    states = {ALIVE: "passing", FAILED: "critical"}
    known = [lies.check(name, states[is_]) for name, is_ in members.items() if is_ in states]
    liar.answers[STATE] = answer([lies.check("k1"), *known])
    return ConsulMembership("storage", Endpoint(liar.url), SystemClock())


def test_what_the_documentation_shows_is_so() -> None:
    assert doctest.testmod(probes).failed == 0


def test_a_lost_and_silent_member_counts_as_lost_while_half_answer(liar: Liar) -> None:
    with listening(3) as port:
        proof = told(liar, port, {"h1": FAILED, "h2": ALIVE}).prove()
    assert proof.unanswered == {"h1"}
    assert proof.probe == "1 of 2 other members answer on their gossip port"
    assert "the cluster has 1 server" in proof.warning


def test_a_member_that_answers_is_not_lost_whatever_gossip_says(liar: Liar) -> None:
    """So it is when a server that was cut off has its cable back."""
    with listening(2, 3) as port:
        proof = told(liar, port, {"h1": FAILED, "h2": FAILED, "h3": FAILED}).prove()
    assert proof.unanswered == {"h3"}


def test_fewer_than_half_are_no_proof_at_all(liar: Liar) -> None:
    with listening(2) as port:
        asked = told(liar, port, {"h1": ALIVE, "h2": FAILED, "h3": FAILED})
        with pytest.raises(DriverError, match="has 1 server, and 1 of 3 other members answer"):
            asked.prove()


def test_a_member_which_left_counts_for_nothing(liar: Liar) -> None:
    with listening(3) as port:
        proof = told(liar, port, {"h1": FAILED, "h2": ALIVE, "h3": LEFT, "h4": LEFT}).prove()
    assert proof.unanswered == {"h1"}


def test_an_agent_at_our_own_address_is_no_other_machine(liar: Liar) -> None:
    with listening(1) as port:
        asked = told(liar, port, {"h1": FAILED, "h2": ALIVE}, Addr="127.0.0.1")
        with pytest.raises(DriverError, match="0 of 2 other members answer"):
            asked.prove()


@pytest.mark.parametrize("more", [{"Addr": "cmp-1"}, {"Port": 0}, {"Addr": None}, {"Port": "x"}])
def test_a_member_without_an_address_cannot_answer(liar: Liar, more: dict[str, Any]) -> None:
    with listening(2) as port:
        asked = told(liar, port, {"h1": FAILED, "h2": ALIVE}, **more)
        with pytest.raises(DriverError, match="0 of 2 other members answer"):
            asked.prove()


def test_no_probe_is_sent_while_no_member_is_lost(liar: Liar) -> None:
    with listening(9) as port:
        proof = told(liar, port, {"h1": ALIVE, "h2": ALIVE}).prove()  # neither of them listens
    assert (proof.unanswered, proof.probe) == (frozenset(), "")


def test_a_member_called_lost_only_by_the_leader_is_probed_too(liar: Liar) -> None:
    """Our own gossip lags behind; a host that it does not know at all is never believed lost."""
    with listening(3) as port:
        asked = told(liar, port, {"h1": ALIVE, "h2": ALIVE})
        liar.answers[STATE] = answer(
            [lies.check("h1", "critical"), lies.check("h2"), lies.check("h9", "critical")]
        )
        assert asked.poll(None, 0).states["h1"] == DOWN
        assert asked.prove().unanswered == {"h1"}


def test_an_agent_of_another_machine_proves_nothing(liar: Liar) -> None:
    with listening(3) as port:
        asked = told(liar, port, {"h1": FAILED, "h2": ALIVE})
        rows = [lies.member("k1", role="consul") | {"Addr": "192.0.2.1", "Port": port}]
        rows += [lies.member("h1", FAILED) | {"Addr": "127.0.0.2", "Port": port}]
        liar.answers[MEMBERS] = answer(rows)
        with pytest.raises(DriverError, match=r"from its address 192\.0\.2\.1: .*this machine"):
            asked.prove()


def test_more_members_than_are_asked_at_once_are_asked_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And one that was not asked, for lack of time, is neither answering nor silent."""
    monkeypatch.setattr(probes, "MOST_AT_ONCE", 2)
    with listening(2, 3, 4) as port:
        asked = {f"h{place}": (f"127.0.0.{place}", port) for place in (2, 3, 4, 5)}
        found = probe(asked, "127.0.0.1", 4, lambda: 60.0)
        assert (found.answered, found.silent) == ({"h2", "h3", "h4"}, {"h5"})
        assert len(probe(asked, "127.0.0.1", 1, lambda: 60.0).answered) >= 1
        late = probe(asked, "127.0.0.1", 4, lambda: -1.0)
        assert (late.answered | late.silent) == {"h2", "h3"}
