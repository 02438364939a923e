# SPDX-License-Identifier: Apache-2.0
"""What events and states of guests mean: one happening per failure, whatever traces it leaves."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.agent import guest_filters, guest_store
from holdfast.agent.guest_state import MOST_TRACES, QUIET_S, GuestEvent, GuestWatch, report
from holdfast.api.holdfast_v1.observations import SCHEMA
from holdfast.model.errors import InvalidInput
from holdfast.ports.guests import Event, Guest

BEGIN = datetime(2026, 11, 16, 12, tzinfo=UTC)
LONG = 3600.0


@dataclass
class Host:
    """A watch, and time that goes on a little with everything that happens."""

    text: str = guest_filters.DEFAULT_TEXT
    metadata: dict[str, str] = field(default_factory=dict)
    now: float = 0.0
    clock_s: float = 0.0  # by how much somebody has set the clock
    told: list[GuestEvent] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.watch = GuestWatch(guest_filters.parse(self.text, "f.yaml"))

    @property
    def at(self) -> datetime:
        return BEGIN + timedelta(seconds=self.now + self.clock_s)

    def hear(self, *said: str, name: str = "a", step_s: float = 0.01) -> None:
        """lifecycle stopped failed, or io_error pause enospc vda"""
        for one in said:
            self.now += step_s
            kind, detail, reason, disk, *_ = [*one.replace("-", " - ").split(), "", "", "", ""]
            words = ["" if word == "-" else word for word in (detail, reason, disk)]
            event = Event(f"u-{name}", name, kind, self.at, *words, metadata=self.metadata)
            self.told += self.watch.hear(event, self.now)

    def read(self, at_s: float | None = None, persistent: bool = True, **states: str) -> None:
        """a="shutoff crashed": all that there are"""
        self.now += 0.01
        began = self.now if at_s is None else at_s
        at = self.at + timedelta(seconds=began - self.now)
        guests = [
            Guest(f"u-{name}", name, *state.split(), persistent=persistent, metadata=self.metadata)
            for name, state in states.items()
        ]
        self.told += self.watch.reconcile(guests, at, self.now, began)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.told += self.watch.check_timers(self.now)

    @property
    def said(self) -> list[str]:
        return [f"{one.state} {one.evidence['event']}" for one in self.told]


START = ("lifecycle resumed unpaused", "lifecycle started booted")
DIED = "lifecycle stopped failed"


@pytest.fixture
def host() -> Host:
    made = Host()
    made.hear(*START)
    return made


# what is ordinary

ORDINARY = {
    "guest poweroff": ["lifecycle shutdown guest", "lifecycle stopped shutdown"],
    "destroyed": ["lifecycle shutdown host", "lifecycle stopped destroyed"],
    "suspended and resumed": ["lifecycle suspended paused", "lifecycle resumed unpaused"],
    "defined": ["lifecycle defined added", "lifecycle defined updated"],
    "deleted": [
        "lifecycle shutdown host",
        "lifecycle stopped destroyed",
        "lifecycle undefined removed",
    ],
    "reset": ["reboot", "reboot", "reboot"],
    "migrated away": ["lifecycle suspended migrated", "lifecycle stopped migrated"],
    "migration given up": ["lifecycle suspended migrated", "lifecycle resumed migrated"],
    "saved": ["lifecycle suspended paused", "lifecycle stopped saved"],
    "asleep and awake": ["lifecycle pmsuspended memory", "lifecycle started wakeup"],
    "agent": ["agent disconnected domain_started", "agent connected channel"],
    "copied": ["block_job ready copy vda", "block_job canceled copy vda"],
    "powered off while somebody asked its QEMU something": [
        "lifecycle shutdown guest",
        "control_error",
        "lifecycle stopped shutdown",
    ],
    "destroyed while somebody asked": ["control_error", "lifecycle stopped destroyed"],
    "died while it shut down": ["lifecycle shutdown guest", "lifecycle stopped failed"],
}


@pytest.mark.parametrize("name", ORDINARY)
def test_what_is_ordinary_means_nothing(host: Host, name: str) -> None:
    host.hear(*ORDINARY[name])
    host.wait(LONG)
    assert host.said == []
    assert host.watch.due() is None


def test_a_migration_to_here_that_fails_killed_nobody() -> None:
    host = Host()
    host.hear("lifecycle started migrated", DIED)
    host.wait(LONG)
    assert host.said == []


def test_what_arrived_by_migration_can_die() -> None:
    host = Host()
    host.hear("lifecycle started migrated", "lifecycle resumed migrated", DIED)
    assert host.said == ["failed stopped"]


def test_a_guest_that_could_not_be_started_did_not_die() -> None:
    host = Host()
    host.read(a="shutoff shutdown")
    host.hear(DIED)
    host.read(a="shutoff failed")
    assert host.said == []


def test_a_guest_that_was_just_made_and_could_not_be_started_did_not_die() -> None:
    host = Host()
    host.hear("lifecycle defined added", DIED)
    assert host.said == []


# failures

FAILURES = {
    "stopped": [DIED, "found shutoff crashed"],
    "panic": [
        "lifecycle suspended paused",
        "lifecycle crashed panicked",
        "lifecycle stopped crashed",
    ],
    "watchdog": ["watchdog pause", "lifecycle suspended watchdog", "found paused watchdog"],
    "io_error": ["io_error pause - vda", "lifecycle suspended ioerror", "found paused ioerror"],
}


@pytest.mark.parametrize(
    ("cause", "traces"),
    [
        (cause, order)
        for cause, traces in FAILURES.items()
        for order in itertools.permutations([*traces, traces[1]])
    ],
)
def test_the_traces_of_one_failure_make_one_happening_in_any_order(
    cause: str, traces: tuple[str, ...]
) -> None:
    host = Host()
    host.hear(*START)
    for trace in traces:
        if trace.startswith("found "):
            host.read(a=trace.removeprefix("found "))
        else:
            host.hear(trace)
    host.wait(LONG)
    assert host.said == [f"failed {cause}"]
    if cause == "io_error":
        assert host.told[0].evidence["disk"] == "vda"


def test_a_guest_that_dies_while_somebody_asks_its_qemu_something_died_and_no_more(
    host: Host,
) -> None:
    host.hear("control_error", DIED)
    host.wait(LONG)
    assert host.said == ["failed stopped"]


def test_a_qemu_that_talks_nonsense_and_lives_on_is_noted_once(host: Host) -> None:
    host.hear("control_error")
    assert host.said == []
    host.wait(10)
    host.hear("control_error")
    host.wait(LONG)
    assert host.said == ["noted control_error"]


def test_a_watchdog_that_switches_off_and_the_death_that_follows_are_one() -> None:
    for order in itertools.permutations(["watchdog poweroff", DIED]):
        host = Host()
        host.hear(*START, *order)
        host.wait(LONG)
        assert len(host.told) == 1
        assert host.told[0].state == "failed"


def test_a_guest_that_dies_after_a_restart_is_reported_again(host: Host) -> None:
    for _ in range(3):
        host.hear(DIED, DIED, *START)
    assert host.said == ["failed stopped", "well running"] * 3
    assert len({one.key for one in host.told}) == 6


#: What was heard of a failure that is told, and how it is over.
WAYS = {
    "started by hand": ((DIED,), START),
    "made anew, as Nova's hard reboot does": (
        (DIED,),
        ("lifecycle undefined removed", "lifecycle defined added", *START),
    ),
    "destroyed and started": (
        ("lifecycle suspended ioerror",),
        ("lifecycle stopped destroyed", *START),
    ),
    "resumed": (("lifecycle suspended ioerror",), ("lifecycle resumed unpaused",)),
    "it answers again": (("monitor stuck",), ("monitor answering",)),
    "it lives again": (("hang hung",), ("hang alive",)),
}


@pytest.mark.parametrize(("fails", "rises"), WAYS.values(), ids=WAYS)
def test_a_reported_guest_that_runs_again_is_reported_well_once(
    host: Host, fails: Sequence[str], rises: Sequence[str]
) -> None:
    host.hear(*START, *rises)
    assert host.told == []
    host.hear(*fails)
    host.wait(61)
    host.hear(*rises)
    failed, well = host.told
    assert (failed.state, well.state, well.uuid) == ("failed", "well", failed.uuid)
    assert well.since > failed.since
    host.hear(*rises)
    host.read(a="running booted")
    host.wait(LONG)
    host.read(a="running booted")
    assert len(host.told) == 2


def test_a_fault_that_was_not_reported_or_only_noted_has_no_report_of_its_end(host: Host) -> None:
    host.hear(*START, "lifecycle suspended ioerror", "lifecycle resumed unpaused")
    host.hear("lifecycle shutdown host", "lifecycle stopped shutdown", *START)
    host.wait(LONG)
    assert host.said == ["noted stopped"]


def test_a_guest_whose_disk_fails_while_it_runs_is_not_well_for_running(host: Host) -> None:
    host.hear(*START, "io_error report - vda")
    for _ in range(3):
        host.wait(QUIET_S)
        host.read(a="running booted")
    assert host.said == ["failed io_error"]
    host.hear("lifecycle stopped destroyed", *START)
    assert host.said == ["failed io_error", "well running"]


@pytest.mark.parametrize("gone", [False, True])
def test_a_restarted_watch_knows_the_reported_failures(host: Host, gone: bool) -> None:
    host.hear(*START, DIED, *(["lifecycle undefined removed"] if gone else []))
    said = json.loads(json.dumps(guest_store.to_plain(host.watch)))
    host.watch = guest_store.from_plain(said, host.watch.filters, host.now)
    host.read(a="running booted")
    assert host.said == ["failed stopped", "well running"]


def test_the_stored_state_of_an_older_agent_has_the_reported_failures(host: Host) -> None:
    host.hear(*START, DIED)
    said = json.loads(json.dumps(guest_store.to_plain(host.watch)))
    del said["ill"]
    host.watch = guest_store.from_plain(said, host.watch.filters, host.now)
    host.hear(*START)
    assert host.said == ["failed stopped", "well running"]


@pytest.mark.parametrize(
    ("before", "said"),
    [
        (["hang hung idle"], "hang"),
        (["monitor stuck"], "monitor"),
        (["io_error report - vda"], "io_error"),
        (["watchdog pause", "lifecycle suspended watchdog"], "watchdog"),
        (["io_error pause - vda", "lifecycle suspended ioerror"], "io_error"),
    ],
)
@pytest.mark.parametrize(
    ("death", "how"),
    [
        ([DIED], "stopped"),
        (["found shutoff crashed"], "stopped"),
        (["lifecycle crashed panicked", "lifecycle stopped crashed"], "panic"),
        (["found crashed panicked"], "panic"),
    ],
)
def test_both_faults_of_a_guest_are_reported(
    host: Host, before: list[str], said: str, death: list[str], how: str
) -> None:
    """The first may have led to nothing: a silence, a maintenance."""
    host.hear(*before)
    host.wait(61)
    assert host.said == [f"failed {said}"]
    for one in [*death, *death]:
        if one.startswith("found "):
            host.read(a=one.removeprefix("found "))
        else:
            host.hear(one)
    host.wait(LONG)
    assert host.said == [f"failed {said}", f"failed {how}"]
    assert len({one.key for one in host.told}) == 2


def test_a_watchdog_that_switched_it_off_is_known_when_its_end_is_found(host: Host) -> None:
    host.hear("watchdog poweroff")
    host.read(a="shutoff failed")
    host.wait(LONG)
    assert host.said == ["failed watchdog"]


def test_a_process_that_was_terminated_is_noted(host: Host) -> None:
    host.hear("lifecycle shutdown host", "lifecycle stopped shutdown")
    assert host.said == ["noted stopped"]
    assert host.told[0].evidence["detail"] == "terminated"


def test_a_panic_that_ends_in_a_restart_is_only_noted(host: Host) -> None:
    host.metadata = {"on_crash": "restart"}
    host.hear("lifecycle crashed panicked", "reboot", "lifecycle resumed unpaused", "reboot")
    assert host.said == ["noted panic"]


def test_a_guest_that_panics_and_restarts_all_the_time_is_not_noted_all_the_time(
    host: Host,
) -> None:
    host.metadata = {"on_crash": "restart"}
    for _ in range(500):
        host.hear("lifecycle crashed panicked", "lifecycle resumed unpaused", step_s=0.5)
    assert host.said == ["noted panic"]
    host.wait(QUIET_S + 1)
    host.hear("lifecycle crashed panicked", "lifecycle resumed unpaused")
    assert host.said == ["noted panic", "noted panic"]


def test_a_watchdog_that_dumps_and_goes_on_is_only_noted(host: Host) -> None:
    host.metadata = {"watchdog": "dump"}
    host.hear("watchdog pause", "lifecycle suspended watchdog", "lifecycle resumed unpaused")
    host.wait(LONG)
    assert host.said == ["noted watchdog"]


@pytest.mark.parametrize("events", [["io_error pause - vda"], []])
def test_storage_that_comes_back_in_time_makes_no_failure(host: Host, events: list[str]) -> None:
    host.hear(*events, "lifecycle suspended ioerror")
    host.wait(29)
    host.hear("lifecycle resumed unpaused")
    host.wait(LONG)
    assert host.said == []


def test_storage_that_stays_away_is_a_failure_when_its_time_is_over(host: Host) -> None:
    host.hear("lifecycle suspended ioerror")
    since = host.at
    assert host.watch.due() == pytest.approx(host.now + 30)
    host.wait(29)
    assert host.said == []
    host.wait(1.1)
    assert host.said == ["failed io_error"]
    assert host.told[0].since == since
    host.hear("io_error pause - vda", "lifecycle suspended ioerror")
    host.wait(LONG)
    assert len(host.told) == 1


def test_a_disk_that_is_known_late_is_known_in_time(host: Host) -> None:
    """Space has run out: to start it anew would not help."""
    host.hear("lifecycle suspended ioerror", "io_error pause enospc vda")
    host.wait(LONG)
    assert host.said == ["noted io_error"]
    host.hear(DIED)
    assert host.said == ["noted io_error", "failed stopped"]


def test_a_thousand_errors_that_the_guest_hears_of_are_one_failure(host: Host) -> None:
    for _ in range(1000):
        host.hear("io_error report - vda", step_s=0.001)
    assert host.said == ["failed io_error"]
    fault = host.watch.tracks["u-a"].faults["io_error report"]
    assert fault.count == 1000
    assert len(fault.traces) == MOST_TRACES


def test_a_qemu_that_answers_again_in_time_is_none(host: Host) -> None:
    host.hear("monitor stuck")
    host.wait(50)
    host.read(a="running booted")
    host.hear("monitor answering")
    host.wait(LONG)
    assert host.said == []


def test_a_qemu_that_hangs_for_long_is_a_failure_though_its_state_says_running(
    host: Host,
) -> None:
    host.hear("monitor stuck")
    host.read(a="running booted")
    host.wait(61)
    assert host.said == ["failed monitor"]


def test_a_guest_that_does_nothing_any_more_is_a_failure_unless_it_comes_to_life(
    host: Host,
) -> None:
    host.hear("hang hung idle")
    host.wait(20)
    host.hear("hang alive")
    host.wait(LONG)
    assert host.said == []
    host.hear("hang hung spinning")
    host.read(a="running booted")
    host.wait(31)
    assert host.said == ["failed hang"]
    assert host.told[0].evidence["reason"] == "spinning"


@pytest.mark.parametrize("pause", ["lifecycle suspended paused", "lifecycle pmsuspended memory"])
def test_a_guest_that_somebody_stops_does_not_hang(host: Host, pause: str) -> None:
    host.hear("hang hung idle", pause, "hang hung idle", "hang stalled")
    host.wait(LONG)
    assert host.said == []


@pytest.mark.parametrize("state", ["paused user", "paused save", "pmsuspended 0"])
def test_a_guest_that_is_found_stopped_does_not_hang(host: Host, state: str) -> None:
    host.hear("hang hung idle")
    host.read(a=state)
    host.wait(LONG)
    assert host.said == []


def test_many_reboots_are_noted_and_each_counts_once(host: Host) -> None:
    for _ in range(4):
        host.hear("reboot", "reboot", "reboot", step_s=0.1)
        host.wait(10)
    assert host.said == []
    host.hear("reboot", "reboot")
    assert host.said == ["noted reboot"]


# what happened while nobody listened


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("shutoff crashed", ["failed stopped"]),
        ("shutoff daemon", ["failed stopped"]),
        ("crashed panicked", ["failed panic"]),
        ("paused watchdog", ["failed watchdog"]),
        ("paused ioerror", ["failed io_error"]),
        ("shutoff shutdown", []),
        ("shutoff destroyed", []),
        ("shutoff migrated", []),
        ("paused user", []),
        ("running crashed", []),
    ],
)
@pytest.mark.parametrize("known", [True, False])
def test_a_state_that_is_found_says_what_was_not_heard(
    state: str, said: list[str], known: bool
) -> None:
    host = Host()
    if known:
        host.read(a="running booted")
    host.read(a=state)
    host.wait(31)
    host.read(a=state)
    host.wait(LONG)
    assert host.said == said


def test_what_vanished_is_lost_unless_somebody_removed_it(host: Host) -> None:
    host.hear("lifecycle defined added", *START, name="b")
    host.read()
    assert [one.uuid for one in host.told] == ["u-a"]
    assert host.told[0].evidence["detail"] == "vanished"
    assert "u-b" not in host.watch.tracks


def test_what_was_heard_after_reading_began_is_newer_than_what_was_read(host: Host) -> None:
    began = host.now
    host.hear(DIED)
    host.read(at_s=began, a="running booted")
    host.read(a="shutoff crashed")
    assert host.said == ["failed stopped"]


def test_what_came_while_the_others_were_read_is_not_missing(host: Host) -> None:
    began = host.now
    host.hear(*START, name="b")
    host.read(at_s=began, a="running booted")
    host.hear(DIED, name="b")
    assert [one.name for one in host.told] == ["b"]


def test_filters_can_be_replaced_at_any_time(host: Host) -> None:
    host.watch.use(guest_filters.parse("rules: [{do: ignore}]", "g.yaml"), host.now)
    host.hear(DIED)
    assert host.said == []


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("do: ignore", []),
        ("do: report", ["noted io_error"]),
        ("after: 5m, do: recover", []),
        ("after: 10s, do: recover", ["failed io_error"]),
    ],
)
def test_new_filters_apply_to_faults_that_are_not_reported_yet(
    host: Host, rule: str, said: list[str]
) -> None:
    host.hear("lifecycle suspended ioerror")
    host.wait(20)
    text = f"rules: [{{event: io_error, detail: pause, {rule}}}]"
    host.watch.use(guest_filters.parse(text, "g"), host.now)
    host.wait(0.0)
    assert host.said == said
    host.wait(60)
    assert host.said == said
    host.wait(LONG)
    assert host.said == (["failed io_error"] if "5m" in rule else said)


def test_new_filters_do_not_change_reported_faults(host: Host) -> None:
    host.hear(DIED)
    host.watch.use(guest_filters.parse("rules: [{do: report}]", "g.yaml"), host.now)
    host.wait(LONG)
    assert host.said == ["failed stopped"]


@pytest.mark.parametrize("step_s", [-3600.0, 3600.0])
def test_a_clock_that_is_set_makes_nothing_older_or_newer(host: Host, step_s: float) -> None:
    host.read(a="running booted", b="running booted", c="running booted", persistent=False)
    host.hear("lifecycle suspended paused", "lifecycle resumed unpaused")
    host.hear(*START, name="b")
    host.clock_s += step_s
    host.wait(5)
    began = host.now
    host.hear(DIED, name="c")
    host.read(began, a="shutoff crashed", c="running booted", persistent=False)
    assert [(one.name, one.evidence["event"]) for one in host.told] == [
        ("c", "stopped"),
        ("a", "stopped"),
        ("b", "stopped"),
    ]


def test_a_guest_that_does_not_answer_is_there_and_no_more_is_known(host: Host) -> None:
    host.read(a="running booted", persistent=False)
    host.read(a="unknown no_answer")
    track = host.watch.tracks["u-a"]
    assert (track.life, track.reason, track.persistent) == ("running", "booted", False)
    host.read()
    assert host.told[0].evidence["detail"] == "vanished"


def test_the_evidence_names_rule_and_traces(host: Host) -> None:
    host.hear(DIED)
    (one,) = host.told
    assert one.evidence["rule"].startswith("f.yaml line 6: stopped failed")
    assert one.evidence["traces"] == [f"{host.at.isoformat()} lifecycle stopped failed"]
    assert one.evidence["domain_state"] == "off"


def test_what_is_sent_is_what_the_api_takes(host: Host) -> None:
    host.hear(DIED)
    sent = report(host.told[0], "cmp-1", host.at)
    jsonschema.validate(json.loads(json.dumps(sent)), SCHEMA)
    assert (sent["observer"], sent["subject"]) == ("agent@cmp-1", "server:u-a")
    assert sent["evidence"]["host"] == "cmp-1"


# chance

HEARD = {one for kind in (*ORDINARY.values(), *FAILURES.values()) for one in kind}
MORE = """watchdog reset|watchdog poweroff|io_error report - vdb|monitor stuck|monitor answering|
control_error|found running booted|found shutoff shutdown""".replace("\n", "").split("|")
EVENTS = st.sampled_from([*sorted(HEARD), *START, *MORE])
STEPS = st.lists(st.tuples(st.sampled_from("ab"), EVENTS, st.floats(0.0, 40.0)), max_size=40)
ALIVE = ("lifecycle resumed", "lifecycle started", "found running")
DEAD = ("lifecycle stopped", "found shutoff", "lifecycle crashed", "found crashed")
OVER = (*ALIVE, *DEAD, "monitor answering", "lifecycle undefined")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS)
def test_no_fault_is_reported_twice_and_a_failure_only_after_a_life(
    steps: list[tuple[str, str, float]],
) -> None:
    host = Host()
    states = {"a": "running booted", "b": "running booted"}
    host.read(**states)
    over = dict.fromkeys(states, True)
    failed = dict.fromkeys(states, host.now)
    for name, event, pause in steps:
        before = len(host.told)
        if event.startswith("found "):
            others = _others(host, name)
            host.read(**{name: event.removeprefix("found "), **others})
            over |= {one: True for one, state in others.items() if state.startswith("running")}
        else:
            host.hear(event, name=name)
        over[name] = over[name] or event.startswith(OVER)
        host.wait(pause)
        for one in host.told[before:]:
            if one.state == "failed":
                long_ago = host.now - failed[one.name] >= QUIET_S / 2
                assert over[one.name] or long_ago, f"{one.name} failed again, and had not lived"
                over[one.name], failed[one.name] = False, host.now
    host.wait(LONG)
    keys = [one.key for one in host.told]
    assert len(keys) == len(set(keys))
    assert host.watch.due() is None
    for track in host.watch.tracks.values():
        assert all(len(t.traces) <= MOST_TRACES for t in track.faults.values())


def _others(host: Host, name: str) -> dict[str, str]:
    """As they are known, so that reading one says nothing new of the rest."""
    shown = {"off": "shutoff shutdown", "paused": "paused user", "crashed": "crashed panicked"}
    return {
        track.name: shown.get(track.life, "running booted")
        for track in host.watch.tracks.values()
        if track.name != name
    }


# what is remembered


def _reborn(host: Host) -> None:
    """The agent was killed and started again; what it had written down is all it has. QEMUs that
    hung before still do."""
    hangs = [track for track in host.watch.tracks.values() if "monitor stuck" in track.faults]
    said = json.loads(json.dumps(guest_store.to_plain(host.watch)))
    host.watch = guest_store.from_plain(said, host.watch.filters, host.now)
    for track in hangs:
        if track.faults["monitor stuck"].lasts:
            host.hear("monitor stuck", name=track.name, step_s=0.0)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS, st.integers(0, 40))
def test_an_interrupted_watch_reports_the_same_as_an_uninterrupted_one(
    steps: list[tuple[str, str, float]], cut: int
) -> None:
    whole, broken = Host(), Host()
    for number, (name, event, _) in enumerate(steps):
        for host in (whole, broken):
            if number == cut and host is broken:
                _reborn(host)
            if event.startswith("found "):
                host.read(**{name: event.removeprefix("found "), **_others(host, name)})
            else:
                host.hear(event, name=name, step_s=3.0)
    for host in (whole, broken):
        host.wait(LONG)
    # reboots are counted anew, and the grace time of a note begins again: worse may overtake it
    noted = {"noted reboot", "noted control_error"}
    assert [one for one in whole.said if one not in noted] == [
        one for one in broken.said if one not in noted
    ]


def test_a_qemu_that_hangs_across_a_kill_of_the_agent_is_reported_once(host: Host) -> None:
    host.hear("monitor stuck")
    host.wait(61)
    _reborn(host)
    host.wait(LONG)
    assert host.said == ["failed monitor"]


def test_a_hanging_qemu_is_reported_after_another_report_about_the_guest(
    host: Host,
) -> None:
    host.hear("monitor stuck", "io_error report - vdb")
    _reborn(host)
    host.wait(61)
    assert host.said == ["failed io_error", "failed monitor"]


def test_a_hanging_qemu_is_reported_although_the_guests_were_read_again(
    host: Host,
) -> None:
    """A write failed: whoever found that it hangs lives on, and does not say it a second time."""
    host.hear("monitor stuck")
    host.wait(30)
    said = json.loads(json.dumps(guest_store.to_plain(host.watch)))
    tracks, filters = host.watch.tracks, host.watch.filters
    host.watch = guest_store.from_plain(said, filters, host.now, tracks)
    host.wait(59)
    assert host.said == []
    host.wait(1)
    assert host.said == ["failed monitor"]


def test_one_that_came_to_life_while_no_agent_was_there_may_die_later(host: Host) -> None:
    host.hear("monitor stuck")
    host.wait(61)
    said = json.loads(json.dumps(guest_store.to_plain(host.watch)))
    host.watch = guest_store.from_plain(said, host.watch.filters, host.now)
    host.read(a="running booted")
    host.wait(LONG)
    host.hear(DIED)
    assert host.said == ["failed monitor", "failed stopped"]


def test_a_reading_that_was_begun_before_a_dead_guest_was_removed_is_no_second_death(
    host: Host,
) -> None:
    host.read(a="running booted")
    host.hear(DIED)
    begun = host.now
    host.hear("lifecycle undefined removed")
    host.read(begun, a="shutoff failed")
    assert host.said == ["failed stopped"]
    host.read(a="shutoff crashed")  # made anew since, and found dead
    assert host.said == ["failed stopped", "failed stopped"]


def test_a_report_from_before_the_kill_is_not_repeated(host: Host) -> None:
    host.hear(DIED)
    _reborn(host)
    host.read(a="shutoff crashed")
    assert host.said == ["failed stopped"]


def test_a_guest_that_died_while_the_agent_was_dead_is_reported(host: Host) -> None:
    _reborn(host)
    host.read(a="shutoff crashed")
    assert host.said == ["failed stopped"]


@pytest.mark.parametrize("said", [None, [], {}, {"format": 7}, {"format": 1, "guests": [{}]}])
def test_what_somebody_else_wrote_is_not_believed(said: object) -> None:
    with pytest.raises(InvalidInput, match="the stored state of guests cannot be read"):
        guest_store.from_plain(said, guest_filters.default(), 0.0)
