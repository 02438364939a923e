# SPDX-License-Identifier: Apache-2.0
"""Health and metrics: what probes and Prometheus read."""

from __future__ import annotations

import resource
from collections.abc import Callable
from typing import Any

import pytest
from falcon import testing
from prometheus_client.parser import text_string_to_metric_families as parse
from sqlalchemy import event

from holdfast.api.routes import table
from holdfast.app import service
from tests.api.conftest import Build
from tests.api.house import CHORES, LEASES, House
from tests.api.test_outages import Away, away
from tests.processes import answers, free_port


def test_healthcheck_answers_ok_whatever_else_is_broken(build: Build) -> None:
    house = build(manager=Away(), loop_age_s=lambda: 1e9)
    with away(house):
        answer = house.call("GET", "/healthcheck")
    assert (answer.status_code, answer.text) == (200, "OK")


def test_livez_follows_the_age_of_the_loop(build: Build) -> None:
    age = 1.0
    house = build(loop_age_s=lambda: age)
    fine = house.call("GET", "/livez")
    assert (fine.status_code, fine.json["status"]) == (200, "ok")
    age = 31.0
    stuck = house.call("GET", "/livez")
    assert stuck.status_code == 503
    assert stuck.json == {"status": "stuck", "loop_age_s": 31.0, "max_age_s": 30.0}
    house.conf.set_override("livez_max_age_s", 60.0, "manager")
    assert house.call("GET", "/livez").status_code == 200


def test_livez_fails_while_no_file_descriptor_is_left(build: Build) -> None:
    house = build(loop_age_s=None)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        answer = house.call("GET", "/livez")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert answer.status_code == 503
    assert "no file descriptor" in answer.json["status"]
    assert house.call("GET", "/livez").status_code == 200


def test_livez_of_an_api_without_a_loop_is_fine(build: Build) -> None:
    assert build(loop_age_s=None).call("GET", "/livez").status_code == 200


def test_readyz_names_the_part_that_is_away(build: Build) -> None:
    house = build()
    assert house.call("GET", "/readyz").json == {"status": "ok", "database": "ok", "rpc": "ok"}
    with away(house):
        answer = house.call("GET", "/readyz")
    assert answer.status_code == 503
    assert "database is away" in answer.json["database"]
    assert answer.json["rpc"] == "ok"
    assert house.call("GET", "/readyz").status_code == 200


def test_readyz_fails_while_the_database_cannot_be_written(build: Build) -> None:
    house = build()

    def protect(dbapi: Any, *_: object) -> None:
        dbapi.execute("PRAGMA query_only=ON")

    engine = house.core.store.database.engine
    assert house.call("GET", "/readyz").status_code == 200
    event.listen(engine, "checkout", protect)
    house.clock.ahead_s += 1
    answer = house.call("GET", "/readyz")
    assert answer.status_code == 503
    assert "database is away" in answer.json["database"]
    assert house.call("GET", LEASES).status_code == 200
    event.remove(engine, "checkout", protect)
    event.listen(engine, "checkout", lambda dbapi, *_: dbapi.execute("PRAGMA query_only=OFF"))
    assert house.call("GET", "/readyz").status_code == 200


@pytest.mark.parametrize(
    ("damage", "words"),
    [(lambda text: b"\xff" * 4096, "not a database"), (lambda text: text[:4096], "malformed")],
    ids=["overwritten", "cut off"],
)
def test_a_damaged_database_is_named(
    build: Build, damage: Callable[[bytes], bytes], words: str
) -> None:
    house = build()
    house.manager.stop()
    house.core.store.database.engine.dispose()
    file = house.state / "holdfast.db"
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    answer = house.call("GET", LEASES)
    house.core.store.database.engine.dispose()
    file.write_bytes(whole)
    assert answer.status_code == 503, answer.text
    assert "the database is damaged: " in answer.json["error_message"]
    assert words in answer.json["error_message"]


def test_readyz_names_rpc_when_no_manager_answers(build: Build) -> None:
    answer = build(manager=Away()).call("GET", "/readyz")
    assert answer.status_code == 503
    assert answer.json["database"] == "ok"
    assert "broker is away" in answer.json["rpc"]


def families(house: House) -> dict[str, list[tuple[dict[str, str], float]]]:
    answer = house.call("GET", "/metrics")
    assert answer.status_code == 200
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    return {
        family.name: [(sample.labels, sample.value) for sample in family.samples]
        for family in parse(answer.text)
    }


def test_metrics_parse_and_cover_requests_operations_and_the_database(house: House) -> None:
    house.lease()
    found = families(house)
    assert found["holdfast_database_up"] == [({}, 1.0)]
    work = {labels["kind"]: value for labels, value in found["holdfast_operations_open"]}
    lease = {kind: count for kind, count in work.items() if kind not in CHORES}
    assert lease == {"lease_start": 1, "lease_before_end": 1, "lease_end": 1}
    posts = [v for labels, v in found["holdfast_request_seconds"] if labels["method"] == "POST"]
    assert 1.0 in posts
    with away(house):
        assert families(house)["holdfast_database_up"] == [({}, 0.0)]


def test_metrics_move_to_the_health_port(build: Build) -> None:
    port = free_port()
    house = build(f"[api]\nhealth_port = {port}\n")
    (server,) = service.health_servers(house.core, house.services, house.conf.api.health_port)
    server.start()
    try:
        for path, status in (("/metrics", 200), ("/livez", 200), (LEASES, 404)):
            assert answers(f"http://127.0.0.1:{port}{path}") == status
    finally:
        server.stop()
    assert house.call("GET", "/metrics").status_code == 404
    assert house.call("GET", "/livez").status_code == 200
    assert list(service.health_servers(house.core, house.services, 0)) == []


def test_the_labels_of_metrics_are_bounded_whatever_is_asked_for(house: House) -> None:
    for number in range(50):
        house.call("GET", f"{LEASES}/lease-{number}")
        house.call("GET", f"/nowhere-{number}/{number}")
        house.call("GET", f"/reservation/v1/x{number}")
        environ = testing.create_environ(path=LEASES)
        assert house.raw(environ | {"REQUEST_METHOD": f"M{number}"})[0] == 400
    asked = [labels for labels, _ in families(house)["holdfast_request_seconds"]]
    assert {labels["method"] for labels in asked} == {"GET", "other"}
    known = {route.path for route in table(None)} | {"none"}  # type: ignore[arg-type]
    assert {labels["route"] for labels in asked} <= known
    assert len({tuple(labels.items())[:3] for labels in asked}) < 100


@pytest.mark.parametrize("path", ["/healthcheck", "/livez", "/readyz", "/metrics"])
def test_health_is_read_only_and_answers_head(shared: House, path: str) -> None:
    assert shared.call("HEAD", path).status_code == 200
    assert shared.call("POST", path).status_code == 405
