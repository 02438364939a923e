# SPDX-License-Identifier: Apache-2.0
"""A host lease from its owner's first command to its end, with real tokens of two projects.

What Blazar's own scenario tests mean: the reserved host serves its owner, with the hint, for the
time of the lease, and nobody else.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.nova import names
from tests.e2e.deployment import soon
from tests.lab.ground import Ground
from tests.lab.house import House, house
from tests.lab.site import REFUSED, Site
from tests.processes import eventually

if TYPE_CHECKING:
    from lab.cloud import Lab

DAY = timedelta(days=1)


@pytest.fixture(scope="module")
def site(lab: Lab, our_ground: Ground) -> Iterator[Site]:
    made = Site.of(lab, our_ground, "lease")
    yield made
    made.empty()


@pytest.fixture(scope="module")
def home(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with house(lab, tmp_path_factory.mktemp("house"), cloud="nova") as made:
        yield made


@pytest.mark.slow("servers are booted by a real Nova, by commands of which each loads for seconds")
def test_a_reserved_host_serves_its_owner_for_the_time_of_the_lease(
    lab: Lab, site: Site, home: House
) -> None:
    red = lab.credentials("red-member", "red")
    trusts = len(list(site.admin.identity.trusts()))
    for host in site.hosts:
        home.openstack("reservation", "host", "create", host, "--extra", "lab=scenario")
    assert site.pools()[names.FREEPOOL] >= set(site.hosts)

    # tomorrow, by the command everybody knows; then soon, for its dates know no seconds
    lease = home.openstack(
        "reservation", "lease", "create", "scenario",
        "--start-date", f"{soon(86400):%Y-%m-%d %H:%M}",
        "--end-date", f"{soon(2 * 86400):%Y-%m-%d %H:%M}",
        "--reservation",
        'resource_type=physical:host,min=1,max=1,resource_properties=["==","$lab","scenario"]',
        credentials=red,
    )  # fmt: skip
    assert (lease["status"], lease["project_id"]) == ("PENDING", site.project("red"))
    owner = home.client(red)
    reservation = owner.leases.show(lease["id"])["reservations"][0]["id"]
    assert reservation not in site.pools()
    early = site.boot("red", reservation)  # too early: there is no such pool yet
    assert site.outcome(early) == REFUSED
    owner.leases.update(lease["id"], start_date="now")

    active(owner, lease["id"])
    (host,) = eventually(lambda: site.pools()[reservation])
    eventually(lambda: host not in site.pools()[names.FREEPOOL])
    (other,) = set(site.hosts) - {host}
    assert other in site.pools()[names.FREEPOOL]
    pool = next(a for a in site.admin.compute.aggregates() if a.name == reservation)
    assert pool.availability_zone is None
    assert pool.metadata == site.owner("red")

    mine, landed = site.settle("red", reservation)
    assert landed == host
    asked: list[tuple[str, str | None]] = [("red", None), ("blue", reservation), ("blue", None)]
    with ThreadPoolExecutor(len(asked)) as people:
        servers = list(people.map(lambda who: site.boot(*who), asked))
        refused = list(people.map(site.outcome, servers))
    assert refused == [REFUSED] * 3  # neither the reserved host nor the free one
    shown = home.openstack("reservation", "lease", "show", lease["id"], credentials=red)
    assert shown["status"] == "ACTIVE"

    owner.leases.update(lease["id"], end_date="now")
    eventually(lambda: owner.leases.show(lease["id"])["status"] == "TERMINATED", every=0.3)
    assert site.is_gone(mine)
    assert reservation not in site.pools()
    assert not site.pools().get(names.CLOSED_POOL + reservation)  # until all know that it is shut
    assert site.pools()[names.FREEPOOL] >= set(site.hosts)
    assert not any(site.is_gone(one) for one in (early, *servers))  # nobody else's
    assert site.outcome(site.boot("red", reservation)) == REFUSED  # too late

    assert len(list(site.admin.identity.trusts())) == trusts
    home.openstack("reservation", "lease", "delete", lease["id"], credentials=red)
    for host in site.hosts:
        home.openstack("reservation", "host", "delete", host)
    assert not site.pools()[names.FREEPOOL] & set(site.hosts)


def active(client: Any, lease_id: str) -> None:
    eventually(lambda: client.leases.show(lease_id)["status"] == "ACTIVE", every=0.2)
