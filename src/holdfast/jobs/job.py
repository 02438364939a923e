# SPDX-License-Identifier: Apache-2.0
"""What a kind of durable work is made of: steps that can be repeated, and a word for when it fails.

A step looks before it acts, so that running it twice does what running it once does. It returns the
sentence that tells what it did, or raises NotYet when the world needs more time.
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
    """Not finished and nothing wrong: look again in `seconds`."""

    def __init__(self, sentence: str, seconds: float = 0.5) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.seconds = seconds


@dataclass(frozen=True)
class Run:
    """One attempt at an operation. `hold(seconds)` makes sure the claim lasts that much longer;
    it raises ClaimLost when the work belongs to somebody else by now."""

    operation: Operation
    claim: Claim
    hold: Callable[[float], None]
    memo: dict[str, Any] = field(default_factory=dict)  # what steps of this attempt share


@dataclass(frozen=True)
class Step:
    name: str
    run: Callable[[Run], str]
    recorded: bool = True  # whether it is recorded; False where its effect is itself a row
    pre_due: bool = False  # worth doing before the operation's time, left out once it has come


class Kind(Protocol):
    name: str
    retry_forever: bool  # whether any failure is tried again, not only those that look passing

    def steps(self) -> Sequence[Step]: ...

    def give_up_at(self, operation: Operation) -> datetime | None:
        """When trying again, or waiting any longer, has lost its meaning; None: never."""
        ...

    def failed(self, run: Run, why: str) -> bool | None:
        """Write down that the work failed; the operation itself is closed after. True: another try
        follows by itself. Anything else: nothing tries it again."""
        ...


_NAMES = uuid.UUID("0d5c5a52-7a53-4b39-8f57-3c2b1c1f6f0a")


def never_ending(kind: str, now: datetime) -> Operation:
    """The one row of a chore: work that puts itself off (NotYet) for ever, so that of all managers
    one does it at a time."""
    return Operation(
        id=str(uuid.uuid5(_NAMES, kind)),
        kind=kind,
        subject=kind,
        key=kind,
        due_at=now,
        next_try_at=now,
    )


# A cloud that is only called while the claim outlasts the call.
#
# The epoch stops a late writer at the database; it cannot stop a cloud call already on its way.
# So no
# call starts unless the claim is sure to last until the call has ended, one way or the other.


#: Beyond the call's own limit: the time it takes a thread to be scheduled again.
MARGIN_S = 1.0


def guarded(cloud: Cloud, hold: Callable[[float], None]) -> Cloud:
    """The same cloud; every call of every port makes sure of the claim first."""
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
