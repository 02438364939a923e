# SPDX-License-Identifier: Apache-2.0
"""What an agent reported from its host: a guest that died, a service that does not run.

    server:4f2c…                 kind guest,   state failed (to be recovered), noted (to be told)
                                               or well (it failed, and runs again)
    process:cmp-7:nova-compute   kind process, state failed or well
    server:4f2c…, host:cmp-7     kind alarm,   state raised, again, no_data or cleared

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
#: In the evidence of what had to wait to be told, and was over by then.
OVER_SINCE = "over_since"
#: In which an agent or a host monitor shows its token.
AGENT_HEADER = "X-Holdfast-Agent"
#: The durable work that looks at one report.
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
        """The server's id, or what the process is called."""
        return self.subject.rpartition(":")[2]

    @property
    def still(self) -> frozenset[str]:
        """Statuses and tasks by which the cloud shows that it is so yet; none: it cannot show."""
        said = self.evidence.get("still")
        return frozenset(map(str, said)) if isinstance(said, list) else frozenset()

    @property
    def what(self) -> str:
        said = (str(self.evidence.get(name, "")) for name in ("event", "detail", "reason", "disk"))
        what = " ".join(filter(None, said)) or str(self.evidence.get("sentence", self.state))
        return f"{what} (simulated)" if self.evidence.get("simulated") is True else what

    @property
    def sentence(self) -> str:
        if self.kind == PROCESS:
            return f"{self.host}: {self.what}"
        called = self.evidence.get("domain_name") or self.name
        return f"{called} on {self.host}: {self.state}: {self.what}"

    @property
    def told_before(self) -> datetime | None:
        """When what may be the same began, if the agent that told it was started anew since."""
        try:
            return datetime.fromisoformat(str(self.evidence["told_before"])).astimezone(UTC)
        except (KeyError, ValueError, OverflowError):
            return None

    @property
    def over_since(self) -> str:
        """When it ended, if that was known before it could be told."""
        return str(self.evidence.get(OVER_SINCE, ""))

    def payload(self) -> dict[str, str]:
        """As a notification of the instance HA contract would say it."""
        if self.kind == PROCESS:
            return {"event": "STOPPED", "process_name": self.name}
        event = str(self.evidence.get("event", "")).upper()
        detail = str(self.evidence.get("detail", "")).upper()
        return {"event": event, "instance_uuid": self.name, "vir_domain_event": detail}


def announced(kind: str, state: str) -> str:
    """The event of which people hear, where nothing else comes of a report; empty: of none. Failed
    guests have incidents, and alarms have announcements of their own.

    >>> announced("guest", "noted"), announced("guest", "failed"), announced("process", "well")
    ('guest.noted', '', 'process.well')
    """
    return f"{kind}.{state}" if kind == PROCESS or (kind, state) == (GUEST, NOTED) else ""


def subject(kind: str, said: str, host: str) -> str:
    """What such a report is about, as it is kept; InvalidInput if it is about nothing."""
    if kind == ALARM and said.startswith("host:"):
        if not same(said.removeprefix("host:"), host):
            raise InvalidInput(f"subject: what is seen on {host} is called host:{host}")
        return f"host:{normalise(host)}"
    if kind in (GUEST, ALARM):
        name = said.removeprefix("server:")
        try:
            return f"server:{uuid.UUID(name)}"
        except ValueError:
            raise InvalidInput("subject: what a guest is called is server:UUID") from None
    parts = said.split(":", 2)
    if len(parts) != 3 or parts[0] != PROCESS or not parts[2] or not same(parts[1], host):
        raise InvalidInput(f"subject: a process of {host or 'a host'} is called process:HOST:NAME")
    return f"{PROCESS}:{normalise(host)}:{parts[2]}"


def alarm_queue(key: str) -> str:
    """The subject of the work that asks the cloud about reports of that alarm."""
    return f"{OBSERVATION}:{ALARM}:{hashlib.sha256(key.encode()).hexdigest()[:32]}"


def work_of(id_: str, now: datetime) -> Operation:
    """One row for each: what belongs together is brought together by the incident."""
    return Operation(
        id=id_,
        kind=OBSERVATION,
        subject=f"{OBSERVATION}:{id_}",
        key=f"{OBSERVATION}/{id_}",
        due_at=now,
        next_try_at=now,
        payload={"observation": id_},
    )


# What a monitor says about one guest, as it is kept: a report like that of the host's agent.


@dataclass(frozen=True, kw_only=True)
class GuestReport:
    """`key` is the same however often the same thing is heard: it is written once."""

    observer: str
    server_id: str
    host: str
    state: str  # failed: to be recovered | noted: to be told
    at: datetime
    key: str
    sentence: str
    evidence: Mapping[str, Any] = field(default_factory=dict)

    def values(self) -> dict[str, Any]:
        """Of its row; InvalidInput if it is about nothing."""
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


# What should run on a host, by the word of the cloud: what an agent compares with what does.
#
#     runs       it should run there
#     off        it belongs there, and is switched off
#     busy       something is under way, or nobody can say: nothing follows from how it is found
#     elsewhere  it belongs to another host, or to none
#     unknown    the cloud knows no such server
#
# That nothing is said of a server means nothing: who wants to know has to ask about it.


RUNS: Final = "runs"
OFF: Final = "off"
BUSY: Final = "busy"
ELSEWHERE: Final = "elsewhere"
UNKNOWN: Final = "unknown"
EXPECTED_STATES: Final = (RUNS, OFF, BUSY, ELSEWHERE, UNKNOWN)


@dataclass(frozen=True)
class Expected:
    """One server; `why` is a sentence."""

    uuid: str
    name: str
    state: str
    why: str = ""


@dataclass(frozen=True)
class Expectation:
    """Of one host: all servers of it, and those that were asked about. `at`: when the cloud was
    asked, by the clock of who asked it."""

    host: str
    at: datetime
    servers: tuple[Expected, ...] = ()


# The agent of a host, as far as both sides of the wire speak of it: the answer to its heartbeat.
#
# Heard("3-4f2c", samples_after=178_945_002)    # rules by version; somebody looks at its numbers


@dataclass(frozen=True)
class Heard:
    rules: str  # the version of those that hold for the host
    #: Numbers later than that slot (metrics/history) are wanted; None: nobody looks, send nothing.
    samples_after: int | None = None
