# SPDX-License-Identifier: Apache-2.0
"""Services of the host that are not there: started again a few times, then told.

    state, step = judge(service, state, why="no such process", now)
    step.restart      # now is the time for it
    step.told         # "failed" once the last restart did not help, "well" when it is back

Pure but for `look`, which does what was decided, each restart on a thread of its own: one that
hangs neither hides what becomes of others, nor is begun a second time. A service that is not there
when we come is as much amiss as one that dies before our eyes; one that the last permitted restart
brings back is well; one that dies again and again is not, though it runs in between. What was tried
is written down before it is tried: whoever dies over a restart does not begin to count anew.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Any, Final

from holdfast.model import services_file
from holdfast.model.errors import HoldfastError
from holdfast.model.service import Service
from holdfast.ports.processes import Processes
from holdfast.watch.followed import Followed

LOG = logging.getLogger(__name__)

FAILED: Final = "failed"
WELL: Final = "well"
#: So many are looked at side by side: one that hangs holds up no other.
AT_ONCE: Final = 8
#: What is restarted quickly is over before the next look.
QUICK_S: Final = 0.5
#: What outlives us of a state.
_KEPT: Final = ("tries", "told", "ran")


@dataclass(frozen=True, slots=True)
class State:
    """What is remembered of one service. Times are monotonic."""

    why: str = ""  # why it does not run
    since: float = 0.0  # of that, or of running
    tries: int = 0
    tried_at: float = float("-inf")  # when the last restart had ended
    told: bool = False
    seen: bool = False  # looked at before
    ran: bool = False  # ever


@dataclass(frozen=True, slots=True)
class Step:
    restart: bool = False
    told: str = ""
    sentence: str = ""


def judge(service: Service, state: State, why: str, now: float) -> tuple[State, Step]:
    """What it is now, and what is to be done."""
    if not state.seen or bool(why) != bool(state.why):
        state = replace(state, since=now, seen=True)
    state = replace(state, why=why, ran=state.ran or not why)
    if why:
        return _away(service, state, now)
    if now - state.since < service.stable_s:
        return state, Step()
    told = WELL if state.told else ""
    said = f"{service.name} runs again, since {now - state.since:.0f} s" if told else ""
    return replace(state, tries=0, told=False), Step(told=told, sentence=said)


def _away(service: Service, state: State, now: float) -> tuple[State, Step]:
    if state.told or (service.if_seen and not state.ran):
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


class ServicesFile(Followed[tuple[Service, ...]]):
    """The operator's list, followed as it changes; without a file none."""

    def __init__(self, path: str | None) -> None:
        super().__init__(path, "services", tuple, services_file.parse)

    @property
    def services(self) -> tuple[Service, ...]:
        return self.value


Keep = Callable[[Mapping[str, Any]], None]


class ProcessWatch:
    """All services of a host: those that are named, and those of the file, whose word counts.
    `keep` writes down what `remembered` says, and is called before anything is restarted."""

    def __init__(
        self,
        processes: Processes,
        services: Iterable[Service],
        file: ServicesFile | None = None,
        keep: Keep | None = None,
    ) -> None:
        self._processes = processes
        self._named = {one.name: one for one in services}
        self._file = file
        self._keep = keep
        self._under_way: dict[str, Future[str]] = {}  # restarts, by name
        self.states: dict[str, State] = {}

    @property
    def services(self) -> Sequence[Service]:
        filed = self._file.services if self._file else ()
        return tuple((self._named | {one.name: one for one in filed}).values())

    def look(self, now: float) -> list[tuple[Service, Step]]:
        """Look at each once, restart what has to be, and return what is to be told."""
        if self._file is not None:
            self._file.follow()
        before = self.remembered()
        services, states = self.services, self.states
        self.states = {one.name: states.get(one.name, State()) for one in services}
        self._end(now)
        told, due = [], []
        for service, why in zip(services, _each(self._processes.runs, services), strict=True):
            if why and service.name in self._under_way:
                continue  # that may help yet
            state, step = judge(service, self.states[service.name], why, now)
            self.states[service.name] = state
            if step.restart:
                LOG.warning("%s", step.sentence)
                due.append(service)
            if step.told:
                told.append((service, step))
        if due and self.remembered() != before:
            self._write()
        for service in due:
            self._under_way[service.name] = _begun(self._processes.restart, service)
        wait(self._under_way.values(), QUICK_S if due else 0)
        self._end(now)
        return told

    def _end(self, now: float) -> None:
        """Of restarts that are over: from now on they have their time to help."""
        for name, restart in [one for one in self._under_way.items() if one[1].done()]:
            del self._under_way[name]
            if name in self.states:
                self.states[name] = replace(self.states[name], tried_at=now)
            if why := restart.exception() or restart.result():
                LOG.error("%s could not be restarted: %s", name, why)

    def untell(self, told: Iterable[tuple[Service, Step]]) -> None:
        """It could not be told after all: the next look says it again."""
        for service, step in told:
            state = self.states[service.name]
            self.states[service.name] = replace(state, told=step.told != FAILED)

    def remembered(self) -> dict[str, Any]:
        """As plain values; of a service that was always well nothing but that it ran."""
        kept = {
            name: {word: getattr(state, word) for word in _KEPT}
            for name, state in self.states.items()
        }
        return {name: one for name, one in kept.items() if any(one.values())}

    def recall(self, said: Any, now: float) -> None:
        """What was remembered before us; patience with a restart begins anew."""
        try:
            self.states = {
                str(name): State(
                    tries=int(one["tries"]),
                    tried_at=now,
                    told=bool(one["told"]),
                    ran=bool(one["ran"]),
                )
                for name, one in (said or {}).items()
            }
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            LOG.warning("what was remembered of services cannot be read (%s): begun anew", error)

    def _write(self) -> None:
        if self._keep is None:
            return
        try:
            self._keep(self.remembered())
        except HoldfastError as error:  # a full disk is no reason to leave a service down
            LOG.error("that a restart is tried cannot be written down: %s", error.message)


def _begun(do: Callable[[Service], str], service: Service) -> Future[str]:
    """On a thread that nobody has to wait for."""
    made: Future[str] = Future()

    def run() -> None:
        try:
            made.set_result(do(service))
        except BaseException as error:  # the top of the thread: who looks gets it
            made.set_exception(error)

    threading.Thread(target=run, name=f"restart-{service.name}", daemon=True).start()
    return made


def _each(do: Callable[[Service], str], services: Sequence[Service]) -> list[str]:
    if len(services) < 2:
        return [do(one) for one in services]
    with ThreadPoolExecutor(min(AT_ONCE, len(services)), thread_name_prefix="service") as hands:
        return list(hands.map(do, services))
