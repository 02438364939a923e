# SPDX-License-Identifier: Apache-2.0
"""The claim loop and the runner: claim due operations, run them on a thread pool, record the
result.

The loop has no fixed tick: it sleeps until the next row of the table is due, and wakes early
when a worker is free or new work is announced. The poll interval bounds the sleep, for rows
that other processes wrote without waking this one.
"""

import contextlib
import logging
import math
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from holdfast.jobs.job import Kind, NotYet, Run, Step
from holdfast.model.errors import ClaimLost, HoldfastError, StaleWrite, Unavailable
from holdfast.model.operation import DONE, ERROR, RETRYING, WAITING, Claim, Operation
from holdfast.ports.ledger import Operations
from holdfast.runtime.clock import Clock
from holdfast.runtime.threads import Worker

# The runner runs claimed operations on a bounded pool of threads and records how each ended.
#
# `kill -9` at any line leaves a claim that expires and steps that are recorded or repeatable;
# another manager continues from there.


LOG = logging.getLogger(__name__)
#: A manager notices after this many seconds, before its next call, that its work was cancelled.
NOTICE_S = 1.0


class Patience(Protocol):
    """Retry and claim options, read anew at every use."""

    retry_first_s: float
    retry_most_s: float
    # Operations claimed beyond the free workers: claims are fast in bulk and slow one by one.
    claim_ahead: int


@dataclass(frozen=True)
class Ended:
    """How an operation ended or was postponed, as the runner reports it to observers."""

    operation: Operation
    status: str
    sentence: str
    lag_s: float


class Runner:
    def __init__(
        self,
        operations: Operations,
        kinds: Mapping[str, Kind],
        clock: Clock,
        *,
        owner: str,
        patience: Patience,
        workers: int = 64,
        claim_s: float = 30.0,
        on_ended: Callable[[Ended], None] = lambda _ended: None,
        pool: Executor | None = None,
    ) -> None:
        self._operations = operations
        self.kinds = kinds
        self._clock = clock
        self.owner = owner
        self._patience = patience
        self.ttl = timedelta(seconds=claim_s)
        self._on_ended = on_ended
        self._stop = threading.Event()
        self._pool = pool or ThreadPoolExecutor(workers, thread_name_prefix="work")
        self._free = workers
        self._waiting: dict[Claim, float] = {}  # claimed at; waits for a worker
        self._lock = threading.Lock()
        self.freed = threading.Event()

    def free(self, *, ahead: bool = False) -> int:
        """Count the operations that the runner accepts now; `ahead`: plus those that may wait
        for a worker."""
        with self._lock:
            more = self._patience.claim_ahead if ahead else 0
            return 0 if self._stop.is_set() else max(0, self._free + more)

    def submit(self, operation: Operation, claimed_at: float) -> None:
        """Run a claimed operation; `claimed_at` is the monotonic time just before the claim."""
        with self._lock:
            self._free -= 1
            self._waiting[Claim(operation.id, self.owner, operation.epoch)] = claimed_at
        self._pool.submit(self._guarded_run, operation)

    def keep_waiting(self) -> None:
        """Renew the claims of operations waiting for a worker.

        Otherwise other managers would claim them, and let them wait for their own workers.
        """
        before = self._clock.monotonic()
        old = before - self.ttl.total_seconds() / 3
        with self._lock:
            due = [claim for claim, since in self._waiting.items() if since < old]
        if not due:
            return
        renewed = self._operations.renew_many(due, self.ttl)
        with self._lock:
            for claim in due:
                if claim.operation_id in renewed and claim in self._waiting:
                    self._waiting[claim] = before

    def stop(self) -> None:
        """Accept no more operations; those under way end their current step and are handed back."""
        self._stop.set()
        self._pool.shutdown(wait=True)

    def _guarded_run(self, operation: Operation) -> None:
        with self._lock:
            claimed_at = self._waiting.pop(Claim(operation.id, self.owner, operation.epoch))
        attempt = _Attempt(self, operation, claimed_at)
        try:
            if attempt.is_ours():
                attempt.go()
        except Exception:  # the top of a thread: nothing above would see it
            LOG.exception("operation %s %s: unforeseen", operation.kind, operation.id)
        finally:
            with self._lock:
                waited_for = self._free == 0  # below 0: claimed operations wait here already
                self._free += 1
            if waited_for or attempt.wakes_loop:
                self.freed.set()


class _Attempt:
    """A manager's work on a claimed operation, until the operation is finished or
    postponed."""

    def __init__(self, runner: Runner, operation: Operation, claimed_at: float) -> None:
        self.r = runner
        self.operation = operation
        self.claim = Claim(operation.id, runner.owner, operation.epoch)
        self.sure_until = claimed_at + runner.ttl.total_seconds()
        self.run = Run(operation, self.claim, self.hold)
        self.done = set(operation.done_steps)
        self.due = False
        self.wakes_loop = False  # wake the loop: a successor can run, or a new time was set
        self.sentence = ""

    def hold(self, seconds: float, notice_s: float = NOTICE_S) -> None:
        """Renew the claim unless `seconds` or more are left and the last renewal is recent.

        A renewal also notices that the operation was cancelled: the delete of a lease waits.
        """
        before = self.r._clock.monotonic()
        age = before - (self.sure_until - self.r.ttl.total_seconds())
        if before + seconds <= self.sure_until and age < notice_s:
            return
        self.r._operations.renew(self.claim, self.r.ttl)
        self.sure_until = before + self.r.ttl.total_seconds()

    def is_ours(self) -> bool:
        """Whether the claim outlived the wait for a worker; if yes, keep it for half its
        lifetime."""
        half = self.r.ttl.total_seconds() / 2
        try:
            self.hold(half, math.inf)  # no write for each operation of a burst
        except ClaimLost:
            LOG.info("%s waited too long for a worker: left to others", self.operation.key)
            self._release()
            return False
        except Unavailable:
            return True  # the attempt itself waits for the database
        return True

    def go(self) -> None:
        kind = self.r.kinds[self.operation.kind]
        while True:
            try:
                self._steps(kind)
                return
            except ClaimLost as lost:
                LOG.warning("%s", lost)
                self._release()
                return
            except Unavailable as away:
                # The database is unreachable: keep the worker, and continue at the same step
                # when it is back. Its last answer may be lost, and with it our claim: renew the
                # claim before the next action.
                LOG.warning("%s: %s", self.operation.key, away.message)
                self.sure_until = -math.inf
                self.run.memo.clear()
                if self.r._clock.wait(self.r._stop, 0.5):
                    return

    def _steps(self, kind: Kind) -> None:
        try:
            for position, step in enumerate(kind.steps()):
                if step.name in self.done or (step.pre_due and self._is_due()):
                    continue
                if self._must_wait(step):
                    return
                self.sentence = step.run(self.run)
                self._step_done(position, step)
            self._finish(DONE, self.sentence)
        except (ClaimLost, Unavailable):
            raise
        except Exception as error:
            self._stumbled(kind, error)

    def _is_due(self) -> bool:
        self.due = self.due or self.operation.due_at <= self.r._operations.now()
        return self.due

    def _must_wait(self, step: Step) -> bool:
        """Hand the operation back before this step: not due yet, or this manager stops."""
        if self.r._stop.is_set():
            self._put_off(WAITING, self.r._operations.now(), f"handed over before {step.name}")
            return True
        if step.pre_due or self._is_due():
            return False
        self._put_off(WAITING, self.operation.due_at, "prepared, waits for its time")
        return True

    def _step_done(self, position: int, step: Step) -> None:
        if not step.recorded:
            return
        before = self.r._clock.monotonic()
        self.r._operations.step_done(self.claim, position, step.name, self.sentence, self.r.ttl)
        self.sure_until = before + self.r.ttl.total_seconds()
        self.done.add(step.name)

    def _stumbled(self, kind: Kind, error: Exception) -> None:
        """Schedule a retry while a retry can help; otherwise give up."""
        try:
            when = self._next_try(kind, error)
            until = kind.give_up_at(self.operation)
            if when is None or (until is not None and when >= until):
                self._give_up(kind, _why(error))
                return
            if not isinstance(error, NotYet):
                LOG.warning("%s: %s; again at %s", self.operation.key, _why(error), when)
            failures = 0 if isinstance(error, NotYet) else 1
            self._put_off(RETRYING, when, _why(error), failures)
        except (ClaimLost, Unavailable):
            raise
        except Exception as second:  # recording the failure failed as well: retry that later
            sentence = f"{_why(error)}; then: {_why(second)}"
            LOG.warning("%s: %s", self.operation.key, sentence)
            self._put_off(RETRYING, self._in(self._pause()), sentence, failures=1)

    def _next_try(self, kind: Kind, error: Exception) -> datetime | None:
        """Return when to try again after this error; None when a retry cannot help."""
        if isinstance(error, NotYet):
            return self._in(error.seconds)
        if not isinstance(error, HoldfastError):
            LOG.error("operation %s: a defect of ours", self.operation.key, exc_info=error)
        passing = isinstance(error, StaleWrite) or getattr(error, "retryable", False)
        if not passing and not kind.retry_forever:
            return None
        when = self._in(self._pause())
        # A failure of a step that runs before the due time must not make the operation late.
        return when if self._is_due() else min(when, self.operation.due_at)

    def _give_up(self, kind: Kind, why: str) -> None:
        key = self.operation.key
        if kind.failed(self.run, why):
            LOG.warning("%s: this try failed, another one follows: %s", key, why)
        else:
            LOG.error("%s failed for good: %s", key, why)
        self._finish(ERROR, why)

    def _release(self) -> None:
        """Let waiting work of the subject begin: this attempt was cancelled and makes no calls."""
        if self.r._clock.monotonic() >= self.sure_until:
            return  # expired: the claim in the row may be another manager's
        with contextlib.suppress(Unavailable, StaleWrite):  # then it begins at the claim's end
            self.r._operations.release(self.claim)
            self.wakes_loop = True

    def _in(self, seconds: float) -> datetime:
        return self.r._operations.now() + timedelta(seconds=seconds)

    def _pause(self) -> float:
        patience = self.r._patience
        grown = patience.retry_first_s * 2.0 ** min(self.operation.attempts, 16)
        return min(grown, patience.retry_most_s)

    def _put_off(self, status: str, when: datetime, sentence: str, failures: int = 0) -> None:
        due_at = self.operation.due_at
        self.r._operations.put_off(self.claim, status, when, sentence, failures, due_at=due_at)
        self.wakes_loop = True
        self._report(status, sentence)

    def _finish(self, status: str, sentence: str) -> None:
        self.wakes_loop = self.r._operations.finish(self.claim, status, sentence)
        self._report(status, sentence)

    def _report(self, status: str, sentence: str) -> None:
        since = max(self.operation.due_at, self.operation.created_at or self.operation.due_at)
        lag = (self.r._clock.now() - since).total_seconds()
        level = logging.INFO if status in (DONE, ERROR) else logging.DEBUG
        LOG.log(level, "%s %s: %s (%.2f s after due)", self.operation.key, status, sentence, lag)
        try:
            self.r._on_ended(Ended(self.operation, status, sentence, lag))
        except Exception:  # the operation has ended, and no listener makes it fail
            LOG.exception("%s: a listener failed", self.operation.key)


def _why(error: Exception) -> str:
    if isinstance(error, NotYet):
        return error.sentence
    return error.message if isinstance(error, HoldfastError) else repr(error)


#: Operations in the first claim, and the most in a claim. While more are due, each claim
#: doubles. So managers share a burst, and thousands of operations cost few queries.
FIRST, MOST = 100, 800
#: A clock that goes back by more than this was ahead; seconds until the rows are mended again.
WENT_BACK_S, MEND_AGAIN_S = 30.0, 60.0
#: Pause between two cycles: operations that become due or are handed back meanwhile are claimed
#: together.
BREATH_S = 0.02


class Pace(Protocol):
    poll_interval_s: float


class Loop:
    def __init__(self, operations: Operations, runner: Runner, clock: Clock, pace: Pace) -> None:
        self._operations = operations
        self._runner = runner
        self._clock = clock
        self._pace = pace
        self._offset = math.inf  # of the database's clock from the monotonic clock
        self._mends: list[float] = []  # monotonic times
        self._worker = Worker(
            "looking for due work",
            clock,
            self._turn,
            retry_s=min(1.0, pace.poll_interval_s),
            stop_s=None,
            wake_event=runner.freed,  # a worker is free, or a predecessor has finished
        )

    def start(self) -> None:
        self._worker.start()

    def wake(self) -> None:
        """Start a cycle now, because new work exists."""
        self._worker.wake()

    def stop(self) -> None:
        self._worker.stop()
        self._runner.stop()

    def age_s(self) -> float:
        """Return the seconds since the last cycle."""
        return self._worker.age_s()

    def cycle(self) -> float:
        """Claim all due operations; return the seconds until the next cycle."""
        looked_at, before = self._operations.now(), self._clock.monotonic()
        self._mend_future(looked_at.timestamp() - before, before)
        self._runner.keep_waiting()
        self._claim_due()
        # Operations due before `looked_at` are claimed, or wait for an earlier one of their
        # subject.
        following = self._operations.next_due(looked_at)
        if following is None or not self._runner.free():
            return self._pace.poll_interval_s
        left = (following - looked_at).total_seconds() - (self._clock.monotonic() - before)
        return min(max(left, 0.0), self._pace.poll_interval_s)

    def _mend_future(self, offset: float, at: float) -> None:
        """Run work that a clock ahead of time put off: at the start, and when the clock goes back.

        Work of managers that notice later is mended once more, MEND_AGAIN_S later.
        """
        if offset < self._offset - WENT_BACK_S:
            self._mends = [at, at + MEND_AGAIN_S]
        self._offset = offset
        if self._mends and self._mends[0] <= at:
            mended = self._operations.mend_future(self._runner.ttl)
            if mended:
                LOG.warning("the clock was ahead: %s operations are due again", mended)
            self._mends = [later for later in self._mends if later > at]

    def _claim_due(self) -> None:
        """Claim the due operations, and start none before all are claimed.

        Thousands of running operations would leave no time to claim thousands more.
        """
        taken: list[tuple[Operation, float]] = []
        batch, room = FIRST, self._runner.free()
        try:
            while (wanted := min(batch, room - len(taken))) > 0:
                before = self._clock.monotonic()
                some = self._operations.claim_due(
                    self._runner.owner, wanted, self._runner.ttl, self._runner.kinds
                )
                taken += [(operation, before) for operation in some]
                if len(some) < wanted:
                    break
                batch, room = min(batch * 2, MOST), self._runner.free(ahead=True)
        finally:
            for operation, claimed_at in taken:
                self._runner.submit(operation, claimed_at)

    def _turn(self) -> float:
        try:
            pause = self.cycle()
            ended = self._clock.monotonic()
        finally:
            # real time, also with a test clock: it spares the processor
            self._worker.stopping.wait(BREATH_S)
        return pause - (self._clock.monotonic() - ended)
