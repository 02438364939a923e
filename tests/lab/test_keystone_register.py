# SPDX-License-Identifier: Apache-2.0
"""`holdfast keystone register` against a real Keystone, in a region of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from holdfast.cmd.client import main
from tests.lab.house import TYPES, alone, unregister

if TYPE_CHECKING:
    from lab.cloud import Lab

REGION = "register"
USER = "register-holdfast"
RIVAL = "register-blazar"
ONE, TWO = "http://127.0.0.1:8780", "https://cloud.example.org/holdfast"


class Ran(NamedTuple):
    code: int
    lines: list[str]
    err: str


Register = Callable[..., Ran]


@pytest.fixture
def identity(lab: Lab) -> Iterator[Any]:
    """Keystone, with an empty region and nothing of ours; nothing of ours is left in it."""
    with alone(lab), contextlib.closing(lab.connect()) as cloud:
        clear(cloud)
        yield cloud.identity
        clear(cloud)


def clear(cloud: Any) -> None:
    identity = cloud.identity
    if REGION not in {each.id for each in identity.regions()}:
        identity.create_region(id=REGION)
    unregister(cloud, REGION)
    for service in [each for each in identity.services() if each.name == RIVAL]:
        identity.delete_service(service)
    for user in [each for each in identity.users() if each.name == USER]:
        identity.delete_user(user)


@pytest.fixture
def register(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Register:
    """Run the command, as the lab's admin unless told otherwise."""

    def run(*words: str, **credentials: str) -> Ran:
        for name, value in {**lab.credentials(), "OS_REGION_NAME": REGION, **credentials}.items():
            monkeypatch.setenv(name, value)
        code = main(["keystone", "register", *words])
        said = capsys.readouterr()
        return Ran(code, said.out.splitlines(), said.err)

    return run


def entries(identity: Any) -> dict[tuple[str, str], tuple[str, str]]:
    """Type and interface to id and address of what clients find in the region."""
    types = {each.id: each.type for each in identity.services()}
    return {
        (types[each.service_id], each.interface): (each.id, each.url)
        for each in identity.endpoints(region_id=REGION)
        if each.is_enabled
    }


def wanted(url: str) -> dict[tuple[str, str], str]:
    interfaces = ("public", "internal", "admin")
    return {(type_, name): f"{url}/{type_}/v1" for type_ in TYPES for name in interfaces}


def urls(identity: Any) -> dict[tuple[str, str], str]:
    return {key: url for key, (_id, url) in entries(identity).items()}


def test_the_catalog_is_made_kept_and_corrected(identity: Any, register: Register) -> None:
    dry = register("--public-url", ONE, "--dry-run")
    assert dry.code == 0 and len(dry.lines) == 8
    assert all(line.endswith(": would be created") for line in dry.lines)
    assert entries(identity) == {}
    first = register("--public-url", ONE)
    assert first.code == 0, first.err
    assert [line.replace("created", "would be created") for line in first.lines] == dry.lines
    assert urls(identity) == wanted(ONE)
    made = entries(identity)
    again = register("--url", ONE + "/")
    assert again.code == 0
    assert all(line.endswith(": as it should be") for line in again.lines)
    assert entries(identity) == made
    # it moved; one interface has an address of its own
    moved = register("--public-url", TWO, "--internal-url", ONE)
    assert moved.code == 0
    assert sum(f"changed, it was {ONE}" in line for line in moved.lines) == 4
    inside = {key: url for key, url in wanted(ONE).items() if key[1] == "internal"}
    assert urls(identity) == {**wanted(TWO), **inside}
    assert {id_ for id_, _url in entries(identity).values()} == {id_ for id_, _ in made.values()}
    names = {each.name for each in identity.services() if each.type in TYPES}
    assert {"holdfast-reservation", "holdfast-instance-ha"} <= names


def test_foreign_endpoints_are_named_and_disabled_only_on_request(
    identity: Any, register: Register
) -> None:
    service = identity.create_service(type="reservation", name=RIVAL)
    theirs = {"service_id": service.id, "region_id": REGION, "interface": "public"}
    rival = identity.create_endpoint(url="http://127.0.0.1:1234/v1", **theirs)
    refused = register("--public-url", ONE)
    assert (refused.code, refused.lines) == (1, [])
    for words in (f"{RIVAL} public http://127.0.0.1:1234/v1 ({rival.id})", "--replace"):
        assert words in refused.err
    assert urls(identity) == {("reservation", "public"): "http://127.0.0.1:1234/v1"}
    replaced = register("--public-url", ONE, "--replace")
    assert replaced.code == 0
    assert any(f"openstack endpoint set --enable {rival.id}" in line for line in replaced.lines)
    assert urls(identity) == wanted(ONE)
    assert identity.get_endpoint(rival.id).url == "http://127.0.0.1:1234/v1"
    # done once, it needs no asking again
    assert register("--public-url", ONE).code == 0
    # a second entry of ours, made by hand
    ours = next(each for each in identity.services() if each.name == "holdfast-reservation")
    theirs["service_id"] = ours.id
    second = identity.create_endpoint(url=f"{TWO}/reservation/v1", **theirs)
    doubled = register("--public-url", ONE)
    assert doubled.code == 1 and second.id in doubled.err
    assert len(list(identity.endpoints(region_id=REGION))) == 8


def test_the_service_user_is_made_once_and_a_password_is_never_changed(
    identity: Any, register: Register, tmp_path: Any
) -> None:
    secret = tmp_path / "password"
    secret.write_text("right\n")
    words = ("--public-url", ONE, "--service-user", USER)
    missing = register(*words)
    assert missing.code == 1 and "takes --service-password-file" in missing.err
    words = (*words, "--service-password-file", str(secret))
    first = register(*words)
    assert first.code == 0, first.err
    assert first.lines[-5:] == [
        "project service: as it should be",
        f"user {USER}: created",
        f"role admin for {USER} in project service: granted",
        f"role service for {USER} in project service: granted",
        f"role member for {USER} in all projects of domain Default: granted",
    ]
    again = register(*words)
    assert again.code == 0
    assert all(line.endswith("as it should be") for line in again.lines)
    secret.write_text("wrong\n")
    other = register(*words)
    assert other.code == 1
    assert f"user {USER} was there already and has another password" in other.err
    unknown = register(*words, "--service-role", "register-nothing")
    assert unknown.code == 1 and "Keystone has no role register-nothing" in unknown.err


def test_only_an_administrator_may_and_a_region_is_not_made_by_a_typing_error(
    lab: Lab, identity: Any, register: Register
) -> None:
    user = identity.create_user(name=USER, password="pw", domain_id="default")
    role = next(each for each in identity.roles() if each.name == "member")
    project = next(each for each in identity.projects() if each.name == "service")
    identity.assign_project_role_to_user(project, user, role)
    member = register("--public-url", ONE, **lab.credentials(USER, "service"))
    assert (member.code, member.lines) == (1, [])
    assert "takes the role admin" in member.err
    wrong = register("--public-url", ONE, OS_PASSWORD="wrong")
    assert wrong.code == 1 and wrong.err.startswith("Keystone did not let us in")
    typo = register("--public-url", ONE, "--region", "RegionOnee")
    assert typo.code == 1 and "there is no region RegionOnee, Keystone has" in typo.err
    assert entries(identity) == {}
