# SPDX-License-Identifier: Apache-2.0
"""What is found out about a secret is found out by one, and for a while."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.api import auth
from holdfast.api.auth import AuthCache
from holdfast.model.errors import TooMany, Unauthorized, Unavailable
from tests.processes import eventually
from tests.simclock import SimClock


class Finder:
    """Finds out how often it was asked; what is in `fails` is raised instead."""

    def __init__(self) -> None:
        self.calls = 0
        self.fails: Exception | None = None
        self.go_on = threading.Event()
        self.go_on.set()

    def __call__(self) -> int:
        self.calls += 1
        assert self.go_on.wait(90)
        if self.fails is not None:
            raise self.fails
        return self.calls


def test_what_will_soon_be_over_is_found_out_again_by_one_while_others_go_on() -> None:
    clock, find = SimClock(), Finder()
    memory: AuthCache[int] = AuthCache(clock, most_waiting=1)
    assert [memory.once(b"s", 60, find) for _ in range(3)] == [1, 1, 1]
    clock.advance(50)
    find.go_on.clear()
    with ThreadPoolExecutor() as pool:
        again = pool.submit(memory.once, b"s", 60, find)
        eventually(lambda: find.calls == 2)
        assert [memory.once(b"s", 60, find) for _ in range(5)] == [1] * 5
        find.go_on.set()
        assert again.result(90) == 2
    clock.advance(44)
    assert memory.once(b"s", 60, find) == 2  # its time began anew


def test_who_brings_the_same_waits_for_the_first_and_hears_what_he_hears(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(auth, "PATIENCE_S", 90.0)  # however slow the machine is
    find = Finder()
    memory: AuthCache[int] = AuthCache(SimClock(), most_waiting=2)
    find.go_on.clear()
    find.fails = Unauthorized("wrong")
    with ThreadPoolExecutor() as pool:
        asked = [pool.submit(memory.once, b"s", 60, find) for _ in range(4)]
        eventually(lambda: sum(one.done() for one in asked) == 1)  # there is room for two to wait
        find.go_on.set()
        heard = [type(one.exception(90)) for one in asked]
    assert sorted(heard, key=str) == [Unauthorized] * 3 + [Unavailable]
    assert find.calls == 1
    find.fails = None
    assert memory.once(b"s", 60, find) == 2  # nothing was remembered, and nobody is in the way


@pytest.mark.parametrize("why", [TooMany("later", wait_s=1), Unavailable("no room")])
def test_what_is_not_over_counts_on_if_it_cannot_be_found_out_again(why: Exception) -> None:
    clock, find = SimClock(), Finder()
    memory: AuthCache[int] = AuthCache(clock)
    memory.once(b"s", 60, find)
    find.fails = why
    clock.advance(50)
    assert memory.once(b"s", 60, find) == 1
    clock.advance(11)
    with pytest.raises(type(why)):
        memory.once(b"s", 60, find)
    find.fails = Unauthorized("another password by now")
    with pytest.raises(Unauthorized):
        memory.once(b"s", 60, find)
