# SPDX-License-Identifier: Apache-2.0
"""Moves of one host share the list of its migrations."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.ports.cloud import Migration, Server
from holdfast.recovery import context
from holdfast.recovery.context import CloudCache
from tests.processes import PATIENCE_S, eventually
from tests.simclock import SimClock

SERVERS = [f"server-{number}" for number in range(8)]


class SlowMigrations:
    """Answers when the test says so; counts how often it is asked."""

    def __init__(self, status: str) -> None:
        self.status = status
        self.asked = 0
        self.go_on = threading.Event()

    def migrations(self, *, source_host: str, after: int) -> Sequence[Migration]:
        self.asked += 1
        assert self.go_on.wait(PATIENCE_S)
        at = datetime(2026, 11, 18, tzinfo=UTC)
        return [
            Migration(str(number), server, source_host, "cmp-2", "evacuation", self.status, at)
            for number, server in enumerate(SERVERS, 1)
        ]


def all_look(status: str) -> tuple[int, list[str]]:
    """Eight moves ask one after the other while the first answer is awaited: how often the cloud
    was asked, and what each move learned."""
    moves = SlowMigrations(status)
    cloud: Any = SimpleNamespace(moves=moves)
    shared, came = CloudCache(), []

    def look(server: str) -> Migration | None:
        came.append(server)
        return shared.last(cloud, "cmp-1", server, 0)

    with ThreadPoolExecutor(len(SERVERS)) as threads:
        first = threads.submit(look, SERVERS[0])
        eventually(lambda: moves.asked)
        others = [threads.submit(look, one) for one in SERVERS[1:]]
        eventually(lambda: len(came) == len(SERVERS))
        moves.go_on.set()
        found = [one.result(PATIENCE_S) for one in (first, *others)]
    return moves.asked, [one.status for one in found if one is not None]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        context, "PATIENCE_S", PATIENCE_S
    )  # a starved thread is no cloud that hangs


def test_an_answer_that_was_under_way_serves_the_moves_that_came_meanwhile() -> None:
    assert all_look("running") == (1, ["running"] * len(SERVERS))


def test_a_failure_is_believed_only_if_it_was_asked_for_afterwards() -> None:
    asked, learned = all_look("failed")
    assert asked >= 2
    assert learned == ["failed"] * len(SERVERS)


def test_a_list_of_the_dead_host_serves_its_incident_for_two_seconds() -> None:
    asked: list[str] = []
    slow_s = 0.0

    def listed(*, host: str, placed: bool) -> list[Server]:
        assert not placed
        asked.append(host)
        clock.advance(slow_s)
        elsewhere = Server("gone", "gone", "alpha", "cmp-2", "ACTIVE")
        return [Server("here", "here", "alpha", "cmp-1.example.org", "ACTIVE"), elsewhere]

    clock = SimClock()
    cache, cloud = CloudCache(clock), SimpleNamespace(servers=SimpleNamespace(list=listed))

    def found(server_id: str, incident_id: str = "one") -> bool:
        return cache.on_source(cloud, "cmp-1", server_id, incident_id) is not None  # type: ignore

    assert [found(server_id) for server_id in ("here", "gone", "new")] == [True, False, False]
    clock.advance(context.LISTED_S)
    assert found("here") and len(asked) == 1
    clock.advance(0.1)
    assert found("here") and len(asked) == 2
    slow_s = context.LISTED_S
    assert found("here", "another failure of the host") and len(asked) == 3
    clock.advance((context.RESTS - 1) * slow_s - 0.1)
    assert found("here", "another failure of the host") and len(asked) == 3
