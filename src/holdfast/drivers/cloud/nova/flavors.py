# SPDX-License-Identifier: Apache-2.0
"""The Nova side of the Flavors port.

Microversion 2.61 brings the extra specs inside the flavor. It is also below 2.86, from which on
Nova refuses keys that it does not know, and other programs' filters have keys of their own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from openstack import exceptions as sdk
from openstack.connection import Connection

from holdfast.drivers.cloud.nova.edge import Edge, answer, pages
from holdfast.model.errors import Conflict, NotFound
from holdfast.ports.cloud import Flavor

VERSION = "2.61"
_PUBLIC = "os-flavor-access:is_public"


class NovaFlavors:
    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    def list(self) -> Sequence[Flavor]:
        with self._edge.call("flavors.list") as cloud:
            asked = {"is_public": "None"}  # neither yes nor no: both
            found = pages(
                cloud.compute, "/flavors/detail", "flavors", microversion=VERSION, params=asked
            )
            return [_flavor(one) for one in found]

    def show(self, flavor_id: str) -> Flavor:
        with self._edge.call("flavors.show", flavor_id) as cloud:
            flavor = _show(cloud, flavor_id)
            return flavor if flavor.public else replace(flavor, projects=_access(cloud, flavor_id))

    def create(self, flavor: Flavor) -> None:
        with self._edge.call("flavors.create", flavor.id) as cloud:
            _make(cloud, flavor)
            if flavor.extra_specs:
                path = f"{_path(flavor.id)}/os-extra_specs"
                specs = {"extra_specs": dict(flavor.extra_specs)}
                answer(cloud.compute.post(path, json=specs, microversion=VERSION))
            for project_id in flavor.projects:
                _add_access(cloud, flavor.id, project_id)

    def delete(self, flavor_id: str) -> None:
        with self._edge.call("flavors.delete", flavor_id) as cloud:
            try:
                answer(cloud.compute.delete(_path(flavor_id), microversion=VERSION))
            except sdk.NotFoundException:
                return

    def add_access(self, flavor_id: str, project_id: str) -> None:
        with self._edge.call("flavors.add_access", f"{flavor_id}/{project_id}") as cloud:
            _add_access(cloud, flavor_id, project_id)

    def remove_access(self, flavor_id: str, project_id: str) -> None:
        with self._edge.call("flavors.remove_access", f"{flavor_id}/{project_id}") as cloud:
            try:
                _act(cloud, flavor_id, {"removeTenantAccess": {"tenant": project_id}})
            except sdk.NotFoundException:
                return


def _make(cloud: Connection, flavor: Flavor) -> None:
    """The bare flavor, unless it is there: Nova takes extra specs and access in later calls."""
    body = {
        "id": flavor.id,
        "name": flavor.name,
        "vcpus": flavor.vcpus,
        "ram": flavor.memory_mb,
        "disk": flavor.disk_gb,
        _PUBLIC: flavor.public,
    }
    try:
        answer(cloud.compute.post("/flavors", json={"flavor": body}, microversion=VERSION))
    except sdk.ConflictException as taken:
        if not _same(cloud, flavor):
            raise Conflict(
                f"another flavor has the id {flavor.id} or the name {flavor.name}"
            ) from taken


def _same(cloud: Connection, flavor: Flavor) -> bool:
    """Whether the flavor of that id is that one, its extra specs and access aside."""
    try:
        there = _show(cloud, flavor.id)
    except sdk.NotFoundException:
        return False  # it was the name
    return replace(there, extra_specs={}) == replace(flavor, extra_specs={}, projects=())


def _path(flavor_id: str) -> str:
    """Users name flavors, and we ask with all our rights: no id leads anywhere else."""
    return f"/flavors/{quote(flavor_id, safe='')}"


def _show(cloud: Connection, flavor_id: str) -> Flavor:
    body = answer(cloud.compute.get(_path(flavor_id), microversion=VERSION))
    if "flavor" not in body:  # `detail` and `..` are addresses of other things
        raise NotFound(f"there is no flavor {flavor_id}")
    return _flavor(body["flavor"])


def _access(cloud: Connection, flavor_id: str) -> tuple[str, ...]:
    path = f"{_path(flavor_id)}/os-flavor-access"
    body = answer(cloud.compute.get(path, microversion=VERSION))
    return tuple(sorted(one["tenant_id"] for one in body["flavor_access"]))


def _add_access(cloud: Connection, flavor_id: str, project_id: str) -> None:
    try:
        _act(cloud, flavor_id, {"addTenantAccess": {"tenant": project_id}})
    except sdk.ConflictException as refused:  # it has access, or the flavor is public
        if _show(cloud, flavor_id).public:
            raise Conflict(f"flavor {flavor_id} is public: all projects have it") from refused


def _act(cloud: Connection, flavor_id: str, body: Mapping[str, Any]) -> None:
    answer(cloud.compute.post(f"{_path(flavor_id)}/action", json=body, microversion=VERSION))


def _flavor(body: Mapping[str, Any]) -> Flavor:
    return Flavor(
        id=body["id"],
        name=body["name"],
        vcpus=body["vcpus"],
        memory_mb=body["ram"],
        disk_gb=_disk_gb(body),
        public=body[_PUBLIC],
        extra_specs=body["extra_specs"],
    )


def _disk_gb(body: Mapping[str, Any]) -> int:
    """All that a server of it takes on its host: root, ephemeral, and swap, which comes in MiB."""
    swap_gb = -(-int(body["swap"] or 0) // 1024)
    return int(body["disk"]) + int(body["OS-FLV-EXT-DATA:ephemeral"]) + swap_gb
