# SPDX-License-Identifier: Apache-2.0
"""The Nova side of the Slots port: inventories in Placement, server groups in Nova.

Where slots are kept. nova-compute writes the inventory of its own provider (the one with the name
of the hypervisor) as a whole. At each start, and whenever it looks anew (every 300 s), a class that
its virt driver does not report is wiped; if servers have some of it, nova-compute does not even
start (Nova 34, InventoryInUse). Children that it did not make it leaves alone: the drivers touch
only those named `<hypervisor>_…` or marked as theirs. So slots are on a child of our own, called
`blazar_<hypervisor>` as Blazar did; a server whose flavor asks for VCPU and for slots gets both
from one tree, that is, on one host. The child is never removed here, since its generation would
start again at 0 and a stale write could pass; Nova removes it with the host's compute service.

How it is guarded. All that is written replaces the child's whole inventory at the generation that
the caller read. A server that takes a slot moves that generation too, so the use that is checked
here can only be less at the write; Placement by itself lets a total fall below its use.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from openstack import exceptions as sdk
from openstack.connection import Connection

from holdfast.drivers.cloud.nova import groups
from holdfast.drivers.cloud.nova.directory import Directory
from holdfast.drivers.cloud.nova.edge import Edge, answer
from holdfast.model.errors import Conflict, NotFound
from holdfast.ports.cloud import Inventory, ServerGroup

#: Placement of Stein and newer; nested providers are counted in from 1.29 on.
VERSION = "1.30"
PREFIX = "blazar_"


class NovaSlots:
    def __init__(self, edge: Edge, directory: Directory) -> None:
        self._edge = edge
        self._directory = directory

    def inventory(self, host: str, resource_class: str) -> Inventory:
        with self._edge.call("slots.inventory", f"{host}/{resource_class}") as cloud:
            return self._look(cloud, host).inventory(resource_class)

    def set_inventory(
        self, host: str, resource_class: str, total: int, generation: int
    ) -> Inventory:
        with self._edge.call("slots.set_inventory", f"{host}/{resource_class}") as cloud:
            shelf = self._look(cloud, host)
            now = shelf.inventory(resource_class)
            now.check(total, generation)
            if not total and not now.total:
                return now
            return _write(cloud, shelf, resource_class, total)

    def drop_class(self, resource_class: str) -> None:
        with self._edge.call("slots.drop_class", resource_class) as cloud:
            try:
                path = f"/resource_classes/{resource_class}"
                answer(cloud.placement.delete(path, microversion=VERSION))
            except sdk.NotFoundException:
                return
            except sdk.ConflictException as held:
                raise Conflict(f"a host still has slots of {resource_class}") from held

    def create_group(self, name: str, policy: str, project_id: str) -> ServerGroup:
        with self._edge.call("slots.create_group", name) as cloud:
            return groups.create(cloud, name, policy, project_id)

    def groups(self) -> Sequence[ServerGroup]:
        with self._edge.call("slots.groups") as cloud:
            return groups.everywhere(cloud)

    def delete_group(self, group_id: str) -> None:
        with self._edge.call("slots.delete_group", group_id) as cloud:
            groups.delete(cloud, group_id)

    def _look(self, cloud: Connection, host: str) -> "_Shelf":
        try:
            return _read(cloud, *self._place(cloud, host))
        except NotFound:  # made anew since it was last asked for, or gone indeed
            self._directory.forget(host)
            return _read(cloud, *self._place(cloud, host))

    def _place(self, cloud: Connection, host: str) -> tuple[str, str]:
        """The host's service, and the uuid of its own provider: that of its hypervisor."""
        entry = self._directory.find(cloud, host)
        if len(entry.hypervisors) > 1:
            raise Conflict(f"host {host} has {len(entry.hypervisors)} nodes: name one of them")
        return entry.service_host, entry.hypervisors[0]


@dataclass(frozen=True)
class _Shelf:
    """The child provider of one host as it was at one moment; without uuid it is still to be made,
    and a new one has generation 0."""

    host: str
    parent: Mapping[str, Any]
    uuid: str | None = None
    generation: int = 0
    inventories: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    used: Mapping[str, int] = field(default_factory=dict)

    def inventory(self, resource_class: str) -> Inventory:
        return Inventory(
            host=self.host,
            resource_class=resource_class,
            total=self.inventories.get(resource_class, {}).get("total", 0),
            generation=self.generation,
            used=self.used.get(resource_class, 0),
        )


def _read(cloud: Connection, host: str, node: str) -> _Shelf:
    tree = _tree(cloud, node)
    if node not in tree:
        raise NotFound(f"Placement knows nothing of host {host}")
    parent = tree[node]
    child = _child(tree, parent)
    if child is None:
        return _Shelf(host, parent)
    path = f"/resource_providers/{child['uuid']}"
    have = answer(cloud.placement.get(f"{path}/inventories", microversion=VERSION))
    used = answer(cloud.placement.get(f"{path}/usages", microversion=VERSION))
    # Should they be of two moments, the older generation makes sure that a write is refused.
    generation = min(one["resource_provider_generation"] for one in (have, used))
    return _Shelf(host, parent, child["uuid"], generation, have["inventories"], used["usages"])


def _write(cloud: Connection, shelf: _Shelf, resource_class: str, total: int) -> Inventory:
    inventories = {name: one for name, one in shelf.inventories.items() if name != resource_class}
    if total:
        path = f"/resource_classes/{resource_class}"
        answer(cloud.placement.put(path, microversion=VERSION))
        inventories[resource_class] = {"total": total}
    uuid = shelf.uuid or _make(cloud, shelf.parent)
    body = {"resource_provider_generation": shelf.generation, "inventories": inventories}
    path = f"/resource_providers/{uuid}/inventories"
    written = answer(cloud.placement.put(path, json=body, microversion=VERSION))
    return replace(
        shelf.inventory(resource_class),
        total=total,
        generation=written["resource_provider_generation"],
    )


def _make(cloud: Connection, parent: Mapping[str, Any]) -> str:
    """A new child. If somebody was faster, theirs; its generation tells whether it was used."""
    body = {"name": PREFIX + parent["name"], "parent_provider_uuid": parent["uuid"]}
    try:
        made = answer(cloud.placement.post("/resource_providers", json=body, microversion=VERSION))
    except sdk.ConflictException:
        made = _child(_tree(cloud, parent["uuid"]), parent)
        if made is None:
            raise
    return str(made["uuid"])


def _tree(cloud: Connection, node: str) -> dict[str, Mapping[str, Any]]:
    """The provider of that uuid and all below it, by uuid."""
    asked = {"in_tree": node}
    body = answer(cloud.placement.get("/resource_providers", params=asked, microversion=VERSION))
    return {one["uuid"]: one for one in body["resource_providers"]}


def _child(
    tree: Mapping[str, Mapping[str, Any]], parent: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    name = PREFIX + parent["name"]
    return next((one for one in tree.values() if one["name"] == name), None)
