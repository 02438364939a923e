# SPDX-License-Identifier: Apache-2.0
"""A client that comes by Keystone: who it says it is, and where the catalog sends it.

Keystone is scripted here, for what a real one does not show on demand; tests/lab has a real one.
"""

import base64
import os
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from test_client_fake import LEASES, Fake, clean_environment

import holdfast.client as holdfast
from holdfast.client import auth
from holdfast.client.client import Client

LOGIN = "POST /v3/auth/tokens"


class FakeKeystone(Fake):
    """Lets everybody in, with the catalog it was given."""

    def __init__(self) -> None:
        super().__init__()
        links = [{"rel": "self", "href": f"{self.url}/v3/"}]
        version = {"id": "v3.14", "status": "stable", "links": links}
        self.says("GET /v3", (200, {"version": version}))

    def take(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        end = handler.end_headers

        def end_headers() -> None:
            handler.send_header("X-Subject-Token", "by-keystone")
            end()

        handler.end_headers = end_headers  # type: ignore[method-assign]
        super().take(handler, body)

    def lists(self, *endpoints: dict[str, Any] | str) -> None:
        """Endpoints of type reservation; a bare address is public, in RegionOne."""
        base = {"interface": "public", "region": "RegionOne", "region_id": "RegionOne"}
        full = [
            {"id": str(n), **base, **({"url": each} if isinstance(each, str) else each)}
            for n, each in enumerate(endpoints)
        ]
        entry = {"type": "reservation", "name": "holdfast", "id": "s", "endpoints": full}
        catalog = [entry] if full else []
        token = {
            "expires_at": "2099-01-01T00:00:00.000000Z",
            "issued_at": "2026-01-01T00:00:00.000000Z",
            "methods": ["password"],
            "user": {"id": "u", "name": "ana", "domain": {"id": "d", "name": "D"}},
            "project": {"id": "p", "name": "lab", "domain": {"id": "d", "name": "D"}},
            "catalog": catalog,
        }
        self.says(LOGIN, (201, {"token": token}))
        self.says("GET /v3/auth/catalog", (200, {"catalog": catalog}))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    clean_environment(monkeypatch)
    server = Fake()
    server.says(f"GET {LEASES}", (200, {"leases": []}))
    server.says(f"GET /some/where{LEASES}", (200, {"leases": []}))
    yield server
    server.close()


@pytest.fixture
def identity(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeKeystone]:
    server = FakeKeystone()
    for name, value in {
        "AUTH_URL": f"{server.url}/v3",
        "USERNAME": "ana",
        "PASSWORD": "secret",
        "PROJECT_NAME": "lab",
        "USER_DOMAIN_NAME": "Default",
        "PROJECT_DOMAIN_NAME": "Default",
    }.items():
        monkeypatch.setenv(f"OS_{name}", value)
    yield server
    server.close()


@pytest.mark.parametrize("path", ["", "/some/where"])
@pytest.mark.parametrize("slash", ["", "/"])
def test_the_catalog_says_where_holdfast_is(
    fake: Fake, identity: FakeKeystone, path: str, slash: str
) -> None:
    identity.lists(f"{fake.url}{path}/reservation/v1{slash}")
    client = Client()
    assert identity.asked == [], "nothing is asked before it is needed"
    assert client.leases.list() == []
    assert client.leases.list() == []
    assert client.url == fake.url + path
    assert identity.times(LOGIN) == 1


def test_an_explicit_address_needs_no_catalog(
    fake: Fake, identity: FakeKeystone, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity.lists()
    assert Client(fake.url).leases.list() == []
    monkeypatch.setenv("HOLDFAST_URL", fake.url + "/")
    assert Client().leases.list() == []


def test_region_and_interface_choose_the_endpoint(
    fake: Fake, identity: FakeKeystone, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = {"region": "Two", "region_id": "Two"}
    identity.lists(
        "http://one/reservation/v1",
        {"url": "http://two/reservation/v1", **there},
        {"url": "http://inside/reservation/v1", "interface": "internal", **there},
    )
    assert Client().url == "http://one"
    monkeypatch.setenv("OS_REGION_NAME", "Two")
    assert Client().url == "http://two"
    monkeypatch.setenv("OS_INTERFACE", "internal")
    assert Client().url == "http://inside"
    monkeypatch.delenv("OS_INTERFACE")
    monkeypatch.setenv("OS_ENDPOINT_TYPE", "internalURL")
    assert Client().url == "http://inside"
    from keystoneauth1 import adapter

    mine: Any = auth.connect(os.environ)
    chosen = adapter.Adapter(mine.session, region_name="RegionOne", interface="public")
    assert Client(session=chosen).url == "http://one", "what a session says is nearer"
    monkeypatch.setenv("OS_REGION_NAME", "Three")
    with pytest.raises(
        holdfast.ClientError, match=r"region Three \(interface internal\).*keystone register"
    ):
        Client().leases.list()


def test_a_catalog_without_holdfast_or_with_something_else_says_what_to_do(
    identity: FakeKeystone,
) -> None:
    identity.lists()
    with pytest.raises(holdfast.Unauthorized, match="no catalog: name a project"):
        Client().leases.list()
    identity.lists({"url": "http://admin", "interface": "admin"})
    with pytest.raises(holdfast.ClientError, match=r"in any region.*HOLDFAST_URL"):
        Client().leases.list()
    identity.lists("http://blazar:1234/v1")
    with pytest.raises(holdfast.ClientError, match=r"http://blazar:1234/v1, is not a Holdfast"):
        Client().leases.list()


def test_a_token_needs_no_password_and_its_catalog_is_asked_for(
    fake: Fake, identity: FakeKeystone, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity.lists(f"{fake.url}/reservation/v1")
    monkeypatch.setenv("OS_TOKEN", "tk")
    for root in (f"{identity.url}/v3", identity.url + "/"):
        monkeypatch.setenv("OS_AUTH_URL", root)
        assert Client().leases.list() == []
    assert fake.asked[0]["headers"]["X-Auth-Token"] == "tk"
    assert identity.asked[0]["headers"]["X-Auth-Token"] == "tk"
    assert identity.times(LOGIN) == 0
    identity.says("GET /v3/auth/catalog", (401, {"error": {"message": "expired"}}))
    with pytest.raises(holdfast.Unauthorized, match="Keystone did not let us in"):
        Client().leases.list()
    identity.says("GET /v3/auth/catalog", (200, {"no": "catalog"}))
    with pytest.raises(holdfast.NotReachable, match="does not answer like a Keystone"):
        Client(retries=0).leases.list()
    # another way of logging in was named: the token is somebody else's affair
    monkeypatch.setenv("OS_AUTH_TYPE", "v3password")
    assert Client().leases.list() == []
    assert identity.times(LOGIN) == 1


def test_an_application_credential_asks_for_no_project(
    fake: Fake, identity: FakeKeystone, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity.lists(f"{fake.url}/reservation/v1")
    monkeypatch.setenv("OS_APPLICATION_CREDENTIAL_ID", "c1")
    monkeypatch.setenv("OS_APPLICATION_CREDENTIAL_SECRET", "s3cret")
    assert Client().leases.list() == []
    sent = next(each for each in identity.asked if each["what"] == LOGIN)["body"]["auth"]
    assert sent["identity"]["application_credential"]["id"] == "c1"
    assert "scope" not in sent


def test_basic_credentials_of_ours_come_before_keystone(
    fake: Fake, identity: FakeKeystone, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_URL", fake.url)
    monkeypatch.setenv("HOLDFAST_USER", "ana")
    monkeypatch.setenv("HOLDFAST_PASSWORD", "x")
    assert Client().leases.list() == []
    sent = fake.asked[0]["headers"]["Authorization"].removeprefix("Basic ")
    assert base64.b64decode(sent) == b"ana:x"
    assert identity.asked == []


def test_a_lost_keystone_is_not_reachable_and_nothing_is_in_doubt(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("USERNAME", "PASSWORD", "PROJECT_NAME", "USER_DOMAIN_NAME", "PROJECT_DOMAIN_NAME"):
        monkeypatch.setenv(f"OS_{name}", "x")
    monkeypatch.setenv("OS_AUTH_URL", "http://127.0.0.1:1/v3")
    with pytest.raises(holdfast.NotReachable, match=r"cannot reach Keystone.*check OS_AUTH_URL"):
        Client(retries=0).leases.list()
    with pytest.raises(holdfast.NotReachable) as raised:
        Client().leases.delete("x")
    assert not raised.value.in_doubt
    monkeypatch.setenv("OS_TOKEN", "tk")
    with pytest.raises(holdfast.NotReachable, match="cannot reach Keystone"):
        Client(retries=0).leases.list()


def test_an_untrusted_certificate_is_named_in_the_error(
    fake: Fake, identity: FakeKeystone, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_URL", fake.url.replace("http:", "https:"))
    identity.lists()
    with pytest.raises(holdfast.NotReachable, match=r"cannot trust https:.*OS_CACERT") as raised:
        Client().leases.delete("x")
    assert not raised.value.in_doubt
    monkeypatch.delenv("HOLDFAST_URL")
    monkeypatch.setenv("OS_AUTH_URL", identity.url.replace("http:", "https:"))
    for token in ("", "tk"):
        monkeypatch.setenv("OS_TOKEN", token)
        with pytest.raises(holdfast.NotReachable, match=r"cannot trust Keystone.*OS_CACERT"):
            Client(retries=0).leases.list()
