# SPDX-License-Identifier: Apache-2.0
"""Watches a network with two threads: poll the cluster members, and prove the own sight.

The first thread waits for the cluster's view of its nodes. The second thread proves that this
monitor sees the network at all. `Sight` combines both results.
"""

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from holdfast.hostmonitor.health import Sight
from holdfast.model.errors import HoldfastError
from holdfast.ports.membership import Members, Membership, Proof
from holdfast.runtime.clock import Clock
from holdfast.runtime.threads import Worker

LOG = logging.getLogger(__name__)

#: Seconds that one poll waits for news.
WAIT_S = 30.0
#: Seconds to wait after a failed poll, doubled up to the second value.
PAUSE_S, LONGEST_PAUSE_S = 0.2, 2.0
#: Seconds between two gossip reads while the leader and the local gossip disagree.
DOUBT_S = 0.05


class Settings(Protocol):
    """The options of [hostmonitor]."""

    proof_interval_s: float
    proof_fresh_s: float


class NetworkWatch:
    """Watch of a network; calls `changed` after every new answer."""

    def __init__(
        self,
        membership: Membership,
        settings: Settings,
        clock: Clock,
        changed: Callable[[], None],
    ) -> None:
        self.network = membership.network
        self._membership = membership
        self._settings = settings
        self._clock = clock
        self._changed = changed
        self._lock = threading.Lock()
        self._members: Members | None = None
        self._seen_at = 0.0  # when the member states last changed
        self._proof: Proof | None = None
        self._proven_at = float("-inf")
        self._error = "it has not been looked at yet"
        self._sighted, self._since = False, clock.now()
        self._nap = 0  # number of process pauses; answers to earlier polls do not count
        self._deaf = True  # the polling thread has no version to continue from
        self._version: int | None = None  # of the last answer that counts
        self._looking = Worker(
            f"look-{self.network}",
            clock,
            self._look,
            retry_s=PAUSE_S,
            longest_retry_s=LONGEST_PAUSE_S,
            failed=self._not_seen,
            stop_s=5.0,
        )
        self._proving = Worker(f"prove-{self.network}", clock, self._prove_or_say_why, stop_s=5.0)

    def start(self) -> None:
        self._looking.start()
        self._proving.start()

    def stop(self) -> None:
        for worker in (self._looking, self._proving):
            worker.stopping.set()
        self._membership.close()
        self._looking.stop()
        self._proving.stop()

    def sight(self) -> Sight:
        """The current knowledge; a proof older than `proof_fresh_s` does not count."""
        with self._lock:
            proof = self._proof
            why = self._why_blind()
            if (not why) != self._sighted:
                self._turn(why)
            return Sight(
                self.network,
                self._members.states if self._members else {},
                proof.gossip if proof else {},
                seen_at=self._seen_at,
                proven_at=self._proven_at,
                leader=proof.leader if proof else "",
                servers=f"{proof.servers_alive} of {proof.servers} servers alive" if proof else "",
                unanswered=proof.unanswered if proof else None,
                probe=proof.probe if proof else "",
                why=why,
            )

    def state(self) -> dict[str, object]:
        """For people: whether the monitor sees the network, since when, or why not."""
        sight = self.sight()
        state = {
            "sighted": not sight.why,
            "leader": sight.leader,
            "since": self._since.isoformat(),
            "why": sight.why,
        }
        warning = self._proof.warning if self._proof else ""
        return {**state, "warning": warning} if warning else state

    def slept(self) -> None:
        """Discard all knowledge after a pause of this process: states may have changed."""
        with self._lock:
            self._nap += 1
            self._proven_at, self._deaf = float("-inf"), True
            self._error = "we were stopped for a while and look again"
        self._proving.wake()

    def _why_blind(self) -> str:
        age = self._clock.monotonic() - self._proven_at
        if age <= self._settings.proof_fresh_s:
            return ""
        return self._error or f"nothing proved for {age:.1f} s that we see it"

    def _turn(self, why: str) -> None:
        self._sighted, self._since = not why, self._clock.now()
        if why:
            LOG.warning("network %s: nothing of it is believed: %s", self.network, why)
        else:
            LOG.info("network %s: it is seen", self.network)

    # the threads

    def _look(self) -> float:
        """Wait for news of the members."""
        nap = self._nap
        members = self._membership.poll(self._version, WAIT_S)
        self._version = members.version if self._saw(members, nap) else None
        self._deaf = self._version is None
        return 0.0

    def _not_seen(self, error: Exception) -> None:
        self._version, self._deaf = None, True
        self._fails(error)

    def _prove_or_say_why(self) -> float:
        try:
            self._prove()
        except HoldfastError as error:
            self._fails(error)
        except Exception as error:  # the next proof comes in time, whatever this one lacks
            LOG.exception("network %s: unforeseen", self.network)
            self._fails(error)
        sight = self.sight()
        if not sight.why and sight.doubts():
            self._clock.wait(self._proving.stopping, DOUBT_S)
            return 0.0
        return self._settings.proof_interval_s

    def _prove(self) -> None:
        nap = self._nap
        if self._deaf:  # poll at once: the other thread may still wait for an answer
            self._saw(self._membership.poll(None, 0.0), nap)
        began = self._clock.monotonic()
        proof = self._membership.prove()
        with self._lock:
            if nap != self._nap or self._members is None:
                return
            warned = self._proof.warning if self._proof else ""
            self._proof, self._proven_at, self._error = proof, began, ""
        if proof.warning and proof.warning != warned:
            LOG.warning("network %s: %s (docs/install/consul.md)", self.network, proof.warning)
        self._changed()

    def _saw(self, members: Members, nap: int) -> bool:
        """Store the members; False if the poll began before a pause of this process."""
        with self._lock:
            if nap != self._nap:
                return False
            if self._members is None or members.states != self._members.states:
                self._seen_at = self._clock.monotonic()
            self._members = members
        self._proving.wake()
        self._changed()
        return True

    def _fails(self, error: Exception) -> None:
        unforeseen = "something unforeseen, see the log"
        with self._lock:
            self._error = error.message if isinstance(error, HoldfastError) else unforeseen
        self._changed()
