# SPDX-License-Identifier: Apache-2.0
"""Several monitors look at the same hosts; what do they say together? Values in, values out.

A monitor's `View` is all that it sees now; a `Word` is what it last reported of one host. From both
follows its `Vote`: for, against, or none at all, where it cannot see, does not know the host, was
not heard of lately or is still waiting whether it lasts. Only registered monitors have a vote.

    if count(Ballot("cmp-1", now, 3, views, words), minimum=1).is_enough: …
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

#: The kind of observations that are words about hosts, and what they say.
HOST_HEALTH = "host_health"
STATES = FAILED, ALERTED, WELL = "failed", "alert", "well"
_SAYS = {FAILED: RECOVERY, ALERTED: ALERT, WELL: NONE}
#: The durable work of counting, and as whom it speaks of hosts.
HOST_VOTES, SOURCE = "host_votes", "hostmonitor"
FOR, AGAINST, ABSTAIN = "for", "against", "abstain"
#: Who was not heard of for so many of its heartbeats does not count.
FRESH_BEATS = 3
#: Where so many monitors are registered, one alone says of no host that it failed.
MANY, OF_MANY = 3, 2
#: A view that was drawn so soon after a report may not have it yet.
DRAWN = timedelta(seconds=1)
_NAMES = uuid.UUID("b7f4a1de-63c5-4f0b-8a55-0c8c5f0f5d37")


@dataclass(frozen=True)
class Sight:
    """Whether a monitor sees at all on one network; if not, why."""

    sighted: bool
    leader: str = ""
    since: str = ""
    why: str = ""
    warning: str = ""  # of the cluster: it has fewer than 3 servers


@dataclass(frozen=True)
class Row:
    """Hosts that look the same. `is_waiting`: the strategy would act, and it has not lasted yet."""

    health: Mapping[str, str]
    opinion: str
    is_waiting: bool = False

    @property
    def is_bad(self) -> bool:
        return self.opinion in (RECOVERY, ALERT)


@dataclass(frozen=True)
class Picture:
    """What a monitor sees, without when."""

    networks: Mapping[str, Sight]
    strategy: Matrix
    rows: Sequence[Row]
    places: Mapping[str, int]  # the row of each host, by normalised name
    problem: str = ""  # of its strategy file
    waiting: int = 0  # reports not delivered yet
    parked: int = 0  # reports that were not taken

    def row(self, host: str) -> Row | None:
        name = self.name(host)
        return None if name is None else self.rows[self.places[name]]

    def name(self, host: str) -> str | None:
        """What it calls that host; None if it knows none, or several could be meant."""
        wanted = normalise(host)
        if wanted in self.places:
            return wanted
        alike = [name for name in self._shorts.get(short(wanted), ()) if same(name, wanted)]
        return alike[0] if len(alike) == 1 else None

    def bad(self) -> set[str]:
        """Hosts about which, by what it sees, something is to be done."""
        bad = {place for place, row in enumerate(self.rows) if row.is_bad}
        return {name for name, place in self.places.items() if place in bad} if bad else set()

    @cached_property
    def _shorts(self) -> Mapping[str, Sequence[str]]:
        found: dict[str, list[str]] = {}
        for name in self.places:
            found.setdefault(short(name), []).append(name)
        return found


def picture(body: Mapping[str, Any]) -> Picture:
    """Of what a monitor sent; BadStrategy if its strategy is none."""
    strategy = matrix.from_plain(body["strategy"])
    networks = {name: Sight(**said) for name, said in body["networks"].items()}
    blind = [name for name, sight in networks.items() if not sight.sighted]
    rows: list[Row] = []
    places: dict[str, int] = {}
    for place, one in enumerate(body["rows"]):
        health = {
            name: state if name not in networks or networks[name].sighted else UNKNOWN
            for name, state in one["health"].items()
        }
        wants = strategy.answer(health, blind).action
        waiting = one["opinion"] == NONE and wants in (RECOVERY, ALERT)
        rows.append(Row(health, one["opinion"], waiting))
        places.update((normalise(host), place) for host in one["hosts"])
    own = {name: body[name] for name in ("problem", "waiting", "parked") if name in body}
    return Picture(networks, strategy, tuple(rows), places, **own)


@dataclass(frozen=True)
class View:
    """What a monitor sees. `at` is its own clock's, or ours if its is ahead; `seen_at` is ours."""

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
    """An administrator made a monitor known: who, and when. From then on it votes."""

    observer: str
    by: str
    at: datetime


@dataclass(frozen=True)
class Listed:
    """A monitor that is registered, or says what it sees, or both."""

    observer: str
    registration: Registration | None
    view: View | None


@dataclass(frozen=True)
class MonitorReport:
    """What a monitor last reported of a host, by the same clock as its view."""

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
        """It is an alert because what the monitor cannot see decides: no vote on recovery."""
        return self.state == ALERTED and self.evidence.get("undecided") is True

    def network(self, name: str) -> Mapping[str, Any]:
        """What it says of the host on that network."""
        said = self.evidence.get("networks")
        found = said.get(name) if isinstance(said, Mapping) else None
        return found if isinstance(found, Mapping) else {}


@dataclass(frozen=True)
class Vote:
    observer: str
    vote: str
    says: str  # recovery | alert | none | undecided; alert of one that abstains: a doubt
    why: str
    word: MonitorReport | None = None
    is_waiting: bool = False  # it sees the host down, and has not reported it yet

    def to_plain(self) -> dict[str, Any]:
        """As an incident keeps it."""
        said: dict[str, Any] = {"observer": self.observer, "vote": self.vote, "why": self.why}
        if self.word is not None and self.vote == FOR:
            said["at"], said["since"] = self.word.at.isoformat(), self.word.since.isoformat()
            said["evidence"] = dict(self.word.evidence)
        return said


@dataclass(frozen=True)
class Ballot:
    """All that there is to count about a host: what each registered monitor sees, and reported
    last."""

    host: str
    now: datetime
    registered: int  # monitors, also those that were never heard of
    views: Sequence[View] = ()
    words: Mapping[str, MonitorReport] = field(default_factory=dict)

    @cached_property
    def fresh(self) -> Sequence[View]:
        return [view for view in self.views if view.is_fresh(self.now)]

    @property
    def is_known(self) -> bool:
        """Whether a monitor that was heard of lately says anything of it."""
        return any(view.picture.name(self.host) is not None for view in self.fresh)

    @property
    def is_concern(self) -> bool:
        """Whether anybody who was heard of lately says, or soon may say, that it is not well."""
        rows = [view.picture.row(self.host) for view in self.fresh]
        said = [vote(view, self).says for view in self.fresh]
        seen = any(row is not None and (row.is_bad or row.is_waiting) for row in rows)
        return seen or RECOVERY in said or ALERT in said


@dataclass(frozen=True)
class Count:
    """`needed`: so many monitors must say that the host failed. `minimum`: as many as the site
    wants at least."""

    host: str
    needed: int
    votes: Sequence[Vote]
    minimum: int = 1

    def observers(self, vote: str) -> list[str]:
        return [one.observer for one in self.votes if one.vote == vote]

    def _saying(self, what: str) -> int:
        return sum(one.says == what for one in self.votes if one.vote != ABSTAIN)

    @property
    def is_enough(self) -> bool:
        """The host has failed."""
        return self._saying(RECOVERY) >= self.needed

    @property
    def is_alert(self) -> bool:
        """Not that, but people should know; an alert of a monitor that abstains counts too. So does
        a vote for recovery where too few vote, once no other monitor may yet join it."""
        failed = self._saying(RECOVERY)
        if self.is_enough or (failed and any(one.is_waiting for one in self.votes)):
            return False
        doubts = sum(one.vote == ABSTAIN and one.says == ALERT for one in self.votes)
        mine = failed + self._saying(ALERT) + doubts
        return mine >= self.minimum and mine > self._saying(NONE)

    @property
    def is_over(self) -> bool:
        """Most of those who see say that all is well."""
        return self._saying(NONE) > self._saying(RECOVERY) + self._saying(ALERT)

    @property
    def is_down(self) -> bool:
        """Somebody still says that it has failed, and not most of them that it is well."""
        return self._saying(RECOVERY) > 0 and not self.is_over

    def plain(self) -> list[dict[str, Any]]:
        return [one.to_plain() for one in self.votes]

    def sentence(self) -> str:
        return report_text(self.host, self.plain())


def count(ballot: Ballot, minimum: int) -> Count:
    """Needed is a majority of the monitors that see, 2 at least of 3 or more that are registered,
    and `minimum` in any case."""
    views = sorted(ballot.views, key=lambda view: view.observer)
    votes = tuple(vote(view, ballot) for view in views)
    majority = sum(one.vote != ABSTAIN for one in votes) // 2 + 1
    fewest = OF_MANY if ballot.registered >= MANY else 1
    return Count(ballot.host, max(majority, fewest, minimum), votes, max(1, minimum))


def vote(view: View, ballot: Ballot) -> Vote:
    """Of one monitor: by what it reported, unless its view is newer and says otherwise."""
    name, word = view.observer, ballot.words.get(view.observer)
    if not view.is_fresh(ballot.now):
        return Vote(name, ABSTAIN, UNDECIDED, f"last spoke at {_clock(view.seen_at)}")
    row = view.picture.row(ballot.host)
    if word is not None and word.at + DRAWN >= view.at:
        return _cast(name, word.says, word, row)
    if row is None:
        return Vote(name, ABSTAIN, UNDECIDED, "did not know it", word)
    if row.is_waiting or (row.is_bad and (word is None or not word.is_concern)):
        return Vote(name, ABSTAIN, UNDECIDED, "waited whether it lasts", word, is_waiting=True)
    return _cast(name, row.opinion, word, row)


def _cast(observer: str, says: str, word: MonitorReport | None, row: Row | None = None) -> Vote:
    if says == RECOVERY:
        return Vote(observer, FOR, says, "saw it down", word)
    if says == ALERT:
        return Vote(observer, AGAINST, says, "called for an alert", word)
    if says == NONE:
        return Vote(observer, AGAINST, says, "saw it well", word)
    dark = [] if row is None else [name for name, state in row.health.items() if state == UNKNOWN]
    where = f" on {' and '.join(dark)}" if dark else ""
    says = ALERT if word is not None and word.is_doubt else UNDECIDED
    return Vote(observer, ABSTAIN, says, f"could not see{where}", word)


# in words


def report_text(host: str, seen: Sequence[Mapping[str, Any]]) -> str:
    """Who saw what, of what an incident keeps:
    ctl-1 and ctl-2 saw cmp-1 down on storage since 10:00:03; ctl-3 could not see"""
    groups: dict[str, list[str]] = {}
    sinces: dict[str, str] = {}
    for one in sorted(seen, key=lambda one: one["vote"] != FOR):
        said = str(one["why"])
        if one["vote"] == FOR:
            where = " and ".join(_down(one))
            said = f"saw {host} down{f' on {where}' if where else ''}"
            since = str(one.get("since", ""))
            sinces[said] = min(since, sinces.get(said, since))
        groups.setdefault(said, []).append(str(one["observer"]))
    return "; ".join(
        f"{listed(names)} {said}{f' since {sinces[said][11:19]}' if sinces.get(said) else ''}"
        for said, names in groups.items()
    )


def grounds(seen: Sequence[Mapping[str, Any]]) -> list[str]:
    """What those who voted for it go by:
    ctl-1: storage down since 10:00:03, by leader 10.0.0.1:8300, own gossip; line 7: storage down"""
    lines = []
    for one in seen:
        if one["vote"] != FOR:
            continue
        parts = []
        for name, said in _down(one).items():
            confirmed = said.get("confirmed_by")
            by = f", by {', '.join(map(str, confirmed))}" if isinstance(confirmed, list) else ""
            parts.append(f"{name} down since {str(said.get('since', ''))[11:19]}{by}")
        if rule := (one.get("evidence") or {}).get("rule"):
            parts.append(str(rule))
        lines.append(f"{one['observer']}: {'; '.join(parts) or 'no evidence was sent'}")
    return lines


def _down(one: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The networks on which it is down, with what was seen there."""
    networks = (one.get("evidence") or {}).get("networks")
    return {
        name: said
        for name, said in (networks.items() if isinstance(networks, Mapping) else ())
        if isinstance(said, Mapping) and said.get("health") == DOWN
    }


def listed(names: Sequence[str]) -> str:
    """a; a and b; a, b and c"""
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else "".join(names)


def _clock(at: datetime) -> str:
    return f"{at:%H:%M:%S} UTC"


# what all of them see together


def combined(views: Sequence[View], host: str, networks: Sequence[str]) -> dict[str, str]:
    """By network what most say who know; where they are as many, the worse."""
    rows = [row for view in views if (row := view.picture.row(host)) is not None]
    return most(rows, networks)


def blind(views: Sequence[View], networks: Sequence[str]) -> list[str]:
    """The networks on which no monitor sees anything."""
    seen = {name for view in views for name, one in view.picture.networks.items() if one.sighted}
    return [name for name in networks if name not in seen]


def most(rows: Sequence[Row], networks: Sequence[str]) -> dict[str, str]:
    found = {}
    for name in networks:
        states = [row.health.get(name, UNKNOWN) for row in rows]
        ups, downs = states.count(UP), states.count(DOWN)
        found[name] = UNKNOWN if not ups + downs else DOWN if downs >= ups else UP
    return found


def everybody(views: Sequence[View], networks: Sequence[str]) -> dict[str, dict[str, str]]:
    """All hosts that anybody sees, each with its combined health; most of them look the same."""
    names = sorted({name for view in views for name in view.picture.places})
    known: dict[tuple[int | None, ...], dict[str, str]] = {}
    found = {}
    for name in names:
        called = [view.picture.name(name) for view in views]
        places = tuple(
            None if own is None else view.picture.places[own]
            for own, view in zip(called, views, strict=True)
        )
        if places not in known:
            known[places] = combined(views, name, networks)
        found[name] = known[places]
    return found


def in_force(views: Sequence[View]) -> tuple[Matrix | None, list[View]]:
    """The strategy that most monitors go by, and those that go by another one."""
    best: tuple[Matrix | None, list[View]] = (None, list(views))
    for view in sorted(views, key=lambda one: one.observer):
        mine = view.picture.strategy
        others = [one for one in views if not mine.agrees(one.picture.strategy)]
        if best[0] is None or len(others) < len(best[1]):
            best = mine, others
    return best


def work_of(host: str, now: datetime) -> Operation:
    """The one row of counting votes about a host of that (normalised) name."""
    return Operation(
        id=str(uuid.uuid5(_NAMES, host)),
        kind=HOST_VOTES,
        subject=f"votes:{host}"[:128],
        key=f"{HOST_VOTES}/{host}"[:255],
        due_at=now,
        next_try_at=now,
        payload={"host": host},
    )
