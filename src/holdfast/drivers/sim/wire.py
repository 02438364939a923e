# SPDX-License-Identifier: Apache-2.0
"""The entry of all port calls into the simulated cloud: counts, faults, transaction, effect.

A port method is `with self._wire.call("pools.create", name) as world:` and its SQL.
"""

import random
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from holdfast.drivers.sim import world as sim_world
from holdfast.drivers.sim.file import File, failed
from holdfast.drivers.sim.world import Settings, World, acting
from holdfast.model.errors import HoldfastError
from holdfast.runtime.clock import Clock

# Fault decision for a call: a pure function of settings, timeout and four random numbers.


@dataclass(frozen=True)
class Dice:
    """Four random numbers in [0, 1).

    Each call draws all four, so a seed replays with any settings.
    """

    failure: float
    loss: float
    coin: float
    jitter: float


@dataclass(frozen=True)
class FaultDecision:
    """The faults of a call."""

    wait_s: float = 0.0  # before the effect
    refusal: str = ""  # raised after that wait, in place of the effect
    wait_after: bool = False  # until the call's timeout, once the effect is done
    loss: str = ""  # raised in place of the reply


FINE = FaultDecision()
PEACE = Settings()


def decide_fault(settings: Settings, call: str, timeout_s: float, dice: Dice) -> FaultDecision:
    """Decide the fault of a call. First match wins: down, too slow, failed, reply lost, fine."""
    if settings == PEACE or not settings.applies_to(call):
        return FINE
    if settings.down:
        return FaultDecision(refusal=f"{call}: the cloud is down")
    swing = settings.latency_jitter * (2 * dice.jitter - 1)
    wait_s = settings.latency_s * (1 + swing) + settings.hang_s
    if wait_s >= timeout_s:
        slow = f"{call}: no answer within {timeout_s:g} s"
        if dice.coin < 0.5:
            return FaultDecision(wait_after=True, loss=slow)
        return FaultDecision(wait_s=timeout_s, refusal=slow)
    if dice.failure < settings.failure_rate:
        return FaultDecision(wait_s=wait_s, refusal=f"{call}: failed, nothing was changed")
    if dice.loss < settings.lost_reply_rate:
        return FaultDecision(wait_s=wait_s, loss=f"{call}: no reply")
    return FaultDecision(wait_s=wait_s) if wait_s else FINE


class Wire:
    """Runs port calls on the file, with the faults of the settings."""

    def __init__(self, file: File, clock: Clock, timeout_s: float, seed: int | None) -> None:
        self._file = file
        self._clock = clock
        self._timeout_s = timeout_s
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._never = threading.Event()

    def call(self, name: str, subject: str = "") -> AbstractContextManager[World]:
        """Run a call from request to reply.

        If the block changed anything, an effect is recorded in the same transaction. Any reply can
        be lost, so a lost refusal looks like a lost success.
        """
        return self._call(name, subject)

    def read(self, name: str) -> AbstractContextManager[World]:
        """Run a reading call, which waits for no other call."""
        return self._call(name, read_only=True)

    @contextmanager
    def _call(self, name: str, subject: str = "", *, read_only: bool = False) -> Iterator[World]:
        deadline = self._clock.monotonic() + self._timeout_s
        self._file.count(name)
        with self._world(subject, self._timeout_s, read_only) as world:
            decision = self._decide_fault(world, name)
            if decision is FINE:  # most calls: in a single transaction
                with acting(world, name):
                    yield world
        if decision is FINE:
            return
        self._sleep(min(decision.wait_s, self._left(deadline)))
        if decision.refusal:
            raise failed(decision.refusal, retryable=True)
        try:
            with (
                self._world(subject, self._left(deadline), read_only) as world,
                acting(world, name),
            ):
                yield world
        except HoldfastError as error:
            if decision.loss:
                self._lose(decision, deadline, error)
            raise
        if decision.loss:
            self._lose(decision, deadline, None)

    def time_out(self, name: str) -> None:
        """Wait for the timeout and raise DriverError.

        The call took effect, but waits for the answer of a dead host.
        """
        self._sleep(self._timeout_s)
        raise failed(f"{name}: no answer within {self._timeout_s:g} s", retryable=True)

    @contextmanager
    def _world(self, subject: str, patience_s: float, read_only: bool) -> Iterator[World]:
        """Open a world; a reader also writes if actions are due or call counts must be written."""
        if read_only and not self._file.must_write():
            with self._file.reading(patience_s) as db:
                world = World(db, self._clock.now().timestamp(), subject, read_only=True)
                if not sim_world.is_behind(db, world.now):
                    yield world
                    return
        with self._file.transaction(patience_s) as db:
            yield World(db, self._clock.now().timestamp(), subject)

    def _decide_fault(self, world: World, name: str) -> FaultDecision:
        """Draw the random numbers of the call and decide by the file's present settings."""
        with self._lock:
            dice = Dice(*(self._random.random() for _ in range(4)))
        return decide_fault(world.settings, name, self._timeout_s, dice)

    def _lose(self, decision: FaultDecision, deadline: float, reply: HoldfastError | None) -> None:
        if decision.wait_after:
            self._sleep(self._left(deadline))
        raise failed(decision.loss, retryable=True) from reply

    def _sleep(self, seconds: float) -> None:
        if seconds > 0:
            self._clock.wait(self._never, seconds)

    def _left(self, deadline: float) -> float:
        return max(0.0, deadline - self._clock.monotonic())
