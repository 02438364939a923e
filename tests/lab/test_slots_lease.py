# SPDX-License-Identifier: Apache-2.0
"""Slots on real compute hosts: the owner's servers take them, nobody else's do, and at the end all
that was made for them is gone."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from openstack.exceptions import BadRequestException, NotFoundException

from holdfast.leases.resources.instance import resource_class
from holdfast.nova import names
from tests.e2e.deployment import soon, wire_date
from tests.lab.ground import Ground
from tests.lab.house import House, house
from tests.lab.site import REFUSED, Site
from tests.processes import eventually

if TYPE_CHECKING:
    from lab.cloud import Lab

WHERE = '["==", "$lab", "slots"]'
APART = {
    "resource_type": "virtual:instance",
    "vcpus": 1,
    "memory_mb": 256,
    "disk_gb": 1,
    "amount": 2,
    "affinity": "False",
    "resource_properties": WHERE,
}


@pytest.fixture(scope="module")
def site(lab: Lab, our_ground: Ground) -> Iterator[Site]:
    made = Site.of(lab, our_ground, "slots")
    yield made
    made.empty()


@pytest.fixture(scope="module")
def home(lab: Lab, site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """Both hosts enrolled. Server groups are made in owners' projects, which needs a role there."""
    identity = site.admin.identity
    user, role = identity.find_user("holdfast"), identity.find_role("member")
    # Not taken back: Keystone would revoke all tokens of the user, also those of others' tests.
    identity.assign_domain_role_to_user("default", user, role, inherited=True)
    with house(lab, tmp_path_factory.mktemp("house"), cloud="nova") as made:
        admin = made.client()
        ids = [admin.hosts.create(host, {"lab": "slots"})["id"] for host in site.hosts]
        yield made
        for lease in admin.leases.list():  # of a test that failed
            admin.leases.delete(lease["id"])
        eventually(lambda: not admin.leases.list(), every=0.3)
        for host_id in ids:
            admin.hosts.delete(host_id)


def inventories(site: Site, resource_class: str) -> dict[str, int]:
    """How many slots of the class the hosts have in Placement."""
    found = {}
    for provider in site.admin.placement.resource_providers():
        path = f"/resource_providers/{provider.id}/inventories"
        have = site.admin.placement.get(path, microversion="1.30").json()["inventories"]
        if resource_class in have:
            found[provider.name.removeprefix("blazar_")] = have[resource_class]["total"]
    return found


def left(site: Site, reservation_id: str) -> list[str]:
    """What is still there of a reservation."""
    name, admin = f"reservation:{reservation_id}", site.admin
    flavors = [f"flavor {f.id}" for f in admin.compute.flavors(is_public=None) if f.name == name]
    groups = admin.compute.get("/os-server-groups?all_projects=true", microversion="2.64")
    grouped = [f"group {g['id']}" for g in groups.json()["server_groups"] if g["name"] == name]
    classes = admin.placement.get("/resource_classes", microversion="1.30").json()
    mine = resource_class(reservation_id)
    classed = [mine for class_ in classes["resource_classes"] if class_["name"] == mine]
    pooled = [f"pool {host}" for host in site.pools().get(reservation_id, ())]
    return flavors + grouped + classed + pooled


@pytest.mark.slow("nine servers are booted by a real Nova, one lease begins and ends")
def test_slots_serve_their_owner_for_the_time_of_the_lease(
    lab: Lab, site: Site, home: House
) -> None:
    owner = home.client(lab.credentials("red-member", "red"))
    together = {
        "resource_type": "flavor:instance",
        "flavor_id": site.ground.flavor,
        "amount": 2,
        "affinity": "True",
        "capabilities": {"lab": "slots"},
    }
    lease = owner.leases.create(
        "slots",
        end_date=wire_date(soon(86400)),
        reservations=[APART, together],
    )
    apart_id, together_id = (r["id"] for r in lease["reservations"])
    eventually(lambda: owner.leases.show(lease["id"])["status"] == "ACTIVE", every=0.2)
    shown = owner.leases.show(lease["id"])["reservations"]
    assert [r["flavor_id"] for r in shown] == [apart_id, together_id]
    assert inventories(site, resource_class(apart_id)) == dict.fromkeys(site.hosts, 1)
    assert list(inventories(site, resource_class(together_id)).values()) == [2]
    assert site.pools()[names.FREEPOOL] >= set(site.hosts)
    pool = next(a for a in site.admin.compute.aggregates() if a.name == apart_id)
    assert (pool.id, pool.metadata["affinity_id"]) == (
        shown[0]["aggregate_id"],
        shown[0]["server_group_id"],
    )

    group = {"scheduler_hints": {"group": shown[1]["server_group_id"]}}
    asked: list[tuple[str, dict[str, Any]]] = [
        (apart_id, {}),
        (apart_id, {}),
        (together_id, group),
        (together_id, group),
    ]
    servers = [site.boot("red", flavor=flavor, **hints) for flavor, hints in asked]
    with ThreadPoolExecutor(4) as people:
        one, other, *pair = people.map(site.outcome, servers)
    assert {one, other} == set(site.hosts)
    assert len(set(pair)) == 1
    assert set(pair) <= set(site.hosts)
    with ThreadPoolExecutor(2) as people:  # the slots are taken, the hosts closed to all else
        late = people.map(lambda flavor: site.lands("red", flavor=flavor), (apart_id, ""))
        assert list(late) == [REFUSED, REFUSED]
    with pytest.raises((BadRequestException, NotFoundException)):
        site.boot("blue", flavor=apart_id)

    more = owner.leases.update(
        lease["id"], reservations=[{"id": together_id, "amount": 3}]
    )  # an active one grows
    assert more["reservations"][1]["amount"] == 3
    eventually(lambda: inventories(site, resource_class(together_id)) == {pair[0]: 3}, every=0.2)
    assert site.lands("red", flavor=together_id) == pair[0]

    owner.leases.update(lease["id"], end_date="now")
    eventually(lambda: owner.leases.show(lease["id"])["status"] == "TERMINATED", every=0.3)
    assert all(site.is_gone(server) for server in servers)
    assert left(site, apart_id) + left(site, together_id) == []
    assert site.pools()[names.FREEPOOL] >= set(site.hosts)
    owner.leases.delete(lease["id"])


@pytest.mark.slow("a lease of ten seconds lasts so long")
def test_a_lease_of_the_past_minute_leaves_room_for_the_next(
    lab: Lab, site: Site, home: House
) -> None:
    """A whole host and slots of it, one after the other, on the same machine."""
    owner = home.client(lab.credentials("red-member", "red"))
    end = soon(10)  # both are asked for before that, also where all is slow
    whole = {
        "resource_type": "physical:host",
        "min": 2,
        "max": 2,
        "hypervisor_properties": "",
        "resource_properties": WHERE,
    }
    before = owner.leases.create("whole", end_date=wire_date(end), reservations=[whole])
    after = owner.leases.create(
        "slots",
        start_date=wire_date(end),
        end_date=wire_date(end + timedelta(hours=1)),
        reservations=[APART],
    )
    eventually(lambda: owner.leases.show(after["id"])["status"] == "ACTIVE", every=0.2)
    assert owner.leases.show(before["id"])["status"] == "TERMINATED"
    flavor = after["reservations"][0]["id"]
    assert site.lands("red", flavor=flavor) in site.hosts
    for lease in (before, after):
        owner.leases.delete(lease["id"])
    eventually(lambda: not left(site, flavor), every=0.3)
