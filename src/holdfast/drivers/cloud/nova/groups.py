# SPDX-License-Identifier: Apache-2.0
"""Server groups in Nova, for the Slots port.

Nova makes a group in the project of the token, and takes none from anywhere else: a member of
another project who names the group when making a server is told that there is none (400); only
admins see all groups. So a group for a project is made with a token of that project, for which our
own is exchanged at Keystone. That needs a role of our user there, `member` at least; one assignment
gives it in all projects of a domain:

    openstack role add --user holdfast --domain Default --inherited member

No trust, no password of a user, nothing that stays after the call. Keystone exchanges no token that
came from an application credential, and none with `[token] allow_rescope_scoped_token = false`.

Names are not unique in Nova: two callers at the same moment may both find none and make one each.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from keystoneauth1 import exceptions as login
from keystoneauth1.identity import Token
from keystoneauth1.plugin import AUTH_INTERFACE, BaseAuthPlugin
from openstack import exceptions as sdk
from openstack.connection import Connection

from holdfast.drivers.cloud.nova.edge import answer, failed
from holdfast.model.errors import Conflict
from holdfast.ports.cloud import ServerGroup

VERSION = "2.64"  # Rocky: one policy by name
_PATH = "/os-server-groups"


def create(cloud: Connection, name: str, policy: str, project_id: str) -> ServerGroup:
    there = _as_member_of(cloud, project_id)
    if any(group.name == name for group in _pages(cloud, there, {})):
        raise Conflict(f"project {project_id} has a server group {name} already")
    body = {"server_group": {"name": name, "policy": policy}}
    made = cloud.compute.post(_PATH, json=body, microversion=VERSION, auth=there)
    return _group(answer(made)["server_group"])


def everywhere(cloud: Connection) -> Sequence[ServerGroup]:
    return list(_pages(cloud, None, {"all_projects": "true"}))


def delete(cloud: Connection, group_id: str) -> None:
    try:
        answer(cloud.compute.delete(f"{_PATH}/{group_id}", microversion=VERSION))
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
        body = answer(cloud.compute.get(_PATH, params=asked, microversion=VERSION, auth=auth))
        groups = [_group(one) for one in body["server_groups"]]
        if not groups:
            return
        yield from (group for group in groups if group.id not in seen)
        seen.update(group.id for group in groups)
        offset += len(groups)


def _group(body: Mapping[str, Any]) -> ServerGroup:
    return ServerGroup(body["id"], body["name"], body["policy"], body["project_id"])
