# SPDX-License-Identifier: Apache-2.0
"""An incident: something died, or seems to have. Reports about the same thing join it; while it is
open no second one of its subject is opened; guards say whether it is acted upon.

    host:cmp-7                  a whole host
    server:4f2c…                one guest
    process:cmp-7:nova-compute  a process on a host
    alarm:9b1d…                 an alarm whose rule asks for it: for people, never acted upon
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from holdfast.model.host import same
from holdfast.model.operation import Operation

HOST, GUEST, PROCESS, ALARM = "host", "guest", "process", "alarm"
#: Statuses; the moves between them are `model.moves.INCIDENT`.
OPEN, HELD, RUNNING = "open", "held", "running"
RECOVERED, FAILED, IGNORED, ABORTED, EXPLAINED = (
    "recovered",
    "failed",
    "ignored",
    "aborted",
    "explained",
)
LIVING = (OPEN, HELD, RUNNING)
#: What the instance HA contract calls a report whose incident ended so.
REPORTED: Mapping[str, str] = {
    RECOVERED: "finished",
    FAILED: "error",
    IGNORED: "ignored",
    ABORTED: "failed",
    EXPLAINED: "finished",
}
#: The durable work of each kind, and its steps in their order; a site adds its own between them.
WORK: Mapping[str, str] = {
    HOST: "recovery_host",
    GUEST: "recovery_guest",
    PROCESS: "recovery_process",
}
#: Of one that has no work nothing is recovered.
KINDS = (*WORK, ALARM)
STEPS: Mapping[str, Sequence[str]] = {
    HOST: ("guards", "fence", "tell", "repair", "prepare", "move", "verify", "report"),
    GUEST: ("guards", "stop", "start", "confirm", "elsewhere", "report"),
    PROCESS: ("guards", "disable", "confirm", "report"),
}
#: What the story adds to an operator's `confirm-off` where the host's fence said the contrary.
DESPITE_POWER_ON = " although its fence reads on"
#: What is to be done about a report.
RECOVER, NOTE, IGNORE = "recover", "note", "ignore"

COMPUTE_HOST, PROCESS_REPORT, VM = "COMPUTE_HOST", "PROCESS", "VM"
NOVA_COMPUTE = "nova-compute"
#: Guest events that are failures, by (event, vir_domain_event); all others are noted and ignored.
FATAL = frozenset(
    {
        ("LIFECYCLE", "STOPPED_FAILED"),
        ("IO_ERROR", "IO_ERROR_REPORT"),
        ("QEMU_GUEST_AGENT_ERROR", "STOPPED_FAILED"),
    }
)


@dataclass(frozen=True)
class Incident:
    id: str
    subject: str
    kind: str
    cause: str
    status: str
    opened_at: datetime
    closed_at: datetime | None = None
    sentence: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def host(self) -> str:
        """The service host it is about, or on which the guest is."""
        return str(self.details.get("host", ""))

    @property
    def segment(self) -> str:
        return str(self.details.get("segment", ""))

    @property
    def server_id(self) -> str:
        return self.subject.removeprefix("server:") if self.kind == GUEST else ""

    @property
    def is_open(self) -> bool:
        return self.status in LIVING

    @property
    def verified_at(self) -> datetime | None:
        """When it was seen to run again."""
        said = self.details.get("verified_at")
        return datetime.fromisoformat(said) if said else None


@dataclass(frozen=True)
class Verdict:
    """What one guard says: yes, or why not. `final`: waiting does not help. `brief`: it waits for
    seconds only, so people are not told."""

    guard: str
    passed: bool
    sentence: str
    final: bool = False
    again_s: float = 5.0
    brief: bool = False


@dataclass(frozen=True)
class Meaning:
    """What a report amounts to."""

    kind: str
    subject: str
    verdict: str  # recover | note | ignore
    cause: str


def meaning(type_: str, host: str, payload: Mapping[str, Any]) -> Meaning:
    """What a report of the instance HA contract says about a host of that (normalised) name."""
    if type_ == COMPUTE_HOST:
        return _host(host, payload)
    if type_ == VM:
        return _guest(payload)
    name, event = payload.get("process_name", ""), payload.get("event", "")
    subject = f"process:{host}:{name}"[:255]
    if event != "STOPPED":
        return Meaning(PROCESS, subject, NOTE, f"{name} runs on {host}")
    said = f"{name} stopped on {host}"
    return Meaning(PROCESS, subject, RECOVER if name == NOVA_COMPUTE else NOTE, said)


def _host(host: str, payload: Mapping[str, Any]) -> Meaning:
    subject, status = f"host:{host}", payload.get("host_status")
    if payload.get("event") != "STOPPED":
        return Meaning(HOST, subject, NOTE, f"{host} is reported to run")
    if status is None:
        return Meaning(HOST, subject, IGNORE, f"{host}: the report does not say host_status")
    if status != "NORMAL":
        said = f"{host}: host_status is {status}, so nobody knows whether it is off"
        return Meaning(HOST, subject, IGNORE, said)
    return Meaning(HOST, subject, RECOVER, f"{host} is reported to have stopped")


def _guest(payload: Mapping[str, Any]) -> Meaning:
    server = payload.get("instance_uuid", "")
    event, detail = payload.get("event", ""), payload.get("vir_domain_event", "")
    fatal = (event, detail) in FATAL
    said = f"server {server}: {event} {detail}"
    return Meaning(
        GUEST,
        f"server:{server}",
        RECOVER if fatal else IGNORE,
        said if fatal else f"{said} is no failure",
    )


#: What a silence may name; all that it names must be so.
MATCHERS = ("kind", "host", "segment", "server")


def matches(matcher: Mapping[str, Any], incident: Incident) -> bool:
    """Whether a silence with that matcher is about that incident."""
    known = {"kind": incident.kind, "segment": incident.segment, "server": incident.server_id}
    for name, value in matcher.items():
        if name == "host":
            if not same(incident.host, str(value)):
                return False
        elif known.get(name) != value:
            return False
    return bool(matcher)


def covers(matcher: Mapping[str, Any], host: str, segment: str | None) -> bool:
    """Whether a silence with that matcher means a host as a whole; `segment` is the id of its."""
    if not matcher or "server" in matcher or matcher.get("kind", HOST) != HOST:
        return False
    if "segment" in matcher and matcher["segment"] != segment:
        return False
    return "host" not in matcher or same(host, str(matcher["host"]))


def recovery_of(incident_id: str, kind: str, subject: str, now: datetime) -> Operation:
    """The work of an incident. That of a guest is the server's, so that it and a move of it never
    run side by side."""
    return Operation(
        id=incident_id,
        kind=WORK[kind],
        subject=subject if kind == GUEST else f"recovery:{incident_id}",
        key=f"recovery/{incident_id}",
        due_at=now,
        next_try_at=now,
        payload={"incident": incident_id},
    )
