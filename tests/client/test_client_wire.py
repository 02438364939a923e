# SPDX-License-Identifier: Apache-2.0
"""The client library against a small scripted HTTP server: errors, retries, credentials."""

import base64
import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from test_client_fake import HOSTS, LEASES, REQUEST_ID, Fake, clean_environment

from holdfast import client as holdfast
from holdfast.client import dates
from holdfast.client.client import Client


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    clean_environment(monkeypatch)
    server = Fake()
    yield server
    server.close()


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    taken: list[float] = []
    monkeypatch.setattr(dates, "sleep", taken.append)
    return taken


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"error_code": 409, "error_message": "host is reserved"}, "host is reserved"),
        ({"errors": [{"detail": "too many", "title": "No", "code": "x.y"}]}, "too many"),
        ({"errors": [{"title": "No"}]}, "No"),
        ({"conflictingRequest": {"code": 409, "message": "state"}}, "state"),
        ({"title": "409 Conflict", "description": "busy"}, "busy"),
        (b"<html>a proxy</html>", "the server answered 409 Conflict"),
        ([1], "the server answered 409 Conflict"),
    ],
)
def test_every_shape_of_error_is_read(fake: Fake, body: Any, message: str) -> None:
    fake.says(f"PUT {LEASES}/x", (409, body))
    with pytest.raises(holdfast.Conflict) as raised:
        Client(fake.url).leases.update("x", name="y")
    assert raised.value.message == message
    assert raised.value.status == 409
    assert raised.value.request_id == REQUEST_ID


def test_the_public_code_of_an_error_is_kept(fake: Fake) -> None:
    fake.says(f"POST {HOSTS}", (409, {"errors": [{"title": "No", "code": "host.busy"}]}))
    with pytest.raises(holdfast.Conflict) as raised:
        Client(fake.url).hosts.create("cmp-1")
    assert raised.value.code == "host.busy"


@pytest.mark.parametrize(
    ("status", "cls"),
    [
        (302, holdfast.BadRequest),
        (400, holdfast.BadRequest),
        (401, holdfast.Unauthorized),
        (403, holdfast.Forbidden),
        (404, holdfast.NotFound),
        (406, holdfast.BadRequest),
        (409, holdfast.Conflict),
        (500, holdfast.ServerError),
        (503, holdfast.Unavailable),
    ],
)
def test_each_http_status_has_an_error_class(fake: Fake, status: int, cls: type[Exception]) -> None:
    fake.says(f"DELETE {LEASES}/x", (status, {"error_message": "no"}))
    with pytest.raises(cls) as raised:
        Client(fake.url).leases.delete("x")
    assert type(raised.value) is cls


def test_an_error_is_a_line_with_advice(fake: Fake) -> None:
    fake.says(f"POST {LEASES}", (500, {"error_message": "two\nlines."}))
    with pytest.raises(holdfast.ServerError) as raised:
        Client(fake.url).leases.create("a", end_date="2027-01-01 00:00")
    assert str(raised.value) == f"two lines: look for {REQUEST_ID} in the server's log"


def test_a_read_is_repeated_after_503_and_after_a_lost_connection(
    fake: Fake, pauses: list[float]
) -> None:
    fake.says(f"GET {LEASES}", (503, {}), (0, None), (200, {"leases": []}))
    assert Client(fake.url).leases.list() == []
    assert pauses == [0.2, 0.4]


def test_a_read_is_not_repeated_for_ever(fake: Fake, pauses: list[float]) -> None:
    fake.says(f"GET {LEASES}", (503, {"error_message": "the broker is away"}))
    with pytest.raises(holdfast.Unavailable, match="the broker is away: try again in"):
        Client(fake.url, retries=3).leases.list()
    assert fake.times(f"GET {LEASES}") == 4
    assert pauses == [0.2, 0.4, 0.8]


@pytest.mark.parametrize("status", [0, 503])
def test_a_write_is_sent_once(fake: Fake, pauses: list[float], status: int) -> None:
    fake.says(f"POST {LEASES}", (status, {}))
    with pytest.raises(holdfast.ClientError):
        Client(fake.url).leases.create("a", end_date="2027-01-01 00:00")
    assert fake.times(f"POST {LEASES}") == 1
    assert pauses == []


def test_a_write_without_an_answer_says_it_may_be_done(fake: Fake) -> None:
    fake.says(f"POST {LEASES}", (0, None))
    with pytest.raises(holdfast.NotReachable, match="may be done, look before") as raised:
        Client(fake.url).leases.create("a", end_date="2027-01-01 00:00")
    assert raised.value.in_doubt


def test_a_silent_server_is_given_up_after_the_timeout(fake: Fake, pauses: list[float]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(holdfast.NotReachable, match=r"no answer within 0.2 s"):
            Client(url, timeout_s=0.2).leases.list()
    assert pauses == []


@contextlib.contextmanager
def half_an_answer(*, stalls: bool) -> Iterator[str]:
    """A server that breaks off in the middle of its answer, or falls silent there."""
    over = threading.Event()

    def serve(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection, contextlib.suppress(OSError):  # whoever asked may have left by then
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 201 Created\r\nContent-Length: 500\r\n\r\n")
            connection.sendall(b'{"lease":')
            if stalls:
                over.wait(90)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, args=(listening,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            over.set()
            thread.join(90)


@pytest.mark.parametrize("by_keystone", [False, True])
@pytest.mark.parametrize("stalls", [False, True])
def test_a_write_with_half_an_answer_is_in_doubt(
    fake: Fake, stalls: bool, by_keystone: bool
) -> None:
    with half_an_answer(stalls=stalls) as url:
        patience = 0.2 if stalls else 30.0  # who breaks off may do so late
        client = Client(url, timeout_s=patience, session=keystone(url) if by_keystone else None)
        with pytest.raises(holdfast.NotReachable, match="may be done, look before") as raised:
            client.leases.create("a", end_date="2027-01-01 00:00")
    assert raised.value.in_doubt
    assert raised.value.timed_out == stalls


def test_a_read_with_half_an_answer_is_not_in_doubt(fake: Fake) -> None:
    expected = pytest.raises(holdfast.NotReachable, match=r"no answer within 0.2 s$")
    with half_an_answer(stalls=True) as url, expected as raised:
        Client(url, timeout_s=0.2).leases.list()
    assert not raised.value.in_doubt


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://nowhere.invalid", "ftp://x", "x"])
@pytest.mark.parametrize("by_keystone", [False, True])
def test_a_write_that_never_went_out_is_not_in_doubt(
    fake: Fake, url: str, by_keystone: bool
) -> None:
    client = Client(url, session=keystone(url) if by_keystone else None)
    with pytest.raises(holdfast.NotReachable, match="cannot reach") as raised:
        client.leases.delete("x")
    assert not raised.value.in_doubt


def test_a_body_without_a_json_form_is_not_sent(fake: Fake) -> None:
    with pytest.raises(holdfast.BadRequest, match="cannot say this in JSON"):
        Client(fake.url).sim.change(latency_s=float("nan"))
    assert fake.asked == []


def test_an_unreachable_server_is_named(fake: Fake, pauses: list[float]) -> None:
    with pytest.raises(holdfast.NotReachable) as raised:
        Client("http://127.0.0.1:1").leases.list()
    assert str(raised.value) == (
        "cannot reach http://127.0.0.1:1: is it running? start it with `make run`"
        " or set HOLDFAST_URL"
    )
    assert len(pauses) == 2


@pytest.mark.parametrize("answer", [b"hello", {"else": 1}, [1]])
def test_a_stranger_is_not_taken_for_holdfast(fake: Fake, answer: Any) -> None:
    client = Client(fake.url)
    fake.says(f"GET {LEASES}", (200, answer))
    fake.says("GET /holdfast/v1/operations", (200, answer))
    fake.says("PUT /holdfast/v1/sim/settings", (200, answer))
    for ask in (client.leases.list, client.operations.list, client.sim.change):
        with pytest.raises(holdfast.ServerError, match=r"set HOLDFAST_URL to a Holdfast server$"):
            ask()


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("the broker is away", "the broker is away: try again in a moment"),
        ("It is away. Try again later.", "It is away. Try again later."),
        ("no answer: look before you repeat it", "no answer: look before you repeat it"),
    ],
)
def test_unavailable_repeats_the_servers_sentence_and_promises_nothing(
    fake: Fake, said: str, shown: str
) -> None:
    fake.says(f"DELETE {LEASES}/x", (503, {"error_message": said}))
    with pytest.raises(holdfast.Unavailable) as raised:
        Client(fake.url).leases.delete("x")
    assert str(raised.value) == shown


@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ({}, "set HOLDFAST_USER and HOLDFAST_PASSWORD (or HOLDFAST_PASSWORD_FILE),"),
        ({"user": "a", "password": "b"}, "check the user and the password (--user, "),
        ({"token": "t", "user": "a", "password": "b"}, "check the token"),
    ],
)
def test_unauthorized_names_the_credentials_in_use(
    fake: Fake, given: dict[str, str], advice: str
) -> None:
    fake.says(f"GET {LEASES}", (401, {"error_message": "not you"}))
    with pytest.raises(holdfast.Unauthorized) as raised:
        Client(fake.url, **given).leases.list()  # type: ignore[arg-type]
    assert str(raised.value).startswith(f"not you: {advice}")


def test_a_token_is_sent_without_a_password(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login eve password x\n")
    monkeypatch.setenv("NETRC", str(netrc))
    fake.says("GET /readyz", (200, {}))
    Client(fake.url, token="t", user="ana", password="x").health()
    Client(fake.url).health()
    assert fake.asked[0]["headers"]["X-Auth-Token"] == "t"
    assert [each["headers"]["Authorization"] for each in fake.asked] == [None, None]


def test_address_user_and_password_come_from_the_environment(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    secret = tmp_path / "password"
    secret.write_text("pÄss\n")
    monkeypatch.setenv("HOLDFAST_URL", fake.url + "/")
    monkeypatch.setenv("HOLDFAST_USER", "ana")
    monkeypatch.setenv("HOLDFAST_PASSWORD_FILE", str(secret))
    fake.says("GET /readyz", (200, {"ready": True}))
    assert Client().health() == {"ready": True}
    sent = fake.asked[0]["headers"]["Authorization"]
    assert base64.b64decode(sent.split()[1]).decode() == "ana:pÄss"


def test_a_token_from_openstack_is_used_and_one_of_ours_comes_first(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.says("GET /readyz", (200, {}))
    monkeypatch.setenv("OS_TOKEN", "theirs")
    Client(fake.url).health()
    monkeypatch.setenv("HOLDFAST_TOKEN", "ours")
    Client(fake.url).health()
    Client(fake.url, token="mine").health()
    sent = [each["headers"]["X-Auth-Token"] for each in fake.asked]
    assert sent == ["theirs", "ours", "mine"]


def test_a_user_without_a_password_is_refused_before_anything_is_sent(fake: Fake) -> None:
    with pytest.raises(holdfast.Unauthorized, match="no password for user ana"):
        Client(fake.url, user="ana")
    with pytest.raises(holdfast.Unauthorized, match="a password but no user"):
        Client(fake.url, password="x")


def keystone(url: str) -> Any:
    from keystoneauth1 import session, token_endpoint

    return session.Session(auth=token_endpoint.Token(url, "keystone-token"))


def test_a_keystone_session_carries_requests_and_errors_stay_ours(fake: Fake) -> None:
    client = Client(fake.url, session=keystone(fake.url))
    fake.says(f"GET {LEASES}", (200, {"leases": [{"id": "1"}]}))
    assert client.leases.list() == [{"id": "1"}]
    assert fake.asked[0]["headers"]["X-Auth-Token"] == "keystone-token"
    with pytest.raises(holdfast.NotFound, match="no GET"):
        client.leases.show("x")


def test_openstack_variables_make_a_keystone_session(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = {"id": "v3.14", "status": "stable", "links": [{"rel": "self", "href": ""}]}
    version["links"][0]["href"] = f"{fake.url}/v3/"  # type: ignore[index]
    fake.says("GET /v3", (200, {"version": version}))
    fake.says("POST /v3/auth/tokens", (401, {"error": {"message": "wrong password"}}))
    for name, value in {
        "AUTH_URL": f"{fake.url}/v3",
        "USERNAME": "ana",
        "PASSWORD": "secret",
        "PROJECT_NAME": "lab",
        "USER_DOMAIN_NAME": "Default",
        "PROJECT_DOMAIN_NAME": "Default",
    }.items():
        monkeypatch.setenv(f"OS_{name}", value)
    with pytest.raises(holdfast.Unauthorized, match=r"Keystone did not let us in.*OS_\* variables"):
        Client(fake.url).leases.list()
    sent = next(each for each in fake.asked if each["what"] == "POST /v3/auth/tokens")
    assert sent["body"]["auth"]["identity"]["password"]["user"]["name"] == "ana"


@pytest.mark.parametrize("answer", [(0, None), (503, {}), (200, {"no": "version"})])
def test_an_unreachable_keystone_is_not_reachable(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, answer: tuple[int, Any]
) -> None:
    broken = Fake()
    for what in ("GET /", "POST /v3/auth/tokens"):
        broken.says(what, answer)
    for name in ("USERNAME", "PASSWORD", "PROJECT_NAME", "USER_DOMAIN_NAME", "PROJECT_DOMAIN_NAME"):
        monkeypatch.setenv(f"OS_{name}", "x")
    monkeypatch.setenv("OS_AUTH_URL", broken.url)
    try:
        with pytest.raises(holdfast.NotReachable, match="or its Keystone") as raised:
            Client(fake.url).leases.delete("x")
    finally:
        broken.close()
    assert not raised.value.in_doubt
    assert "\n" not in str(raised.value)
    assert fake.asked == []


@pytest.mark.parametrize(
    ("kind", "in_doubt"),
    [("ConnectTimeout", True), ("RequestTimeout", True), ("DiscoveryFailure", False)],
)
def test_a_write_with_an_unexplained_keystoneauth_error_is_in_doubt(
    fake: Fake, kind: str, in_doubt: bool
) -> None:
    from keystoneauth1 import exceptions

    class Lost:
        def request(self, *_args: Any, **_kwargs: Any) -> Any:
            raise getattr(exceptions, kind)("lost")

    client = Client(fake.url, session=Lost())
    with pytest.raises(holdfast.NotReachable) as raised:
        client.leases.delete("x")
    assert raised.value.in_doubt == in_doubt
    with pytest.raises(holdfast.NotReachable) as raised:
        client.health()
    assert not raised.value.in_doubt


def test_a_lease_is_found_by_id_or_by_unique_name(fake: Fake) -> None:
    uuid = "4f2c6b3e-6d0a-4f3c-9a51-0b6f7d1f2a3b"
    fake.says(f"GET {LEASES}/{uuid}", (200, {"lease": {"id": uuid}}))
    leases = [{"id": "1", "name": "a"}, {"id": "2", "name": "b"}, {"id": "3", "name": "b"}]
    fake.says(f"GET {LEASES}", (200, {"leases": leases}))
    client = Client(fake.url)
    assert client.leases.find(uuid) == {"id": uuid}
    assert client.leases.find("a")["id"] == "1"
    with pytest.raises(holdfast.NotFound, match="holdfast lease list"):
        client.leases.find("c")
    with pytest.raises(holdfast.NotUnique, match="2 leases are called 'b': 2, 3") as raised:
        client.leases.find("b")
    assert raised.value.ids == ["2", "3"]


def test_a_host_is_found_by_id_and_by_its_short_or_full_name(fake: Fake) -> None:
    host = {"id": "7", "hypervisor_hostname": "cmp-7.example.org"}
    fake.says(f"GET {HOSTS}/7", (200, {"host": host}))
    fake.says(f"GET {HOSTS}", (200, {"hosts": [host]}))
    hosts = Client(fake.url).hosts
    for ref in ("7", "cmp-7", "CMP-7.example.org"):
        assert hosts.find(ref) == host
    with pytest.raises(holdfast.NotFound, match="holdfast host create"):
        hosts.find("cmp-7.elsewhere.org")


def test_host_properties_ask_as_the_contract_says(fake: Fake) -> None:
    fake.says(f"GET {HOSTS}/properties", (200, {"resource_properties": []}))
    fake.says(f"PATCH {HOSTS}/properties/a%2Fb", (200, {"resource_property": {}}))
    hosts = Client(fake.url).hosts
    assert hosts.properties() == []
    assert hosts.properties(detail=True, private=True) == []
    assert hosts.set_property("a/b", private=True) == {}
    assert [each["query"] for each in fake.asked[:2]] == ["", "detail=True&all=True"]
    assert fake.asked[2]["body"] == {"private": True}


def test_a_further_key_of_a_lease_goes_to_the_server(fake: Fake) -> None:
    fake.says(f"POST {LEASES}", (201, {"lease": {"id": "l1"}}))
    further = {"description": "for the fair", "colour": None}
    Client(fake.url).leases.create("a", end_date="2027-01-01 00:00", **further)
    body = fake.asked[-1]["body"]
    assert body["description"] == "for the fair" and "colour" not in body
