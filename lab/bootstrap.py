# SPDX-License-Identifier: Apache-2.0
"""What a cloud has on its first day: people, projects, a catalog, a flavor, an image.

Everything is looked for before it is made: it can be repeated.
"""

from __future__ import annotations

from typing import Any

from lab.place import PASSWORD, REGION, Place

SERVICES = {
    "placement": ("placement", "placement", ""),
    "glance": ("glance", "image", ""),
    "neutron": ("neutron", "network", ""),
    "nova-api": ("nova", "compute", "/v2.1"),
}
SERVICE_USERS = ("placement", "glance", "neutron", "nova", "holdfast")
PEOPLE = (
    ("red", "red-member", "member"),
    ("red", "red-reader", "reader"),
    ("red", "red-manager", "manager"),
    ("blue", "blue-member", "member"),
)
EXTERNAL = "public"
ADDRESSES = "203.0.113.0/24"  # set aside for documentation


def identity(place: Place, cloud: Any) -> None:
    """Users, projects and the catalog."""
    for user in SERVICE_USERS:
        grant(cloud.identity, "service", user, "admin", "service")
    for project, user, role in PEOPLE:
        grant(cloud.identity, project, user, role)
    for part, (name, kind, path) in SERVICES.items():
        publish(cloud.identity, name=name, kind=kind, url=place.url(part) + path)


def grant(keystone: Any, project: str, user: str, *roles: str) -> None:
    """A user with these roles in a project."""
    there = keystone.find_project(project) or keystone.create_project(
        name=project, domain_id="default"
    )
    somebody = keystone.find_user(user) or keystone.create_user(
        name=user, password=PASSWORD, domain_id="default", default_project_id=there.id
    )
    for role in roles:
        keystone.assign_project_role_to_user(there, somebody, keystone.find_role(role))


def publish(keystone: Any, *, name: str, kind: str, url: str) -> None:
    """An entry of the catalog, with its public, internal and admin URL."""
    found = [service for service in keystone.services() if service.type == kind]
    service = found[0] if found else keystone.create_service(name=name, type=kind)
    have = {
        endpoint.interface
        for endpoint in keystone.endpoints(service_id=service.id)
        if endpoint.url == url
    }
    for interface in ("public", "internal", "admin"):
        if interface not in have:
            keystone.create_endpoint(
                service_id=service.id, interface=interface, url=url, region_id=REGION
            )


def flavor(cloud: Any) -> str:
    """A small flavor; returns its id."""
    found = cloud.compute.find_flavor("m1.lab")
    made = found or cloud.compute.create_flavor(name="m1.lab", ram=512, vcpus=1, disk=1)
    return str(made.id)


def image(cloud: Any) -> str:
    """An image of nothing, which is what fake hypervisors boot; returns its id."""
    found = [image for image in cloud.image.images(name="nothing") if image.status == "active"]
    if not found:
        words = {"disk_format": "raw", "container_format": "bare", "visibility": "public"}
        found = [cloud.image.create_image("nothing", data=bytes(65536), wait=True, **words)]
    return str(found[0].id)


def external_network(cloud: Any) -> str:
    """Where floating addresses come from; returns its id."""
    network = cloud.network.find_network(EXTERNAL) or cloud.network.create_network(
        name=EXTERNAL,
        is_router_external=True,
        provider_network_type="flat",
        provider_physical_network="outside",
    )
    if not list(cloud.network.subnets(network_id=network.id)):
        cloud.network.create_subnet(
            name=EXTERNAL,
            network_id=network.id,
            ip_version=4,
            cidr=ADDRESSES,
            is_dhcp_enabled=False,
        )
    return str(network.id)
