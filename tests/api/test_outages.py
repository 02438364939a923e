# SPDX-License-Identifier: Apache-2.0
"""Parts that are away: 503 in the right shape, nothing half-made, and back by itself."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import event

from holdfast.model.errors import StaleWrite, Unavailable
from tests.api.conftest import Build
from tests.api.house import HOSTS, LEASES, OWN, House, lease_body

SEEN = {
    "observer": "m1",
    "subject": "cmp-1",
    "kind": "host",
    "state": "down",
    "since": "2026-11-15T00:00:00Z",
}


@contextmanager
def away(house: House) -> Iterator[None]:
    """The database does not answer."""

    def refuse(*_args: Any) -> None:
        raise sqlite3.OperationalError("unable to open database file")

    engine = house.core.store.database.engine
    event.listen(engine, "do_execute", refuse)
    event.listen(engine, "do_connect", refuse)
    try:
        yield
    finally:
        event.remove(engine, "do_execute", refuse)
        event.remove(engine, "do_connect", refuse)


CALLS: list[tuple[str, str, Any]] = [
    ("GET", LEASES, None),
    ("GET", f"{LEASES}/x", None),
    ("POST", LEASES, lease_body()),
    ("PUT", f"{LEASES}/x", {}),
    ("DELETE", f"{LEASES}/x", None),
    ("GET", HOSTS, None),
    ("GET", f"{HOSTS}/allocations", None),
    ("GET", f"{HOSTS}/properties", None),
    ("POST", HOSTS, {"name": "cmp-5"}),
    ("PUT", f"{HOSTS}/1", {"a": "b"}),
    ("GET", f"{OWN}/operations", None),
    ("GET", f"{OWN}/observations", None),
    ("POST", f"{OWN}/observations", SEEN),
]


def test_a_database_that_is_away_is_a_503_everywhere_and_comes_back_by_itself(
    house: House,
) -> None:
    before = house.dump()
    with away(house):
        for method, path, body in CALLS:
            answer = house.call(method, path, json=body)
            assert answer.status_code == 503, (method, path, answer.text)
            assert int(answer.headers["Retry-After"]) > 0
            if path.startswith("/reservation"):
                assert answer.json["error_code"] == answer.json["error_name"] == 503
                assert "database is away" in answer.json["error_message"]
            else:
                (fault,) = answer.json["errors"]
                assert fault["code"] == "holdfast.service.unavailable"
    assert house.dump() == before
    assert house.call("GET", LEASES).status_code == 200
    assert house.call("POST", LEASES, json=lease_body()).status_code == 201


class Away:
    """A manager behind a broker that is down."""

    def __getattr__(self, name: str) -> object:
        def call(*_args: object) -> None:
            raise Unavailable("no manager answers: the message broker is away")

        return call


def test_without_a_manager_commands_are_503_and_reads_and_reports_go_on(build: Build) -> None:
    house = build(manager=Away())
    before = house.dump()
    for method, path, body in (
        ("POST", LEASES, lease_body()),
        ("POST", HOSTS, {"name": "cmp-5"}),
        ("PUT", f"{HOSTS}/1", {"a": "b"}),
        ("DELETE", f"{HOSTS}/1", None),
        ("PATCH", f"{HOSTS}/properties/gpu", {"private": True}),
    ):
        answer = house.call(method, path, json=body)
        assert answer.status_code == 503
        assert "Retry-After" in answer.headers
    assert house.dump() == before
    for path in (LEASES, HOSTS, f"{HOSTS}/1", f"{HOSTS}/allocations", f"{OWN}/operations"):
        assert house.call("GET", path).status_code == 200
    assert house.call("POST", f"{OWN}/observations", json=SEEN).status_code == 202


def test_the_same_report_twice_is_one_row(house: House) -> None:
    path = f"{OWN}/observations"
    sent = SEEN | {"since": "2026-11-01T10:00:00Z", "evidence": {"network": "storage"}}
    first, second = (house.call("POST", path, json=sent) for _ in range(2))
    assert first.status_code == second.status_code == 202
    assert first.json == second.json
    later = house.call("POST", path, json=sent | {"since": "2026-11-02T10:00:00Z"})
    assert later.json["observation"]["id"] != first.json["observation"]["id"]
    assert len(house.call("GET", path).json["observations"]) == 2
    found = house.call("GET", path, query_string="subject=cmp-1&limit=1").json["observations"]
    assert len(found) == 1


def test_a_report_that_lost_every_race_is_asked_for_again_never_taken_for_done(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(*_args: object, **_named: object) -> None:
        raise StaleWrite("lost a race")

    monkeypatch.setattr(house.core.store.observations, "add", lose)
    answer = house.call("POST", f"{OWN}/observations", json=SEEN)
    assert answer.status_code == 503  # 409 means to a monitor that the report is known


def test_a_defect_is_a_500_without_secrets(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def burst(*_args: object, **_kwargs: object) -> None:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(house.core.store.ledger, "stamped", burst)
    answer = house.call("GET", LEASES)
    assert answer.status_code == 500
    assert answer.json["error_name"] == "INTERNAL_SERVER_ERROR"
    assert "secret detail" not in answer.text
    assert "secret detail" in caplog.text
