# SPDX-License-Identifier: Apache-2.0
"""HoldfastFilter in Nova's own scheduler: who lands on which host, with real aggregates and tokens.

Their flavor goes to two hosts only (`ground`), so a server the filter refuses ends with "No valid
host".
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from openstack.exceptions import BadRequestException

import holdfast
from holdfast.nova import names
from tests.lab.ground import Ground
from tests.lab.site import REFUSED, Site
from tests.processes import eventually

if TYPE_CHECKING:
    from lab.cloud import Lab

TOLD = "filter_test_told"


@dataclass
class Pools(Site):
    """Aggregates for a while."""

    preemptible: str = ""
    held: dict[str, Any] = field(default_factory=dict)

    @contextlib.contextmanager
    def pool(
        self, name: str, metadata: Mapping[str, str], *hosts: str, zone: str = ""
    ) -> Iterator[str]:
        """Hosts in an aggregate for a while. The free pool is borrowed, others are our own."""
        compute = self.admin.compute
        found = next(
            (aggregate for aggregate in compute.aggregates() if aggregate.name == name), None
        )
        made = found or compute.create_aggregate(
            name=name, **({"availability_zone": zone} if zone else {})
        )
        self.held[name] = made.id
        if metadata:
            compute.set_aggregate_metadata(made.id, dict(metadata))
        for host in hosts:  # one after the other: see tell
            compute.add_host_to_aggregate(made.id, host)
        try:
            yield made.id
        finally:
            self.empty()
            for host in hosts:
                compute.remove_host_from_aggregate(made.id, host)
            if name == names.FREEPOOL:  # others may be using it by now
                compute.set_aggregate_metadata(made.id, {TOLD: None})
            else:
                compute.delete_aggregate(made.id)
            del self.held[name]

    def tell(self) -> None:
        """Have Nova send these aggregates to its scheduler again, whole.

        Two changes of one aggregate at the same moment, by another test perhaps, leave the
        scheduler with the sight of one of them.
        """
        for pool_id in self.held.values():
            self.admin.compute.set_aggregate_metadata(pool_id, {TOLD: uuid.uuid4().hex})

    def expect(self, *wanted: tuple[Sequence[Any], str]) -> None:
        """All at once, until each ends as wanted: the scheduler hears of pools by message."""

        def right() -> bool:
            with ThreadPoolExecutor(len(wanted)) as calls:
                got = list(calls.map(lambda one: self.lands(*one[0]), wanted))
            if got != (right := [end for _request, end in wanted]):
                self.tell()
            assert got == right
            return True

        eventually(right, every=0.5)


@pytest.fixture(scope="module")
def site(lab: Lab, our_ground: Ground) -> Iterator[Pools]:
    made = Pools.of(lab, our_ground, "filter")
    flavor = made.admin.create_flavor("filter-test", ram=64, vcpus=1, disk=1)
    specs = {**our_ground.pin, names.PREEMPTIBLE_SPEC: "true"}
    made.admin.compute.create_flavor_extra_specs(flavor, specs)
    made.preemptible = flavor.id
    try:
        yield made
    finally:
        made.empty()
        made.admin.delete_flavor(flavor.id)


def test_hosts_outside_reserved_pools_accept_servers_without_a_hint_only(site: Pools) -> None:
    with site.pool("filter-test-other", {}, site.hosts[1]):
        site.expect((["red", str(uuid.uuid4())], REFUSED), (["red", "ground-lab"], REFUSED))
        site.settle("blue")


def test_only_the_owner_with_the_hint_lands_on_a_reserved_host(site: Pools) -> None:
    reservation = str(uuid.uuid4())
    with (
        site.pool(names.FREEPOOL, {}, site.hosts[1]),
        site.pool(reservation, site.owner("red"), site.hosts[0]),
    ):
        site.expect(
            (["red", reservation], site.hosts[0]),
            (["red"], REFUSED),
            (["blue", reservation], REFUSED),
            (["blue"], REFUSED),
            (["red", ""], REFUSED),
            (["red", names.FREEPOOL], REFUSED),
            (["red", None, site.preemptible], REFUSED),  # unless the operator allows it
        )


def test_a_host_in_both_pools_is_the_owners_until_the_door_closes(site: Pools) -> None:
    reservation = str(uuid.uuid4())
    with (
        site.pool(names.FREEPOOL, {}, *site.hosts),
        site.pool(reservation, site.owner("red"), site.hosts[0]) as pool_id,
    ):
        site.expect((["red", reservation], site.hosts[0]), (["red"], REFUSED))
        site.admin.compute.set_aggregate_metadata(pool_id, {names.OPEN: names.CLOSED})
        site.expect((["red", reservation], REFUSED))
        site.admin.compute.set_aggregate_metadata(pool_id, {names.OPEN: names.OPENED})
        site.expect((["red", reservation], site.hosts[0]))


def test_pools_made_by_blazar_keep_their_meaning(site: Pools) -> None:
    old = str(uuid.uuid4())
    site.empty()  # Nova takes no host with servers into another zone
    with site.pool(old, site.owner("red"), *site.hosts, zone=f"blazar_{old}"):
        site.expect((["blue", old], REFUSED), (["red"], REFUSED))
        site.settle("red", old)


def test_slots_are_for_the_flavor_of_their_reservation(site: Pools) -> None:
    capacity = str(uuid.uuid4())
    flavor = site.admin.create_flavor(f"filter-test-{capacity}", ram=64, vcpus=1, disk=1)
    site.admin.compute.create_flavor_extra_specs(flavor, {names.SLOTS_SPEC: capacity})
    marks = {**site.owner("red"), names.SLOTS: capacity}
    try:
        with site.pool(names.FREEPOOL, {}, *site.hosts), site.pool(capacity, marks, site.hosts[1]):
            site.expect(
                (["red", None, flavor.id], site.hosts[1]),
                (["blue", None, flavor.id], REFUSED),
                (["red", capacity], REFUSED),
                (["red"], REFUSED),
            )
    finally:
        site.admin.delete_flavor(flavor.id)


NOVAS_OWN = """
from nova import objects
from nova.scheduler import filters
from nova.scheduler.host_manager import HostState
from holdfast.nova.scheduler_filter import CONF, HoldfastFilter

objects.register_all()
CONF([], project="nova", default_config_files=[])

def host(name, **metadata):
    state = HostState(name, name, None)
    state.aggregates = [objects.Aggregate(id=1, name=metadata.pop("pool"), metadata=metadata)]
    return state

hosts = [host("free", pool="freepool"), host("red", pool="r1", **{"blazar:owner": "red"})]
uuid = "6b0ae0b2-0c49-4b44-8d4e-1f3b1c8d5a11"
bare = dict(instance_uuid=uuid, flavor=objects.Flavor(vcpus=1))
full = dict(bare, project_id="red", flavor=objects.Flavor(extra_specs={}))
for fields in (
    dict(full, scheduler_hints={"reservation": ["r1"]}),
    dict(full, scheduler_hints={}),
    dict(bare, scheduler_hints={"reservation": ["r1"]}),
    bare,
    dict(full, scheduler_hints={"_nova_check_type": ["rebuild"]}),
):
    spec, ours = objects.RequestSpec(**fields), HoldfastFilter()
    kept = filters.HostFilterHandler().get_filtered_objects([ours], hosts, spec)
    alone = [one for one in hosts if ours.host_passes(one, spec)]
    print(*(one.host for one in kept), "|", *(one.host for one in alone))
"""


def test_request_specs_of_nova_are_understood(lab: Lab) -> None:
    """Fields may be unset; a rebuild stays where it is and passes; a host alone is answered for."""
    said = subprocess.run(
        [str(lab.place.venv / "bin" / "python"), "-c", NOVAS_OWN],
        check=True,
        capture_output=True,
        text=True,
        timeout=180,
        env={**os.environ, "PYTHONPATH": str(Path(holdfast.__file__).parent.parent)},
    )
    lines = [line.strip() for line in said.stdout.splitlines()]
    assert lines == ["red | red", "|", "|", "|", "free red |"]


@pytest.mark.slow("a real Nova shelves and evacuates servers, and the host starts again")
def test_a_moved_server_stays_in_the_reserved_pool(site: Pools) -> None:
    """The hint goes with it: shelved, or evacuated; two ordinary hosts stand by in vain."""
    reservation = str(uuid.uuid4())
    compute = site.admin.compute
    with site.pool(reservation, site.owner("red"), site.hosts[0]) as pool_id:
        site.expect((["red", reservation], site.hosts[0]))
        servers = [site.boot("red", reservation, site.ground.flavor) for _ in range(2)]
        assert {site.outcome(server) for server in servers} == {site.hosts[0]}

        compute.set_aggregate_metadata(pool_id, {names.OPEN: names.CLOSED})
        shelve(site, servers[0])
        site.members["red"].compute.unshelve_server(servers[0])
        eventually(lambda: failed(site, servers[0], "unshelve"), every=0.3)
        compute.set_aggregate_metadata(pool_id, {names.OPEN: names.OPENED})
        eventually(lambda: back_from_the_shelf(site, servers[0]), every=0.5)
        assert site.outcome(servers[0]) == site.hosts[0]

        compute.add_host_to_aggregate(pool_id, site.hosts[1])
        try:
            with lost(site, site.hosts[0]):
                for one in servers:
                    compute.evacuate_server(one)
                for one in servers:  # Nova says it is done a moment before it says where
                    eventually(lambda one=one: site.outcome(one) == site.hosts[1], every=0.3)
        finally:
            site.empty()
            compute.remove_host_from_aggregate(pool_id, site.hosts[1])


def shelve(site: Pools, server_id: str) -> None:
    site.members["red"].compute.shelve_server(server_id)
    eventually(lambda: at_rest(site, server_id, "SHELVED_OFFLOADED"), every=0.3)


def back_from_the_shelf(site: Pools, server_id: str) -> bool:
    if at_rest(site, server_id, "SHELVED_OFFLOADED"):  # again: the scheduler had not heard yet
        site.members["red"].compute.unshelve_server(server_id)
    return at_rest(site, server_id, "ACTIVE")


def at_rest(site: Pools, server_id: str, status: str) -> bool:
    server = site.admin.compute.get_server(server_id)
    return server.status == status and server.task_state is None


def failed(site: Pools, server_id: str, action: str) -> bool:
    """The last action of that name ended in an error, and the server lives nowhere."""
    actions = site.admin.compute.server_actions(server_id)
    last = next((one for one in actions if one.action == action), None)
    if last is None:
        return False
    said = site.admin.compute.get_server_action(last.request_id, server_id)
    ended = any(event["result"] == "Error" for event in said.events or [])
    return ended and site.admin.compute.get_server(server_id).compute_host is None


@contextlib.contextmanager
def lost(site: Pools, host: str) -> Iterator[None]:
    """A host that is down for Nova, at once, and comes back afterwards."""
    compute = site.admin.compute
    service = next(compute.services(binary="nova-compute", host=host))
    site.lab.compute(host).kill()
    compute.update_service_forced_down(service.id, forced=True)
    try:
        yield
    finally:
        site.lab.compute(host).start()

        def back() -> bool:
            try:
                compute.update_service_forced_down(service.id, forced=False)
            except BadRequestException:  # it has not looked yet what left it
                return False
            return True

        eventually(back, every=0.5)
        site.lab.wait_compute(host)
