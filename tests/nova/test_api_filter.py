# SPDX-License-Identifier: Apache-2.0
"""The filter in nova-api's pipeline, between an application that answers as Nova does and a server
on loopback that answers, refuses, hangs or is not there. With the real ones: tests/lab."""

from __future__ import annotations

import io
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import pytest
from oslo_config import cfg

from holdfast.nova import api_filter, names, options
from holdfast.nova.api_filter import HEADER, LATER, LeaseFilter
from holdfast.nova.options import LeaseOptions
from tests.processes import PATIENCE_S

HINT = {"name": "night", "end": "2090-12-01 06:00", "on_end": "delete"}
#: To connect and to answer: seconds on a busy machine, and together well below ACT_WITHIN_S.
PATIENT, HASTY = (15.0, 15.0), (1.0, 0.3)


class Holdfast(ThreadingHTTPServer):
    """Takes every lease unless told otherwise: a status and a body by request, in order."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[dict[str, Any]] = []
        self.tokens: list[str | None] = []
        self.answers: list[tuple[int, str]] = []
        self.connections = 0
        self.released = threading.Event()
        self.hangs = False

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/reservation/v1"

    def get_request(self) -> tuple[Any, Any]:
        """One after the other, in the order they came."""
        taken = super().get_request()
        self.connections += 1
        return taken


class Handler(BaseHTTPRequestHandler):
    server: Holdfast

    def do_POST(self) -> None:
        assert self.path == "/reservation/v1/leases"
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append(asked)
        self.server.tokens.append(self.headers.get("X-Auth-Token"))
        if self.server.hangs and "dry_run" not in asked:
            self.server.released.wait(PATIENCE_S)
            return
        usual = 200 if asked.get("dry_run") else 201, '{"lease": {"id": "l1"}}'
        status, text = self.server.answers.pop(0) if self.server.answers else usual
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


@dataclass
class Nova:
    """The application below: makes and deletes servers, knows flavors; remembers its requests."""

    seen: list[tuple[str, str, bytes]] = field(default_factory=list)
    create: tuple[str, bytes] = ("202 Accepted", b'{"server": {"id": "s1", "adminPass": "x"}}')
    delete: str = "204 No Content"
    specs: dict[str, str] = field(default_factory=dict)
    pause_s: float = 0.0
    then: Callable[[], None] = lambda: None  # when the server is made
    closed: int = 0

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        length = int(environ.get("CONTENT_LENGTH") or 0)
        body = environ["wsgi.input"].read(length)
        self.seen.append((method, path, body))
        assert not any(key.startswith("webob.") for key in environ) or method == "POST"
        if method == "DELETE":
            start(self.delete, [])
            return []
        if path.endswith("/os-extra_specs"):
            start("200 OK", [("Content-Type", "application/json")])
            return [json.dumps({"extra_specs": self.specs}).encode()]
        time.sleep(self.pause_s)
        self.then()
        start(self.create[0], [("Content-Type", "application/json")])
        return Parts(self, self.create[1])

    def created(self) -> dict[str, Any]:
        """The one create that came through."""
        (body,) = [body for method, path, body in self.seen if method == "POST"]
        found: dict[str, Any] = json.loads(body)
        return found

    def methods(self) -> list[str]:
        return [method for method, _path, _body in self.seen]


class Parts:
    """A body in two parts that must be closed, as WSGI has it."""

    def __init__(self, nova: Nova, body: bytes) -> None:
        self.nova, self.parts = nova, iter([body[:5], body[5:]])

    def __iter__(self) -> Iterator[bytes]:
        return self.parts

    def close(self) -> None:
        self.nova.closed += 1


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: Any


class Site:
    def __init__(self, holdfast: Holdfast) -> None:
        self.nova = Nova()
        self.holdfast = holdfast
        self.options = LeaseOptions(endpoint=holdfast.url, timeouts=PATIENT)
        self.filter = LeaseFilter(self.nova, lambda: self.options)

    def set(self, **values: Any) -> None:
        self.options = LeaseOptions(**{**self.options.__dict__, **values})

    def post(self, body: Any, path: str = "/servers", **environ: Any) -> Answer:
        text = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.send("POST", path, text, **environ)

    def send(self, method: str, path: str, text: bytes = b"", **more: Any) -> Answer:
        environ: dict[str, Any] = {
            "REQUEST_METHOD": method,
            "PATH_INFO": path,
            "SCRIPT_NAME": "/v2.1",
            "QUERY_STRING": "",
            "CONTENT_TYPE": "application/json",
            "CONTENT_LENGTH": str(len(text)),
            "wsgi.input": io.BytesIO(text),
            "HTTP_X_AUTH_TOKEN": "secret",
            "webob.adhoc_attrs": {},
            **more,
        }
        setup_testing_defaults(environ)
        said: list[Any] = []

        def start(status: str, headers: list[tuple[str, str]], _error: Any = None) -> Any:
            said[:] = status, headers

        parts = self.filter(environ, start)
        answered = b"".join(parts)
        if isinstance(parts, Parts):
            parts.close()
        status, headers = said
        return Answer(int(status[:3]), dict(headers), json.loads(answered) if answered else None)

    def asked(self) -> list[dict[str, Any]]:
        return self.holdfast.asked


@pytest.fixture
def holdfast() -> Iterator[Holdfast]:
    server = Holdfast()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.released.set()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def site(holdfast: Holdfast) -> Site:
    return Site(holdfast)


def server(hints: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    body: dict[str, Any] = {"server": {"name": "web", "flavorRef": "1", **more}}
    return body if hints is None else {**body, "os:scheduler_hints": hints}


def hinted(value: Any = HINT, **more: Any) -> dict[str, Any]:
    return server({"lease_params": value, "group": "g"}, **more)


def nowhere() -> str:
    """An address where nobody listens."""
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}/reservation/v1"


class NotToBeRead(io.RawIOBase):
    def read(self, *_: Any) -> bytes:
        raise AssertionError("nobody should read this")


# what is none of our business


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/servers"),
        ("POST", "/servers/s1/action"),
        ("POST", "/abc/servers/s1"),
        ("POST", "/os-keypairs"),
        ("PUT", "/servers"),
        ("POST", "/"),
    ],
)
def test_everything_but_a_server_create_passes_unread(site: Site, method: str, path: str) -> None:
    seen: list[Any] = []

    def below(environ: dict[str, Any], _start: Any) -> list[bytes]:
        seen.append(environ)
        return []

    environ = {"REQUEST_METHOD": method, "PATH_INFO": path, "wsgi.input": NotToBeRead()}
    LeaseFilter(below, lambda: site.options)(environ, print)
    assert seen == [environ]


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"not json",
        b"\xff\xfe",
        b"[]",
        b'"servers"',
        b"[" * 100_000,
        b'{"server": [], "os:scheduler_hints": {"lease_params": {}}}',
        b'{"server": {"metadata": 7}, "os:scheduler_hints": {"lease_params": {}}}',
        b'{"server": {"name": "web"}}',
        b'{"server": {"name": "web"}, "os:scheduler_hints": null}',
        b'{"server": {"name":  "web"}, "os:scheduler_hints": {"group": "g"}}',
    ],
)
def test_a_create_without_a_lease_reaches_nova_unchanged(site: Site, text: bytes) -> None:
    assert site.post(text).status == 202
    assert site.nova.seen == [("POST", "/servers", text)]
    assert site.asked() == []


def test_without_an_endpoint_anywhere_unhinted_creates_pass(site: Site) -> None:
    site.set(endpoint="", every_server=True)
    answer = site.post(server())
    assert (answer.status, answer.headers[HEADER]) == (202, LATER)
    assert site.post(hinted()).status == 503


def test_a_large_body_passes_unread(site: Site) -> None:
    text = b" " * (api_filter.LARGEST_BODY + 1)
    assert site.post(text).status == 202
    assert site.nova.seen[0][2] == text


@pytest.mark.parametrize("length", ["-1", "many", "", "0"])
def test_a_body_of_no_length_is_not_waited_for(length: str) -> None:
    environ = {"CONTENT_LENGTH": length, "wsgi.input": NotToBeRead()}
    assert api_filter._body(environ) is None


# a create with the hint


@pytest.mark.parametrize(
    "path", ["/servers", "/0123abc/servers", "/0123abc//servers", "/os-volumes_boot"]
)
def test_a_hinted_create_is_asked_about_made_and_leased(site: Site, path: str) -> None:
    answer = site.post(hinted(json.dumps(HINT)), path)
    assert (answer.status, answer.body["server"]["id"]) == (202, "s1")
    assert answer.headers[HEADER] == "l1"
    trial, lease = site.asked()
    assert (trial["dry_run"], trial["reservations"]) == (True, [])
    assert lease == {
        "name": "night",
        "start_date": "now",
        "end_date": "2090-12-01 06:00",
        "reservations": [
            {"resource_type": "virtual:server", "server_id": "s1", "on_end": "delete"}
        ],
    }
    assert site.holdfast.tokens == ["secret", "secret"]
    assert site.nova.created()["os:scheduler_hints"] == {"group": "g"}
    assert json.loads(site.nova.created()["server"]["metadata"][names.WISH]) == HINT
    assert site.nova.closed == 1


def test_a_bad_hint_is_refused_as_nova_refuses_and_nothing_is_made(site: Site) -> None:
    answer = site.post(hinted({"end": "soon"}))
    assert (answer.status, answer.body["badRequest"]["code"]) == (400, 400)
    assert "write YYYY-MM-DD HH:MM" in answer.body["badRequest"]["message"]
    assert site.post(hinted(max_count=2)).status == 400
    assert (site.nova.seen, site.asked()) == ([], [])


@pytest.mark.parametrize(
    ("status", "name"),
    [(400, "badRequest"), (403, "forbidden"), (409, "conflictingRequest"), (413, "overLimit")],
)
def test_an_impossible_lease_is_refused_before_the_server_is_created(
    site: Site, status: int, name: str
) -> None:
    site.holdfast.answers = [(status, '{"error_message": "no more leases for you"}')]
    answer = site.post(hinted())
    assert answer.status == status
    assert "no more leases for you" in answer.body[name]["message"]
    assert site.nova.seen == []


@pytest.mark.parametrize(("status", "text"), [(500, ""), (503, "{}"), (404, "[]"), (401, "x")])
def test_an_unusable_answer_of_holdfast_is_a_503(site: Site, status: int, text: str) -> None:
    site.holdfast.answers = [(status, text)]
    answer = site.post(hinted())
    assert (answer.status, answer.headers["Retry-After"]) == (503, "30")
    assert "no server was made" in answer.body["serviceUnavailable"]["message"]
    assert site.nova.seen == []


def test_with_holdfast_away_a_hinted_create_answers_503_and_makes_nothing(site: Site) -> None:
    site.set(endpoint=nowhere())
    answer = site.post(hinted())
    assert (answer.status, site.nova.seen) == (503, [])


def test_a_create_refused_by_nova_gets_no_lease(site: Site) -> None:
    site.nova.create = ("403 Forbidden", b'{"forbidden": {"message": "quota"}}')
    answer = site.post(hinted())
    assert (answer.status, answer.body["forbidden"]["message"]) == (403, "quota")
    assert HEADER not in answer.headers
    assert len(site.asked()) == 1


def test_the_server_is_deleted_after_a_late_refusal_of_the_lease(site: Site) -> None:
    site.holdfast.answers = [(200, "{}"), (409, '{"error_message": "host is full"}')]
    answer = site.post(hinted(), "/0123abc/servers")
    assert answer.status == 409
    assert answer.body["conflictingRequest"]["message"].endswith("no server was kept: host is full")
    assert site.nova.seen[-1] == ("DELETE", "/0123abc/servers/s1", b"")


def test_a_server_that_cannot_be_deleted_is_named(site: Site) -> None:
    site.holdfast.answers = [(200, "{}"), (409, '{"error_message": "host is full"}')]
    site.nova.delete = "500 Oh"
    answer = site.post(hinted())
    assert "Server s1 could not be deleted" in answer.body["conflictingRequest"]["message"]


@pytest.mark.parametrize("status", [401, 404, 500, 502, 503])
def test_after_a_temporary_refusal_the_server_stays_and_the_lease_comes_later(
    site: Site, status: int
) -> None:
    site.holdfast.answers = [(200, "{}"), (status, "{}")]
    answer = site.post(hinted())
    assert (answer.status, answer.headers[HEADER]) == (202, LATER)
    assert site.nova.methods() == ["POST"]


def test_a_hanging_holdfast_delays_a_create_only_briefly(site: Site) -> None:
    site.nova.then = lambda: site.set(timeouts=HASTY)  # the question before that is answered
    site.holdfast.hangs = True
    before = time.monotonic()
    answer = site.post(hinted())
    assert (answer.status, answer.headers[HEADER]) == (202, LATER)
    assert time.monotonic() - before < PATIENCE_S / 2


def test_after_a_slow_create_the_lease_is_left_to_the_sweep(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_filter, "ACT_WITHIN_S", sum(PATIENT) + 0.1)
    site.nova.pause_s = 0.2
    assert site.post(hinted()).headers[HEADER] == LATER
    assert [asked.get("dry_run") for asked in site.asked()] == [True]


# every server


def test_by_config_a_create_without_a_hint_is_leased_too(site: Site) -> None:
    site.set(every_server=True, length=timedelta(days=30), on_end="shelve")
    answer = site.post(server(metadata={"a": "b"}))
    assert (answer.status, answer.headers[HEADER]) == (202, "l1")
    (lease,) = site.asked()
    assert (lease["name"], lease["start_date"]) == ("web_lease", "now")
    assert lease["reservations"][0]["on_end"] == "shelve"
    made = site.nova.created()["server"]["metadata"]
    assert (made["a"], json.loads(made[names.WISH])["on_end"]) == ("b", "shelve")


def test_a_server_inside_a_reservation_is_not_leased_again(site: Site) -> None:
    site.set(every_server=True)
    assert HEADER not in site.post(server({"reservation": "r1"})).headers
    site.nova.specs = {names.SLOTS_SPEC: "r1"}
    assert HEADER not in site.post(server()).headers
    assert site.asked() == []
    assert names.WISH not in site.nova.seen[-1][2].decode()


@pytest.mark.parametrize("flavor", ["größe", "\ud800", "http://nova/flavors/1", "", 7, None])
def test_any_flavor_can_be_asked_about(site: Site, flavor: Any) -> None:
    site.set(every_server=True)
    assert site.post({"server": {"name": "web", "flavorRef": flavor}}).status == 202
    assert all(path.isascii() or path.encode("latin-1") for _method, path, _body in site.nova.seen)


def test_a_default_lease_that_is_refused_leaves_the_server(site: Site) -> None:
    site.set(every_server=True)
    site.holdfast.answers = [(409, "{}")]
    answer = site.post(server())
    assert (answer.status, answer.headers[HEADER]) == (202, LATER)
    assert "DELETE" not in site.nova.methods()


def test_several_unhinted_servers_at_once_are_left_to_the_sweep(site: Site) -> None:
    site.set(every_server=True)
    assert site.post(server(max_count=3)).status == 202
    assert site.asked() == []
    assert names.WISH in site.nova.created()["server"]["metadata"]


def test_with_holdfast_away_unhinted_creates_pass_and_soon_do_not_even_wait(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_filter, "QUIET_S", 600.0)
    site.set(every_server=True, timeouts=HASTY)
    site.holdfast.hangs = True
    assert site.post(server()).headers[HEADER] == LATER
    assert site.post(server()).headers[HEADER] == LATER
    # whoever is answered now came after all who asked before: of those there was one
    came: list[int] = []
    site.nova.then = lambda: came.append(site.holdfast.connections)
    site.set(timeouts=PATIENT)
    site.holdfast.hangs = False
    assert site.post(hinted()).headers[HEADER] == "l1"
    assert came == [2]


# where Holdfast is


def catalog(*endpoints: dict[str, str]) -> dict[str, str]:
    services = [
        {"type": "compute", "endpoints": [{"region": "here", "publicURL": "http://nova"}]},
        {"type": "reservation", "endpoints": list(endpoints)},
    ]
    return {"HTTP_X_SERVICE_CATALOG": json.dumps(services)}


def test_the_catalog_says_where_holdfast_is(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    url, site.options = site.options.endpoint, LeaseOptions(timeouts=PATIENT)
    one = {"region": "here", "publicURL": "http://127.0.0.1:1", "internalURL": url + "/"}
    other = {"region": "there", "publicURL": "http://127.0.0.1:1"}
    assert site.post(hinted(), **catalog(one)).status == 202
    assert site.post(hinted(), **catalog({"region": "here", "publicURL": url})).status == 202
    assert site.post(hinted(), **catalog(one, other)).status == 503
    assert "set region_name" in caplog.text
    site.set(region="here")
    assert site.post(hinted(), **catalog(one, other)).status == 202
    assert site.post(hinted(), **catalog(other)).status == 503
    assert "no endpoint of type reservation in region here" in caplog.text


# where it runs


def test_options_come_from_nova_conf_and_follow_a_reload(tmp_path: Path) -> None:
    conf, path = cfg.ConfigOpts(), tmp_path / "nova.conf"
    path.write_text("[holdfast]\n")
    options.register(conf)
    conf([], project="nova", default_config_files=[str(path)])
    assert options.read_leases(conf) == LeaseOptions()
    path.write_text(
        "[holdfast]\nendpoint = http://h\nregion_name = r\ninterface = public\ncafile = /ca\n"
        "connect_timeout_s = 1\ntimeout_s = 3\nlease_every_server = yes\n"
        "default_lease_days = 7\ndefault_on_end = snapshot,stop\n"
    )
    conf.mutate_config_files()
    assert options.read_leases(conf) == LeaseOptions(
        "http://h", "r", "public", "/ca", (1.0, 3.0), True, timedelta(days=7), "snapshot,stop"
    )


def test_the_paste_filter_conforms_to_wsgi(site: Site) -> None:
    made = api_filter.filter_factory({}, anything="here")(validator(site.nova))
    assert isinstance(made, LeaseFilter)
    site.filter = LeaseFilter(validator(site.nova), lambda: site.options)
    environ: dict[str, Any] = {"REQUEST_METHOD": "POST", "PATH_INFO": "/servers"}
    text = json.dumps(hinted()).encode()
    environ |= {"CONTENT_LENGTH": str(len(text)), "wsgi.input": io.BytesIO(text)}
    setup_testing_defaults(environ)
    environ |= {"SCRIPT_NAME": "", "QUERY_STRING": ""}
    said: list[str] = []
    checked = validator(site.filter)
    parts = checked(environ, lambda status, _headers, _error=None: said.append(status) or print)
    assert b"s1" in b"".join(parts)
    parts.close()
    assert said == ["202 Accepted"]


def test_the_filter_loads_no_other_holdfast_module_into_nova() -> None:
    look = "import sys, holdfast.nova.api_filter; print(*sys.modules)"
    said = subprocess.run(
        [sys.executable, "-c", look], check=True, capture_output=True, text=True, timeout=PATIENCE_S
    ).stdout.split()
    ours = {name for name in said if name.startswith("holdfast")}
    parts = ("admission", "api_filter", "lease_hint", "names", "options")
    assert ours == {"holdfast", "holdfast.nova", *(f"holdfast.nova.{part}" for part in parts)}
