# SPDX-License-Identifier: Apache-2.0
"""What alarms ask for, on the simulated cloud: servers that leave a host one after the other."""

from __future__ import annotations

import sqlalchemy as sa

from holdfast.model.alarm import ALARM_ACTION
from holdfast.store.tables import operations
from tests.heal.house import HealHouse
from tests.heal.test_alarm_incident import say


def ask(house: HealHouse, server: str, action: str = "migrate_away") -> None:
    say(house, "raised", server=server, actions=[action])


def sentences(house: HealHouse) -> list[tuple[str, str]]:
    o = operations.c
    query = sa.select(o.status, o.sentence).where(o.kind == ALARM_ACTION).order_by(o.sequence)
    with house.m.store.database.read() as conn:
        return [(row.status, row.sentence) for row in conn.execute(query)]


def test_two_servers_leave_a_host_one_after_the_other(house: HealHouse) -> None:
    house.segment("cmp-1", "cmp-2")
    house.sim.change(action_s=5.0)
    servers = [house.boot(name, "cmp-1") for name in ("web", "db")]
    for server in servers:
        ask(house, server)
    house.run(seconds=1)
    assert house.effects("moves.live_migrate") == servers[:1]
    house.run(minutes=2)
    assert house.effects("moves.live_migrate") == servers
    assert [status for status, _ in sentences(house)] == ["done", "done"]
    assert "cmp-1" not in {house.server(one)["host"] for one in servers}


def test_a_server_that_does_not_run_is_left_there_and_that_is_said(house: HealHouse) -> None:
    house.segment("cmp-1", "cmp-2")
    web = house.boot("web", "cmp-1")
    house.m.cloud.servers.stop(web)
    house.run(seconds=30)
    ask(house, web)
    house.run(minutes=1)
    ((status, sentence),) = sentences(house)
    assert (status, house.server(web)["host"]) == ("done", "cmp-1")
    assert sentence == f"server {web} is SHUTOFF: only one that runs is moved"
