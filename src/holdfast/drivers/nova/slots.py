# SPDX-License-Identifier: Apache-2.0
"""The Slots and Flavors ports: inventories in Placement, server groups and flavors in Nova.

Location of slots. nova-compute writes the inventory of its own resource provider (named after the
hypervisor) as a whole. At each start and every 300 s it removes a class that its virt driver does
not report; if servers use this class, nova-compute does not even start (Nova 34, InventoryInUse).
It leaves child providers alone that it did not create: the drivers touch only children named
`<hypervisor>_…` or marked as theirs. So slots are on a child of Holdfast's own, named
`blazar_<hypervisor>` as in Blazar. A server whose flavor asks for VCPU and for slots gets both
from one provider tree, that is, on one host. The driver never removes the child, since its
generation would start again at 0 and a stale write could pass. Nova removes it with the host's
compute service.

Concurrency. Every write replaces the child's whole inventory at the generation that the caller
read. A server that takes a slot also changes this generation, so the usage checked here can only
be lower at the write. Placement by itself lets a total fall below its usage.
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
from holdfast.model.errors import Conflict, DriverError, NotFound
from holdfast.ports.cloud import Flavor, Inventory, ServerGroup

# Server groups in Nova, for the Slots port.
#
# Nova creates a group in the token's project and accepts only groups of the server's own
# project: a user of another project who names the group when creating a server gets 400, no
# such group. Only admins see all groups. So the driver creates a group with a token of the
# project, for which it exchanges its own token at Keystone. Holdfast's user needs a role there,
# at least `member`; one assignment gives it in all projects of a domain:
#
#     openstack role add --user holdfast --domain Default --inherited member
#
# This needs no trust and no user's password, and nothing remains after the call. Keystone
# exchanges no token that came from an application credential, and none with `[token]
# allow_rescope_scoped_token = false`.
#
# Names are not unique in Nova: two callers at the same moment may both find no group and both
# create one.


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
    """Return an auth plugin scoped to the project; None if the session has this scope already."""
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
            "Nova creates a server group only for a user with a role in the project, and"
            f" Holdfast's user has none in project {project_id}; an administrator gives it one:"
            f" openstack role add --user {session.get_user_id()} --project {project_id} member",
            retryable=False,
        ) from refused
    return plugin


def _pages(
    cloud: Connection, auth: BaseAuthPlugin | None, params: Mapping[str, Any]
) -> Iterator[ServerGroup]:
    """Yield all server groups; Nova pages them by offset and announces no next page.

    An empty page ends the list.
    """
    seen: set[str] = set()
    offset = 0
    while True:
        query = {**params, "offset": offset}
        body = answer(
            cloud.compute.get(_PATH, params=query, microversion=GROUPS_VERSION, auth=auth)
        )
        groups = [_group(group) for group in body["server_groups"]]
        if not groups:
            return
        yield from (group for group in groups if group.id not in seen)
        seen.update(group.id for group in groups)
        offset += len(groups)


def _group(body: Mapping[str, Any]) -> ServerGroup:
    return ServerGroup(body["id"], body["name"], body["policy"], body["project_id"])


#: Placement of Stein or newer; nested providers count from 1.29 on.
VERSION = "1.30"
PREFIX = "blazar_"


class NovaSlots:
    """The Slots port on Placement and Nova; see the module docstring."""

    def __init__(self, edge: Edge, directory: Directory) -> None:
        self._edge = edge
        self._directory = directory

    def inventory(self, host: str, resource_class: str) -> Inventory:
        with self._edge.call("slots.inventory", f"{host}/{resource_class}") as cloud:
            return self._find_provider(cloud, host).inventory(resource_class)

    def set_inventory(
        self, host: str, resource_class: str, total: int, generation: int
    ) -> Inventory:
        with self._edge.call("slots.set_inventory", f"{host}/{resource_class}") as cloud:
            provider = self._find_provider(cloud, host)
            now = provider.inventory(resource_class)
            now.check(total, generation)
            if not total and not now.total:
                return now
            return _write(cloud, provider, resource_class, total)

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

    def check_role(self, project_id: str) -> None:
        with self._edge.call("slots.check_role", project_id) as cloud:
            try:
                _as_member_of(cloud, project_id)
            except DriverError as refused:
                if refused.retryable:
                    raise
                raise Conflict(f"affinity: {refused.message}") from refused

    def without_role(self) -> Sequence[str]:
        with self._edge.call("slots.without_role") as cloud:
            keystone = cloud.session.get_endpoint(interface=AUTH_INTERFACE)
            ours, all_ = (
                answer(cloud.session.get(f"{keystone}/{path}", raise_exc=False))["projects"]
                for path in ("auth/projects", "projects")
            )
            ids = {project["id"] for project in ours}
            return sorted(p["name"] for p in all_ if p["id"] not in ids and p.get("enabled", True))

    def groups(self) -> Sequence[ServerGroup]:
        with self._edge.call("slots.groups") as cloud:
            return everywhere(cloud)

    def delete_group(self, group_id: str) -> None:
        with self._edge.call("slots.delete_group", group_id) as cloud:
            delete(cloud, group_id)

    def _find_provider(self, cloud: Connection, host: str) -> "_SlotProvider":
        try:
            return _read(cloud, *self._place(cloud, host))
        except NotFound:  # the host was recreated since the last call, or is gone
            self._directory.forget(host)
            return _read(cloud, *self._place(cloud, host))

    def _place(self, cloud: Connection, host: str) -> tuple[str, str]:
        """Return the service host and the uuid of the resource provider: the hypervisor's uuid."""
        entry = self._directory.find(cloud, host)
        if len(entry.hypervisors) > 1:
            raise Conflict(f"host {host} has {len(entry.hypervisors)} nodes: name one of them")
        return entry.service_host, entry.hypervisors[0]


@dataclass(frozen=True)
class _SlotProvider:
    """A host's child provider with its inventories and usages at a moment.

    Without uuid the child does not exist yet; a new child has generation 0.
    """

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


def _read(cloud: Connection, host: str, node: str) -> _SlotProvider:
    tree = _tree(cloud, node)
    if node not in tree:
        raise NotFound(f"Placement knows nothing of host {host}")
    parent = tree[node]
    child = _child(tree, parent)
    if child is None:
        return _SlotProvider(host, parent)
    path = f"/resource_providers/{child['uuid']}"
    have = answer(cloud.placement.get(f"{path}/inventories", microversion=VERSION))
    used = answer(cloud.placement.get(f"{path}/usages", microversion=VERSION))
    # If the two answers are from different moments, the older generation makes Placement refuse
    # a write.
    generation = min(body["resource_provider_generation"] for body in (have, used))
    return _SlotProvider(
        host, parent, child["uuid"], generation, have["inventories"], used["usages"]
    )


def _write(
    cloud: Connection, provider: _SlotProvider, resource_class: str, total: int
) -> Inventory:
    inventories = dict(provider.inventories)
    inventories.pop(resource_class, None)
    if total:
        path = f"/resource_classes/{resource_class}"
        answer(cloud.placement.put(path, microversion=VERSION))
        inventories[resource_class] = {"total": total}
    uuid = provider.uuid or _make(cloud, provider.parent)
    body = {"resource_provider_generation": provider.generation, "inventories": inventories}
    path = f"/resource_providers/{uuid}/inventories"
    written = answer(cloud.placement.put(path, json=body, microversion=VERSION))
    return replace(
        provider.inventory(resource_class),
        total=total,
        generation=written["resource_provider_generation"],
    )


def _make(cloud: Connection, parent: Mapping[str, Any]) -> str:
    """Create the child provider; after a conflict, return the child that another caller created.

    The generation shows whether that child was used.
    """
    body = {"name": PREFIX + parent["name"], "parent_provider_uuid": parent["uuid"]}
    try:
        made = answer(cloud.placement.post("/resource_providers", json=body, microversion=VERSION))
    except sdk.ConflictException:
        made = _child(_tree(cloud, parent["uuid"]), parent)
        if made is None:
            raise
    return str(made["uuid"])


def _tree(cloud: Connection, node: str) -> dict[str, Mapping[str, Any]]:
    """Return the provider with this uuid and all providers below, by uuid."""
    params = {"in_tree": node}
    body = answer(cloud.placement.get("/resource_providers", params=params, microversion=VERSION))
    return {provider["uuid"]: provider for provider in body["resource_providers"]}


def _child(
    tree: Mapping[str, Mapping[str, Any]], parent: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    name = PREFIX + parent["name"]
    return next((provider for provider in tree.values() if provider["name"] == name), None)


# Flavors. Microversion 2.61 includes the extra specs in the flavor. It is also below 2.86, from
# which on Nova refuses unknown keys, and filters of other programs have keys of their own.


FLAVORS_VERSION = "2.61"
_PUBLIC = "os-flavor-access:is_public"


class NovaFlavors:
    """The Flavors port on Nova."""

    def __init__(self, edge: Edge) -> None:
        self._edge = edge

    def list(self) -> Sequence[Flavor]:
        with self._edge.call("flavors.list") as cloud:
            params = {"is_public": "None"}  # Nova reads None as "public and private"
            bodies = pages(
                cloud.compute,
                "/flavors/detail",
                "flavors",
                microversion=FLAVORS_VERSION,
                params=params,
            )
            return [_flavor(body) for body in bodies]

    def show(self, flavor_id: str) -> Flavor:
        with self._edge.call("flavors.show", flavor_id) as cloud:
            flavor = _show(cloud, flavor_id)
            return flavor if flavor.public else replace(flavor, projects=_access(cloud, flavor_id))

    def create(self, flavor: Flavor) -> None:
        with self._edge.call("flavors.create", flavor.id) as cloud:
            _make_flavor(cloud, flavor)
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


def _make_flavor(cloud: Connection, flavor: Flavor) -> None:
    """Create the flavor unless it exists; extra specs and access need later calls in Nova."""
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
    """Return whether the existing flavor equals `flavor`, apart from extra specs and access."""
    try:
        there = _show(cloud, flavor.id)
    except sdk.NotFoundException:
        return False  # the name is taken, not the id
    return replace(there, extra_specs={}) == replace(flavor, extra_specs={}, projects=())


def _path(flavor_id: str) -> str:
    """Return the flavor's URL path, quoted.

    Users choose flavor ids, and the driver asks as admin: no id may lead to another resource.
    """
    return f"/flavors/{quote(flavor_id, safe='')}"


def _show(cloud: Connection, flavor_id: str) -> Flavor:
    body = answer(cloud.compute.get(_path(flavor_id), microversion=FLAVORS_VERSION))
    if "flavor" not in body:  # `detail` and `..` are addresses of other things
        raise NotFound(f"there is no flavor {flavor_id}")
    return _flavor(body["flavor"])


def _access(cloud: Connection, flavor_id: str) -> tuple[str, ...]:
    path = f"{_path(flavor_id)}/os-flavor-access"
    body = answer(cloud.compute.get(path, microversion=FLAVORS_VERSION))
    return tuple(sorted(access["tenant_id"] for access in body["flavor_access"]))


def _add_access(cloud: Connection, flavor_id: str, project_id: str) -> None:
    try:
        _act(cloud, flavor_id, {"addTenantAccess": {"tenant": project_id}})
    except sdk.ConflictException as refused:  # the project has access, or the flavor is public
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
    """Return the disk space of a server in GiB: root, ephemeral and swap (MiB in Nova)."""
    swap_gb = -(-int(body["swap"] or 0) // 1024)
    return int(body["disk"]) + int(body["OS-FLV-EXT-DATA:ephemeral"]) + swap_gb
