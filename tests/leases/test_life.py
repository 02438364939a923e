# SPDX-License-Identifier: Apache-2.0
"""The life of a lease, end to end in one thread: what its owner sees, what the cloud is told."""

from collections.abc import Callable, Mapping

import pytest

from holdfast.drivers.sim.pools import SimPools
from holdfast.model.errors import Conflict, DriverError, InvalidInput, NotEnoughHosts, NotFound
from holdfast.model.lease import NewLease, NewReservation
from holdfast.nova.names import CLOSED, CLOSED_POOL, OPEN
from holdfast.ports.cloud import Flavor
from tests.leases.house import ADMIN, ANN, BOB, House
from tests.leases.stories import KINDS

DONE, UNDONE, RUNS = "DONE", "UNDONE", "IN_PROGRESS"


def test_a_lease_goes_through_its_states_on_time_and_leaves_nothing_behind(house: House) -> None:
    house.enrol("cmp-1", "cmp-2")
    lease_id = house.create(minutes=(5, 125))
    (reservation,) = house.lease(lease_id).reservations
    assert (house.status(lease_id), house.pools()) == ("PENDING", {"freepool": {"cmp-1", "cmp-2"}})
    house.check_combination(lease_id)

    house.run(minutes=4, seconds=1)  # prepared a minute ahead, and nobody sees it
    assert house.pools()[reservation.id] == set()
    assert house.status(lease_id) == "PENDING"
    house.check_combination(lease_id)

    house.run(seconds=59)
    assert house.status(lease_id) == "ACTIVE"
    assert house.pools() == {"freepool": {"cmp-2"}, reservation.id: {"cmp-1"}}
    house.check_combination(lease_id)

    house.run(minutes=60)
    assert house.events(lease_id)["before_end_lease"] == DONE
    assert house.status(lease_id) == "ACTIVE"

    house.run(minutes=60)
    assert house.status(lease_id) == "TERMINATED"
    assert house.pools() == {"freepool": {"cmp-1", "cmp-2"}}
    house.check_combination(lease_id)
    house.check_pools()


def test_every_event_fires_at_its_very_moment_without_a_tick(house: House) -> None:
    house.enrol("cmp-1")
    lease_id = house.create(minutes=(5, 125))
    lease = house.lease(lease_id)
    cycles_before = len(house.m.ended)
    house.run(minutes=130)
    done = {e.operation.kind: e for e in house.m.ended[cycles_before:] if e.status == "done"}
    assert set(done) == {"lease_start", "lease_before_end", "lease_end"}
    assert all(e.lag_s == 0 for e in done.values())
    assert [e.operation.due_at for e in done.values()] == [lease.start, lease.before_end, lease.end]


def test_a_lease_from_now_on_is_active_when_the_command_answers(house: House) -> None:
    house.clock.advance(42)
    house.enrol("cmp-1")
    lease_id = house.create(minutes=(None, 60))
    assert house.status(lease_id) == "ACTIVE"
    assert house.lease(lease_id).start.second == 0


def test_the_pool_names_the_owning_project(house: House) -> None:
    house.enrol("cmp-1")
    lease_id = house.create(minutes=(None, 60))
    (reservation,) = house.lease(lease_id).reservations
    pool = house.m.cloud.pools.find(reservation.id)
    assert pool.metadata == {"blazar:owner": ANN.project_id}


def test_a_pool_that_was_made_but_not_described_gets_its_owner_before_a_host_joins(
    house: House,
) -> None:
    house.enrol("cmp-1")
    lease_id = house.create(minutes=(5, 60))
    (reservation,) = house.lease(lease_id).reservations
    house.m.cloud.pools.create(reservation.id, {})
    house.run(minutes=5)
    pool = house.m.cloud.pools.find(reservation.id)
    assert pool.metadata == {"blazar:owner": ANN.project_id}
    calls = [e.call for e in house.sim.effects() if reservation.id in e.subject]
    assert calls.index("pools.set_metadata") < calls.index("pools.add_host")


def test_the_door_is_shut_before_the_servers_are_deleted(house: House) -> None:
    house.enrol("cmp-1")
    lease_id = house.create(minutes=(None, 30))
    (reservation,) = house.lease(lease_id).reservations
    house.boot("mine", "cmp-1")
    house.sim.change(delete_s=7)
    house.run(minutes=30, seconds=3)
    pool = house.m.cloud.pools.find(reservation.id)
    assert pool.metadata == {"blazar:owner": ANN.project_id, "holdfast:open": "no"}
    calls = [effect.call for effect in house.sim.effects()]
    assert calls.index("pools.set_metadata") < calls.index("servers.delete")
    assert len(house.effects("pools.set_metadata")) == 1
    house.run(seconds=5)
    assert house.status(lease_id) == "TERMINATED"


def test_an_empty_lease_lives_and_ends_too(house: House) -> None:
    lease_id = house.create(minutes=(1, 10), hosts=())
    house.run(minutes=2)
    assert house.status(lease_id) == "ACTIVE"
    house.run(minutes=10)
    assert house.status(lease_id) == "TERMINATED"


def test_a_repeated_create_makes_a_single_lease(house: House) -> None:
    house.enrol("cmp-1")
    lease_id = house.create(lease_id="11111111-1111-4111-8111-111111111111")
    house.create(lease_id=lease_id)
    assert len(house.m.store.ledger.with_events()) == 1


def test_the_same_create_sent_twice_at_once_is_one_lease(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second has looked before the first wrote."""
    house.enrol("cmp-1", "cmp-2")
    lease_id = house.create()
    look = house.m.store.ledger.lease
    blind = iter([True])

    def lease(wanted: str):  # type: ignore[no-untyped-def]
        if next(blind, False):
            raise NotFound("not yet")
        return look(wanted)

    monkeypatch.setattr(house.m.store.ledger, "lease", lease)
    house.create(lease_id=lease_id)
    assert len(house.m.store.ledger.with_events()) == 1
    assert house.held(lease_id) == [["cmp-1"]]


def test_the_lease_id_of_another_project_is_refused(house: House) -> None:
    house.enrol("cmp-1", "cmp-2")
    lease_id = house.create()
    with pytest.raises(Conflict, match="taken"):
        house.create(lease_id=lease_id, caller=BOB)


def test_a_refused_lease_leaves_no_rows(house: House) -> None:
    house.enrol("cmp-1")
    house.run(minutes=1)  # its pools have been told of it
    with pytest.raises(NotEnoughHosts, match="2 asked for; of 1 hosts 1 match and 1 of those"):
        house.create(hosts=2)
    with pytest.raises(InvalidInput, match=r"not supported; known: .*physical:host"):
        house.m.commands.create_lease(ANN, _lease_of(house, "virtual:moon"))
    assert house.m.store.ledger.with_events() == []
    assert house.m.store.operations.list_all(status="waiting") == []


def _lease_of(house: House, resource_type: str) -> NewLease:
    reservation = NewReservation(resource_type, {"min": 1, "max": 1})
    return NewLease("x", "x", house.at(1), house.at(2), reservations=(reservation,))


def test_another_project_does_not_learn_of_a_lease(house: House) -> None:
    house.enrol("cmp-1")
    lease_id = house.create()
    with pytest.raises(NotFound, match="Object with"):
        house.update(lease_id, caller=BOB, name="mine")
    with pytest.raises(NotFound, match="Object with"):
        house.delete(lease_id, caller=BOB)
    house.update(lease_id, caller=ADMIN, name="seen")
    assert house.lease(lease_id).name == "seen"


# hosts are held once


def test_two_reservations_of_one_lease_never_share_a_host(house: House) -> None:
    house.enrol("cmp-1", "cmp-2", "cmp-3")
    lease_id = house.create(hosts=[(1, 1), (1, 2)])
    assert house.held(lease_id) == [["cmp-1"], ["cmp-2", "cmp-3"]]
    with pytest.raises(NotEnoughHosts):
        house.create(hosts=[(1, 1)])
    house.check_no_double_booking()


def test_leases_one_after_the_other_use_the_same_host(house: House) -> None:
    house.enrol("cmp-1")
    one, other = house.create(minutes=(5, 60)), house.create(minutes=(60, 90), caller=BOB)
    assert house.held(one) == house.held(other) == [["cmp-1"]]
    house.run(minutes=61)
    assert (house.status(one), house.status(other)) == ("TERMINATED", "ACTIVE")
    house.check_pools()


def test_cleaning_time_keeps_hosts_free_after_a_lease_and_before_the_next(house: House) -> None:
    house.settings.cleaning_time = 10
    house.enrol("cmp-1")
    house.create(minutes=(60, 90))
    for minutes in ((99, 120), (30, 51)):
        with pytest.raises(NotEnoughHosts):
            house.create(minutes=minutes)
    house.create(minutes=(100, 120))
    house.create(minutes=(30, 50))
    house.check_no_double_booking()


def test_a_lease_ended_early_gives_hosts_back_after_the_cleaning(house: House) -> None:
    house.settings.cleaning_time = 10
    house.enrol("cmp-1")
    lease_id = house.create(minutes=(None, 600))
    house.run(minutes=5)
    house.update(lease_id, end_now=True)
    assert house.status(lease_id) == "TERMINATED"
    with pytest.raises(NotEnoughHosts):
        house.create(minutes=(9, 60))
    house.create(minutes=(10, 60))


def test_an_end_in_the_minute_that_is_almost_over_is_refused(house: House) -> None:
    """Also with cleaning time, which must not lend a lease the time it has not."""
    house.settings.cleaning_time = 10
    house.enrol("cmp-1")
    house.clock.advance(40)
    with pytest.raises(InvalidInput, match="end before it can start"):
        house.create(minutes=(None, -0.1))


# servers


def test_the_next_lease_waits_until_the_one_before_has_given_the_host_back(house: House) -> None:
    """Otherwise the end of the first would delete the servers of the second."""
    house.enrol("cmp-1")
    one = house.create(minutes=(None, 60))
    other = house.create(minutes=(60, 120), caller=BOB)
    house.boot("slow", "cmp-1")
    house.sim.change(delete_s=20)
    house.run(minutes=60, seconds=10)
    assert (house.status(one), house.status(other)) == ("TERMINATING", "STARTING")
    house.check_combination(one)
    house.check_combination(other)
    house.run(seconds=11)
    assert (house.status(one), house.status(other)) == ("TERMINATED", "ACTIVE")
    house.boot("kept", "cmp-1")
    house.run(minutes=1)
    assert house.servers() == ["kept"]
    (reservation,) = house.lease(other).reservations
    assert house.pools() == {"freepool": set(), reservation.id: {"cmp-1"}}
    house.check_pools()


def test_snapshots_are_taken_once_before_the_end(house: House) -> None:
    house.enrol("cmp-1")
    house.settings.before_end = "snapshot"
    default = house.create(minutes=(None, 120), before_end="default")
    house.boot("web", "cmp-1")
    house.boot("db", "cmp-1")
    house.run(minutes=61)
    assert sorted(house.images()) == ["reserved_db", "reserved_web"]
    assert house.servers() == ["db", "web"]
    house.run(minutes=60)
    assert house.status(default) == "TERMINATED"
    assert sorted(house.images()) == ["reserved_db", "reserved_web"]
    assert house.servers() == []


def test_a_prolonged_lease_gets_newer_snapshots_before_the_new_end(house: House) -> None:
    """What is deleted at the end is not what it was when the first ones were taken."""
    house.enrol("cmp-1")
    lease_id = house.create(minutes=(None, 120), before_end="snapshot")
    house.boot("w" * 255, "cmp-1")
    house.run(minutes=61)
    house.update(lease_id, end=house.at(180))
    house.run(minutes=181)
    assert house.status(lease_id) == "TERMINATED"
    first, second = house.images()
    assert second == f"{first}_20300101T140100"
    assert len(second) <= 255


def test_nothing_is_snapshotted_unless_asked_for(house: House) -> None:
    house.enrol("cmp-1")
    lease_id = house.create(minutes=(None, 120))
    house.boot("web", "cmp-1")
    house.run(minutes=61)
    assert house.events(lease_id)["before_end_lease"] == DONE
    assert house.images() == []


def test_a_server_that_cannot_be_snapshotted_yet_is_tried_again(house: House) -> None:
    house.enrol("cmp-1")
    lease_id = house.create(minutes=(None, 120), before_end="snapshot")
    server_id = house.boot("web", "cmp-1")
    house.run(minutes=59)
    house.sim.change(action_s=120)
    house.m.cloud.servers.stop(server_id)
    house.run(minutes=1, seconds=1)
    assert (house.images(), house.events(lease_id)["before_end_lease"]) == ([], RUNS)
    house.run(minutes=2)
    assert house.images() == ["reserved_web"]
    assert house.events(lease_id)["before_end_lease"] == DONE


def test_a_server_that_never_can_be_snapshotted_does_not_stop_the_end(house: House) -> None:
    house.enrol("cmp-1")
    before = {"before_end": "snapshot", "before_end_date": house.at(118)}
    lease_id = house.create(minutes=(None, 120), **before)
    server_id = house.boot("web", "cmp-1")
    house.boot("db", "cmp-1")
    house.sim.change(action_s=80_000)
    house.m.cloud.servers.stop(server_id)
    house.run(minutes=121)
    assert house.images() == ["reserved_db"]
    assert house.events(lease_id) == {
        "start_lease": DONE,
        "before_end_lease": "ERROR",
        "end_lease": DONE,
    }
    assert house.status(lease_id) == "TERMINATED"


def test_every_server_on_the_hosts_goes_with_the_lease_and_none_elsewhere(house: House) -> None:
    house.enrol("cmp-1", "cmp-2")
    house.add("cmp-9")
    lease_id = house.create(minutes=(None, 30))
    house.boot("mine", "cmp-1")
    house.boot("elsewhere", "cmp-9")
    house.sim.change(delete_s=7)
    house.run(minutes=30, seconds=3)
    assert house.status(lease_id) == "TERMINATING"
    house.check_combination(lease_id)
    house.run(seconds=5)
    assert (house.status(lease_id), house.servers()) == ("TERMINATED", ["elsewhere"])
    assert len(house.effects("servers.delete")) == 1


def test_a_server_let_in_just_before_the_door_was_shut_goes_too(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.enrol("cmp-1")
    lease_id = house.create(minutes=(None, 30))
    pools = house.m.cloud.pools
    whole = pools.add_host

    def late(pool_id: str, host: str) -> None:
        if not house.effects("servers.delete"):
            house.boot("late", "cmp-1")  # the scheduler had chosen before it heard of the door
        whole(pool_id, host)

    monkeypatch.setattr(pools, "add_host", late)
    house.run(minutes=31)
    assert (house.status(lease_id), house.servers()) == ("TERMINATED", [])
    assert house.pools() == {"freepool": {"cmp-1"}}


def test_preemptible_servers_give_way_to_a_lease_and_nobody_else_does(house: House) -> None:
    house.settings.preemptibles = True
    house.add("cmp-1")
    spot = Flavor("spot", "spot", 1, 512, 1, extra_specs={"blazar:preemptible": "true"})
    house.m.cloud.flavors.create(spot)
    house.boot("early", "cmp-1", "spot")
    house.m.commands.enrol_host(ADMIN, "cmp-1", {})  # what is preemptible is not in the way
    lease_id = house.create(minutes=(5, 60))
    house.boot("late", "cmp-1", "spot")
    house.boot("owners", "cmp-1")
    house.sim.change(delete_s=7)
    house.run(minutes=5, seconds=3)
    assert house.status(lease_id) == "STARTING"
    house.run(seconds=5)
    assert (house.status(lease_id), house.servers()) == ("ACTIVE", ["owners"])
    assert house.pools()["freepool"] == set()


def test_pools_are_resynced_after_a_change_and_an_ended_pool_is_deleted_last(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scheduler may not have been back when the change was made, and no call failed."""
    told: list[tuple[float, str]] = []
    pools = house.m.cloud.pools
    names = {}
    whole = pools.resync
    changed = house.clock.now()

    def tell(pool_id: str) -> None:
        names.update({pool.id: pool.name for pool in pools.list()})
        told.append(((house.clock.now() - changed).total_seconds(), names[pool_id]))
        whole(pool_id)

    monkeypatch.setattr(pools, "resync", tell)
    house.tell()
    house.enrol("cmp-1")
    house.run(minutes=1)
    assert sorted(told) == [(s, n) for s in (5, 20, 50) for n in ("freepool", "holdfast")]
    lease_id = house.create(minutes=(5, 10))
    (reservation,) = house.lease(lease_id).reservations
    for changed in (house.at(5), house.at(10)):
        told.clear()
        house.run(until=changed)
        house.run(seconds=49)
        (name,) = [name for name in house.all_pools() if reservation.id in name]
        house.run(seconds=11)
        expected = [(s, n) for s in (5, 20, 50) for n in (name, "freepool")]
        assert sorted(told) == sorted(expected)
    assert house.status(lease_id) == "TERMINATED"
    assert house.all_pools() == {"freepool": {"cmp-1"}, "holdfast": {"cmp-1"}}


def test_late_resyncs_keep_the_interval(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole controller was off: who places servers may need longer to be back than we do."""
    house.enrol("cmp-1")
    lease_id = house.create(minutes=(5, 10))
    (reservation,) = house.lease(lease_id).reservations
    house.run(minutes=10)
    house.clock.advance(3000)
    house.tell()
    back = house.clock.now()
    told: list[float] = []
    pools = house.m.cloud.pools
    (mine,) = [pool.id for pool in pools.list() if reservation.id in pool.name]
    whole = pools.resync

    def tell(pool_id: str) -> None:
        if pool_id == mine:
            told.append((house.clock.now() - back).total_seconds())
        whole(pool_id)

    monkeypatch.setattr(pools, "resync", tell)
    house.run(minutes=2)
    assert told == [0, 15, 45]
    assert not any(reservation.id in name for name in house.all_pools())


def test_pools_are_resynced_without_an_audit_log(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The audit log is for people: no job reads it."""
    with house.m.store.database.write() as conn:
        forget = "CREATE TRIGGER forget AFTER INSERT ON audit BEGIN DELETE FROM audit; END"
        conn.exec_driver_sql(forget)
    pools, told = house.m.cloud.pools, list[str]()
    whole = pools.resync

    def tell(pool_id: str) -> None:
        told.extend(pool.name for pool in pools.list() if pool.id == pool_id)
        whole(pool_id)

    monkeypatch.setattr(pools, "resync", tell)
    house.tell()
    house.enrol("cmp-1")
    house.run(minutes=2)
    assert sorted(told) == ["freepool"] * 3 + ["holdfast"] * 3
    (reservation,) = house.lease(house.create(minutes=(2, 10))).reservations
    house.run(minutes=5)
    assert told.count(reservation.id) == 3


def test_pools_that_always_fail_do_not_delay_other_pools(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 12  # more than are told at once
    house.enrol(*(f"cmp-{number}" for number in range(count)))
    leases = [house.create(minutes=(5, 10)) for _ in range(count)]
    ids = {house.lease(lease).reservations[0].id for lease in leases}
    house.run(minutes=2)
    house.tell()
    house.run(minutes=3)
    pools = house.m.cloud.pools
    whole, broken, told = pools.resync, set(sorted(ids)[:9]), dict[str, int]()

    def tell(pool_id: str) -> None:
        (name,) = [pool.name for pool in pools.list() if pool.id == pool_id]
        name = name.removeprefix(CLOSED_POOL)
        if name in broken:
            raise DriverError("cloud", f"pool {name} is stuck", retryable=True)
        told[name] = told.get(name, 0) + 1
        whole(pool_id)

    monkeypatch.setattr(pools, "resync", tell)
    house.run(seconds=61)
    well = ids - broken
    assert {name: told.get(name) for name in well} == dict.fromkeys(well, 3)
    assert not broken & told.keys()
    chore = house.m.store.operations.by_key("pools_resync")
    assert (chore.attempts, "is stuck" in chore.sentence) == (0, True)
    broken.clear()
    house.run(minutes=7)
    assert not ids & {name.removeprefix(CLOSED_POOL) for name in house.all_pools()}


def test_the_telling_of_a_start_does_not_delete_the_pool_of_a_short_lease(house: House) -> None:
    house.enrol("cmp-1")
    lease_id = house.create(minutes=(None, 60))
    (reservation,) = house.lease(lease_id).reservations
    house.tell()
    house.run(seconds=30)
    house.delete(lease_id)
    house.run(seconds=45)
    closed = f"{CLOSED_POOL}{reservation.id}"
    assert closed in house.all_pools()  # its end was told for the last time only then
    house.run(seconds=10)
    assert closed not in house.all_pools()


@pytest.mark.parametrize("kind", ["host", "instance", "server"])
def test_no_pool_has_the_name_of_a_reservation_whose_end_is_done(house: House, kind: str) -> None:
    KINDS[kind].ground(house)
    asked = (NewReservation(KINDS[kind].type, KINDS[kind].spec(house)),)
    wanted = NewLease(house.new_id(), "lab", house.at(5), house.at(10), None, asked)
    house.m.commands.create_lease(ANN, wanted)
    house.run(minutes=6)
    (reservation,) = house.lease(wanted.id).reservations
    assert reservation.id in house.all_pools()
    house.run(minutes=4, seconds=5)
    assert house.events(wanted.id)["end_lease"] == "DONE"
    assert reservation.id not in house.all_pools()
    assert house.all_pools()[f"{CLOSED_POOL}{reservation.id}"] == set()


def test_an_end_goes_on_when_a_second_pool_of_its_reservation_appears(house: House) -> None:
    house.enrol("cmp-1")
    lease_id = house.create(minutes=(None, 10))
    (reservation,) = house.lease(lease_id).reservations
    house.m.cloud.pools.create(f"{CLOSED_POOL}{reservation.id}", {OPEN: CLOSED})
    house.run(minutes=11)
    assert house.status(lease_id) == "TERMINATED"
    assert reservation.id not in house.all_pools()


def test_a_pool_closed_by_an_interrupted_call_is_resynced(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.enrol("cmp-1")
    lease_id = house.create(minutes=(None, 5))
    house.run(minutes=4)
    pools = house.m.cloud.pools
    done: list[str] = []

    def half(pool_id: str, metadata: Mapping[str, str]) -> None:
        SimPools.set_metadata(pools, pool_id, metadata)
        raise DriverError("test", "changed, but not told", retryable=True)

    def noted(name: str) -> Callable[..., None]:
        whole = getattr(pools, name)

        def call(pool_id: str, *rest: str) -> None:
            done.append(name)
            whole(pool_id, *rest)

        return call

    monkeypatch.setattr(pools, "set_metadata", half)
    for name in ("resync", "remove_host"):
        monkeypatch.setattr(pools, name, noted(name))
    house.run(minutes=1, seconds=2)
    assert house.status(lease_id) == "TERMINATED"
    assert done[:2] == ["resync", "remove_host"]


# trouble


@pytest.mark.parametrize("down_from", [0, 4.5], ids=["before the preparation", "after it"])
def test_a_start_rides_out_a_cloud_that_is_down(house: House, down_from: float) -> None:
    house.enrol("cmp-1")
    lease_id = house.create(minutes=(5, 65))
    house.run(minutes=down_from)
    house.sim.change(down=True)
    house.run(minutes=10 - down_from)
    assert house.status(lease_id) == "STARTING"
    house.check_combination(lease_id)
    house.sim.change(down=False)
    house.run(seconds=16)
    assert house.status(lease_id) == "ACTIVE"
    house.check_combination(lease_id)


def test_a_cloud_that_is_back_just_in_time_makes_no_start_late(house: House) -> None:
    """Failed preparations must not push the start itself back."""
    house.enrol("cmp-1")
    lease_id = house.create(minutes=(5, 65))
    house.run(minutes=3)
    house.sim.change(down=True)
    house.run(minutes=1, seconds=59)
    house.sim.change(down=False)
    house.run(seconds=1)
    assert house.status(lease_id) == "ACTIVE"


def test_a_start_that_never_came_about_is_an_error_and_still_ends(house: House) -> None:
    house.enrol("cmp-1")
    lease_id = house.create(minutes=(1, 6))
    house.sim.change(down=True)
    house.run(minutes=5, seconds=59.9)
    assert house.status(lease_id) == "ERROR"
    house.check_combination(lease_id)
    house.run(minutes=2)
    house.sim.change(down=False)
    house.run(minutes=1)
    assert house.status(lease_id) == "TERMINATED"
    assert house.pools() == {"freepool": {"cmp-1"}}
    house.create(minutes=(1, 10))


def test_an_end_rides_out_a_cloud_that_is_down_and_holds_the_hosts_meanwhile(house: House) -> None:
    (host_id,) = house.enrol("cmp-1")
    lease_id = house.create(minutes=(None, 10))
    house.run(minutes=1)
    house.sim.change(down=True)
    house.run(minutes=12)
    assert house.status(lease_id) == "TERMINATING"
    house.check_combination(lease_id)
    with pytest.raises(Conflict, match="is reserved"):
        house.m.commands.withdraw_host(ADMIN, host_id)
    house.sim.change(down=False)
    house.run(minutes=1)
    assert house.status(lease_id) == "TERMINATED"
    assert house.pools() == {"freepool": {"cmp-1"}}


def test_a_manager_that_was_off_starts_and_ends_late_leases_in_order(house: House) -> None:
    house.enrol("cmp-1")
    lease_id = house.create(minutes=(5, 65))
    house.clock.advance(3 * 3600)
    house.run(seconds=1)
    assert house.status(lease_id) == "TERMINATED"
    house.check_combination(lease_id)
    done = [e.operation.kind for e in house.m.ended if e.status == "done"]
    assert done[-3:] == ["lease_start", "lease_before_end", "lease_end"]
    assert house.pools() == {"freepool": {"cmp-1"}}
    house.check_pools()


def test_a_late_start_of_an_ended_lease_does_not_touch_hosts_of_the_next(
    house: House,
) -> None:
    house.enrol("cmp-1")
    late = house.create(minutes=(5, 65))
    present = house.create(minutes=(65, 300), caller=BOB)
    house.clock.advance(2 * 3600)
    house.run(seconds=5)
    assert (house.status(late), house.status(present)) == ("TERMINATED", "ACTIVE")
    (reservation,) = house.lease(present).reservations
    assert house.pools() == {"freepool": set(), reservation.id: {"cmp-1"}}
    house.check_pools()


def test_a_host_that_is_never_given_back_makes_the_next_start_fail_at_its_end(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting ends too: the lease must not be stuck for ever."""
    house.enrol("cmp-1")
    broken = house.create(minutes=(None, 5))
    lease_id = house.create(minutes=(5, 5.5))
    with monkeypatch.context() as refusing:
        refusing.setattr(house.m.cloud.servers, "list", _refuse)
        house.run(minutes=5.1)
        assert (house.status(broken), house.status(lease_id)) == ("TERMINATING", "STARTING")
        house.check_combination(broken)
        house.run(seconds=23.9)
        assert house.status(lease_id) == "ERROR"
        house.run(minutes=1)
        assert (house.status(broken), house.status(lease_id)) == ("TERMINATING", "TERMINATED")
    # an end is tried until it succeeds, whatever the cloud said before
    house.run(minutes=1)
    assert house.status(broken) == "TERMINATED"
    assert house.pools() == {"freepool": {"cmp-1"}}


def _refuse(**_which: str) -> None:
    raise DriverError("test", "forbidden", retryable=False)


def test_a_lease_goes_on_when_its_hosts_cannot_leave_the_free_pool_yet(house: House) -> None:
    """It is usable; the rest of the start follows when the cloud is back, or at the end."""
    house.enrol("cmp-1")
    house.sim.change(down=True, only_calls=["pools.remove_host"])
    lease_id = house.create(minutes=(None, 10))
    assert house.status(lease_id) == "ACTIVE"
    house.run(minutes=2)
    house.sim.change(down=False, only_calls=[])
    house.run(minutes=1)
    (reservation,) = house.lease(lease_id).reservations
    assert house.pools() == {"freepool": set(), reservation.id: {"cmp-1"}}
    house.check_combination(lease_id)


def test_a_lease_ends_though_its_hosts_never_could_leave_the_free_pool(house: House) -> None:
    house.enrol("cmp-1")
    house.sim.change(down=True, only_calls=["pools.remove_host"])
    lease_id = house.create(minutes=(None, 10))
    house.run(minutes=12)
    house.sim.change(down=False, only_calls=[])
    house.run(minutes=1)
    assert house.status(lease_id) == "TERMINATED"
    assert house.pools() == {"freepool": {"cmp-1"}}


def test_alternating_managers_do_everything_once(house: House) -> None:
    house.enrol("cmp-1", "cmp-2")
    lease_id = house.create(minutes=(5, 125), hosts=2, before_end="snapshot")
    first, second = house.m, house.manager()
    for manager, minutes in ((first, 4.5), (second, 1), (first, 60), (second, 60)):
        manager.run(house.at(minutes))
        first.turn()
        second.turn()
    assert house.status(lease_id) == "TERMINATED"
    done = [e.operation.kind for e in second.ended if e.status == "done"]
    assert done == ["lease_start", "lease_end"]
    assert len(house.effects("pools.create")) == 3  # kept, free, reserved
    house.check_pools()
