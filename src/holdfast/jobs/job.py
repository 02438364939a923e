# SPDX-License-Identifier: Apache-2.0
"""Durable jobs: the interface of job kinds and steps, and the claim guard for cloud calls.

A step reads the current state before it acts, so running it twice has the effect of running it
once. A step returns a sentence that says what it did, `Skipped` if it had nothing to do, or
raises NotYet when the cloud needs more time.
"""

import functools
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol, cast

from holdfast.model.operation import Claim, Operation
from holdfast.ports.cloud import Cloud


class NotYet(Exception):
    """The job is not finished and nothing failed: the runner tries again after `seconds`."""

    def __init__(self, sentence: str, seconds: float = 0.5) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.seconds = seconds


@dataclass(frozen=True)
class Run:
    """A manager's attempt at an operation.

    `hold(seconds)` ensures that the claim lasts at least `seconds` more. It raises ClaimLost
    when another manager owns the operation.
    """

    operation: Operation
    claim: Claim
    hold: Callable[[float], None]
    memo: dict[str, Any] = field(default_factory=dict)  # state shared by the steps of this attempt


@dataclass(frozen=True)
class Step:
    name: str
    run: Callable[[Run], str]
    recorded: bool = True  # record the step in the database; False where its effect is itself a row
    pre_due: bool = False  # run before the operation is due; skip once it is due


class Kind(Protocol):
    name: str
    retry_forever: bool  # retry after every failure, not only after transient ones

    def steps(self) -> Sequence[Step]: ...

    def give_up_at(self, operation: Operation) -> datetime | None:
        """Return the time after which the runner neither retries nor waits; None: no limit."""
        ...

    def failed(self, run: Run, why: str) -> bool | None:
        """Record the failure; the runner closes the operation afterwards.

        True means that another attempt follows by itself. Any other value means that nothing
        retries it.
        """
        ...


_NAMES = uuid.UUID("0d5c5a52-7a53-4b39-8f57-3c2b1c1f6f0a")


def never_ending(kind: str, now: datetime) -> Operation:
    """Make the single row of a periodic job, which reschedules itself with NotYet.

    Because all managers share the row, one manager at a time runs the job.
    """
    return Operation(
        id=str(uuid.uuid5(_NAMES, kind)),
        kind=kind,
        subject=kind,
        key=kind,
        due_at=now,
        next_try_at=now,
    )


# Cloud calls under a claim.
#
# The epoch stops a late writer at the database, but it cannot stop a cloud call that is already
# on its way. Therefore no call starts unless the claim is sure to last until the call has
# ended, with success or by timeout.


#: Added to the call's timeout: the time until the operating system schedules the thread again.
MARGIN_S = 1.0


def guarded(cloud: Cloud, hold: Callable[[float], None]) -> Cloud:
    """Wrap a cloud: every call of every port first renews the claim to outlast the call."""
    return cast(Cloud, _Guarded(cloud, lambda: hold(cloud.call_timeout_s + MARGIN_S)))


class _Guarded:
    def __init__(self, target: Any, check: Callable[[], None]) -> None:
        self._target = target
        self._check = check

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if isinstance(value, int | float | str):
            return value
        if not callable(value):
            return _Guarded(value, self._check)

        @functools.wraps(value)
        def call(*args: Any, **kwargs: Any) -> Any:
            self._check()
            return value(*args, **kwargs)

        return call
