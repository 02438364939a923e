# SPDX-License-Identifier: Apache-2.0
"""What Masakari's functional tests ask of a Masakari, asked of `holdfast up`, with openstacksdk.

There are 17 in Masakari 22.0.0 (`masakari/tests/functional`); each docstring names the ones that a
test stands for. Theirs make and stop servers by Nova's API; the cloud here is simulated, so that
is done by its own ports.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from openstack import exceptions
from openstack.connection import Connection

from holdfast.client.client import Client
from holdfast.drivers.sim.cloud import SimCloud
from holdfast.drivers.sim.simulator import Simulator
from holdfast.runtime.clock import SystemClock
from tests.e2e.deployment import all_in_one
from tests.processes import eventually

COMPUTE = {"type": "COMPUTE", "control_attributes": "SSH"}
VERSIONS = ["1.0", "1.1"]


@dataclass
class Town:
    """A running `holdfast up` without segments, and its simulated cloud."""

    client: Client
    sim: Simulator
    cloud: SimCloud

    def ha(self, version: str = "1.0") -> Any:
        """The SDK's proxy, as their tests make it."""
        auth = {"endpoint": f"{self.client.url}/instance-ha/v1"}
        return Connection(auth_type="none", auth=auth, ha_api_version=version).instance_ha

    @property
    def hypervisors(self) -> list[str]:
        """Hosts that are open to everybody's servers."""
        return [host["name"] for host in self.sim.world()["hosts"] if host["servers"]]

    def is_enabled(self, host: str) -> bool:
        (found,) = [one for one in self.cloud.services.list() if one.host == host]
        return found.enabled

    def status(self, server: str) -> str:
        return self.cloud.servers.show(server).status


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    folder = tmp_path_factory.mktemp("town")
    file = str(folder / "state" / "sim.db")
    with all_in_one(folder) as (_program, client), contextlib.ExitStack() as stack:
        eventually((folder / "state" / "populated").exists)
        sim = stack.enter_context(contextlib.closing(Simulator(file, SystemClock())))
        cloud = stack.enter_context(contextlib.closing(SimCloud(file, SystemClock(), seed=1)))
        made = Town(client, sim, cloud)
        for segment in made.ha().segments():
            made.ha().delete_segment(segment.uuid)
        yield made


@pytest.fixture
def ha(town: Town) -> Any:
    return town.ha()


Make = Callable[..., Any]


@pytest.fixture
def make(ha: Any) -> Iterator[Make]:
    """Makes segments, which are gone afterwards with their hosts: one in use would not go."""
    made: list[str] = []

    def one(name: str, recovery_method: str = "auto", **more: Any) -> Any:
        words = {"recovery_method": recovery_method, "service_type": "COMPUTE", **more}
        segment = ha.create_segment(name=name, **words)
        made.append(segment.uuid)
        return segment

    yield one
    for uuid in made:
        ha.delete_segment(uuid)
    assert list(ha.segments()) == []


def now() -> datetime:
    """As their tests send it: naive, whole seconds."""
    return datetime.now(UTC).replace(tzinfo=None, microsecond=0)


def finished(ha: Any, notification: Any) -> Any:
    """The notification when it is over."""

    def over() -> Any:
        found = ha.get_notification(notification.notification_uuid)
        assert found.status == "finished", f"it is {found.status}: {found}"
        return found

    return eventually(over)


def check_details(notification: Any, version: str, *, steps: bool) -> None:
    """From 1.1 on it says what was done; below it does not."""
    details = notification.recovery_workflow_details
    if version == "1.0":
        assert details is None
        return
    assert {each.state for each in details} == ({"SUCCESS"} if steps else set())


# segments


def test_a_segment_is_made_shown_and_deleted(ha: Any) -> None:
    """TestSegments.test_create_get_delete"""
    wanted = {"name": "one", "recovery_method": "auto", "service_type": "COMPUTE"}
    made = ha.create_segment(**wanted)
    shown = ha.get_segment(made.uuid)
    for each in (made, shown):
        assert {name: each[name] for name in wanted} == wanted
    ha.delete_segment(made.uuid)
    with pytest.raises(exceptions.NotFoundException):
        ha.get_segment(made.uuid)


def test_a_segment_is_deleted_with_all_hosts(ha: Any, town: Town) -> None:
    """TestSegments.test_create_delete_with_host"""
    segment = ha.create_segment(name="full", recovery_method="auto", service_type="COMPUTE")
    host = ha.create_host(segment.uuid, name=town.hypervisors[0], **COMPUTE)
    assert ha.get_segment(segment.uuid).name == "full"
    ha.delete_segment(segment.uuid)
    with pytest.raises(exceptions.NotFoundException):
        ha.get_segment(segment.uuid)
    with pytest.raises(exceptions.NotFoundException):
        ha.get_host(host.uuid, segment.uuid)
    again = ha.create_segment(name="full", recovery_method="auto", service_type="COMPUTE")
    assert list(ha.hosts(again.uuid)) == []
    ha.delete_segment(again.uuid)


def test_all_segments_are_listed(ha: Any, make: Make) -> None:
    """TestSegments.test_list"""
    made = [make("one"), make("two", "reserved_host")]
    listed = {segment.uuid: segment.to_dict() for segment in ha.segments()}
    assert set(listed) == {one.uuid for one in made}
    for one in made:
        same = ("name", "recovery_method", "service_type", "description", "is_enabled")
        assert {key: listed[one.uuid][key] for key in same} == {key: one[key] for key in same}


@pytest.mark.parametrize("method", ["auto", "reserved_host"])
def test_segments_are_listed_by_recovery_method(ha: Any, make: Make, method: str) -> None:
    """TestSegments.test_list_with_filter"""
    for each in ("auto", "reserved_host"):
        make(f"by {each}", each)
    (found,) = ha.segments(recovery_method=method)
    assert (found.name, found.recovery_method) == (f"by {method}", method)
    assert found.service_type == "COMPUTE"


def test_a_segment_with_hosts_can_be_changed(ha: Any, make: Make, town: Town) -> None:
    """TestSegments.test_update_with_host"""
    segment = make("before")
    ha.create_host(segment.uuid, name=town.hypervisors[0], **COMPUTE)
    wanted = {"name": "after", "recovery_method": "reserved_host", "service_type": "CONTROLLER"}
    changed = ha.update_segment(segment.uuid, **wanted)
    shown = ha.get_segment(segment.uuid)
    for each in (changed, shown):
        assert {name: each[name] for name in wanted} == wanted


# hosts


def test_a_host_is_made_and_shown(ha: Any, make: Make, town: Town) -> None:
    """TestHosts.test_create_get"""
    segment = make("hosts")
    wanted = {"name": town.hypervisors[0], "on_maintenance": False, "reserved": False, **COMPUTE}
    made = ha.create_host(segment.uuid, **wanted)
    shown = ha.get_host(made.uuid, segment.uuid)
    for each in (made, shown):
        assert {name: each[name] for name in wanted} == wanted


def test_every_hypervisor_can_be_in_a_segment_and_all_are_listed(
    ha: Any, make: Make, town: Town
) -> None:
    """TestHosts.test_list"""
    segment = make("hosts")
    names = [host["name"] for host in town.sim.world()["hosts"]]
    flags = {"on_maintenance": False, "reserved": False}
    for name in names:
        ha.create_host(segment.uuid, name=name, **flags, **COMPUTE)
    listed = list(ha.hosts(segment.uuid))
    assert sorted(one.name for one in listed) == sorted(names)
    wanted = {**flags, **COMPUTE, "failover_segment_id": segment.uuid}
    for one in listed:
        assert {name: one[name] for name in wanted} == wanted


@pytest.mark.parametrize(
    ("number", "wanted"),
    [
        (0, {"on_maintenance": False, "reserved": False, **COMPUTE}),
        (
            1,
            {
                "on_maintenance": True,
                "reserved": True,
                "type": "CONTROLLER",
                "control_attributes": "TCP",
            },
        ),
    ],
    ids=["in use", "on maintenance"],
)
def test_hosts_are_listed_by_filter(
    ha: Any, make: Make, town: Town, number: int, wanted: dict[str, Any]
) -> None:
    """TestHosts.test_create_list_with_filter, both of its sets of data"""
    segment = make("hosts")
    name, other = town.hypervisors[number], town.hypervisors[1 - number]
    ha.create_host(segment.uuid, name=name, **wanted)
    opposite = {flag: not wanted[flag] for flag in ("on_maintenance", "reserved")}
    ha.create_host(segment.uuid, name=other, type="OTHER", control_attributes="IPMI", **opposite)
    asked = {key: wanted[key] for key in ("on_maintenance", "reserved", "type")}
    (found,) = ha.hosts(segment.uuid, **asked)
    assert {key: found[key] for key in ("name", *wanted)} == {"name": name, **wanted}


def test_a_host_is_changed_by_words_for_yes_and_no(ha: Any, make: Make, town: Town) -> None:
    """TestHosts.test_update_get_delete"""
    segment = make("hosts")
    no = {"on_maintenance": "False", "reserved": "False"}
    made = ha.create_host(segment.uuid, name=town.hypervisors[0], **no, **COMPUTE)
    assert (made.on_maintenance, made.reserved) == (False, False)
    yes = {"on_maintenance": "True", "reserved": "True"}
    ha.update_host(made.uuid, segment.uuid, control_attributes="TCP", **yes)
    shown = ha.get_host(made.uuid, segment.uuid)
    assert (shown.on_maintenance, shown.reserved) == (True, True)
    assert shown.control_attributes == "TCP"
    ha.delete_host(made.uuid, segment.uuid, ignore_missing=False)
    assert list(ha.hosts(segment.uuid)) == []


def test_a_host_can_get_the_name_of_another_hypervisor(ha: Any, make: Make, town: Town) -> None:
    """TestHosts.test_update_host_name"""
    segment = make("hosts")
    old, new = town.hypervisors[:2]
    made = ha.create_host(segment.uuid, name=old, **COMPUTE)
    assert ha.update_host(made.uuid, segment.uuid, name=new).name == new
    assert ha.get_host(made.uuid, segment.uuid).name == new


# notifications


@pytest.mark.parametrize("version", VERSIONS)
def test_a_stopped_nova_compute_puts_its_host_on_maintenance(
    make: Make, town: Town, version: str
) -> None:
    """NotificationProcessTestCase.test_create_notification_event_stopped, and that of _V1_1"""
    ha, segment = town.ha(version), make("processes")
    name = town.hypervisors[VERSIONS.index(version)]
    host = ha.create_host(segment.uuid, name=name, **COMPUTE)
    payload = {"process_name": "nova-compute", "event": "STOPPED"}
    report = {"type": "PROCESS", "hostname": name, "payload": payload}
    made = ha.create_notification(generated_time=now(), **report)
    check_details(finished(ha, made), version, steps=True)
    assert ha.get_host(host.uuid, segment.uuid).on_maintenance
    assert not town.is_enabled(name)
    town.cloud.services.enable(name)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_started_nova_compute_is_noted(make: Make, town: Town, version: str) -> None:
    """NotificationProcessTestCase.test_create_notification_event_start, and that of _V1_1"""
    ha, segment, name = town.ha(version), make("processes"), town.hypervisors[0]
    host = ha.create_host(segment.uuid, name=name, **COMPUTE)
    payload = {"process_name": "nova-compute", "event": "STARTED"}
    report = {"type": "PROCESS", "hostname": name, "payload": payload}
    made = ha.create_notification(generated_time=now(), **report)
    check_details(finished(ha, made), version, steps=False)
    assert not ha.get_host(host.uuid, segment.uuid).on_maintenance
    assert town.is_enabled(name)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_server_stopped_by_failure_runs_again(make: Make, town: Town, version: str) -> None:
    """NotificationVMTestCase.test_create_notification, and that of _V1_1"""
    ha, segment, name = town.ha(version), make("guests"), town.hypervisors[0]
    ha.create_host(segment.uuid, name=name, **COMPUTE)
    metadata = {"HA_Enabled": "True"}
    server = town.sim.boot(f"ha-{version}", "demo", name, 1, 512, 1, metadata=metadata).id
    assert town.status(server) == "ACTIVE"
    town.cloud.servers.stop(server)
    eventually(lambda: town.status(server) == "SHUTOFF")
    payload = {
        "instance_uuid": server,
        "vir_domain_event": "STOPPED_FAILED",
        "event": "LIFECYCLE",
    }
    made = ha.create_notification(type="VM", hostname=name, generated_time=now(), payload=payload)
    check_details(finished(ha, made), version, steps=True)
    assert town.status(server) == "ACTIVE"
    town.cloud.servers.delete(server)
