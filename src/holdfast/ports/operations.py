# SPDX-License-Identifier: Apache-2.0
"""Durable work as the runner needs it: find, claim, keep, record, finish."""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Protocol

from holdfast.model.operation import Claim, Operation


class Operations(Protocol):
    def now(self) -> datetime:
        """The database's clock: the one that all managers share."""
        ...

    def by_key(self, key: str) -> Operation: ...

    def ensure(self, operation: Operation) -> None:
        """See to it that work of that key is open; what is open already is left alone."""
        ...

    def claim_due(
        self, owner: str, limit: int, ttl: timedelta, kinds: Collection[str]
    ) -> Sequence[Operation]:
        """Take up to `limit` operations of these kinds whose time has come, oldest first."""
        ...

    def next_look(self, after: datetime | None = None) -> datetime | None:
        """When the earliest open operation wants to be looked at, of those later than `after`.

        Without it: later than now.
        """
        ...

    def renew(self, claim: Claim, ttl: timedelta) -> None:
        """Keep the claim for another `ttl`; ClaimLost if it is not ours any more."""
        ...

    def renew_many(self, claims: Sequence[Claim], ttl: timedelta) -> set[str]:
        """The same of several of one owner; the ids of those that are still its own."""
        ...

    def step_done(
        self, claim: Claim, position: int, name: str, sentence: str, ttl: timedelta
    ) -> None:
        """Record a finished step and renew the claim in one go."""
        ...

    def put_off(
        self,
        claim: Claim,
        status: str,
        next_try_at: datetime,
        sentence: str,
        failures: int = 0,
        *,
        due_at: datetime | None = None,
    ) -> None:
        """Give the claim back: look again at `next_try_at`; `failures` adds to the attempts. With
        the `due_at` that was claimed: at once, if it was asked for again since."""
        ...

    def finish(self, claim: Claim, status: str, sentence: str) -> bool:
        """Close the operation as done or error; whether the next of its subject is due already."""
        ...
