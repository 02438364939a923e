# SPDX-License-Identifier: Apache-2.0
"""What nobody heard, or heard late, or of guests that came and went: it counts all the same."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from tests.agent.test_agent_writes import DIED as WEB_DIED
from tests.agent.test_agent_writes import House
from tests.agent.test_guests import DIED, LONG, START, Host

from holdfast.agent import guest_admin, guest_store
from holdfast.agent.guest_state import MOST_DISMISSED, WELL
from holdfast.agent.guest_store import Reading
from holdfast.ports.guests import LIFECYCLE, REBOOT, Event, Guest

OFF = ("lifecycle shutdown guest", "lifecycle stopped shutdown")
RATE = "rules: [{event: stopped, detail: failed, rate: 3 in 1h, do: report}]"
#: As Nova starts a guest anew.
MADE_ANEW = ("lifecycle undefined removed", "lifecycle defined added", *START)


def told(host: Host) -> list[str]:
    return [f"{one.state} {one.evidence['event']}" for one in host.told if one.state != WELL]


def reborn(host: Host) -> None:
    said = json.loads(json.dumps(guest_store.to_plain(host.watch)))
    host.watch = guest_store.from_plain(said, host.watch.filters, host.now)


@pytest.fixture
def host() -> Host:
    made = Host()
    made.hear(*START)
    return made


# a guest that was off, was started and died, and none of it was heard


@pytest.mark.parametrize("state", ["shutoff crashed", "shutoff daemon"])
@pytest.mark.parametrize("before", ["heard", "read", "made", "forgotten"])
def test_a_guest_started_and_dead_without_an_event_is_reported_once(
    before: str, state: str
) -> None:
    host = Host()
    if before == "made":
        host.hear("lifecycle defined added")
    else:
        host.hear(*START, *OFF)
    if before == "read":
        host.read(a="shutoff shutdown")
    if before == "forgotten":
        host.read(a="shutoff unknown")  # by a libvirtd that was restarted
    off_since = host.watch.tracks["u-a"].since
    host.wait(60)
    for _ in range(3):
        reborn(host)
        host.read(a=state)
        host.wait(LONG)
    assert told(host) == ["failed stopped"]
    track = host.watch.tracks["u-a"]
    assert (track.ended, track.explained) == ("", "judged")
    assert track.since is not None
    assert off_since is not None
    assert track.since > off_since


def test_a_flood_that_dropped_its_start_loses_no_death(host: Host) -> None:
    host.hear(*OFF)
    host.hear(DIED)  # a start that failed, as far as one can hear
    assert told(host) == []
    host.read(a="shutoff crashed")
    assert told(host) == ["failed stopped"]


@pytest.mark.parametrize(
    "heard",
    [
        (DIED,),
        ("lifecycle shutdown guest", DIED),  # its own will, whatever became of QEMU
        ("lifecycle crashed panicked", "lifecycle stopped crashed"),
        ("watchdog poweroff", DIED),
    ],
)
@pytest.mark.parametrize("rules", ["", "rules: [{do: ignore}]"])
def test_a_known_death_is_reported_once_in_spite_of_many_readings(
    heard: tuple[str, ...], rules: str
) -> None:
    host = Host(rules) if rules else Host()
    host.hear(*START, *heard)
    before = told(host)
    for state in ("shutoff crashed", "shutoff daemon", "shutoff failed", "shutoff crashed"):
        reborn(host)
        host.read(a=state)
        host.wait(LONG)
    assert told(host) == before


def test_a_guest_that_could_not_be_started_is_none_that_died(host: Host) -> None:
    host.hear(*OFF)
    for _ in range(3):
        host.hear(DIED)
        host.read(a="shutoff failed")
        reborn(host)
    assert told(host) == []
    assert host.watch.tracks["u-a"].explained == "shutdown"


def test_a_second_death_after_libvirtd_forgot_the_first_is_reported_again(host: Host) -> None:
    host.hear(DIED)
    host.read(a="shutoff unknown")
    host.read(a="shutoff crashed")
    assert told(host) == ["failed stopped"] * 2
    assert len({one.key for one in host.told}) == 2


# space that ran out while nobody listened


def full(host: Host, error: str = "enospc") -> None:
    host.now += 0.01
    found = Guest("u-a", "a", "paused", "ioerror")
    guest = replace(found, error=error, disk="vda", path="/srv/a.raw")
    host.told += host.watch.reconcile([guest], host.at, host.now)


def test_space_that_is_found_to_have_run_out_is_noted_and_not_recovered(host: Host) -> None:
    full(host)
    host.wait(6)
    host.read(a="paused ioerror")  # its QEMU did not say more this time
    host.wait(LONG)
    assert told(host) == ["noted io_error"]
    found = host.told[0].evidence
    assert (found["reason"], found["disk"], found["path"]) == ("enospc", "vda", "/srv/a.raw")


def test_a_disk_that_failed_otherwise_is_recovered_and_named(host: Host) -> None:
    full(host, "")
    host.wait(31)
    assert told(host) == ["failed io_error"]
    assert host.told[0].evidence["disk"] == "vda"


def test_what_the_agent_knows_of_a_full_disk_is_in_a_recording(host: Host) -> None:
    host.hear("io_error pause enospc vda", "lifecycle suspended ioerror")
    standing = guest_admin.reading(host.watch.tracks.values(), host.at)
    (again,) = guest_store.read([guest_store.line(standing)], "x")
    assert isinstance(again, Reading)
    made = list(guest_store.replay([again], host.watch.filters))
    assert [one.state for _, one in made] == ["noted"]


# what was counted


def test_deaths_are_counted_of_a_guest_that_is_removed_and_made_anew_each_time() -> None:
    host = Host(RATE)
    host.hear("lifecycle defined added", *START)
    for _ in range(3):
        host.hear(DIED, *MADE_ANEW)
    assert told(host) == ["failed stopped", "failed stopped", "noted stopped"]
    assert host.watch.counted == {}  # it is there


def test_deaths_are_counted_of_a_guest_that_libvirt_does_not_keep() -> None:
    host = Host(RATE)
    for _ in range(3):
        host.hear(*START, DIED)
        host.read()  # it is gone
        assert host.watch.tracks == {}
    assert told(host) == ["failed stopped", "failed stopped", "noted stopped"]


def test_what_was_counted_of_those_that_are_gone_is_bounded() -> None:
    host = Host(RATE)
    for number in range(MOST_DISMISSED + 5):
        name = f"g{number}"
        host.hear("lifecycle defined added", *START, DIED, MADE_ANEW[0], name=name)
    assert len(host.watch.counted) == MOST_DISMISSED
    assert "u-g0" not in host.watch.counted


def test_a_write_that_fails_forgets_no_rate_of_a_guest_that_is_gone(tmp_path: Path) -> None:
    rules = tmp_path / "filters.yaml"
    rules.write_text(RATE.replace("3 in", "2 in"))
    house = House(tmp_path, rules)
    house.go_on(house.heard(WEB_DIED, f"web {LIFECYCLE} undefined removed"))
    house.outbox.full = 1
    house.go_on(house.heard(f"db {LIFECYCLE} resumed unpaused"))
    back = (f"web {LIFECYCLE} defined added", f"web {LIFECYCLE} started booted")
    house.go_on(house.heard(*back, WEB_DIED))
    assert [state for state in house.states if state != WELL] == ["failed", "noted"]


def backlog(count: int, interval_s: float) -> list[str]:
    """What is told of so many reboots that are judged at the same moment, long after."""
    host = Host()
    host.hear(*START)
    for number in range(count):
        heard = 10.0 + number * interval_s
        for trace in (0.0, 0.1, 0.2):  # of one reset
            at = host.at + timedelta(seconds=heard + trace)
            event = Event("u-a", "a", REBOOT, at)
            host.told += host.watch.hear(event, 5000.0, heard + trace)
    return told(host)


def test_reboots_that_waited_to_be_judged_count_when_they_were_heard() -> None:
    assert backlog(4, 10.0) == []
    assert backlog(5, 10.0) == ["noted reboot"]
    assert backlog(5, 100.0) == []  # five in seven minutes
