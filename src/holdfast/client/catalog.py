# SPDX-License-Identifier: Apache-2.0
"""Registers Holdfast in Keystone: catalog entries and the service user.

`plan` is pure; `read_catalog` reads Keystone and `enter` writes. Endpoints of other services change
only on request (--replace): `enter` disables such endpoints instead of deleting them, so that an
operator can undo the change.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from holdfast.client import auth
from holdfast.client import auth as client_auth
from holdfast.client.errors import ClientError, Conflict, Forbidden, NotFound

_JSON = {"Accept": "application/json"}


class Identity:
    """Client for Keystone's identity API. A dry run reads, and reports intended writes."""

    def __init__(self, session: Any, *, dry_run: bool, say: Callable[[str], None]) -> None:
        from keystoneauth1 import adapter, plugin

        self.session = session
        place: Any = plugin.AUTH_INTERFACE  # the auth URL; the catalog may lack an entry
        self._adapter: Any = adapter.Adapter(
            session, service_type="identity", interface=place, version="3"
        )
        self._dry_run = dry_run
        self._say = say

    def call(self, method: str, path: str, body: Any = None, **query: str) -> Any:
        from keystoneauth1 import exceptions

        options = {"json": body} if body is not None else {}
        try:
            answer = self._adapter.request(path, method, params=query, headers=_JSON, **options)
        except exceptions.Forbidden as error:
            raise Forbidden(
                f"Keystone refuses {method} {path}, which takes the role admin"
            ) from error
        except exceptions.Conflict as error:
            raise Conflict(f"Keystone refuses {method} {path}: {error}") from error
        except (exceptions.BadRequest, exceptions.NotFound) as error:  # such as a short password
            raise ClientError(f"Keystone refuses {method} {path}: {error}") from error
        except exceptions.ClientException as error:
            raise auth.translated(error) from error
        return answer.json() if answer.content else {}

    def find(self, noun: str, **query: str) -> list[dict[str, Any]]:
        """Return all matching objects of a kind."""
        return list(self.call("GET", f"/{noun}", **query)[noun])

    def write(self, subject: str, did: str, method: str, path: str, body: Any = None) -> Any:
        """Change an object and report the change; return {} in a dry run."""
        answer = {} if self._dry_run else self.call(method, path, body)
        self._say(f"{subject}: {'would be ' if self._dry_run else ''}{did}")
        return answer

    def right(self, subject: str) -> None:
        self._say(f"{subject}: as it should be")


INTERFACES = ("public", "internal", "admin")


@dataclass(frozen=True)
class Kind:
    """A catalog entry of Holdfast. Clients look for `type`, people for `name`."""

    type: str
    name: str
    prefix: str
    description: str
    elder: str
    """the service of this type before us, whose address may end as ours does"""


KINDS = (
    Kind(
        type=auth.SERVICE,
        name="holdfast-reservation",
        prefix=auth.PREFIX,
        description="Holdfast: reserves compute",
        elder="blazar",
    ),
    Kind(
        type="instance-ha",
        name="holdfast-instance-ha",
        prefix="/instance-ha/v1",
        description="Holdfast: heals compute",
        elder="masakari",
    ),
)


@dataclass(frozen=True)
class Endpoint:
    """An endpoint in the catalog, with the name of the service."""

    id: str
    service_id: str
    service: str
    interface: str
    url: str
    enabled: bool = True

    def __str__(self) -> str:
        return f"{self.service} {self.interface} {self.url} ({self.id})"


@dataclass(frozen=True)
class Plan:
    """Changes needed for a catalog entry in a region."""

    service_id: str | None
    create: Mapping[str, str]
    """interface to address"""
    change: Sequence[tuple[Endpoint, str]]
    """an endpoint of ours, and its right address"""
    keep: Sequence[Endpoint]
    rivals: Sequence[Endpoint]
    """what clients would find in the place of ours, or beside it"""
    service_off: bool = False


def plan(
    kind: Kind, urls: Mapping[str, str], services: Mapping[str, str], registered: Iterable[Endpoint]
) -> Plan:
    """Compare wanted URLs with the catalog: `services` by id, `registered` endpoints of the region.

    A service belongs to Holdfast by its name, or by a URL that ends in the contract's prefix. A
    service with the name of the predecessor does not: Blazar behind a web server is at
    /reservation/v1 too.
    """
    registered = sorted(registered, key=lambda each: each.id)
    ours = {id_ for id_, name in services.items() if name == kind.name}
    ours |= {
        each.service_id
        for each in registered
        if _is_ours(each.url, kind) and each.service.lower() != kind.elder
    }
    used = {each.service_id for each in registered} & ours
    create: dict[str, str] = {}
    change: list[tuple[Endpoint, str]] = []
    keep: list[Endpoint] = []
    for interface, url in urls.items():
        endpoints = [e for e in registered if e.service_id in ours and e.interface == interface]
        best = min(endpoints, key=lambda e: (e.url != url, not e.enabled), default=None)
        if best is None:
            create[interface] = url
        elif best.url != url or not best.enabled:
            change.append((best, url))
        else:
            keep.append(best)
    settled = {each.id for each in keep} | {each.id for each, _url in change}
    rivals = [each for each in registered if each.enabled and each.id not in settled]
    return Plan(min(used or ours, default=None), create, change, keep, rivals)


def _is_ours(url: str, kind: Kind) -> bool:
    return url.rstrip("/").endswith(kind.prefix)


def base_address(text: str) -> str:
    """Check and return a base URL without a contract prefix; ValueError names the problem."""
    url = text.strip().rstrip("/")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError(f"{text!r} is not an address like https://cloud.example.org:8780")
    for kind in KINDS:
        if _is_ours(url, kind):
            raise ValueError(f"{text!r}: leave {kind.prefix} away, it is added for each service")
    return url


def choose_region(region: str | None, identity: Identity) -> str:
    """Return the region to register in; raise an error if Keystone has no region of the name.

    The function creates no region, because a typing error would become a region.
    """
    regions = sorted(each["id"] for each in identity.find("regions"))
    if region in regions or (not region and len(regions) == 1):
        return region or regions[0]
    there = f"Keystone has {', '.join(regions) or 'none'}"
    if region:
        raise NotFound(
            f"there is no region {region}, {there}: choose one with --region, or make it with"
            f" `openstack region create {region}`"
        )
    raise ClientError(f"which region? {there}: choose one with --region")


def read_catalog(kind: Kind, urls: Mapping[str, str], region: str, identity: Identity) -> Plan:
    """Read the catalog entries of a kind in the region and plan the changes."""
    services = identity.find("services", type=kind.type)
    names = {each["id"]: each.get("name") or each["id"] for each in services}
    off = {each["id"] for each in services if not each.get("enabled", True)}
    endpoints = [
        Endpoint(
            id=each["id"],
            service_id=each["service_id"],
            service=names[each["service_id"]],
            interface=each["interface"],
            url=each["url"],
            enabled=each.get("enabled", True) and each["service_id"] not in off,
        )
        for each in identity.find("endpoints", region_id=region)
        if each["service_id"] in names
    ]
    wanted = {interface: url + kind.prefix for interface, url in urls.items()}
    made = plan(kind, wanted, names, endpoints)
    return replace(made, service_off=made.service_id in off)


def refuse_rivals(plans: Iterable[Plan], region: str, *, replace: bool) -> None:
    """Raise Conflict if other services have endpoints of these types, unless `replace`.

    Call before any write: endpoints of other services change only on request.
    """
    rivals = [str(endpoint) for made in plans for endpoint in made.rivals]
    if rivals and not replace:
        raise Conflict(
            f"region {region} has other endpoints of these types, and clients would find those or"
            f" ours: {'; '.join(rivals)}. Nothing was changed. Remove them, or have them disabled"
            " with --replace"
        )


def enter(kind: Kind, made: Plan, region: str, identity: Identity) -> None:
    """Carry out a plan: enter Holdfast's endpoints, then disable others, to leave no gap."""
    service = f"service {kind.type} {kind.name}"
    service_id = made.service_id
    if service_id is None:
        new = {"type": kind.type, "name": kind.name, "description": kind.description}
        answer = identity.write(service, "created", "POST", "/services", {"service": new})
        service_id = answer.get("service", {}).get("id")
    elif made.service_off:
        on = {"service": {"enabled": True}}
        identity.write(service, "enabled", "PATCH", f"/services/{service_id}", on)
    else:
        identity.right(service)
    for interface, url in made.create.items():
        body = {"service_id": service_id, "interface": interface, "url": url, "region_id": region}
        place = f"endpoint {kind.type} {interface} {url} in {region}"
        identity.write(place, "created", "POST", "/endpoints", {"endpoint": body})
    for old, url in made.change:
        place = f"endpoint {kind.type} {old.interface} {url} in {region}"
        did = f"changed, it was {old.url}" if old.url != url else "enabled"
        new_values = {"endpoint": {"url": url, "enabled": True}}
        identity.write(place, did, "PATCH", f"/endpoints/{old.id}", new_values)
    for endpoint in made.keep:
        identity.right(f"endpoint {kind.type} {endpoint.interface} {endpoint.url} in {region}")
    for endpoint in made.rivals:
        did = f"disabled (`openstack endpoint set --enable {endpoint.id}` undoes it)"
        off = {"endpoint": {"enabled": False}}
        identity.write(f"endpoint {endpoint}", did, "PATCH", f"/endpoints/{endpoint.id}", off)


# The service user, created in the service project with its roles.


#: admin: Nova requires it for aggregates, services, servers of all projects and evacuations.
#: service: enough to validate tokens and to read Placement.
ROLES = ("admin", "service")
#: The role that Nova wants in a project for a server group there.
MEMBER = "member"


@dataclass(frozen=True)
class ServiceUser:
    """The service user to create; without a password the user must exist already."""

    name: str
    password: str | None = field(repr=False)
    project: str = "service"
    domain: str = "Default"
    roles: Sequence[str] = ROLES


def add(wanted: ServiceUser, identity: Identity) -> None:
    """Create missing project, user and roles; report a different password without a change."""
    by_name = {each["name"]: str(each["id"]) for each in identity.find("roles")}
    if missing := [role for role in wanted.roles if role not in by_name]:
        raise NotFound(
            f"Keystone has no role {', '.join(missing)}: make it with `openstack role create`,"
            " or choose others with --service-role"
        )
    domain = _one(identity, "domains", wanted.domain)
    if domain is None:
        raise NotFound(f"Keystone has no domain {wanted.domain}: name --service-domain")
    user, existed = _one(identity, "users", wanted.name, domain_id=domain), True
    if user is None and not wanted.password:
        raise ClientError(
            f"there is no user {wanted.name} yet, and a new one takes --service-password-file"
        )
    project = _project(wanted.project, domain, identity)
    if user is None:
        user, existed = _user(wanted, domain, identity), False
    else:
        identity.right(f"user {wanted.name}")
    roles = {role: by_name[role] for role in wanted.roles}
    where = f"project {wanted.project}"
    _grant((wanted.name, user), roles, (where, project and f"/projects/{project}", ""), identity)
    if MEMBER in by_name:  # for server groups in the projects of owners
        where = f"all projects of domain {wanted.domain}"
        member, path = {MEMBER: by_name[MEMBER]}, f"/OS-INHERIT/domains/{domain}"
        _grant((wanted.name, user), member, (where, path, "/inherited_to_projects"), identity)
    if existed and wanted.password and project:
        _check_password(wanted, domain, project, identity)


def _one(identity: Identity, noun: str, name: str, **query: str) -> str | None:
    matches = identity.find(noun, name=name, **query)
    return str(matches[0]["id"]) if matches else None


def _project(name: str, domain: str, identity: Identity) -> str | None:
    if project := _one(identity, "projects", name, domain_id=domain):
        identity.right(f"project {name}")
        return project
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
    user: tuple[str, str | None],
    roles: dict[str, str],
    where: tuple[str, str | None, str],
    identity: Identity,
) -> None:
    """Grant missing roles; `where` is the place in words, its path, and the end of the path."""
    (name, user_id), (place, at, tail) = user, where
    path = f"{at}/users/{user_id}/roles"
    granted: set[str] = set()
    if user_id and at:
        granted = {each["id"] for each in identity.call("GET", f"{path}{tail}")["roles"]}
    for role, role_id in roles.items():
        subject = f"role {role} for {name} in {place}"
        if role_id in granted:
            identity.right(subject)
        else:
            identity.write(subject, "granted", "PUT", f"{path}/{role_id}{tail}")


def _check_password(wanted: ServiceUser, domain: str, project: str, identity: Identity) -> None:
    """Log in once with the password; Conflict if the user has another password.

    The function does not change the password: other services may use it.
    """
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
        raise client_auth.translated(error) from error
