# SPDX-License-Identifier: Apache-2.0
"""One network, watched: what is believed of it, and when nothing is."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping

import pytest

from holdfast.hostmonitor.matrix import DOWN, UNKNOWN, UP
from holdfast.hostmonitor.monitor import NetworkWatch
from holdfast.model.errors import DriverError
from holdfast.ports.membership import Members, Proof
from holdfast.runtime.clock import SystemClock
from tests.processes import eventually


class Cluster:
    """Answers as it is told. What waits for news gets what is put into `news`."""

    network = "storage"

    def __init__(self) -> None:
        self.states: Mapping[str, str] = {"cmp-1": UP}
        self.gossip: Mapping[str, str] = {"cmp-1": UP}
        self.version = 1
        self.blind = ""
        self.news: queue.Queue[Members] = queue.Queue()
        self.proofs = self.failed = 0
        self.unanswered: frozenset[str] | None = None
        self.warning = ""
        self.gate = threading.Lock()
        self.closed = threading.Event()

    def tell(self, states: Mapping[str, str], gossip: Mapping[str, str] | None = None) -> None:
        self.states, self.gossip = states, states if gossip is None else gossip
        self.version += 1
        self.news.put(Members(states, self.version, "leader"))

    def poll(self, after: int | None, wait_s: float) -> Members:
        self._believe()
        if after is None or not wait_s or after != self.version:
            return Members(self.states, self.version, "leader")
        while not self.closed.is_set():
            try:
                found = self.news.get(timeout=0.02)
            except queue.Empty:
                self._believe()
                continue
            return found
        raise DriverError("membership", "closed", retryable=False)

    def prove(self) -> Proof:
        with self.gate:
            self._believe()
            self.proofs += 1
            probe = ("", "") if self.unanswered is None else ("1 of 2 answer", self.warning)
            return Proof("leader", "ctl-1", 3, 3, self.gossip, self.unanswered, *probe)

    def close(self) -> None:
        self.closed.set()

    def _believe(self) -> None:
        if self.blind:
            self.failed += 1
            raise DriverError("membership", self.blind, retryable=True)


class Settings:
    proof_interval_s, proof_fresh_s = 0.1, 0.5


class Patient:
    """Of a watch that is believed although the machine is busy."""

    proof_interval_s, proof_fresh_s = 0.1, 600.0


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.fixture
def watch(cluster: Cluster) -> Iterator[NetworkWatch]:
    yield from watching(cluster, Settings())


@pytest.fixture
def patient(cluster: Cluster) -> Iterator[NetworkWatch]:
    yield from watching(cluster, Patient())


def watching(cluster: Cluster, settings: Settings | Patient) -> Iterator[NetworkWatch]:
    found = NetworkWatch(cluster, settings, SystemClock(), lambda: None)
    found.start()
    yield found
    found.stop()


def until(so: Callable[[], bool]) -> None:
    eventually(so, every=0.005)


def never(so: Callable[[], bool], for_s: float = 0.4) -> None:
    end = time.monotonic() + for_s
    while time.monotonic() < end:
        assert not so()
        time.sleep(0.005)


def test_news_are_believed_once_gossip_agrees_and_a_proof_followed(
    cluster: Cluster, patient: NetworkWatch
) -> None:
    watch = patient
    until(lambda: watch.sight().health("cmp-1") == UP)
    cluster.tell({"cmp-1": DOWN}, gossip={"cmp-1": UP})
    until(lambda: watch.sight().health("cmp-1") == UNKNOWN)
    before = cluster.proofs
    until(lambda: cluster.proofs - before >= 5)  # gossip is asked again and again meanwhile
    assert watch.sight().health("cmp-1") != DOWN
    cluster.gossip = {"cmp-1": DOWN}
    until(lambda: watch.sight().health("cmp-1") == DOWN)


def test_without_a_recent_proof_of_sight_the_watch_reports_unknown_and_the_reason(
    cluster: Cluster, watch: NetworkWatch
) -> None:
    until(lambda: watch.sight().health("cmp-1") == UP)
    cluster.blind = "no leader"
    until(lambda: "no leader" in watch.sight().why)
    assert watch.sight().health("cmp-1") == UNKNOWN
    assert watch.state()["sighted"] is False
    cluster.states = cluster.gossip = {"cmp-1": DOWN}
    cluster.blind = ""
    until(lambda: watch.sight().health("cmp-1") == DOWN)  # what changed meanwhile is seen


def test_a_single_failed_proof_does_not_blind_the_monitor(
    cluster: Cluster, patient: NetworkWatch
) -> None:
    until(lambda: patient.sight().health("cmp-1") == UP)
    failed = cluster.failed
    cluster.blind = "a packet was lost"
    until(lambda: cluster.failed > failed)
    cluster.blind = ""
    never(lambda: patient.sight().health("cmp-1") != UP)


def test_after_a_pause_of_the_process_earlier_polls_do_not_count(
    cluster: Cluster, patient: NetworkWatch
) -> None:
    watch = patient
    until(lambda: watch.sight().health("cmp-1") == UP)
    cluster.states = cluster.gossip = {"cmp-1": UP, "cmp-2": UP}
    with cluster.gate:  # no proof is given meanwhile
        watch.slept()
        assert "stopped" in watch.sight().why
    # An answer to the old question, which says what is not so any more.
    cluster.news.put(Members({"cmp-1": DOWN}, 99, "leader"))
    until(lambda: watch.sight().health("cmp-2") == UP)
    never(lambda: watch.sight().health("cmp-1") != UP)


def test_with_probes_only_hosts_without_an_answer_are_lost(
    cluster: Cluster, patient: NetworkWatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where a proof was made after the loss without a probe."""
    watch = patient
    cluster.unanswered, cluster.warning = frozenset(), "the cluster has 1 server"
    cluster.tell({"cmp-1": DOWN, "cmp-2": DOWN})
    before = cluster.proofs
    until(lambda: cluster.proofs - before >= 5)
    assert watch.sight().is_proven
    assert watch.sight().health("cmp-1") == UNKNOWN
    cluster.unanswered = frozenset({"cmp-1"})
    until(lambda: watch.sight().health("cmp-1") == DOWN)
    assert watch.sight().health("cmp-2") == UNKNOWN
    assert watch.state()["warning"] == "the cluster has 1 server"
    assert caplog.text.count("network storage: the cluster has 1 server") == 1
