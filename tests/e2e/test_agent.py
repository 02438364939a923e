# SPDX-License-Identifier: Apache-2.0
"""The agent of a host as its own program: it tells what died, by its own token, once, whatever
happens to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.client.client import Client
from holdfast.client.errors import Forbidden, Unauthorized
from tests.e2e.town import HOST, Town, a_town


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    with a_town(tmp_path_factory.mktemp("town")) as made:
        yield made


def test_a_dead_guest_is_restarted(town: Town) -> None:
    server = town.guests()[0]
    with town.agent():
        town.knows(server)
        town.sim.crash_server(server)
        town.recovered(server)
    (incident,) = town.incidents(server)
    assert f"says agent@{HOST}" in incident["cause"]


def test_a_guest_that_died_while_the_agent_was_down_is_reported_after_the_restart(
    town: Town,
) -> None:
    server = town.guests()[1]
    agent = town.agent()
    with agent:
        town.knows(server)
        agent.kill()
        town.sim.crash_server(server)
        agent.start()
        town.recovered(server)
        agent.kill()
        agent.start()
        later = town.guests()[2]
        town.knows(later)
        town.sim.crash_server(later)
        town.recovered(later)  # so that all is told that was there to tell
        town.recovered(server)  # and not told a second time


def test_an_agent_token_is_valid_for_a_single_host_only(town: Town) -> None:
    token = (town.folder / "token").read_text().strip()
    mine = Client(town.client.url, agent=token)
    body = {
        "observer": f"agent@{HOST}",
        "subject": f"process:{HOST}:sshd",
        "kind": "process",
        "state": "failed",
        "since": "2026-01-01T00:00:00+00:00",
        "evidence": {"host": HOST},
    }

    def post(**other: Any) -> Any:
        return mine.wire.call("POST", "/holdfast/v1/observations", body={**body, **other})

    assert post()["observation"]["observer"] == f"agent@{HOST}"
    other = {"subject": "process:cmp-14:sshd", "evidence": {"host": "cmp-14"}}
    with pytest.raises(Forbidden, match="cannot speak for cmp-14"):
        post(**other)
    with pytest.raises(Forbidden, match="not as ctl-1"):
        post(observer="ctl-1")
    with pytest.raises(Forbidden, match="nothing else"):
        post(kind="host_health", subject=f"host:{HOST}")
    with pytest.raises(Forbidden):
        mine.leases.list()
    stranger = Client(town.client.url, agent=token[:-2] + "AA")
    with pytest.raises(Unauthorized, match="agent token"):
        stranger.wire.call("POST", "/holdfast/v1/observations", body=body)
