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
#: Kind of the operation that sends, at the end of a mute, notifications for firing alarms.
ALARM_MUTE: Final = "alarm_mute"
#: Actions of a rule that are durable operations.
DURABLE_ACTIONS: Final = ("disable_host", "migrate_away", "repair_ahead")
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
class AlarmReport:
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


def read(body: Mapping[str, Any], host: str, subject: str, event: str) -> AlarmReport:
    """Parse the evidence of an alarm report. InvalidInput says which field is wrong."""
    texts = {name: _text(body, name) for name in _LONGEST}
    for name in ("rule", "entity", "key"):
        if not texts[name]:
            raise InvalidInput(f"evidence.{name}: an alarm names its rule, entity and key")
    severity = body.get("severity")
    if severity not in SEVERITIES:
        raise InvalidInput(f"evidence.severity: write one of {', '.join(SEVERITIES)}")
    actions = body.get("actions", [])
    is_known = isinstance(actions, list) and all(action in ACTIONS for action in actions)
    if not is_known or len(actions) > len(ACTIONS):
        raise InvalidInput(f"evidence.actions: write some of {', '.join(ACTIONS)}")
    _number(body, "threshold")
    return AlarmReport(
        key=_key(host, texts["key"]),
        host=host,
        subject=subject,
        rule=texts["rule"],
        version=texts["version"],
        project=texts["project"],
        severity=severity,
        event=event,
        state=_state(body, event),
        value=_number(body, "value"),
        first_at=_date(body, "first_at"),
        at=_date(body, "at"),
        actions=tuple(actions),
        details=dict(body),
    )


def incident_of(alarm_id: str, report: AlarmReport, now: datetime) -> Incident:
    """Build the incident that an alarm opens, for an operator to look at."""
    return Incident(
        id=alarm_id,
        subject=f"{ALARM}:{alarm_id}",
        kind=ALARM,
        cause=f"alarm {report.rule} of {report.subject} on {report.host}",
        status=OPEN,
        opened_at=now,
        sentence=sentence(report),
        details=facts(alarm_id, report),
    )


def facts(alarm_id: str, report: AlarmReport) -> AlarmFacts:
    """Return the details of an alarm's incident, from the last report."""
    return AlarmFacts(
        host=report.host,
        alarm=alarm_id,
        about=report.subject,
        entity=str(report.details["entity"]),
        rule=report.rule,
        rules_version=report.version,
        severity=report.severity,
        state=report.state,
        value=report.value,
        threshold=threshold(report.details),
    )


def sentence(report: AlarmReport) -> str:
    """Return the status sentence of an alarm's incident."""
    alarm = f"alarm {report.rule} of {report.subject} on {report.host}"
    if report.state == OK:
        why = str(report.details.get("reason") or "")[:_REASON]
        return f"{alarm} is over" + (f": {why}" if why else "")
    if report.state == NO_DATA:
        return f"{alarm} was raised, and nothing is known of it any more"
    return f"{alarm} stands ({report.severity}): nothing is done by itself, look after it"


def evidence(report: AlarmReport) -> str:
    """Return the text with rule, value and threshold, for the timeline of the incident."""
    value, limit = (
        "unknown" if number is None else f"{number:g}"
        for number in (report.value, threshold(report.details))
    )
    return (
        f"rule {report.rule} (rules {report.version or 'without a version'}), host {report.host},"
        f" entity {report.details['entity']}: value {value}, threshold {limit}, since"
        f" {report.first_at.isoformat()}"
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


def end_of_mute(alarm_id: str, until: datetime) -> Operation:
    """Build the operation for the end of an alarm's mute.

    Each alarm has a single row; a longer or shorter mute moves its due time.
    """
    key = f"{ALARM_MUTE}/{alarm_id}"
    return Operation(
        id=hashlib.sha256(key.encode()).hexdigest()[:32],
        kind=ALARM_MUTE,
        subject=f"{ALARM_MUTE}:{alarm_id}",
        key=key,
        due_at=until,
        next_try_at=until,
        payload={"alarm": alarm_id},
    )


def _state(body: Mapping[str, Any], event: str) -> str:
    """Return the alarm state after an event; a repeated report of `no_data` stays `no_data`."""
    if event == AGAIN and body.get("state") == NO_DATA:
        return NO_DATA
    return STATE_AFTER[event]


def threshold(details: Mapping[str, Any]) -> float | None:
    """Return the threshold of the first condition; None if a stored threshold is no number."""
    try:
        return _number(details, "threshold")
    except InvalidInput:
        return None


def _key(host: str, agent_key: str) -> str:
    """Return the alarm key with the host, because equal keys of two hosts are different alarms."""
    return _short(f"{host}/{agent_key}", 255)


def _short(text: str, longest: int) -> str:
    """Return the text, or its SHA-256 digest if the text is too long."""
    return text if len(text) <= longest else hashlib.sha256(text.encode()).hexdigest()


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name, "")
    if not isinstance(value, str) or len(value) > _LONGEST[name]:
        raise InvalidInput(f"evidence.{name}: a text of up to {_LONGEST[name]} characters")
    return value


def _number(body: Mapping[str, Any], name: str) -> float | None:
    value = body.get(name)
    if value is None:
        return None
    try:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and math.isfinite(number := float(value)):
            return number
    except OverflowError:
        pass  # an integer too large for a float
    raise InvalidInput(f"evidence.{name}: a number, or null")


def _date(body: Mapping[str, Any], name: str) -> datetime:
    try:
        date = datetime.fromisoformat(str(body[name]))
        date = date.replace(tzinfo=UTC) if date.tzinfo is None else date.astimezone(UTC)
    except (KeyError, ValueError, OverflowError):
        raise InvalidInput(f"evidence.{name}: a date and time of ISO 8601") from None
    if not 1970 <= date.year < 9000:
        raise InvalidInput(f"evidence.{name}: the year {date.year} is out of range")
    return date


# Saved state of an alarm.


#: Key of this state in the alarm's details.
CENTRAL: Final = "central"
_AHEAD: Final = "repair_ahead"


@dataclass(frozen=True)
class Memory:
    """State that the manager keeps for an alarm, beside the agent's report.

        memory = recall(row)
        memory.notified             # "": no notification yet, the alarm was muted when raised
        memory.asked            # ("repair_ahead",): undone at the end, whatever the rule says now

    The state is part of the alarm's row, because operations are removed after a while and
    alarms can stand for longer. Agents repeat their own part in each report; this part is
    carried over.
    """

    notified: str = ""  # state of the last notification; empty: none sent yet
    asked: tuple[str, ...] = ()  # actions begun for the alarm
    moved_at: str = ""  # when migration of its server was requested because of the alarm


def recall(row: Mapping[str, Any]) -> Memory:
    """Read the state from an alarm's row.

    A row of an older version has none: then a notification was sent and the listed actions were
    begun.
    """
    state = row["details"].get(CENTRAL)
    if not isinstance(state, Mapping):
        listed = row["details"].get("actions", ())
        return Memory(
            notified=row["state"],
            asked=tuple(action for action in DURABLE_ACTIONS if action in listed),
        )
    saved = {column.name: state[column.name] for column in fields(Memory) if column.name in state}
    return replace(Memory(**saved), asked=tuple(saved.get("asked", ())))


def plain(memory: Memory) -> dict[str, Any]:
    """Return the state as JSON."""
    return {
        "notified": memory.notified,
        "asked": list(memory.asked),
        "moved_at": memory.moved_at,
    }


def as_heard(report: AlarmReport, memory: Memory) -> AlarmReport:
    """Treat a repeated report as raised if no notification was sent for the firing alarm."""
    is_first = report.event == AGAIN and report.state == FIRING and memory.notified != FIRING
    return replace(report, event=RAISED) if is_first else report


def actions_of(report: AlarmReport, memory: Memory) -> tuple[str, ...]:
    """Return the actions to begin after a report, always in the same order.

    An action that was begun is not begun again. At the end of the alarm, the begun actions
    decide what is undone, because the rule may have changed meanwhile.
    """
    if report.event == RAISED:
        return tuple(
            action
            for action in DURABLE_ACTIONS
            if action in report.actions and action not in memory.asked
        )
    return (OVER,) if report.event == CLEARED and _AHEAD in memory.asked else ()


def after(report: AlarmReport, memory: Memory) -> Memory:
    """Return the state after the notification and actions for a report."""
    begun = tuple(action for action in actions_of(report, memory) if action != OVER)
    return replace(memory, notified=report.state, asked=(*memory.asked, *begun))
