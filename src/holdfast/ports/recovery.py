# SPDX-License-Identifier: Apache-2.0
"""Database ports of recovery: incidents, moves, votes, alarms, observations and host status.

The database makes sure that only one of several managers acts. A write under a claim is refused
(ClaimLost) once the claim is lost.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from holdfast.hoststatus.status import HostStatus
from holdfast.model.incident import Classification, Incident, Verdict
from holdfast.model.incident_progress import Details, Progress
from holdfast.model.observation import Observed
from holdfast.model.operation import Claim, Operation
from holdfast.model.segment import SegmentHost
from holdfast.model.votes import Ballot
from holdfast.ports.cloud import CloudHost
from holdfast.recovery.liveness import FailureReport
from holdfast.recovery.mass_failure import FleetHost

#: States of a move.
PENDING, ONGOING, IGNORED, FAILED, SUCCEEDED = (
    "pending",
    "ongoing",
    "ignored",
    "failed",
    "succeeded",
)
#: Values of `after_migration` other than a migration's number: no evacuation of the server is
#: unanswered; Holdfast started the server in place, or found the server there in its old state.
ANSWERED, STARTED, FOUND = -1, -2, -3


@dataclass(frozen=True)
class Report:
    """A notification of the instance HA contract, with the segment host it is about."""

    uuid: str
    type: str
    payload: Mapping[str, Any]
    generated_at: datetime  # by the reporter's clock
    status: str
    member: SegmentHost | None  # None: the host is no longer in a segment
    received_at: datetime  # by the database's clock
    reporter: str = ""
    is_superseded: bool = False  # its source reported before, with a later date, that the host runs


@dataclass(frozen=True)
class Account:
    """A report that something failed: a notification, or the votes of monitors.

    Both are ingested by the same code, and the reporter learns the outcome.
    """

    meaning: Classification
    member: SegmentHost
    at: datetime  # a recovery verified later than this explains the failure
    details: Progress  # for the incident that is opened or joined
    notification: str = ""  # uuid of the notification
    observations: Sequence[str] = ()  # ids of the votes
    payload: Mapping[str, Any] | None = None  # of the operation that counted the votes
    told_before: datetime | None = None  # time of an earlier report of the same failure, if any


@dataclass(frozen=True)
class IntakeResult:
    """The outcome of an account: the incident it belongs to, and a sentence."""

    incident_id: str
    sentence: str


@dataclass(frozen=True)
class Switch:
    """A pause or a maintenance window in force."""

    scope: str
    author: str
    reason: str
    expires_at: datetime | None


@dataclass(frozen=True)
class Situation:
    """The facts from the database that the guards evaluate."""

    now: datetime
    member: SegmentHost | None
    pauses: Sequence[Switch] = ()
    maintenance_windows: Sequence[Switch] = ()
    larger: Incident | None = None  # an open incident that explains this incident
    domain: str = ""  # the failure domain of the incident's host
    fleet: Sequence[FleetHost] = ()
    starts: Sequence[datetime] = ()  # of recent recoveries of hosts in the domain
    domain_opened: Sequence[datetime] = ()  # of open incidents about hosts of the domain
    domain_alive: bool = False  # every other host of the domain showed a sign of life since then
    before: Sequence[datetime] = ()  # recent recoveries of this subject
    approved: bool = False
    lost_compute: bool = False  # on maintenance because its nova-compute died before


@dataclass(frozen=True)
class AgentBeat:
    """The last heartbeat of a host's agent, by the database's clock."""

    seen_at: datetime
    interval_s: float
    has_boot_id: bool = False
    rebooted_at: datetime | None = None  # when its boot id was first seen changed
    #: Guests that run on the host; None: the agent does not know, or the host booted long ago.
    running: frozenset[str] | None = None
    #: Guests that ran on the host before its last boot, if that was lately.
    ran: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ServerMove:
    """The move of a server off a host: a vmove of the contract with additional fields."""

    uuid: str
    incident_id: str
    server_id: str
    server_name: str
    source_host: str
    status: str = PENDING
    dest_host: str | None = None
    attempts: int = 0
    message: str = ""
    was: str = ""  # the server's status when the host was found dead
    locked_before: bool = False
    reservation: str = ""  # the reservation whose pool the server must stay in
    position: int = 0
    started_at: datetime | None = None
    ended_at: datetime | None = None
    not_before: datetime | None = None
    # the last migration before the attempt under way; or ANSWERED, STARTED, FOUND
    after_migration: int = 0


@dataclass(frozen=True)
class Limits:
    """How many moves may be under way: in all, and to a named target host."""

    all: int
    per_target: int


def unchanged(details: Details) -> Details:
    return details


@dataclass(frozen=True)
class Change:
    """An update of an incident; None leaves a field unchanged.

    `edit` gets the present details, of the incident's kind, in the transaction of the change,
    so that changes of others stay.
    """

    status: str | None = None
    sentence: str | None = None
    edit: Callable[[Any], Details] = unchanged
    verdicts: Sequence[Verdict] | None = None


class Incidents(Protocol):
    def now(self) -> datetime: ...

    def report(self, uuid: str) -> Report:
        """Return a notification; NotFound."""
        ...

    def answer(self, uuid: str, status: str, message: str, claim: Claim) -> None:
        """End a report that opens no incident."""
        ...

    def ingest(
        self,
        account: Account,
        work: Operation,
        claim: Claim,
        events: Callable[[Incident], Sequence[Operation]] = lambda _new: (),
    ) -> IntakeResult:
        """Join the open incident the account belongs to, or open an incident.

        A new incident is written with this work and with the notifications that `events` returns.
        A repeated call changes nothing.
        """
        ...

    def observed(self, id_: str) -> Observed:
        """Return an agent's observation; NotFound."""
        ...

    def recovered_since(self, subject: str, at: datetime) -> str | None:
        """Return the incident whose recovery of the subject was verified at or after `at`."""
        ...

    def ingest_alarm(self, id_: str, claim: Claim, *, is_there: bool) -> bool:
        """Ingest an alarm that an agent reported about a server.

        `is_there`: the cloud has the server on the agent's host. Returns False if the alarm has
        no effect: the server is on another host, and no such alarm is firing.
        """
        ...

    def guest_recovered_since(
        self, subject: str, host: str, *, observer: str = "", incident_id: str = ""
    ) -> str:
        """Return which observer reports the guest running again, and since when.

        Empty if a later observation, or a notification of that incident, says that the guest
        failed. Only reports from the host where the cloud has the guest count, and only those
        of `observer` or of the incident's observers.
        """
        ...

    def witness(
        self, incident_id: str, votes: Sequence[Mapping[str, Any]], ids: Sequence[str], claim: Claim
    ) -> None:
        """Record further observations of monitors about an open incident."""
        ...

    def incident(self, incident_id: str) -> Incident:
        """Return an incident; NotFound."""
        ...

    def failure_reports(self, incident: Incident) -> Sequence[FailureReport]:
        """Return the reports that the subject of a host or process incident failed."""
        ...

    def runs_again(self, incident: Incident) -> bool:
        """Tell whether a source reported, after the last failure report, that the process runs."""
        ...

    def remember(self, payload: Mapping[str, Any], claim: Claim) -> None:
        """Store the findings of durable work for the manager that continues the work."""
        ...

    def agent(self, host: str) -> AgentBeat | None:
        """Return the agent's last heartbeat; None if the host's agent never sent a heartbeat."""
        ...

    def open_about(self, subject: str) -> Incident | None:
        """Return the open incident about the subject, if any."""
        ...

    def open_on(self, host: str) -> Collection[str]:
        """Return subjects of open incidents about the host, its servers and its processes."""
        ...

    def situation(self, incident: Incident, since: datetime) -> Situation:
        """Return the facts for the guards; `since` limits how far back earlier events count."""
        ...

    def change(
        self, incident_id: str, change: Change, claim: Claim, then: Sequence[Operation] = ()
    ) -> Incident:
        """Update an incident, together with the work that follows from the update."""
        ...

    def close(
        self, incident_id: str, change: Change, claim: Claim, then: Sequence[Operation] = ()
    ) -> Incident:
        """Close an incident: answer its reports and free its key for the next incident."""
        ...

    def members(self, segment: str) -> Sequence[SegmentHost]: ...

    def member(self, host: str) -> SegmentHost | None: ...

    def set_member(
        self,
        uuid: str,
        claim: Claim,
        *,
        reserved: bool | None = None,
        on_maintenance: bool | None = None,
    ) -> None: ...

    def use_spare(self, incident_id: str, uuid: str, claim: Claim) -> None:
        """Turn a reserved host into a normal member, and record its use by the incident."""
        ...

    def start(
        self, incident_id: str, change: Change, started: Sequence[datetime], claim: Claim
    ) -> Incident | None:
        """Start the recovery of a host.

        Returns None if recoveries of other hosts of the domain have started beside those in
        `started`: evaluate the guards again.
        """
        ...

    def keep_in_place(
        self, incident_id: str, change: Change, moves: Sequence[ServerMove], claim: Claim
    ) -> Incident | None:
        """Stop evacuating the servers of the incident.

        Returns None if an evacuation off the host was requested beside those in `moves`.
        """
        ...

    def leave_again(
        self, incident_id: str, sentence: str, claim: Claim, *, silent: bool
    ) -> Incident:
        """Undo `keep_in_place`: servers that were started in place are evacuated too.

        `silent`: nova-compute did not report after the return.
        """
        ...

    def start_over(self, incident_id: str, sentence: str, claim: Claim) -> Incident:
        """Undo `keep_in_place` for a host that rebooted and died again.

        The steps of the recovery start again with the guards.
        """
        ...

    def reopen_in_place(self, incident_id: str, sentence: str, claim: Claim) -> Incident | None:
        """Start the servers of a failed recovery that found no capacity, on their returned host.

        Returns None if there are no such servers, or another incident about the host is open.
        """
        ...

    def dead_guests(self, host: str) -> Collection[str]:
        """Return servers of the host whose reported death has an open incident."""
        ...

    def hosts_of(self, reservation: str) -> Sequence[str]:
        """Return the service hosts, in use and usable, of a running reservation."""
        ...

    def awaits_repair(self, host: str) -> bool:
        """Tell whether running reservations hold the host and repair has not handled them."""
        ...


class ServerMoves(Protocol):
    def plan(self, incident_id: str, moves: Sequence[ServerMove], claim: Claim) -> None:
        """Add moves for servers that have no move in the incident yet."""
        ...

    def of(self, incident_id: str) -> Sequence[ServerMove]:
        """Return the incident's moves, in the order of execution."""
        ...

    def move(self, uuid: str) -> ServerMove: ...

    def begin(self, limits: Limits, work: "MoveWork") -> int:
        """Start as many moves as the limits allow; return how many started.

        The moves are those of all incidents that run and are not paused.
        """
        ...

    def leaving(self, host: str) -> Sequence[ServerMove]:
        """Return the unfinished moves off the host, of all incidents."""
        ...

    def aim(self, uuid: str, host: str | None, after: int, limits: Limits, claim: Claim) -> bool:
        """Record the target host of a move and the last migration before it.

        Returns False if too many moves go to that host, or if the incident is closed or keeps
        its servers in place.
        """
        ...

    def note(self, uuid: str, claim: Claim, **values: Any) -> ServerMove:
        """Write columns of a move."""
        ...

    def end(self, uuid: str, claim: Claim, status: str, message: str) -> None: ...

    def put_back(self, uuid: str, claim: Claim, message: str, pause_s: float) -> None:
        """End a failed attempt; another attempt may start after the pause."""
        ...

    def to(self, host: str) -> Sequence[ServerMove]:
        """Return the moves under way to the host."""
        ...


class MoveWork(Protocol):
    def __call__(self, move: ServerMove, now: datetime) -> Operation: ...


# Votes of monitors about hosts, and the result of counting them.


class Votes(Protocol):
    def ballot(self, host: str) -> Ballot:
        """Return all votes about the host, by the host's name in this database."""
        ...

    def is_known(self, host: str) -> bool:
        """Tell whether the name stands for exactly one known host."""
        ...

    def remember(
        self, claim: Claim, payload: Mapping[str, Any], say: str, then: Sequence[Operation] = ()
    ) -> None:
        """Store the result of a count in the operation, with an audit sentence and follow-up work.

        The transaction writes all or nothing.
        """
        ...


# Alarms, for the effects that their rules request.


@dataclass(frozen=True)
class Moved:
    """A finished move of a server off a host, caused by an alarm of a rule."""

    host: str
    rule: str
    at: datetime


class Alarms(Protocol):
    def show(self, alarm_id: str) -> Mapping[str, Any]:
        """Return an alarm: host, subject, rule, state, …; NotFound."""
        ...

    def paused(self) -> str:
        """Return why recovery is paused everywhere; empty if recovery is not paused."""
        ...

    def end_mute(self, alarm_id: str) -> str:
        """End the mute of an alarm; return a sentence about the alarm, or NotFound.

        If the alarm is firing and people do not know its present state, they are notified, and
        the effects its rule requests are started, once.
        """
        ...

    def moves(self, alarm_id: str) -> None:
        """Record that the alarm's server is about to be moved off the host because of the alarm."""
        ...

    def moved(self, alarm_id: str, since: datetime) -> Moved | None:
        """Return the last move of the alarm's server since then that another alarm caused."""
        ...

    def others_ahead(self, alarm_id: str) -> str:
        """Return another firing alarm of the rule on the host that also keeps the host disabled.

        Empty if there is none.
        """
        ...


# Table `hosts`, as far as segments need it.


class KnownHosts(Protocol):
    def know(self, host: CloudHost, region: str) -> int:
        """Return the host's id, adding a missing host; a repeated call changes nothing."""
        ...


# Observations. A report of a failure comes with the operation that examines it: both are
# written, or neither.


class Observations(Protocol):
    def add(self, id_: str, values: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
        """Store an observation; return the row, and whether it is new.

        The same key of the same observer is the same report.
        """
        ...


# Host statuses. The database makes sure that only one of several managers decides.
#
# A `StatusChange` is written only if the host status is still the `old` one. A change that
# takes a host out of use, or back into use, is written together with the work that follows from
# it: both, or neither.


#: The work that follows when a host goes out of use or comes back: one row, armed again.
Repair = Callable[[datetime], Operation]


@dataclass(frozen=True, slots=True)
class Watched:
    """A host as the host monitor sees it."""

    id: int
    name: str  # of the compute service, normalised
    hypervisor_hostname: str
    status: HostStatus


@dataclass(frozen=True, slots=True)
class StatusChange:
    """A status change of a host; `say` is its audit sentence, empty for none."""

    host_id: int
    old: HostStatus
    new: HostStatus
    say: str = ""


@dataclass(frozen=True, slots=True)
class ParkedMessage:
    """A message that a monitor could not process (a parked message)."""

    at: datetime
    monitor: str
    message_id: str
    event_type: str
    why: str
    message: Mapping[str, object]


class HostStatuses(Protocol):
    def now(self) -> datetime:
        """Return the database's time: the clock shared by all managers."""
        ...

    def watched(self) -> Sequence[Watched]:
        """Return all hosts, by id."""
        ...

    def change(self, changes: Sequence[StatusChange], repair: Repair | None) -> set[int]:
        """Write all changes in a transaction; return ids of hosts changed by others meanwhile.

        Those hosts are left out. If a host goes out of use or comes back, `repair` is armed as
        well.
        """
        ...

    def by_state(self) -> Mapping[str, int]:
        """Return the number of hosts per state."""
        ...

    def expedite(self, key: str) -> bool:
        """Make open work of this key due now; False while a manager runs the work."""
        ...

    def park(self, message: ParkedMessage) -> None:
        """Park a message for people to inspect; the oldest are deleted above the limit."""
        ...

    def parked(self, most: int) -> Sequence[ParkedMessage]:
        """Return parked messages, newest first."""
        ...
