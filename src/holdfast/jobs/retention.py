# SPDX-License-Identifier: Apache-2.0
"""Retention: an hourly job deletes old rows and ends alarms of lost agents.

All managers share the single row of this periodic job (`never_ending`); the manager that claims
it runs it.
"""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Protocol

from holdfast.jobs.job import Kind, NotYet, Run, Step
from holdfast.model.operation import Operation
from holdfast.ports.ledger import Tidy

TIDY = "tidy"
EVERY_S = 3600.0
#: Rows deleted in a transaction: few, so that writers do not wait long for neighbouring rows.
PORTION = 500
#: The claim covers at least this time for a portion.
PORTION_S = 10.0
#: How long to keep metrics samples of a host.
KEEP_SAMPLES = timedelta(hours=1)
#: Portions in a run; the job deletes the rest `SOON_S` seconds later.
MOST_PORTIONS = 200
SOON_S = 5.0


class Settings(Protocol):
    """The `[manager]` options, read anew at every use."""

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
        for noun, keep, remove in (
            ("operations", past, self._tidy.operations),
            ("reports", past, self._tidy.reports),
            ("observations", past, self._tidy.observations),
            ("sentences of the audit", timedelta(days=self._settings.keep_audit_days),
             self._tidy.audit),
            ("hosts' samples", KEEP_SAMPLES, self._tidy.samples),
        ):  # fmt: skip
            gone[noun], more = self._remove(run, keep, remove)
            left = left or more
        lost = timedelta(days=self._settings.lost_agent_days)
        ended, more = self._remove(run, lost, self._tidy.alarms)
        left = left or more
        sentence = "removed " + ", ".join(f"{count} {noun}" for noun, count in gone.items())
        sentence += f"; ended {ended} alarms of lost agents" if ended else ""
        raise NotYet(sentence, SOON_S if left else EVERY_S)

    def _remove(
        self, run: Run, keep: timedelta, remove: Callable[[datetime, int], int]
    ) -> tuple[int, bool]:
        """Delete old rows: return the count, and whether more are left. `keep` 0: keep all for
        ever."""
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
        """Do nothing: the runner retries this job for ever."""


def kinds(tidy: Tidy, settings: Settings) -> dict[str, Kind]:
    return {TIDY: TidyUp(tidy, settings)}
