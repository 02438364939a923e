# SPDX-License-Identifier: Apache-2.0
"""Who is let in: noauth on loopback alone, http_basic by files, keystone by keystonemiddleware."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import bcrypt
import pytest
from falcon import testing
from oslo_middleware import basic_auth

from holdfast import service
from holdfast.daemon import BadSetup
from tests.api.conftest import Build
from tests.api.house import HOSTS, LEASES, OWN, House, basic, basic_config, lease_body

# noauth


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "holdfast.example.org"},
        {"Host": "localhost.evil.example"},
        {"Host": "10.0.0.7:8780"},
        {"Host": "[::1"},
        {"Host": ""},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://[::1"},
        {"Origin": ""},
        {"X-Forwarded-For": "127.0.0.1"},
        {"X-Forwarded-Host": "localhost"},
        {"X-Forwarded-Proto": "https"},
        {"X-Real-Ip": "127.0.0.1"},
        {"Forwarded": "for=127.0.0.1"},
        {"Forwarded": ""},
        {"Via": "1.1 proxy"},
    ],
    ids=str,
)
def test_noauth_refuses_whatever_may_come_from_elsewhere(
    shared: House, headers: dict[str, str]
) -> None:
    answer = shared.call("GET", LEASES, headers=headers)
    assert answer.status_code == 403
    assert "noauth" in answer.json["error_message"]


@pytest.mark.parametrize("peer", ["10.0.0.7", "::ffff:10.0.0.7", "", "unix:", "0.0.0.0", None])
def test_noauth_refuses_peers_that_are_not_loopback_or_not_known(
    shared: House, peer: str | None
) -> None:
    environ = testing.create_environ(path=LEASES, headers={"Host": "localhost"})
    environ.pop("REMOTE_ADDR", None)
    if peer is not None:
        environ["REMOTE_ADDR"] = peer
    assert shared.raw(environ)[0] == 403


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8780", "127.9.9.9", "[::1]:8780"])
def test_noauth_answers_loopback_by_all_its_names(shared: House, host: str) -> None:
    origin = {"Host": host, "Origin": f"http://{host}"}
    for peer in ("127.0.0.1", "::1"):
        answer = shared.call("GET", LEASES, headers=origin, remote_addr=peer)
        assert answer.status_code == 200


def test_what_tells_nothing_is_open_to_everybody(shared: House) -> None:
    for path in ("/healthcheck", "/livez", "/reservation", "/", f"{OWN}/openapi.json"):
        answer = shared.call("GET", path, remote_addr="10.0.0.7", headers={"Host": "x.example"})
        assert answer.status_code in (200, 300)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "example.org", ""])
def test_noauth_refuses_to_listen_elsewhere_and_says_what_to_do(shared: House, host: str) -> None:
    with pytest.raises(BadSetup) as refusal:
        service.check_bind(shared.conf, host)
    for word in (f"refusing to listen on {host}", "noauth", "127.0.0.1", "http_basic", "keystone"):
        assert word in str(refusal.value)
    for fine in ("127.0.0.1", "::1", "localhost"):
        service.check_bind(shared.conf, fine)


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_sites_page_changes_nothing_with_what_a_browser_remembers(
    guarded: House, site: str
) -> None:
    headers = {"Sec-Fetch-Site": site}
    before = guarded.dump()
    answer = guarded.call("POST", LEASES, "member", json=lease_body(), headers=headers)
    assert answer.status_code == 403
    assert guarded.dump() == before
    assert guarded.call("GET", LEASES, "member", headers=headers).status_code == 200
    same = {"Sec-Fetch-Site": "same-origin"}
    answer = guarded.call("POST", LEASES, "member", json=lease_body(), headers=same)
    assert answer.status_code == 201


# http_basic


def test_a_user_acts_in_the_project_and_roles_of_the_users_file(guarded: House) -> None:
    lease = guarded.lease("member")
    assert (lease["user_id"], lease["project_id"]) == ("member", "blue")
    assert guarded.call("GET", LEASES, "reader").json["leases"] == [lease]
    assert guarded.call("GET", LEASES, "admin").json["leases"] == [lease]
    assert guarded.call("GET", LEASES, "other").json["leases"] == []


@pytest.mark.parametrize(
    "authorization",
    [
        None, "", "Basic", "Basic x", "Basic é", "Bearer abc", "Basic bm9jb2xvbg==",
        basic("member", "wrong"), basic("nobody", "x"), basic("member", "x" * 200),
        basic("member", "a\x00b"), basic("#member", "x"), basic("\n", "x"), "Basic //79/TpA",
    ],
)  # fmt: skip
def test_no_or_a_wrong_password_is_a_401_with_a_challenge(
    guarded: House, authorization: str | None
) -> None:
    headers = {} if authorization is None else {"Authorization": authorization}
    answer = guarded.call("GET", LEASES, headers=headers)
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"] == 'Basic realm="holdfast"'
    assert answer.json["error_code"] == 401


def test_headers_that_other_strategies_believe_are_not_believed(guarded: House) -> None:
    spoofed = {"X-Identity-Status": "Confirmed", "X-Roles": "admin", "X-User-Id": "x"}
    assert guarded.call("GET", LEASES, headers=spoofed).status_code == 401
    assert guarded.call("GET", HOSTS, "member", headers=spoofed).status_code == 403


def test_a_user_without_a_project_is_a_403(guarded: House) -> None:
    answer = guarded.call("GET", LEASES, "stray")
    assert answer.status_code == 403
    assert "stray" in answer.json["error_message"]


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The users whose password was really checked, in order."""
    made: list[str] = []
    real = basic_auth.authenticate

    def authenticate(file: str, user: str, password: bytes) -> Any:
        made.append(user)
        return real(file, user, password)

    monkeypatch.setattr(basic_auth, "authenticate", authenticate)
    return made


def test_a_right_password_is_remembered_for_a_while_and_a_wrong_one_never(
    guarded: House, checks: list[str]
) -> None:
    for _ in range(5):
        assert guarded.call("GET", LEASES, "member").status_code == 200
    assert checks == ["member"]
    guarded.clock.ahead_s += 59
    assert guarded.call("GET", LEASES, "member").status_code == 200
    assert checks == ["member"]
    guarded.clock.ahead_s += 2
    assert guarded.call("GET", LEASES, "member").status_code == 200
    assert checks == ["member", "member"]
    for _ in range(2):
        wrong = {"Authorization": basic("member", "wrong")}
        assert guarded.call("GET", LEASES, headers=wrong).status_code == 401
    assert checks == ["member"] * 4


def test_remember_s_of_zero_checks_every_time(guarded: House, checks: list[str]) -> None:
    guarded.conf.set_override("remember_s", 0, "auth")
    for _ in range(3):
        assert guarded.call("GET", LEASES, "member").status_code == 200
    assert checks == ["member"] * 3


def test_a_changed_password_file_forgets_everybody_at_once(
    guarded: House, tmp_path: Path, checks: list[str]
) -> None:
    assert guarded.call("GET", LEASES, "member").status_code == 200
    new = bcrypt.hashpw(b"new", bcrypt.gensalt(4)).decode()
    (tmp_path / "htpasswd").write_text(f"member:{new}\n")
    assert guarded.call("GET", LEASES, "member").status_code == 401
    renewed = {"Authorization": basic("member", "new")}
    assert guarded.call("GET", LEASES, headers=renewed).status_code == 200
    assert checks == ["member"] * 3


def test_a_changed_users_file_counts_at_once(guarded: House, tmp_path: Path) -> None:
    assert guarded.call("GET", HOSTS, "member").status_code == 403
    users = tmp_path / "users.yaml"
    users.write_text("member: {project: blue, roles: [admin]}\n")
    assert guarded.call("GET", HOSTS, "member").status_code == 200
    users.write_text("{}\n")
    assert guarded.call("GET", HOSTS, "member").status_code == 403


@pytest.mark.parametrize(
    ("file", "content", "word"),
    [
        ("htpasswd", None, "htpasswd_file"),
        ("htpasswd", b"member:{SHA}abc\n", "htpasswd_file"),
        ("htpasswd", b"member:$2y$zz\n", "htpasswd_file"),
        ("htpasswd", b"\xff\xfe\x00\n", "htpasswd_file"),
        ("users.yaml", None, "users_file"),
        ("users.yaml", b"{", "users_file"),
        ("users.yaml", b"\xff\x00", "users_file"),
        ("users.yaml", b"", "users_file"),
        ("users.yaml", b"- member\n", "users_file"),
        ("users.yaml", b"member: blue\n", "users_file"),
        ("users.yaml", b"member: {project: blue, roles: admin}\n", "users_file"),
        ("users.yaml", b"member: {project: [blue]}\n", "users_file"),
    ],
    ids=str,
)
def test_a_broken_file_is_a_503_that_names_it_and_mending_it_is_enough(
    guarded: House, tmp_path: Path, file: str, content: bytes | None, word: str
) -> None:
    path = tmp_path / file
    good = path.read_bytes()
    if content is None:
        os.unlink(path)
    else:
        path.write_bytes(content)
    answer = guarded.call("GET", LEASES, "member")
    assert answer.status_code == 503
    assert f"[auth] {word}" in answer.json["error_message"]
    assert str(tmp_path) not in answer.text
    assert "Retry-After" in answer.headers
    path.write_bytes(good)
    assert guarded.call("GET", LEASES, "member").status_code == 200


# keystone

TOKEN: dict[str, Any] = {
    "methods": ["password"],
    "expires_at": "2099-01-01T00:00:00.000000Z",
    "issued_at": "2026-01-01T00:00:00.000000Z",
    "user": {"id": "u1", "name": "alice", "domain": {"id": "default", "name": "Default"}},
    "project": {"id": "blue", "name": "blue", "domain": {"id": "default", "name": "Default"}},
    "roles": [{"id": "r1", "name": "member"}],
    "catalog": [],
}


class FakeKeystone(BaseHTTPRequestHandler):
    """Just enough of Identity v3 to issue the service's token and to judge a client's."""

    server: ThreadingHTTPServer

    def do_GET(self) -> None:
        base = f"http://127.0.0.1:{self.server.server_port}/v3"
        if self.path.startswith("/v3/auth/tokens"):
            asked = self.headers["X-Subject-Token"]
            token = dict(TOKEN)
            if asked == "unscoped":
                token.pop("project")
            known = asked in ("good", "unscoped")
            self._say(200 if known else 404, {"token": token} if known else {"error": {}})
        else:
            version = {"id": "v3.14", "status": "stable", "links": [{"rel": "self", "href": base}]}
            one = self.path.startswith("/v3")
            self._say(200, {"version": version} if one else {"versions": {"values": [version]}})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        url = f"http://127.0.0.1:{self.server.server_port}"
        endpoint = {"id": "e", "interface": "internal", "region": "R", "region_id": "R", "url": url}
        catalog = [{"id": "i", "type": "identity", "name": "keystone", "endpoints": [endpoint]}]
        self._say(201, {"token": {**TOKEN, "catalog": catalog}})

    def _say(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.send_header("X-Subject-Token", "service-token")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


@pytest.fixture(scope="module")
def keystone() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), FakeKeystone)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


def keystone_config(port: int) -> str:
    return f"""
[DEFAULT]
auth_strategy = keystone
[keystone_authtoken]
auth_type = password
auth_url = http://127.0.0.1:{port}
www_authenticate_uri = http://keystone.example:5000
username = holdfast
password = secret
project_name = service
user_domain_id = default
project_domain_id = default
http_connect_timeout = 1
http_request_max_retries = 0
"""


SPOOFED = {
    "X-Identity-Status": "Confirmed",
    "X-Service-Identity-Status": "Confirmed",
    "X-Roles": "admin,member,reader,service",
    "X-User-Id": "mallory",
    "X-Project-Id": "blue",
    "X-Is-Admin-Project": "True",
}
FORMS = [
    LEASES, f"{LEASES}/", f"{LEASES}//", f"/{LEASES}", f"{LEASES}.json", "/reservation//v1/leases",
    "/reservation/v1/%6ceases", "/reservation/v1/./leases", "/reservation/v1/x/../leases",
    "/reservation%2Fv1/leases", "/Reservation/v1/leases", HOSTS, f"{HOSTS}/1", f"{HOSTS}/1.json",
    f"{OWN}/operations", f"{OWN}/operations/", f"//{OWN}/operations", f"{OWN}/sim",
]  # fmt: skip


@pytest.mark.parametrize("path", FORMS)
def test_spoofed_identity_headers_are_believed_on_no_form_of_an_address(
    build: Build, keystone: int, path: str
) -> None:
    house = build(keystone_config(keystone))
    for token in ({}, {"X-Auth-Token": "wrong"}):
        answer = house.call("GET", path, headers={**SPOOFED, **token})
        assert answer.status_code in (401, 404)
        assert "lease" not in answer.json or answer.status_code != 200
    assert house.call("GET", LEASES, headers=SPOOFED).status_code == 401


def test_a_token_gives_the_user_project_and_roles_that_keystone_says(
    build: Build, keystone: int
) -> None:
    house = build(keystone_config(keystone))
    headers = {**SPOOFED, "X-Auth-Token": "good"}
    made = house.call("POST", LEASES, json=lease_body(), headers=headers)
    assert made.status_code == 201, made.text
    assert made.json["lease"]["user_id"] == "u1"
    assert made.json["lease"]["project_id"] == "blue"
    assert house.call("GET", HOSTS, headers=headers).status_code == 403  # a member, no admin
    assert house.call("GET", f"{LEASES}.json", headers=headers).status_code == 200


def test_no_or_a_wrong_token_is_a_401_that_says_where_keystone_is(
    build: Build, keystone: int
) -> None:
    house = build(keystone_config(keystone))
    for headers in ({}, {"X-Auth-Token": "wrong"}, {"X-Auth-Token": ""}):
        answer = house.call("GET", LEASES, headers=headers)
        assert answer.status_code == 401
        assert answer.headers["WWW-Authenticate"] == 'Keystone uri="http://keystone.example:5000"'
        assert answer.json["error_code"] == 401
        assert "x-openstack-request-id" in answer.headers


def test_an_unscoped_token_is_a_403(build: Build, keystone: int) -> None:
    house = build(keystone_config(keystone))
    answer = house.call("GET", LEASES, headers={"X-Auth-Token": "unscoped"})
    assert answer.status_code == 403
    assert "project" in answer.json["error_message"]


@pytest.mark.parametrize("path", [LEASES, f"{OWN}/operations"])
def test_an_unreachable_keystone_is_a_503_in_the_contracts_shape(build: Build, path: str) -> None:
    house = build(keystone_config(1))  # nobody listens there
    answer = house.call("GET", path, headers={"X-Auth-Token": "good"})
    assert answer.status_code == 503
    assert "Retry-After" in answer.headers
    assert "Keystone" in answer.text
    assert answer.json.keys() in ({"error_code", "error_message", "error_name"}, {"errors"})
    assert house.call("GET", path).status_code == 401  # needs no Keystone to say
    for open_path in ("/healthcheck", "/readyz", "/reservation", f"{OWN}/openapi.json"):
        given = house.call("GET", open_path, headers={"X-Auth-Token": "good"})
        assert given.status_code in (200, 300)


def test_the_files_of_http_basic_may_be_bound_elsewhere(build: Build, tmp_path: Path) -> None:
    service.check_bind(build(basic_config(tmp_path)).conf, "0.0.0.0")
