# SPDX-License-Identifier: Apache-2.0
"""The login form where people are Keystone's: what strangers send there costs Keystone, and us,
little."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from typing import Any
from urllib.parse import urlencode

import pytest
from falcon import testing

from holdfast.api import auth, login
from tests.api.conftest import Build
from tests.api.house import House
from tests.api.test_auth import TOKEN, FakeKeystone, keystone_config


class Heard(ThreadingHTTPServer):
    """A Keystone that remembers who logged in and which tokens it was told to forget."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Clerk)
        self.names: list[str] = []
        self.forgotten: list[str] = []


class Clerk(FakeKeystone):
    server: Heard

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        user = asked["auth"]["identity"]["password"]["user"]
        if user["name"] == "holdfast":  # the service's own
            self._token("service-token")
            return
        self.server.names.append(user["name"])
        if user["password"] == "right":
            self._token(f"good-{len(self.server.names)}")
        else:
            self._say(401, {"error": {"code": 401, "message": "no", "title": "Unauthorized"}})

    def do_DELETE(self) -> None:
        self.server.forgotten.append(self.headers["X-Subject-Token"])
        self.send_response(204)
        self.end_headers()

    def _token(self, subject: str) -> None:
        url = f"http://127.0.0.1:{self.server.server_port}"
        endpoint = {"id": "e", "interface": "internal", "region": "R", "region_id": "R", "url": url}
        catalog = [{"id": "i", "type": "identity", "name": "keystone", "endpoints": [endpoint]}]
        data = json.dumps({"token": {**TOKEN, "catalog": catalog}}).encode()
        self.send_response(201)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("X-Subject-Token", subject)
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def listening() -> Iterator[Heard]:
    server = Heard()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def keystone() -> Iterator[Heard]:
    with listening() as server:
        yield server


@pytest.fixture
def house(build: Build, keystone: Heard) -> House:
    port = keystone.server_port
    config = keystone_config(port).replace("keystone.example:5000", f"127.0.0.1:{port}")
    return build(config)


def send(house: House, path: str, session: str = "", **fields: str) -> testing.Result:
    """A form, with the word that anybody can work out for cookies that are his own."""
    cookies = {login.COOKIE: "mine"} | ({login.SESSION: session} if session else {})
    said = {login.FIELD: login.token(cookies), **fields}
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    return house.call("POST", path, cookies=cookies, body=urlencode(said), headers=kind)


def enter(house: House, user: str, password: str = "wrong", **more: str) -> testing.Result:
    return send(house, "/console/login", user=user, password=password, project="blue", **more)


def test_a_session_that_nobody_has_is_not_ended_at_keystone(house: House, keystone: Heard) -> None:
    before = house.dump()
    for number in range(5):
        assert send(house, "/console/logout", f"made-up-{number}").status_code == 303
    assert keystone.forgotten == [] and house.dump() == before
    token = enter(house, "alice", "right").cookies[login.SESSION].value
    for _ in range(2):
        assert send(house, "/console/logout", token).status_code == 303
    assert keystone.forgotten == [token]


@pytest.mark.parametrize("field", ["user", "domain", "project", "project_domain"])
def test_a_name_that_none_can_have_is_refused_before_keystone_is_asked(
    house: House, keystone: Heard, field: str
) -> None:
    fields: dict[str, Any] = {"user": "alice", "project": "blue", field: "x" * 256}
    answer = send(house, "/console/login", password="right", **fields)
    assert answer.status_code == 401
    assert f"{field.replace('_', ' ')}: at most 255 characters" in answer.text
    assert keystone.names == []


def test_names_that_keystone_takes_for_one_share_one_count(
    house: House, keystone: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth, "FIRST_S", auth.LONGEST_S)  # however slow the machine is
    names = ("alice", "Alice", "ALICE ", " alice", "Álice", "al\u00adice", "aLICE")
    said = [enter(house, name).status_code for name in names]
    assert said == [401] * auth.FREE + [429] * (len(names) - auth.FREE)
    assert len(keystone.names) == auth.FREE
    assert enter(house, "alice", domain="DEFAULT").status_code == 429
    assert enter(house, "bob", "right").status_code == 303
