# SPDX-License-Identifier: Apache-2.0
"""Commands about guests for the agent's admin interface: list them, watch them, simulate events."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import singledispatch
from typing import Any

from holdfast.agent import guest_state, guest_store
from holdfast.agent.admin import Handler, Items, only, text
from holdfast.agent.agent import HostAgent, Judged, Sent, Tap, View, WatchedEvent
from holdfast.agent.guest_state import Fault, GuestEvent, GuestWatch, Track
from holdfast.agent.guest_store import Reading
from holdfast.agent.outbox import Outbox
from holdfast.model.errors import (
    Conflict,
    InvalidInput,
    NotFound,
)
from holdfast.ports.guests import Event, Guest
from holdfast.runtime.clock import Clock

# Guest tracks, readings and agent events as JSON values, for the commands below.


_STATES = {
    guest_state.RUNNING: "running",
    guest_state.PAUSED: "paused",
    guest_state.CRASHED: "crashed",
    guest_state.OFF: "shutoff",
}


def row(track: Track, now: float) -> dict[str, Any]:
    """Return a guest as a row of `guests.list`."""
    about = track.metadata
    return {
        "name": track.name,
        "uuid": track.uuid,
        "life": track.life,
        "reason": track.reason,
        "since": track.since.isoformat() if track.since else None,
        "project": about.get("project_name") or about.get("project", ""),
        "flavor": about.get("flavor", ""),
        "ha": about.get("ha", ""),
        "heartbeat": about.get("heartbeat", ""),
        "persistent": track.persistent,
        "trouble": [_fault(fault, now) for fault in track.faults.values()],
        "metadata": dict(about),
    }


def _fault(fault: Fault, now: float) -> dict[str, Any]:
    symptom, due = fault.symptom, fault.due
    return {
        "event": symptom.event,
        "detail": symptom.detail,
        "reason": symptom.reason,
        "disk": symptom.disk,
        "since": fault.since.isoformat(),
        "do": fault.verdict.do,
        "rule": fault.verdict.rule,
        "due_s": None if due is None else round(max(0.0, due - now), 1),
        "reported": fault.reported,
        "over": not fault.lasts,
        "count": fault.count,
        "traces": list(fault.traces),
    }


def reading(tracks: Iterable[Track], at: datetime) -> Reading:
    """Return the known guests as a hypervisor reading, because a replayable recording begins so.

    A guest that is off without a fault gets no reason: the replay would report it as a new fault.
    """
    return Reading(tuple(_guest(track) for track in tracks if track.life in _STATES), at)


def _guest(track: Track) -> Guest:
    over = track.life == guest_state.OFF and not track.faults
    guest = Guest(
        *(track.uuid, track.name, _STATES[track.life], "" if over else track.reason),
        persistent=track.persistent,
        metadata=track.metadata,
    )
    stopped = track.faults.get("io_error pause")
    if stopped is None:
        return guest
    symptom = stopped.symptom
    return replace(guest, error=symptom.reason, disk=symptom.disk, path=symptom.path)


def evidence(sent: Sent) -> Mapping[str, Any]:
    evidence = sent.body.get("evidence", {})
    return evidence if isinstance(evidence, Mapping) else {}


@singledispatch
def shown(event: Any) -> dict[str, Any]:
    """Return an agent event as a line of `guests.watch`."""
    raise TypeError(type(event))


@shown.register
def _of_event(event: Event) -> dict[str, Any]:
    return {"what": "event", "record": guest_store.plain(event)}


@shown.register
def _of_reading(event: Reading) -> dict[str, Any]:
    states = dict(Counter(guest.state for guest in event.guests))
    return {"what": "reading", "states": states, "record": guest_store.plain(event)}


@shown.register
def _of_judged(event: Judged) -> dict[str, Any]:
    verdict = event.verdict
    return {
        "what": "verdict",
        "uuid": event.uuid,
        "guest": event.name,
        "sign": str(event.symptom),
        "do": verdict.do,
        "after_s": verdict.after_s,
        "rule": verdict.rule,
    }


@shown.register
def _of_guest_event(event: GuestEvent) -> dict[str, Any]:
    about = event.evidence
    shown_evidence = {name: about[name] for name in ("event", "detail", "reason", "disk", "rule")}
    return {
        "what": "report",
        "uuid": event.uuid,
        "guest": event.name,
        "state": event.state,
        "since": event.since.isoformat(),
        **shown_evidence,
        "simulated": bool(about.get("simulated")),
    }


@shown.register
def _of_sent(event: Sent) -> dict[str, Any]:
    return {
        "what": "delivery",
        "subject": event.body["subject"],
        "guest": evidence(event).get("domain_name", ""),
        "state": event.body["state"],
        "outcome": event.outcome,
        "why": event.why,
    }


#: `watch` yields at least this often, so that the socket notices a client that has left.
TICK_S = 0.25
MOST_RECORDS = 1_000


class GuestCommands:
    """The commands `status`, `guests.list`, `guests.watch` and `guests.simulate`."""

    def __init__(
        self,
        agent: HostAgent,
        outbox: Outbox,
        tap: Tap,
        clock: Clock,
        about: Mapping[str, Any],
        metrics: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        """Take the values that `status` returns besides the agent's own.

        `about` holds facts about the process, such as its pid. `metrics` returns problems of the
        metrics (`troubles`) and the number of lost alarms (`alarms_lost`).
        """
        self._agent = agent
        self._outbox = outbox
        self._tap = tap
        self._clock = clock
        self._about = about
        self._metrics = metrics

    def commands(self) -> Mapping[str, Handler]:
        return {
            "status": self.status,
            "guests.list": self.list_all,
            "guests.watch": self.watch,
            "guests.simulate": self.simulate,
        }

    def status(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Return the agent's status without disk access, because the disk may be slow.

        The outbox keeps its backlog in memory.
        """
        only(args)
        view = self._agent.view()
        return {
            **self._about,
            **self._metrics(),
            "host": view.host,
            "guests": len(view.tracks),
            "deaf": view.deaf,
            "stuck": view.stuck,
            "unjudged": view.waiting,
            "filters": view.filters.source,
            "filters_problem": view.problem,
            "outbox": self._waiting(),
        }

    def list_all(self, args: Mapping[str, Any]) -> dict[str, Any]:
        status = self.status(args)
        now = self._clock.monotonic()
        tracks = sorted(
            self._agent.view().tracks.values(), key=lambda track: (track.name, track.uuid)
        )
        return {
            **status,
            "guests": [row(track, now) for track in tracks],
        }

    def _waiting(self) -> dict[str, Any]:
        backlog, oldest_s = self._outbox.backlog, None
        if backlog.oldest_at is not None:
            since = datetime.fromisoformat(backlog.oldest_at)
            oldest_s = max(0.0, (self._clock.now() - since).total_seconds())
        return {"waits": backlog.waits, "oldest_s": oldest_s, "put_aside": backlog.put_aside}

    # live events

    def watch(self, args: Mapping[str, Any]) -> Items:
        """Yield the current state of the guests first, then every event."""
        only(args, "guest")
        ref = text(args, "guest")
        with self._tap.watching() as watcher:
            view = self._agent.view()
            tracks = [track for track in view.tracks.values() if not ref or _is(track, ref)]
            current = reading(tracks, self._clock.now())
            yield {"what": "guests", "host": view.host, "record": guest_store.plain(current)}
            while True:
                events, missed = watcher.next_event(TICK_S)
                if not events and not missed:
                    yield None
                for event in events:
                    if (about := _about(event, ref)) is not None:
                        yield shown(about)
                if missed:
                    yield {"what": "missed", "count": missed}

    # simulation

    def simulate(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Judge records with a copy of the guest state; with `for_real` report the result.

        Without `for_real` nothing changes and the agent sends no report.
        """
        only(args, "records", "guest", "for_real")
        for_real = args.get("for_real", False)
        if not isinstance(for_real, bool):
            raise InvalidInput("`for_real` is true or false")
        view = self._agent.view()
        records = self._records(args, view)
        if for_real and not (len(records) == 1 and isinstance(records[0], Event)):
            raise InvalidInput("for real takes a single event: leave the others out")
        copy = GuestWatch(view.filters)
        copy.tracks = dict(view.tracks)
        judgements, guest_events = _simulated(copy, records, self._clock.monotonic())
        if for_real and guest_events:
            self._agent.report_simulated([guest_event for _, guest_event in guest_events])
        return {
            "host": view.host,
            "for_real": for_real,
            "judged": judgements,
            "reports": [
                {"after_s": round(after_s, 3), **shown(guest_event)}
                for after_s, guest_event in guest_events
            ],
        }

    def _records(self, args: Mapping[str, Any], view: View) -> Sequence[Event | Reading]:
        records, ref = args.get("records"), text(args, "guest")
        if not isinstance(records, list) or not 0 < len(records) <= MOST_RECORDS:
            raise InvalidInput(f"`records` are events and readings, {MOST_RECORDS} at most")
        whole = [self._filled(record, ref, view.tracks) for record in records]
        return list(guest_store.read(map(json.dumps, whole), "record"))

    def _filled(self, record: Any, ref: str, tracks: Mapping[str, Track]) -> Any:
        """Complete a record with the date, and with uuid, name and metadata of a known guest."""
        if not isinstance(record, dict):
            return record
        record = {"at": self._clock.now().isoformat(), **record}
        if "guests" in record or {"uuid", "name"} <= record.keys():
            if ref and ref not in (record.get("uuid"), record.get("name")):
                raise InvalidInput(f"the record names its guest: leave {ref!r} out")
            return record
        ref = ref or record.get("uuid") or record.get("name") or ""
        if not isinstance(ref, str) or not ref:
            raise InvalidInput("which guest? name it, or give its uuid and name")
        track = find(tracks.values(), ref)
        from_track = {"uuid": track.uuid, "name": track.name, "metadata": dict(track.metadata)}
        return {**from_track, **record}


def _simulated(
    copy: GuestWatch, records: Sequence[Event | Reading], now: float
) -> tuple[list[dict[str, Any]], list[tuple[float, GuestEvent]]]:
    """Return the verdict on each event, and the reports with their delay in seconds.

    Reports about guests that the records do not name are left out, unless a record is a reading
    of all guests.
    """
    first = records[0].at
    judgements = []
    events = {record.uuid for record in records if isinstance(record, Event)}
    everybody = any(isinstance(record, Reading) for record in records)

    def time_of(at: datetime) -> float:
        return now + max(0.0, (at - first).total_seconds())

    def one_by_one() -> Iterator[Event | Reading]:
        for record in records:
            if isinstance(record, Event):
                judgements.append(judgement(record, copy, time_of(record.at)))
            yield record

    guest_events = guest_store.go_on(copy, one_by_one(), time_of)
    mine = [
        (at - now, guest_event)
        for at, guest_event in guest_events
        if everybody or guest_event.uuid in events
    ]
    return judgements, mine


def judgement(event: Event, watch: GuestWatch, now: float) -> dict[str, Any]:
    """Return the symptom of an event and the verdict of the filters on it."""
    track = watch.tracks.get(event.uuid) or Track(event.uuid, event.name)
    symptom = guest_state.of_event(event, track.life, track.closing).symptom
    about_guest = {
        "uuid": event.uuid,
        "guest": event.name,
        "life": track.life,
        "reported": track.reported,
    }
    if symptom is None:
        return {**about_guest, "sign": "", "do": "", "rule": "", "after_s": 0.0}
    about = {**track.metadata, **event.metadata, "name": event.name}
    verdict, _ = watch.filters.judge(symptom, about, track.tally, now)
    return {
        **about_guest,
        "sign": str(symptom),
        "do": verdict.do,
        "rule": verdict.rule,
        "after_s": verdict.after_s,
    }


def find(tracks: Iterable[Track], ref: str) -> Track:
    """Return the guest with this uuid or name; NotFound if there is none, Conflict if several."""
    matching = [track for track in tracks if _is(track, ref)]
    if not matching:
        raise NotFound(f"the agent knows no guest {ref!r}: `holdfast guest list` shows them")
    if len(matching) > 1:
        uuids = ", ".join(track.uuid for track in matching)
        raise Conflict(f"{len(matching)} guests are called {ref}: name one by its uuid: {uuids}")
    return matching[0]


def _is(track: Track, ref: str) -> bool:
    return ref in (track.uuid, track.name)


def _about(event: WatchedEvent, ref: str) -> WatchedEvent | None:
    """Return the part of an agent event about guest `ref`; the whole event if `ref` is empty."""
    if not ref:
        return event
    if isinstance(event, Reading):
        guests = tuple(guest for guest in event.guests if ref in (guest.uuid, guest.name))
        return Reading(guests, event.at)
    if isinstance(event, Sent):
        named = (event.body["subject"].removeprefix("server:"), evidence(event).get("domain_name"))
        return event if ref in named else None
    return event if ref in (event.uuid, event.name) else None
