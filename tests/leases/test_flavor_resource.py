# SPDX-License-Identifier: Apache-2.0
"""`flavor:instance`: what is read from a flavor, what cannot be promised, and its life."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from holdfast.leases.resources.instance import FlavorResource, resource_class, takes
from holdfast.model.errors import Conflict, InvalidInput, NotEnoughHosts, NotFound
from holdfast.model.host import Inventory
from holdfast.model.lease import NewLease, NewReservation, Reservation
from holdfast.nova.names import SLOTS_SPEC
from holdfast.ports.cloud import Flavor
from holdfast.ports.manager import Caller
from tests.leases.house import ADMIN, ANN, BOB, House

TYPE = "flavor:instance"
resource = FlavorResource()
LARGE = Flavor("f-1", "large", 2, 1024, 10)


def with_specs(**specs: str) -> Flavor:
    return replace(LARGE, extra_specs={key.replace("__", ":"): one for key, one in specs.items()})


# what may be asked for


def test_the_spec_of_the_command_line_client_is_understood() -> None:
    asked = {"flavor_id": "f-1", "amount": "2", "affinity": "None"}
    assert resource.validate(asked) == {"flavor_id": "f-1", "amount": 2, "affinity": None}
    told = {**asked, "affinity": "True", "resource_properties": "anything"}
    assert resource.validate(told) == {"flavor_id": "f-1", "amount": 2, "affinity": True}


@pytest.mark.parametrize("name", ["flavor_id", "amount"])
def test_a_missing_parameter_is_named(name: str) -> None:
    with pytest.raises(InvalidInput, match=f"^Missing parameter {name}"):
        resource.validate({"flavor_id": "f-1", "amount": 1, "affinity": "None", name: ""})


def test_a_numeric_flavor_id_may_come_as_a_number() -> None:
    assert resource.validate({"flavor_id": 42, "amount": 1})["flavor_id"] == "42"


@pytest.mark.parametrize("value", [1.5, True, [], "x" * 256])
def test_a_flavor_is_named_by_its_id(value: object) -> None:
    with pytest.raises(InvalidInput, match=r"^Malformed parameter flavor_id"):
        resource.validate({"flavor_id": value, "amount": 1})


def test_sizes_are_the_flavors_and_not_the_callers() -> None:
    with pytest.raises(InvalidInput, match=r"^vcpus: not a parameter of flavor:instance"):
        resource.validate({"flavor_id": "f-1", "amount": 1, "vcpus": 4})


# what a server of it takes


@pytest.mark.parametrize(
    ("flavor", "expected"),
    [
        (LARGE, {"VCPU": 2, "MEMORY_MB": 1024, "DISK_GB": 10}),
        (with_specs(hw__cpu_policy="shared"), {"VCPU": 2, "MEMORY_MB": 1024, "DISK_GB": 10}),
        (with_specs(hw__cpu_policy="dedicated"), {"PCPU": 2, "MEMORY_MB": 1024, "DISK_GB": 10}),
        (
            with_specs(hw__cpu_policy="dedicated", hw__emulator_threads_policy="isolate"),
            {"PCPU": 3, "MEMORY_MB": 1024, "DISK_GB": 10},
        ),
        (
            with_specs(resources__VCPU="0", resources__MEMORY_MB="0", resources__DISK_GB="0",
                       resources__CUSTOM_BAREMETAL="1"),
            {"CUSTOM_BAREMETAL": 1},
        ),
        (with_specs(resources__PCPU="2"), {"PCPU": 2, "MEMORY_MB": 1024, "DISK_GB": 10}),
        (
            with_specs(resources__CUSTOM_FPGA="3"),
            {"VCPU": 2, "MEMORY_MB": 1024, "DISK_GB": 10, "CUSTOM_FPGA": 3},
        ),
        (replace(LARGE, disk_gb=0), {"VCPU": 2, "MEMORY_MB": 1024}),
    ],
)  # fmt: skip
def test_the_resources_of_a_server_follow_the_rules_of_nova(
    flavor: Flavor, expected: dict[str, int]
) -> None:
    assert takes(flavor) == expected


# its life


@pytest.fixture
def home(house: House) -> House:
    """Two hosts of four cores; the second has a trait, cores to pin and a class of its own."""
    house.sim.add_host("cmp-1", vcpus=4)
    own = {"PCPU": Inventory(4), "CUSTOM_FPGA": Inventory(2)}
    house.sim.add_host("cmp-2", vcpus=4, inventories=own, traits=["HW_CPU_X86_AVX2"])
    for name in ("cmp-1", "cmp-2"):
        house.m.commands.enrol_host(ADMIN, name, {})
    return house


def lease(
    house: House, flavor: Flavor | str, amount: int = 1, caller: Caller = ANN, **more: Any
) -> str:
    """From now on; the flavor is made if it is not there."""
    if isinstance(flavor, Flavor):
        house.m.cloud.flavors.create(flavor)
        flavor = flavor.id
    spec = {"flavor_id": flavor, "amount": amount, "affinity": None, **more}
    wanted = NewLease(
        id=house.new_id(),
        name="flavor",
        start=None,
        end=house.at(60),
        reservations=(NewReservation(TYPE, spec),),
    )
    house.m.commands.create_lease(caller, wanted)
    house.run(seconds=2)
    return wanted.id


def reservation(house: House, lease_id: str) -> Reservation:
    (found,) = house.lease(lease_id).reservations
    return found


def test_a_reservation_by_flavor_gives_servers_like_it_and_ends(home: House) -> None:
    source = with_specs(
        trait__HW_CPU_X86_AVX2="required",
        hw__cpu_policy="dedicated",
        quota__cpu_shares="512",
        aggregate_instance_extra_specs__ssd="true",
        blazar__preemptible="true",
    )
    lease_id = lease(home, source, 2)
    mine = reservation(home, lease_id)
    assert home.status(lease_id) == "ACTIVE"
    assert home.held(lease_id) == [["cmp-2"]]
    (held,) = mine.allocations
    assert held.takes == {"PCPU": 4, "MEMORY_MB": 2048, "DISK_GB": 20}
    flavor = home.m.cloud.flavors.show(mine.id)
    assert (flavor.vcpus, flavor.memory_mb, flavor.disk_gb) == (2, 1024, 10)
    assert (flavor.public, flavor.projects) == (False, ("alpha",))
    assert flavor.extra_specs == {
        "trait:HW_CPU_X86_AVX2": "required",
        "hw:cpu_policy": "dedicated",
        "quota:cpu_shares": "512",
        SLOTS_SPEC: mine.id,
        f"resources:{resource_class(mine.id)}": "1",
    }
    assert json.loads(mine.spec["resource_properties"])["name"] == "large"
    assert (mine.spec["vcpus"], mine.made["flavor_id"]) == (2, mine.id)
    for n in range(2):
        assert home.sim.boot(f"s{n}", "alpha", None, 2, 1024, 10, mine.id).host == "cmp-2"
    with pytest.raises(Conflict, match="No valid host"):
        home.sim.boot("s3", "alpha", None, 2, 1024, 10, mine.id)
    home.run(minutes=62)
    assert home.status(lease_id) == "TERMINATED"
    assert home.servers() == []
    with pytest.raises(NotFound):
        home.m.cloud.flavors.show(mine.id)
    assert home.m.cloud.flavors.show("f-1") == source


def test_traits_and_resource_classes_limit_the_hosts(home: House) -> None:
    without = with_specs(trait__HW_CPU_X86_AVX2="forbidden")
    assert home.held(lease(home, without)) == [["cmp-1"]]
    fpga = replace(with_specs(resources__CUSTOM_FPGA="1"), id="f-2", name="fpga")
    assert home.held(lease(home, fpga, 2)) == [["cmp-2"]]
    with pytest.raises(NotEnoughHosts, match="has 1 CUSTOM_FPGA"):
        lease(home, "f-2")


@pytest.mark.parametrize(("affinity", "hosts"), [(True, 1), (False, 2), (None, 1)])
def test_all_three_affinities_work(home: House, affinity: bool | None, hosts: int) -> None:
    lease_id = lease(home, LARGE, 2, affinity=affinity)
    assert len(home.held(lease_id)[0]) == hosts
    groups = [group.policy for group in home.m.cloud.slots.groups()]
    assert groups == {True: ["affinity"], False: ["anti-affinity"], None: []}[affinity]


def test_slots_of_both_types_share_a_host(home: House) -> None:
    lease(home, LARGE, 1)
    spec = {"vcpus": 2, "memory_mb": 512, "disk_gb": 1, "amount": 1, "affinity": None}
    wanted = NewLease(
        home.new_id(), "x", None, home.at(9), None, (NewReservation("virtual:instance", spec),)
    )
    home.m.commands.create_lease(BOB, wanted)
    assert home.held(wanted.id) == [["cmp-1"]]


def test_only_projects_with_access_reserve_by_a_flavor(home: House) -> None:
    hidden = replace(LARGE, public=False, projects=("beta",))
    with pytest.raises(InvalidInput, match="there is no flavor f-1 that your project may use"):
        lease(home, hidden)
    assert lease(home, "f-1", caller=BOB)
    assert lease(home, "f-1", caller=ADMIN)
    with pytest.raises(InvalidInput, match="there is no flavor nope"):
        lease(home, "nope")


@pytest.mark.parametrize(
    ("specs", "why"),
    [
        ({"pci_passthrough__alias": "a:1"}, "PCI devices"),
        ({"resources__VGPU": "1"}, "virtual GPUs"),
        ({"accel__device_profile": "x"}, "accelerators"),
        ({"resources1__VCPU": "1"}, "groups of resources"),
        ({"trait_GPU__CUSTOM_A": "required"}, "groups of resources"),
        ({"hw__cpu_policy": "mixed"}, "mixes dedicated and shared CPUs"),
        ({"trait__CUSTOM_A": "perhaps"}, "neither required nor forbidden"),
        ({"resources__VCPU": "many"}, "no whole number"),
        (
            {"resources__VCPU": "0", "resources__MEMORY_MB": "0", "resources__DISK_GB": "0"},
            "take nothing of a host",
        ),
        ({"aggregate_instance_extra_specs__reservation": "r"}, "belongs to a reservation itself"),
    ],
)
def test_a_flavor_without_a_guarantee_is_refused_with_the_reason(
    home: House, specs: dict[str, str], why: str
) -> None:
    with pytest.raises(InvalidInput, match=why) as refused:
        lease(home, with_specs(**specs))
    assert "flavor large cannot be reserved" in refused.value.message


def test_later_changes_of_the_flavor_do_not_matter(home: House) -> None:
    lease_id = lease(home, LARGE, 1)
    home.m.cloud.flavors.delete("f-1")
    mine = reservation(home, lease_id)
    home.update(lease_id, reservations={mine.id: {"amount": 3, "flavor_id": mine.id}})
    home.run(seconds=5)
    assert sum(a.slots or 0 for a in reservation(home, lease_id).allocations) == 3
    for n in range(3):
        home.sim.boot(f"s{n}", "alpha", None, 2, 1024, 10, mine.id)
    home.update(lease_id, end=home.at(120))
    home.run(minutes=61)
    assert home.status(lease_id) == "ACTIVE"


# what may change


Change = Callable[..., dict[str, Any]]


@pytest.fixture
def changed(house: House) -> Change:
    """What an update makes of a reservation by LARGE in some status."""
    house.m.cloud.flavors.create(LARGE)
    asked = resource.validate({"flavor_id": "f-1", "amount": 2})
    spec = resource.resolve(asked, house.m.cloud, ANN)

    def change(status: str, **wanted: object) -> dict[str, Any]:
        return resource.change(Reservation("r", TYPE, status, spec=spec), wanted)

    return change


def test_amount_and_affinity_change_before_the_start(changed: Change) -> None:
    new = changed("pending", amount="1", affinity="False", flavor_id="f-1", resource_properties="")
    assert (new["amount"], new["affinity"], new["source_flavor_id"]) == (1, False, "f-1")
    assert new["takes"] == takes(LARGE)
    assert "flavor_id" not in new


def test_an_active_reservation_only_grows_and_keeps_the_flavor(changed: Change) -> None:
    assert changed("active", amount=3)["amount"] == 3
    with pytest.raises(Conflict, match=r"^amount: an active reservation keeps its 2 slots"):
        changed("active", amount=1)
    with pytest.raises(Conflict, match=r"^affinity: cannot change"):
        changed("active", affinity=True)
    for status in ("pending", "active"):
        with pytest.raises(Conflict, match=r"^flavor_id: a reservation keeps the flavor"):
            changed(status, flavor_id="f-2")
    with pytest.raises(InvalidInput, match=r"^takes: not a parameter"):
        changed("pending", takes={})


def test_hosts_with_such_leases_can_still_be_described(home: House) -> None:
    lease(home, LARGE)
    for host in home.m.store.ledger.enrolled():
        home.m.commands.describe_host(ADMIN, host.id, {"room": "4"})
        assert home.m.store.ledger.host(str(host.id)).capabilities["room"] == "4"
