# SPDX-License-Identifier: Apache-2.0
"""What should run on this host compared with what does, both ways: an opinion that needs no events.

    missing      it should run, and the hypervisor knows nothing of it
    stopped      it should run, and is off, which neither it nor anybody's order explains
    unexpected   it runs, though the cloud has it off, elsewhere, or not at all

The cloud's word is always a little old: a guest that powers itself off is ACTIVE for a while, one
that is deleted, moved or built is between two words. So a difference counts only if it is seen in
several looks, one after the other, and if what is known of the guest does not explain it. What is
found becomes an event, which goes through filters like any other and joins what was heard.

That somebody removed a guest explains nothing if the cloud, asked after that, expects it to run and
has no task under way. After each removal the cloud is asked every REMOVED_EVERY_S for a while, so
that a removal behind the cloud's back is told within half a minute.
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

#: A guest in one of these has a QEMU, and that may write to its disks.
ALIVE: Final = frozenset({"running", "blocked", "paused", "pmsuspended"})
#: Reasons to be paused of one that is just coming or going.
_ON_ITS_WAY: Final = frozenset({"migration", "starting_up", "postcopy"})
#: Ends after which a guest is not missed, also if it was removed afterwards: its own will, what
#: filters have judged, and what can be continued.
_NOT_MISSED: Final = frozenset({"shutdown", "judged", "saved", "from_snapshot"})
#: After a removal: how often the cloud is asked, which is how long the guest must be missed, and
#: for how long.
REMOVED_EVERY_S: Final = 6.0
REMOVED_FOR_S: Final = 30.0
#: Where no guest at all is found, that many must be missed before the address is doubted.
SEVERAL: Final = 2


@dataclass(frozen=True, slots=True)
class Difference:
    """`detail` and `reason` are those of the event; `why`: what the cloud says."""

    uuid: str
    name: str
    detail: str
    reason: str
    why: str
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class HostComparison:
    """Both sides: what the cloud said, and the guests as they were read after that, from `read_at`
    on. When it was `asked`, and reading `began`, by the clock that does not jump."""

    expected: tuple[Expected, ...]
    guests: tuple[Guest, ...]
    read_at: datetime
    asked: float
    began: float


def compare(host: str, cloud: ExpectedGuests, guests: Guests, clock: Clock) -> HostComparison:
    """Ask first, read then: what is read is the newest. Whoever runs and was not spoken of is asked
    about by name. HoldfastError if either side cannot be asked: then there is nothing to compare.
    """
    asked = clock.monotonic()
    said = list(cloud.expected(host).servers)
    began = clock.monotonic()
    found, read_at = guests.read()
    for some in _batches(strangers(said, found)):
        said += [one for one in cloud.expected(host, some).servers if one.uuid in some]
    return HostComparison(tuple(said), tuple(found), read_at, asked, began)


def strangers(expected: Iterable[Expected], guests: Iterable[Guest]) -> list[str]:
    """Those that run, and of which the cloud has said nothing."""
    known = {one.uuid for one in expected}
    return [one.uuid for one in guests if _is_alive(one) and one.uuid not in known]


def _batches(uuids: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(uuids), MOST_ALSO):
        yield uuids[start : start + MOST_ALSO]


def differences(expected: Sequence[Expected], guests: Sequence[Guest]) -> list[Difference]:
    """What one look shows and its own words do not explain."""
    found = {one.uuid: one for one in guests}
    wanted = [one for one in expected if one.state == RUNS]
    none_there = len(wanted) >= SEVERAL and not any(one.uuid in found for one in wanted)
    here = (_wanted(one, found.get(one.uuid), none_there) for one in wanted)
    said = {one.uuid: one for one in expected}
    there = (_found(guest, said.get(guest.uuid)) for guest in guests)
    return [one for one in itertools.chain(here, there) if one is not None]


def _wanted(said: Expected, guest: Guest | None, none_there: bool) -> Difference | None:
    if guest is None:
        return Difference(said.uuid, said.name, MISSING, "all" if none_there else "", said.why)
    if guest.state != "shutoff" or guest.reason in ORDERLY:
        return None
    return Difference(
        guest.uuid, guest.name, STOPPED, guest.reason or "unknown", said.why, guest.metadata
    )


def _found(guest: Guest, said: Expected | None) -> Difference | None:
    if said is None or said.state not in (OFF, ELSEWHERE, UNKNOWN) or not _is_alive(guest):
        return None
    return Difference(guest.uuid, guest.name, UNEXPECTED, said.state, said.why, guest.metadata)


def _is_alive(guest: Guest) -> bool:
    passing = guest.state == "paused" and guest.reason in _ON_ITS_WAY
    return guest.state in ALIVE and not passing


@dataclass(frozen=True, slots=True)
class _Seen:
    """A difference that is waited with."""

    detail: str
    at: datetime
    began: float
    last: datetime
    times: int = 1
    is_removed: bool = False


class Settings(Protocol):
    """[agent]."""

    expectation_every_s: float
    expectation_looks: int
    expectation_grace_s: float


class Expectations:
    """What several looks amount to; one thread at a time."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._seen: Mapping[str, _Seen] = {}

    def forget(self) -> None:
        """There was no look: what comes next does not follow upon what was before."""
        self._seen = {}

    def compare(self, one: HostComparison, watch: GuestWatch, now: float) -> list[Event]:
        """What is to be heard of it, by a watch that has read the same guests."""
        found = {
            difference.uuid: difference
            for difference in differences(one.expected, one.guests)
            if not _explained(difference, one, watch)
        }
        self._seen = {
            uuid: replace(self._again(found[uuid], one, now), is_removed=uuid in watch.dismissed)
            for uuid in found
        }
        events = [
            _event(difference, self._seen[uuid].at)
            for uuid, difference in found.items()
            if self._is_sure(self._seen[uuid], now)
            and difference.detail not in _differs(watch, uuid)
        ]
        _tidy(one, watch)
        return [*_over(one, found, watch), *events]

    def _again(self, difference: Difference, one: HostComparison, now: float) -> _Seen:
        old = self._seen.get(difference.uuid)
        if old is None or old.detail != difference.detail:
            return _Seen(difference.detail, one.read_at, now, one.read_at)
        if old.last == one.read_at:  # the same look once more
            return old
        return replace(old, last=one.read_at, times=old.times + 1)

    def _is_sure(self, seen: _Seen, now: float) -> bool:
        enough = seen.times >= self._settings.expectation_looks
        grace_s = self._settings.expectation_grace_s
        return enough and now - seen.began >= (
            min(grace_s, REMOVED_EVERY_S) if seen.is_removed else grace_s
        )


def _explained(difference: Difference, one: HostComparison, watch: GuestWatch) -> bool:
    """By what was heard of the guest, or remembered."""
    track = watch.tracks.get(difference.uuid)
    if difference.detail == MISSING and difference.uuid in watch.dismissed:
        new = watch.removed_at.get(difference.uuid, one.asked) > one.asked
        return new or watch.dismissed[difference.uuid] in _NOT_MISSED
    if track is None:
        return False
    if track.heard is not None and track.heard > one.asked:
        return True  # which the cloud may not have known
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
    one: HostComparison, found: Mapping[str, Difference], watch: GuestWatch
) -> Iterator[Event]:
    """What was told and is not so any more. That something is under way does not end it: it may
    have been the attempt to mend it, and fail."""
    said = {server.uuid: server.state for server in one.expected}
    alive = {guest.uuid for guest in one.guests if _is_alive(guest)}
    for track in watch.tracks.values():
        for detail in sorted(track.differences):
            still = track.uuid in found and found[track.uuid].detail == detail
            state = said.get(track.uuid, ELSEWHERE)
            if still or state == BUSY:
                continue
            over = state == RUNS or track.uuid not in alive
            if over if detail == UNEXPECTED else state != RUNS:
                yield Event(track.uuid, track.name, EXPECTATION, one.read_at, MET, detail)


def _tidy(one: HostComparison, watch: GuestWatch) -> None:
    """Of those that were removed nobody has to know any more whom the cloud does not miss."""
    missed = {server.uuid for server in one.expected if server.state in (RUNS, BUSY)}
    for uuid in [uuid for uuid in watch.dismissed if uuid not in missed]:
        del watch.dismissed[uuid]
        watch.removed_at.pop(uuid, None)


@dataclass(frozen=True)
class Comparison:
    """One look, to be thought about together with what is known of the guests; none: it failed."""

    by: Expectations
    look: HostComparison | None

    def events(self, watch: GuestWatch, now: float) -> list[Event]:
        if self.look is None:
            self.by.forget()
            return []
        return self.by.compare(self.look, watch, now)


class SecondOpinion:
    """Looks, and hands over what it saw; `round` is for `watch.errand.Rounds`."""

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
        """A guest was removed: ask soon, and again; whether that is new, so that somebody waits."""
        now, known = self._clock.monotonic(), self._hurries_until
        self._hurries_until = now + REMOVED_FOR_S
        return known <= now

    def pause_s(self) -> float:
        """Until the next look."""
        every_s = self._settings.expectation_every_s
        hurries = self._clock.monotonic() < self._hurries_until
        return min(every_s, REMOVED_EVERY_S) if hurries else every_s

    def round(self) -> None:
        """Whoever is deaf, or cannot ask, concludes nothing."""
        found: HostComparison | None = None
        try:
            if not self._guests.why_deaf():
                found = compare(self._host, self._cloud, self._guests, self._clock)
        finally:
            self._looked(Comparison(self._expectations, found))
