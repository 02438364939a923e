# SPDX-License-Identifier: Apache-2.0
"""What the nova driver makes in other people's projects: server groups and floating addresses."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.model.errors import DriverError
from holdfast.ports.cloud import Cloud, ServerGroup
from tests.cloud.worlds import NovaWorld
from tests.lab.site import Site

if TYPE_CHECKING:
    from lab.cloud import Lab

    from tests.lab.ground import Ground

IP = "203.0.113.88"
PREFIX = "project-resources"


@pytest.fixture
def cloud(lab: Lab, our_ground: Ground, tmp_path: Path) -> Iterator[Cloud]:
    """The driver under test, as our service user, who has a role in all projects of the domain."""
    identity = lab.connect().identity
    user, role = identity.find_user("holdfast"), identity.find_role("member")
    # Not taken back: Keystone would revoke all tokens of the user, also those of others' tests.
    identity.assign_domain_role_to_user("default", user, role, inherited=True)
    with contextlib.closing(NovaWorld(lab, our_ground, tmp_path)) as world:
        yield world.cloud


@pytest.fixture
def group(lab: Lab, cloud: Cloud) -> Iterator[ServerGroup]:
    """A group for project red."""
    red = lab.connect("red-member", "red").current_project_id
    made = cloud.slots.create_group(f"{PREFIX}-{uuid.uuid4()}", "anti-affinity", str(red))
    yield made
    cloud.slots.delete_group(made.id)


def ask_for_a_server(lab: Lab, project: str, group: ServerGroup) -> Any:
    server = {
        "name": f"{PREFIX}-server",
        "flavorRef": lab.flavor,
        "imageRef": lab.image,
        "networks": "none",
    }
    body = {"server": server, "OS-SCH-HNT:scheduler_hints": {"group": group.id}}
    user = lab.connect(f"{project}-member", project)
    return user.compute.post("/servers", json=body, microversion="2.79")


def test_only_members_of_the_project_use_a_server_group(
    lab: Lab, cloud: Cloud, group: ServerGroup
) -> None:
    strange = ask_for_a_server(lab, "blue", group)
    assert strange.status_code == 400
    assert group.id in strange.text
    own = ask_for_a_server(lab, "red", group)
    assert own.status_code == 202, own.text
    server_id = own.json()["server"]["id"]
    try:
        compute = lab.connect("red-member", "red").compute
        assert compute.get_server_group(group.id).member_ids == [server_id]
    finally:
        cloud.servers.delete(server_id)


def test_a_group_for_a_project_without_us_is_refused_with_what_to_do(
    lab: Lab, cloud: Cloud
) -> None:
    identity = lab.connect().identity
    domain = identity.create_domain(name=f"{PREFIX}-{uuid.uuid4()}")
    project = identity.create_project(name="closed", domain_id=domain.id)
    try:
        with pytest.raises(DriverError, match="openstack role add --user") as refused:
            cloud.slots.create_group("ours", "affinity", project.id)
    finally:
        identity.delete_project(project)
        identity.update_domain(domain, is_enabled=False)
        identity.delete_domain(domain)
    assert not refused.value.retryable
    assert not [group for group in cloud.slots.groups() if group.name == "ours"]


@pytest.fixture
def network(lab: Lab, cloud: Cloud) -> Iterator[Any]:
    """Neutron by its administrator's hand; the address of this file is free before and after."""

    def free() -> None:
        for address in cloud.addresses.list():
            if address.address == IP:
                cloud.addresses.delete(address.id)

    free()
    yield lab.connect().network
    free()


def test_an_address_made_by_half_is_completed_by_the_same_call(
    lab: Lab, cloud: Cloud, network: Any
) -> None:
    """The driver died after it made the address, before it wrote the tags."""
    red = str(lab.connect("red-member", "red").current_project_id)
    wish = (lab.external_network, IP, red, ["blazar", "reservation:x"])
    made = cloud.addresses.create(*wish)
    network.put(f"/floatingips/{made.id}/tags", json={"tags": []})
    assert [one.tags for one in cloud.addresses.list() if one.id == made.id] == [()]
    assert cloud.addresses.create(*wish) == made
    tags = [set(one.tags) for one in cloud.addresses.list() if one.id == made.id]
    assert tags == [{"blazar", "reservation:x"}]


def test_a_floating_ip_names_the_attached_server(lab: Lab, cloud: Cloud, network: Any) -> None:
    red = str(lab.connect("red-member", "red").current_project_id)
    server_id = str(uuid.uuid4())
    made = cloud.addresses.create(lab.external_network, IP, red, ["blazar"])
    with _port(network, lab.external_network, server_id) as port_id:
        network.update_ip(made.id, port_id=port_id)
        seen = {one.id: one.server_id for one in cloud.addresses.list()}
        assert seen[made.id] == server_id
        network.update_ip(made.id, port_id=None)
    assert {one.id: one.server_id for one in cloud.addresses.list()}[made.id] is None


@contextlib.contextmanager
def _port(network: Any, external: str, server_id: str) -> Iterator[str]:
    """A server's port as Nova makes it, in a net from which there is a way out."""
    with contextlib.ExitStack() as undo:
        net = network.create_network(name=PREFIX)
        undo.callback(network.delete_network, net)
        subnet = network.create_subnet(network_id=net.id, ip_version=4, cidr="192.0.2.0/28")
        router = network.create_router(name=PREFIX, external_gateway_info={"network_id": external})
        undo.callback(network.delete_router, router)
        network.add_interface_to_router(router, subnet=subnet.id)
        undo.callback(network.remove_interface_from_router, router, subnet=subnet.id)
        port = network.create_port(
            network_id=net.id, device_id=server_id, device_owner="compute:nova"
        )
        undo.callback(network.delete_port, port)
        yield str(port.id)


def test_a_snapshot_is_the_server_owners_image(lab: Lab, our_ground: Ground, cloud: Cloud) -> None:
    site = Site.of(lab, our_ground, PREFIX)
    server_id = site.boot("red")
    assert site.outcome(server_id) in our_ground.hosts
    name = f"{PREFIX}-{uuid.uuid4()}"
    image_id = cloud.servers.snapshot(server_id, name)
    try:
        seen = [image for image in site.members["red"].image.images() if image.name == name]
        assert [(one.id, one.owner_id) for one in seen] == [(image_id, site.project("red"))]
        assert not [image for image in site.members["blue"].image.images() if image.name == name]
        assert cloud.servers.images(server_id, name) == [image_id]
    finally:
        site.admin.image.delete_image(image_id)
        site.empty()
