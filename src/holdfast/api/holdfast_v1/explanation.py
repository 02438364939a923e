# SPDX-License-Identifier: Apache-2.0
"""Explanation of an incident in sentences: observations, decisions, steps, durations, next actions.

Pure functions from values to sentences. API and CLI show the same text.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import zip_longest
from typing import Any

from holdfast.db.incident_queries import Case
from holdfast.model import incident as history
from holdfast.model import incident as model
from holdfast.model import votes
from holdfast.model.incident_progress import AlarmFacts, HostProgress, read
from holdfast.model.observation import Observed
from holdfast.model.operation import SKIPPED
from holdfast.ports.recovery import FAILED, IGNORED, ONGOING, PENDING, SUCCEEDED, ServerMove
from holdfast.recovery.timeline import AlarmEvidence, StatusChanged

_TEXT = {"type": "string"}
_PART = {"heading": _TEXT, "sentences": {"type": "array", "items": _TEXT}}
_SHOWN: dict[str, Any] = {
    "incident_id": _TEXT,
    "title": _TEXT,
    "parts": {
        "type": "array",
        "items": {"type": "object", "required": list(_PART), "properties": _PART},
    },
    "text": {**_TEXT, "description": "All of it, to be read."},
}
VIEW = {"type": "object", "required": list(_SHOWN), "properties": _SHOWN}
#: libvirt events after which a guest does not run.
_DEATHS = ("STOPPED", "LIFECYCLE", "EXPECTATION")


@dataclass(frozen=True)
class Part:
    """A section of an explanation: heading and sentences."""

    heading: str
    sentences: Sequence[str]


@dataclass(frozen=True)
class Story:
    """The explanation of an incident: title and sections."""

    incident_id: str
    title: str
    parts: Sequence[Part]


def view(story: Story) -> dict[str, Any]:
    return {
        "incident_id": story.incident_id,
        "title": story.title,
        "parts": [
            {"heading": part.heading, "sentences": list(part.sentences)} for part in story.parts
        ],
        "text": text(story),
    }


def text(story: Story) -> str:
    lines = [story.title]
    for part in story.parts:
        lines += ["", part.heading, *(f"  {sentence}" for sentence in part.sentences)]
    return "\n".join(lines)


def story(case: Case, now: datetime) -> Story:
    incident = case.incident
    parts = (
        Part("What was seen", list(_seen(case))),
        Part("What was tried before", list(_tried_before(incident))),
        Part("What was decided", list(_decided(case))),
        Part("What was done", list(_done(case))),
        Part("How long it took", list(_took(case, now))),
        Part("What is left", list(_left(case))),
    )
    kept = [part for part in parts if part.sentences]
    opened = f"{incident.opened_at:%Y-%m-%d %H:%M:%S} UTC"
    return Story(incident.id, f"Incident {incident.id} of {opened}: {incident.cause}", kept)


# What was seen


def _seen(case: Case) -> Iterator[str]:
    incident = case.incident
    for row in case.reports:
        payload = ", ".join(f"{key} {value}" for key, value in sorted(row["payload"].items()))
        late = span(row["created_at"] - row["generated_time"])
        yield (
            f"{_time(row['created_at'], incident)}: a {row['type']} report ({payload}), made {late}"
            f" before it came in; notification {row['uuid']} is {row['status']}."
        )
    where = f" of segment {case.segment_name}" if case.segment_name else ""
    opened = _time(incident.opened_at, incident)
    yield from _monitors(incident)
    yield from (_observation(row, incident) for row in case.observations)
    if died := _died(incident):
        event = str(incident.progress.payload.get("event", ""))
        verb = "died" if event.upper() in _DEATHS else "failed"
        yield f"{_time(died, incident)}: {_server(incident)} {verb} on {incident.host}."
    yield f"{opened}: the incident was opened, about {_what(case)}{where}."
    if incident.kind == model.ALARM:
        events = [entry for entry in case.timeline if isinstance(entry.data, AlarmEvidence)]
        yield from (f"{_time(event.at, incident)}: {_end(event.sentence)}" for event in events)
    known = incident.host_progress
    yield from fence_lines(known, incident)
    yield from _proof(known, incident)
    if known.powered_on_at is not None:
        sentence = f"Holdfast switched {incident.host} on, by [recovery] power_on_after"
        yield f"{_time(known.powered_on_at, incident)}: {sentence}."
    if returned := known.power_returned:
        how = "is in use again" if returned.in_use else "has power again"
        how = "rebooted" if returned.rebooted else how
        at = _time(returned.at, incident)
        yield f"{at}: {incident.host} {how}: its servers start in place."


def _monitors(incident: model.Incident) -> Iterator[str]:
    """Yield sentences about host monitor votes; each sentence holds the votes new then."""
    seen = incident.host_progress.seen
    for said_at, new in history.counted_together(seen):
        at = _time(_parse(said_at) if said_at else incident.opened_at, incident)
        yield f"{at}: {_end(votes.report_text('it', new))}"
        yield from (f"- {_end(line)}" for line in votes.grounds(new))
    if dropped := history.left_out(seen):
        yield f"- {dropped} more votes of monitors are not kept."


def _observation(row: Mapping[str, Any], incident: model.Incident) -> str:
    """Return a sentence about an agent's report: guest or process, state, start, time received."""
    names = ("id", "observer", "subject", "kind", "state", "since")
    observed = Observed(**{name: row[name] for name in names}, evidence=row["evidence"] or {})
    domain = observed.evidence.get("domain_name")
    called = f", domain {domain}" if domain else ""
    return (
        f"{_time(row['created_at'], incident)}: {observed.observer} on"
        f" {observed.host or 'no host'} reported {observed.state}: {observed.what}"
        f" at {_time(observed.since, incident)}{called}."
    )


def _what(case: Case) -> str:
    incident = case.incident
    if incident.kind == model.HOST:
        return f"host {incident.host}"
    if incident.kind == model.GUEST:
        return f"{_server(incident)} on {incident.host}"
    if isinstance(incident.details, AlarmFacts):
        return f"alarm {incident.details.rule} of {incident.details.about}"
    return f"{incident.subject.rpartition(':')[2]} on {incident.host}"


def _server(incident: model.Incident) -> str:
    """Return the server name, if known, and the server id."""
    name = incident.guest_progress.server_name
    return f"server {name} ({incident.server_id})" if name else f"server {incident.server_id}"


def _died(incident: model.Incident) -> datetime | None:
    """Return the reported time of death of a guest; None for other kinds of incident."""
    return incident.guest_progress.reported_at


# What was tried before


def _tried_before(incident: model.Incident) -> Iterator[str]:
    """Yield sentences about each attempt before a retry, oldest first."""
    kept = incident.progress.attempts
    for number, attempt in enumerate(history.entries(kept), 1):
        began, ended = _time(_parse(attempt["began_at"]), incident), attempt.get("ended_at")
        until = f" to {_time(_parse(ended), incident)}" if ended else ""
        yield f"Attempt {number}, {began}{until}, {attempt['status']}: {_end(attempt['sentence'])}"
        yield from (f"- {line}" for line in _attempt(attempt, incident))
    if dropped := history.left_out(kept):
        yield f"{dropped} more attempts are not kept."


def _attempt(attempt: Mapping[str, Any], incident: model.Incident) -> Iterator[str]:
    known = read(HostProgress, attempt)
    yield from _sources(known, incident)
    yield from fence_lines(known, incident)
    yield from _proof(known, incident)
    for step in attempt["steps"]:
        if step["at"] and step["status"] != SKIPPED:
            at = _time(_parse(step["at"]), incident)
            yield f"{at}: {step['name']}: {_end(step['sentence'])}"
    if aborted := known.aborted:
        at = _time(aborted.at, incident)
        yield f"{at}: {aborted.author} aborted it: {_end(aborted.reason)}"
    yield f"{attempt['tried_again_by']} had it tried again."


def fence_lines(known: HostProgress, incident: model.Incident) -> Iterator[str]:
    """Yield a sentence per request to the fence device, with the answer."""
    for entry in known.fence_requests:
        if dropped := entry.get(history.LEFT_OUT):
            yield f"{dropped} more requests to the fence are not kept."
            continue
        at = _time(_parse(entry["at"]), incident)
        if not entry.get("asked"):
            yield f"{at}: fencing failed: {_end(entry['failed'])}"
        elif refused := entry.get("refused"):
            yield f"{at}: the fence was asked to switch it off and answered: {_end(refused)}"
        else:
            yield f"{at}: the fence was asked to switch it off."


def _proof(known: HostProgress, incident: model.Incident) -> Iterator[str]:
    """Yield sentences about the proof of power off, including the confirmation by an operator."""
    if confirmed_off := known.confirmed_off:
        at = _time(confirmed_off.at, incident)
        off = f"is off{model.DESPITE_POWER_ON if confirmed_off.reads_on else ''}"
        who, why = confirmed_off.author, _end(confirmed_off.reason)
        yield f"{at}: {who} said that {incident.host} {off}: {why}"
    if evidence := known.evidence:
        at = _time(evidence.at, incident)
        yield f"{at}: proof that it is off: {_end(evidence.sentence)}"


def _sources(known: HostProgress, incident: model.Incident) -> Iterator[str]:
    """Yield a sentence per source of reports and signs of life, with how the source counted."""
    for source in known.sources:
        yield f"{_time(source.at, incident)}: {source.source} {source.says}; {_end(source.counted)}"


# What was decided


def _decided(case: Case) -> Iterator[str]:
    incident = case.incident
    yield from _sources(incident.host_progress, incident)
    yield from _waits(case)
    no = [row for row in case.verdicts if not row["passed"]]
    if case.verdicts and not no:
        yield "All guards allowed the recovery:"
    elif no:
        verb = "says" if incident.is_open else "said"
        yield f"The guard {no[0]['guard']} {verb} no:"
    for row in case.verdicts:
        answer = "yes" if row["passed"] else "no"
        yield f"- {row['guard']}: {answer}, {_end(row['sentence'])}"
    if incident.kind not in model.WORK:
        yield "Nothing: an alarm has no guards and starts no recovery."
    elif not case.verdicts:
        yield "The guards have not been evaluated yet."


def _waits(case: Case) -> Iterator[str]:
    """Yield a sentence per hold of the incident, with reason and duration, and per retry."""
    for event, following in zip_longest(case.timeline, case.timeline[1:]):
        if not isinstance(event.data, StatusChanged):
            continue
        at, why = _time(event.at, case.incident), _end(event.data.reason)
        if event.data.status == model.OPEN:
            yield f"{at}: {why}"
        elif event.data.status == model.HELD:
            lasted = f" for {span(following.at - event.at)}" if following else ""
            yield f"{at}: held{lasted}: {why}"


# What was done


def _done(case: Case) -> Iterator[str]:
    incident = case.incident
    before = case.work["due_at"] if case.work else incident.opened_at
    for row in case.done:
        at = row["finished_at"] or before
        if row["status"] != SKIPPED:
            took = span(at - before)
            yield f"{_time(at, incident)}: {row['name']} ({took}): {_end(row['sentence'])}"
        before = at
    if incident.is_open and case.work is not None and case.work["sentence"]:
        yield f"Now: {_end(case.work['sentence'])}"
    for move in case.servers:
        yield f"- {_moved(move)}"
    if ran := incident.guest_progress.ran_again_at:
        yield f"{_time(ran, incident)}: {_server(incident)} ran again."
    if not case.done and not case.servers and not incident.is_open:
        yield "Nothing was touched."


def _moved(move: ServerMove) -> str:
    way = f"{move.source_host} -> {move.dest_host}" if move.dest_host else move.source_host
    name = f"{move.server_name} ({move.server_id})"
    if move.status == IGNORED:
        return f"{name} stays: {_end(move.message or 'it was left')}"
    if move.status == PENDING:
        tried = f", tried {_times(move.attempts)}" if move.attempts else ""
        return f"{name} waits for its turn{tried}{f': {move.message}' if move.message else ''}."
    if move.status == ONGOING:
        return f"{name} is on its way: {way}."
    took = ""
    if move.started_at and move.ended_at:
        took = f" in {span(move.ended_at - move.started_at)}"
    result = "moved" if move.status == SUCCEEDED else "not moved"
    return f"{name}: {way}, {result}{took}, tried {_times(move.attempts)}: {_end(move.message)}"


# How long it took


def _took(case: Case, now: datetime) -> Iterator[str]:
    incident = case.incident
    opened, over = incident.opened_at, incident.closed_at
    if case.reports:
        heard = min(row["created_at"] for row in case.reports)
        yield f"From the first report to the incident: {span(opened - heard)}."
    began, since = incident.progress.started_at, incident.progress.retried_at or opened
    if began:
        yield f"Until the guards allowed the recovery: {span(began - since)}."
    off = incident.host_progress.evidence
    if began and off:
        yield f"Until it was sure that the host is off: {span(off.at - began)}."
    starts = [server_move.started_at for server_move in case.servers if server_move.started_at]
    ends = [
        server_move.ended_at
        for server_move in case.servers
        if server_move.ended_at and server_move.started_at
    ]
    if starts and ends:
        moved = sum(server_move.status == SUCCEEDED for server_move in case.servers)
        lasted = span(max(ends) - min(starts))
        yield f"Moving servers: {lasted}, {moved} of {len(case.servers)} moved."
    died, ran = _died(incident), incident.guest_progress.ran_again_at
    if died and ran:
        yield f"Until it ran again: {span(ran - died)}."
    if over:
        yield f"In all: {span(over - opened)}."
    else:
        yield f"So far: {span(now - opened)}."


# What is left


def _left(case: Case) -> Iterator[str]:
    incident = case.incident
    status = incident.status
    if status == model.HELD:
        yield f"It waits: {_end(incident.sentence)}"
    elif incident.is_open and incident.kind not in model.WORK:
        yield f"It is open until the alarm is over: {_end(incident.sentence)}"
    elif status in model.LIVING:
        yield f"It is being worked on: {_end(incident.sentence)}"
    else:
        yield f"It is over, {status}: {_end(incident.sentence)}"
    waiting = sum(server_move.status in (PENDING, ONGOING) for server_move in case.servers)
    if waiting:
        yield f"{_servers(waiting)} on the way or waiting."
    failed = [server_move for server_move in case.servers if server_move.status == FAILED]
    if failed and not incident.is_open:
        yield f"{_servers(len(failed))} left on {incident.host}."
    may_retry = incident.kind in model.WORK and (failed or not incident.host_progress.back_at)
    if status in (model.FAILED, model.ABORTED) and may_retry:
        yield f"To try again: holdfast incident retry {incident.id}"
    yield from _host_left(incident)


def _host_left(incident: model.Incident) -> Iterator[str]:
    if back := incident.host_progress.back_at:
        yield f"{incident.host} came back and is in use again since {_time(back, incident)}."
    elif incident.host_progress.forced_down_at:
        yield f"{incident.host} is forced down, disabled and on maintenance until it comes back."


# Text helpers


def _servers(count: int) -> str:
    return "1 server is" if count == 1 else f"{count} servers are"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _end(sentence: str) -> str:
    text = " ".join(sentence.split())
    return text if text.endswith((".", "?", "!", "…")) or not text else f"{text}."


def _parse(moment: str) -> datetime:
    return datetime.fromisoformat(moment)


def _time(at: datetime, incident: model.Incident) -> str:
    """Format a time; with the date if the day differs from the day of the incident's opening."""
    same_day = at.date() == incident.opened_at.date()
    return f"{at:%H:%M:%S}" if same_day else f"{at:%Y-%m-%d %H:%M:%S}"


def span(length: timedelta) -> str:
    """Format a duration: 0.4 s, 12.5 s, 3 min 20 s, 2 h 5 min, 3 days."""
    seconds = max(0.0, length.total_seconds())
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{int(seconds) // 60} min {int(seconds) % 60} s"
    hours, minutes = divmod(int(seconds) // 60, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} days"
