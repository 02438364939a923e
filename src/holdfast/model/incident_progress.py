# SPDX-License-Identifier: Apache-2.0
"""The details of an incident, by its kind: facts about the subject and progress of its recovery.

    HostProgress(host="cmp-7", evidence=OffEvidence("fenced", "cmp-7 was fenced", at))

The database and the API hold details as JSON. `plain` and `read` convert; a field of a progress
with its default value is left out of the JSON.
"""

import types
import typing
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from datetime import UTC, datetime
from functools import cache
from typing import Any, TypeVar

#: An entry of an evidence list; see `model.incident.append`.
Entry = Mapping[str, Any]
T = TypeVar("T")
D = TypeVar("D", bound="Details")
#: The progress that a recovery works on.
P = TypeVar("P", bound="Progress")
#: Metadata of a field that belongs to an attempt: a retry moves its value into `attempts`.
_ATTEMPT = {"attempt": True}


#: Kinds of evidence that a host is off. FENCED: Holdfast switched the host off during this
#: incident. POWER_OFF: the power reads off and Holdfast did not switch it off.
FENCED, SAID, TRUSTED, WATCHDOG, ACCEPTED = "fenced", "said", "trusted", "watchdog", "accepted"
POWER_OFF = "power_off"
#: Kinds of evidence that rest on the power state which the device reports.
READ_OFF = (FENCED, POWER_OFF)


@dataclass(frozen=True)
class OffEvidence:
    """The proof that a host is off."""

    kind: str
    sentence: str
    at: datetime


@dataclass(frozen=True)
class OperatorWord:
    """The statement of an operator about an incident."""

    author: str
    reason: str
    at: datetime


@dataclass(frozen=True)
class ConfirmedOff(OperatorWord):
    """An operator's confirmation that the host is off.

    `reads_on`: the fence read on. `despite_power_on`: the operator knew that.
    """

    reads_on: bool = False
    despite_power_on: bool = False


@dataclass(frozen=True)
class PowerReturned:
    """Servers start in place, since this time: the host has power, rebooted, or is in use again.

    `last_report`: Nova's time of the last report of nova-compute before.
    """

    at: datetime
    last_report: str | None = None
    in_use: bool = False
    rebooted: bool = False
    reported_at: datetime | None = None  # nova-compute reported after the reboot
    silent_since: datetime | None = None


@dataclass(frozen=True)
class MonitorsReport:
    """When monitors reported the host down, and on which networks; None: on all networks.

    `after_return`: an earlier incident of the host ended in place then, and explains its reboot.
    """

    received_at: datetime
    networks: tuple[str, ...] | None = None
    after_return: bool = False


@dataclass(frozen=True)
class NovaReads:
    """Result of repeated reads of a host's compute service in Nova.

    Only a change of `updated_at` between two reads counts, because the timestamp comes from
    another machine's clock. A change of the service's settings moves `updated_at` too, so the
    settings at the last read are kept.
    """

    updated_at: str
    first_at: datetime
    advanced_at: datetime | None = None
    settings: str = ""


@dataclass(frozen=True)
class Counted:
    """How the judgement counted a source."""

    source: str
    says: str
    at: datetime
    counted: str


@dataclass(frozen=True)
class NoRoom:
    """Why servers wait, found out once per try; `tried` changes with every try."""

    tried: str
    counted: str
    sentence: str


@dataclass(frozen=True)
class RetryReport:
    """The last report of nova-compute at a retry, and when Holdfast read it."""

    report: str
    at: datetime


@dataclass(frozen=True)
class Details:
    """The host of an incident, its segment host and its segment."""

    host: str = ""
    member: str = ""
    segment: str = ""


@dataclass(frozen=True)
class AlarmFacts(Details):
    """An alarm with an incident, by the agent's last report."""

    alarm: str = ""
    about: str = ""
    entity: str = ""
    rule: str = ""
    rules_version: str = ""
    severity: str = ""
    state: str = ""
    value: float | None = None
    threshold: float | None = None


@dataclass(frozen=True)
class Progress(Details):
    """Progress of a recovery, of any kind."""

    report: str = ""  # id of the notification
    payload: Mapping[str, Any] = field(default_factory=dict)
    observed: Mapping[str, Any] = field(default_factory=dict)  # by the agent
    reported_at: datetime | None = None
    held_since: datetime | None = None
    held_by: str = ""  # the guard that holds the incident
    held_announced: bool = True
    dry_run: bool = False
    started_at: datetime | None = field(default=None, metadata=_ATTEMPT)
    verified_at: datetime | None = field(default=None, metadata=_ATTEMPT)
    retried_at: datetime | None = None
    moving_at: datetime | None = None
    aborted: OperatorWord | None = field(default=None, metadata=_ATTEMPT)
    attempts: tuple[Entry, ...] = ()


@dataclass(frozen=True)
class HostProgress(Progress):
    """Progress of a host: of a dead host, or of a host without nova-compute."""

    domain: str = ""
    seen: tuple[Entry, ...] = ()  # votes of monitors
    monitors: MonitorsReport | None = None
    nova: NovaReads | None = None
    sources: tuple[Counted, ...] = field(default=(), metadata=_ATTEMPT)
    ran: tuple[str, ...] | None = None  # ids of the servers that ran when the host died
    # off
    evidence: OffEvidence | None = field(default=None, metadata=_ATTEMPT)
    confirmed_off: ConfirmedOff | None = field(default=None, metadata=_ATTEMPT)
    fence_asked: int = field(default=0, metadata=_ATTEMPT)
    fence_asked_at: datetime | None = field(default=None, metadata=_ATTEMPT)
    fence_failures: int = field(default=0, metadata=_ATTEMPT)
    fence_requests: tuple[Entry, ...] = field(default=(), metadata=_ATTEMPT)
    escalated_at: datetime | None = field(default=None, metadata=_ATTEMPT)
    forced_down_at: datetime | None = None  # forced down in Nova
    # servers
    last_migration: int | None = None
    spares: tuple[str, ...] = ()
    no_room: NoRoom | None = field(default=None, metadata=_ATTEMPT)
    # power again
    was_off: bool = False  # an earlier attempt proved it
    power_returned: PowerReturned | None = field(default=None, metadata=_ATTEMPT)
    silent_after_return: bool = field(default=False, metadata=_ATTEMPT)
    reopened_at: datetime | None = field(default=None, metadata=_ATTEMPT)
    report_at_retry: RetryReport | None = field(default=None, metadata=_ATTEMPT)
    powered_on_at: datetime | None = None
    # the return
    last_report: str | None = None  # Nova's time of a report of nova-compute
    cut_off: bool = False
    fenced_back: bool = False
    well_since: datetime | None = None
    back_at: datetime | None = None


@dataclass(frozen=True)
class GuestProgress(Progress):
    """Progress of a guest."""

    server_name: str | None = None
    down_at: datetime | None = None
    stop_by: datetime | None = field(default=None, metadata=_ATTEMPT)
    start_by: datetime | None = field(default=None, metadata=_ATTEMPT)
    in_place: str = field(default="", metadata=_ATTEMPT)  # why it does not run in place
    elsewhere: str = field(default="", metadata=_ATTEMPT)  # the host where it runs, or "failed"
    elsewhere_by: datetime | None = field(default=None, metadata=_ATTEMPT)
    tried_hosts: tuple[str | None, ...] = field(default=(), metadata=_ATTEMPT)
    ran_again_at: datetime | None = field(default=None, metadata=_ATTEMPT)
    ended_again: str = ""


def of_attempt(details: Details) -> tuple[str, ...]:
    """Return the names of the fields that belong to an attempt."""
    return tuple(field_.name for field_ in fields(details) if field_.metadata == _ATTEMPT)


def reset(details: D, names: Collection[str]) -> D:
    """Set the fields of these names to their defaults."""
    return replace(
        details,
        **{field_.name: _default(field_) for field_ in fields(details) if field_.name in names},
    )


# JSON


def plain(value: Any) -> Any:
    """Convert details, or a value in details, to JSON."""
    if is_dataclass(value):
        held = [(field_, getattr(value, field_.name)) for field_ in fields(value)]
        if isinstance(value, Progress):
            held = [pair for pair in held if pair[1] != _default(pair[0])]
        return {field_.name: plain(held_value) for field_, held_value in held}
    if isinstance(value, datetime):
        return value.isoformat()
    return [plain(item) for item in value] if isinstance(value, tuple) else value


def read(kind: type[T], stored: Mapping[str, Any]) -> T:
    """Make details, or a value in details, from JSON; null and unknown fields do not count."""
    readers = _readers(typing.cast(Hashable, kind))
    fields_ = {name: value for name, value in stored.items() if name in readers}
    return kind(
        **{name: readers[name](value) for name, value in fields_.items() if value is not None}
    )


@cache
def _readers(kind: Any) -> Mapping[str, Callable[[Any], Any]]:
    hints = typing.get_type_hints(kind)
    return {field_.name: _reader(hints[field_.name]) for field_ in fields(kind)}


def _reader(hint: Any) -> Callable[[Any], Any]:
    """Return the function that reads a JSON value for this type."""
    if isinstance(hint, types.UnionType):
        hint = next(arg for arg in typing.get_args(hint) if arg is not types.NoneType)
    if hint is datetime:
        return _moment
    if is_dataclass(hint) and isinstance(hint, type):
        return lambda value: read(hint, value)
    if typing.get_origin(hint) is tuple:
        item = _reader(typing.get_args(hint)[0])
        return lambda values: tuple(None if value is None else item(value) for value in values)
    return lambda value: value


def _moment(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


def _default(field_: "Field[Any]") -> Any:
    return field_.default if field_.default_factory is MISSING else field_.default_factory()
