# SPDX-License-Identifier: Apache-2.0
"""Real tokens of a real Keystone: who may, who may not, and what happens while it is away."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import requests
import yaml
from openstack.connection import Connection

from holdfast.client import auth
from holdfast.client.client import Client
from holdfast.client.errors import ClientError, Forbidden, NotFound
from tests.e2e.deployment import host_lease, soon, wire_date
from tests.lab.house import House, house
from tests.processes import eventually
from tests.servers.rabbitmq import RabbitMQ

if TYPE_CHECKING:
    from lab.cloud import Lab

LEASES = "/reservation/v1/leases"
PREFIX = "ks"
BLUE, RED = f"{PREFIX}-blue", f"{PREFIX}-red"
#: user: (project, role)
PEOPLE = {
    f"{PREFIX}-reader": (BLUE, "reader"),
    f"{PREFIX}-member": (BLUE, "member"),
    f"{PREFIX}-other": (RED, "member"),
    f"{PREFIX}-nobody": (RED, "service"),
}
ONE_HOST = "resource_type=physical:host,min=1,max=1"


@dataclass
class Town:
    """A house, and people of two projects around it."""

    lab: Lab
    home: House
    cloud: Any
    projects: dict[str, str]
    users: dict[str, str]

    def credentials(self, who: str) -> dict[str, str]:
        name = f"{PREFIX}-{who}"
        return self.lab.credentials(name, PEOPLE[name][0])

    def client(self, who: str) -> Client:
        return self.home.client(self.credentials(who))

    def token(self, who: str = "", scope: Any = None, **identity: Any) -> str:
        """A token as Keystone gives it: scoped to the project of a person unless you say how."""
        if who:
            user: dict[str, Any] = {"name": f"{PREFIX}-{who}", "domain": {"id": "default"}}
            identity = {"methods": ["password"], "password": {"user": {**user, "password": "pw"}}}
            project = {"project": {"id": self.projects[PEOPLE[f"{PREFIX}-{who}"][0]]}}
            scope = project if scope is None else scope
        auth = {"identity": identity, **({"scope": scope} if scope else {})}
        answer = requests.post(f"{self.lab.auth_url}/auth/tokens", json={"auth": auth}, timeout=90)
        assert answer.status_code == 201, answer.text
        return answer.headers["X-Subject-Token"]

    def application_credential(self, who: str, **more: Any) -> dict[str, Any]:
        """One of a person's own making, as Keystone shows it once: with its secret."""
        body = {"application_credential": {"name": f"{PREFIX}-{time.monotonic_ns()}", **more}}
        url = f"{self.lab.auth_url}/users/{self.users[f'{PREFIX}-{who}']}/application_credentials"
        headers = {"X-Auth-Token": self.token(who)}
        answer = requests.post(url, json=body, headers=headers, timeout=90)
        assert answer.status_code == 201, answer.text
        made: dict[str, Any] = answer.json()["application_credential"]
        return made

    def credential_token(self, made: dict[str, Any]) -> str:
        proof = {"id": made["id"], "secret": made["secret"]}
        return self.token(methods=["application_credential"], application_credential=proof)

    def call(
        self, method: str, path: str, token: str | None, body: Any = None, **headers: str
    ) -> requests.Response:
        sent = {**({"X-Auth-Token": token} if token else {}), **headers}
        return requests.request(method, self.home.url + path, json=body, headers=sent, timeout=90)

    def trusts(self) -> int:
        """How many there are in all of Keystone."""
        found = self.cloud.session.get(f"{self.lab.auth_url}/OS-TRUST/trusts").json()
        return len(found["trusts"])


def lease_body(name: str = "mine") -> dict[str, Any]:
    start, end = wire_date(soon(7200)), wire_date(soon(14400))
    reservations = [host_lease(1, 1)]
    return {"name": name, "start_date": start[:16], "end_date": end[:16],
            "reservations": reservations, "events": []}  # fmt: skip


@pytest.fixture(scope="module")
def town(lab: Lab, rabbitmq: RabbitMQ, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    """It stands beside the houses of other tests."""
    own = {"transport_url": rabbitmq.url, "region": f"{PREFIX}-house"}
    with house(lab, tmp_path_factory.mktemp("house"), **own) as home, lab.connect() as cloud:
        identity = cloud.identity
        clear(identity)
        roles = {each.name: each for each in identity.roles()}
        domain = {"domain_id": "default"}
        made = {name: identity.create_project(name=name, **domain) for name in (BLUE, RED)}
        users = {}
        for name, (project, role) in PEOPLE.items():
            users[name] = identity.create_user(name=name, password="pw", **domain)
            identity.assign_project_role_to_user(made[project], users[name], roles[role])
        for host in ("host-000", "host-001"):
            home.client().hosts.create(host, {})
        ids = {name: each.id for name, each in users.items()}
        try:
            yield Town(lab, home, cloud, {name: each.id for name, each in made.items()}, ids)
        finally:
            clear(identity)


def clear(identity: Any) -> None:
    """Take our people out of Keystone, those that a killed run left there too."""
    for user in [each for each in identity.users() if each.name in PEOPLE]:
        identity.delete_user(user)
    for project in [each for each in identity.projects() if each.name in (BLUE, RED)]:
        identity.delete_project(project)


@pytest.mark.slow("API and manager start, and commands of which each loads for seconds")
def test_roles_decide_and_keystones_ids_own_a_lease(town: Town) -> None:
    member, reader, other = town.client("member"), town.client("reader"), town.client("other")
    body = lease_body()
    lease, theirs = member.leases.create(**body), other.leases.create(**lease_body("theirs"))
    assert lease["project_id"] == town.projects[BLUE]
    assert lease["user_id"] == town.users[f"{PREFIX}-member"]
    # a reader looks, and no more
    assert [each["id"] for each in reader.leases.list()] == [lease["id"]]
    assert reader.leases.show(lease["id"])["name"] == "mine"
    for refused in (
        lambda: reader.leases.create(**body),
        lambda: reader.leases.update(lease["id"], name="stolen"),
        lambda: reader.leases.delete(lease["id"]),
        member.hosts.list,
        member.operations.list,
        town.client("nobody").leases.list,
    ):
        with pytest.raises(Forbidden):
            refused()
    # another project does not learn that there is one
    assert [each["id"] for each in other.leases.list()] == [theirs["id"]]
    for missing in (
        lambda: other.leases.show(lease["id"]),
        lambda: other.leases.update(lease["id"], name="stolen"),
        lambda: other.leases.delete(lease["id"]),
    ):
        with pytest.raises(NotFound):
            missing()
    # an admin sees and changes every project's
    admin = town.home.client()
    assert {lease["id"], theirs["id"]} <= {each["id"] for each in admin.leases.list()}
    assert admin.leases.update(lease["id"], name="renamed")["project_id"] == town.projects[BLUE]
    member.leases.delete(lease["id"])
    other.leases.delete(theirs["id"])
    eventually(lambda: admin.leases.list() == [])


def test_the_role_service_reports_and_validates_tokens(town: Town) -> None:
    mine = town.token("nobody")
    assert town.call("GET", "/holdfast/v1/observations", mine).status_code == 200
    assert town.call("GET", "/holdfast/v1/observations", town.token("member")).status_code == 403
    answer = requests.get(
        f"{town.lab.auth_url}/auth/tokens",
        headers={"X-Auth-Token": mine, "X-Subject-Token": town.token("reader")},
        timeout=90,
    )
    assert answer.status_code == 200


def test_a_token_without_a_project_is_refused_in_the_shape_of_the_contract(town: Town) -> None:
    identity, user = town.cloud.identity, town.users[f"{PREFIX}-member"]
    role = identity.find_role("admin")
    identity.assign_domain_role_to_user("default", user, role)
    identity.assign_system_role_to_user(user, role, "all")
    for scope in ("unscoped", {"domain": {"id": "default"}}, {"system": {"all": True}}):
        token = town.token("member", scope)
        for path in (LEASES, "/holdfast/v1/operations"):
            answer = town.call("GET", path, token)
            assert answer.status_code == 403, (scope, answer.text)
            assert "a token scoped to a project is required" in message(answer)


def message(answer: requests.Response) -> str:
    """The sentence of an error, whose shape is the contract's."""
    body = answer.json()
    if "/reservation/" in answer.url:
        assert body["error_code"] == body["error_name"] == answer.status_code
        return str(body["error_message"])
    fault = body["errors"][0]
    assert fault["status"] == answer.status_code
    return str(fault["detail"])


def test_an_invalid_token_is_a_401_with_the_address_of_keystone(town: Town) -> None:
    revoked = town.token("member")
    subject = {"X-Auth-Token": revoked, "X-Subject-Token": revoked}
    done = requests.delete(f"{town.lab.auth_url}/auth/tokens", headers=subject, timeout=90)
    assert done.status_code == 204
    for token in (None, "garbage", "gAAAAABn" + "x" * 200, "\u00e9".encode(), revoked):
        for path in (LEASES, "/holdfast/v1/operations"):
            answer = town.call("GET", path, token)  # type: ignore[arg-type]
            assert answer.status_code == 401, (token, answer.text)
            assert "X-Auth-Token is required" in message(answer)
            assert town.lab.auth_url in answer.headers["WWW-Authenticate"]


def test_a_token_ends_with_the_expiry_or_with_the_project(town: Town) -> None:
    identity = town.cloud.identity
    short = short_lived(town)
    other = town.token("other")
    identity.update_project(town.projects[RED], is_enabled=False)
    try:
        assert town.call("GET", LEASES, other).status_code == 401
    finally:
        identity.update_project(town.projects[RED], is_enabled=True)
    assert town.call("GET", LEASES, town.token("other")).status_code == 200
    eventually(lambda: town.call("GET", LEASES, short).status_code == 401)


def short_lived(town: Town) -> str:
    """A token that was good a moment ago. Keystone lets it live no longer than the application
    credential it was made with; a machine that is busy needs one that lives longer."""
    for seconds in (4, 16, 64):
        ends = datetime.now(UTC) + timedelta(seconds=seconds)
        with contextlib.suppress(AssertionError):
            made = town.application_credential(
                "member", expires_at=ends.strftime("%Y-%m-%dT%H:%M:%S.%f")
            )
            short = town.credential_token(made)
            if town.call("GET", LEASES, short).status_code == 200:
                return short
    pytest.fail("a token that lives for a minute was never good")


def test_identity_headers_of_a_client_are_worth_nothing(town: Town) -> None:
    claims = {
        "X-Identity-Status": "Confirmed",
        "X-Service-Identity-Status": "Confirmed",
        "X-User-Id": "admin",
        "X-Project-Id": town.projects[RED],
        "X-Roles": "admin,service",
        "X-Is-Admin-Project": "True",
        "X-User": "admin",
        "X-Role": "admin",
    }
    assert town.call("GET", LEASES, None, **claims).status_code == 401
    reader = town.token("reader")
    for _ in range(2):  # unknown, then known
        hosts = town.call("GET", "/reservation/v1/os-hosts", reader, **claims)
        assert hosts.status_code == 403
        made = town.call("POST", LEASES, reader, lease_body(), **claims)
        assert made.status_code == 403


def test_an_application_credential_has_the_roles_and_rules_it_was_given(town: Town) -> None:
    reads = town.application_credential("member", roles=[{"name": "reader"}])
    token = town.credential_token(reads)
    assert town.call("GET", LEASES, token).status_code == 200
    assert town.call("POST", LEASES, token, lease_body()).status_code == 403
    rule = {"service": "reservation", "method": "GET", "path": f"{LEASES}/**"}
    token = town.credential_token(town.application_credential("member", access_rules=[rule]))
    nothing = f"{LEASES}/00000000-0000-0000-0000-000000000000"
    for _ in range(2):
        assert town.call("GET", nothing, token).status_code == 404
        for method, path in (
            ("GET", LEASES),
            ("DELETE", nothing),
            ("GET", "/reservation/v1/os-hosts/properties"),
            ("GET", "/holdfast/v1/operations"),
        ):
            assert town.call(method, path, token).status_code == 401, (method, path)


def test_our_commands_find_the_house_by_password_token_credential_and_cloud(
    town: Town, tmp_path: Path
) -> None:
    env = town.home.environment(town.credentials("member"))
    made = town.application_credential("member")
    by_credential = {
        "OS_AUTH_URL": town.lab.auth_url,
        "OS_APPLICATION_CREDENTIAL_ID": made["id"],
        "OS_APPLICATION_CREDENTIAL_SECRET": made["secret"],
        # left over from a login by password: Keystone would refuse the scope
        "OS_PROJECT_NAME": BLUE,
        "OS_PROJECT_DOMAIN_NAME": "Default",
    }
    auth = {name[3:].lower(): env[name] for name in env if name in PASSWORD}
    clouds = {"clouds": {"mine": {"auth": auth, "region_name": town.home.region}}}
    (tmp_path / "clouds.yaml").write_text(yaml.safe_dump(clouds))
    by_cloud = {"OS_CLOUD": "mine", "OS_CLIENT_CONFIG_FILE": str(tmp_path / "clouds.yaml")}
    by_token = {"OS_AUTH_URL": town.lab.auth_url, "OS_TOKEN": town.token("member")}
    typed = {**by_credential, "OS_AUTH_TYPE": "v3applicationcredential"}
    with_client = [town.credentials("member"), by_credential, typed, by_cloud]
    for credentials in with_client:
        client = town.home.client(credentials)
        assert client.url == town.home.url
        assert client.leases.list() == []
    for credentials in (by_token, by_cloud):
        assert town.home.holdfast("lease", "list", "-f", "json", credentials=credentials) == "[]\n"


PASSWORD = (
    "OS_AUTH_URL", "OS_USERNAME", "OS_PASSWORD", "OS_PROJECT_NAME", "OS_USER_DOMAIN_NAME",
    "OS_PROJECT_DOMAIN_NAME",
)  # fmt: skip


def test_a_region_or_interface_without_holdfast_says_how_to_get_it(town: Town) -> None:
    env = {**town.credentials("member"), "OS_REGION_NAME": "nowhere"}
    session = auth.connect(env)
    with pytest.raises(ClientError, match=r"no reservation service in region nowhere.*register"):
        Client(session=session).leases.list()
    unscoped = {k: v for k, v in town.credentials("member").items() if "PROJECT" not in k}
    with pytest.raises(ClientError, match="name a project"):
        Client(session=auth.connect(unscoped)).leases.list()
    wrong = {**town.credentials("member"), "OS_PASSWORD": "no"}
    with pytest.raises(ClientError, match=r"Keystone did not let us in.*check the credentials"):
        Client(session=auth.connect(wrong)).leases.list()


@pytest.mark.slow("commands of which each loads for seconds")
def test_openstack_reservation_by_the_catalog_makes_a_lease_active_and_no_trust(
    town: Town,
) -> None:
    before = town.trusts()
    home, client = town.home, town.client("member")
    made, listed = home.reservations(("host", "create", "host-003"), ("host", "list"))
    assert made["hypervisor_hostname"] == "host-003"
    assert {each["hypervisor_hostname"] for each in listed} == {"host-000", "host-001", "host-003"}
    new = ("lease", "create", "now", "--reservation", ONE_HOST)
    lease = home.openstack("reservation", *new, credentials=town.credentials("member"))
    assert lease["project_id"] == town.projects[BLUE]
    eventually(lambda: client.leases.show(lease["id"])["status"] == "ACTIVE")
    credential = town.application_credential("member")
    by_credential = {
        "OS_AUTH_URL": town.lab.auth_url,
        "OS_AUTH_TYPE": "v3applicationcredential",
        "OS_APPLICATION_CREDENTIAL_ID": credential["id"],
        "OS_APPLICATION_CREDENTIAL_SECRET": credential["secret"],
    }
    words = (("list",), ("show", "now"), ("delete", "now"))
    leases, shown = home.reservations(
        *(("lease", *each) for each in words), credentials=by_credential
    )
    assert [each["name"] for each in leases] == ["now"]
    assert shown["status"] == "ACTIVE" and not shown["trust_id"]
    eventually(lambda: client.leases.list() == [])
    assert town.trusts() == before


def test_openstacksdk_finds_instance_ha_through_the_catalog(town: Town) -> None:
    there = Connection(session=town.cloud.session, region_name=town.home.region)
    found = there.instance_ha.get_endpoint_data()
    assert found.url == f"{town.home.url}/instance-ha/v1"
    assert found.api_version == (1, 0)


def test_people_log_in_to_the_console_with_their_password_until_keystone_forgets_the_token(
    town: Town,
) -> None:
    def page(path: str, **how: Any) -> requests.Response:
        return browser.get(town.home.url + path, allow_redirects=False, timeout=90, **how)

    def send(path: str, **fields: str) -> requests.Response:
        found = re.search('name="form-token" content="([0-9a-f]+)"', page("/console/login").text)
        assert found
        return browser.post(
            town.home.url + path,
            data={"form_token": found[1], **fields},
            allow_redirects=False,
            timeout=90,
        )

    browser = requests.Session()
    who = {"user": f"{PREFIX}-member", "project": BLUE, "next": "/console/leases"}
    assert page("/console/leases").headers["Location"].startswith("/console/login")
    for wrong in ({"password": "wrong"}, {"password": "pw", "project": RED}):
        refused = send("/console/login", **who | wrong)
        assert refused.status_code == 401
        assert "wrong user, password, project or domain" in refused.text
    entered = send("/console/login", password="pw", **who)
    assert (entered.status_code, entered.headers["Location"]) == (303, "/console/leases")
    shown = page("/console/leases")
    assert shown.status_code == 200
    assert town.projects[BLUE] in shown.text
    token = browser.cookies["holdfast_session"]
    assert send("/console/logout").status_code == 303
    # at once, whatever is remembered of the token
    copied = {"holdfast_session": token}
    again = requests.get(
        f"{town.home.url}/console/leases", cookies=copied, allow_redirects=False, timeout=90
    )
    assert again.headers["Location"].startswith("/console/login")
    cloud: Connection = town.cloud
    revoked = cloud.session.get(
        f"{town.lab.auth_url}/auth/tokens",
        headers={"X-Subject-Token": token},
        raise_exc=False,
    )
    assert revoked.status_code == 404
