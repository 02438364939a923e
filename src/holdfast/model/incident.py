# SPDX-License-Identifier: Apache-2.0
"""Incidents: failures of hosts, guests and processes, and alarms; with their evidence.

An incident says that its subject failed, or seems to have failed. Reports about the same
subject join the open incident; no second one opens for it. Guards decide whether recovery runs.

    host:cmp-7                  a whole host
    server:4f2c…                one guest
    process:cmp-7:nova-compute  a process on a host
    alarm:9b1d…                 an alarm whose rule asks for an incident: for people, no recovery
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby
from typing import Any

from holdfast.model.host import same
from holdfast.model.incident_progress import (
    AlarmFacts,
    Details,
    Entry,
    GuestProgress,
    HostProgress,
    Progress,
    plain,
    read,
)
from holdfast.model.operation import Operation
from holdfast.model.votes import FOR

HOST, GUEST, PROCESS, ALARM = "host", "guest", "process", "alarm"
#: Statuses; `model.state_machines.INCIDENT` lists the transitions.
OPEN, HELD, RUNNING = "open", "held", "running"
RECOVERED, FAILED, IGNORED, ABORTED, EXPLAINED = (
    "recovered",
    "failed",
    "ignored",
    "aborted",
    "explained",
)
LIVING = (OPEN, HELD, RUNNING)
#: The instance HA contract's status of a notification, by the final status of its incident.
REPORTED: Mapping[str, str] = {
    RECOVERED: "finished",
    FAILED: "error",
    IGNORED: "ignored",
    ABORTED: "failed",
    EXPLAINED: "finished",
}
#: The operation kind of each incident kind, and its steps in order; a site adds steps in
#: between.
WORK: Mapping[str, str] = {
    HOST: "recovery_host",
    GUEST: "recovery_guest",
    PROCESS: "recovery_process",
}
#: An incident of a kind without an operation is never recovered.
KINDS = (*WORK, ALARM)
STEPS: Mapping[str, Sequence[str]] = {
    HOST: ("guards", "fence", "force_down", "repair", "prepare", "move", "verify", "report"),
    GUEST: ("guards", "stop", "start", "confirm", "elsewhere", "report"),
    PROCESS: ("guards", "disable", "confirm", "report"),
}
#: Appended to the sentence of an operator's `confirm-off` when the host's fence reads power on.
DESPITE_POWER_ON = " although its fence reads on"
#: The guard that checks for signs of life.
STILL_DOWN = "still_down"
#: What to do about a report.
RECOVER, NOTE, IGNORE = "recover", "note", "ignore"

COMPUTE_HOST, PROCESS_REPORT, VM = "COMPUTE_HOST", "PROCESS", "VM"
NOVA_COMPUTE = "nova-compute"
#: Guest events that are failures, by (event, vir_domain_event); all others are noted and
#: ignored.
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
    details: Details = field(default_factory=Details)

    @property
    def host(self) -> str:
        """The failed service host, or the host of the guest."""
        return self.details.host

    @property
    def segment(self) -> str:
        return self.details.segment

    @property
    def progress(self) -> Progress:
        """The progress of the recovery; empty for an alarm."""
        return self.details if isinstance(self.details, Progress) else _NONE

    @property
    def host_progress(self) -> HostProgress:
        """The progress of a host or process; empty for other kinds."""
        return self.details if isinstance(self.details, HostProgress) else _NO_HOST

    @property
    def guest_progress(self) -> GuestProgress:
        """The progress of a guest; empty for other kinds."""
        return self.details if isinstance(self.details, GuestProgress) else _NO_GUEST

    @property
    def server_id(self) -> str:
        return self.subject.removeprefix("server:") if self.kind == GUEST else ""

    @property
    def is_open(self) -> bool:
        return self.status in LIVING

    @property
    def is_contradicted(self) -> bool:
        """Whether signs of life hold the incident: the subject counts as healthy meanwhile."""
        return self.status == HELD and self.progress.held_by == STILL_DOWN

    @property
    def takes_guests(self) -> bool:
        """Whether the recovery of a host has begun and takes all guests off the host."""
        begun = self.kind == HOST and self.status == RUNNING
        return begun and self.host_progress.power_returned is None

    @property
    def verified_at(self) -> datetime | None:
        """The time at which the subject was seen running again."""
        return self.progress.verified_at


_NONE, _NO_HOST, _NO_GUEST = Progress(), HostProgress(), GuestProgress()
_DETAILS: Mapping[str, type[Details]] = {
    HOST: HostProgress,
    PROCESS: HostProgress,
    GUEST: GuestProgress,
    ALARM: AlarmFacts,
}


def details_of(kind: str, stored: Mapping[str, Any] | None) -> Details:
    """Make the details of an incident of this kind from JSON."""
    return read(_DETAILS[kind], stored or {})


@dataclass(frozen=True)
class Verdict:
    """The verdict of a guard: passed, or a sentence why not.

    `final`: waiting does not help. `brief`: the guard waits for seconds only, so people are not
    notified.
    """

    guard: str
    passed: bool
    sentence: str
    final: bool = False
    again_s: float = 5.0
    brief: bool = False


@dataclass(frozen=True)
class Classification:
    """The subject of a report, its cause, and what to do about it."""

    kind: str
    subject: str
    verdict: str  # recover | note | ignore
    cause: str


def classify(type_: str, host: str, payload: Mapping[str, Any]) -> Classification:
    """Classify a report of the instance HA contract about a host of this (normalised) name."""
    if type_ == COMPUTE_HOST:
        return _host(host, payload)
    if type_ == VM:
        return _guest(payload)
    name, event = payload.get("process_name", ""), payload.get("event", "")
    subject = f"process:{host}:{name}"[:255]
    if event != "STOPPED":
        return Classification(PROCESS, subject, NOTE, f"{name} runs on {host}")
    cause = f"{name} stopped on {host}"
    return Classification(PROCESS, subject, RECOVER if name == NOVA_COMPUTE else NOTE, cause)


def _host(host: str, payload: Mapping[str, Any]) -> Classification:
    subject, status = f"host:{host}", payload.get("host_status")
    if payload.get("event") != "STOPPED":
        return Classification(HOST, subject, NOTE, f"{host} is reported to run")
    if status is None:
        return Classification(HOST, subject, IGNORE, f"{host}: the report does not say host_status")
    if status != "NORMAL":
        cause = f"{host}: host_status is {status}, so it is unknown whether it is off"
        return Classification(HOST, subject, IGNORE, cause)
    return Classification(HOST, subject, RECOVER, f"{host} is reported to have stopped")


def _guest(payload: Mapping[str, Any]) -> Classification:
    server = payload.get("instance_uuid", "")
    event, detail = payload.get("event", ""), payload.get("vir_domain_event", "")
    fatal = (event, detail) in FATAL
    cause = f"server {server}: {event} {detail}"
    return Classification(
        GUEST,
        f"server:{server}",
        RECOVER if fatal else IGNORE,
        cause if fatal else f"{cause} is no failure",
    )


#: Keys of a maintenance window's matcher; all keys in it must match.
MATCHERS = ("kind", "host", "segment", "server")


def matches(matcher: Mapping[str, Any], incident: Incident) -> bool:
    """Whether a maintenance window with this matcher covers the incident."""
    fields = {"kind": incident.kind, "segment": incident.segment, "server": incident.server_id}
    for name, value in matcher.items():
        if name == "host":
            if not same(incident.host, str(value)):
                return False
        elif fields.get(name) != value:
            return False
    return bool(matcher)


def covers(matcher: Mapping[str, Any], host: str, segment: str | None) -> bool:
    """Whether a maintenance window with this matcher covers the whole host; `segment` is its id."""
    if not matcher or "server" in matcher or matcher.get("kind", HOST) != HOST:
        return False
    if "segment" in matcher and matcher["segment"] != segment:
        return False
    return "host" not in matcher or same(host, str(matcher["host"]))


def ended_in_place(incident: Incident) -> bool:
    """Whether the incident is over and the host came back with its servers."""
    return not incident.is_open and incident.host_progress.power_returned is not None


def recovery_of(incident_id: str, kind: str, subject: str, now: datetime) -> Operation:
    """Make the recovery operation of an incident.

    The operation of a guest has the server as its subject, so it never runs at the same time as
    an evacuation of that server.
    """
    return Operation(
        id=incident_id,
        kind=WORK[kind],
        subject=subject if kind == GUEST else f"recovery:{incident_id}",
        key=f"recovery/{incident_id}",
        due_at=now,
        next_try_at=now,
        payload={"incident": incident_id},
    )


# Evidence that an incident keeps and never rewrites: what each monitor saw and when it first
# said so, each request to a fence device with its answer, and the attempts before a retry.
#
# A list has a longest length. Beyond it the entries in the middle are dropped and counted in
# one entry, {"left_out": 7}: the beginning says what happened, the end says the current state.


#: The longest lists, in entries. One attempt may make MOST_FENCE_REQUESTS requests.
MOST_VOTES, MOST_FENCE_REQUESTS, MOST_ATTEMPTS = 50, 20, 10
LEFT_OUT = "left_out"


def append(stored: Sequence[Entry] | None, new: Sequence[Entry], most: int) -> tuple[Entry, ...]:
    """Add entries at the end; beyond `most`, drop and count entries in the middle."""
    all_entries, dropped = [*entries(stored), *new], left_out(stored)
    half = most // 2
    over = max(0, len(all_entries) - most)
    if not over and not dropped:
        return tuple(all_entries)
    return (*all_entries[:half], {LEFT_OUT: dropped + over}, *all_entries[half + over :])


def entries(stored: Sequence[Entry] | None) -> list[Entry]:
    """List all entries except the count of dropped entries."""
    return [entry for entry in stored or () if LEFT_OUT not in entry]


def left_out(stored: Sequence[Entry] | None) -> int:
    """Return the number of dropped entries."""
    return sum(int(entry.get(LEFT_OUT, 0)) for entry in stored or ())


# Votes of monitors.


def append_votes(
    stored: Sequence[Entry] | None, votes: Sequence[Entry], now: datetime
) -> tuple[Entry, ...]:
    """Add each vote that differs from the last vote of the same monitor.

    `said_at` is the time at which Holdfast first counted the vote. A monitor that was restarted
    adds a vote of its own.
    """
    last = {str(entry["observer"]): _essence(entry) for entry in entries(stored)}
    at = now.isoformat()
    new = [
        {**vote, "said_at": at} for vote in votes if last.get(vote["observer"]) != _essence(vote)
    ]
    return append(stored, new, MOST_VOTES)


def _essence(vote: Entry) -> tuple[Any, ...]:
    """Return the fields by which two votes differ: vote, reason, since when, health per network."""
    networks = (vote.get("evidence") or {}).get("networks")
    health = [
        (name, report.get("health"))
        for name, report in (networks.items() if isinstance(networks, Mapping) else ())
        if isinstance(report, Mapping)
    ]
    return vote["vote"], vote["why"], vote.get("since"), sorted(health, key=str)


def counted_together(stored: Sequence[Entry] | None) -> Iterator[tuple[str, list[Entry]]]:
    """Group votes by the time at which they were first counted, in order."""
    for at, votes in groupby(entries(stored), key=lambda entry: str(entry.get("said_at", ""))):
        yield at, list(votes)


def votes_of(stored: Sequence[Entry] | None) -> list[Entry]:
    """List a vote per monitor: the first vote for recovery, or else the last vote."""
    by_observer: dict[str, Entry] = {}
    for entry in entries(stored):
        name = str(entry["observer"])
        if name not in by_observer or by_observer[name]["vote"] != FOR:
            by_observer[name] = entry
    return list(by_observer.values())


# Requests to the fence device.


def fence_asked(requests: Sequence[Entry], at: datetime) -> tuple[Entry, ...]:
    """Add a request to power the host off."""
    return append(requests, [{"at": at.isoformat(), "asked": True}], MOST_FENCE_REQUESTS)


def fence_refused(requests: Sequence[Entry], why: str) -> tuple[Entry, ...]:
    """Complete the last request: the device refused it."""
    *before, last = requests or ({},)
    return (*before, {**last, "refused": why})


def fence_failed(requests: Sequence[Entry], at: datetime, why: str) -> tuple[Entry, ...]:
    """Add a failure, unless the last request records it already."""
    earlier = entries(requests)
    if earlier and earlier[-1].get("refused") == why:
        return tuple(requests)
    return append(requests, [{"at": at.isoformat(), "failed": why}], MOST_FENCE_REQUESTS)


def fenced_at(progress: HostProgress) -> tuple[str, bool] | None:
    """Return when a fence device last accepted a power-off request in this incident.

    The second value says whether that was in the current attempt. None: no device accepted a
    request.
    """
    earlier = [entry.get("fence_requests") for entry in reversed(entries(progress.attempts))]
    for place, requests in enumerate((progress.fence_requests, *earlier)):
        for entry in reversed(entries(requests)):
            if entry.get("asked") and not entry.get("refused"):
                return str(entry["at"]), place == 0
    return None


def last_refusal(progress: HostProgress) -> str:
    """Return the last refusal of the fence device in the current attempt."""
    refusals = [
        entry["refused"] for entry in entries(progress.fence_requests) if "refused" in entry
    ]
    return str(refusals[-1]) if refusals else ""


# Attempts before a retry.


def append_attempt(
    old: Incident, steps: Sequence[Entry], forgotten: Sequence[str], author: str
) -> tuple[Entry, ...]:
    """Add the attempt that ended: status, sentence, steps, and who retried it.

    `forgotten` names the details that the attempt keeps and the next attempt clears.
    """
    again = (old.progress.retried_at, old.host_progress.reopened_at)
    attempt: dict[str, Any] = {
        "began_at": max([old.opened_at, *(moment for moment in again if moment)]).isoformat(),
        "ended_at": old.closed_at.isoformat() if old.closed_at else None,
        "status": old.status,
        "sentence": old.sentence,
        "tried_again_by": author,
        "steps": [
            {
                "name": step["name"],
                "status": step["status"],
                "at": step["finished_at"].isoformat() if step["finished_at"] else None,
                "sentence": step["sentence"],
            }
            for step in steps
        ],
    }
    details = plain(old.details)
    attempt |= {name: details[name] for name in forgotten if name in details}
    return append(old.progress.attempts, [attempt], MOST_ATTEMPTS)
