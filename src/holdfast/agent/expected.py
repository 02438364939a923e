# SPDX-License-Identifier: Apache-2.0
"""Compares the guests that the cloud expects on this host with the guests that run here.

    missing      the cloud expects the guest to run, and the hypervisor does not know it
    stopped      the cloud expects the guest to run, and it is off without a shutdown or an order
    unexpected   the guest runs, and the cloud has it off, on another host, or not at all

The comparison needs no hypervisor events. The cloud's answer is always a little old: a guest that
powers itself off stays ACTIVE for a while, and a guest that is deleted, moved or built is between
two states. A difference therefore counts only if several polls in a row show it and the known guest
state does not explain it. The agent turns such a difference into a guest event, which passes
through the filters like any other event.

A removed (undefined) guest counts as missing if the cloud, asked after the removal, expects it to
run and has no task under way. After each removal the agent asks the cloud every REMOVED_EVERY_S
seconds for REMOVED_FOR_S seconds, so that it reports a removal that the cloud did not order within
half a minute.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final, Protocol

from holdfast.agent.guest_state import (
    ARRIVING,
    MET,
    MISSING,
    ORDERLY,
    STOPPED,
    UNEXPECTED,
    GuestWatch,
)
from holdfast.model.observation import BUSY, ELSEWHERE, OFF, RUNS, UNKNOWN, Expected
from holdfast.ports.guests import EXPECTATION, Event, Guest, Guests
from holdfast.ports.reports import MOST_ALSO, ExpectedGuests
from holdfast.runtime.clock import Clock

#: A guest in one of these states has a QEMU process, which may write to its disks.
ALIVE: Final = frozenset({"running", "blocked", "paused", "pmsuspended"})
#: Pause reasons of a guest that is starting or migrating.
_ON_ITS_WAY: Final = frozenset({"migration", "starting_up", "postcopy"})
#: Ends after which a guest does not count as missing, even if it was removed afterwards: it shut
#: itself down, the filters have judged its end, or it can be resumed.
_NOT_MISSED: Final = frozenset({"shutdown", "judged", "saved", "from_snapshot"})
#: After a removal the agent asks the cloud every REMOVED_EVERY_S seconds for REMOVED_FOR_S seconds.
#: REMOVED_EVERY_S is also how long a removed guest must be missing before the agent reports it.
REMOVED_EVERY_S: Final = 6.0
REMOVED_FOR_S: Final = 30.0
#: If at least this many guests are expected and none is found, the reason is "all": the agent is
#: probably connected to the wrong hypervisor.
SEVERAL: Final = 2


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between cloud and host.

    `detail` and `reason` become those of the event; `why` is the cloud's explanation.
    """

    uuid: str
    name: str
    detail: str
    reason: str
    why: str
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class HostComparison:
    """The cloud's expected guests, and the hypervisor's guests as read afterwards.

    `read_at` is the date of the reading. `asked` and `began` are the monotonic times at which the
    agent asked the cloud and began to read the hypervisor.
    """

    expected: tuple[Expected, ...]
    guests: tuple[Guest, ...]
    read_at: datetime
    asked: float
    began: float


def compare(host: str, cloud: ExpectedGuests, guests: Guests, clock: Clock) -> HostComparison:
    """Ask the cloud first and read the hypervisor then, so that the reading is the newer answer.

    The agent asks again, by uuid, for running guests that the cloud did not mention. Raises
    HoldfastError if cloud or hypervisor does not answer: then there is nothing to compare.
    """
    asked = clock.monotonic()
    servers = list(cloud.expected(host).servers)
    began = clock.monotonic()
    running, read_at = guests.read()
    for some in _batches(strangers(servers, running)):
        servers += [server for server in cloud.expected(host, some).servers if server.uuid in some]
    return HostComparison(tuple(servers), tuple(running), read_at, asked, began)


def strangers(expected: Iterable[Expected], guests: Iterable[Guest]) -> list[str]:
    """Return the uuids of running guests that the cloud did not mention."""
    expected_uuids = {server.uuid for server in expected}
    return [guest.uuid for guest in guests if _is_alive(guest) and guest.uuid not in expected_uuids]


def _batches(uuids: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(uuids), MOST_ALSO):
        yield uuids[start : start + MOST_ALSO]


def differences(expected: Sequence[Expected], guests: Sequence[Guest]) -> list[Difference]:
    """Return the differences of a poll, without those explained by the reason of a state."""
    by_uuid = {guest.uuid: guest for guest in guests}
    wanted = [server for server in expected if server.state == RUNS]
    none_there = len(wanted) >= SEVERAL and not any(server.uuid in by_uuid for server in wanted)
    here = (_wanted(server, by_uuid.get(server.uuid), none_there) for server in wanted)
    expected_by_uuid = {server.uuid: server for server in expected}
    there = (_found(guest, expected_by_uuid.get(guest.uuid)) for guest in guests)
    return [difference for difference in itertools.chain(here, there) if difference is not None]


def _wanted(server: Expected, guest: Guest | None, none_there: bool) -> Difference | None:
    if guest is None:
        return Difference(
            server.uuid, server.name, MISSING, "all" if none_there else "", server.why
        )
    if guest.state != "shutoff" or guest.reason in ORDERLY:
        return None
    return Difference(
        guest.uuid, guest.name, STOPPED, guest.reason or "unknown", server.why, guest.metadata
    )


def _found(guest: Guest, server: Expected | None) -> Difference | None:
    if server is None or server.state not in (OFF, ELSEWHERE, UNKNOWN) or not _is_alive(guest):
        return None
    return Difference(guest.uuid, guest.name, UNEXPECTED, server.state, server.why, guest.metadata)


def _is_alive(guest: Guest) -> bool:
    passing = guest.state == "paused" and guest.reason in _ON_ITS_WAY
    return guest.state in ALIVE and not passing


@dataclass(frozen=True, slots=True)
class _Seen:
    """A difference seen in `times` consecutive polls, not necessarily confirmed yet."""

    detail: str
    at: datetime
    began: float
    last: datetime
    times: int = 1
    is_removed: bool = False


class Settings(Protocol):
    """The options of [agent] that this module reads."""

    expected_interval_s: float
    expected_reads: int
    expected_grace_s: float


class Expectations:
    """Confirms differences over several polls; one thread at a time."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._seen: Mapping[str, _Seen] = {}

    def forget(self) -> None:
        """Drop all differences seen before, because a poll failed and the series is broken."""
        self._seen = {}

    def compare(self, comparison: HostComparison, watch: GuestWatch, now: float) -> list[Event]:
        """Return events for confirmed and for resolved differences.

        `watch` must have judged the same reading before.
        """
        current = {
            difference.uuid: difference
            for difference in differences(comparison.expected, comparison.guests)
            if not _explained(difference, comparison, watch)
        }
        self._seen = {
            uuid: replace(
                self._again(current[uuid], comparison, now), is_removed=uuid in watch.dismissed
            )
            for uuid in current
        }
        events = [
            _event(difference, self._seen[uuid].at)
            for uuid, difference in current.items()
            if self._is_sure(self._seen[uuid], now)
            and difference.detail not in _differs(watch, uuid)
        ]
        _tidy(comparison, watch)
        return [*_over(comparison, current, watch), *events]

    def _again(self, difference: Difference, comparison: HostComparison, now: float) -> _Seen:
        old = self._seen.get(difference.uuid)
        if old is None or old.detail != difference.detail:
            return _Seen(difference.detail, comparison.read_at, now, comparison.read_at)
        if old.last == comparison.read_at:  # the same poll again
            return old
        return replace(old, last=comparison.read_at, times=old.times + 1)

    def _is_sure(self, seen: _Seen, now: float) -> bool:
        enough = seen.times >= self._settings.expected_reads
        grace_s = self._settings.expected_grace_s
        return enough and now - seen.began >= (
            min(grace_s, REMOVED_EVERY_S) if seen.is_removed else grace_s
        )


def _explained(difference: Difference, comparison: HostComparison, watch: GuestWatch) -> bool:
    """Whether events or the known guest state explain the difference."""
    track = watch.tracks.get(difference.uuid)
    if difference.detail == MISSING and difference.uuid in watch.dismissed:
        new = watch.removed_at.get(difference.uuid, comparison.asked) > comparison.asked
        return new or watch.dismissed[difference.uuid] in _NOT_MISSED
    if track is None:
        return False
    if track.heard is not None and track.heard > comparison.asked:
        return True  # the event is newer than the cloud's answer
    if difference.detail == UNEXPECTED:
        return track.life == ARRIVING
    return bool(track.explained)


def _differs(watch: GuestWatch, uuid: str) -> set[str]:
    track = watch.tracks.get(uuid)
    return track.differences if track else set()


def _event(difference: Difference, at: datetime) -> Event:
    return Event(
        difference.uuid,
        difference.name,
        EXPECTATION,
        at,
        difference.detail,
        difference.reason,
        metadata=difference.metadata,
    )


def _over(
    comparison: HostComparison, current: Mapping[str, Difference], watch: GuestWatch
) -> Iterator[Event]:
    """Yield an event for each reported difference that is resolved.

    A task under way in the cloud does not resolve a difference: the task may be an attempt to
    repair the guest, and may fail.
    """
    states = {server.uuid: server.state for server in comparison.expected}
    alive = {guest.uuid for guest in comparison.guests if _is_alive(guest)}
    for track in watch.tracks.values():
        for detail in sorted(track.differences):
            still = track.uuid in current and current[track.uuid].detail == detail
            state = states.get(track.uuid, ELSEWHERE)
            if still or state == BUSY:
                continue
            over = state == RUNS or track.uuid not in alive
            if over if detail == UNEXPECTED else state != RUNS:
                yield Event(track.uuid, track.name, EXPECTATION, comparison.read_at, MET, detail)


def _tidy(comparison: HostComparison, watch: GuestWatch) -> None:
    """Forget removed guests that the cloud does not expect any more."""
    missed = {server.uuid for server in comparison.expected if server.state in (RUNS, BUSY)}
    for uuid in [uuid for uuid in watch.dismissed if uuid not in missed]:
        del watch.dismissed[uuid]
        watch.removed_at.pop(uuid, None)


@dataclass(frozen=True)
class Comparison:
    """The result of a poll for the agent's thread; `comparison` is None if the poll failed."""

    by: Expectations
    comparison: HostComparison | None

    def events(self, watch: GuestWatch, now: float) -> list[Event]:
        if self.comparison is None:
            self.by.forget()
            return []
        return self.by.compare(self.comparison, watch, now)


class SecondOpinion:
    """Polls cloud and hypervisor; a `PeriodicTask` calls `round`, the agent gets the result."""

    def __init__(
        self,
        host: str,
        cloud: ExpectedGuests,
        guests: Guests,
        settings: Settings,
        clock: Clock,
        looked: Callable[[Comparison], None],
    ) -> None:
        self._host = host
        self._cloud = cloud
        self._guests = guests
        self._clock = clock
        self._looked = looked
        self._settings = settings
        self._expectations = Expectations(settings)
        self._hurries_until = float("-inf")

    def hurry(self) -> bool:
        """Poll faster for REMOVED_FOR_S seconds after a removal; True if polling was slow before.

        The caller then wakes the periodic task.
        """
        now, hurries_until = self._clock.monotonic(), self._hurries_until
        self._hurries_until = now + REMOVED_FOR_S
        return hurries_until <= now

    def pause_s(self) -> float:
        """Return the seconds until the next poll."""
        interval_s = self._settings.expected_interval_s
        hurries = self._clock.monotonic() < self._hurries_until
        return min(interval_s, REMOVED_EVERY_S) if hurries else interval_s

    def round(self) -> None:
        """Poll once; pass on no result if the driver gets no events or a call fails."""
        comparison: HostComparison | None = None
        try:
            if not self._guests.why_deaf():
                comparison = compare(self._host, self._cloud, self._guests, self._clock)
        finally:
            self._looked(Comparison(self._expectations, comparison))
