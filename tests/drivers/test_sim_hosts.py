# SPDX-License-Identifier: Apache-2.0
"""What a simulated host has, what may be promised of it, and who fits."""

import json

import pytest

from holdfast.drivers.sim.cloud import SimCloud
from holdfast.drivers.sim.simulator import Simulator
from holdfast.model.errors import Conflict, InvalidInput
from holdfast.model.host import Inventory
from holdfast.ports.cloud import Flavor


def test_inventories_of_a_host_equal_the_sizes_without_overcommit(
    cloud: SimCloud, sim: Simulator
) -> None:
    host = cloud.hosts.find("cmp-1")
    assert host.inventories == {
        "VCPU": Inventory(8, most=8),
        "MEMORY_MB": Inventory(16384, most=16384),
        "DISK_GB": Inventory(100, most=100),
    }
    assert host.traits == frozenset()
    assert cloud.hosts.list()[0].inventories == {}


def test_inventories_traits_and_sizes_can_be_changed(cloud: SimCloud, sim: Simulator) -> None:
    cores = Inventory(8, reserved=2, ratio=4.0, most=8)
    changed = sim.change_host(
        "cmp-1", inventories={"VCPU": cores}, traits=["CUSTOM_FAST"], memory_mb=512, zone="az-9"
    )
    assert changed == cloud.hosts.find("cmp-1.example.org")
    assert changed.inventories["VCPU"] == cores
    assert changed.inventories["MEMORY_MB"].total == changed.memory_mb == 512
    assert (changed.traits, changed.zone) == (frozenset({"CUSTOM_FAST"}), "az-9")
    with pytest.raises(InvalidInput, match="uuid"):
        sim.change_host("cmp-1", uuid="another")


def test_servers_fit_by_allocation_ratio_and_reserved_amount(sim: Simulator) -> None:
    sim.change_host("cmp-1", inventories={"VCPU": Inventory(8, reserved=6, ratio=2.0, most=3)})
    with pytest.raises(Conflict, match="one server may have 3"):
        sim.boot("large", "red", "cmp-1", 4, 512, 1)
    sim.boot("first", "red", "cmp-1", 3, 512, 1)
    with pytest.raises(Conflict, match="2 vCPUs wanted, 1 free"):
        sim.boot("second", "red", "cmp-1", 2, 512, 1)


def test_a_server_with_dedicated_cores_uses_pcpu(cloud: SimCloud, sim: Simulator) -> None:
    cloud.flavors.create(Flavor("d", "pinned", 2, 512, 1, True, {"hw:cpu_policy": "dedicated"}))
    with pytest.raises(Conflict, match="dedicated cores wanted, 0 free"):
        sim.boot("early", "red", "cmp-1", 2, 512, 1, "pinned")
    sim.change_host("cmp-1", inventories={"PCPU": Inventory(2), "VCPU": Inventory(4)})
    sim.boot("pinned", "red", "cmp-1", 2, 512, 1, "pinned")
    sim.boot("shared", "red", "cmp-1", 4, 512, 1)
    for flavor in ("pinned", ""):
        with pytest.raises(Conflict, match="0 free"):
            sim.boot("late", "red", "cmp-1", 1, 512, 1, flavor)


def test_a_flavor_says_which_traits_a_host_must_and_must_not_have(
    cloud: SimCloud, sim: Simulator
) -> None:
    cloud.flavors.create(Flavor("f", "fast", 1, 512, 1, True, {"trait:CUSTOM_FAST": "required"}))
    cloud.flavors.create(Flavor("s", "slow", 1, 512, 1, True, {"trait:CUSTOM_FAST": "forbidden"}))
    sim.change_host("cmp-2", traits=["CUSTOM_FAST"])
    assert sim.boot("one", "red", None, 1, 512, 1, "fast").host == "cmp-2"
    assert sim.boot("two", "red", None, 1, 512, 1, "slow").host != "cmp-2"
    with pytest.raises(Conflict, match="CUSTOM_FAST is required"):
        sim.boot("three", "red", "cmp-1", 1, 512, 1, "fast")


def test_the_picture_of_the_world_stays_plain_data(sim: Simulator) -> None:
    sim.boot("one", "red", "cmp-1", 1, 512, 1, user_id="rosa")
    (server,) = json.loads(json.dumps(sim.world()))["servers"]
    assert server["user_id"] == "rosa"
    assert server["created_at"].endswith("+00:00")
