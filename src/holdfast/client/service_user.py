# SPDX-License-Identifier: Apache-2.0
"""The user whom Holdfast works as: made in its project, with its roles."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.client import keystone
from holdfast.client.errors import ClientError, Conflict, NotFound
from holdfast.client.identity import Identity

#: admin: what Nova asks for at aggregates, services, servers of every project and evacuations.
#: service: enough to look at other people's tokens and at Placement.
ROLES = ("admin", "service")


@dataclass(frozen=True)
class ServiceUser:
    """Who it is to be; without a password it must be there already."""

    name: str
    password: str | None = field(repr=False)
    project: str = "service"
    domain: str = "Default"
    roles: Sequence[str] = ROLES


def add(wanted: ServiceUser, identity: Identity) -> None:
    """Make what is missing; a password that differs is reported, not changed."""
    by_name = {each["name"]: str(each["id"]) for each in identity.find("roles")}
    if missing := [role for role in wanted.roles if role not in by_name]:
        raise NotFound(
            f"Keystone has no role {', '.join(missing)}: make it with `openstack role create`,"
            " or choose others with --service-role"
        )
    domain = _one(identity, "domains", wanted.domain)
    if domain is None:
        raise NotFound(f"Keystone has no domain {wanted.domain}: name --service-domain")
    user, known = _one(identity, "users", wanted.name, domain_id=domain), True
    if user is None and not wanted.password:
        raise ClientError(
            f"there is no user {wanted.name} yet, and a new one takes --service-password-file"
        )
    project = _project(wanted.project, domain, identity)
    if user is None:
        user, known = _user(wanted, domain, identity), False
    else:
        identity.right(f"user {wanted.name}")
    _grant(wanted, {role: by_name[role] for role in wanted.roles}, (user, project), identity)
    if known and wanted.password and project:
        _check_password(wanted, domain, project, identity)


def _one(identity: Identity, noun: str, name: str, **query: str) -> str | None:
    found = identity.find(noun, name=name, **query)
    return str(found[0]["id"]) if found else None


def _project(name: str, domain: str, identity: Identity) -> str | None:
    if found := _one(identity, "projects", name, domain_id=domain):
        identity.right(f"project {name}")
        return found
    new = {"name": name, "domain_id": domain, "description": "Services of the cloud"}
    answer = identity.write(f"project {name}", "created", "POST", "/projects", {"project": new})
    made: str | None = answer.get("project", {}).get("id")
    return made


def _user(wanted: ServiceUser, domain: str, identity: Identity) -> str | None:
    new = {
        "name": wanted.name,
        "domain_id": domain,
        "password": wanted.password,
        "description": "Holdfast works as this user",
    }
    answer = identity.write(f"user {wanted.name}", "created", "POST", "/users", {"user": new})
    made: str | None = answer.get("user", {}).get("id")
    return made


def _grant(
    wanted: ServiceUser,
    roles: dict[str, str],
    where: tuple[str | None, str | None],
    identity: Identity,
) -> None:
    user, project = where
    path = f"/projects/{project}/users/{user}/roles"
    granted: set[str] = set()
    if user and project:
        granted = {each["id"] for each in identity.call("GET", path)["roles"]}
    for role, role_id in roles.items():
        what = f"role {role} for {wanted.name} in project {wanted.project}"
        if role_id in granted:
            identity.right(what)
        else:
            identity.write(what, "granted", "PUT", f"{path}/{role_id}")


def _check_password(wanted: ServiceUser, domain: str, project: str, identity: Identity) -> None:
    """Log in with it once. To change it is left to whoever knows what else uses it."""
    from keystoneauth1 import exceptions
    from keystoneauth1.identity import Password

    auth: Any = Password(
        auth_url=identity.session.auth.auth_url,
        username=wanted.name,
        password=wanted.password,
        user_domain_id=domain,
        project_id=project,
    )
    try:
        auth.get_access(identity.session)
    except exceptions.Unauthorized as error:
        raise Conflict(
            f"user {wanted.name} was there already and has another password, which was left as it"
            f" is: use that one, or change it with `openstack user set --password-prompt"
            f" {wanted.name}`"
        ) from error
    except exceptions.ClientException as error:
        raise keystone.translated(error) from error
