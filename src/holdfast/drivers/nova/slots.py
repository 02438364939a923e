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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import quote

from keystoneauth1 import exceptions as login
from keystoneauth1.identity import Token
from keystoneauth1.plugin import AUTH_INTERFACE, BaseAuthPlugin
from openstack import exceptions as sdk
from openstack.connection import Connection

from holdfast.drivers.nova.directory import Directory
from holdfast.drivers.nova.session import Edge, answer, failed, pages
from holdfast.model.errors import Conflict, NotFound
from holdfast.ports.cloud import Flavor, Inventory, ServerGroup

# Server groups in Nova, for the Slots port.
#
# Nova makes a group in the project of the token, and takes none from anywhere else: a member of
# another project who names the group when making a server is told that there is none (400); only
# admins see all groups. So a group for a project is made with a token of that project, for which
# our
# own is exchanged at Keystone. That needs a role of our user there, `member` at least; one
# assignment
# gives it in all projects of a domain:
#
#     openstack role add --user holdfast --domain Default --inherited member
#
# No trust, no password of a user, nothing that stays after the call. Keystone exchanges no token
# that
# came from an application credential, and none with `[token] allow_rescope_scoped_token = false`.
#
# Names are not unique in Nova: two callers at the same moment may both find none and make one
# each.


GROUPS_VERSION = "2.64"  # Rocky: one policy by name
_PATH = "/os-server-groups"


def create(cloud: Connection, name: str, policy: str, project_id: str) -> ServerGroup:
    there = _as_member_of(cloud, project_id)
    if any(group.name == name for group in _pages(cloud, there, {})):
        raise Conflict(f"project {project_id} has a server group {name} already")
    body = {"server_group": {"name": name, "policy": policy}}
    made = cloud.compute.post(_PATH, json=body, microversion=GROUPS_VERSION, auth=there)
    return _group(answer(made)["server_group"])


def everywhere(cloud: Connection) -> Sequence[ServerGroup]:
    return list(_pages(cloud, None, {"all_projects": "true"}))


def delete(cloud: Connection, group_id: str) -> None:
    try:
        answer(cloud.compute.delete(f"{_PATH}/{group_id}", microversion=GROUPS_VERSION))
    except sdk.NotFoundException:
        return


def _as_member_of(cloud: Connection, project_id: str) -> BaseAuthPlugin | None:
    """What logs us in to that project; None if we are there."""
    session = cloud.session
    if session.get_project_id() == project_id:
        return None
    plugin = Token(
        auth_url=str(session.get_endpoint(interface=AUTH_INTERFACE)),
        token=str(cloud.auth_token),
        project_id=project_id,
    )
    try:
        plugin.get_access(session)
    except (login.Unauthorized, login.Forbidden) as refused:
        raise failed(
            f"project {project_id}: our user has no role there, so it can make no server group;"
            f" give it the role member in that project, or inherited in its domain ({refused})",
            retryable=False,
        ) from refused
    return plugin


def _pages(
    cloud: Connection, auth: BaseAuthPlugin | None, params: Mapping[str, Any]
) -> Iterator[ServerGroup]:
    """Pages of groups go by offset and Nova says nothing of a next one: an empty one ends it."""
    seen: set[str] = set()
    offset = 0
    while True:
        asked = {**params, "offset": offset}
        body = answer(
            cloud.compute.get(_PATH, params=asked, microversion=GROUPS_VERSION, auth=auth)
        )
        groups = [_group(one) for one in body["server_groups"]]
        if not groups:
            return
        yield from (group for group in groups if group.id not in seen)
        seen.update(group.id for group in groups)
        offset += len(groups)


def _group(body: Mapping[str, Any]) -> ServerGroup:
    return ServerGroup(body["id"], body["name"], body["policy"], body["project_id"])


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
            return create(cloud, name, policy, project_id)

    def groups(self) -> Sequence[ServerGroup]:
        with self._edge.call("slots.groups") as cloud:
            return everywhere(cloud)

    def delete_group(self, group_id: str) -> None:
        with self._edge.call("slots.delete_group", group_id) as cloud:
            delete(cloud, group_id)

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


# The Nova side of the Flavors port.
#
# Microversion 2.61 brings the extra specs inside the flavor. It is also below 2.86, from which on
# Nova refuses keys that it does not know, and other programs' filters have keys of their own.


FLAVORS_VERSION = "2.61"
_PUBLIC = "os-flavor-access:is_public"


class NovaFlavors:
    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    def list(self) -> Sequence[Flavor]:
        with self._edge.call("flavors.list") as cloud:
            asked = {"is_public": "None"}  # neither yes nor no: both
            found = pages(
                cloud.compute,
                "/flavors/detail",
                "flavors",
                microversion=FLAVORS_VERSION,
                params=asked,
            )
            return [_flavor(one) for one in found]

    def show(self, flavor_id: str) -> Flavor:
        with self._edge.call("flavors.show", flavor_id) as cloud:
            flavor = _show(cloud, flavor_id)
            return flavor if flavor.public else replace(flavor, projects=_access(cloud, flavor_id))

    def create(self, flavor: Flavor) -> None:
        with self._edge.call("flavors.create", flavor.id) as cloud:
            _flavors_make(cloud, flavor)
            if flavor.extra_specs:
                path = f"{_path(flavor.id)}/os-extra_specs"
                specs = {"extra_specs": dict(flavor.extra_specs)}
                answer(cloud.compute.post(path, json=specs, microversion=FLAVORS_VERSION))
            for project_id in flavor.projects:
                _add_access(cloud, flavor.id, project_id)

    def delete(self, flavor_id: str) -> None:
        with self._edge.call("flavors.delete", flavor_id) as cloud:
            try:
                answer(cloud.compute.delete(_path(flavor_id), microversion=FLAVORS_VERSION))
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


def _flavors_make(cloud: Connection, flavor: Flavor) -> None:
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
        answer(cloud.compute.post("/flavors", json={"flavor": body}, microversion=FLAVORS_VERSION))
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
    body = answer(cloud.compute.get(_path(flavor_id), microversion=FLAVORS_VERSION))
    if "flavor" not in body:  # `detail` and `..` are addresses of other things
        raise NotFound(f"there is no flavor {flavor_id}")
    return _flavor(body["flavor"])


def _access(cloud: Connection, flavor_id: str) -> tuple[str, ...]:
    path = f"{_path(flavor_id)}/os-flavor-access"
    body = answer(cloud.compute.get(path, microversion=FLAVORS_VERSION))
    return tuple(sorted(one["tenant_id"] for one in body["flavor_access"]))


def _add_access(cloud: Connection, flavor_id: str, project_id: str) -> None:
    try:
        _act(cloud, flavor_id, {"addTenantAccess": {"tenant": project_id}})
    except sdk.ConflictException as refused:  # it has access, or the flavor is public
        if _show(cloud, flavor_id).public:
            raise Conflict(f"flavor {flavor_id} is public: all projects have it") from refused


def _act(cloud: Connection, flavor_id: str, body: Mapping[str, Any]) -> None:
    answer(
        cloud.compute.post(f"{_path(flavor_id)}/action", json=body, microversion=FLAVORS_VERSION)
    )


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
