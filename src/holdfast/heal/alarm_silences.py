# SPDX-License-Identifier: Apache-2.0
"""The end of an alarm's silence: what it kept back of one that still stands is told and done.

A row of work for each alarm, due when its silence ends. It compares how the alarm is with what
people were told of it (`Alarms.speak_up`), so that it can be done twice, by two, or too early.
"""

import logging
from collections.abc import Sequence
from datetime import datetime

from holdfast.heal.desk import Desk
from holdfast.model.alarm import ALARM_SILENCE
from holdfast.model.errors import NotFound
from holdfast.model.operation import Operation
from holdfast.ports.alarms import Alarms
from holdfast.work.kind import NotYet, Run, Step

LOG = logging.getLogger(__name__)


class EndOfSilence:
    name = ALARM_SILENCE
    stubborn = True

    def __init__(self, desk: Desk, alarms: Alarms) -> None:
        self._desk = desk
        self._alarms = alarms

    def steps(self) -> Sequence[Step]:
        return (Step("speak", self.speak, kept=False),)

    def speak(self, run: Run) -> str:
        alarm_id = str(run.operation.payload["alarm"])
        try:
            until = self._alarms.show(alarm_id)["silent_until"]
            now = self._desk.incidents.now()
            if until is not None and until > now:
                raise NotYet(
                    f"it is silent until {until.isoformat()}", (until - now).total_seconds()
                )
            said = self._alarms.speak_up(alarm_id)
        except NotFound:
            return "the alarm is long over: nothing is told"
        LOG.info("alarm %s: %s", alarm_id, said)
        self._desk.ring()
        return said

    def give_up_at(self, operation: Operation) -> datetime | None:
        return None

    def failed(self, run: Run, why: str) -> None:
        """Never: it is tried again."""
