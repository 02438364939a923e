# SPDX-License-Identifier: Apache-2.0
"""What waits on disk to be delivered, and who carries it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from holdfast.model.errors import DriverError, HoldfastError, InvalidInput, Unavailable
from holdfast.ports.clock import SystemClock
from holdfast.watch.courier import Courier
from holdfast.watch.spool import MOST_PARKED, Spool


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "deep" / "spool")


def put(spool: Spool, *names: str) -> None:
    """`a1`: the first about a."""
    spool.put([(name[0], name, {"name": name}) for name in names])


class Office:
    """Takes reports, unless it is told what to say to one."""

    def __init__(self, **says: HoldfastError) -> None:
        self.says: dict[str, HoldfastError] = dict(says)
        self.taken: list[str] = []

    def report(self, body: Mapping[str, Any]) -> None:
        if error := self.says.get(body["name"]):
            raise error
        self.taken.append(body["name"])

    def view(self, observer: str, body: Mapping[str, Any]) -> None:
        raise AssertionError("nobody asked for it")


def test_what_is_in_it_is_there_after_a_restart_once_and_in_order(path: str) -> None:
    put(Spool(path), "a1", "b1")
    put(Spool(path), "a2", "a1")
    spool = Spool(path)
    office = Office()
    assert Courier(spool, office, SystemClock()).round() == ""
    assert office.taken == ["a1", "b1", "a2"]
    assert spool.counts() == (0, 0)


def test_the_next_about_a_subject_waits_for_the_one_before_and_others_do_not(path: str) -> None:
    spool, office = Spool(path), Office(a1=Unavailable("not now"))
    put(spool, "a1", "a2", "b1")
    courier = Courier(spool, office, SystemClock())
    assert "not now" in courier.round()
    assert office.taken == ["b1"]
    office.says.clear()
    assert courier.round() == ""
    assert office.taken == ["b1", "a1", "a2"]


def test_what_will_never_be_taken_is_put_aside_and_holds_up_nobody(path: str) -> None:
    spool, office = Spool(path), Office(a1=InvalidInput("no such thing"))
    put(spool, "a1", "a2")
    assert Courier(spool, office, SystemClock()).round() == ""
    assert office.taken == ["a2"]
    assert spool.counts() == (0, 1)


def test_few_are_kept_of_what_was_put_aside(path: str) -> None:
    spool = Spool(path)
    for number in range(MOST_PARKED + 5):
        spool.put([("a", str(number), {})])
        spool.park(spool.heads()[0], "no")
    assert spool.counts() == (0, MOST_PARKED)


def test_a_full_spool_takes_all_of_a_batch_or_nothing(path: str) -> None:
    spool = Spool(path, most=3)
    put(spool, "a1", "b1")
    with pytest.raises(DriverError, match="more are not kept"):
        put(spool, "c1", "d1")
    assert [item.subject for item in spool.heads()] == ["a", "b"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DriverError, match="file"):
        Spool(str(tmp_path / "file" / "spool"))


def test_the_courier_goes_on_by_itself_when_the_other_side_is_back(path: str) -> None:
    spool, office = Spool(path), Office(a1=Unavailable("away"))
    courier = Courier(spool, office, SystemClock())
    courier.start()
    try:
        put(spool, "a1")
        courier.ring()
        until(lambda: bool(courier._complained))
        office.says.clear()
        until(lambda: office.taken == ["a1"])
    finally:
        courier.stop()
    assert spool.counts() == (0, 0)


def test_what_was_put_is_there_after_kill_nine(path: str) -> None:
    script = (
        "import sys; from holdfast.watch.spool import Spool\n"
        "spool = Spool(sys.argv[1])\n"
        "for n in range(10**6):\n"
        "    spool.put([('a', str(n), {'name': str(n)})]); print(n, flush=True)\n"
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
    waiting, _parked = Spool(path).counts()
    assert last + 1 <= waiting <= last + 2  # the last may have been put and not said


def until(so: Callable[[], bool], limit_s: float = 10) -> None:
    end = time.monotonic() + limit_s
    while not so():
        assert time.monotonic() < end, "it does not come"
        time.sleep(0.01)
