# SPDX-License-Identifier: Apache-2.0
"""Where incidents and the moves of servers are kept, so that of several managers one acts.

What is written in the name of a claim is refused (ClaimLost) once the claim is gone.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from holdfast.hoststatus.status import HostStatus
from holdfast.model.incident import Classification, Incident, Verdict
from holdfast.model.observation import Observed
from holdfast.model.operation import Claim, Operation
from holdfast.model.segment import SegmentHost
from holdfast.model.votes import Ballot
from holdfast.ports.cloud import CloudHost
from holdfast.recovery.liveness import FailureReport
from holdfast.recovery.mass_failure import Seen

#: What becomes of a move.
PENDING, ONGOING, IGNORED, FAILED, SUCCEEDED = (
    "pending",
    "ongoing",
    "ignored",
    "failed",
    "succeeded",
)
#: Instead of a migration's number in `after_migration`: no evacuation of the server is unanswered;
#: the server was started where it is.
ANSWERED, STARTED = -1, -2


@dataclass(frozen=True)
class Report:
    """A notification, with the member of a segment that it is about."""

    uuid: str
    type: str
    payload: Mapping[str, Any]
    generated_at: datetime  # by the clock of who reported
    status: str
    member: SegmentHost | None  # None: no longer in a segment
    received_at: datetime  # by ours
    reporter: str = ""
    is_superseded: bool = False  # its source said before, with a later date, that the host runs


@dataclass(frozen=True)
class Account:
    """That something died, whoever says so: one notification, or the votes of monitors. It is taken
    in by one road, and whoever said so learns what became of it."""

    meaning: Classification
    member: SegmentHost
    at: datetime  # a recovery that was verified later explains it
    details: Mapping[str, Any]  # for the incident that is opened, or joined
    notification: str = ""  # its uuid
    observations: Sequence[str] = ()  # ids of the votes
    payload: Mapping[str, Any] | None = None  # of the work that counted them
    told_before: datetime | None = None  # it may be what was told then, if nothing ended it since


@dataclass(frozen=True)
class IntakeResult:
    """What became of an account: the incident it belongs to, and a sentence."""

    incident_id: str
    sentence: str


@dataclass(frozen=True)
class Switch:
    """A pause or a silence that is in force."""

    scope: str
    author: str
    reason: str
    expires_at: datetime | None


@dataclass(frozen=True)
class Situation:
    """What the guards look at, of what we have written down ourselves."""

    now: datetime
    member: SegmentHost | None
    pauses: Sequence[Switch] = ()
    silences: Sequence[Switch] = ()
    larger: Incident | None = None  # an open one that explains this one
    domain: str = ""  # the failure domain of its host
    fleet: Sequence[Seen] = ()
    starts: Sequence[datetime] = ()  # of recoveries of hosts in its domain, lately
    domain_opened: Sequence[datetime] = ()  # when open incidents about hosts of its domain were
    domain_alive: bool = False  # every other host of its domain gave a sign of life since then
    before: Sequence[datetime] = ()  # when this subject was recovered, lately
    approved: bool = False
    lost_compute: bool = False  # it is on maintenance because its nova-compute died before


@dataclass(frozen=True)
class AgentBeat:
    """The last heartbeat of a host's agent, by our clock."""

    seen_at: datetime
    interval_s: float
    has_boot_id: bool = False
    rebooted_at: datetime | None = None  # when its boot id was first seen to be another one
    #: Guests that run there; None: the agent does not know, or the host booted long ago.
    running: frozenset[str] | None = None


@dataclass(frozen=True)
class ServerMove:
    """One server's way off a host: a vmove of the contract, and what we need to know beyond it."""

    uuid: str
    incident_id: str
    server_id: str
    server_name: str
    source_host: str
    status: str = PENDING
    dest_host: str | None = None
    attempts: int = 0
    message: str = ""
    was: str = ""  # the server's status when its host was found dead
    locked_before: bool = False
    reservation: str = ""  # whose pool it must stay in
    position: int = 0
    started_at: datetime | None = None
    ended_at: datetime | None = None
    not_before: datetime | None = None
    # the last one before the attempt that is under way; ANSWERED, STARTED
    after_migration: int = 0


@dataclass(frozen=True)
class Limits:
    """How many moves may be under way: in all, and to one host that was named."""

    all: int
    per_target: int


@dataclass(frozen=True)
class Change:
    """What is new of an incident; None leaves it as it is."""

    status: str | None = None
    sentence: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)  # beside those there are
    verdicts: Sequence[Verdict] | None = None


class Incidents(Protocol):
    def now(self) -> datetime: ...

    def report(self, uuid: str) -> Report:
        """NotFound."""
        ...

    def answer(self, uuid: str, status: str, message: str, claim: Claim) -> None:
        """How a report ends that makes no incident."""
        ...

    def ingest(
        self,
        account: Account,
        work: Operation,
        claim: Claim,
        told: Callable[[Incident], Sequence[Operation]] = lambda _new: (),
    ) -> IntakeResult:
        """Join the open incident that it belongs to, or open one with this work and that of telling
        people; twice is once."""
        ...

    def observed(self, id_: str) -> Observed:
        """What an agent reported; NotFound."""
        ...

    def recovered_since(self, subject: str, at: datetime) -> str | None:
        """The incident whose recovery of that subject was verified at or after then."""
        ...

    def ingest_alarm(self, id_: str, claim: Claim, *, is_there: bool) -> bool:
        """Take in an alarm that an agent reported of a server; `is_there`: the cloud has it on the
        agent's host. False if it leads to nothing: the server is elsewhere, and no such alarm
        stands."""
        ...

    def guest_recovered_since(
        self, subject: str, host: str, *, observer: str = "", incident_id: str = ""
    ) -> str:
        """Who says that a guest runs again, and since when, if nobody said later that it failed,
        nor a notification of that incident; empty otherwise. Only reports from the host where the
        cloud has the guest count, and those of `observer`, or of the incident's observers."""
        ...

    def witness(
        self, incident_id: str, seen: Sequence[Mapping[str, Any]], ids: Sequence[str], claim: Claim
    ) -> None:
        """More monitors, or others, say what they see of an incident that is open."""
        ...

    def incident(self, incident_id: str) -> Incident:
        """NotFound."""
        ...

    def is_reported(self, incident_id: str) -> bool:
        """Whether a notification about its host belongs to it."""
        ...

    def failure_reports(self, incident: Incident) -> Sequence[FailureReport]:
        """Who reported that the subject of an incident about a host or a process failed."""
        ...

    def remember(self, payload: Mapping[str, Any], claim: Claim) -> None:
        """Keep what durable work has found out, for whoever goes on with it."""
        ...

    def agent(self, host: str) -> AgentBeat | None:
        """None: no agent of that host was ever heard of."""
        ...

    def open_about(self, subject: str) -> Incident | None:
        """The one that is open about it, if any."""
        ...

    def open_on(self, host: str) -> Collection[str]:
        """Subjects of those that are open about that host, its servers and its processes."""
        ...

    def situation(self, incident: Incident, since: datetime) -> Situation:
        """`since`: how far back it looks for earlier ones."""
        ...

    def change(
        self, incident_id: str, change: Change, claim: Claim, then: Sequence[Operation] = ()
    ) -> Incident:
        """Together with the work that comes of it."""
        ...

    def close(
        self, incident_id: str, change: Change, claim: Claim, then: Sequence[Operation] = ()
    ) -> Incident:
        """The last change: its reports are answered, its key is free for the next one."""
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
        """The member is a spare no more, and the incident's."""
        ...

    def start(
        self, incident_id: str, change: Change, seen: Sequence[datetime], claim: Claim
    ) -> Incident | None:
        """Let the recovery of a host begin; None if others of its domain have begun beside those
        `seen`: ask the guards again."""
        ...

    def keep_in_place(
        self, incident_id: str, change: Change, seen: Sequence[ServerMove], claim: Claim
    ) -> Incident | None:
        """From here on no server of the incident is evacuated; None if an evacuation from its host
        was asked for beside those `seen`."""
        ...

    def leave_again(
        self, incident_id: str, sentence: str, details: Mapping[str, Any], claim: Claim
    ) -> Incident:
        """Undo `keep_in_place`: servers that were started in place are evacuated too."""
        ...

    def start_over(self, incident_id: str, sentence: str, claim: Claim) -> Incident:
        """Undo `keep_in_place` of a host that rebooted and died again: the steps of the recovery
        begin with its guards."""
        ...

    def reopen_in_place(self, incident_id: str, sentence: str, claim: Claim) -> Incident | None:
        """Start the servers of a failed recovery that found no room, on their host that is back;
        None if there are none, or another incident about the host is open."""
        ...

    def dead_guests(self, incident_id: str) -> Collection[str]:
        """Servers whose death was reported and is explained by this incident."""
        ...

    def hosts_of(self, reservation: str) -> Sequence[str]:
        """Service hosts, in use and usable, that a running reservation has now."""
        ...

    def still_hurt(self, host: str) -> bool:
        """Whether running reservations have that host and repair has not been at them."""
        ...


class ServerMoves(Protocol):
    def plan(self, incident_id: str, moves: Sequence[ServerMove], claim: Claim) -> None:
        """Add those that are not there yet, by server."""
        ...

    def of(self, incident_id: str) -> Sequence[ServerMove]:
        """In the order in which they go."""
        ...

    def move(self, uuid: str) -> ServerMove: ...

    def begin(self, limits: Limits, work: "MoveWork") -> int:
        """Let as many begin as the limits allow, of all incidents that run and are not paused; how
        many did."""
        ...

    def leaving(self, host: str) -> Sequence[ServerMove]:
        """Those from that host that have not ended, of all incidents."""
        ...

    def aim(self, uuid: str, host: str | None, after: int, limits: Limits, claim: Claim) -> bool:
        """Name the host it goes to, and the last migration before; False if too many are on their
        way there, or its incident is over or keeps its servers in place."""
        ...

    def note(self, uuid: str, claim: Claim, **values: Any) -> ServerMove:
        """Write down columns of it."""
        ...

    def end(self, uuid: str, claim: Claim, status: str, message: str) -> None: ...

    def put_back(self, uuid: str, claim: Claim, message: str, pause_s: float) -> None:
        """This attempt failed; another may begin after the pause."""
        ...

    def to(self, host: str) -> Sequence[ServerMove]:
        """Those that are under way to that host."""
        ...


class MoveWork(Protocol):
    def __call__(self, move: ServerMove, now: datetime) -> Operation: ...


# Where what monitors see and report of hosts is found, and what counting it led to is kept.


class Votes(Protocol):
    def ballot(self, host: str) -> Ballot:
        """All that there is to count about it, by what it is called here."""
        ...

    def is_known(self, host: str) -> bool:
        """Whether it is one of our hosts, and only one can be meant."""
        ...

    def remember(
        self, claim: Claim, payload: Mapping[str, Any], say: str, then: Sequence[Operation] = ()
    ) -> None:
        """Write down in the work itself what it led to, with a sentence for the audit and the work
        that comes of it: all or nothing."""
        ...


# Where alarms are kept, for whoever does what their rules ask for.


@dataclass(frozen=True)
class Moved:
    """A server was moved off that host because of an alarm of that rule; when that ended."""

    host: str
    rule: str
    at: datetime


class Alarms(Protocol):
    def show(self, alarm_id: str) -> Mapping[str, Any]:
        """host, subject, rule, state, …; NotFound."""
        ...

    def paused(self) -> str:
        """Why nothing is to be done now: recovery is paused everywhere; empty if it is not."""
        ...

    def speak_up(self, alarm_id: str) -> str:
        """Its silence is over: if it stands and people do not know how it is, they are told, and
        what it asks for is begun, once. The sentence about it; NotFound."""
        ...

    def moves(self, alarm_id: str) -> None:
        """Remember that its server is about to be moved off the host because of it."""
        ...

    def moved(self, alarm_id: str, since: datetime) -> Moved | None:
        """The last time since then that another alarm moved the server of this one."""
        ...

    def others_ahead(self, alarm_id: str) -> str:
        """Another alarm of the same rule that stands there and for which the host is kept out of
        use too; empty: none."""
        ...


# The one list of hosts, as far as segments need it.


class KnownHosts(Protocol):
    def know(self, host: CloudHost, region: str) -> int:
        """The id of that host in the list; it is added if it was not there. Twice is once."""
        ...


# Where reports are kept. One that says that something failed comes with the work of looking at
# it:
# both are written, or neither.


class Observations(Protocol):
    def add(self, id_: str, values: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
        """The row, and if it is new: the same key of an observer is the same report."""
        ...


# Where standings are kept, so that of several managers only one decides.
#
# A `Change` is written only if the standing is still the `old` one. What takes a host out of use,
# or
# back, is written together with the work that follows from it: both, or neither.


#: The work that follows when a host goes out of use or comes back: one row, armed again.
Repair = Callable[[datetime], Operation]


@dataclass(frozen=True, slots=True)
class Watched:
    """A host as far as watching goes."""

    id: int
    name: str  # of its service, normalised
    hypervisor_hostname: str
    standing: HostStatus


@dataclass(frozen=True, slots=True)
class StatusChange:
    """One step of one host; `say` is its sentence in the audit, empty for none."""

    host_id: int
    old: HostStatus
    new: HostStatus
    say: str = ""


@dataclass(frozen=True, slots=True)
class SetAside:
    """A message that a monitor could not digest."""

    at: datetime
    monitor: str
    message_id: str
    event_type: str
    why: str
    message: Mapping[str, object]


class HostStatuses(Protocol):
    def now(self) -> datetime:
        """The database's clock: the one that all managers share."""
        ...

    def watched(self) -> Sequence[Watched]:
        """All hosts, by id."""
        ...

    def change(self, changes: Sequence[StatusChange], repair: Repair | None) -> set[int]:
        """Write these, all in one go; the ids of those that somebody else changed meanwhile, which
        are left out. Where a host goes out of use or comes back, `repair` is armed as well."""
        ...

    def by_state(self) -> Mapping[str, int]:
        """How many hosts stand how."""
        ...

    def expedite(self, key: str) -> bool:
        """Make the open work of that key due now; False while somebody is at it."""
        ...

    def set_aside(self, message: SetAside) -> None:
        """Keep it for people to look at; the oldest go when there are too many."""
        ...

    def all_set_aside(self, most: int) -> Sequence[SetAside]:
        """The newest first."""
        ...
