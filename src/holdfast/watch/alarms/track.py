# SPDX-License-Identifier: Apache-2.0
"""What is remembered of one rule and one entity, and how a pass changes it.

ok -> pending -> firing -> ok           with `for`; without, ok -> firing
any -> no_data -> as if it were new     what is not known is neither good nor bad
firing -> no_data -> firing             over a gap that is shorter than what is told as one
"""

from dataclasses import dataclass
from datetime import datetime
from math import isnan
from typing import Final

from holdfast.model.alarm_rules import Rule
from holdfast.ports.metrics import Entity
from holdfast.watch.alarms.change import FIRING, NO_DATA, OK, PENDING

_NEAR: Final = 1e-6


@dataclass(slots=True)
class Moment:
    """A pass, by both clocks; `now` is monotonic and decides, `at` is shown."""

    now: float
    at: datetime
    host: str
    version: str


@dataclass(slots=True)
class Track:
    entity: Entity
    state: str = OK
    began: float = 0.0  # since when the condition holds, or nothing is known
    first_at: datetime = datetime.min
    last_at: datetime = datetime.min
    samples: int = 0
    value: float = 0.0
    which: int = 0  # of the conditions of its rule, the one whose number that is
    lapsed: float | None = None  # since when it only keeps firing
    gap: float | None = None  # it fired: since when nothing is known
    reason: str = ""
    # what was told, and how often that went to and fro
    told: str = OK
    told_first_at: datetime = datetime.min
    told_as: str = ""  # the worst severity, while it stands told
    told_now: float = 0.0
    cleared: float | None = None  # when it fired last
    flaps: int = 0

    @property
    def lost(self) -> float:
        """Since when nothing is known, if that is so."""
        return self.began if self.gap is None else self.gap

    def stands(self, rule: Rule, now: float) -> bool:
        """Whether it fires, or would but for a gap that nobody has to know of."""
        if self.state == FIRING:
            return True
        return self.gap is not None and now - self.gap < rule.no_data_for_s - _NEAR

    def step(self, held: bool | None, value: float, rule: Rule, moment: Moment) -> bool:
        """Whether its state is another one now."""
        before, self.last_at = self.state, moment.at
        if not isnan(value):
            self.value = value
        if held:
            self._holds(rule, moment)
        elif before == FIRING and self._keeps(rule, moment):
            self.samples += held is not None
        else:
            self._ends(NO_DATA if held is None else OK, moment)
        return self.state != before

    def _holds(self, rule: Rule, moment: Moment) -> None:
        self.lapsed = None
        if self.stands(rule, moment.now):
            self.state = FIRING
        elif self.state != PENDING:
            self._begin(PENDING, moment)
        self.gap = None
        self.samples += 1
        if self.state == PENDING and moment.now - self.began >= rule.for_s - _NEAR:
            self.state = FIRING
            again = self.cleared is not None and moment.now - self.cleared < rule.damp_cap_s
            self.flaps = self.flaps + 1 if again else 0

    def _keeps(self, rule: Rule, moment: Moment) -> bool:
        """Whether it goes on firing for a while, though nothing says so any more."""
        if self.lapsed is None:
            self.lapsed = moment.now
        return moment.now - self.lapsed < rule.keep_s - _NEAR

    def _ends(self, state: str, moment: Moment) -> None:
        if self.state == state:
            return
        fired, self.lapsed, self.gap = self.state == FIRING, None, None
        if fired:
            self.cleared = moment.now
        if state == NO_DATA and not fired:
            self._begin(NO_DATA, moment)
            return
        self.state = state
        self.gap = moment.now if state == NO_DATA else None  # and since when it fired is kept

    def _begin(self, state: str, moment: Moment) -> None:
        self.state, self.began, self.first_at = state, moment.now, moment.at
        self.samples, self.reason = 0, ""

    def end(self, reason: str, moment: Moment) -> bool:
        """It is over, whatever the numbers are; whether it was something."""
        before = self.state
        self._ends(OK, moment)
        self.reason = reason
        return before != OK

    def idle(self, rule: Rule, now: float) -> bool:
        """Whether it can be forgotten."""
        if self.state != OK or self.told != OK:
            return False
        return self.cleared is None or now - self.cleared >= rule.damp_cap_s
