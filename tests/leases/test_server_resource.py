# SPDX-License-Identifier: Apache-2.0
"""`virtual:server`: shelved until the start, there for the lease, and what becomes of it after."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast.leases.resources.base import Wish
from holdfast.leases.resources.server import ServerResource, home
from holdfast.model.capacity import CapacitySnapshot, Hold, Line
from holdfast.model.errors import Conflict, DriverError, InvalidInput, NotEnoughHosts, ServerLeased
from holdfast.model.host import Host, Inventory
from holdfast.model.lease import NewLease, NewReservation, Window
from holdfast.nova import names
from holdfast.nova.names import OWNER, PREEMPTIBLE_SPEC, SERVER
from holdfast.ports.cloud import Flavor
from holdfast.ports.manager import AvailabilityQuery, Caller
from tests.leases.house import ADMIN, ANN, BOB, House, Killed, Points

validate = ServerResource().validate
TEN = datetime(2030, 1, 1, 10, tzinfo=UTC)
SIZE = {"vcpus": 4, "memory_mb": 4096, "disk_gb": 40}


def boot(house: House, host: str | None = "old", project: str = "alpha", **more: Any) -> str:
    return house.sim.boot("web", project, host, *SIZE.values(), **more).id


@pytest.fixture
def cloud(house: House) -> House:
    """An ordinary host `old` and an enrolled one, `cmp-1`; things take two seconds."""
    house.add("old")
    house.enrol("cmp-1")
    house.sim.change(action_s=2, delete_s=2)
    return house


def lease(
    house: House,
    server_id: str,
    *,
    minutes: tuple[float | None, float] = (5, 65),
    caller: Caller = ANN,
    **spec: Any,
) -> str:
    wanted = NewLease(
        id=house.new_id(),
        name="one server",
        start=None if minutes[0] is None else house.at(minutes[0]),
        end=house.at(minutes[1]),
        reservations=(NewReservation("virtual:server", {"server_id": server_id, **spec}),),
    )
    house.m.commands.create_lease(caller, wanted)
    return wanted.id


def state(house: House, server_id: str) -> tuple[str, str | None]:
    server = house.m.cloud.servers.show(server_id)
    assert server.task_state is None, server
    return server.status, server.host


def is_there(house: House, server_id: str) -> bool:
    return server_id in {server["id"] for server in house.sim.world()["servers"]}


def room(house: House, lease_id: str) -> list[str]:
    return house.held(lease_id)[0]


def flags(house: House, lease_id: str) -> tuple[bool, bool]:
    found = house.lease(lease_id)
    return found.degraded, found.reservations[0].missing_resources


# what may be asked for


def test_a_whole_request_comes_back_in_order() -> None:
    spec = {"server_id": "4f2c", "on_end": "snapshot,delete", "before_end": "snapshot"}
    assert validate(spec) == spec
    assert validate({**spec, "on_end": ["snapshot", " delete "]}) == spec
    assert validate({"server_id": "4f2c"}) == {"server_id": "4f2c", "on_end": "", "before_end": ""}
    assert validate({"server_id": "4f2c", "on_end": None})["on_end"] == ""


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ({"server_id": None}, "Missing parameter server_id"),
        ({"server_id": ""}, "Missing parameter server_id"),
        ({"server_id": 7}, "Malformed parameter server_id"),
        ({"server_id": "../flavors"}, "Malformed parameter server_id"),
        ({"server_id": "a" * 37}, "Malformed parameter server_id"),
        ({"on_end": "explode"}, "on_end: 'explode' is none of snapshot, stop"),
        ({"on_end": "stop,"}, "on_end: '' is none of"),
        ({"on_end": "delete,stop"}, "nothing can follow delete"),
        ({"on_end": "stop,stop"}, "an action is named twice"),
        ({"on_end": 7}, "Malformed parameter on_end"),
        ({"on_end": [7]}, "Malformed parameter on_end"),
        ({"on_end": {"stop": 1}}, "Malformed parameter on_end"),
        ({"before_end": "stop"}, "Malformed parameter before_end"),
        ({"vcpus": 4}, "vcpus: not a parameter of virtual:server"),
        ({"host": "cmp-1"}, "host: not a parameter"),
    ],
)
def test_a_senseless_parameter_is_refused_by_field(bad: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        validate({"server_id": "4f2c", **bad})


def test_the_answer_for_another_projects_server_equals_that_for_a_missing_server(
    cloud: House,
) -> None:
    server = boot(cloud, project="beta")
    for nobodys in (server, "4ab11c5e-7bb4-4f0e-8b52-000000000000"):
        with pytest.raises(InvalidInput, match=f"your project has no server {nobodys}"):
            lease(cloud, nobodys)
    lease(cloud, server, caller=BOB)
    lease(cloud, boot(cloud, project="beta"), caller=ADMIN)


# where room is held


def host(number: int, vcpus: int = 8, **more: Any) -> Host:
    sizes = {"VCPU": vcpus, "MEMORY_MB": 65536, "DISK_GB": 1000}
    inventories = {name: Inventory(total) for name, total in sizes.items()} | more
    name = f"cmp-{number}"
    return Host(number, f"u{number}", name, name, name, inventories=inventories)


def wish(start: int, end: int, **spec: Any) -> Wish:
    known = {"server_id": "s", "host": "cmp-2", "was_shelved": False, **SIZE, **spec}
    at = [TEN.replace(hour=hour) for hour in (start, end)]
    return Wish(known, Window(*at), "alpha")


def snapshot(*hosts: Host, **holds: tuple[int, int, int | None]) -> CapacitySnapshot:
    """Hosts, and of some of them who holds so many vCPUs (None: all) from when to when."""
    lines = {}
    for name, (start, end, vcpus) in holds.items():
        at = [TEN.replace(hour=hour).timestamp() for hour in (start, end)]
        part = None if vcpus is None else {"VCPU": vcpus}
        lines[int(name.removeprefix("h"))] = Line([Hold(at[0], at[1], part)])
    return CapacitySnapshot({one.id: one for one in hosts}, lines)


def chosen(wish: Wish, snapshot: CapacitySnapshot) -> int | None:
    found = home(wish, snapshot, now=TEN)
    return found.id if found else None


def test_a_shelved_server_gets_room_on_a_host_free_for_the_whole_window() -> None:
    assert chosen(wish(12, 14), snapshot(host(1), host(2))) == 1
    assert chosen(wish(12, 14), snapshot(host(1), host(2), h1=(13, 15, None))) == 2
    assert chosen(wish(12, 14), snapshot(host(1), host(2), h1=(13, 15, 5))) == 2
    assert chosen(wish(12, 14), snapshot(host(1, vcpus=3), host(2))) == 2
    assert chosen(wish(12, 14), snapshot(host(1, VCPU=Inventory(8, most=2)), host(2))) == 2
    assert chosen(wish(12, 14), snapshot(host(1, VCPU=Inventory(2, ratio=2.0)))) == 1
    assert chosen(wish(12, 14), snapshot(host(1, VCPU=Inventory(4, reserved=1)))) is None
    assert chosen(wish(12, 14), snapshot()) is None


def test_hosts_of_which_others_have_a_part_are_taken_first() -> None:
    assert chosen(wish(12, 14), snapshot(host(1), host(2), h2=(13, 15, 4))) == 2
    assert chosen(wish(12, 14), snapshot(host(1), host(2), h2=(14, 15, 4))) == 1


def test_a_running_server_holds_room_on_the_present_host_or_nowhere() -> None:
    assert chosen(wish(10, 14), snapshot(host(1), host(2))) == 2
    assert chosen(wish(10, 14), snapshot(host(1), host(2), h2=(13, 15, None))) is None
    assert chosen(wish(10, 14, host="elsewhere"), snapshot(host(1), host(2))) is None
    assert chosen(wish(10, 14, host=None), snapshot(host(1), host(2))) is None
    assert chosen(wish(10, 14, host=None, was_shelved=True), snapshot(host(1), host(2))) == 1


def test_a_remote_disk_takes_no_local_disk() -> None:
    small = host(1, DISK_GB=Inventory(0))
    assert chosen(wish(12, 14), snapshot(small)) is None
    assert chosen(wish(12, 14, disk_gb=0), snapshot(small)) == 1


# the life of a lease


def test_a_server_is_shelved_until_its_start_and_runs_where_room_is_held(cloud: House) -> None:
    server = boot(cloud)
    made = lease(cloud, server)
    assert room(cloud, made) == ["cmp-1"]
    cloud.run(minutes=1)
    assert state(cloud, server) == ("SHELVED_OFFLOADED", None)
    assert cloud.status(made) == "PENDING"
    cloud.run(minutes=5)
    assert cloud.status(made) == "ACTIVE"
    assert state(cloud, server) == ("ACTIVE", "cmp-1")
    assert flags(cloud, made) == (False, False)
    (reservation,) = cloud.lease(made).reservations
    pool = cloud.m.cloud.pools.find(reservation.id)
    assert pool is not None
    metadata = {OWNER: "alpha", SERVER: server, names.SIZE: "4,4096,40"}
    assert (pool.hosts, pool.metadata) == (("cmp-1",), metadata)
    assert cloud.pools()["freepool"] == {"cmp-1"}  # the host is not the server's alone


def test_the_allocation_holds_the_resources_of_the_server(cloud: House) -> None:
    server = boot(cloud)
    (reservation,) = cloud.lease(lease(cloud, server)).reservations
    thing, place = reservation.allocations
    assert (thing.thing, thing.host_id) == (f"server:{server}", None)
    assert (place.slots, place.thing) == (1, None)
    assert place.takes == {"VCPU": 4, "MEMORY_MB": 4096, "DISK_GB": 40}
    with pytest.raises(NotEnoughHosts):
        cloud.create(minutes=(10, 30))  # not as a whole meanwhile


def test_the_room_of_a_host_is_sold_once(cloud: House) -> None:
    """32 vCPUs: eight servers of four, the ninth has no room held."""
    made = [lease(cloud, boot(cloud, "old")) for _ in range(8)]
    assert [room(cloud, one) for one in made] == [["cmp-1"]] * 8
    cloud.add("older")
    assert room(cloud, lease(cloud, boot(cloud, "older"))) == []


def test_at_the_end_it_stops_and_leaves_the_enrolled_host(cloud: House) -> None:
    """What stayed there would be deleted with the next lease of the host."""
    server = boot(cloud)
    made = lease(cloud, server)
    cloud.run(minutes=70)
    cloud.tell()
    cloud.run(minutes=2)
    assert cloud.status(made) == "TERMINATED"
    assert cloud.effects("servers.stop") == [server]
    assert state(cloud, server) == ("SHELVED_OFFLOADED", None)
    assert cloud.pools() == {"freepool": {"cmp-1"}}
    assert cloud.lease(made).reservations[0].id not in cloud.all_pools()  # told, and gone


@pytest.mark.parametrize(
    ("on_end", "status"),
    [
        ("", "SHUTOFF"),
        ("stop", "SHUTOFF"),
        ("suspend", "SUSPENDED"),
        ("shelve", "SHELVED_OFFLOADED"),
        ("stop,shelve", "SHELVED_OFFLOADED"),
    ],
)
def test_on_an_ordinary_host_the_server_ends_as_requested(
    cloud: House, on_end: str, status: str
) -> None:
    server = boot(cloud)
    made = lease(cloud, server, minutes=(None, 60), on_end=on_end)
    cloud.run(minutes=1)
    assert cloud.status(made) == "ACTIVE"
    assert state(cloud, server) == ("ACTIVE", "old")  # it was left alone
    assert cloud.effects("servers.shelve") == []
    assert room(cloud, made) == []
    cloud.run(minutes=60)
    assert cloud.status(made) == "TERMINATED"
    assert state(cloud, server) == (status, None if "SHELVED" in status else "old")


def test_the_default_of_on_end_is_read_when_it_ends(cloud: House) -> None:
    server = boot(cloud)
    lease(cloud, server, minutes=(None, 60))
    cloud.run(minutes=30)
    cloud.settings.server_on_end = ["snapshot", "delete"]
    cloud.run(minutes=31)
    assert not is_there(cloud, server)
    assert len(cloud.images()) == 1


def test_a_snapshot_is_whole_before_the_server_is_deleted(cloud: House) -> None:
    server = boot(cloud)
    cloud.sim.change(action_s=30)
    made = lease(cloud, server, minutes=(None, 60), on_end="snapshot,delete")
    cloud.run(minutes=60, seconds=20)
    assert len(cloud.images()) == 1
    assert cloud.effects("servers.delete") == []
    cloud.run(seconds=40)
    assert cloud.effects("servers.delete") == [server]
    assert not is_there(cloud, server)
    assert cloud.status(made) == "TERMINATED"
    assert cloud.images() == [f"reserved_web_{cloud.lease(made).reservations[0].id}"]


def test_every_lease_of_a_server_makes_a_snapshot_of_its_own(cloud: House) -> None:
    server = boot(cloud)
    lease(cloud, server, minutes=(None, 60), on_end="snapshot")
    cloud.run(minutes=61)
    lease(cloud, server, minutes=(None, 60), on_end="snapshot", before_end="snapshot")
    cloud.run(minutes=61)
    assert len(set(cloud.images())) == len(cloud.images()) == 3
    assert state(cloud, server) == ("ACTIVE", "old")


def test_a_server_deleted_by_the_owner_is_missing_and_the_lease_goes_on(cloud: House) -> None:
    early, running = boot(cloud), boot(cloud)
    one, other = lease(cloud, early), lease(cloud, running)
    cloud.run(minutes=1)
    cloud.m.cloud.servers.delete(early)
    cloud.run(minutes=6)
    assert cloud.status(one) == "ACTIVE"
    assert flags(cloud, one) == (True, True)
    cloud.m.cloud.servers.delete(running)
    cloud.run(minutes=65)
    assert [cloud.status(each) for each in (one, other)] == ["TERMINATED"] * 2
    assert cloud.pools() == {"freepool": {"cmp-1"}}


def test_a_server_that_finds_no_host_is_missing_after_a_while(house: House) -> None:
    house.add("old")
    server = boot(house)
    made = lease(house, server)
    house.run(minutes=1)
    house.m.cloud.services.disable("old", "full")
    house.run(minutes=5)
    assert house.status(made) == "STARTING"
    house.run(minutes=2)
    assert house.status(made) == "ACTIVE"
    assert flags(house, made) == (True, True)
    assert state(house, server) == ("SHELVED_OFFLOADED", None)
    house.run(minutes=60)
    assert house.status(made) == "TERMINATED"


def test_where_room_was_held_in_vain_any_host_will_do(cloud: House) -> None:
    server = boot(cloud)
    made = lease(cloud, server)
    cloud.run(minutes=1)
    cloud.m.cloud.services.disable("cmp-1", "broken")
    cloud.run(minutes=5, seconds=50)
    assert cloud.status(made) == "ACTIVE"
    assert state(cloud, server) == ("ACTIVE", "old")
    assert flags(cloud, made) == (False, False)
    cloud.run(minutes=65)
    assert state(cloud, server) == ("SHUTOFF", "old")


def test_without_a_fitting_enrolled_host_the_lease_is_best_effort(house: House) -> None:
    house.add("old")
    server = boot(house)
    made = lease(house, server, on_end="delete")
    assert room(house, made) == []
    house.run(minutes=1)
    assert state(house, server) == ("SHELVED_OFFLOADED", None)
    house.run(minutes=5)
    assert state(house, server) == ("ACTIVE", "old")
    assert flags(house, made) == (False, False)
    assert house.pools() == {}
    house.run(minutes=60)
    assert not is_there(house, server)


def test_a_server_under_construction_is_shelved_once_active(cloud: House) -> None:
    server = boot(cloud)
    cloud.m.cloud.servers.stop(server)  # something is under way with it
    lease(cloud, server)
    assert cloud.m.cloud.servers.show(server).task_state == "powering-off"
    cloud.run(minutes=1)
    assert state(cloud, server) == ("SHELVED_OFFLOADED", None)
    cloud.run(minutes=5)
    assert state(cloud, server) == ("ACTIVE", "cmp-1")


def test_a_lease_that_never_started_gives_the_server_back(cloud: House) -> None:
    server = boot(cloud)
    made = lease(cloud, server)
    cloud.run(minutes=1)
    assert state(cloud, server)[0] == "SHELVED_OFFLOADED"
    cloud.delete(made)
    cloud.run(minutes=1)
    assert state(cloud, server) == ("ACTIVE", "old")


def test_a_server_shelved_by_the_owner_stays_shelved_when_the_lease_is_deleted(
    cloud: House,
) -> None:
    server = boot(cloud)
    cloud.m.cloud.servers.shelve(server)
    cloud.run(seconds=5)
    made = lease(cloud, server)
    cloud.run(minutes=1)
    cloud.delete(made)
    cloud.run(minutes=1)
    assert state(cloud, server) == ("SHELVED_OFFLOADED", None)


def test_a_lease_deleted_in_the_midst_of_its_start_leaves_no_server_behind(cloud: House) -> None:
    server = boot(cloud)
    made = lease(cloud, server)
    cloud.sim.change(action_s=20)
    cloud.run(minutes=5, seconds=10)
    assert cloud.m.cloud.servers.show(server).task_state == "unshelving"
    cloud.delete(made)
    cloud.run(minutes=3)
    assert state(cloud, server) == ("ACTIVE", "old")
    assert cloud.pools() == {"freepool": {"cmp-1"}}


def test_deleting_a_lease_that_is_over_touches_nothing(cloud: House) -> None:
    server = boot(cloud)
    made = lease(cloud, server, minutes=(None, 60))
    cloud.run(minutes=61)
    cloud.m.cloud.servers.start(server)
    cloud.run(minutes=1)
    cloud.delete(made)
    cloud.run(minutes=1)
    assert state(cloud, server) == ("ACTIVE", "old")


def test_a_lease_deleted_before_the_start_leaves_the_server_to_the_next_lease(cloud: House) -> None:
    """Both were made while it ran; the second still wants it shelved until it starts."""
    server = boot(cloud)
    first = lease(cloud, server, minutes=(30, 60))
    second = lease(cloud, server, minutes=(90, 120))
    cloud.run(minutes=1)
    cloud.delete(first)
    cloud.run(minutes=1)
    assert state(cloud, server) == ("SHELVED_OFFLOADED", None)
    cloud.delete(second)
    cloud.run(minutes=1)
    assert state(cloud, server) == ("ACTIVE", "old")


def test_a_server_unshelved_onto_a_host_of_another_lease_leaves_the_host(cloud: House) -> None:
    """It was there by a lease that is over: what stayed would be deleted with the next one."""
    whole = cloud.create(minutes=(None, 60))
    cloud.run(minutes=1)
    (reservation,) = cloud.lease(whole).reservations
    server = boot(cloud, "cmp-1", metadata={"reservation": reservation.id})
    made = lease(cloud, server, minutes=(89, 120))
    assert room(cloud, made) == ["cmp-1"]
    cloud.run(minutes=90)
    assert state(cloud, server) == ("ACTIVE", "cmp-1")
    cloud.run(minutes=35)
    assert cloud.status(made) == "TERMINATED"
    assert state(cloud, server) == ("SHELVED_OFFLOADED", None)


# one lease at a time


def test_a_server_has_one_lease_at_a_time(cloud: House) -> None:
    server = boot(cloud)
    first = lease(cloud, server, minutes=(5, 65))
    for minutes in ((None, 10), (10, 20), (60, 90)):
        with pytest.raises(ServerLeased, match=f"server {server} is leased already"):
            lease(cloud, server, minutes=minutes)
    lease(cloud, server, minutes=(65, 90))
    with pytest.raises(ServerLeased):
        cloud.update(first, end=cloud.at(70))
    cloud.update(first, end=cloud.at(60))


def test_a_refusal_and_availability_say_when_the_server_is_free(cloud: House) -> None:
    server = boot(cloud)
    lease(cloud, server, minutes=(5, 65))
    with pytest.raises(ServerLeased) as refused:
        lease(cloud, server, minutes=(None, 30))
    assert refused.value.details["earliest"]["start_date"].startswith("2030-01-01T11:05")
    wanted = NewReservation("virtual:server", {"server_id": server})
    query = AvailabilityQuery(wanted, length_s=240, limit=5)
    found = cloud.m.commands.availability(ANN, query)
    assert [window.window.start for window in found.windows] == [cloud.at(0), cloud.at(65)]


def test_the_next_lease_leaves_the_server_to_the_one_before(cloud: House) -> None:
    server = boot(cloud)
    first = lease(cloud, server, minutes=(None, 60), on_end="snapshot,stop")
    second = lease(cloud, server, minutes=(60, 120))
    cloud.run(minutes=30)
    assert state(cloud, server) == ("ACTIVE", "old")  # the first has it still
    cloud.run(minutes=31)
    assert cloud.status(first) == "TERMINATED"
    assert cloud.status(second) == "ACTIVE"
    assert len(cloud.images()) == 1
    assert flags(cloud, second) == (False, False)


def test_between_two_leases_the_server_is_shelved(cloud: House) -> None:
    server = boot(cloud)
    lease(cloud, server, minutes=(None, 60))
    second = lease(cloud, server, minutes=(90, 120))
    cloud.run(minutes=62)
    assert state(cloud, server) == ("SHELVED_OFFLOADED", None)
    cloud.run(minutes=30)
    assert state(cloud, server) == ("ACTIVE", "cmp-1")
    assert cloud.status(second) == "ACTIVE"


def test_a_server_waits_until_the_whole_host_was_given_back(cloud: House) -> None:
    whole = cloud.create(minutes=(None, 60))
    cloud.run(minutes=1)
    (reservation,) = cloud.lease(whole).reservations
    guest = cloud.sim.boot("g", "alpha", "cmp-1", 1, 1, 1, metadata={"reservation": reservation.id})
    server = boot(cloud)
    made = lease(cloud, server, minutes=(59, 120))
    assert room(cloud, made) == ["cmp-1"]
    cloud.sim.change(delete_s=20)
    cloud.run(minutes=59, seconds=5)
    assert cloud.status(whole) == "TERMINATING"
    assert cloud.status(made) == "STARTING"
    cloud.run(minutes=1)
    assert not is_there(cloud, guest.id)
    assert state(cloud, server) == ("ACTIVE", "cmp-1")


# updates


def test_only_the_actions_at_the_end_can_change(cloud: House) -> None:
    server = boot(cloud)
    made = lease(cloud, server, minutes=(None, 60), on_end="stop")
    (reservation,) = cloud.lease(made).reservations

    def change(**spec: Any) -> None:
        cloud.update(made, reservations={reservation.id: spec})

    with pytest.raises(Conflict, match="a reservation keeps its server"):
        change(server_id=boot(cloud))
    with pytest.raises(InvalidInput, match="vcpus: not a parameter"):
        change(vcpus=1)
    change(on_end="delete", server_id=server)
    assert cloud.lease(made).reservations[0].spec["vcpus"] == 4
    cloud.run(minutes=61)
    assert not is_there(cloud, server)


def test_a_running_lease_is_prolonged_where_its_server_is_or_not_at_all(cloud: House) -> None:
    server = boot(cloud)
    made = lease(cloud, server)
    cloud.run(minutes=10)
    cloud.update(made, end=cloud.at(80))
    assert room(cloud, made) == ["cmp-1"]
    cloud.create(minutes=(90, 120))
    with pytest.raises(NotEnoughHosts, match="the host of its server is held by others"):
        cloud.update(made, end=cloud.at(100))
    assert cloud.lease(made).end == cloud.at(80)


def test_a_lease_that_waits_may_move_to_another_time_and_another_host(cloud: House) -> None:
    server = boot(cloud)
    made = lease(cloud, server)
    cloud.create(minutes=(70, 120))
    cloud.enrol("cmp-2")
    cloud.update(made, start=cloud.at(60), end=cloud.at(110))
    assert room(cloud, made) == ["cmp-2"]
    cloud.run(minutes=61)
    assert state(cloud, server) == ("ACTIVE", "cmp-2")


def test_a_lease_that_is_begun_at_once_unshelves_at_once(cloud: House) -> None:
    server = boot(cloud)
    made = lease(cloud, server)
    cloud.run(minutes=1)
    cloud.update(made, start_now=True)
    cloud.run(seconds=10)
    assert cloud.status(made) == "ACTIVE"
    assert state(cloud, server) == ("ACTIVE", "cmp-1")


def test_a_snapshot_before_the_end_is_taken_again_when_the_end_moves(cloud: House) -> None:
    server = boot(cloud)
    made = lease(cloud, server, minutes=(None, 120), before_end="snapshot")
    cloud.run(minutes=61)
    assert len(cloud.images()) == 1
    cloud.update(made, end=cloud.at(180))
    cloud.run(minutes=181)
    assert len(set(cloud.images())) == 2
    assert state(cloud, server) == ("SHUTOFF", "old")


def test_preemptible_servers_make_way_for_a_leased_one(cloud: House) -> None:
    cloud.settings.preemptibles = True
    spot = Flavor("spot", "spot", 32, 512, 1, extra_specs={PREEMPTIBLE_SPEC: "true"})
    cloud.m.cloud.flavors.create(spot)
    guest = cloud.sim.boot("spot", "beta", "cmp-1", 32, 512, 1, "spot").id
    server = boot(cloud)
    lease(cloud, server)
    cloud.run(minutes=6)
    assert state(cloud, server) == ("ACTIVE", "cmp-1")
    assert not is_there(cloud, guest)


# whatever happens in between


def story(house: House, points: Points) -> tuple[str, str]:
    """A lease from just after its booking to its end, under a manager that may die."""
    server = boot(house)
    house.m.cloud.servers.stop(server)  # so that it cannot be shelved at once
    points.armed = False
    house.manager(points)
    made = lease(house, server, minutes=(2, 4), on_end="snapshot,stop")
    points.armed = True
    try:
        house.run(minutes=6)
    except Killed:
        house.manager()
    points.armed = False
    house.run(minutes=6)
    return server, made


@pytest.mark.parametrize("how", ["kill", "lose"])
def test_a_manager_that_dies_over_the_cloud_changes_nothing_about_the_outcome(
    cloud: House, how: str
) -> None:
    whole = Points(how=how)
    story(cloud, whole)
    calls = [at for at, what in enumerate(whole.passed, 1) if "after servers" in what]
    assert len(calls) == 5  # shelve, unshelve, snapshot, stop, shelve
    for at in calls:
        points = Points(at, how)
        server, made = story(cloud, points)
        assert len(points.passed) >= at
        assert cloud.status(made) == "TERMINATED", points.where
        assert state(cloud, server) == ("SHELVED_OFFLOADED", None), points.where
        assert flags(cloud, made) == (False, False), points.where
        own = f"reserved_web_{cloud.lease(made).reservations[0].id}"
        assert cloud.images().count(own) == 1, points.where
        assert cloud.pools() == {"freepool": {"cmp-1"}}, points.where


def test_the_same_command_again_is_answered_also_while_the_cloud_is_away(cloud: House) -> None:
    """Its first answer was lost."""
    spec = {"server_id": boot(cloud, "cmp-1")}
    wanted = NewLease(
        cloud.new_id(), "one server", cloud.at(5), cloud.at(65), None,
        (NewReservation("virtual:server", spec),),
    )  # fmt: skip
    cloud.m.commands.create_lease(ANN, wanted)
    cloud.sim.change(down=True)
    cloud.m.commands.create_lease(ANN, wanted)
    with pytest.raises(DriverError):
        cloud.m.commands.create_lease(ANN, replace(wanted, id=cloud.new_id()))
