# SPDX-License-Identifier: Apache-2.0
"""The host monitor: watches all networks, judges hosts on changes, writes reports to the outbox.

The monitor updates its records only after a report is on disk, so it decides again about a
report that could not be written. `MatrixFile` follows the operator's HA matrix file.

`NetworkWatch` watches a network with two threads. The first thread waits for the cluster's view of
its nodes. The second thread proves that this monitor sees the network at all. `Sight` combines both
results.
"""

import functools
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Protocol

from holdfast.agent.outbox import Outbox
from holdfast.hostmonitor import health, matrix
from holdfast.hostmonitor.health import HealthRecords, Moment, Report, Sight
from holdfast.hostmonitor.matrix import Matrix
from holdfast.model.errors import HoldfastError
from holdfast.ports.membership import Members, Membership, Proof
from holdfast.runtime.clock import Clock
from holdfast.runtime.documents import Followed
from holdfast.runtime.threads import Worker

LOG = logging.getLogger(__name__)


class MatrixFile(Followed[Matrix]):
    """The HA matrix in force: the operator's file, reloaded after changes, or the default."""

    def __init__(self, path: str | None, networks: Sequence[str]) -> None:
        names = tuple(networks)
        super().__init__(
            path,
            "ha_matrix",
            functools.partial(matrix.default, names),
            lambda data, source: _parse(data, names, source),
        )

    @property
    def ha_matrix(self) -> Matrix:
        return self.value


def _parse(data: bytes, networks: Sequence[str], source: str) -> Matrix:
    """Read an HA matrix file and log the combinations without a rule."""
    ha_matrix = matrix.parse(data, networks, source)
    if ha_matrix.warning:
        LOG.warning("HA matrix file %s: %s", source, ha_matrix.warning)
    return ha_matrix


#: Seconds that one poll waits for news.
WAIT_S = 30.0
#: Seconds to wait after a failed poll, doubled up to the second value.
PAUSE_S, LONGEST_PAUSE_S = 0.2, 2.0
#: Seconds between two gossip reads while the leader and the local gossip disagree.
DOUBT_S = 0.05


class Settings(Protocol):
    """The options of [hostmonitor]."""

    heartbeat_s: float
    healthy_after_s: float
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
        self._error = "no poll has ended yet"
        self._sighted, self._since = False, clock.now()
        self._nap = 0  # number of process pauses; answers to earlier polls do not count
        self._lost = True  # the polling thread has no version to continue from
        self._version: int | None = None  # of the last answer that counts
        self._polling = Worker(
            f"poll-{self.network}",
            clock,
            self._poll,
            retry_s=PAUSE_S,
            longest_retry_s=LONGEST_PAUSE_S,
            failed=self._not_seen,
            stop_s=5.0,
        )
        self._proving = Worker(f"prove-{self.network}", clock, self._prove_or_say_why, stop_s=5.0)

    def start(self) -> None:
        self._polling.start()
        self._proving.start()

    def stop(self) -> None:
        for worker in (self._polling, self._proving):
            worker.stopping.set()
        self._membership.close()
        self._polling.stop()
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
            self._proven_at, self._lost = float("-inf"), True
            self._error = "the process was stopped for a while and reads again"
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

    def _poll(self) -> float:
        """Wait for news of the members."""
        nap = self._nap
        members = self._membership.poll(self._version, WAIT_S)
        self._version = members.version if self._store(members, nap) else None
        self._lost = self._version is None
        return 0.0

    def _not_seen(self, error: Exception) -> None:
        self._version, self._lost = None, True
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
        if self._lost:  # poll at once: the other thread may still wait for an answer
            self._store(self._membership.poll(None, 0.0), nap)
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

    def _store(self, members: Members, nap: int) -> bool:
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


#: Kind of the reports.
KIND = "host_health"
#: Maximum seconds between two checks for changes by time alone.
TICK_S = 0.5
#: A delay of a turn by more seconds than this means that the process was stopped.
SLEPT_S = 2.0


class HostMonitor:
    """The judging thread of a host monitor."""

    def __init__(
        self,
        observer: str,
        networks: Sequence[Callable[[Callable[[], None]], NetworkWatch]],
        ha_matrix: MatrixFile,
        outbox: Outbox,
        settings: Settings,
        clock: Clock,
        *,
        report_stored: Callable[[], None],
        changed: Callable[[], None],
    ) -> None:
        """Create a watch per network.

        `networks`: factories of watches; each receives the callback for news. `report_stored` is
        called after a report was written to the outbox, `changed` after the view changed.
        """
        self._observer = observer
        self._ha_matrix = ha_matrix
        self._outbox = outbox
        self._settings = settings
        self._clock = clock
        self._report_stored, self._changed = report_stored, changed
        self._worker = Worker("judge", clock, self._judge_now, retry_s=TICK_S, stop_s=10.0)
        self._worker.make_essential()
        watches = [make(self._worker.wake) for make in networks]
        self._watches = {watch.network: watch for watch in watches}
        self._records = HealthRecords()
        self._judged: tuple[object, ...] = ()
        self._rows: list[dict[str, Any]] = []
        self._judged_at = clock.now()  # the time of `_rows`
        self._started_at = clock.now()
        self._alone = False
        self._lock = threading.Lock()
        self._before = clock.monotonic()  # when the thread judged last

    def start(self) -> None:
        for watch in self._watches.values():
            watch.start()
        self._before = self._clock.monotonic()
        self._worker.start()

    def stop(self) -> None:
        self._worker.stop()
        for watch in self._watches.values():
            watch.stop()

    def view(self) -> Mapping[str, Any]:
        """The current view of all hosts, in the format for Holdfast's API."""
        with self._lock:
            rows, at = self._rows, self._judged_at
        waiting, parked = self._outbox.counts()
        return {
            "kind": "host",
            "at": at.isoformat(),
            "started_at": self._started_at.isoformat(),
            "heartbeat_s": self._settings.heartbeat_s,
            "networks": {name: watch.state() for name, watch in self._watches.items()},
            "ha_matrix": self._ha_matrix.ha_matrix.to_plain(),
            "problem": self._ha_matrix.problem[:1000],
            "waiting": waiting,
            "parked": parked,
            "rows": rows,
        }

    # the thread

    def _judge_now(self) -> float:
        """Judge the hosts; return the seconds until the next judgement is due."""
        now = self._clock.monotonic()
        if now - self._before > TICK_S + SLEPT_S:
            self._woke(now - self._before)
        self._before = now
        self.turn(now)
        return self._pause(now)

    def _pause(self, now: float) -> float:
        due = self._records.due
        return TICK_S if due is None else max(0.0, min(TICK_S, due - now))

    def _woke(self, after_s: float) -> None:
        LOG.warning("the process was stopped for %.1f s: everything is polled again", after_s)
        for watch in self._watches.values():
            watch.slept()

    def turn(self, at: float) -> None:
        """Read the sights, judge the hosts, write reports; skip if nothing can have changed."""
        if self._ha_matrix.follow():
            forgotten = {
                host: replace(track, health=(), since=())
                for host, track in self._records.tracks.items()
            }
            self._records = HealthRecords(forgotten, due=at)
        ha_matrix = self._ha_matrix.ha_matrix
        sights = [self._watches[name].sight() for name in ha_matrix.networks]
        gists = tuple(_gist(sight) for sight in sights)
        due = self._records.due
        moment = Moment(at, self._clock.now())
        if gists == self._judged and (due is None or due > at):
            with self._lock:
                self._judged_at = moment.now  # nothing has changed
            return
        records, reports = health.judge(
            self._records, sights, ha_matrix, moment, self._settings.healthy_after_s
        )
        if reports:
            self._outbox.put([self._item(report) for report in reports])
            self._report_stored()
        self._records, self._judged = records, gists
        self._publish(health.view(records, sights), sights, moment.now)

    def _item(self, report: Report) -> tuple[str, str, Mapping[str, Any]]:
        since = report.since.isoformat()
        subject = f"host:{report.host}"
        key = f"{subject}/{report.state}/{since}"
        LOG.warning("%s: %s since %s: %s", subject, report.state, since, report.evidence["rule"])
        return (
            subject,
            key,
            {
                "observer": self._observer,
                "subject": subject,
                "kind": KIND,
                "state": report.state,
                "since": since,
                "observed_at": self._clock.now().isoformat(),
                "key": key,
                "evidence": report.evidence,
            },
        )

    def _publish(self, rows: list[dict[str, Any]], sights: Sequence[Sight], now: datetime) -> None:
        alone = all(sight.why for sight in sights)
        if alone and not self._alone:
            LOG.error(
                "this monitor sees no member of any network: it reports nothing until it does"
            )
        self._alone = alone
        with self._lock:
            changed = rows != self._rows
            self._rows, self._judged_at = rows, now
        if changed:
            self._changed()


def _gist(sight: Sight) -> tuple[object, ...]:
    """The parts of a sight which can change a judgement."""
    return sight.states, sight.gossip, sight.why, sight.is_proven, sight.unanswered
