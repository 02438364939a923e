# SPDX-License-Identifier: Apache-2.0
"""Who is let in: noauth on loopback alone, http_basic by files, keystone by keystonemiddleware."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import bcrypt
import pytest
from falcon import testing
from oslo_middleware import basic_auth

from holdfast.api.auth import AuthCache
from holdfast.app import service
from holdfast.app.daemon import BadSetup
from tests.api.conftest import Build
from tests.api.house import (
    HOSTS,
    LEASES,
    OWN,
    House,
    TestClock,
    basic,
    basic_config,
    copy,
    lease_body,
)

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
        *({name: "x"} for name in ("X-Forwarded-Prefix", "X-Client-Ip", "X-Cluster-Client-Ip")),
        *({name: "x"} for name in ("True-Client-Ip", "CF-Connecting-Ip", "X-Original-Host")),
        *({name: "x"} for name in ("CDN-Loop", "X-Varnish", "X-ARR-SSL", "WL-Proxy-Client-IP")),
        {"X-Envoy-External-Address": "127.0.0.1"},
    ],
    ids=str,
)
def test_noauth_refuses_whatever_may_come_from_elsewhere(
    shared: House, headers: dict[str, str]
) -> None:
    answer = shared.call("GET", LEASES, headers=headers)
    assert answer.status_code == 403
    assert "noauth" in answer.json["error_message"]


def test_noauth_refuses_http_1_0_which_nginx_speaks_to_what_is_behind_it(shared: House) -> None:
    for version, status in (("1.0", 403), ("1.1", 200)):
        asked = {"Host": "127.0.0.1:8780", "Connection": "close"}
        environ = testing.create_environ(path=LEASES, headers=asked, http_version=version)
        assert shared.raw({**environ, "REMOTE_ADDR": "127.0.0.1"})[0] == status


@pytest.mark.parametrize(
    ("way", "host", "url", "word"),
    [
        ("noauth", "127.0.0.1", "", "every user and program of this machine is an admin"),
        ("http_basic", "0.0.0.0", "", "WITHOUT TLS"),
        ("http_basic", "0.0.0.0", "http://cloud.example", "WITHOUT TLS"),
        ("http_basic", "0.0.0.0", "https://cloud.example", ""),
        ("http_basic", "127.0.0.1", "", ""),
        ("keystone", "0.0.0.0", "", ""),
    ],
)
def test_a_start_says_what_auth_leaves_open(
    build: Build, way: str, host: str, url: str, word: str
) -> None:
    conf = build().conf
    conf.set_override("auth_strategy", way)
    conf.set_override("host", host, "api")
    conf.set_override("public_url", url, "api")
    said = service.auth_warning(conf)
    assert word in said and bool(word) == bool(said)


@pytest.mark.parametrize("path", ["/reservation", "/instance-ha", "/instance-ha/v2", f"{OWN}"])
def test_public_documents_do_not_repeat_a_foreign_host(build: Build, path: str) -> None:
    house = build()

    def links(host: str) -> str:
        return house.call("GET", path, headers={"Host": host}).text

    assert '"http://localhost:1/' in links("localhost:1")
    for host in ("evil.example", "127.0.0.1.evil.example", "[::1"):
        assert "evil" not in links(host) and '"href": "/' in links(host)
    house.conf.set_override("host", "api.example", "api")
    assert '"http://api.example:8780/' in links("api.example:8780")
    house.conf.set_override("public_url", "https://cloud.example/", "api")
    assert '"https://cloud.example/' in links("evil.example")


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


def test_routes_without_secrets_need_no_login(shared: House) -> None:
    for path in ("/healthcheck", "/livez", "/reservation", f"{OWN}/openapi.json"):
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


@pytest.fixture(scope="module")
def by_files(
    furnished: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[House, Path]]:
    """A house with http_basic and the folder of its files, for tests that leave them as they are
    and try few wrong passwords."""
    folder = tmp_path_factory.mktemp("by-files")
    with House(copy(furnished, folder), basic_config(folder)) as house:
        yield house, folder


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
    by_files: tuple[House, Path], authorization: str | None
) -> None:
    headers = {} if authorization is None else {"Authorization": authorization}
    answer = by_files[0].call("GET", LEASES, headers=headers)
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
    guarded.clock.stand_still()
    for _ in range(5):
        assert guarded.call("GET", LEASES, "member").status_code == 200
    assert checks == ["member"]
    guarded.clock.ahead_s += 44  # in the last quarter of its time it is checked again
    assert guarded.call("GET", LEASES, "member").status_code == 200
    assert checks == ["member"]
    guarded.clock.ahead_s += 17
    assert guarded.call("GET", LEASES, "member").status_code == 200
    assert checks == ["member", "member"]
    for _ in range(2):
        wrong = {"Authorization": basic("member", "wrong")}
        assert guarded.call("GET", LEASES, headers=wrong).status_code == 401
    assert checks == ["member"] * 4


def test_auth_cache_s_of_zero_checks_every_time(guarded: House, checks: list[str]) -> None:
    guarded.conf.set_override("auth_cache_s", 0, "auth")
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
    by_files: tuple[House, Path], file: str, content: bytes | None, word: str
) -> None:
    house, folder = by_files
    path = folder / file
    good = path.read_bytes()
    if content is None:
        os.unlink(path)
    else:
        path.write_bytes(content)
    answer = house.call("GET", LEASES, "member")
    path.write_bytes(good)
    assert answer.status_code == 503
    assert f"[auth] {word}" in answer.json["error_message"]
    assert str(folder) not in answer.text
    assert "Retry-After" in answer.headers
    assert house.call("GET", LEASES, "member").status_code == 200


def test_a_broken_entry_of_the_users_file_locks_out_its_user_only(
    guarded: House, tmp_path: Path
) -> None:
    text = "reader: {project: blue}\nmember:\n  project: blue\n  role: [member]\n"
    (tmp_path / "users.yaml").write_text(text)
    assert guarded.call("GET", LEASES, "reader").status_code == 200
    answer = guarded.call("GET", LEASES, "member")
    assert answer.status_code == 503
    assert "line 2: user member: key 'role' is unknown" in answer.json["error_message"]


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
RULE = {"id": "a", "method": "GET", "path": LEASES, "service": "reservation"}
#: What is different in the tokens of these names; None: it is not there.
CHANGES: dict[str, dict[str, Any]] = {
    "unscoped": {"project": None},
    "brief": {},
    "credential": {"application_credential": {"id": "c", "restricted": True}},
    "ruled": {
        "application_credential": {"id": "c", "access_rules": [RULE]},
        "catalog": [{"id": "s", "type": "reservation", "name": "holdfast", "endpoints": []}],
    },
    "bound": {"bind": {"x509": "a fingerprint"}},
}


class FakeKeystone(BaseHTTPRequestHandler):
    """Just enough of Identity v3 to issue the service's token and to judge a client's."""

    server: ThreadingHTTPServer

    def do_GET(self) -> None:
        base = f"http://127.0.0.1:{self.server.server_port}/v3"
        if self.path.startswith("/v3/auth/tokens"):
            asked = self.headers["X-Subject-Token"]
            known = asked in CHANGES or asked.startswith("good")
            token = {k: v for k, v in {**TOKEN, **CHANGES.get(asked, {})}.items() if v is not None}
            if asked == "brief":
                token["expires_at"] = f"{datetime.now(UTC) + timedelta(seconds=50):%FT%T.%fZ}"
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


@contextlib.contextmanager
def fake_keystone() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), FakeKeystone)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def keystone() -> Iterator[int]:
    with fake_keystone() as port:
        yield port


def keystone_config(port: int, more: str = "", timeout_s: int = 60) -> str:
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
http_connect_timeout = {timeout_s}
http_request_max_retries = 0
{more}
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


@pytest.fixture(scope="module")
def strict(
    furnished: Path, keystone: int, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[House]:
    """A house that asks Keystone, for tests that leave nothing behind."""
    state = copy(furnished, tmp_path_factory.mktemp("strict"))
    with House(state, keystone_config(keystone)) as house:
        yield house


@pytest.mark.parametrize("path", FORMS)
def test_spoofed_identity_headers_are_believed_on_no_form_of_an_address(
    strict: House, path: str
) -> None:
    house = strict
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


def test_no_or_a_wrong_token_is_a_401_that_says_where_keystone_is(strict: House) -> None:
    house = strict
    for headers in ({}, {"X-Auth-Token": "wrong"}, {"X-Auth-Token": ""}):
        answer = house.call("GET", LEASES, headers=headers)
        assert answer.status_code == 401
        assert answer.headers["WWW-Authenticate"] == 'Keystone uri="http://keystone.example:5000"'
        assert answer.json["error_code"] == 401
        assert "x-openstack-request-id" in answer.headers


def test_an_unscoped_token_is_a_403(strict: House) -> None:
    answer = strict.call("GET", LEASES, headers={"X-Auth-Token": "unscoped"})
    assert answer.status_code == 403
    assert "project" in answer.json["error_message"]


@pytest.mark.parametrize("path", [LEASES, f"{OWN}/operations"])
def test_an_unreachable_keystone_is_a_503_in_the_contracts_shape(build: Build, path: str) -> None:
    house = build(keystone_config(1))  # no program listens there
    answer = house.call("GET", path, headers={"X-Auth-Token": "good"})
    assert answer.status_code == 503
    assert "Retry-After" in answer.headers
    assert "Keystone" in answer.text
    assert answer.json.keys() in ({"error_code", "error_message", "error_name"}, {"errors"})
    assert house.call("GET", path).status_code == 401  # needs no Keystone to say
    for open_path in ("/healthcheck", "/readyz", "/reservation", f"{OWN}/openapi.json"):
        given = house.call("GET", open_path, headers={"X-Auth-Token": "good"})
        assert given.status_code in (200, 300)


@pytest.fixture
def verdicts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tokens that keystonemiddleware was asked about, in order."""
    from keystonemiddleware.auth_token import AuthProtocol

    asked: list[str] = []
    real = AuthProtocol.fetch_token

    def fetch_token(self: Any, token: str, **kwargs: Any) -> Any:
        asked.append(token)
        return real(self, token, **kwargs)

    monkeypatch.setattr(AuthProtocol, "fetch_token", fetch_token)
    return asked


def still(house: House) -> House:
    """Whose memory lasts as long as the test says."""
    house.clock.stand_still()
    return house


def ask(house: House, token: str, path: str = LEASES, **headers: str) -> int:
    return house.call("GET", path, headers={"X-Auth-Token": token, **headers}).status_code


@pytest.mark.parametrize("token", ["good", "credential"])
def test_a_token_is_remembered_for_a_while_and_a_wrong_one_never(
    build: Build, keystone: int, verdicts: list[str], token: str
) -> None:
    house = still(build(keystone_config(keystone)))
    for _ in range(5):
        assert ask(house, token) == 200
    assert verdicts == [token]
    house.clock.ahead_s += 59
    assert ask(house, token) == 200
    assert verdicts == [token]
    house.clock.ahead_s += 2
    assert ask(house, token) == 200
    assert verdicts == [token, token]
    for _ in range(3):
        assert ask(house, "wrong") == 401
        assert ask(house, "unscoped") == 403
    assert verdicts[2:] == ["wrong", "unscoped"] * 3


def test_a_remembered_token_is_nobody_elses(
    build: Build, keystone: int, verdicts: list[str]
) -> None:
    house = still(build(keystone_config(keystone)))
    for token in ("good", "good2", "good", "good2"):
        assert ask(house, token) == 200
    assert verdicts == ["good", "good2"]
    assert ask(house, "goo") == ask(house, "Good") == ask(house, "") == 401
    assert house.call("GET", LEASES, headers=SPOOFED).status_code == 401
    assert ask(house, "good", HOSTS, **SPOOFED) == 403  # a member, whatever the headers say


def test_a_token_is_not_remembered_beyond_its_own_end(
    build: Build, keystone: int, verdicts: list[str]
) -> None:
    house = still(build(keystone_config(keystone)))
    assert ask(house, "brief") == ask(house, "brief") == 200
    assert verdicts == ["brief"]
    house.clock.ahead_s += 51  # its 50 s are over, the minute is not
    ask(house, "brief")
    assert verdicts == ["brief", "brief"]


def test_access_rules_are_looked_at_for_every_request(
    build: Build, keystone: int, verdicts: list[str]
) -> None:
    house = still(build(keystone_config(keystone)))
    for _ in range(2):
        assert ask(house, "ruled") == 200
        assert ask(house, "ruled", f"{LEASES}/x") == 401
        assert ask(house, "ruled", f"{OWN}/operations") == 401
        headers = {"X-Auth-Token": "ruled"}
        assert house.call("POST", LEASES, json=lease_body(), headers=headers).status_code == 401
    assert verdicts == ["ruled"] * 8


def test_a_token_bound_to_more_than_itself_is_not_remembered(
    build: Build, keystone: int, verdicts: list[str]
) -> None:
    house = still(build(keystone_config(keystone)))
    assert ask(house, "bound") == ask(house, "bound") == 200
    assert verdicts == ["bound", "bound"]


def test_a_service_token_is_judged_even_beside_a_remembered_token(
    build: Build, keystone: int, verdicts: list[str]
) -> None:
    house = still(build(keystone_config(keystone)))
    assert ask(house, "good") == 200
    headers = {"X-Service-Token": "wrong"}
    assert ask(house, "good", **headers) == ask(house, "good", **headers) == 401
    assert verdicts == ["good", "wrong", "good", "wrong", "good"]


@pytest.mark.parametrize("more", ["token_cache_time = -1", "[auth]\nauth_cache_s = 0"])
def test_an_operator_who_wants_no_token_remembered_gets_that(
    build: Build, keystone: int, verdicts: list[str], more: str
) -> None:
    house = still(build(keystone_config(keystone, more)))
    for _ in range(3):
        assert ask(house, "good") == 200
    assert verdicts == ["good"] * 3


def test_while_keystone_is_away_known_tokens_go_on_and_others_are_503(build: Build) -> None:
    with fake_keystone() as port:
        house = still(build(keystone_config(port)))
        assert ask(house, "good") == 200
    for _ in range(3):
        assert ask(house, "good") == 200
        answer = house.call("GET", LEASES, headers={"X-Auth-Token": "good2"})
        assert answer.status_code == 503
        assert "Retry-After" in answer.headers


def test_a_keystone_that_says_nothing_is_a_503_in_seconds(build: Build) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        house = build(keystone_config(silent.getsockname()[1], timeout_s=1))
        began = time.monotonic()
        assert ask(house, "good") == 503
        assert time.monotonic() - began < 60  # without a limit it would wait for ever


def test_a_keystone_that_hangs_does_not_take_the_threads_of_those_we_know(
    build: Build, keystone: int, monkeypatch: pytest.MonkeyPatch, verdicts: list[str]
) -> None:
    from keystonemiddleware.auth_token import AuthProtocol

    house = still(build(keystone_config(keystone, "[api]\nthreads = 2")))
    assert ask(house, "good") == 200
    judge, hanging, go_on = AuthProtocol.fetch_token, threading.Event(), threading.Event()

    def hang(self: Any, token: str, **kwargs: Any) -> Any:
        hanging.set()
        assert go_on.wait(90)
        return judge(self, token, **kwargs)

    monkeypatch.setattr(AuthProtocol, "fetch_token", hang)
    heard: list[int] = []
    stranger = threading.Thread(target=lambda: heard.append(ask(house, "good2")))
    stranger.start()
    assert hanging.wait(90)
    assert ask(house, "good3") == 503
    assert ask(house, "good") == 200
    go_on.set()
    stranger.join()
    assert heard == [200]
    assert verdicts == ["good", "good2"]


def test_keystonemiddleware_waits_in_bounds_unless_the_operator_says_otherwise(
    build: Build, keystone: int
) -> None:
    ours = keystone_config(keystone).replace("http_connect_timeout = 60\n", "")
    ours = ours.replace("http_request_max_retries = 0\n", "")
    conf = build(ours).conf
    settings = conf.keystone_authtoken
    assert (settings.http_connect_timeout, settings.http_request_max_retries) == (5, 1)
    assert settings.token_cache_time + conf.auth.auth_cache_s == 300  # what it does by itself
    said = build(keystone_config(keystone, "token_cache_time = 7")).conf.keystone_authtoken
    assert (said.http_connect_timeout, said.token_cache_time) == (60, 7)


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AuthCache, "MOST", 3)
    clock = TestClock()
    memory: AuthCache[int] = AuthCache(clock)
    for number in range(5):
        memory.put(b"%d" % number, number, 60)
    assert [memory.get(b"%d" % number) for number in range(5)] == [None, None, 2, 3, 4]
    clock.ahead_s += 61
    memory.put(b"new", 9, 60)
    assert len(memory._found) == 1


def test_the_files_of_http_basic_may_be_bound_elsewhere(build: Build, tmp_path: Path) -> None:
    service.check_bind(build(basic_config(tmp_path)).conf, "0.0.0.0")
