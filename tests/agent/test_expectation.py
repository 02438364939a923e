# SPDX-License-Identifier: Apache-2.0
"""What should run compared with what does: orderly ends are nothing, and nothing else is missed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.simclock import SimClock

from holdfast.agent import guest_filters, guest_store
from holdfast.agent.expected import (
    Comparison,
    Expectations,
    HostComparison,
    SecondOpinion,
    differences,
)
from holdfast.agent.guest_state import GuestEvent, GuestWatch
from holdfast.model.errors import DriverError, Unavailable
from holdfast.model.observation import BUSY, ELSEWHERE, OFF, RUNS, UNKNOWN, Expectation, Expected
from holdfast.ports.guests import LIFECYCLE, Event, Guest
from holdfast.ports.reports import MOST_ALSO

BEGIN = datetime(2026, 11, 16, 12, tzinfo=UTC)
LOOKS, EVERY_S = 2, 60.0
RUNNING, CLEAN, CRASHED = "running booted", "shutoff shutdown", "shutoff crashed"


@dataclass
class Side:
    """A host, its cloud and its agent: `guests` is what the hypervisor says, `cloud` what Nova."""

    guests: dict[str, str] = field(default_factory=dict)
    cloud: dict[str, str] = field(default_factory=dict)
    text: str = guest_filters.DEFAULT_TEXT
    looks: int = LOOKS
    grace_s: float = 0.0
    now: float = 0.0
    told: list[GuestEvent] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.filters = guest_filters.parse(self.text, "f.yaml")
        self.watch = GuestWatch(self.filters)
        self.settings = SimpleNamespace(expected_reads=self.looks, expected_grace_s=self.grace_s)
        self.expectations = Expectations(self.settings)

    @property
    def at(self) -> datetime:
        return BEGIN + timedelta(seconds=self.now)

    def hear(self, name: str, *said: str) -> None:
        for one in said:
            self.now += 0.01
            event = Event(name, name, LIFECYCLE, self.at, *one.split())
            self.told += self.watch.hear(event, self.now)

    def seen(self) -> HostComparison:
        expected = tuple(Expected(name, name, state, "so") for name, state in self.cloud.items())
        guests = tuple(Guest(name, name, *state.split()) for name, state in self.guests.items())
        return HostComparison(expected, guests, self.at, self.now, self.now)

    def look(self, one: HostComparison | None = None) -> None:
        self.now += EVERY_S
        self.think(one or self.seen())

    def think(self, one: HostComparison) -> None:
        self.told += self.watch.reconcile(one.guests, one.read_at, self.now, one.began)
        for event in Comparison(self.expectations, one).events(self.watch, self.now):
            self.told += self.watch.hear(event, self.now)

    def begin_again(self, *, forget: bool = False) -> None:
        """The agent is started anew, with what it had written down or without."""
        said = json.loads(json.dumps(guest_store.to_plain(self.watch)))
        if forget:
            self.watch = GuestWatch(self.filters)
        else:
            self.watch = guest_store.from_plain(said, self.filters, self.now)
        self.expectations = Expectations(self.settings)

    @property
    def said(self) -> list[str]:
        words = ("event", "detail", "reason")
        return [
            " ".join(filter(None, (one.state, *(one.evidence[word] for word in words))))
            for one in self.told
        ]


def side(found: str | None, cloud: str | None, **more: object) -> Side:
    """One guest `a`, beside another that is as it should be."""
    guests = {"other": RUNNING} | ({} if found is None else {"a": found})
    expected = {"other": RUNS} | ({} if cloud is None else {"a": cloud})
    return Side(guests, expected, **more)  # type: ignore[arg-type]


# one look

FOUND: dict[str, dict[str, str]] = {
    # what the cloud says: what is found, what that amounts to
    RUNS: {
        "": "missing",
        RUNNING: "",
        "paused user": "",
        "paused ioerror": "",
        "crashed panicked": "",
        "shutdown user": "",
        "unknown no_answer": "",
        CLEAN: "",
        "shutoff destroyed": "",
        "shutoff saved": "",
        "shutoff migrated": "",
        "shutoff from_snapshot": "",
        "shutoff unknown": "stopped unknown",
        CRASHED: "stopped crashed",
        "shutoff failed": "stopped failed",
        "shutoff daemon": "stopped daemon",
    },
    OFF: {"": "", RUNNING: "unexpected off", "paused user": "unexpected off", CLEAN: "",
          CRASHED: "", "unknown no_answer": "", "paused migration": ""},
    ELSEWHERE: {"": "", RUNNING: "unexpected elsewhere", CLEAN: "", "paused migration": "",
                "paused starting_up": "", "shutoff unknown": ""},
    UNKNOWN: {"": "", RUNNING: "unexpected unknown", CRASHED: ""},
    BUSY: {"": "", RUNNING: "", CRASHED: "", "shutoff unknown": ""},
    "": {"": "", RUNNING: "", CRASHED: ""},
}  # fmt: skip


@pytest.mark.parametrize(
    ("cloud", "found", "amounts"),
    [(cloud, *one) for cloud, rows in FOUND.items() for one in rows.items()],
)
def test_the_differences_of_a_single_comparison(cloud: str, found: str, amounts: str) -> None:
    one = side(found or None, cloud or None).seen()
    (said,) = [f"{d.detail} {d.reason}".strip() for d in differences(one.expected, one.guests)] or [
        ""
    ]
    assert said == amounts


def test_where_no_expected_guest_is_found_at_all_the_address_is_doubted() -> None:
    here = Side({"stranger": RUNNING}, {"a": RUNS, "b": RUNS, "c": OFF})
    for _ in range(4):
        here.look()
    assert sorted(here.said) == ["noted expectation missing all"] * 2
    alone = Side({}, {"a": RUNS})
    alone.look()
    alone.look()
    assert alone.said == ["failed expectation missing"]


# several looks


@pytest.mark.parametrize(
    ("found", "cloud", "said"),
    [
        (None, RUNS, ["failed expectation missing"]),
        ("shutoff unknown", RUNS, ["failed expectation stopped unknown"]),
        (RUNNING, OFF, ["noted expectation unexpected off"]),
        (RUNNING, ELSEWHERE, ["noted expectation unexpected elsewhere"]),
        (RUNNING, UNKNOWN, ["noted expectation unexpected unknown"]),
        (CLEAN, RUNS, []),
        (None, BUSY, []),
    ],
)
def test_a_difference_is_reported_once_and_only_after_several_comparisons(
    found: str | None, cloud: str, said: list[str]
) -> None:
    here = side(found, cloud, looks=3)
    here.look()
    here.look()
    assert here.said == []
    for _ in range(10):
        here.look()
    assert here.said == said


def test_a_difference_is_reported_once_in_spite_of_restarts_of_the_agent() -> None:
    here = side(None, RUNS)
    for _ in range(5):
        here.look()
        here.look()
        here.begin_again()
    assert here.said == ["failed expectation missing"]


def test_looks_must_last_as_long_as_the_grace_says() -> None:
    here = side(None, RUNS, grace_s=2.5 * EVERY_S)
    for _ in range(3):
        here.look()
        assert here.said == []
    here.look()
    assert here.said == ["failed expectation missing"]
    assert here.told[0].since == BEGIN + timedelta(seconds=EVERY_S)  # the first of them


def test_looks_that_do_not_follow_one_upon_the_other_prove_nothing() -> None:
    here = side(None, RUNS)
    for _ in range(4):
        here.look()
        Comparison(here.expectations, None).events(here.watch, here.now)  # nobody could be asked
    for _ in range(4):
        here.look()
        here.cloud["a"] = BUSY
        here.look()
        here.cloud["a"] = RUNS
    assert here.said == []


def test_the_same_comparison_counts_once() -> None:
    here = side(None, RUNS)
    one = here.seen()
    here.look(one)
    here.think(one)
    assert here.said == []


def test_another_difference_begins_anew() -> None:
    here = side(None, RUNS)
    here.look()
    here.guests["a"] = "shutoff unknown"
    here.look()
    assert here.said == []
    here.look()
    assert here.said == ["failed expectation stopped unknown"]


# what explains it


def test_a_guest_that_powers_itself_off_is_nothing_however_long_the_cloud_says_active() -> None:
    here = side(RUNNING, RUNS)
    here.look()
    here.hear("a", "shutdown guest", "stopped shutdown")
    here.guests["a"] = CLEAN
    for _ in range(5):
        here.look()
    here.guests["a"] = "shutoff unknown"  # libvirtd was restarted, and has forgotten why
    for _ in range(5):
        here.look()
        here.begin_again()
    assert here.said == []


def test_one_that_ran_again_since_is_not_excused_by_how_it_ended_before() -> None:
    here = side(CLEAN, RUNS)
    here.look()
    here.hear("a", "started booted")
    here.guests["a"] = "shutoff unknown"
    here.look()
    here.look()
    assert here.said == ["failed expectation stopped unknown"]


REMOVED = {
    "at once": ("undefined removed",),
    "after an order": ("shutdown host", "stopped destroyed", "undefined removed"),
    "while it ran": ("undefined removed", "stopped destroyed"),
    "by a migration": ("stopped migrated", "undefined removed"),
}


@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.parametrize("how", REMOVED)
def test_a_removed_guest_that_the_cloud_expects_is_missed_after_two_comparisons(
    how: str, anew: bool
) -> None:
    here = side("shutoff unknown" if how == "at once" else RUNNING, RUNS, grace_s=600.0)
    here.look()
    here.hear("a", *REMOVED[how])
    del here.guests["a"]
    if anew:
        here.begin_again()
    here.look()
    assert here.said == []
    here.look()
    assert here.said == ["failed expectation missing"]
    for _ in range(4):
        here.look()
    assert len(here.said) == 1


@pytest.mark.parametrize("now", [BUSY, OFF, ELSEWHERE, UNKNOWN])
def test_a_removal_that_the_cloud_knows_of_or_is_at_is_orderly(now: str) -> None:
    here = side(RUNNING, RUNS)
    here.look()
    here.hear("a", "shutdown host", "stopped destroyed", "undefined removed")
    del here.guests["a"]
    here.look()  # which is asked before the cloud has begun to say so
    for _ in range(4):
        here.cloud["a"] = now
        here.look()
    assert here.said == []


def test_a_guest_that_ended_by_its_own_will_is_not_missed_when_it_is_removed() -> None:
    here = side(RUNNING, RUNS)
    here.look()
    here.hear("a", "shutdown guest", "stopped shutdown", "undefined removed")
    del here.guests["a"]
    for _ in range(4):
        here.look()
    assert here.said == []


def test_data_of_the_cloud_from_before_the_removal_does_not_count() -> None:
    here = side(RUNNING, RUNS)
    here.look()
    old = replace(here.seen(), guests=here.seen().guests[:1])
    here.hear("a", "stopped destroyed", "undefined removed")
    for _ in range(4):
        here.look(replace(old, read_at=here.at, began=here.now))
    assert here.said == []


def test_removed_guests_are_forgotten_once_the_cloud_misses_them_no_more() -> None:
    here = side(RUNNING, RUNS)
    here.hear("a", "stopped destroyed", "undefined removed")
    del here.guests["a"]
    here.look()
    assert here.watch.dismissed == {"a": "destroyed"}
    here.cloud["a"] = BUSY
    here.look()
    assert here.watch.dismissed
    del here.cloud["a"]
    here.look()
    assert not here.watch.dismissed


def test_what_was_heard_after_the_cloud_was_asked_is_newer_than_its_answer() -> None:
    here = side(RUNNING, RUNS)
    here.look()
    old = here.seen()
    here.hear("a", "stopped migrated", "undefined removed")
    here.hear("a", "defined added", "started booted")
    late = replace(old, guests=old.guests[:1])
    here.look(late)
    here.look(replace(late, read_at=here.at, began=here.now))
    assert here.said == []


def test_a_guest_that_arrives_by_a_migration_is_not_unexpected() -> None:
    here = side(None, ELSEWHERE)
    here.hear("a", "started migrated")
    here.guests["a"] = "paused migration"
    for _ in range(5):
        here.look()
    assert here.said == []


def test_an_event_and_a_comparison_report_the_same_fault_once() -> None:
    first = side(RUNNING, RUNS)
    first.look()
    first.hear("a", "stopped failed")
    first.guests["a"] = CRASHED
    for _ in range(4):
        first.look()
    assert first.said == ["failed stopped failed"]
    second = side("shutoff unknown", RUNS)
    second.look()
    second.look()
    second.hear("a", "stopped failed")  # it could not be started
    second.guests["a"] = "shutoff failed"
    second.look()
    assert second.said == ["failed expectation stopped unknown"]
    second.guests["a"] = CRASHED  # it could, once more, and died
    second.look()
    assert second.said == ["failed expectation stopped unknown", "failed stopped failed"]


def test_what_a_filter_says_of_a_death_holds_for_the_second_opinion_too() -> None:
    rules = "rules:\n  - {event: stopped, detail: failed, do: report}\n"
    here = side(RUNNING, RUNS, text=rules)
    here.look()
    here.hear("a", "stopped failed")
    here.guests["a"] = CRASHED
    for _ in range(4):
        here.look()
        here.begin_again()
    assert here.said == ["noted stopped failed"]


def test_filters_decide_about_differences() -> None:
    rules = "rules:\n  - {event: expectation, detail: unexpected, do: recover}\n"
    rules += "  - {event: expectation, after: 10m, do: report}\n"
    here = side(None, RUNS, text=rules)
    for _ in range(5):
        here.look()
    assert here.said == []
    here.now += 600
    here.told += here.watch.check_timers(here.now)
    assert here.said == ["noted expectation missing"]


# what ends it


def test_a_guest_that_runs_again_and_is_missing_again_is_reported_again() -> None:
    here = side(None, RUNS)
    for _ in range(2):
        here.look()
        here.look()
        here.guests["a"] = RUNNING
        here.hear("a", "defined added", "started booted")
        here.look()
        del here.guests["a"]
    told = ["failed expectation missing", "well running again booted"]
    assert here.said == told * 2
    assert len({one.key for one in here.told}) == 4


def test_an_attempt_to_mend_it_that_fails_does_not_make_it_new() -> None:
    here = side(None, RUNS)
    for _ in range(3):
        here.cloud["a"] = RUNS
        here.look()
        here.look()
        here.cloud["a"] = BUSY
        here.look()
    assert here.said == ["failed expectation missing"]


@pytest.mark.parametrize("now", [OFF, ELSEWHERE, None])
def test_it_is_over_when_the_cloud_wants_it_no_more(now: str | None) -> None:
    here = side(None, RUNS)
    here.look()
    here.look()
    assert here.watch.tracks["a"].differences == {"missing"}
    if now is None:
        del here.cloud["a"]
    else:
        here.cloud["a"] = now
    here.look()
    assert "a" not in here.watch.tracks
    assert "a" not in here.watch.dismissed


def test_an_unexpected_guest_is_noted_again_only_after_it_was_expected() -> None:
    here = side(RUNNING, OFF)
    for _ in range(3):
        here.look()
    assert here.watch.tracks["a"].differences == {"unexpected"}
    here.cloud["a"] = RUNS
    here.look()
    assert here.watch.tracks["a"].differences == set()
    here.cloud["a"] = OFF
    here.look()
    here.look()
    assert here.said == ["noted expectation unexpected off"] * 2


# whatever happens

#: What is heard of it, and how it is found afterwards: None: not at all.
ENDS: dict[str, tuple[Sequence[str], str | None]] = {
    "poweroff": (("shutdown guest", "stopped shutdown"), CLEAN),
    "killed while it shuts down": (("shutdown guest", "stopped failed"), CRASHED),
    "destroyed": (("stopped destroyed",), "shutoff destroyed"),
    "saved": (("stopped saved",), "shutoff saved"),
    "moved away": (("stopped migrated", "undefined removed"), None),
    "deleted": (("shutdown host", "stopped destroyed", "undefined removed"), None),
    "undefined, then destroyed": (("undefined removed", "stopped destroyed"), None),
}
STEPS = [*ENDS, "start", "look", "look", "look", "anew", "libvirtd", "cloud", "deaf"]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from(STEPS), max_size=25))
def test_orderly_ends_make_no_traffic_whatever_happens_between(steps: list[str]) -> None:
    """The cloud says ACTIVE until somebody tells it; the agent hears everything, or is deaf and
    reads it afterwards."""
    here, runs, deaf = side(RUNNING, RUNS), True, False
    here.look()
    for step in steps:
        if step in ENDS and runs:
            heard, found = ENDS[step]
            runs = False
            here.guests.pop("a")
            if found is None:
                here.cloud["a"] = BUSY  # whoever removes it does so for the cloud
            else:
                here.guests["a"] = found
            if not deaf or found in (None, CRASHED):  # nobody could know better
                here.hear("a", *heard)
        elif step == "start" and not runs:
            runs = True
            here.guests["a"], here.cloud["a"] = RUNNING, RUNS
            if not deaf:
                here.hear("a", "defined added", "started booted")
        elif step == "look":
            deaf = False
            here.look()
        elif step == "anew":
            here.begin_again()
        elif step == "libvirtd" and not deaf and here.guests.get("a", "").startswith("shutoff"):
            here.look()  # which it has read before
            here.guests["a"] = "shutoff unknown"
        elif step == "cloud":
            here.cloud["a"] = RUNS if runs else OFF
        elif step == "deaf":
            deaf = True
    here.look()
    here.look()
    assert here.said == []


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.sampled_from([*ENDS, "start", "look", "anew", "forget"]), max_size=12),
    st.sampled_from([None, "shutoff unknown", "shutoff failed", CRASHED, "shutoff daemon"]),
    st.integers(1, 4),
)
def test_a_guest_that_no_request_ended_is_reported_within_the_set_comparisons_and_once(
    before: list[str], found: str | None, looks: int
) -> None:
    here, runs = side(RUNNING, RUNS, looks=looks), True
    here.look()
    for step in before:
        if step in ENDS and runs:
            runs = False
            here.hear("a", *ENDS[step][0])
            here.guests.pop("a")
        elif step == "start" and not runs:
            runs = True
            here.hear("a", "defined added", "started booted")
            here.guests["a"] = RUNNING
        elif step == "look" and runs:
            here.look()
        elif step in ("anew", "forget"):
            here.begin_again(forget=step == "forget" and runs)
    here.hear("a", "started booted")  # it runs, and the cloud wants it to
    here.begin_again(forget="forget" in before)
    here.guests["other"] = RUNNING
    here.guests.pop("a", None)
    here.guests |= {} if found is None else {"a": found}
    told = len(here.told)
    for _ in range(looks):
        here.look()
    assert [one.state for one in here.told[told:]] == ["failed"]
    for _ in range(5):
        here.look()
    assert len(here.told) == told + 1


# after a removal


@pytest.mark.parametrize("how", REMOVED)
def test_a_removal_without_the_cloud_is_reported_within_half_a_minute(how: str) -> None:
    here = side("shutoff unknown" if how == "at once" else RUNNING, RUNS, grace_s=30.0)
    here.look()
    removed_at = here.now
    opinion, _told = rounds(Cloud(), Hypervisor())
    assert opinion.pause_s() == EVERY_S
    assert opinion.hurry() and not opinion.hurry()
    first, *rest = REMOVED[how]
    here.hear("a", first)
    if how == "while it ran":
        here.think(here.seen())
    here.hear("a", *rest)
    del here.guests["a"]
    while not here.said and here.now < removed_at + EVERY_S:
        here.now += opinion.pause_s()
        here.think(here.seen())
    assert here.said == ["failed expectation missing"]
    assert here.now - removed_at <= 30.0


def test_after_a_removal_the_cloud_is_asked_often_for_a_while_only() -> None:
    clock = SimClock()
    opinion, _told = rounds(Cloud(), Hypervisor(), clock)
    opinion.hurry()
    pauses = []
    while (pause_s := opinion.pause_s()) < EVERY_S:
        pauses.append(pause_s)
        clock.advance(pause_s)
    assert sum(pauses) == 30.0
    assert opinion.hurry()


# the round


class Cloud:
    def __init__(self, *said: Expected) -> None:
        self.said = said
        self.asked: list[Sequence[str]] = []
        self.away = False

    def expected(self, host: str, also: Sequence[str] = ()) -> Expectation:
        self.asked.append(also)
        if self.away:
            raise Unavailable("the cloud is away")
        strange = [Expected(one, "", UNKNOWN, "never heard of") for one in also]
        return Expectation(host, BEGIN, (*self.said, *strange))


class Hypervisor:
    def __init__(self, *guests: Guest) -> None:
        self.guests = guests
        self.deaf = ""
        self.silent = False

    def read(self) -> tuple[Sequence[Guest], datetime]:
        if self.silent:
            raise DriverError("guests", "no answer", retryable=True)
        return self.guests, BEGIN

    def why_deaf(self) -> str:
        return self.deaf


def rounds(
    cloud: Cloud, hypervisor: Hypervisor, clock: SimClock | None = None
) -> tuple[SecondOpinion, list[Comparison]]:
    told: list[Comparison] = []
    limits = SimpleNamespace(expected_interval_s=EVERY_S, expected_reads=2, expected_grace_s=0.0)
    clock = clock or SimClock()
    opinion = SecondOpinion("cmp-1", cloud, hypervisor, limits, clock, told.append)  # type: ignore[arg-type]
    return opinion, told


def test_those_that_run_unmentioned_are_asked_about_by_name_a_few_at_a_time() -> None:
    many = [Guest(f"u-{n}", "x", "running", "booted") for n in range(MOST_ALSO + 1)]
    off = Guest("off", "off", "shutoff", "shutdown")
    cloud = Cloud(Expected("u-0", "x", RUNS))
    opinion, told = rounds(cloud, Hypervisor(*many, off))
    opinion.round()
    assert [len(one) for one in cloud.asked] == [0, MOST_ALSO]
    (one,) = told
    assert one.comparison is not None
    assert len(one.comparison.expected) == MOST_ALSO + 1


@pytest.mark.parametrize("trouble", ["deaf", "silent", "away"])
def test_who_cannot_see_or_cannot_ask_concludes_nothing(trouble: str) -> None:
    cloud, hypervisor = Cloud(Expected("a", "a", RUNS)), Hypervisor()
    opinion, told = rounds(cloud, hypervisor)
    opinion.round()
    hypervisor.deaf = "libvirtd is gone" if trouble == "deaf" else ""
    hypervisor.silent, cloud.away = trouble == "silent", trouble == "away"
    if trouble == "deaf":
        opinion.round()
    else:
        with pytest.raises((Unavailable, DriverError)):
            opinion.round()
    assert [one.comparison is None for one in told] == [False, True]
    if trouble == "deaf":
        assert len(cloud.asked) == 1
