# SPDX-License-Identifier: Apache-2.0
"""The edge to OpenStack: calls end in time, errors are ours, nothing is sent twice that must not.

Against a stand-in that does what it is told (`tests/cloud/stub.py`), and never the real cloud.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from holdfast import conf as configuration
from holdfast.app.service import connect_cloud
from holdfast.drivers.deadline_adapter import LARGEST
from holdfast.drivers.nova.directory import Directory
from holdfast.drivers.nova.pools import Fanout
from holdfast.drivers.nova.servers import NovaMoves
from holdfast.drivers.nova.session import Edge, answer, pages, supports
from holdfast.drivers.nova.slots import NovaSlots
from holdfast.model.errors import Conflict, DriverError, HoldfastError, NotFound
from holdfast.runtime import http
from holdfast.runtime.clock import SystemClock
from tests.cloud.stub import (
    Act,
    Handler,
    Stub,
    cut,
    cut_in_the_middle,
    hang,
    once,
    saying,
    trickle,
    trickle_body,
)
from tests.processes import PATIENCE_S, eventually, free_port


@pytest.fixture
def stub() -> Iterator[Stub]:
    server = Stub(free_port())
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server
    server.released.set()
    server.shutdown()
    thread.join()
    server.server_close()


def config(folder: Path, port: int, timeout_s: float = 60.0, **more: str) -> Any:
    options = {
        "auth_type": "password",
        "auth_url": f"http://127.0.0.1:{port}/v3",
        "username": "holdfast",
        "password": "secret",
        "project_name": "service",
        "user_domain_name": "Default",
        "project_domain_name": "Default",
        **more,
    }
    file = folder / "holdfast.conf"
    lines = "".join(f"{name} = {value}\n" for name, value in options.items() if value)
    file.write_text(f"[cloud]\ndriver = nova\ncall_timeout_s = {timeout_s}\n[openstack]\n{lines}")
    return configuration.load([], [str(file)])


@pytest.fixture
def edge(stub: Stub, tmp_path: Path) -> Iterator[Edge]:
    """Warm: it has a token and knows where Nova is."""
    made = Edge(config(tmp_path, stub.server_port))
    ask(made)
    yield made
    made.close()


@pytest.fixture
def hasty(stub: Stub, tmp_path: Path) -> Iterator[Edge]:
    """The same, with calls that have two seconds; to become warm it may take longer."""
    made = Edge(config(tmp_path, stub.server_port, timeout_s=2.0))
    made._patience._usual_s = PATIENCE_S
    ask(made)
    made._patience._usual_s = made.call_timeout_s
    yield made
    made.close()


def ask(edge: Edge, path: str = "/thing", method: str = "GET") -> Any:
    with edge.call("things.ask", "one") as cloud:
        return answer(cloud.compute.request(path, method, microversion="2.79"))


def refused(edge: Edge, path: str = "/thing", method: str = "GET") -> HoldfastError:
    with pytest.raises(HoldfastError) as error:
        ask(edge, path, method)
    return error.value


def refused_in_time(edge: Edge, path: str = "/thing", method: str = "GET") -> DriverError:
    began = time.monotonic()
    error = refused(edge, path, method)
    assert time.monotonic() - began < edge.call_timeout_s + 40  # what hangs does so for longer
    assert isinstance(error, DriverError)
    assert error.retryable
    return error


# Time


@pytest.mark.parametrize("act", [hang, trickle, trickle_body])
def test_a_call_ends_at_its_timeout_however_the_cloud_stalls(
    stub: Stub, hasty: Edge, act: Act
) -> None:
    stub.acts["GET /v2.1/thing"] = act
    error = refused_in_time(hasty)
    assert "no answer within 2 s" in error.message
    assert "things.ask one" in error.message
    stub.acts.clear()
    hasty._patience._usual_s = PATIENCE_S
    assert ask(hasty) == {"fine": True}


def test_all_requests_of_a_call_share_a_deadline(stub: Stub, hasty: Edge) -> None:
    def slow(handler: Handler) -> None:
        time.sleep(0.8)
        handler.usual()

    stub.acts["GET /v2.1/slow"] = slow
    with pytest.raises(DriverError), hasty.call("many") as cloud:
        for _ in range(20):
            answer(cloud.compute.get("/slow"))
    time.sleep(0.8)  # what was asked for last is counted too
    assert 1 <= stub.count("GET /v2.1/slow") <= 3


def test_a_hanging_keystone_holds_no_call_longer_than_the_timeout(
    stub: Stub, tmp_path: Path
) -> None:
    stub.acts["POST /v3/auth/tokens"] = hang
    edge = Edge(config(tmp_path, stub.server_port, timeout_s=0.7))

    def took(_: int) -> float:
        began = time.monotonic()
        for _ in range(3):
            with pytest.raises(DriverError) as error:
                ask(edge)
            assert error.value.retryable
        return (time.monotonic() - began) / 3

    with ThreadPoolExecutor(12) as threads:
        assert max(threads.map(took, range(12))) < 40.0
    edge.close()


# Lost connections


@pytest.mark.parametrize("act", [cut, cut_in_the_middle])
def test_a_read_is_repeated_once_when_the_connection_is_lost(
    stub: Stub, edge: Edge, act: Act
) -> None:
    stub.acts["GET /v2.1/thing"] = once(act)
    before = stub.count("GET /v2.1/thing")
    assert ask(edge) == {"fine": True}
    assert stub.count("GET /v2.1/thing") == before + 2
    stub.acts["GET /v2.1/thing"] = act
    refused_in_time(edge)
    assert stub.count("GET /v2.1/thing") == before + 4


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_a_write_without_an_answer_is_not_repeated(stub: Stub, edge: Edge, method: str) -> None:
    stub.acts[f"{method} /v2.1/thing"] = cut
    refused_in_time(edge, method=method)
    assert stub.count(f"{method} /v2.1/thing") == 1


def test_an_unreachable_cloud_is_a_retryable_error(stub: Stub, tmp_path: Path) -> None:
    edge = Edge(config(tmp_path, free_port(), timeout_s=1.0))  # says nothing: nothing was sent
    refused_in_time(edge)
    refused_in_time(edge, method="POST")
    edge.close()


def test_a_nova_that_was_away_at_the_first_call_is_found_by_the_next(
    stub: Stub, tmp_path: Path
) -> None:
    edge = Edge(config(tmp_path, stub.server_port))
    stub.acts["GET /v2.1"] = saying(503, {"error": {"message": "away"}})
    refused_in_time(edge)
    stub.acts["GET /v2.1"] = cut
    refused_in_time(edge)
    stub.acts.clear()
    assert ask(edge) == {"fine": True}
    with edge.call("versions") as cloud:
        assert supports(cloud.compute, "2.80")
        assert not supports(cloud.compute, "2.81")
    edge.close()


# Answers


@pytest.mark.parametrize(
    ("status", "kind", "retryable"),
    [
        (404, NotFound, None),
        (409, Conflict, None),
        (400, DriverError, False),
        (403, DriverError, False),
        (413, DriverError, False),
        (429, DriverError, True),
        (500, DriverError, True),
        (503, DriverError, True),
    ],
)
def test_an_answer_becomes_one_of_our_errors_with_the_cloud_s_sentence(
    stub: Stub, edge: Edge, status: int, kind: type[HoldfastError], retryable: bool | None
) -> None:
    body = {"itemFault": {"message": "Thing one is purple.", "code": status}}
    stub.acts["POST /v2.1/thing"] = saying(status, body)
    error = refused(edge, method="POST")
    assert type(error) is kind
    assert "things.ask one: Thing one is purple." in error.message
    assert getattr(error, "retryable", None) is retryable
    assert stub.count("POST /v2.1/thing") == 1


NONSENSE: list[Act] = [
    saying(200, []),
    saying(200, {"server": 5}),
    saying(200, {"servers": 5}),
    saying(200, {"servers": [{"name": "no id"}]}),
    saying(200, {"servers": [[]]}),
    lambda handler: handler.say_text(200, "[" * 1_000_000, "application/json"),
    lambda handler: handler.say_text(200, "<html>", "application/json"),
]


@pytest.mark.parametrize("act", NONSENSE, ids=range(len(NONSENSE)))
def test_an_answer_of_unexpected_form_is_a_retryable_error(
    stub: Stub, edge: Edge, act: Act, caplog: pytest.LogCaptureFixture
) -> None:
    stub.acts["GET /v2.1/servers"] = act
    said = pytest.raises(DriverError, match=r"servers\.list")
    with said as caught, edge.call("servers.list") as cloud:
        assert [server["id"] for server in pages(cloud.compute, "/servers", "servers")]
    assert caught.value.retryable
    lines = [record for record in caplog.records if "makes no sense" in record.message]
    assert len(lines) == ("makes no sense" in caught.value.message)


def test_an_answer_that_unpacks_to_100_mb_is_refused_before_it_is_in_memory(
    stub: Stub, edge: Edge
) -> None:
    def bomb(handler: Handler) -> None:
        body = gzip.compress(b" " * 100_000_000, 1)
        handler.send_response(200)
        handler.send_header("Content-Encoding", "gzip")
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        with contextlib.suppress(OSError):  # the client hangs up
            handler.wfile.write(body)

    stub.acts["GET /v2.1/servers"] = bomb
    said = pytest.raises(DriverError, match=f"more than {LARGEST} bytes")
    with said as caught, edge.call("servers.list") as cloud:
        answer(cloud.compute.get("/servers"))
    assert caught.value.retryable
    assert stub.count("GET /v2.1/servers") == 1


def test_a_404_by_a_proxy_is_not_taken_for_an_answer_of_the_cloud(stub: Stub, edge: Edge) -> None:
    stub.acts["GET /v2.1/thing"] = lambda handler: handler.say_text(404, "<p>what?", "text/html")
    assert isinstance(refused_in_time(edge), DriverError)
    stub.acts["GET /v2.1/thing"] = lambda handler: handler.say_text(200, "<p>hello", "text/html")
    assert isinstance(refused_in_time(edge), DriverError)


def test_a_404_of_keystone_is_a_retryable_error_and_not_a_missing_object(
    stub: Stub, tmp_path: Path
) -> None:
    made = Edge(config(tmp_path, stub.server_port, timeout_s=1.0))
    stub.acts["POST /v3/auth/tokens"] = saying(404, {"error": {"message": "no such path"}})
    error = refused(made)
    made.close()
    assert isinstance(error, DriverError)
    assert error.retryable


def test_a_project_in_which_our_user_has_no_role_is_refused_with_the_command_that_cures_it(
    stub: Stub, edge: Edge
) -> None:
    slots = NovaSlots(edge, Directory())
    stub.acts["POST /v3/auth/tokens"] = saying(401, {"error": {"message": "no role"}})
    with pytest.raises(Conflict, match=r"openstack role add --user \S+ --project alpha member"):
        slots.check_role("alpha")
    with pytest.raises(DriverError, match="role") as refused:  # not: the name is taken
        slots.create_group("group", "affinity", "alpha")
    assert not refused.value.retryable
    stub.acts["POST /v3/auth/tokens"] = saying(503, {"error": {"message": "away"}})
    with pytest.raises(DriverError) as away:
        slots.check_role("alpha")
    assert away.value.retryable


def test_projects_in_which_our_user_has_no_role_are_named(stub: Stub, edge: Edge) -> None:
    project = {name: {"id": name, "name": name, "enabled": name != "off"} for name in "abc"}
    off = {"id": "off", "name": "off", "enabled": False}
    stub.acts["GET /v3/auth/projects"] = saying(200, {"projects": [project["b"]]})
    stub.acts["GET /v3/projects"] = saying(200, {"projects": [*project.values(), off]})
    assert NovaSlots(edge, Directory()).without_role() == ["a", "c"]


def test_a_missing_ca_file_is_a_retryable_error(stub: Stub, tmp_path: Path) -> None:
    url, file = f"https://127.0.0.1:{stub.server_port}/v3", str(tmp_path / "ca.pem")
    made = Edge(config(tmp_path, stub.server_port, timeout_s=1.0, auth_url=url, cafile=file))
    error = refused(made)
    made.close()
    assert isinstance(error, DriverError)
    assert error.retryable
    assert file in error.message


def test_a_connection_that_was_made_too_late_sends_nothing(
    stub: Stub, hasty: Edge, monkeypatch: pytest.MonkeyPatch
) -> None:
    hasty.close()  # idle connections, so that a new one is needed
    connect = http._connect

    def slow(*args: Any) -> Any:
        connected = connect(*args)
        time.sleep(hasty.call_timeout_s + 0.1)
        return connected

    monkeypatch.setattr(http, "_connect", slow)
    stub.seen.clear()
    assert "no answer within" in refused_in_time(hasty, method="POST").message
    assert stub.seen == []


def test_a_refused_token_is_renewed_once(stub: Stub, edge: Edge) -> None:
    stub.acts["GET /v2.1/thing"] = once(saying(401, {"error": {"message": "who?"}}))
    assert ask(edge) == {"fine": True}
    assert stub.count("POST /v3/auth/tokens") == 2
    stub.acts["GET /v2.1/thing"] = saying(401, {"error": {"message": "who?"}})
    refused_in_time(edge)


def test_many_threads_share_one_token_and_do_not_wait_for_connections(
    stub: Stub, tmp_path: Path
) -> None:
    edge = Edge(config(tmp_path, stub.server_port, timeout_s=90))
    together = threading.Barrier(128, timeout=90)

    def meet(handler: Handler) -> None:
        together.wait()
        handler.usual()

    stub.acts["GET /v2.1/thing"] = meet
    with ThreadPoolExecutor(128) as threads:
        found = list(threads.map(lambda _: ask(edge), range(128)))
    assert found == [{"fine": True}] * 128
    assert stub.count("POST /v3/auth/tokens") == 1
    edge.close()


def test_pages_are_read_to_the_end(stub: Stub, edge: Edge) -> None:
    def page(handler: Handler) -> None:
        _, _, marker = handler.path.partition("marker=")
        start = int(marker or 0)
        items = [{"id": n} for n in range(start + 1, min(start + 3, 8))]
        links = [{"rel": "next", "href": "…"}] if start < 4 else []
        handler.say(200, {"things": items, "things_links": links})

    stub.acts["GET /v2.1/things"] = page
    with edge.call("things.list") as cloud:
        by_links = list(pages(cloud.compute, "/things", "things"))
        to_the_end = list(pages(cloud.compute, "/things", "things", until_empty=True))
    assert [item["id"] for item in by_links] == [1, 2, 3, 4, 5, 6]
    assert [item["id"] for item in to_the_end] == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(("after", "requests"), [(250, 1), (201, 1), (199, 2), (0, 3)])
def test_migrations_are_read_back_to_the_number_asked_for(
    stub: Stub, edge: Edge, after: int, requests: int
) -> None:
    def page(handler: Handler) -> None:
        query = parse_qs(urlsplit(handler.path).query)
        newest = int(query.get("marker", ["301"])[0]) - 1
        numbers = range(newest, max(newest - int(query["limit"][0]), 0), -1)
        more = [{"rel": "next", "href": "…"}] if numbers[-1] > 1 else []
        items = [
            {"id": number, "instance_uuid": "", "source_compute": "cmp-1", "dest_compute": None}
            | {
                "migration_type": "evacuation",
                "status": "done",
                "created_at": "2026-11-18T00:00:00",
            }
            for number in numbers
        ]
        handler.say(200, {"migrations": items, "migrations_links": more})

    cmp_1 = {"id": "u-1", "hypervisor_hostname": "cmp-1", "service": {"host": "cmp-1"}}
    stub.acts["GET /v2.1/os-migrations"] = page
    stub.acts["GET /v2.1/os-hypervisors"] = saying(200, {"hypervisors": [cmp_1]})
    moves = NovaMoves(edge, Directory())
    found = moves.migrations(source_host="cmp-1", after=after)
    assert [int(migration.id) for migration in found] == list(range(after + 1, 301))
    assert stub.count("GET /v2.1/os-migrations") == requests


def test_a_marker_that_went_away_between_two_pages_is_worth_another_try(
    stub: Stub, edge: Edge
) -> None:
    links = [{"rel": "next", "href": "…"}]
    stub.acts["GET /v2.1/things?marker"] = saying(400, {"badRequest": {"message": "no marker"}})
    stub.acts["GET /v2.1/things"] = saying(200, {"things": [{"id": 1}], "things_links": links})
    with pytest.raises(DriverError, match="no marker") as error, edge.call("things.list") as cloud:
        list(pages(cloud.compute, "/things", "things"))
    assert error.value.retryable


# Setup


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"auth_type": ""}, "auth_type is not set"),
        ({"auth_type": "v4palmreading"}, "v4palmreading"),
        ({"auth_url": ""}, "auth_url"),
        ({"auth_section": "keystone_authtoken"}, r"\[keystone_authtoken\] auth_type is not set"),
    ],
)
def test_missing_credentials_are_named_at_the_start(
    tmp_path: Path, options: dict[str, str], word: str
) -> None:
    from holdfast.runtime.clock import SystemClock

    with pytest.raises(HoldfastError, match=word):
        connect_cloud(config(tmp_path, 1, **options), SystemClock())


def test_credentials_may_stand_in_another_group_and_may_be_an_application_s(
    stub: Stub, tmp_path: Path
) -> None:
    def login(**options: str) -> str:
        return "".join(f"{name} = {value}\n" for name, value in options.items())

    url = f"http://127.0.0.1:{stub.server_port}/v3"
    application = login(
        auth_type="v3applicationcredential",
        auth_url=url,
        application_credential_id="i",
        application_credential_secret="s",
    )
    for text in (
        f"[openstack]\n{application}",
        f"[openstack]\nauth_section = keystone_authtoken\n[keystone_authtoken]\n{application}",
    ):
        file = tmp_path / "other.conf"
        file.write_text(text)
        conf = configuration.load([], [str(file)])
        assert configuration.unknown(conf) == []
        edge = Edge(conf)
        assert ask(edge) == {"fine": True}
        edge.close()


def test_options_of_the_login_are_known_and_typing_errors_are_not(tmp_path: Path) -> None:
    conf = config(tmp_path, 1, usrname="x")
    assert configuration.unknown(conf) == ["[openstack]usrname"]
    shown = dict(configuration.list_opts())["openstack"]
    names = {opt.dest for opt in shown}
    assert {"auth_type", "auth_url", "password", "application_credential_secret"} <= names


def test_the_simulated_cloud_does_not_import_the_sdk() -> None:
    code = (
        "import sys; from holdfast import conf; from holdfast.app import service;"
        "import holdfast.drivers.sim;"
        "assert not any(map(sys.modules.get, ('openstack', 'eventlet')))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=180)


# Telling the scheduler


def test_concurrent_callers_share_a_resync_that_began_after_all_their_changes() -> None:
    fanout, lock = Fanout(), threading.Lock()
    changes: list[int] = []
    told: list[set[int]] = []

    def tell() -> None:
        with lock:
            seen = set(changes)
        time.sleep(0.02)
        told.append(seen)

    def change(number: int) -> bool:
        with lock:
            changes.append(number)
        assert fanout.resync("pool", tell, 90)
        return any(number in seen for seen in told)

    with ThreadPoolExecutor(32) as threads:
        assert all(threads.map(change, range(100)))
    assert told[-1] == set(range(100))
    assert len(told) < 50


def test_the_next_caller_repeats_a_failed_resync_and_no_caller_waits_for_ever() -> None:
    fanout = Fanout()
    free = threading.Event()

    def blocked() -> None:
        free.wait(90)
        raise RuntimeError("lost")

    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(fanout.resync, "pool", blocked, 90)
        eventually(lambda: not fanout.resync("pool", lambda: None, 0.01))
        second = threads.submit(fanout.resync, "pool", lambda: None, 90)
        free.set()
        with pytest.raises(RuntimeError):
            first.result()
        assert second.result()


SERVER = {
    "id": "s-1",
    "name": "web",
    "status": "ACTIVE",
    "tenant_id": "blue",
    "user_id": "ann",
    "OS-EXT-STS:vm_state": "active",
    "OS-EXT-STS:task_state": None,
    "OS-EXT-STS:power_state": 1,
    "OS-EXT-SRV-ATTR:host": "cmp-1",
    "locked": False,
    "locked_reason": None,
    "metadata": {"a": "b"},
    "image": {"id": "i-1"},
    "created": "2026-01-01T00:00:00Z",
    "flavor": {"vcpus": 1, "ram": 2, "disk": 3, "original_name": "f", "extra_specs": {"a": "b"}},
}
SERVICE = {
    "host": "cmp-1",
    "zone": "nova",
    "state": "up",
    "status": "enabled",
    "disabled_reason": None,
    "forced_down": False,
    "updated_at": "2026-01-01T00:00:00.000000",
}
HYPERVISOR = {
    "id": "h-1",
    "hypervisor_hostname": "cmp-1",
    "service": {"host": "cmp-1"},
    "vcpus": 8,
    "memory_mb": 1024,
    "local_gb": 10,
    "hypervisor_type": "QEMU",
    "hypervisor_version": 8_000_000,
    "cpu_info": {"arch": "x86_64"},
    "state": "up",
}
INVENTORY = {"total": 8, "reserved": 0, "allocation_ratio": 4.0, "max_unit": 8}
POOL = {"id": 1, "name": "freepool", "hosts": ["cmp-1"], "metadata": {"a": "b"}}
ANSWERS: dict[str, Any] = {
    "GET /v2.1/servers/detail": {"servers": [SERVER]},
    "GET /v2.1/os-services": {"services": [SERVICE]},
    "GET /v2.1/os-hypervisors/detail": {"hypervisors": [HYPERVISOR]},
    "GET /v2.1/os-aggregates": {"aggregates": [POOL]},
    "GET /placement/resource_providers/h-1/inventories": {"inventories": {"VCPU": INVENTORY}},
    "GET /placement/resource_providers/h-1/traits": {"traits": ["HW_CPU"]},
}
STRANGE = (None, "x\0", "\ud800", True, 10**400, float("nan"), [], {"a": float("inf")})


def spoilt(body: Any) -> Iterator[Any]:
    """Copies of an answer: in each a single value is missing, or is something strange."""
    keys = body.keys() if isinstance(body, dict) else range(len(body))
    for key in keys if isinstance(body, dict | list) else ():
        for strange in STRANGE:
            yield _with(body, key, strange)
        if isinstance(body, dict):
            yield {name: value for name, value in body.items() if name != key}
        if isinstance(body[key], dict | list):
            yield from (_with(body, key, inner) for inner in spoilt(body[key]))


def _with(body: Any, key: Any, value: Any) -> Any:
    copied = body.copy()
    copied[key] = value
    return copied


def page(body: Any) -> Act:
    """The answer as the first page of a list; what follows is empty."""

    def act(handler: Handler) -> None:
        later = "marker=" in handler.path
        empty = {key: [] for key in body} if isinstance(body, dict) else []
        handler.say(200, empty if later else body)

    return act


@pytest.mark.parametrize("path", ANSWERS)
def test_a_strange_value_in_an_answer_is_an_error_of_ours_with_a_log_line_or_harmless(
    stub: Stub, tmp_path: Path, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    cloud = connect_cloud(config(tmp_path, stub.server_port), SystemClock())
    calls: dict[str, Callable[[], Any]] = {
        "GET /v2.1/servers/detail": cloud.servers.list,
        "GET /v2.1/os-services": cloud.services.list,
        "GET /v2.1/os-aggregates": cloud.pools.list,
    }
    call = calls.get(path, lambda: cloud.hosts.find("cmp-1"))
    usual = {known: page(body) for known, body in ANSWERS.items() if known != path}
    errors = 0
    for body in spoilt(ANSWERS[path]):
        stub.acts = usual | {path: page(body)}
        caplog.clear()
        try:
            found = call()
        except (NotFound, Conflict):
            continue
        except DriverError as error:
            errors += 1
            assert ("makes no sense" in error.message) == ("makes no sense" in caplog.text)
            continue
        plain = [
            dataclasses.asdict(each) for each in (found if isinstance(found, list) else [found])
        ]
        json.dumps(plain, default=str, allow_nan=False).encode()
    assert errors >= 10
    cloud.close()
