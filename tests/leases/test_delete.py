# SPDX-License-Identifier: Apache-2.0
"""A lease can be deleted in every state, and nothing of it stays."""

import functools
from collections.abc import Callable
from itertools import count

import pytest

from holdfast.model.errors import Conflict, DriverError, NotFound
from holdfast.model.lease import NewLease, NewReservation
from tests.leases.house import ANN, CLAIM_S, House, Killed, Points
from tests.leases.stories import KINDS


def check_gone(house: House, lease_id: str) -> None:
    with pytest.raises(NotFound):
        house.lease(lease_id)
    assert house.pools() == {"freepool": {"cmp-1"}}
    house.check_pools()
    house.run(minutes=300)
    assert house.pools() == {"freepool": {"cmp-1"}}
    house.create(minutes=(1, 100))  # the host is free for all that time


def test_a_pending_lease_is_deleted_at_once(house: House) -> None:
    house.enrol("cmp-1")
    lease_id = house.create()
    house.delete(lease_id)
    check_gone(house, lease_id)


def test_a_prepared_lease_takes_its_pool_along(house: House) -> None:
    house.enrol("cmp-1")
    lease_id = house.create(minutes=(5, 100))
    house.run(minutes=4.5)
    assert len(house.pools()) == 2
    house.delete(lease_id)
    check_gone(house, lease_id)


def test_a_lease_deleted_during_a_cloud_outage_goes_when_the_cloud_is_back(
    house: House,
) -> None:
    house.enrol("cmp-1")
    lease_id = house.create(minutes=(5, 100))
    house.sim.change(down=True)
    house.run(minutes=10)
    assert house.status(lease_id) == "STARTING"
    house.delete(lease_id)  # answers, though it cannot be done yet
    assert house.status(lease_id) == "DELETING"
    house.run(minutes=20)
    assert house.status(lease_id) == "DELETING"
    house.sim.change(down=False)
    house.run(minutes=1)
    check_gone(house, lease_id)


def test_an_active_lease_goes_with_its_servers(house: House) -> None:
    house.enrol("cmp-1")
    lease_id = house.create(minutes=(None, 100))
    house.boot("web", "cmp-1")
    house.sim.change(delete_s=30)
    house.delete(lease_id)
    assert house.status(lease_id) == "DELETING"
    house.run(minutes=1)
    assert house.servers() == []
    check_gone(house, lease_id)


def test_a_lease_that_is_ending_can_be_deleted(house: House) -> None:
    house.enrol("cmp-1")
    lease_id = house.create(minutes=(None, 10))
    house.boot("web", "cmp-1")
    house.sim.change(delete_s=30)
    house.run(minutes=10, seconds=5)
    assert house.status(lease_id) == "TERMINATING"
    house.delete(lease_id)
    house.run(minutes=1)
    assert len(house.effects("servers.delete")) == 1
    check_gone(house, lease_id)


def test_a_terminated_lease_can_be_deleted(house: House) -> None:
    house.enrol("cmp-1")
    lease_id = house.create(minutes=(None, 10))
    house.run(minutes=11)
    assert house.status(lease_id) == "TERMINATED"
    house.delete(lease_id)
    check_gone(house, lease_id)


def test_deleting_twice_is_deleting_once(house: House) -> None:
    house.enrol("cmp-1")
    lease_id = house.create(minutes=(None, 10))
    house.sim.change(down=True)
    house.delete(lease_id)
    house.delete(lease_id)
    house.sim.change(down=False)
    house.run(minutes=1)
    check_gone(house, lease_id)
    with pytest.raises(NotFound):
        house.delete(lease_id)


def test_a_refused_delete_is_retried_until_the_cloud_accepts(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.enrol("cmp-1")
    lease_id = house.create(minutes=(None, 100))
    refuse = DriverError("test", "no", retryable=False)
    with monkeypatch.context() as broken:
        broken.setattr(house.m.cloud.pools, "remove_host", _raising(refuse))
        house.delete(lease_id)
        assert house.status(lease_id) == "DELETING"
    house.run(minutes=1)
    check_gone(house, lease_id)


def _raising(error: Exception):  # type: ignore[no-untyped-def]
    def call(*_args: object) -> None:
        raise error

    return call


def test_a_delete_waits_for_the_calls_of_a_start_that_may_still_be_on_their_way(
    house: House,
) -> None:
    """A manager hangs in the middle of a start. What it sent may still arrive."""
    house.enrol("cmp-1")
    lease_id = house.create(minutes=(5, 100))
    house.run(minutes=4.5)
    hung = house.manager(Points(at=4))
    with pytest.raises(Killed):
        hung.run(house.at(1))
    house.manager()
    assert house.status(lease_id) == "STARTING"
    house.delete(lease_id)
    house.run(seconds=CLAIM_S - 5)
    assert house.status(lease_id) == "DELETING"
    house.run(seconds=10)
    check_gone(house, lease_id)


class Meanwhile(Points):
    """At one of a manager's points something else happens, and the manager goes on."""

    act: Callable[[], None]

    def _reach(self, what: str) -> None:
        self.passed.append(what)
        if len(self.passed) == self.at:
            self.act()


@pytest.mark.parametrize("kind", ["host", "instance"])
def test_a_delete_at_any_moment_of_a_start_is_complete_within_five_seconds(
    house: House, kind: str
) -> None:
    """The manager at work is alive: it notices that its work was cancelled, and lets go."""
    KINDS[kind].ground(house)
    for at in count(1):
        client, points, start = house.m, Meanwhile(at=at, how="lose"), house.at(5)
        asked = (NewReservation(KINDS[kind].type, KINDS[kind].spec(house)),)
        wanted = NewLease(house.new_id(), "lab", start, house.at(100), None, asked)
        client.commands.create_lease(ANN, wanted)
        points.act = functools.partial(client.commands.delete_lease, ANN, wanted.id)
        house.manager(points).run(start)
        if len(points.passed) < at:
            break
        house.run(seconds=5)
        with pytest.raises(NotFound):
            house.lease(wanted.id)
        assert house.pools().keys() == {"freepool"}, points.where
    assert house.status(wanted.id) == "ACTIVE"
    assert at > 9
    house.check_pools()


def test_a_delete_after_an_update_still_waits_for_the_call_on_its_way(house: House) -> None:
    """The update took the claim away; it could not take the call back."""
    house.enrol("cmp-1")
    house.run(minutes=1)  # the pools have been told of it
    lease_id = house.create(minutes=(5, 100))
    hung = house.manager(Points(at=4))
    with pytest.raises(Killed, match=r"pools\.create"):
        hung.run(house.at(4.5))  # in the middle of the preparation
    house.manager()
    house.update(lease_id, start=house.at(60))
    house.delete(lease_id)
    assert house.status(lease_id) == "DELETING"
    house.run(seconds=CLAIM_S + 1)
    check_gone(house, lease_id)


def test_the_hosts_of_a_deleted_lease_are_free_only_when_given_back(house: House) -> None:
    house.enrol("cmp-1")
    lease_id = house.create(minutes=(None, 100))
    house.sim.change(down=True)
    house.delete(lease_id)
    with pytest.raises(Conflict):
        house.create(minutes=(1, 50))
