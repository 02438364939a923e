# SPDX-License-Identifier: Apache-2.0
"""Services of the host that are not there: started again a few times, then told.

    state, step = judge(service, state, why="no such process", now)
    step.restart      # now is the time for it
    step.told         # "failed" once the last restart did not help, "well" when it is back

Pure but for `look`, which does what was decided. A service that is not there when we come is as
much amiss as one that dies before our eyes; one that the last permitted restart brings back is
well; one that dies again and again is not, though it runs in between.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from holdfast.ports.processes import Processes, Service

LOG = logging.getLogger(__name__)

FAILED: Final = "failed"
WELL: Final = "well"


@dataclass(frozen=True, slots=True)
class State:
    """What is remembered of one service. Times are monotonic."""

    why: str = ""  # why it does not run
    since: float = 0.0  # of that, or of running
    tries: int = 0
    tried_at: float = 0.0
    told: bool = False
    seen: bool = False  # looked at before


@dataclass(frozen=True, slots=True)
class Step:
    restart: bool = False
    told: str = ""
    sentence: str = ""


def judge(service: Service, state: State, why: str, now: float) -> tuple[State, Step]:
    """What it is now, and what is to be done."""
    if not state.seen or bool(why) != bool(state.why):
        state = replace(state, since=now, seen=True)
    state = replace(state, why=why)
    if why:
        return _away(service, state, now)
    if now - state.since < service.stable_s:
        return state, Step()
    told = WELL if state.told else ""
    said = f"{service.name} runs again, since {now - state.since:.0f} s" if told else ""
    return replace(state, tries=0, told=False), Step(told=told, sentence=said)


def _away(service: Service, state: State, now: float) -> tuple[State, Step]:
    if state.told:
        return state, Step()
    if state.tries and now - state.tried_at < service.patience_s:
        return state, Step()
    if service.restart and state.tries < service.tries:
        state = replace(state, tries=state.tries + 1, tried_at=now)
        said = f"{service.name} does not run ({state.why}): restart {state.tries}/{service.tries}"
        return state, Step(restart=True, sentence=said)
    tried = f" after {state.tries} restarts" if state.tries else ""
    said = f"{service.name} does not run{tried}: {state.why}"
    return replace(state, told=True), Step(told=FAILED, sentence=said)


class ProcessWatch:
    """All services of a host."""

    def __init__(self, processes: Processes, services: Iterable[Service]) -> None:
        self._processes = processes
        self._services = tuple(services)
        self.states: dict[str, State] = {}

    def look(self, now: float) -> list[tuple[Service, Step]]:
        """Look at each once, restart what has to be, and return what is to be told."""
        told = []
        for service in self._services:
            state = self.states.get(service.name, State())
            self.states[service.name], step = judge(
                service, state, self._processes.runs(service), now
            )
            if step.restart:
                LOG.warning("%s", step.sentence)
                if why := self._processes.restart(service):
                    LOG.error("%s could not be restarted: %s", service.name, why)
            if step.told:
                told.append((service, step))
        return told
