# SPDX-License-Identifier: Apache-2.0
"""What waits on disk to be delivered, and who carries it."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.processes import eventually
from tests.simclock import SimClock

from holdfast.agent.outbox import MOST_PARKED, Outbox, Sender
from holdfast.app.agent import boot_of
from holdfast.model.errors import DriverError, Forbidden, HoldfastError, InvalidInput, Unavailable
from holdfast.runtime.clock import SystemClock


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "deep" / "outbox")


def put(outbox: Outbox, *names: str) -> None:
    """`a1`: the first about a."""
    outbox.put([(name[0], name, {"name": name}) for name in names])


class Office:
    """Takes reports, unless it is told what to say to one."""

    def __init__(self, **says: HoldfastError) -> None:
        self.says: dict[str, HoldfastError] = dict(says)
        self.taken: list[str] = []
        self.asked: list[str] = []

    def report(self, body: Mapping[str, Any]) -> None:
        self.asked.append(body["name"])
        if error := self.says.get(body["name"]):
            raise error
        self.taken.append(body["name"])

    def view(self, observer: str, body: Mapping[str, Any]) -> None:
        raise AssertionError("nobody asked for it")


def test_what_is_in_it_is_there_after_a_restart_once_and_in_order(path: str) -> None:
    put(Outbox(path), "a1", "b1")
    put(Outbox(path), "a2", "a1")
    outbox = Outbox(path)
    office = Office()
    assert Sender(outbox, office, SystemClock()).round() == ""
    assert office.taken == ["a1", "b1", "a2"]
    assert outbox.counts() == (0, 0)


def test_the_next_about_a_subject_waits_for_the_one_before_and_others_do_not(path: str) -> None:
    outbox, office = Outbox(path), Office(a1=Unavailable("not now"))
    put(outbox, "a1", "a2", "b1")
    sender = Sender(outbox, office, SystemClock())
    assert "not now" in sender.round()
    assert office.taken == ["b1"]
    office.says.clear()
    assert sender.round() == ""
    assert office.taken == ["b1", "a1", "a2"]


def test_what_will_never_be_taken_is_put_aside_and_holds_up_nobody(path: str) -> None:
    outbox, office = Outbox(path), Office(a1=InvalidInput("no such thing"))
    put(outbox, "a1", "a2")
    assert Sender(outbox, office, SystemClock()).round() == ""
    assert office.taken == ["a2"]
    assert outbox.counts() == (0, 1)


@pytest.mark.parametrize("value", [float("inf"), float("nan"), object()])
def test_what_json_cannot_say_is_put_aside_at_the_door_and_the_next_leaves(
    path: str, value: object, caplog: pytest.LogCaptureFixture
) -> None:
    outbox, office = Outbox(path), Office()
    outbox.put([("a", "a1", {"name": "a1", "value": value})], {"known": [1]})
    put(outbox, "a2")
    assert "about a is put aside: it cannot be written as JSON" in caplog.text
    assert Sender(outbox, office, SystemClock()).round() == ""
    assert (office.taken, outbox.counts(), outbox.note("known")) == (["a2"], (0, 1), [1])


def test_what_another_name_wrote_is_put_aside_when_it_is_refused_and_ours_is_not(path: str) -> None:
    """A typing error in a host's name: what was reported in it will never be taken."""
    refused = Forbidden("the agent of cmp-7 reports as agent@cmp-7")
    outbox, office = Outbox(path), Office(a1=refused, b1=refused)
    outbox.put([("a", "a1", {"name": "a1", "observer": "agent@cmp7"})])
    outbox.put([("b", "b1", {"name": "b1", "observer": "agent@cmp-7"})])
    put(outbox, "a2", "b2")
    sender = Sender(outbox, office, SystemClock(), observer="agent@cmp-7")
    assert "b: the agent of" in sender.round()
    assert office.taken == ["a2"]
    assert outbox.counts() == (2, 1)
    office.says.clear()
    assert sender.round() == ""
    assert office.taken == ["a2", "b1", "b2"]


def test_a_sender_that_may_speak_for_anybody_puts_nothing_aside_for_a_name(path: str) -> None:
    outbox = Outbox(path)
    outbox.put([("a", "a1", {"name": "a1", "observer": "ctl-9"})])
    assert "no" in Sender(outbox, Office(a1=Forbidden("no")), SystemClock()).round()
    assert outbox.counts() == (1, 0)


def test_many_that_nobody_takes_keep_no_other_from_its_turn(path: str) -> None:
    outbox, office = Outbox(path), Office()
    for number in range(250):
        name = f"stuck-{number}"
        outbox.put([(name, name, {"name": name})])
        office.says[name] = Unavailable("not now")
    put(outbox, "a1", "a2")
    assert "not now" in Sender(outbox, office, SystemClock()).round()
    assert office.taken == ["a1", "a2"]


def test_what_is_new_leaves_at_once_while_something_else_is_stuck(path: str) -> None:
    """And what is stuck is not tried each time that somebody rings."""
    outbox, office = Outbox(path), Office(a1=Unavailable("not now"))
    clock = SimClock(by_hand=True)
    sender = Sender(outbox, office, clock)
    put(outbox, "a1")
    sender.start()
    try:
        for number in range(5):
            until(lambda: "a1" in office.asked)
            put(outbox, f"b{number}")
            sender.wake()
            until(lambda number=number: f"b{number}" in office.taken)
        assert office.asked.count("a1") == 1
        for tries, pause_s in enumerate((0.2, 0.4, 0.8, 1.6), 2):
            until(lambda: bool(clock._asleep) and not clock.overslept())
            assert clock.settle() == pytest.approx(pause_s, abs=0.01)
            clock.advance(pause_s + 0.001)
            until(lambda tries=tries: office.asked.count("a1") == tries)
    finally:
        sender.stop()


def test_a_report_of_a_failure_that_ended_before_its_delivery_says_so(path: str) -> None:
    """Whoever gets it would begin to do something about it before the next report comes."""
    outbox = Outbox(path)
    about = {"kind": "guest", "state": "failed", "evidence": {"host": "cmp-7"}}
    outbox.put([(name, f"{name}/{n}", about) for name in ("server:a", "server:b") for n in (1, 2)])
    well = {**about, "state": "well"}
    outbox.put([("server:a", "server:a/3", well)], over={"server:a": "2026-11-16T12:00:00+00:00"})
    sent: list[tuple[str, str, str]] = []

    class Ears:
        def report(self, body: Mapping[str, Any]) -> None:
            item = next(head for head in outbox.heads() if head.body == body)
            sent.append((item.subject, body["state"], body["evidence"].get("over_since", "")))

        def view(self, observer: str, body: Mapping[str, Any]) -> None:
            raise AssertionError

    assert Sender(outbox, Ears(), SystemClock()).round() == ""
    over = ("server:a", "failed", "2026-11-16T12:00:00+00:00")
    assert [one for one in sent if one[0] == "server:a"] == [over, over, ("server:a", "well", "")]
    assert [one for one in sent if one[0] == "server:b"] == [("server:b", "failed", "")] * 2


def test_few_are_kept_of_what_was_put_aside(path: str) -> None:
    outbox = Outbox(path)
    for number in range(MOST_PARKED + 5):
        outbox.put([("a", str(number), {})])
        outbox.park(outbox.heads()[0], "no")
    assert outbox.counts() == (0, MOST_PARKED)


def test_a_full_outbox_takes_all_of_a_batch_or_nothing(path: str) -> None:
    outbox = Outbox(path, most=3)
    put(outbox, "a1", "b1")
    with pytest.raises(DriverError, match="more are not kept"):
        put(outbox, "c1", "d1")
    assert [item.subject for item in outbox.heads()] == ["a", "b"]


@pytest.mark.parametrize("garbage", ["{", "5", b"\xff", "[" * 100_000, '{"a": NaN'])
def test_a_row_that_is_no_report_is_parked_and_the_others_leave(
    path: str, garbage: str | bytes, caplog: pytest.LogCaptureFixture
) -> None:
    outbox = Outbox(path)
    put(outbox, "a1", "a2", "b1")
    with sqlite3.connect(path) as db:
        db.execute("UPDATE reports SET body = ? WHERE key = 'a1'", (garbage,))
    outbox = Outbox(path)  # a restart reads the date of the oldest report
    outbox.put([], over={"a": "2026-01-01T00:00:00+00:00"})
    office = Office()
    assert Sender(outbox, office, SystemClock()).round() == ""
    assert (office.taken, outbox.counts()) == (["a2", "b1"], (0, 1))
    assert caplog.text.count("about a is put aside") == 1


def test_the_outbox_is_for_its_account_alone_and_no_symlink(path: str) -> None:
    put(Outbox(path), "a1")
    folder = Path(path).parent
    assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} == {0o600}
    assert folder.stat().st_mode & 0o777 == 0o700
    (folder / "other").symlink_to(path)
    with pytest.raises(DriverError, match="symbolic link"):
        Outbox(str(folder / "other"))


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DriverError, match="file"):
        Outbox(str(tmp_path / "file" / "outbox"))


def test_the_sender_goes_on_by_itself_when_the_other_side_is_back(path: str) -> None:
    outbox, office = Outbox(path), Office(a1=Unavailable("away"))
    sender = Sender(outbox, office, SystemClock())
    sender.start()
    try:
        put(outbox, "a1")
        sender.wake()
        until(lambda: bool(sender._complained))
        office.says.clear()
        until(lambda: office.taken == ["a1"])
    finally:
        sender.stop()
    assert outbox.counts() == (0, 0)


def test_what_was_put_is_there_after_kill_nine(path: str) -> None:
    script = (
        "import sys; from holdfast.agent.outbox import Outbox\n"
        "outbox = Outbox(sys.argv[1])\n"
        "for n in range(10**6):\n"
        "    outbox.put([('a', str(n), {'name': str(n)})]); print(n, flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, path], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        while int(child.stdout.readline()) < 20:
            pass
        os.kill(child.pid, signal.SIGKILL)
        said = [int(line) for line in child.stdout.read().split()]
    last = max(said, default=20)
    waiting, _parked = Outbox(path).counts()
    assert last + 1 <= waiting <= last + 2  # the last may have been put and not said


def until(so: Callable[[], bool]) -> None:
    eventually(so, every=0.01)


def test_the_guests_before_a_boot_are_those_of_the_first_agent_process_after_it(path: str) -> None:
    assert boot_of(Outbox(path), "boot-1", ["a", "b"]) == {"boot_id": "boot-1", "ran": ["a", "b"]}
    assert boot_of(Outbox(path), "boot-1", ["c"])["ran"] == ["a", "b"]
    assert boot_of(Outbox(path), "boot-2", ["c"])["ran"] == ["c"]
