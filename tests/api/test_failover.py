# SPDX-License-Identifier: Apache-2.0
"""/holdfast/v1/failover and /holdfast/v1/hosts: what segments keep free, and how hosts stand."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

import jsonschema
import pytest
import sqlalchemy as sa

from holdfast.db.tables import segment_hosts, segments
from holdfast.hoststatus.status import DOWN, HostStatus, StatusReport, judge
from holdfast.ports.recovery import StatusChange
from tests.api.house import LEASES, OWN, House, host_reservation, lease_body, when

FAILOVER, HOSTS = f"{OWN}/failover", f"{OWN}/hosts"


def segment(house: House, name: str, *names: str, kept: int = 0) -> str:
    store, made = house.core.store, str(uuid.uuid4())
    now = store.database.now()
    about = {"service_type": "compute", "recovery_method": "auto", "created_at": now}
    with store.database.write() as conn:
        conn.execute(sa.insert(segments).values(uuid=made, name=name, spare_hosts=kept, **about))
        number = conn.execute(sa.select(segments.c.id).where(segments.c.uuid == made)).scalar_one()
        for one in names:
            conn.execute(
                sa.insert(segment_hosts).values(
                    uuid=str(uuid.uuid4()),
                    segment_id=number,
                    host_id=store.ledger.host(one).id,
                    type="x",
                    control_attributes="x",
                    created_at=now,
                )
            )
    return made


def keeps_its_schema(house: House, method: str, path: str, answer: Any) -> None:
    document = house.call("GET", f"{OWN}/openapi.json").json["paths"]
    said = document[path][method]["responses"]["200"]["content"]["application/json"]
    jsonschema.validate(answer.json, said["schema"])


def test_they_are_for_administrators(guarded: House) -> None:
    known = str(uuid.uuid4())
    for method, path in (("GET", FAILOVER), ("PUT", f"{FAILOVER}/{known}"), ("GET", HOSTS)):
        for user in ("reader", "member", "manager", "service", "other"):
            answer = guarded.call(method, path, user, json={"kept": 1} if method == "PUT" else None)
            assert answer.status_code == 403, (path, user)
        assert guarded.call(method, path).status_code == 401
    assert guarded.call("GET", FAILOVER, "admin").json == {"failover": []}


def test_what_is_kept_is_set_reported_and_refused_to_bookings(house: House) -> None:
    north = segment(house, "north", "cmp-1", "cmp-2", "cmp-3", "cmp-4")
    put = house.call("PUT", f"{FAILOVER}/{north}", json={"kept": 3})
    assert put.status_code == 200, put.text
    keeps_its_schema(house, "put", f"{FAILOVER}/{{segment_id}}", put)
    lease = house.lease()
    refused = house.call(
        "POST", LEASES, json=lease_body(name="more", reservations=[host_reservation()])
    )
    assert refused.status_code == 409, refused.text
    assert "segment north keeps 3 of its 4 hosts free in case hosts fail" in refused.text
    listed = house.call("GET", FAILOVER)
    keeps_its_schema(house, "get", FAILOVER, listed)
    (shown,) = listed.json["failover"]
    assert shown["least_free_at"].startswith(lease["start_date"][:10])
    del shown["least_free_at"]
    assert shown == {
        "segment_id": north, "segment": "north", "kept": 3, "members": 4, "enrolled": 4,
        "usable": 4, "free": 4, "least_free": 3, "short": 0, "why": None,
    }  # fmt: skip
    put = house.call("PUT", f"{FAILOVER}/{north}", json={"kept": 5})
    shown = put.json["failover"]
    assert (shown["short"], shown["why"]) == (2, "5 are to be kept free and 4 can be used at all")
    house.core.store.ledger.capacity(sure=True)  # else it hears of it within five seconds
    asked = {"reservation": '{"resource_type": "physical:host", "min": 1, "max": 1}'}
    dates = {"start_date": when(days=5), "end_date": when(days=6)}
    found = house.call("GET", f"{OWN}/availability", params={**asked, **dates}).json["availability"]
    assert not found["fits"]
    assert "nothing there can be booked" in found["why_not"]["message"]
    assert found["why_not"]["failover"][0]["segment_id"] == north


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (None, "kept"),
        ({}, "kept"),
        ({"kept": -1}, "kept"),
        ({"kept": "2"}, "kept"),
        ({"kept": 1.5}, "kept"),
        ({"kept": 100_001}, "kept"),
        ({"kept": 1, "hosts": 2}, "unknown field hosts"),
    ],
)
def test_nonsense_is_refused_with_its_name(shared: House, body: Any, field: str) -> None:
    answer = shared.call("PUT", f"{FAILOVER}/{uuid.uuid4()}", json=body)
    assert answer.status_code == 400, answer.text
    assert field in answer.json["errors"][0]["detail"]


def test_a_segment_that_nobody_knows_is_not_found(shared: House) -> None:
    for ref in (str(uuid.uuid4()), "north"):
        answer = shared.call("PUT", f"{FAILOVER}/{ref}", json={"kept": 1})
        assert answer.status_code == 404
        assert ref in answer.json["errors"][0]["detail"]


def test_hosts_show_their_status_and_the_reason(house: House) -> None:
    segment(house, "north", "cmp-2")
    at = datetime(2030, 1, 1, 12, tzinfo=UTC)
    rules: Any = house.conf.monitors
    one = StatusReport(
        host="cmp-2", source="operator", verdict=DOWN, at=at, reason="it smokes", decisive=True
    )
    host_status = house.core.store.host_status
    (cmp_2,) = [host for host in host_status.watched() if host.name == "cmp-2"]
    failed = judge(HostStatus(), one, rules, at)
    assert host_status.change([StatusChange(cmp_2.id, cmp_2.status, failed)], None) == set()
    answer = house.call("GET", HOSTS)
    keeps_its_schema(house, "get", HOSTS, answer)
    shown = {host["name"]: host for host in answer.json["hosts"]}
    assert sorted(shown) == ["cmp-1", "cmp-2", "cmp-3", "cmp-4"]
    assert (shown["cmp-1"]["state"], shown["cmp-1"]["segment"]) == ("up", None)
    told = shown["cmp-2"]
    assert (told["state"], told["since"]) == ("down", "2030-01-01T12:00:00+00:00")
    assert told["why"] == "operator says down: it smokes"
    assert (told["enrolled"], told["segment"], told["rack"]) == (True, "north", "rack-a")
    down = house.call("GET", HOSTS, params={"state": "down"}).json["hosts"]
    assert [host["name"] for host in down] == ["cmp-2"]
    wrong = house.call("GET", HOSTS, params={"state": "tired"})
    assert wrong.status_code == 400
