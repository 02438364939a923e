# SPDX-License-Identifier: Apache-2.0
"""Leases change while they wait and while they run; what cannot be leaves everything as it was."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from holdfast.model.errors import Conflict, InvalidInput, NotEnoughHosts, NotFound, StaleWrite
from holdfast.model.lease import APPLY, END, START, LeaseChange
from holdfast.ports.cloud import Flavor
from tests.leases.house import ANN, BOB, House, Killed, Manager, Points


def only(house: House, lease_id: str) -> str:
    """The id of the lease's only reservation."""
    (reservation,) = house.lease(lease_id).reservations
    return reservation.id


def check_unchanged(house: House, lease_id: str, change: LeaseChange, refusal: type) -> None:
    """The change is refused and neither the lease, its work nor the cloud has moved."""

    def everything():  # type: ignore[no-untyped-def]
        work = house.m.store.operations.list_all(subject=lease_id)
        return house.lease(lease_id), sorted(work, key=lambda o: o.key), house.pools()

    before = everything()
    with pytest.raises(refusal):
        house.m.commands.update_lease(ANN, lease_id, change)
    house.m.turn()
    assert everything() == before


# names


@pytest.mark.parametrize("minutes", [0, 6, 200], ids=["PENDING", "ACTIVE", "TERMINATED"])
def test_a_lease_can_be_renamed_in_every_stable_state(house: House, minutes: float) -> None:
    house.enrol("cmp-1")
    lease_id = house.create()
    house.run(minutes=minutes)
    before = house.lease(lease_id)
    house.update(lease_id, name="new")
    after = house.lease(lease_id)
    assert (after.name, after.status, after.reservations) == (
        "new",
        before.status,
        before.reservations,
    )
    house.check_combination(lease_id)


def test_an_empty_update_changes_nothing(house: House) -> None:
    house.enrol("cmp-1")
    lease_id = house.create()
    before = house.lease(lease_id)
    house.update(lease_id)
    assert house.lease(lease_id) == before


def test_a_failed_lease_can_be_renamed_with_its_own_dates_in_the_request(house: House) -> None:
    house.enrol("cmp-1")
    lease_id = house.create(minutes=(1, 5))
    house.run(minutes=10)
    lease = house.lease(lease_id)
    house.update(lease_id, name="new", start=lease.start, end=lease.end)
    assert house.lease(lease_id).name == "new"


def test_of_a_lease_that_is_over_only_the_name_can_change(house: House) -> None:
    house.enrol("cmp-1", "cmp-2")
    lease_id = house.create(minutes=(1, 5))
    house.run(minutes=10)
    assert house.status(lease_id) == "TERMINATED"
    for change in (
        LeaseChange(end=house.at(60)),
        LeaseChange(end_now=True),
        LeaseChange(before_end=house.at(-7)),
        LeaseChange(name="x", reservations={only(house, lease_id): {"max": 2}}),
    ):
        check_unchanged(house, lease_id, change, InvalidInput)


# dates


def test_prolonging_holds_the_host_longer_and_moves_the_end(house: House) -> None:
    house.enrol("cmp-1")
    lease_id = house.create(minutes=(None, 100))
    end = house.at(200)
    house.update(lease_id, end=end)
    with pytest.raises(NotEnoughHosts):
        house.create(minutes=(150, 160))
    house.run(minutes=139)
    assert house.events(lease_id)["before_end_lease"] == "UNDONE"
    house.run(minutes=2)
    assert house.events(lease_id)["before_end_lease"] == "DONE"
    assert house.status(lease_id) == "ACTIVE"
    house.run(until=end)
    assert house.status(lease_id) == "TERMINATED"


@pytest.mark.parametrize("end", [60, 300], ids=["shorter", "longer"])
def test_a_host_added_later_is_not_held_for_the_time_before(house: House, end: int) -> None:
    house.enrol("cmp-1", "cmp-2")
    grown = house.create(minutes=(None, 100))
    before = house.create(minutes=(None, 10), caller=BOB)
    house.run(minutes=15)
    house.update(grown, reservations={only(house, grown): {"max": 2}})
    house.run(minutes=1)
    house.update(grown, end=house.at(end))
    (kept,) = house.lease(grown).reservations
    assert len(kept.allocations) == 2
    assert {a.held.end for a in kept.allocations} == {house.at(end)}
    (was,) = house.lease(before).allocations()
    assert all(a.held.start >= was.held.end for a in kept.allocations if a.host_id == was.host_id)
    house.check_no_double_booking()


def test_prolonging_after_the_before_end_event_arms_it_again(house: House) -> None:
    house.enrol("cmp-1")
    lease_id = house.create(minutes=(None, 100))
    house.run(minutes=50)
    assert house.events(lease_id)["before_end_lease"] == "DONE"
    house.update(lease_id, end=house.at(150))
    assert house.events(lease_id)["before_end_lease"] == "UNDONE"
    assert house.lease(lease_id).before_end == house.at(90)
    house.run(minutes=90)
    assert house.events(lease_id)["before_end_lease"] == "DONE"


def test_reducing_frees_the_host_earlier(house: House) -> None:
    house.enrol("cmp-1")
    lease_id = house.create(minutes=(None, 100))
    house.update(lease_id, end=house.at(30))
    other = house.create(minutes=(30, 40), caller=BOB)
    house.run(minutes=31)
    assert (house.status(lease_id), house.status(other)) == ("TERMINATED", "ACTIVE")
    house.check_pools()


def test_end_now_ends_a_running_lease_with_its_snapshots(house: House) -> None:
    house.enrol("cmp-1")
    lease_id = house.create(minutes=(None, 1000), before_end="snapshot")
    house.run(minutes=30)
    house.boot("web", "cmp-1")
    house.update(lease_id, end_now=True)
    house.run(seconds=2)
    assert house.status(lease_id) == "TERMINATED"
    assert house.images() == ["reserved_web"]
    house.create(minutes=(1, 100))


def test_end_now_at_the_very_start_is_a_lease_of_no_length(house: House) -> None:
    house.enrol("cmp-1")
    lease_id = house.create(minutes=(None, 100))
    house.update(lease_id, end_now=True)
    assert house.status(lease_id) == "TERMINATED"
    house.check_combination(lease_id)


def test_end_now_before_the_start_is_refused(house: House) -> None:
    house.enrol("cmp-1")
    lease_id = house.create()
    check_unchanged(house, lease_id, LeaseChange(end_now=True), InvalidInput)


def test_deferring_and_advancing_move_the_start(house: House) -> None:
    house.enrol("cmp-1")
    lease_id = house.create(minutes=(10, 100))
    house.update(lease_id, start=house.at(50))
    house.create(minutes=(20, 50))
    house.run(minutes=20, seconds=-1)
    assert house.status(lease_id) == "PENDING"
    check_unchanged(house, lease_id, LeaseChange(start=house.at(5)), NotEnoughHosts)
    house.update(lease_id, start=house.at(40))
    house.run(minutes=41)
    assert house.status(lease_id) == "ACTIVE"


def test_deferring_a_prepared_lease_starts_it_once_and_later(house: House) -> None:
    house.enrol("cmp-1")
    lease_id = house.create(minutes=(5, 100))
    house.run(minutes=4.5)
    assert only(house, lease_id) in house.pools()
    house.update(lease_id, start=house.at(30))
    house.run(minutes=29)
    assert house.status(lease_id) == "PENDING"
    house.run(minutes=1)
    assert house.status(lease_id) == "ACTIVE"
    assert house.effects("pools.create").count(only(house, lease_id)) == 1


def test_start_now_starts_now(house: House) -> None:
    house.enrol("cmp-1")
    lease_id = house.create(minutes=(50, 100))
    house.clock.advance(17)
    house.update(lease_id, start_now=True)
    assert house.status(lease_id) == "ACTIVE"


def test_the_start_of_a_running_lease_stays(house: House) -> None:
    house.enrol("cmp-1")
    lease_id = house.create(minutes=(None, 100))
    house.run(minutes=1)
    check_unchanged(house, lease_id, LeaseChange(start=house.at(10)), InvalidInput)
    check_unchanged(house, lease_id, LeaseChange(start_now=True, end=house.at(9)), InvalidInput)


def test_a_prolongation_into_the_lease_of_another_project_is_refused(house: House) -> None:
    house.enrol("cmp-1")
    lease_id = house.create(minutes=(None, 60))
    house.create(minutes=(60, 120), caller=BOB)
    check_unchanged(house, lease_id, LeaseChange(end=house.at(61)), NotEnoughHosts)
    house.check_no_double_booking()


def test_a_refusal_names_a_window_of_less_than_a_minute_to_the_second(house: House) -> None:
    house.enrol("cmp-1")
    house.create(minutes=(10, 10.5))
    with pytest.raises(NotEnoughHosts, match="from 2030-01-01 10:11 to 2030-01-01 10:11:30 UTC"):
        house.create(minutes=(10, 10.5), caller=BOB)


def test_a_waiting_lease_moves_to_other_hosts_rather_than_be_refused(house: House) -> None:
    house.enrol("cmp-1", "cmp-2")
    lease_id = house.create(minutes=(10, 60))
    house.create(minutes=(60, 120), caller=BOB)
    assert house.held(lease_id) == [["cmp-1"]]
    house.update(lease_id, end=house.at(90))
    assert house.held(lease_id) == [["cmp-2"]]
    house.check_no_double_booking()


@pytest.mark.parametrize("change", [{"name": "x"}, {"end_now": True}], ids=["name", "end"])
def test_a_lease_under_work_is_left_alone(house: House, change: dict[str, object]) -> None:
    house.enrol("cmp-1")
    lease_id = house.create(minutes=(5, 100))
    house.sim.change(down=True)
    house.run(minutes=6)
    assert house.status(lease_id) == "STARTING"
    with pytest.raises(Conflict, match="Invalid lease status"):
        house.update(lease_id, **change)


# reservations


def test_a_running_lease_gains_hosts_in_the_cloud_too(house: House) -> None:
    house.enrol("cmp-1", "cmp-2", "cmp-3")
    lease_id = house.create(minutes=(None, 100))
    house.boot("web", "cmp-1")
    house.update(lease_id, reservations={only(house, lease_id): {"min": 2, "max": 2}})
    assert house.held(lease_id) == [["cmp-1", "cmp-2"]]
    assert house.pools() == {"freepool": {"cmp-3"}, only(house, lease_id): {"cmp-1", "cmp-2"}}
    assert house.servers() == ["web"]
    house.check_combination(lease_id)
    house.run(minutes=101)
    assert house.pools() == {"freepool": {"cmp-1", "cmp-2", "cmp-3"}}
    house.check_pools()


def test_growth_leaves_the_owner_s_servers_alone_whatever_their_flavor(house: House) -> None:
    house.settings.preemptibles = True
    spot = Flavor("spot", "spot", 1, 512, 1, extra_specs={"blazar:preemptible": "true"})
    house.m.cloud.flavors.create(spot)
    house.enrol("cmp-1", "cmp-2")
    house.boot("in the way", "cmp-2", "spot")
    lease_id = house.create(minutes=(None, 100))
    house.boot("owner's", "cmp-1", "spot")
    house.update(lease_id, reservations={only(house, lease_id): {"min": 2, "max": 2}})
    house.run(minutes=2)
    assert house.held(lease_id) == [["cmp-1", "cmp-2"]]
    assert house.servers() == ["owner's"]


def test_a_running_lease_never_loses_a_host(house: House) -> None:
    house.enrol("cmp-1", "cmp-2")
    lease_id = house.create(minutes=(None, 100), hosts=2)
    fewer = LeaseChange(reservations={only(house, lease_id): {"min": 1, "max": 1}})
    check_unchanged(house, lease_id, fewer, Conflict)
    house.update(lease_id, reservations={only(house, lease_id): {"min": 1, "max": 2}})
    assert house.held(lease_id) == [["cmp-1", "cmp-2"]]
    nowhere = {"resource_properties": '["==", "$hypervisor_hostname", "moon"]'}
    change = LeaseChange(reservations={only(house, lease_id): nowhere})
    check_unchanged(house, lease_id, change, NotEnoughHosts)


def test_growth_never_takes_a_host_from_another_reservation_of_the_lease(house: House) -> None:
    house.enrol("cmp-1", "cmp-2")
    lease_id = house.create(hosts=[(1, 1), (1, 1)])
    first, _second = house.lease(lease_id).reservations
    check_unchanged(
        house,
        lease_id,
        LeaseChange(reservations={first.id: {"min": 2, "max": 2}}),
        NotEnoughHosts,
    )
    house.update(lease_id, reservations={first.id: {"max": 2}})
    assert house.held(lease_id) == [["cmp-1"], ["cmp-2"]]
    house.check_no_double_booking()


def test_growth_waits_for_the_cloud_and_the_end_waits_for_growth(house: House) -> None:
    house.enrol("cmp-1", "cmp-2")
    lease_id = house.create(minutes=(None, 10))
    house.sim.change(down=True)
    house.update(lease_id, reservations={only(house, lease_id): {"max": 2}})
    house.run(minutes=5)
    assert house.status(lease_id) == "ACTIVE"
    house.check_combination(lease_id)
    house.run(minutes=10)
    house.sim.change(down=False)
    house.run(minutes=1)
    assert house.status(lease_id) == "TERMINATED"
    assert house.pools() == {"freepool": {"cmp-1", "cmp-2"}}
    house.check_pools()


def between(house: House, kind: str, act: Callable[[], None]) -> Manager:
    """A manager that claims work of that kind, and in whose pause for breath `act` happens."""
    slow = house.manager()
    claim_due, once = slow.store.operations.claim_due, iter([act])

    def claim_and_dawdle(*args: Any) -> Any:
        taken = claim_due(*args)
        if any(operation.kind == kind for operation in taken):
            next(once, lambda: None)()
        return taken

    slow.store.operations.claim_due = claim_and_dawdle  # type: ignore[method-assign]
    house.manager()
    return slow


def test_growth_reschedules_an_end_that_is_about_to_run(
    house: House,
) -> None:
    """The end is claimed, the lease still ACTIVE: the update wins, the end comes after."""
    house.enrol("cmp-1", "cmp-2")
    lease_id = house.create(minutes=(None, 100))
    house.run(minutes=99)
    grown = {only(house, lease_id): {"max": 2}}
    slow = between(house, END, lambda: house.update(lease_id, reservations=grown))
    slow.run(house.at(1))
    assert house.held(lease_id) == [["cmp-1", "cmp-2"]]
    done = [ended.operation.kind for ended in slow.ended if ended.status == "done"]
    assert done == [APPLY, END]
    house.run(minutes=2)
    assert house.status(lease_id) == "TERMINATED"
    assert house.pools() == {"freepool": {"cmp-1", "cmp-2"}}
    house.check_pools()


def test_a_reservation_of_another_lease_or_another_type_is_refused(house: House) -> None:
    house.enrol("cmp-1")
    lease_id = house.create()
    other_type = {only(house, lease_id): {"resource_type": "virtual:instance"}}
    check_unchanged(house, lease_id, LeaseChange(reservations=other_type), Conflict)
    check_unchanged(house, lease_id, LeaseChange(reservations={"x": {"max": 2}}), InvalidInput)
    unknown = {only(house, lease_id): {"colour": "red"}}
    check_unchanged(house, lease_id, LeaseChange(reservations=unknown), InvalidInput)
    same_type = {only(house, lease_id): {"resource_type": "physical:host", "max": 1}}
    house.update(lease_id, reservations=same_type)


# races


def test_an_update_that_lost_the_race_reads_the_lease_again(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.enrol("cmp-1")
    lease_id = house.create()
    save, beaten = house.m.store.ledger.save, iter([True, True])

    def stale(*args, **kwargs):  # type: ignore[no-untyped-def]
        if next(beaten, False):
            raise StaleWrite("somebody was faster")
        return save(*args, **kwargs)

    monkeypatch.setattr(house.m.store.ledger, "save", stale)
    house.update(lease_id, name="new")
    assert house.lease(lease_id).name == "new"


def test_an_update_always_beaten_ends_in_a_conflict(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.enrol("cmp-1")
    lease_id = house.create()

    def stale(*_args, **_kwargs):  # type: ignore[no-untyped-def]
        raise StaleWrite("somebody was faster")

    monkeypatch.setattr(house.m.store.ledger, "save", stale)
    with pytest.raises(Conflict, match="try again"):
        house.update(lease_id, name="new")


def test_a_prolongation_during_the_last_moment_beats_the_end(house: House) -> None:
    """The end is claimed but has not begun: its claim is worth nothing after the update."""
    house.enrol("cmp-1")
    lease_id = house.create(minutes=(None, 100))
    house.run(minutes=100, seconds=-1)
    slow = between(house, END, lambda: house.update(lease_id, end=house.at(60)))
    slow.run(house.at(1 / 60))
    house.run(minutes=59)
    assert house.status(lease_id) == "ACTIVE"
    house.run(minutes=2)
    assert house.status(lease_id) == "TERMINATED"


def test_a_deferral_at_the_last_moment_beats_the_start(house: House) -> None:
    house.enrol("cmp-1")
    lease_id = house.create(minutes=(5, 100))
    house.run(minutes=4.5)
    slow = between(house, START, lambda: house.update(lease_id, start=house.at(30)))
    slow.run(house.at(1))
    assert house.status(lease_id) == "PENDING"
    house.run(minutes=30)
    assert house.status(lease_id) == "ACTIVE"


def test_a_delete_at_the_last_moment_beats_the_start(house: House) -> None:
    house.enrol("cmp-1")
    lease_id = house.create(minutes=(5, 100))
    house.run(minutes=4.5)
    slow = between(house, START, lambda: house.delete(lease_id))
    slow.run(house.at(2))
    assert house.pools() == {"freepool": {"cmp-1"}}
    with pytest.raises(NotFound):
        house.lease(lease_id)


def test_end_now_during_a_snapshot_does_not_take_it_twice(house: House) -> None:
    """The call of a manager that hangs may still arrive: what is armed anew waits for it."""
    house.enrol("cmp-1")
    lease_id = house.create(minutes=(None, 100), before_end="snapshot")
    house.boot("web", "cmp-1")
    house.run(minutes=39)
    hung = house.manager(Points(at=2))
    with pytest.raises(Killed):
        hung.run(house.at(2))
    house.manager()
    house.update(lease_id, end_now=True)
    assert house.events(lease_id)["before_end_lease"] == "UNDONE"
    house.m.cloud.servers.snapshot(house.sim.world()["servers"][0]["id"], "reserved_web")
    house.run(minutes=1)
    assert house.status(lease_id) == "TERMINATED"
    assert house.images() == ["reserved_web"]


def test_history_of_many_updates_never_holds_a_host_twice(house: House) -> None:
    """A fixed walk of updates over two rival leases on three hosts."""
    house.enrol("cmp-1", "cmp-2", "cmp-3")
    leases = [house.create(minutes=(10, 60), hosts=[(1, 2)]), house.create(minutes=(60, 90))]
    for step in range(40):
        lease_id = leases[step % 2]
        lease = house.lease(lease_id)
        shift = timedelta(minutes=(step * 7) % 23 - 9)
        change: dict[str, object] = {"end": lease.end + shift}
        if step % 3 == 0:
            change = {"reservations": {lease.reservations[0].id: {"max": 1 + step % 3, "min": 1}}}
        if step % 5 == 0:
            change = {"start": lease.start + shift / 2}
        try:
            house.update(lease_id, **change)
        except (NotEnoughHosts, InvalidInput, Conflict):
            assert house.lease(lease_id) == lease
        house.check_no_double_booking()
