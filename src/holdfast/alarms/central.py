# SPDX-License-Identifier: Apache-2.0
"""Alarms in the manager: an agent's alarm report, the durable work that follows, and saved state.

    report = central.read(evidence, "cmp-7", "server:4f2c…", "raised")
    report.state          # firing

The agent decides when an alarm begins and ends. The manager stores and shows the alarm, sends
notifications, and performs the actions of its rule.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import Any, Final

from holdfast.alarms.rules import ACTIONS, SEVERITIES
from holdfast.model.errors import InvalidInput
from holdfast.model.incident import ALARM, OPEN, Incident
from holdfast.model.incident_progress import AlarmFacts
from holdfast.model.operation import Operation

#: Events of an alarm, and the alarm state after each.
RAISED, CLEARED, NO_DATA, AGAIN = "raised", "cleared", "no_data", "again"
FIRING, OK = "firing", "ok"
STATE_AFTER: Final[Mapping[str, str]] = {
    RAISED: FIRING,
    AGAIN: FIRING,
    NO_DATA: NO_DATA,
    CLEARED: OK,
}
STATES: Final = (FIRING, NO_DATA, OK)
#: Kind of the operation that performs a rule's action.
ALARM_ACTION: Final = "alarm_action"
#: Kind of the operation that sends, at the end of a mute, notifications for standing alarms.
ALARM_SILENCE: Final = "alarm_silence"
#: Actions of a rule that are durable operations.
DEEDS: Final = ("disable_host", "migrate_away", "repair_ahead")
#: This action is no operation: the incident is written with the alarm, and nothing else is
#: done.
INCIDENT: Final = "incident"
#: Action at the end of an alarm for which reservations were repaired ahead.
OVER: Final = "repair_over"
#: Families of actions. Actions of a family run in order and never at the same time on a host.
_FAMILY: Final = {
    "disable_host": "disable",
    "migrate_away": "migrate",
    "repair_ahead": "repair",
    OVER: "repair",
}
_LONGEST: Final = {"rule": 128, "project": 64, "version": 64, "entity": 255, "key": 1000}
_REASON: Final = 200


@dataclass(frozen=True)
class Said:
    """An agent's report of an alarm."""

    key: str
    host: str
    subject: str
    rule: str
    version: str
    project: str
    severity: str
    event: str
    state: str
    value: float | None
    first_at: datetime
    at: datetime
    actions: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)


def read(said: Mapping[str, Any], host: str, subject: str, event: str) -> Said:
    """Parse the evidence of an alarm report. InvalidInput says which field is wrong."""
    words = {name: _word(said, name) for name in _LONGEST}
    for name in ("rule", "entity", "key"):
        if not words[name]:
            raise InvalidInput(f"evidence.{name}: an alarm says what it is about")
    severity = said.get("severity")
    if severity not in SEVERITIES:
        raise InvalidInput(f"evidence.severity: it is one of {', '.join(SEVERITIES)}")
    asked = said.get("actions", [])
    if not isinstance(asked, list) or not set(asked) <= set(ACTIONS):
        raise InvalidInput(f"evidence.actions: they are some of {', '.join(ACTIONS)}")
    return Said(
        key=_key(host, words["key"]),
        host=host,
        subject=subject,
        rule=words["rule"],
        version=words["version"],
        project=words["project"],
        severity=severity,
        event=event,
        state=_state(said, event),
        value=_number(said.get("value")),
        first_at=_date(said, "first_at"),
        at=_date(said, "at"),
        actions=tuple(asked),
        details=dict(said),
    )


def incident_of(alarm_id: str, said: Said, now: datetime) -> Incident:
    """Build the incident that an alarm opens, for an operator to look at."""
    return Incident(
        id=alarm_id,
        subject=f"{ALARM}:{alarm_id}",
        kind=ALARM,
        cause=f"alarm {said.rule} of {said.subject} on {said.host}",
        status=OPEN,
        opened_at=now,
        sentence=sentence(said),
        details=facts(alarm_id, said),
    )


def facts(alarm_id: str, said: Said) -> AlarmFacts:
    """Return the details of an alarm's incident, from the last report."""
    return AlarmFacts(
        host=said.host,
        alarm=alarm_id,
        about=said.subject,
        entity=str(said.details["entity"]),
        rule=said.rule,
        rules_version=said.version,
        severity=said.severity,
        state=said.state,
        value=said.value,
        threshold=_threshold(said),
    )


def sentence(said: Said) -> str:
    """Return the status sentence of an alarm's incident."""
    what = f"alarm {said.rule} of {said.subject} on {said.host}"
    if said.state == OK:
        why = str(said.details.get("reason") or "")[:_REASON]
        return f"{what} is over" + (f": {why}" if why else "")
    if said.state == NO_DATA:
        return f"{what} was raised, and nothing is known of it any more"
    return f"{what} stands ({said.severity}): nothing is done by itself, look after it"


def evidence(said: Said) -> str:
    """Return the text with rule, value and threshold, for the timeline of the incident."""
    value, threshold = (
        "unknown" if one is None else f"{one:g}" for one in (said.value, _threshold(said))
    )
    return (
        f"rule {said.rule} (rules {said.version or 'without a version'}), host {said.host}, entity"
        f" {said.details['entity']}: value {value}, threshold {threshold}, since"
        f" {said.first_at.isoformat()}"
    )


def action_of(alarm_id: str, host: str, action: str, now: datetime) -> Operation:
    """Build the operation that performs an action for an alarm.

    The natural key is the alarm and the action, so repeated reports perform the action once.
    The subject is the host and the action's family, so actions of a family run one after the
    other.
    """
    key = f"{ALARM_ACTION}/{alarm_id}/{action}"
    return Operation(
        id=hashlib.sha256(key.encode()).hexdigest()[:32],
        kind=ALARM_ACTION,
        subject=_short(f"{ALARM_ACTION}:{host}:{_FAMILY[action]}", 128),
        key=key,
        due_at=now,
        next_try_at=now,
        payload={"alarm": alarm_id, "action": action},
    )


def end_of_silence(alarm_id: str, until: datetime) -> Operation:
    """Build the operation for the end of an alarm's mute.

    Each alarm has a single row; a longer or shorter mute moves its due time.
    """
    key = f"{ALARM_SILENCE}/{alarm_id}"
    return Operation(
        id=hashlib.sha256(key.encode()).hexdigest()[:32],
        kind=ALARM_SILENCE,
        subject=f"{ALARM_SILENCE}:{alarm_id}",
        key=key,
        due_at=until,
        next_try_at=until,
        payload={"alarm": alarm_id},
    )


def _state(said: Mapping[str, Any], event: str) -> str:
    """Return the alarm state after an event; a repeated report of `no_data` stays `no_data`."""
    if event == AGAIN and said.get("state") == NO_DATA:
        return NO_DATA
    return STATE_AFTER[event]


def _threshold(said: Said) -> float | None:
    """Return the threshold of the first condition; None if malformed, as it is only shown."""
    try:
        return _number(said.details.get("threshold"))
    except InvalidInput:
        return None


def _key(host: str, said: str) -> str:
    """Return the alarm key with the host, because equal keys of two hosts are different alarms."""
    return _short(f"{host}/{said}", 255)


def _short(text: str, longest: int) -> str:
    """Return the text, or its SHA-256 digest if the text is too long."""
    return text if len(text) <= longest else hashlib.sha256(text.encode()).hexdigest()


def _word(said: Mapping[str, Any], name: str) -> str:
    value = said.get(name, "")
    if not isinstance(value, str) or len(value) > _LONGEST[name]:
        raise InvalidInput(f"evidence.{name}: a text of up to {_LONGEST[name]} characters")
    return value


def _number(value: Any) -> float | None:
    if value is None:
        return None
    try:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and math.isfinite(found := float(value)):
            return found
    except OverflowError:
        pass  # an integer too large for a float
    raise InvalidInput("evidence.value: a number, or null")


def _date(said: Mapping[str, Any], name: str) -> datetime:
    try:
        found = datetime.fromisoformat(str(said[name]))
        found = found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (KeyError, ValueError, OverflowError):
        raise InvalidInput(f"evidence.{name}: a date and time of ISO 8601") from None
    if not 1970 <= found.year < 9000:
        raise InvalidInput(f"evidence.{name}: the year {found.year} is out of range")
    return found


# Saved state of an alarm.


#: Key of this state in the alarm's details.
CENTRAL: Final = "central"
_AHEAD: Final = "repair_ahead"


@dataclass(frozen=True)
class Memory:
    """State that the manager keeps for an alarm, beside the agent's report.

        known = recall(row)
        known.told            # "": no notification yet, the alarm was muted when raised
        known.asked           # ("repair_ahead",): undone at the end, whatever the rule says now

    The state is part of the alarm's row, because operations are removed after a while and
    alarms can stand for longer. Agents repeat their own part in each report; this part is
    carried over.
    """

    told: str = ""  # state of the last notification; empty: none sent yet
    asked: tuple[str, ...] = ()  # actions begun for the alarm
    moved_at: str = ""  # when migration of its server was requested because of the alarm


def recall(row: Mapping[str, Any]) -> Memory:
    """Read the state from an alarm's row.

    A row of an older version has none: then a notification was sent and the listed actions were
    begun.
    """
    kept = row["details"].get(CENTRAL)
    if not isinstance(kept, Mapping):
        asked = row["details"].get("actions", ())
        return Memory(told=row["state"], asked=tuple(one for one in DEEDS if one in asked))
    known = {one.name: kept[one.name] for one in fields(Memory) if one.name in kept}
    return replace(Memory(**known), asked=tuple(known.get("asked", ())))


def plain(memory: Memory) -> dict[str, Any]:
    """Return the state as JSON."""
    return {"told": memory.told, "asked": list(memory.asked), "moved_at": memory.moved_at}


def as_heard(said: Said, known: Memory) -> Said:
    """Treat a repeated report as raised if no notification was sent for the firing alarm."""
    is_news = said.event == AGAIN and said.state == FIRING and known.told != FIRING
    return replace(said, event=RAISED) if is_news else said


def actions_of(said: Said, known: Memory) -> tuple[str, ...]:
    """Return the actions to begin after a report, always in the same order.

    An action that was begun is not begun again. At the end of the alarm, the begun actions
    decide what is undone, because the rule may have changed meanwhile.
    """
    if said.event == RAISED:
        return tuple(one for one in DEEDS if one in said.actions and one not in known.asked)
    return (OVER,) if said.event == CLEARED and _AHEAD in known.asked else ()


def after(said: Said, known: Memory) -> Memory:
    """Return the state after the notification and actions for a report."""
    begun = tuple(one for one in actions_of(said, known) if one != OVER)
    return replace(known, told=said.state, asked=(*known.asked, *begun))
