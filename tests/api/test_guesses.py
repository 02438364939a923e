# SPDX-License-Identifier: Apache-2.0
"""Whoever guesses passwords has to wait; whoever mistypes, or comes from elsewhere, has not."""

from __future__ import annotations

import pickle

import pytest

from holdfast.api.auth import FORGOTTEN_S, FREE, LONGEST_S, MOST, LoginThrottle
from holdfast.model.errors import TooMany, Unauthorized, Unavailable
from tests.simclock import SimClock

HERE, THERE = "192.0.2.7", "192.0.2.8"


class World:
    def __init__(self) -> None:
        self.clock = SimClock()
        self.guesses = LoginThrottle(self.clock)
        self.looked = 0

    def guess(self, right: bool = False, user: str = "alice", address: str = HERE) -> str:
        try:
            with self.guesses.attempt(user, address):
                self.looked += 1
                if not right:
                    raise Unauthorized("wrong")
        except Unauthorized:
            return "wrong"
        except TooMany as error:
            return f"wait {error.details['wait_s']}"
        return "in"


@pytest.fixture
def world() -> World:
    return World()


def test_after_a_few_wrong_passwords_the_login_is_blocked_and_the_time_doubles(
    world: World,
) -> None:
    assert [world.guess() for _ in range(FREE)] == ["wrong"] * FREE
    waited = []
    for _ in range(8):
        said = world.guess(right=True)  # also the right one waits: else nothing would be won
        waited.append(int(said.removeprefix("wait ")))
        world.clock.advance(waited[-1])
        assert world.guess() == "wrong"
    assert waited == [1, 2, 4, 8, 16, 32, 60, 60] and LONGEST_S == 60
    assert world.looked == FREE + 8


def test_the_right_one_and_a_long_time_make_all_forgotten(world: World) -> None:
    for _ in range(FREE - 1):
        world.guess()
    assert world.guess(right=True) == "in"
    assert [world.guess() for _ in range(FREE)] == ["wrong"] * FREE
    assert world.guess() == "wait 1"
    world.clock.advance(FORGOTTEN_S + 1)
    assert [world.guess() for _ in range(FREE)] == ["wrong"] * FREE


def test_another_user_and_another_address_do_not_notice(world: World) -> None:
    for _ in range(FREE + 1):
        world.guess()
    assert world.guess(right=True, user="bob") == "in"
    assert world.guess(right=True, address=THERE) == "in"
    assert world.guess(right=True) == "wait 1"


def test_many_at_once_are_no_way_round(world: World) -> None:
    """Each counts as wrong until its answer is known."""
    open_ones = [world.guesses.attempt("alice", HERE) for _ in range(FREE)]
    for one in open_ones:
        one.__enter__()
    assert world.guess(right=True) == "wait 1"


def test_a_check_that_failed_counts_no_attempt(world: World) -> None:
    for _ in range(3 * FREE):
        with pytest.raises(Unavailable), world.guesses.attempt("alice", HERE):
            raise Unavailable("Keystone is away")
    assert world.guess(right=True) == "in"


def test_what_is_remembered_is_bounded(world: World) -> None:
    for number in range(MOST + 50):
        world.guess(user=f"user-{number}")
    assert len(world.guesses._wrong) == MOST


def test_a_name_without_end_takes_no_more_memory_than_another(world: World) -> None:
    world.guess(user="x" * 100_000)
    assert len(pickle.dumps(world.guesses._wrong)) < 1000
    assert [world.guess(user="x" * 100_000) for _ in range(FREE)] == ["wrong"] * (FREE - 1) + [
        "wait 1"
    ]


def test_what_is_old_is_dropped_when_somebody_else_tries(world: World) -> None:
    for number in range(50):
        world.guess(user=f"user-{number}")
    world.clock.advance(FORGOTTEN_S + 1)
    world.guess()
    assert len(world.guesses._wrong) == 1
