# SPDX-License-Identifier: Apache-2.0
"""What takes long is done by few at once, and nobody is kept out by one address."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from oslo_middleware import basic_auth

from holdfast.api import auth
from holdfast.api.concurrency import ConcurrencyLimiter
from holdfast.model.errors import Unavailable
from tests.api.conftest import Build
from tests.api.house import LEASES, House, basic, basic_config
from tests.processes import eventually

HERE, THERE = "192.0.2.7", "192.0.2.8"


def test_a_request_without_a_free_slot_gets_a_retry_after() -> None:
    turns = ConcurrencyLimiter(most=2, waiting=0, patience_s=0.0, why="busy")
    with turns.turn(), turns.turn(), pytest.raises(Unavailable, match="busy"), turns.turn():
        pass
    with turns.turn():
        assert turns._taken.total() == 1
    assert not turns._taken


def test_one_address_has_half_of_the_places() -> None:
    turns = ConcurrencyLimiter(most=4, waiting=0, patience_s=0.0, why="busy")
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(turns.turn(HERE))
        with pytest.raises(Unavailable):
            stack.enter_context(turns.turn(HERE))
        stack.enter_context(turns.turn(THERE))


def test_strangers_on_many_addresses_leave_places_and_a_slot_to_those_we_know() -> None:
    turns = ConcurrencyLimiter(most=2, waiting=6, patience_s=90.0, why="busy")
    go_on = threading.Event()

    def hold(address: str, known: str | None) -> None:
        with turns.turn(address, known):
            assert go_on.wait(90)

    with ThreadPoolExecutor(6) as pool:
        strangers = [pool.submit(hold, f"address {n}", None) for n in range(6)]
        eventually(lambda: turns._taken.total() == 6)
        with pytest.raises(Unavailable), turns.turn("another", None):
            pass
        with turns.turn(HERE, "user u"), pytest.raises(Unavailable), turns.turn(THERE, "user u"):
            pass  # one known name is no way round
        go_on.set()
        for stranger in strangers:
            stranger.result(90)
    assert not turns._taken and not turns._vouched


def test_so_many_wait_for_their_turn_and_get_it() -> None:
    turns = ConcurrencyLimiter(most=1, waiting=1, patience_s=300.0, why="busy")
    first = turns.turn()
    first.__enter__()
    with ThreadPoolExecutor() as pool:
        second = pool.submit(lambda: turns.turn().__enter__())
        eventually(lambda: turns._taken.total() == 2)
        with pytest.raises(Unavailable), turns.turn():
            pass
        first.__exit__(None, None, None)
        assert second.result(90) is None


@pytest.mark.parametrize("read", [0, 1, 2])
def test_what_is_lent_comes_back_however_much_was_read(read: int) -> None:
    turns = ConcurrencyLimiter(most=1, waiting=0, patience_s=0.0, why="busy")
    lent = turns.lent(iter([b"a", b"b"]))
    for _ in range(read):
        next(lent)
    with pytest.raises(Unavailable):
        turns.lent(iter([]))
    lent.close()
    lent.close()
    assert list(turns.lent(iter([b"c"]))) == [b"c"]
    assert not turns._taken


# http_basic


class Slow:
    """Passwords that take until `go_on`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.busy, self.most = 0, 0
        self.go_on = threading.Event()
        self._lock = threading.Lock()
        self._real = basic_auth.authenticate
        # who waits for another one's check does so however slow the machine is
        monkeypatch.setattr(auth, "PATIENCE_S", 90.0)
        monkeypatch.setattr(basic_auth, "authenticate", self._check)

    def _check(self, path: str, user: str, password: bytes) -> object:
        with self._counted():
            assert self.go_on.wait(90)
        return self._real(path, user, password)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        with self._lock:
            self.busy += 1
            self.most = max(self.most, self.busy)
        yield
        with self._lock:
            self.busy -= 1


def status(house: House, user: str, address: str, password: str = "") -> int:
    headers = {"Authorization": basic(user, password)}
    answer = house.call("GET", LEASES, headers=headers, remote_addr=address)
    if answer.status_code == 503:
        assert int(answer.headers["Retry-After"]) > 0
    return answer.status_code


def test_many_names_from_one_address_take_neither_all_threads_nor_all_turns(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight threads: two check at once, four wait; one address has three of these six."""
    monkeypatch.setattr(auth, "_TURN_S", 90.0)  # who waits has a turn however slow the machine is
    house = build(f"{basic_config(tmp_path)}[api]\nthreads = 8\n")
    assert status(house, "reader", THERE) == 200
    slow = Slow(monkeypatch)
    with ThreadPoolExecutor(8) as pool:
        strangers = [pool.submit(status, house, f"nobody-{n}", HERE) for n in range(6)]
        eventually(lambda: sum(stranger.done() for stranger in strangers) >= 3)  # sent away at once
        assert status(house, "reader", THERE) == 200  # whom we know needs no turn
        member = pool.submit(status, house, "member", THERE)
        slow.go_on.set()
        assert member.result(90) == 200  # the right password, from elsewhere
        heard = sorted(stranger.result(90) for stranger in strangers)
    assert heard.count(503) >= 3 and slow.most <= 2
    assert status(house, "manager", HERE) == 200


@pytest.mark.parametrize(("user", "address"), [("member", THERE), ("reader", HERE)])
def test_a_flood_from_many_addresses_does_not_keep_known_addresses_and_users_out(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user: str, address: str
) -> None:
    monkeypatch.setattr(auth, "_TURN_S", 90.0)
    house = build(f"{basic_config(tmp_path)}auth_cache_s = 0\n[api]\nthreads = 8\n")
    assert status(house, "reader", THERE) == 200
    slow = Slow(monkeypatch)
    with ThreadPoolExecutor(8) as pool:
        flood = [pool.submit(status, house, f"x-{n}", f"198.51.100.{n}") for n in range(6)]
        eventually(lambda: slow.busy == 1 and sum(stranger.done() for stranger in flood) == 1)
        known = pool.submit(status, house, user, address)
        eventually(lambda: slow.busy == 2)
        slow.go_on.set()
        assert known.result(90) == 200
        assert sorted(stranger.result(90) for stranger in flood) == [401] * 5 + [503]


def test_simultaneous_requests_of_a_client_share_a_password_check(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are no guesses: more than a few wrong ones at once would be."""
    house = build(f"{basic_config(tmp_path)}[api]\nthreads = 40\n")
    slow = Slow(monkeypatch)
    with ThreadPoolExecutor(10) as pool:
        asked = [pool.submit(status, house, "member", HERE) for _ in range(10)]
        eventually(lambda: slow.busy == 1)
        slow.go_on.set()
        assert [one.result(90) for one in asked] == [200] * 10
    assert slow.most == 1
