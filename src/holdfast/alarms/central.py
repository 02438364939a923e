# SPDX-License-Identifier: Apache-2.0
"""An alarm as it is known centrally: what an agent says of it, and what people answered.

    said = alarm.read({"rule": "hot", "entity": "4f2c…", "event": "raised", …}, "cmp-7")
    said.state            # firing

The agent decides when an alarm begins and ends; here it is kept, shown, told and acted upon.
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
from holdfast.model.operation import Operation

#: What is told of an alarm, and the state in which it is then.
RAISED, CLEARED, NO_DATA, AGAIN = "raised", "cleared", "no_data", "again"
FIRING, OK = "firing", "ok"
STATE_AFTER: Final[Mapping[str, str]] = {
    RAISED: FIRING,
    AGAIN: FIRING,
    NO_DATA: NO_DATA,
    CLEARED: OK,
}
STATES: Final = (FIRING, NO_DATA, OK)
#: The durable work that does what a rule asks for.
ALARM_ACTION: Final = "alarm_action"
#: And the one that tells, at the end of a silence, what still stands.
ALARM_SILENCE: Final = "alarm_silence"
#: Of the actions that a rule can ask for, those that are work.
DEEDS: Final = ("disable_host", "migrate_away", "repair_ahead")
#: This one is no work: the incident is written with the alarm, and nothing is done for it.
INCIDENT: Final = "incident"
#: What is done when an alarm ends for which reservations were repaired ahead.
OVER: Final = "repair_over"
#: Deeds that must not overtake each other on a host, or be done at the same time there.
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
    """What an agent said of an alarm."""

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
    """InvalidInput if that cannot be an alarm."""
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
    """The incident that is opened by it, for people to look at."""
    return Incident(
        id=alarm_id,
        subject=f"{ALARM}:{alarm_id}",
        kind=ALARM,
        cause=f"alarm {said.rule} of {said.subject} on {said.host}",
        status=OPEN,
        opened_at=now,
        sentence=sentence(said),
        details={"alarm": alarm_id, **details(said)},
    )


def details(said: Said) -> dict[str, Any]:
    """What its incident keeps of what was said last."""
    return {
        "host": said.host,
        "about": said.subject,
        "entity": str(said.details["entity"]),
        "rule": said.rule,
        "rules_version": said.version,
        "severity": said.severity,
        "state": said.state,
        "value": said.value,
        "threshold": _threshold(said),
    }


def sentence(said: Said) -> str:
    """How its incident stands."""
    what = f"alarm {said.rule} of {said.subject} on {said.host}"
    if said.state == OK:
        why = str(said.details.get("reason") or "")[:_REASON]
        return f"{what} is over" + (f": {why}" if why else "")
    if said.state == NO_DATA:
        return f"{what} was raised, and nothing is known of it any more"
    return f"{what} stands ({said.severity}): nothing is done by itself, look after it"


def evidence(said: Said) -> str:
    """What raised it, for the timeline of its incident."""
    value, threshold = (
        "unknown" if one is None else f"{one:g}" for one in (said.value, _threshold(said))
    )
    return (
        f"rule {said.rule} (rules {said.version or 'without a version'}), host {said.host}, entity"
        f" {said.details['entity']}: value {value}, threshold {threshold}, since"
        f" {said.first_at.isoformat()}"
    )


def action_of(alarm_id: str, host: str, action: str, now: datetime) -> Operation:
    """Its natural key is the alarm and what is asked: however often it is told, it is done once.
    Its subject is the host and the family of the deed: those are done one after the other."""
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
    """One row for each alarm: whoever is silent for longer, or less long, moves it."""
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
    """Also that nothing is known is said again, and is not that it fires."""
    if event == AGAIN and said.get("state") == NO_DATA:
        return NO_DATA
    return STATE_AFTER[event]


def _threshold(said: Said) -> float | None:
    """Of several conditions the first; it is only shown, so an odd one is left out."""
    try:
        return _number(said.details.get("threshold"))
    except InvalidInput:
        return None


def _key(host: str, said: str) -> str:
    """Of one host: two that say the same do not speak of the same alarm."""
    return _short(f"{host}/{said}", 255)


def _short(text: str, longest: int) -> str:
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
        pass  # a whole number that is too large is none that we can keep
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


# What is remembered of an alarm centrally, beside what its agent says of it.
#
#     known = recall(row)
#     known.told            # "": nobody was told yet, it was silent when it was raised
#     known.asked           # ("repair_ahead",): taken back at its end, whatever the rule says now
#
# It is kept in the alarm's own row, for operations are removed after a while and alarms can stand
# for
# longer. Agents say all of their part again with each message; this part is carried over.


#: Where it is in the details of an alarm.
CENTRAL: Final = "central"
_AHEAD: Final = "repair_ahead"


@dataclass(frozen=True)
class Memory:
    told: str = ""  # the state of which people heard last; empty: of none yet
    asked: tuple[str, ...] = ()  # deeds that were begun for it
    moved_at: str = ""  # when its server was asked to leave the host because of it


def recall(row: Mapping[str, Any]) -> Memory:
    """Of one that was written by an older version: it was told, and asked for what it says."""
    kept = row["details"].get(CENTRAL)
    if not isinstance(kept, Mapping):
        asked = row["details"].get("actions", ())
        return Memory(told=row["state"], asked=tuple(one for one in DEEDS if one in asked))
    known = {one.name: kept[one.name] for one in fields(Memory) if one.name in kept}
    return replace(Memory(**known), asked=tuple(known.get("asked", ())))


def plain(memory: Memory) -> dict[str, Any]:
    return {"told": memory.told, "asked": list(memory.asked), "moved_at": memory.moved_at}


def as_heard(said: Said, known: Memory) -> Said:
    """What is said again of an alarm that nobody has heard of is news: it counts as raised."""
    is_news = said.event == AGAIN and said.state == FIRING and known.told != FIRING
    return replace(said, event=RAISED) if is_news else said


def actions_of(said: Said, known: Memory) -> tuple[str, ...]:
    """What is to be done, now that this was said and heard, in one order for all. What was begun
    is not begun again; it is taken back by what was begun, for the rule may be another one now."""
    if said.event == RAISED:
        return tuple(one for one in DEEDS if one in said.actions and one not in known.asked)
    return (OVER,) if said.event == CLEARED and _AHEAD in known.asked else ()


def after(said: Said, known: Memory) -> Memory:
    """What is remembered when that was heard."""
    begun = tuple(one for one in actions_of(said, known) if one != OVER)
    return replace(known, told=said.state, asked=(*known.asked, *begun))
