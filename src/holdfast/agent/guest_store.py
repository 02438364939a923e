# SPDX-License-Identifier: Apache-2.0
"""Guest state as JSON: save and load a `GuestWatch`, replay recordings, repeat reports.

The agent writes the guest state in the same transaction as its reports, so that a restarted agent
reports every failure once and misses none. After a restart a grace time starts anew, and rates are
counted anew. A hang, which no domain state shows, counts only if the agent detects it again: it may
have ended while no agent ran. An agent that kept running and only failed to write passes its tracks
as `before`. It keeps from them what the disk lacks: hangs, rate counts (`counted` for guests that
are gone), and events newer than a reading.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any, Final

from holdfast.agent import guest_state
from holdfast.agent.guest_filters import Filter, Symptom, Tally, Verdict
from holdfast.agent.guest_state import (
    FAILED,
    UNSEEN,
    Fault,
    GuestEvent,
    GuestWatch,
    Track,
    guest_event,
)
from holdfast.model.errors import InvalidInput
from holdfast.ports.guests import KINDS, Event, Guest

FORMAT = 1
_KEPT = ("uuid", "name", "life", "closing", "persistent")


def to_plain(watch: GuestWatch) -> dict[str, Any]:
    """Return the guest state as JSON values."""
    return {
        "format": FORMAT,
        "guests": [_track(track) for track in watch.tracks.values()],
        "dismissed": dict(watch.dismissed),
        "ill": list(watch.reported_failed),
    }


def from_plain(
    note: Any,
    filters: Filter,
    now: float,
    before: Mapping[str, Track] | None = None,
    counted: Mapping[str, Tally] | None = None,
) -> GuestWatch:
    """Return the guest state from JSON values; InvalidInput if the format is unknown or broken."""
    watch = GuestWatch(filters)
    watch.counted.update(counted or {})
    try:
        if note["format"] != FORMAT:
            raise ValueError(f"format {note['format']!r} is not known")
        for saved in note["guests"]:
            track = _remembered(saved, filters, now, before)
            watch.tracks[track.uuid] = track
        watch.dismissed.update(note.get("dismissed", {}))
        failed = [track.uuid for track in watch.tracks.values() if track.reported == FAILED]
        watch.reported_failed.update(
            dict.fromkeys(note.get("ill", failed), True)
        )  # older agents wrote none
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidInput(f"the stored state of guests cannot be read: {error}") from error
    return watch


def _track(track: Track) -> dict[str, Any]:
    plain: dict[str, Any] = {name: getattr(track, name) for name in _KEPT}
    plain |= {"reason": track.reason, "since": track.since and track.since.isoformat()}
    plain["ended"] = track.ended
    plain["metadata"] = dict(track.metadata)
    plain["troubles"] = {name: _fault(fault) for name, fault in track.faults.items()}
    return plain


def _fault(fault: Fault) -> dict[str, Any]:
    return {
        "sign": asdict(fault.symptom),
        "since": fault.since.isoformat(),
        "lasts": fault.lasts,
        "reported": fault.reported,
        "traces": list(fault.traces),
        "count": fault.count,
    }


def _remembered(
    saved_track: Mapping[str, Any], filters: Filter, now: float, before: Mapping[str, Track] | None
) -> Track:
    kept = {name: saved_track[name] for name in _KEPT}
    old = (before or {}).get(saved_track["uuid"], Track("", ""))
    metadata = dict(saved_track["metadata"])
    about = {**metadata, "name": saved_track["name"]}
    faults = {}
    for name, saved_fault in saved_track["troubles"].items():
        symptom = Symptom(**saved_fault["sign"])
        verdict, _ = filters.judge(symptom, about, old.tally, now, again=True)
        sure = before is not None or symptom.event not in UNSEEN
        faults[name] = _again(saved_fault, symptom, verdict, now, sure)
    since = saved_track.get("since")  # older agents did not write it
    return Track(
        **kept,
        reason=str(saved_track.get("reason", "")),
        ended=str(saved_track.get("ended", "")),
        since=datetime.fromisoformat(since) if since else None,
        heard=old.heard,
        rebooted=old.rebooted,
        metadata=metadata,
        faults=faults,
        tally=old.tally,
    )


def _again(
    saved: Mapping[str, Any], symptom: Symptom, verdict: Verdict, now: float, sure: bool
) -> Fault:
    return Fault(
        symptom,
        datetime.fromisoformat(saved["since"]),
        began=now,
        last=now,
        verdict=verdict,
        lasts=bool(saved["lasts"]) and sure,
        reported=str(saved["reported"]),
        traces=tuple(saved["traces"]),
        count=int(saved["count"]),
    )


# Recordings: guest events and readings as lines of JSON, and their replay through filters.
#
#     {"at": "2026-11-16T12:00:00+00:00", "uuid": "…", "name": "web-1", "kind": "lifecycle",
#      "detail": "stopped", "reason": "failed", "metadata": {"project": "p-1"}}
#     {"at": "2026-11-16T12:00:05+00:00", "guests": [{"uuid": "…", "name": "web-1",
#      "state": "shutoff", "reason": "crashed"}]}
#
# The first line is an event. The second line is a reading: all guests of the host at that time.


_EVENT = tuple(field.name for field in fields(Event))
_GUEST = tuple(field.name for field in fields(Guest))
_TYPES: Mapping[str, type] = {"metadata": dict, "persistent": bool, "autostart": bool}


@dataclass(frozen=True)
class Reading:
    """All guests of a host, as read from the hypervisor at one time."""

    guests: tuple[Guest, ...]
    at: datetime


def line(record: Event | Reading) -> str:
    return json.dumps(plain(record))


def plain(record: Event | Reading) -> dict[str, Any]:
    """Return a record as JSON values; an event without its empty fields."""
    plain = asdict(record) | {"at": record.at.isoformat()}
    if isinstance(record, Event):
        return {name: value for name, value in plain.items() if value}
    return plain


def read(lines: Iterable[str], source: str) -> Iterator[Event | Reading]:
    """Yield the records of JSON lines, skipping empty lines; InvalidInput names a wrong line."""
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            yield _record(json.loads(text))
        except (ValueError, TypeError, RecursionError) as error:
            raise InvalidInput(f"{source}:{number}: {error}") from error


def replay(
    records: Iterable[Event | Reading], filters: Filter
) -> Iterator[tuple[datetime, GuestEvent]]:
    """Yield the guest events of a recording with their dates, including late grace times."""
    for now, event in go_on(GuestWatch(filters), records, datetime.timestamp):
        yield datetime.fromtimestamp(now, UTC), event


def go_on(
    watch: GuestWatch,
    records: Iterable[Event | Reading],
    time_of: Callable[[datetime], float],
) -> Iterator[tuple[float, GuestEvent]]:
    """Replay records into an existing watch, with the watch's own time."""
    for record in records:
        now = time_of(record.at)
        yield from _until(watch, now)
        if isinstance(record, Event):
            guest_events = watch.hear(record, now)
        else:
            guest_events = watch.reconcile(record.guests, record.at, now)
        yield from ((now, event) for event in guest_events)
    yield from _until(watch, None)


def _until(watch: GuestWatch, now: float | None) -> Iterator[tuple[float, GuestEvent]]:
    while (due := watch.due()) is not None and (now is None or due <= now):
        yield from ((due, timer) for timer in watch.check_timers(due))


def _record(plain: Any) -> Event | Reading:
    if not isinstance(plain, dict):
        raise ValueError("a line is an event or a reading: write {…}")
    at = _date(plain.get("at"))
    if "guests" in plain:
        guests = plain["guests"]
        if not isinstance(guests, list) or set(plain) - {"at", "guests"}:
            raise ValueError("a reading has `at` and a list of `guests`")
        return Reading(tuple(Guest(**_fields(guest, _GUEST, ())) for guest in guests), at)
    values = _fields(plain, _EVENT, ("kind",))
    if values["kind"] not in KINDS:
        raise ValueError(f"`kind` is {values['kind']!r}: there are {', '.join(KINDS)}")
    return Event(**values | {"at": at})


def _fields(plain: Any, names: Sequence[str], needed: Sequence[str]) -> dict[str, Any]:
    """Check and return the fields of a guest or an event: texts, metadata and booleans."""
    if not isinstance(plain, dict):
        raise ValueError("a guest is written {…}")
    for name in plain:
        if name not in names:
            raise ValueError(f"`{name}` is unknown: there are {', '.join(names)}")
    is_guest = "state" in names
    for name in ("uuid", "name", *needed, *(("state", "reason") if is_guest else ())):
        if name not in plain:
            raise ValueError(f"`{name}` is missing")
    for name, value in plain.items():
        wanted = _TYPES.get(name, str)
        if not isinstance(value, wanted):
            raise ValueError(f"`{name}` is {value!r}: write a {wanted.__name__}")
    metadata: Mapping[str, Any] = plain.get("metadata", {})
    if not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("`metadata` has something that is no text: write it in quotes")
    return dict(plain)


def _date(text: Any) -> datetime:
    if not isinstance(text, str):
        raise ValueError("`at` is missing: write a date and time of ISO 8601")
    at = datetime.fromisoformat(text)
    return at if at.tzinfo else at.replace(tzinfo=UTC)


# Repeated reports: a restarted agent reports again a failure that its predecessor reported, if the
# guest is still down.
#
# A guest may fail, be recovered and fail again while no agent runs. The restarted agent finds it
# as it was and cannot tell the two failures apart. It therefore repeats the report with the date
# of the first one (`told_before`). Holdfast knows whether it recovered the guest in between, and
# takes the report as a new failure or as the old one.
#
# The agent does not repeat at once: a guest that was just ordered to start may not be up yet, and
# Holdfast would recover it twice. The agent waits until a reading SURE_S seconds later still finds
# the guest down and no start event arrived between. The report carries the date of the first
# reading: an order given after that date is a reaction to this failure.


TOLD_BEFORE: Final = "told_before"
#: Seconds after the first reading. A guest that is still down then is not just about to start.
SURE_S: Final = 10.0


class Again:
    """Repeats failure reports after a restart of the agent.

    The agent builds it from the loaded guest state and calls `after` once per judged reading,
    until the repeated reports are made. If they cannot be written, the agent calls `begin_again`.
    """

    def __init__(self, watch: GuestWatch) -> None:
        self._reported = {
            uuid: since for uuid, track in watch.tracks.items() if (since := _reported_since(track))
        }
        self._left = self._reported
        self._first: tuple[float, datetime] | None = None
        self._repeated = False

    def begin_again(self) -> None:
        """Undo the repeats since the last write to the outbox."""
        self._left, self._repeated = self._reported, False

    def written(self) -> None:
        self._reported = {} if self._repeated else self._left

    def after(self, reading: Reading, watch: GuestWatch, when: float) -> list[GuestEvent]:
        """Return the repeated reports after a reading; `when` (monotonic) the reading began."""
        if self._repeated or not self._reported:
            return []
        down = [
            event for guest in reading.guests if (event := self._still(guest, watch)) is not None
        ]
        self._left = {track.uuid: self._reported[track.uuid] for track in down}
        first, at = self._first = self._first or (when, reading.at)
        self._repeated = when - first >= SURE_S
        return [_repeated(track, _cause(track), at) for track in down] if self._repeated else []

    def _still(self, guest: Guest, watch: GuestWatch) -> Track | None:
        """Return the track of a guest that is still down with the same failure, else None."""
        track = watch.tracks.get(guest.uuid)
        if (
            track is None
            or guest.uuid not in self._reported
            or _reported_since(track) != self._reported[guest.uuid]
        ):
            return None
        by_order = guest_state.of_state(guest, guest_state.UNKNOWN, "").symptom is None
        return None if by_order else track


def _cause(track: Track) -> str:
    return next((name for name, fault in track.faults.items() if fault.reported == FAILED), "")


def _reported_since(track: Track) -> datetime | None:
    """Return the date of the guest's reported failure, or None."""
    name = _cause(track)
    return track.faults[name].since if name else None


def _repeated(track: Track, name: str, at: datetime) -> GuestEvent:
    fault = track.faults[name]
    event = guest_event(track, name, replace(fault, since=at), FAILED)
    before = {TOLD_BEFORE: fault.since.isoformat()}
    return replace(event, key=f"{event.key}/again", evidence={**event.evidence, **before})
