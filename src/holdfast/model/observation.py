# SPDX-License-Identifier: Apache-2.0
"""Observations: reports of agents and monitors about guests, services and alarms.

    server:4f2c…                 kind guest,   state failed (to recover), noted (to notify people)
                                               or well (it failed, and runs again)
    process:cmp-7:nova-compute   kind process, state failed or well
    server:4f2c…, host:cmp-7     kind alarm,   state raised, again, no_data or cleared

The module also defines the expected state of a host's guests, and the answer to an agent's
heartbeat.

>>> subject("process", "process:CMP-7:nova-compute", "cmp-7")
'process:cmp-7:nova-compute'
>>> subject("guest", "server:nonsense", "cmp-7")
Traceback (most recent call last):
holdfast.model.errors.InvalidInput: subject: what a guest is called is server:UUID
"""

import hashlib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from holdfast.alarms.central import STATE_AFTER
from holdfast.model.errors import InvalidInput
from holdfast.model.host import normalise, same
from holdfast.model.operation import Operation

GUEST, PROCESS, ALARM = "guest", "process", "alarm"
FAILED, NOTED, WELL = "failed", "noted", "well"
STATES: Mapping[str, tuple[str, ...]] = {
    GUEST: (FAILED, NOTED, WELL),
    PROCESS: (FAILED, WELL),
    ALARM: tuple(STATE_AFTER),
}
#: Evidence key: when the condition ended, if it ended before the report could be delivered.
OVER_SINCE = "over_since"
#: The header that carries the token of an agent or a host monitor.
AGENT_HEADER = "X-Holdfast-Agent"
#: The operation kind that processes a report.
OBSERVATION = "observation"


@dataclass(frozen=True)
class Observed:
    id: str
    observer: str
    subject: str
    kind: str
    state: str
    since: datetime
    evidence: Mapping[str, Any] = field(default_factory=dict)

    @property
    def host(self) -> str:
        return str(self.evidence.get("host", ""))

    @property
    def name(self) -> str:
        """The server's id, or the name of the process."""
        return self.subject.rpartition(":")[2]

    @property
    def still(self) -> frozenset[str]:
        """Server statuses and task states by which the cloud confirms the failure; empty: it
        cannot."""
        states = self.evidence.get("still")
        return frozenset(map(str, states)) if isinstance(states, list) else frozenset()

    @property
    def what(self) -> str:
        details = (
            str(self.evidence.get(name, "")) for name in ("event", "detail", "reason", "disk")
        )
        text = " ".join(filter(None, details)) or str(self.evidence.get("sentence", self.state))
        return f"{text} (simulated)" if self.evidence.get("simulated") is True else text

    @property
    def sentence(self) -> str:
        if self.kind == PROCESS:
            return f"{self.host}: {self.what}"
        called = self.evidence.get("domain_name") or self.name
        return f"{called} on {self.host}: {self.state}: {self.what}"

    @property
    def told_before(self) -> datetime | None:
        """When a condition that may be the same began, as reported before the agent restarted."""
        try:
            return datetime.fromisoformat(str(self.evidence["told_before"])).astimezone(UTC)
        except (KeyError, ValueError, OverflowError):
            return None

    @property
    def over_since(self) -> str:
        """When the condition ended, if known before the report was delivered; else empty."""
        return str(self.evidence.get(OVER_SINCE, ""))

    def payload(self) -> dict[str, str]:
        """Return the payload of an equivalent notification of the instance HA contract."""
        if self.kind == PROCESS:
            return {"event": "STOPPED", "process_name": self.name}
        event = str(self.evidence.get("event", "")).upper()
        detail = str(self.evidence.get("detail", "")).upper()
        return {"event": event, "instance_uuid": self.name, "vir_domain_event": detail}


def announced(kind: str, state: str) -> str:
    """Return the event type to publish when a report has no other effect; empty: publish none.

    Failed guests have incidents, and alarms publish their own events.

    >>> announced("guest", "noted"), announced("guest", "failed"), announced("process", "well")
    ('guest.noted', '', 'process.well')
    """
    return f"{kind}.{state}" if kind == PROCESS or (kind, state) == (GUEST, NOTED) else ""


def subject(kind: str, reported: str, host: str) -> str:
    """Return the subject of a report in stored form; InvalidInput if the subject is malformed."""
    if kind == ALARM and reported.startswith("host:"):
        if not same(reported.removeprefix("host:"), host):
            raise InvalidInput(f"subject: what is seen on {host} is called host:{host}")
        return f"host:{normalise(host)}"
    if kind in (GUEST, ALARM):
        name = reported.removeprefix("server:")
        try:
            return f"server:{uuid.UUID(name)}"
        except ValueError:
            raise InvalidInput("subject: what a guest is called is server:UUID") from None
    parts = reported.split(":", 2)
    if len(parts) != 3 or parts[0] != PROCESS or not parts[2] or not same(parts[1], host):
        raise InvalidInput(f"subject: a process of {host or 'a host'} is called process:HOST:NAME")
    return f"{PROCESS}:{normalise(host)}:{parts[2]}"


def alarm_queue(key: str) -> str:
    """Return the operation subject that serialises the reports of this alarm."""
    return f"{OBSERVATION}:{ALARM}:{hashlib.sha256(key.encode()).hexdigest()[:32]}"


def work_of(id_: str, now: datetime) -> Operation:
    """Make the operation of a report; the incident brings related reports together."""
    return Operation(
        id=id_,
        kind=OBSERVATION,
        subject=f"{OBSERVATION}:{id_}",
        key=f"{OBSERVATION}/{id_}",
        due_at=now,
        next_try_at=now,
        payload={"observation": id_},
    )


# A monitor's report about one guest, stored like a report of the host's agent.


@dataclass(frozen=True, kw_only=True)
class GuestReport:
    """A monitor's report about a guest.

    `key` is the same for every copy of the same event, so the event is written once.
    """

    observer: str
    server_id: str
    host: str
    state: str  # failed: to recover | noted: to notify people
    at: datetime
    key: str
    sentence: str
    evidence: Mapping[str, Any] = field(default_factory=dict)

    def values(self) -> dict[str, Any]:
        """Return the values of the database row; InvalidInput if the subject is malformed."""
        return {
            "observer": self.observer,
            "subject": subject(GUEST, f"server:{self.server_id}", self.host),
            "kind": GUEST,
            "state": self.state,
            "since": self.at,
            "observed_at": self.at,
            "key": self.key[:255],
            "evidence": {**self.evidence, "host": self.host, "sentence": self.sentence},
        }


# The servers that the cloud expects on a host; the agent compares them with those it finds.
#
#     runs       the server should run on the host
#     off        the server belongs to the host, and is switched off
#     busy       an action is under way, or the state is unknown: draw no conclusion
#     elsewhere  the server belongs to another host, or to none
#     unknown    the cloud knows no such server
#
# A server missing from the answer means nothing: the agent has to ask about it.


RUNS: Final = "runs"
OFF: Final = "off"
BUSY: Final = "busy"
ELSEWHERE: Final = "elsewhere"
UNKNOWN: Final = "unknown"
EXPECTED_STATES: Final = (RUNS, OFF, BUSY, ELSEWHERE, UNKNOWN)


@dataclass(frozen=True)
class Expected:
    """A server and its expected state; `why` is a sentence."""

    uuid: str
    name: str
    state: str
    why: str = ""


@dataclass(frozen=True)
class Expectation:
    """The expected servers of a host: all of its own, and those the agent asked about.

    `at` is when the cloud was asked, by the clock of the manager that asked.
    """

    host: str
    at: datetime
    servers: tuple[Expected, ...] = ()


# The answer to the heartbeat of a host's agent, shared by both sides of the wire.
#
#     Heard("3-4f2c", samples_after=178_945_002)    # rules version; a person watches the metrics


@dataclass(frozen=True)
class Heard:
    rules: str  # version of the alarm rules in force for the host
    #: Send samples later than this slot (metrics/history); None: nobody watches, send nothing.
    samples_after: int | None = None
