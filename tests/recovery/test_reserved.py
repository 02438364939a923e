# SPDX-License-Identifier: Apache-2.0
"""Recovery knows the reservations: servers of a reserved host stay inside their reservation."""

from holdfast.model.lease import NewLease, NewReservation
from tests.leases.house import ANN
from tests.recovery.house import HealHouse


def reserved(house: HealHouse, *names: str, hosts: int = 1) -> tuple[str, str]:
    """A running lease of so many hosts; its id and that of its reservation."""
    house.enrol(*names)
    house.segment(*names)
    lease_id = house.create(minutes=(None, 600), hosts=hosts)
    house.run(seconds=5)
    assert house.status(lease_id) == "ACTIVE"
    return lease_id, house.lease(lease_id).reservations[0].id


def inside(house: HealHouse, name: str, host: str, reservation: str) -> str:
    metadata = {"reservation": reservation}
    return house.sim.boot(name, "alpha", host, 1, 512, 1, metadata=metadata).id


def test_servers_follow_the_host_that_repair_gave_to_their_reservation(house: HealHouse) -> None:
    lease_id, reservation = reserved(house, "cmp-1", "cmp-2", "cmp-3", "cmp-4")
    ((old,),) = house.held(lease_id)
    servers = [inside(house, f"web-{i}", old, reservation) for i in range(4)]
    house.sim.fail_host(old)
    report = house.report(old)
    house.run(minutes=1)
    ((new,),) = house.held(lease_id)
    assert new != old
    assert house.incident(report).status == "recovered", house.incident(report)
    assert {house.server(server)["host"] for server in servers} == {new}
    assert {house.server(server)["status"] for server in servers} == {"ACTIVE"}
    assert {move.dest_host for move in house.moves(report)} == {new}
    house.run(minutes=2)
    assert old not in house.all_pools()[reservation]
    house.check_never_twice()


def test_reserved_servers_wait_for_another_host_and_then_move(house: HealHouse) -> None:
    lease_id, reservation = reserved(house, "cmp-1")
    house.segment("cmp-8", "cmp-9")  # open to everybody, and of no use to them
    server = inside(house, "web", "cmp-1", reservation)
    house.sim.fail_host("cmp-1")
    report = house.report("cmp-1")
    house.run(minutes=2)
    assert house.lease(lease_id).reservations[0].missing_resources
    assert not house.effects("moves.evacuate")
    (move,) = house.moves(report)
    assert "has no other host yet" in move.message
    house.enrol("cmp-5")
    house.run(minutes=3)
    assert house.server(server)["host"] == "cmp-5"
    assert house.incident(report).status == "recovered"
    house.check_unlocked()


def test_servers_of_a_lease_of_two_hosts_move_to_its_kept_and_its_new_host(
    house: HealHouse,
) -> None:
    lease_id, reservation = reserved(house, "cmp-1", "cmp-2", "cmp-3", hosts=2)
    (before,) = house.held(lease_id)
    servers = [inside(house, f"web-{i}", before[0], reservation) for i in range(6)]
    house.sim.fail_host(before[0])
    house.report(before[0])
    house.run(minutes=1)
    (after,) = house.held(lease_id)
    assert before[0] not in after
    assert {house.server(server)["host"] for server in servers} <= set(after)
    house.check_never_twice()


def leased(house: HealHouse, *names: str) -> tuple[str, str, str]:
    """A server whose lease runs on an enrolled host: id of server and lease, and its host."""
    house.enrol(*names)
    house.sim.add_host("elsewhere", memory_mb=2**20)  # what the scheduler would choose
    house.segment(*names, "elsewhere")
    server = house.sim.boot("web", "alpha", "elsewhere", 1, 512, 1).id
    asked = (NewReservation("virtual:server", {"server_id": server}),)
    lease = NewLease(house.new_id(), "web", house.at(5), house.at(600), None, asked)
    house.m.commands.create_lease(ANN, lease)
    house.run(minutes=6)
    assert house.status(lease.id) == "ACTIVE"
    return server, lease.id, str(house.server(server)["host"])


def test_a_leased_server_follows_the_room_that_repair_gave_it(house: HealHouse) -> None:
    server, lease_id, old = leased(house, "cmp-1", "cmp-2")
    assert house.held(lease_id) == [[old]]
    house.sim.fail_host(old)
    report = house.report(old)
    house.run(minutes=1)
    (new,) = {"cmp-1", "cmp-2"} - {old}
    assert house.held(lease_id) == [[new]]
    assert (house.server(server)["host"], house.server(server)["status"]) == (new, "ACTIVE")
    assert [move.dest_host for move in house.moves(report)] == [new]
    house.check_never_twice()


def test_a_leased_server_without_room_goes_to_any_host(house: HealHouse) -> None:
    server, lease_id, old = leased(house, "cmp-1")
    house.sim.fail_host(old)
    house.report(old)
    house.run(minutes=1)
    assert house.lease(lease_id).degraded
    assert house.server(server)["host"] == "elsewhere"
