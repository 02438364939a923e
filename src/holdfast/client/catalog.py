# SPDX-License-Identifier: Apache-2.0
"""Holdfast in Keystone's catalog: what should be there, what is, and the way from one to the other.

`plan` decides and is pure; `look` and `enter` ask and write. Nothing of another service is changed
unasked, and what was asked for is disabled, not deleted, so that it can be undone.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from holdfast.client import keystone
from holdfast.client.errors import ClientError, Conflict, NotFound
from holdfast.client.identity import Identity

INTERFACES = ("public", "internal", "admin")


@dataclass(frozen=True)
class Kind:
    """A catalog entry of ours: clients find it by `type`, people by `name`."""

    type: str
    name: str
    prefix: str
    description: str
    elder: str
    """the service of this type before us, whose address may end as ours does"""


KINDS = (
    Kind(
        type=keystone.SERVICE,
        name="holdfast-reservation",
        prefix=keystone.PREFIX,
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
    """An address in the catalog, with the name of the service it belongs to."""

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
    """What to do about one kind in one region."""

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
    kind: Kind, urls: Mapping[str, str], services: Mapping[str, str], found: Iterable[Endpoint]
) -> Plan:
    """Compare what is wanted with what is there: service names by id, endpoints of the region.

    A service is ours by its name, or by an address that ends as ours do, unless it bears the name
    of the one before us: Blazar behind a web server is at /reservation/v1 too.
    """
    found = sorted(found, key=lambda each: each.id)
    ours = {id_ for id_, name in services.items() if name == kind.name}
    ours |= {
        each.service_id
        for each in found
        if _is_ours(each.url, kind) and each.service.lower() != kind.elder
    }
    used = {each.service_id for each in found} & ours
    create: dict[str, str] = {}
    change: list[tuple[Endpoint, str]] = []
    keep: list[Endpoint] = []
    for interface, url in urls.items():
        mine = [e for e in found if e.service_id in ours and e.interface == interface]
        best = min(mine, key=lambda e: (e.url != url, not e.enabled), default=None)
        if best is None:
            create[interface] = url
        elif best.url != url or not best.enabled:
            change.append((best, url))
        else:
            keep.append(best)
    settled = {each.id for each in keep} | {each.id for each, _url in change}
    rivals = [each for each in found if each.enabled and each.id not in settled]
    return Plan(min(used or ours, default=None), create, change, keep, rivals)


def _is_ours(url: str, kind: Kind) -> bool:
    return url.rstrip("/").endswith(kind.prefix)


def base_address(text: str) -> str:
    """An address without the prefix of a contract; ValueError says what is wrong with it."""
    url = text.strip().rstrip("/")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError(f"{text!r} is not an address like https://cloud.example.org:8780")
    for kind in KINDS:
        if _is_ours(url, kind):
            raise ValueError(f"{text!r}: leave {kind.prefix} away, it is added for each service")
    return url


def choose_region(asked: str | None, identity: Identity) -> str:
    """The region to register in. None is made: a typing error would become one."""
    known = sorted(each["id"] for each in identity.find("regions"))
    if asked in known or (not asked and len(known) == 1):
        return asked or known[0]
    there = f"Keystone has {', '.join(known) or 'none'}"
    if asked:
        raise NotFound(
            f"there is no region {asked}, {there}: choose one with --region, or make it with"
            f" `openstack region create {asked}`"
        )
    raise ClientError(f"which region? {there}: choose one with --region")


def look(kind: Kind, urls: Mapping[str, str], region: str, identity: Identity) -> Plan:
    """What there is of a kind in the region, and what to do about it."""
    services = identity.find("services", type=kind.type)
    names = {each["id"]: each.get("name") or each["id"] for each in services}
    off = {each["id"] for each in services if not each.get("enabled", True)}
    found = [
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
    made = plan(kind, wanted, names, found)
    return replace(made, service_off=made.service_id in off)


def refuse_rivals(plans: Iterable[Plan], region: str, *, replace: bool) -> None:
    """Before anything is written: what is not ours is not changed unasked."""
    rivals = [str(each) for made in plans for each in made.rivals]
    if rivals and not replace:
        raise Conflict(
            f"region {region} has other endpoints of these types, and clients would find those or"
            f" ours: {'; '.join(rivals)}. Nothing was changed. Remove them, or have them disabled"
            " with --replace"
        )


def enter(kind: Kind, made: Plan, region: str, identity: Identity) -> None:
    """Carry out a plan: ours first, so that there is no moment without any."""
    what = f"service {kind.type} {kind.name}"
    service_id = made.service_id
    if service_id is None:
        new = {"type": kind.type, "name": kind.name, "description": kind.description}
        answer = identity.write(what, "created", "POST", "/services", {"service": new})
        service_id = answer.get("service", {}).get("id")
    elif made.service_off:
        on = {"service": {"enabled": True}}
        identity.write(what, "enabled", "PATCH", f"/services/{service_id}", on)
    else:
        identity.right(what)
    for interface, url in made.create.items():
        body = {"service_id": service_id, "interface": interface, "url": url, "region_id": region}
        place = f"endpoint {kind.type} {interface} {url} in {region}"
        identity.write(place, "created", "POST", "/endpoints", {"endpoint": body})
    for old, url in made.change:
        place = f"endpoint {kind.type} {old.interface} {url} in {region}"
        did = f"changed, it was {old.url}" if old.url != url else "enabled"
        new_values = {"endpoint": {"url": url, "enabled": True}}
        identity.write(place, did, "PATCH", f"/endpoints/{old.id}", new_values)
    for each in made.keep:
        identity.right(f"endpoint {kind.type} {each.interface} {each.url} in {region}")
    for each in made.rivals:
        did = f"disabled (`openstack endpoint set --enable {each.id}` undoes it)"
        off = {"endpoint": {"enabled": False}}
        identity.write(f"endpoint {each}", did, "PATCH", f"/endpoints/{each.id}", off)
