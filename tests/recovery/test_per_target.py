# SPDX-License-Identifier: Apache-2.0
"""`[recovery] parallel_per_target`: to a host that we name only so many servers are under way at
once, whichever incidents they belong to."""

from datetime import timedelta

import pytest

from tests.recovery.house import HealHouse
from tests.recovery.test_reserved import inside, reserved

ACTION_S = 1.0


def dead(house: HealHouse, *hosts: str) -> list[str]:
    """They fail together and are reported; the cloud takes its time over every move."""
    house.sim.change(action_s=ACTION_S)
    for host in hosts:
        house.sim.fail_host(host)
    return [house.report(host) for host in hosts]


def most_at_once(house: HealHouse, call: str = "moves.evacuate") -> int:
    """By the cloud's own log: how many had begun and could not have ended yet."""
    begun = [effect.at for effect in house.sim.effects(call)]
    lasts = timedelta(seconds=ACTION_S)
    return max(sum(one <= at < one + lasts for one in begun) for at in begun)


@pytest.mark.parametrize("limit", [1, 2])
def test_servers_of_two_hosts_of_a_reservation_reach_the_one_it_kept_by_turns(
    house: HealHouse, limit: int
) -> None:
    _lease, reservation = reserved(house, "cmp-1", "cmp-2", "cmp-3", hosts=3)
    house.recovery.parallel_per_target = limit
    servers = [
        inside(house, f"web-{host}-{i}", host, reservation)
        for host in ("cmp-1", "cmp-2")
        for i in range(2)
    ]
    reports = dead(house, "cmp-1", "cmp-2")
    house.run(minutes=1)
    assert {house.incident(report).status for report in reports} == {"recovered"}
    assert {house.server(server)["host"] for server in servers} == {"cmp-3"}
    assert sorted(house.effects("moves.evacuate")) == sorted(servers)
    assert most_at_once(house) == limit
    house.check_never_twice()
    house.check_unlocked()


def test_servers_reach_a_spare_host_by_turns(house: HealHouse) -> None:
    house.segment("cmp-1", "cmp-2", method="reserved_host", spares=("spare-1",))
    house.recovery.parallel_per_target = 2
    servers = [house.boot(f"web-{i}", "cmp-1") for i in range(4)]
    (report,) = dead(house, "cmp-1")
    house.run(minutes=1)
    assert house.incident(report).status == "recovered"
    assert {house.server(server)["host"] for server in servers} == {"spare-1"}
    assert most_at_once(house) == 2


def test_where_the_cloud_chooses_the_limit_of_a_target_holds_nobody_back(house: HealHouse) -> None:
    house.segment("cmp-1", "cmp-2")
    house.recovery.parallel_per_target = 1
    for i in range(4):
        house.boot(f"web-{i}", "cmp-1")
    (report,) = dead(house, "cmp-1")
    house.run(minutes=1)
    assert house.incident(report).status == "recovered"
    assert most_at_once(house) == 4


def test_servers_that_return_to_their_host_do_so_by_turns(house: HealHouse) -> None:
    house.segment("cmp-1", "cmp-2", "cmp-3")
    house.recovery.move_back = True
    house.recovery.parallel_per_target = 2
    servers = [house.boot(f"web-{i}", "cmp-1") for i in range(4)]
    dead(house, "cmp-1")
    house.run(minutes=1)
    assert "cmp-1" not in {house.server(server)["host"] for server in servers}
    house.sim.recover_host("cmp-1")
    house.run(minutes=2)
    assert {house.server(server)["host"] for server in servers} == {"cmp-1"}
    assert most_at_once(house, "moves.live_migrate") == 2
    house.check_never_twice()


def test_two_hosts_that_die_together_share_the_spare_that_both_are_on_the_way_to(
    house: HealHouse,
) -> None:
    """Whoever arrives first uses it up; those of the other that were on their way go on."""
    house.segment("cmp-1", "cmp-2", method="reserved_host", spares=("spare-1",))
    house.recovery.parallel_per_target = 8
    servers = [house.boot(f"web-{host}-{i}", host) for host in ("cmp-1", "cmp-2") for i in (1, 2)]
    reports = dead(house, "cmp-1", "cmp-2")
    house.run(minutes=1)
    assert [house.incident(report).status for report in reports] == ["recovered", "recovered"]
    assert {house.server(server)["host"] for server in servers} == {"spare-1"}
    house.check_never_twice()
