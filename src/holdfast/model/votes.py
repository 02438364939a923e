# SPDX-License-Identifier: Apache-2.0
"""Votes of host monitors: combine the reports of several monitors about the same host.

A monitor's `View` is all that it sees now; a `MonitorReport` is its last report about one host.
Both give its `Vote`: for recovery, against, or an abstention. A monitor abstains when it is
blind, does not know the host, is stale, or still waits whether the failure lasts. Only
registered monitors have a vote.

    if count(Ballot("cmp-1", now, 3, views, reports), minimum=1).is_enough: …
"""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from holdfast.hostmonitor import matrix
from holdfast.hostmonitor.matrix import ALERT, DOWN, NONE, RECOVERY, UNDECIDED, UNKNOWN, UP, Matrix
from holdfast.model.host import normalise, same, short
from holdfast.model.operation import Operation

#: The kind of observations that report on hosts, and their states.
HOST_HEALTH = "host_health"
STATES = FAILED, ALERTED, WELL = "failed", "alert", "well"
_SAYS = {FAILED: RECOVERY, ALERTED: ALERT, WELL: NONE}
#: The operation kind that counts votes, and the source name under which it reports host status.
HOST_VOTES, SOURCE = "host_votes", "hostmonitor"
FOR, AGAINST, ABSTAIN = "for", "against", "abstain"
#: A monitor silent for this many of its heartbeats does not count.
FRESH_BEATS = 3
#: With 3 or more registered monitors, at least 2 must report a host failed.
MANY, OF_MANY = 3, 2
#: A view taken less than this after a report may not include the report yet.
DRAWN = timedelta(seconds=1)
_NAMES = uuid.UUID("b7f4a1de-63c5-4f0b-8a55-0c8c5f0f5d37")


@dataclass(frozen=True)
class Sight:
    """Whether a monitor can see a network; if not, why."""

    sighted: bool
    leader: str = ""
    since: str = ""
    why: str = ""
    warning: str = ""  # about the cluster: it has fewer than 3 servers


@dataclass(frozen=True)
class Row:
    """Hosts with the same health on all networks.

    `is_waiting`: the HA matrix would act, but the failure has not lasted long enough yet.
    """

    health: Mapping[str, str]
    opinion: str
    is_waiting: bool = False

    @property
    def is_bad(self) -> bool:
        return self.opinion in (RECOVERY, ALERT)


@dataclass(frozen=True)
class Picture:
    """The contents of a monitor's view, without times."""

    networks: Mapping[str, Sight]
    ha_matrix: Matrix
    rows: Sequence[Row]
    places: Mapping[str, int]  # the row of each host, by normalised name
    problem: str = ""  # of its HA matrix file
    waiting: int = 0  # reports in its outbox
    parked: int = 0  # reports that the manager refused

    def row(self, host: str) -> Row | None:
        name = self.name(host)
        return None if name is None else self.rows[self.places[name]]

    def name(self, host: str) -> str | None:
        """Return the monitor's name for a host; None if unknown or ambiguous."""
        wanted = normalise(host)
        if wanted in self.places:
            return wanted
        alike = [name for name in self._shorts.get(short(wanted), ()) if same(name, wanted)]
        return alike[0] if len(alike) == 1 else None

    def bad(self) -> set[str]:
        """List the hosts with an opinion of recovery or alert."""
        bad = {place for place, row in enumerate(self.rows) if row.is_bad}
        return {name for name, place in self.places.items() if place in bad} if bad else set()

    @cached_property
    def _shorts(self) -> Mapping[str, Sequence[str]]:
        by_short: dict[str, list[str]] = {}
        for name in self.places:
            by_short.setdefault(short(name), []).append(name)
        return by_short


def picture(body: Mapping[str, Any]) -> Picture:
    """Parse the view that a monitor sent; InvalidMatrix if its HA matrix is invalid."""
    ha_matrix = matrix.from_plain(body["ha_matrix"])
    networks = {name: Sight(**sight) for name, sight in body["networks"].items()}
    blind = [name for name, sight in networks.items() if not sight.sighted]
    rows: list[Row] = []
    places: dict[str, int] = {}
    for place, row in enumerate(body["rows"]):
        health = {
            name: state if name not in networks or networks[name].sighted else UNKNOWN
            for name, state in row["health"].items()
        }
        wants = ha_matrix.answer(health, blind).action
        waiting = row["opinion"] == NONE and wants in (RECOVERY, ALERT)
        rows.append(Row(health, row["opinion"], waiting))
        places.update((normalise(host), place) for host in row["hosts"])
    own = {name: body[name] for name in ("problem", "waiting", "parked") if name in body}
    return Picture(networks, ha_matrix, tuple(rows), places, **own)


@dataclass(frozen=True)
class View:
    """A monitor's view of all hosts.

    `at` is by its own clock, or by the manager's if its clock is ahead; `seen_at` is by the
    manager's.
    """

    observer: str
    kind: str
    at: datetime
    seen_at: datetime
    heartbeat_s: float
    picture: Picture

    def is_fresh(self, now: datetime) -> bool:
        return now - self.seen_at <= timedelta(seconds=FRESH_BEATS * self.heartbeat_s)


@dataclass(frozen=True)
class Registration:
    """The registration of a monitor by an administrator; a registered monitor votes."""

    observer: str
    by: str
    at: datetime


@dataclass(frozen=True)
class Listed:
    """A monitor that is registered, or sends views, or both."""

    observer: str
    registration: Registration | None
    view: View | None


@dataclass(frozen=True)
class MonitorReport:
    """The last report of a monitor about a host, by the same clock as its view."""

    id: str
    observer: str
    state: str
    at: datetime
    since: datetime
    evidence: Mapping[str, Any] = field(default_factory=dict)
    incident_id: str | None = None

    @property
    def is_concern(self) -> bool:
        return self.state in (FAILED, ALERTED)

    @property
    def says(self) -> str:
        return UNDECIDED if self.is_doubt else _SAYS.get(self.state, UNDECIDED)

    @property
    def is_doubt(self) -> bool:
        """Whether the alert is undecided because of an unseen network: no vote on recovery."""
        return self.state == ALERTED and self.evidence.get("undecided") is True

    def network(self, name: str) -> Mapping[str, Any]:
        """Return the part of the report about this network."""
        networks = self.evidence.get("networks")
        network = networks.get(name) if isinstance(networks, Mapping) else None
        return network if isinstance(network, Mapping) else {}


@dataclass(frozen=True)
class Vote:
    observer: str
    vote: str
    says: str  # recovery | alert | none | undecided; alert with an abstention: a doubt
    why: str
    report: MonitorReport | None = None
    is_waiting: bool = False  # it sees the host down, and has not reported it yet

    def to_plain(self) -> dict[str, Any]:
        """Return the vote as an incident stores it."""
        stored: dict[str, Any] = {"observer": self.observer, "vote": self.vote, "why": self.why}
        if self.report is not None and self.vote == FOR:
            stored["at"] = self.report.at.isoformat()
            stored["since"] = self.report.since.isoformat()
            stored["evidence"] = dict(self.report.evidence)
        return stored


@dataclass(frozen=True)
class Ballot:
    """The input of a count about a host: each registered monitor's view and last report."""

    host: str
    now: datetime
    registered: int  # monitors, including those never heard of
    views: Sequence[View] = ()
    reports: Mapping[str, MonitorReport] = field(default_factory=dict)

    @cached_property
    def fresh(self) -> Sequence[View]:
        return [view for view in self.views if view.is_fresh(self.now)]

    @property
    def is_known(self) -> bool:
        """Whether a fresh view includes the host."""
        return any(view.picture.name(self.host) is not None for view in self.fresh)

    @property
    def is_concern(self) -> bool:
        """Whether a fresh monitor reports a problem with the host, or may soon."""
        rows = [view.picture.row(self.host) for view in self.fresh]
        opinions = [vote(view, self).says for view in self.fresh]
        visible = any(row is not None and (row.is_bad or row.is_waiting) for row in rows)
        return visible or RECOVERY in opinions or ALERT in opinions


@dataclass(frozen=True)
class Count:
    """The result of a count.

    `needed`: how many monitors must report the host failed. `minimum`: the site's lower bound
    for it.
    """

    host: str
    needed: int
    votes: Sequence[Vote]
    minimum: int = 1

    def observers(self, vote: str) -> list[str]:
        return [cast.observer for cast in self.votes if cast.vote == vote]

    def _saying(self, opinion: str) -> int:
        return sum(vote.says == opinion for vote in self.votes if vote.vote != ABSTAIN)

    @property
    def is_enough(self) -> bool:
        """Whether the host has failed: enough monitors report it."""
        return self._saying(RECOVERY) >= self.needed

    @property
    def is_alert(self) -> bool:
        """Whether people should know, although the host does not count as failed.

        An alert of a monitor that abstains counts too. So does a vote for recovery where too
        few monitors vote, once no other monitor may still join it.
        """
        failed = self._saying(RECOVERY)
        if self.is_enough or (failed and any(vote.is_waiting for vote in self.votes)):
            return False
        doubts = sum(vote.vote == ABSTAIN and vote.says == ALERT for vote in self.votes)
        mine = failed + self._saying(ALERT) + doubts
        return mine >= self.minimum and mine > self._saying(NONE)

    @property
    def is_over(self) -> bool:
        """Whether most monitors with a vote report the host healthy."""
        return self._saying(NONE) > self._saying(RECOVERY) + self._saying(ALERT)

    @property
    def is_doubted(self) -> bool:
        """Whether an earlier majority is lost, and as many monitors now report the host healthy."""
        return not self.is_enough and self._saying(NONE) >= max(1, self._saying(RECOVERY))

    @property
    def is_down(self) -> bool:
        """Whether a monitor still reports the host failed, and no majority reports it healthy."""
        return self._saying(RECOVERY) > 0 and not self.is_over

    def plain(self) -> list[dict[str, Any]]:
        return [vote.to_plain() for vote in self.votes]

    def sentence(self) -> str:
        return report_text(self.host, self.plain())


def count(ballot: Ballot, minimum: int) -> Count:
    """Count the votes about a host.

    Needed is a majority of the monitors that see, at least 2 of 3 or more registered monitors,
    and `minimum` in any case.
    """
    views = sorted(ballot.views, key=lambda view: view.observer)
    votes = tuple(vote(view, ballot) for view in views)
    majority = sum(cast.vote != ABSTAIN for cast in votes) // 2 + 1
    fewest = OF_MANY if ballot.registered >= MANY else 1
    return Count(ballot.host, max(majority, fewest, minimum), votes, max(1, minimum))


def vote(view: View, ballot: Ballot) -> Vote:
    """Derive a monitor's vote: from its report, unless its view is newer and differs."""
    name, report = view.observer, ballot.reports.get(view.observer)
    if not view.is_fresh(ballot.now):
        return Vote(name, ABSTAIN, UNDECIDED, f"last spoke at {_clock(view.seen_at)}")
    row = view.picture.row(ballot.host)
    if report is not None and report.at + DRAWN >= view.at:
        return _cast(name, report.says, report, row)
    if row is None:
        return Vote(name, ABSTAIN, UNDECIDED, "did not know it", report)
    if row.is_waiting or (row.is_bad and (report is None or not report.is_concern)):
        return Vote(name, ABSTAIN, UNDECIDED, "waited whether it lasts", report, is_waiting=True)
    return _cast(name, row.opinion, report, row)


def _cast(observer: str, says: str, report: MonitorReport | None, row: Row | None = None) -> Vote:
    if says == RECOVERY:
        return Vote(observer, FOR, says, "saw it down", report)
    if says == ALERT:
        return Vote(observer, AGAINST, says, "called for an alert", report)
    if says == NONE:
        return Vote(observer, AGAINST, says, "saw it well", report)
    dark = [] if row is None else [name for name, state in row.health.items() if state == UNKNOWN]
    where = f" on {' and '.join(dark)}" if dark else ""
    says = ALERT if report is not None and report.is_doubt else UNDECIDED
    return Vote(observer, ABSTAIN, says, f"could not see{where}", report)


# Text.


def report_text(host: str, votes: Sequence[Mapping[str, Any]]) -> str:
    """Describe who saw what, from the votes that an incident stores:

    ctl-1 and ctl-2 saw cmp-1 down on storage since 10:00:03; ctl-3 could not see
    """
    groups: dict[str, list[str]] = {}
    sinces: dict[str, str] = {}
    for vote in sorted(votes, key=lambda vote: vote["vote"] != FOR):
        text = str(vote["why"])
        if vote["vote"] == FOR:
            where = " and ".join(_down(vote))
            text = f"saw {host} down{f' on {where}' if where else ''}"
            since = str(vote.get("since", ""))
            sinces[text] = min(since, sinces.get(text, since))
        groups.setdefault(text, []).append(str(vote["observer"]))
    return "; ".join(
        f"{listed(names)} {text}{f' since {sinces[text][11:19]}' if sinces.get(text) else ''}"
        for text, names in groups.items()
    )


def grounds(votes: Sequence[Mapping[str, Any]]) -> list[str]:
    """List the evidence of each vote for recovery:

    ctl-1: storage down since 10:00:03, by leader 10.0.0.1:8300, own gossip; line 7: storage down
    """
    lines = []
    for vote in votes:
        if vote["vote"] != FOR:
            continue
        parts = []
        for name, network in _down(vote).items():
            confirmed = network.get("confirmed_by")
            by = f", by {', '.join(map(str, confirmed))}" if isinstance(confirmed, list) else ""
            parts.append(f"{name} down since {str(network.get('since', ''))[11:19]}{by}")
        if rule := (vote.get("evidence") or {}).get("rule"):
            parts.append(str(rule))
        lines.append(f"{vote['observer']}: {'; '.join(parts) or 'no evidence was sent'}")
    return lines


def _down(vote: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the networks on which the host is down, with the evidence of each."""
    networks = (vote.get("evidence") or {}).get("networks")
    return {
        name: network
        for name, network in (networks.items() if isinstance(networks, Mapping) else ())
        if isinstance(network, Mapping) and network.get("health") == DOWN
    }


def listed(names: Sequence[str]) -> str:
    """Join names: "a", "a and b", "a, b and c"."""
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)


def _clock(at: datetime) -> str:
    return f"{at:%H:%M:%S} UTC"


# The combined view of all monitors.


def combined(views: Sequence[View], host: str, networks: Sequence[str]) -> dict[str, str]:
    """Return the host's health by network: the majority of known states; down wins a tie."""
    rows = [row for view in views if (row := view.picture.row(host)) is not None]
    return most(rows, networks)


def blind(views: Sequence[View], networks: Sequence[str]) -> list[str]:
    """List the networks that no monitor sees."""
    visible = {
        name for view in views for name, sight in view.picture.networks.items() if sight.sighted
    }
    return [name for name in networks if name not in visible]


def most(rows: Sequence[Row], networks: Sequence[str]) -> dict[str, str]:
    health = {}
    for name in networks:
        states = [row.health.get(name, UNKNOWN) for row in rows]
        ups, downs = states.count(UP), states.count(DOWN)
        health[name] = UNKNOWN if not ups + downs else DOWN if downs >= ups else UP
    return health


def everybody(views: Sequence[View], networks: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the combined health of all hosts in any view; most hosts share the same rows."""
    names = sorted({name for view in views for name in view.picture.places})
    by_places: dict[tuple[int | None, ...], dict[str, str]] = {}
    health = {}
    for name in names:
        called = [view.picture.name(name) for view in views]
        places = tuple(
            None if own is None else view.picture.places[own]
            for own, view in zip(called, views, strict=True)
        )
        if places not in by_places:
            by_places[places] = combined(views, name, networks)
        health[name] = by_places[places]
    return health


def in_force(views: Sequence[View]) -> tuple[Matrix | None, list[View]]:
    """Return the HA matrix of most monitors, and the views with another matrix."""
    best: tuple[Matrix | None, list[View]] = (None, list(views))
    for view in sorted(views, key=lambda view: view.observer):
        mine = view.picture.ha_matrix
        others = [view for view in views if not mine.agrees(view.picture.ha_matrix)]
        if best[0] is None or len(others) < len(best[1]):
            best = mine, others
    return best


def without_network(views: Sequence[View], network: str) -> str:
    """Warn that no HA matrix of these views has the network of the heartbeats; else empty."""
    known = sorted({name for view in views for name in view.picture.ha_matrix.networks})
    if not views or network in known:
        return ""
    return (
        f"[recovery] heartbeat_network is {network}, and the HA matrix has only"
        f" {listed(known)}: heartbeats contradict no report of a monitor"
    )


def work_of(host: str, now: datetime) -> Operation:
    """Make the single vote-counting operation of a host of this (normalised) name."""
    return Operation(
        id=str(uuid.uuid5(_NAMES, host)),
        kind=HOST_VOTES,
        subject=f"votes:{host}"[:128],
        key=f"{HOST_VOTES}/{host}"[:255],
        due_at=now,
        next_try_at=now,
        payload={"host": host},
    )
