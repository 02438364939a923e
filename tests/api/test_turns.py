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
from holdfast.api.concurrency import BURST_S, WORK, ConcurrencyLimiter, FairShares
from holdfast.api.tokens import agent_token
from holdfast.model.errors import TooMany, Unauthorized, Unavailable
from holdfast.model.observation import AGENT_HEADER
from tests.api.conftest import Build
from tests.api.house import LEASES, SECRET, House, basic, basic_config
from tests.processes import eventually
from tests.simclock import SimClock

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


def test_a_flood_of_wrong_passwords_leaves_places_to_the_first_login_of_a_new_client() -> None:
    turns = ConcurrencyLimiter(most=2, waiting=6, patience_s=90.0, why="busy")
    throttle = auth.LoginThrottle(SimClock())
    flood = [f"2001:db8:0:{n}::7" for n in range(4)]
    for address in flood:
        with pytest.raises(Unauthorized), throttle.attempt("alice", address):
            raise Unauthorized("wrong")
    assert throttle.is_suspect("2001:db8:0:3::8") and not throttle.is_suspect(HERE)
    go_on = threading.Event()

    def hold(address: str) -> None:
        with turns.turn(address, None, is_suspect=throttle.is_suspect(address)):
            assert go_on.wait(90)

    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(hold, address) for address in flood[:3]]
        eventually(lambda: turns._taken.total() == 3)
        with pytest.raises(Unavailable):
            hold(flood[3])
        waiting.append(pool.submit(hold, HERE))
        eventually(lambda: turns._taken.total() == 4)
        go_on.set()
        for one in waiting:
            one.result(90)


def test_a_right_password_or_a_quarter_of_an_hour_ends_the_suspicion() -> None:
    clock = SimClock()
    throttle = auth.LoginThrottle(clock)
    for address in (HERE, THERE):
        with pytest.raises(Unauthorized), throttle.attempt("alice", address):
            raise Unauthorized("wrong")
    with throttle.attempt("alice", HERE):
        pass
    assert (throttle.is_suspect(HERE), throttle.is_suspect(THERE)) == (False, True)
    clock.advance(auth.FORGOTTEN_S + 1)
    assert not throttle.is_suspect(THERE)


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


# shares of projects and users


def sent(shares: FairShares, user: str, kind: str = "reads", project: str = "blue") -> int:
    """Send requests until one is refused; return how many were answered."""
    for number in range(10_000):
        try:
            with shares.turn(kind, project, user, per_s=10.0):
                pass
        except TooMany as error:
            assert error.details["wait_s"] >= 1
            return number
    raise AssertionError("none was refused")


def test_a_user_has_half_of_the_share_of_a_project_and_each_kind_one_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("time.thread_time", lambda: 0.0)
    clock = SimClock()
    shares = FairShares(clock, threads=8)
    most = 10 * BURST_S
    assert sent(shares, "bob") == pytest.approx(most / 2, abs=1)
    assert sent(shares, "eve") == pytest.approx(most / 2, abs=1)
    assert sent(shares, "ann") == 0
    assert sent(shares, "ann", "writes") > 0 and sent(shares, "ann", project="red") > 0
    clock.advance(2.0)
    assert sent(shares, "bob") == pytest.approx(10, abs=1)


def test_a_request_that_computes_for_long_counts_as_several(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = iter(range(1000))
    monkeypatch.setattr("time.thread_time", lambda: float(next(times)))
    clock = SimClock()
    shares = FairShares(clock, threads=8)
    assert sent(shares, "bob") == 2  # a second of a processor each
    clock.advance(2 / WORK)
    assert sent(shares, "bob") == 1


def test_a_project_never_has_all_threads() -> None:
    shares = FairShares(SimClock(), threads=8)
    with ExitStack() as stack:
        for user in ("bob", "eve"):
            with pytest.raises(TooMany):
                while True:
                    stack.enter_context(shares.turn("reads", "blue", user, 1000.0))
        assert shares._running == {("project", "blue"): 6, ("user", "bob"): 4, ("user", "eve"): 2}
        stack.enter_context(shares.turn("reads", "red", "dan", 1000.0))
    assert not shares._running


def test_the_shares_of_strangers_take_a_fixed_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.api.concurrency.MOST_SHARES", 10)
    shares = FairShares(SimClock(), threads=8)
    for number in range(50):
        with shares.turn("reads", f"project {number}", f"user {number}", 10.0):
            pass
    assert len(shares._used_until) == 10


FEW = "[api]\nreads_per_s = 1\nwrites_per_s = 1\navailability_per_s = 1\n"


def test_beyond_its_share_a_project_gets_429_and_nobody_else_does(
    build: Build, tmp_path: Path
) -> None:
    house = build(basic_config(tmp_path) + FEW)
    house.clock.stand_still()
    answers = [house.call("GET", LEASES, "member") for _ in range(20)]
    assert [answer.status_code for answer in answers[:5]] == [200] * 5
    assert answers[-1].status_code == 429
    assert int(answers[-1].headers["Retry-After"]) >= 1
    availability = "/holdfast/v1/availability"
    assert house.call("GET", availability, "member").status_code == 400
    assert house.call("DELETE", f"{LEASES}/x", "member").status_code == 404
    assert house.call("GET", LEASES, "other").status_code == 200
    agent = {AGENT_HEADER: agent_token("cmp-1", SECRET)}
    for _ in range(20):
        assert house.call("GET", LEASES, "admin").status_code == 200
        assert house.call("GET", LEASES, "service").status_code != 429
        assert house.call("GET", "/holdfast/v1/agents", headers=agent).status_code != 429
        searched = house.call("GET", availability, "member")
        deleted = house.call("DELETE", f"{LEASES}/x", "member")
    assert (searched.status_code, deleted.status_code) == (429, 429)
    house.clock.ahead_s += 60
    assert house.call("GET", LEASES, "member").status_code == 200


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
