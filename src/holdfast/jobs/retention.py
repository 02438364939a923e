# SPDX-License-Identifier: Apache-2.0
"""Durable work that never ends: once an hour old rows go, so that the tables do not grow for ever,
and alarms end whose agents do not come back to say so.

There is one row of it, armed when a manager starts (`armed`); whichever manager claims it does it.
"""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Protocol

from holdfast.jobs.job import Kind, NotYet, Run, Step
from holdfast.model.operation import Operation
from holdfast.ports.ledger import Tidy

TIDY = "tidy"
EVERY_S = 3600.0
#: So many at a time, so that nobody waits long for the rows beside them.
PORTION = 500
#: What a portion may take at most, for the claim.
PORTION_S = 10.0
#: Numbers of a host that nobody looks at any more.
KEEP_SAMPLES = timedelta(hours=1)
#: In one go; what is left comes soon after.
MOST_PORTIONS = 200
SOON_S = 5.0


class Settings(Protocol):
    """[manager], read anew each time."""

    keep_operations_days: int
    keep_audit_days: int
    lost_agent_days: int


class TidyUp:
    name = TIDY
    retry_forever = True

    def __init__(self, tidy: Tidy, settings: Settings) -> None:
        self._tidy = tidy
        self._settings = settings

    def steps(self) -> Sequence[Step]:
        return (Step("tidy", self.tidy, recorded=False),)

    def tidy(self, run: Run) -> str:
        gone, left = {}, False
        past = timedelta(days=self._settings.keep_operations_days)
        for what, keep, remove in (
            ("operations", past, self._tidy.operations),
            ("reports", past, self._tidy.reports),
            ("observations", past, self._tidy.observations),
            ("sentences of the audit", timedelta(days=self._settings.keep_audit_days),
             self._tidy.audit),
            ("hosts' samples", KEEP_SAMPLES, self._tidy.samples),
        ):  # fmt: skip
            gone[what], more = self._remove(run, keep, remove)
            left = left or more
        lost = timedelta(days=self._settings.lost_agent_days)
        ended, more = self._remove(run, lost, self._tidy.alarms)
        left = left or more
        said = "removed " + ", ".join(f"{count} {what}" for what, count in gone.items())
        said += f"; ended {ended} alarms of lost agents" if ended else ""
        raise NotYet(said, SOON_S if left else EVERY_S)

    def _remove(
        self, run: Run, keep: timedelta, remove: Callable[[datetime, int], int]
    ) -> tuple[int, bool]:
        """How many went, and whether more are left; no time at all: all stay for ever."""
        if not keep:
            return 0, False
        before, removed = self._tidy.now() - keep, 0
        for _ in range(MOST_PORTIONS):
            run.hold(PORTION_S)
            some = remove(before, PORTION)
            removed += some
            if some < PORTION:
                return removed, False
        return removed, True

    def give_up_at(self, operation: Operation) -> datetime | None:
        return None

    def failed(self, run: Run, why: str) -> None:
        """Never: it is tried again."""


def kinds(tidy: Tidy, settings: Settings) -> dict[str, Kind]:
    return {TIDY: TidyUp(tidy, settings)}
