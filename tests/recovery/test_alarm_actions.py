# SPDX-License-Identifier: Apache-2.0
"""What alarms ask for, on the simulated cloud: servers that leave a host one after the other."""

from __future__ import annotations

import sqlalchemy as sa

from holdfast.alarms.central import ALARM_ACTION
from holdfast.db.tables import operations
from tests.recovery.house import HealHouse
from tests.recovery.test_alarm_incident import say


def ask(house: HealHouse, server: str, action: str = "migrate_away") -> None:
    say(house, "raised", server=server, actions=[action])


def sentences(house: HealHouse) -> list[tuple[str, str]]:
    o = operations.c
    query = sa.select(o.status, o.sentence).where(o.kind == ALARM_ACTION).order_by(o.sequence)
    with house.m.store.database.read() as conn:
        return [(row.status, row.sentence) for row in conn.execute(query)]


def by_age(house: HealHouse) -> list[tuple[str, str]]:
    """Of those of several hosts, which are not one line of work."""
    o = operations.c
    query = sa.select(o.status, o.sentence).where(o.kind == ALARM_ACTION).order_by(o.created_at)
    with house.m.store.database.read() as conn:
        return [(row.status, row.sentence) for row in conn.execute(query)]


def test_two_servers_leave_a_host_in_turn(house: HealHouse) -> None:
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
    assert "cmp-1" not in {house.server(server)["host"] for server in servers}


def test_a_stopped_server_is_not_migrated_and_the_work_says_why(house: HealHouse) -> None:
    house.segment("cmp-1", "cmp-2")
    web = house.boot("web", "cmp-1")
    house.m.cloud.servers.stop(web)
    house.run(seconds=30)
    ask(house, web)
    house.run(minutes=1)
    ((status, sentence),) = sentences(house)
    assert (status, house.server(web)["host"]) == ("done", "cmp-1")
    assert sentence == f"server {web} is SHUTOFF: only one that runs is moved"


def test_a_server_that_is_busy_wherever_it_is_does_not_go_round_the_hosts(
    house: HealHouse,
) -> None:
    house.segment("cmp-1", "cmp-2", "cmp-3")
    web = house.boot("web", "cmp-1")

    def busy(number: int) -> str:
        """The agent of the host on which it is says so; which host that is."""
        host = str(house.server(web)["host"])
        key = f"{web}/pipe/{number}"
        say(house, "raised", number, web, host=host, key=key, actions=["migrate_away"])
        house.run(minutes=2)
        return host

    first = busy(0)
    second = busy(1)
    assert first != second == house.server(web)["host"]
    assert house.effects("moves.live_migrate") == [web]
    (_, moved), (status, sentence) = by_age(house)
    assert (moved, status) == (f"the server is on {second} now", "error")
    assert f"was moved off {first} for alarm pipe at" in sentence
    assert f"on {second} it is no better: it is not moved again before" in sentence
    house.run(minutes=60)
    assert busy(2) == second != house.server(web)["host"]


def test_a_server_may_go_on_at_once_where_no_rest_is_wanted(house: HealHouse) -> None:
    house.segment("cmp-1", "cmp-2")
    house.recovery.migrate_away_rest_s = 0.0
    web = house.boot("web", "cmp-1")
    for number, host in enumerate(("cmp-1", "cmp-2")):
        key = f"{web}/pipe/{number}"
        say(house, "raised", number, web, host=host, key=key, actions=["migrate_away"])
        house.run(minutes=2)
    assert house.effects("moves.live_migrate") == [web, web]


def test_a_move_that_failed_is_no_reason_not_to_try_again(house: HealHouse) -> None:
    house.segment("cmp-1")
    web = house.boot("web", "cmp-1")
    ask(house, web)
    house.run(minutes=2)
    assert [status for status, _ in by_age(house)] == ["error"]
    house.segment("cmp-2")
    say(house, "raised", 1, web, key=f"{web}/pipe/1", actions=["migrate_away"])
    house.run(minutes=2)
    assert [status for status, _ in by_age(house)] == ["error", "done"]
    assert house.server(web)["host"] == "cmp-2"
