# SPDX-License-Identifier: Apache-2.0
"""A reservation hit by a failure gets other resources, and its owner can see it."""

from dataclasses import replace
from typing import Any

import pytest

from holdfast.leases.repair import REPAIR
from holdfast.model.errors import Conflict, NotFound
from holdfast.model.lease import NewLease, NewReservation
from holdfast.ports.ledger import Work
from tests.leases.house import ADMIN, ANN, BOB, House


def flags(house: House, lease_id: str) -> tuple[bool, bool, bool]:
    """missing_resources and resources_changed of its only reservation, degraded."""
    lease = house.lease(lease_id)
    (reservation,) = lease.reservations
    return reservation.missing_resources, reservation.resources_changed, lease.degraded


def said(house: House) -> str:
    return house.m.store.operations.by_key(REPAIR).sentence


def enrol(house: House, count: int) -> None:
    house.enrol(*(f"cmp-{number}" for number in range(1, count + 1)))
    house.run(seconds=1)


def test_a_pending_reservation_moves_without_a_flag_for_the_owner(house: House) -> None:
    enrol(house, 4)
    lease_id = house.create(minutes=(60, 120))
    ((host,),) = house.held(lease_id)
    house.stands(host, "down")
    house.run(seconds=1)
    ((other,),) = house.held(lease_id)
    assert other != host
    assert flags(house, lease_id) == (False, False, False)
    assert said(house) == "1 reservations moved, 0 miss something still"
    house.check_no_double_booking()


def test_an_active_reservation_gets_another_host_and_a_flag_for_the_owner(house: House) -> None:
    enrol(house, 4)
    lease_id = house.create(minutes=(None, 120))
    (reservation,) = house.lease(lease_id).reservations
    ((host,),) = house.held(lease_id)
    house.boot("web", host)
    house.sim.fail_host(host)
    house.stands(host, "down")
    house.run(seconds=1)
    ((other,),) = house.held(lease_id)
    assert other != host
    assert flags(house, lease_id) == (False, True, True)
    # its servers are where they were until they are recovered, so the failed one stays for them
    assert house.pools()[reservation.id] == {host, other}
    assert other not in house.pools()["freepool"]
    (server,) = [s["id"] for s in house.sim.world()["servers"]]
    house.m.cloud.servers.delete(server)
    house.run(seconds=30)
    assert house.servers() == []
    assert house.pools()[reservation.id] == {other}
    assert host not in house.pools()["freepool"]
    house.m.commands.acknowledge(ANN, lease_id)
    assert flags(house, lease_id) == (False, False, False)
    sentences = house.sentences(lease_id)
    assert any("got something else for" in sentence for sentence in sentences)
    assert len(house.sentences(lease_id, "repair")) == 2  # the other host, the acknowledgement
    house.clock.advance(7200)
    house.run(seconds=1)
    assert house.status(lease_id) == "TERMINATED"
    assert len(house.sentences(lease_id, "TERMINATED")) == 1


def test_an_acknowledgement_is_retried_after_a_concurrent_write(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    enrol(house, 3)
    lease_id = house.create(minutes=(0, 120))
    house.run(seconds=1)
    ((host,),) = house.held(lease_id)
    house.stands(host, "down")
    house.run(seconds=1)
    assert flags(house, lease_id) == (False, True, True)
    ledger: Any = house.m.store.ledger
    whole, rivals = ledger.save, [3]

    def save(old: Any, new: Any, **more: Any) -> Any:
        if rivals[0]:
            rivals[0] -= 1
            whole(old, replace(old, name=f"renamed-{rivals[0]}"))
        return whole(old, new, **more)

    monkeypatch.setattr(ledger, "save", save)
    house.m.commands.acknowledge(ANN, lease_id)
    assert flags(house, lease_id) == (False, False, False)
    assert house.lease(lease_id).name == "renamed-0"


def test_only_the_owner_can_acknowledge(house: House) -> None:
    enrol(house, 2)
    lease_id = house.create(minutes=(None, 120))
    with pytest.raises(NotFound):
        house.m.commands.acknowledge(BOB, lease_id)


def test_a_lost_host_without_replacement_is_missing_until_capacity_appears(house: House) -> None:
    enrol(house, 2)
    first, second = (house.create(minutes=(60, 120)) for _ in range(2))
    ((host,),) = house.held(first)
    house.stands(host, "down")
    house.run(seconds=1)
    assert flags(house, first) == (True, False, True)
    assert house.held(first) == [[host]]
    house.delete(second)
    house.run(seconds=11)
    assert flags(house, first) == (False, False, False)
    assert house.held(first) != [[host]]
    assert any("is whole again" in sentence for sentence in house.sentences(first))


def test_where_there_is_not_enough_the_higher_priority_comes_first(house: House) -> None:
    enrol(house, 3)
    mine = house.create(minutes=(60, 120), caller=ANN)
    theirs = house.create(minutes=(90, 120), caller=BOB)
    house.settings.repair_priorities = {BOB.project_id: 7}
    failed = [host for lease_id in (mine, theirs) for (host,) in house.held(lease_id)]
    for host in failed:
        house.stands(host, "down")
    house.limits.free_hosts = 3
    house.run(seconds=11)
    assert flags(house, mine) == (True, False, True)
    assert flags(house, theirs) == (False, False, False)


def test_a_returning_host_makes_the_reservation_whole_again(house: House) -> None:
    enrol(house, 1)
    lease_id = house.create(minutes=(60, 120))
    house.stands("cmp-1", "down")
    house.run(seconds=1)
    assert flags(house, lease_id) == (True, False, True)
    house.stands("cmp-1", "up")
    house.run(seconds=1)
    assert flags(house, lease_id) == (False, False, False)
    assert house.held(lease_id) == [["cmp-1"]]


def test_a_new_host_completes_a_short_reservation(house: House) -> None:
    enrol(house, 1)
    lease_id = house.create(minutes=(60, 120))
    house.stands("cmp-1", "down")
    house.run(seconds=1)
    house.enrol("cmp-2")
    house.run(seconds=11)
    assert house.held(lease_id) == [["cmp-2"]]
    assert flags(house, lease_id) == (False, False, False)


def test_a_start_keeps_the_flag_for_missing_resources(house: House) -> None:
    enrol(house, 2)
    lease_id = house.create(minutes=(60, 120), hosts=2)
    house.stands("cmp-1", "down")
    house.run(seconds=1)
    house.clock.advance(3600)
    house.run(seconds=1)
    assert house.status(lease_id) == "ACTIVE"
    assert flags(house, lease_id) == (True, False, True)


def test_a_failed_host_leaves_the_free_pool_and_comes_back_healthy_and_empty(house: House) -> None:
    enrol(house, 3)
    house.stands("cmp-1", "down")
    house.run(seconds=1)
    assert house.pools()["freepool"] == {"cmp-2", "cmp-3"}
    assert not house.m.store.ledger.host("cmp-1").reservable
    server = house.boot("left-over", "cmp-1")
    house.stands("cmp-1", "up")
    house.run(seconds=30)
    assert house.pools()["freepool"] == {"cmp-2", "cmp-3"}
    house.m.cloud.servers.delete(server)
    house.run(seconds=30)
    assert house.pools()["freepool"] == {"cmp-1", "cmp-2", "cmp-3"}
    assert house.m.store.ledger.host("cmp-1").reservable


def test_beyond_the_horizon_a_lease_waits_for_the_host_to_return(house: House) -> None:
    enrol(house, 4)
    lease_id = house.create(minutes=(3 * 1440, 4 * 1440))
    ((host,),) = house.held(lease_id)
    house.stands(host, "down")
    house.run(minutes=1)
    assert house.held(lease_id) == [[host]]
    assert flags(house, lease_id) == (False, False, False)
    house.clock.advance(2 * 86_400 + 3600)
    house.run(seconds=1)
    assert house.held(lease_id) != [[host]]


@pytest.mark.parametrize("repair", [True, False], ids=["held", "off"])
def test_reservations_without_their_hosts_are_flagged_at_once_while_nothing_moves(
    house: House, repair: bool
) -> None:
    house.settings.repair = repair
    enrol(house, 5)
    lease_id, later = house.create(minutes=(None, 120)), house.create(minutes=(3 * 1440, 4 * 1440))
    house.run(seconds=1)
    held = house.held(lease_id)
    for name in sorted({held[0][0], *house.held(later)[0], "cmp-1", "cmp-2", "cmp-3"}):
        house.stands(name, "down")
    house.run(seconds=1)
    assert house.held(lease_id) == held
    assert flags(house, lease_id) == (True, False, True)
    assert flags(house, later) == (False, False, False)
    for name in house.hosts():
        house.stands(name, "up")
    house.run(seconds=1)
    assert flags(house, lease_id) == (False, False, False)


def test_a_mass_failure_waits_for_the_approval_of_an_operator(house: House) -> None:
    enrol(house, 5)
    lease_id = house.create(minutes=(60, 120))
    ((host,),) = house.held(lease_id)
    down = {host, *[name for name in ("cmp-1", "cmp-2", "cmp-3") if name != host][:2]}
    for name in sorted(down):
        house.stands(name, "down")
    house.run(seconds=30)
    assert house.held(lease_id) == [[host]]
    assert "held: 3 of 5 hosts are down" in said(house)
    report = house.m.commands.plan_repair(ADMIN)
    assert "3 of 5" in report.held
    assert (report.usable, report.free) == (2, 2)
    house.m.commands.run_repair(ADMIN, approve=True, reason="the rack burnt")
    house.run(seconds=1)
    assert house.held(lease_id) != [[host]]


def test_a_hold_is_lifted_in_one_failure_domain_and_stays_in_the_others(house: House) -> None:
    for rack in "abc":
        for number in range(1, 6):
            house.sim.add_host(f"{rack}-{number}", zone=f"az-{rack}", rack=f"rack-{rack}")
            house.m.commands.enrol_host(ADMIN, f"{rack}-{number}", {})
    house.run(seconds=1)
    leases = {
        rack: house.create(minutes=(60, 120), resource_properties=f'["==", "$rack", "rack-{rack}"]')
        for rack in "ab"
    }
    held = {rack: house.held(lease_id)[0][0] for rack, lease_id in leases.items()}
    for rack, host in held.items():
        others = [f"{rack}-{n}" for n in range(1, 6) if f"{rack}-{n}" != host]
        for name in (host, *others[:2]):
            house.stands(name, "down")
    house.run(seconds=30)
    assert all(house.held(leases[rack]) == [[held[rack]]] for rack in "ab")
    with pytest.raises(NotFound, match=r"rack-z.*: az-a, az-b, az-c, rack-a, rack-b"):
        house.m.commands.run_repair(ADMIN, approve=True, reason="it burnt", domain="rack-z")
    report = house.m.commands.run_repair(ADMIN, approve=True, reason="it burnt", domain="rack-a")
    house.run(seconds=1)
    assert "rack-b" in report.held and "rack-a" not in report.held
    assert house.held(leases["a"]) != [[held["a"]]]
    assert house.held(leases["b"]) == [[held["b"]]]
    assert "the hold of repair in rack-a was lifted: it burnt" in house.sentences(REPAIR)
    report = house.m.commands.run_repair(ADMIN, approve=True, reason="so it is", domain="az-b")
    house.run(seconds=1)
    assert report.held == ""
    assert house.held(leases["b"]) != [[held["b"]]]


def test_a_repair_preview_names_every_move_and_writes_nothing(house: House) -> None:
    enrol(house, 3)
    lease_id = house.create(minutes=(60, 120))
    ((host,),) = house.held(lease_id)
    before = house.lease(lease_id)
    report = house.m.commands.plan_repair(ADMIN, hosts=[host])
    (move,) = report.moves
    assert (move.lease_id, move.leaves, move.short) == (lease_id, (host,), "")
    assert move.joins[0] in {"cmp-1", "cmp-2", "cmp-3"} - {host}
    assert (report.failed, report.usable) == ((host,), 2)
    everything = house.m.commands.plan_repair(ADMIN, hosts=["cmp-1", "cmp-2", "cmp-3"])
    assert [bool(move.short) for move in everything.moves] == [True]
    assert house.lease(lease_id) == before
    with pytest.raises(NotFound, match="rack"):
        house.m.commands.plan_repair(ADMIN, racks=["r-99"])


def test_a_host_that_fails_while_others_are_repaired_is_repaired_at_once_too(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    enrol(house, 8)
    leases = [house.create(minutes=(60, 120)) for _ in range(2)]
    (one,), (two,) = (house.held(lease_id)[0] for lease_id in leases)
    ledger: Any = house.m.store.ledger
    whole, again = ledger.save_many, [two]

    def save(*args: Any, **kwargs: Any) -> Any:
        if again:
            house.clock.advance(0.01)
            house.stands(again.pop(), "down")
        return whole(*args, **kwargs)

    monkeypatch.setattr(ledger, "save_many", save)
    house.stands(one, "down")
    house.run(seconds=1)
    assert all(house.held(lease_id) not in ([[one]], [[two]]) for lease_id in leases)


def slots(house: House, amount: int, minutes: tuple[float | None, float] = (60, 120)) -> str:
    """A quarter of a host each."""
    asked = {"vcpus": 4, "memory_mb": 256, "disk_gb": 1, "amount": amount, "affinity": None}
    reservation = NewReservation("virtual:instance", {**asked, "resource_properties": ""})
    start = None if minutes[0] is None else house.at(minutes[0])
    lease_id = house.new_id()
    wanted = NewLease(lease_id, "slots", start, house.at(minutes[1]), None, (reservation,))
    house.m.commands.create_lease(ANN, wanted)
    return lease_id


def spread(house: House, lease_id: str) -> dict[str, int | None]:
    (reservation,) = house.lease(lease_id).reservations
    return {a.host: a.slots for a in reservation.allocations}


@pytest.mark.parametrize("active", [False, True])
def test_slots_of_which_some_can_be_replaced_get_these_and_miss_the_others(
    house: House, active: bool
) -> None:
    for name in ("cmp-1", "cmp-2"):
        house.sim.add_host(name, vcpus=16)
        house.m.commands.enrol_host(ADMIN, name, {})
    lease_id = slots(house, 4, (None, 120) if active else (60, 120))
    house.run(seconds=1)
    (host,) = spread(house, lease_id)
    (other,) = {"cmp-1", "cmp-2"} - {host}
    in_the_way = slots(house, 1)
    assert spread(house, in_the_way) == {other: 1}
    house.stands(host, "down")
    house.run(seconds=5)
    assert spread(house, lease_id) == {host: 1, other: 3}
    assert flags(house, lease_id) == (True, active, True)
    house.stands(host, "up")
    house.run(seconds=5)
    assert flags(house, lease_id) == (False, active, active)
    assert spread(house, lease_id) == {host: 1, other: 3}


def test_a_moved_lease_does_not_delete_servers_of_the_next_holder(house: House) -> None:
    enrol(house, 2)
    first = house.create(minutes=(None, 60))
    ((host,),) = house.held(first)
    (other,) = {"cmp-1", "cmp-2"} - {host}
    house.run(seconds=1)
    house.boot("anns", host)
    house.stands(host, "down")
    house.run(seconds=5)
    assert house.held(first) == [[other]]
    house.stands(host, "up")
    house.run(seconds=5)
    house.sim.boot("bobs", BOB.project_id, host, 1, 512, 1)
    house.delete(first)
    house.run(seconds=30)
    assert house.servers() == ["bobs"]


def test_a_host_that_failed_is_not_enrolled_again_but_comes_back_by_itself(house: House) -> None:
    enrol(house, 1)
    house.stands("cmp-1", "down")
    house.run(seconds=1)
    with pytest.raises(Conflict, match="enrolled already"):
        house.m.commands.enrol_host(ADMIN, "cmp-1", {})
    house.boot("left", "cmp-1")
    house.stands("cmp-1", "up")
    house.run(seconds=1)
    found = house.m.cloud.hosts.find("cmp-1")
    with pytest.raises(Conflict, match="is coming back"):
        house.m.store.ledger.enrol(found, "here", {}, Work())


def test_the_next_holder_of_a_failed_host_waits_until_the_old_servers_left(
    house: House,
) -> None:
    enrol(house, 2)
    first = house.create(minutes=(None, 600))
    ((host,),) = house.held(first)
    (other,) = {"cmp-1", "cmp-2"} - {host}
    house.run(seconds=1)
    house.boot("anns", host)
    house.stands(host, "down")
    house.run(seconds=5)
    assert house.held(first) == [[other]]
    house.stands(host, "up")
    house.run(seconds=5)
    with house.m.store.database.write() as conn:  # booked before it failed, say
        conn.exec_driver_sql("UPDATE hosts SET reservable = 1")
    second = house.create(minutes=(1, 600), caller=BOB)
    assert house.held(second) == [[host]]
    with house.m.store.database.write() as conn:
        conn.exec_driver_sql(f"UPDATE hosts SET reservable = 0 WHERE name = '{host}'")
    (theirs,) = house.lease(second).reservations
    house.run(minutes=2)
    assert house.status(second) == "STARTING"
    assert host not in house.pools()[theirs.id]
    (server,) = [s["id"] for s in house.sim.world()["servers"]]
    house.m.cloud.servers.delete(server)  # or it was moved to the other one
    house.run(minutes=1)
    assert house.status(second) == "ACTIVE"
    assert house.pools()[theirs.id] == {host}
    (mine,) = house.lease(first).reservations
    assert house.pools()[mine.id] == {other}
