# SPDX-License-Identifier: Apache-2.0
"""Nonsense is refused with the field's name, changes nothing, and never is a 500."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import hypothesis
import pytest
from falcon import testing
from hypothesis import strategies as st

from holdfast.api.routes import table
from tests.api.house import (
    ADDRESSES,
    HOSTS,
    LEASES,
    NETWORK,
    OWN,
    House,
    copy,
    host_reservation,
    lease_body,
    when,
)

OBSERVATIONS = f"{OWN}/observations"
SEEN = {
    "observer": "m1",
    "subject": "cmp-1",
    "kind": "host",
    "state": "down",
    "since": "2026-11-15T00:00:00Z",
}
WRONG_CLOCKS = ["1971-01-01", "4231-01-01", when(days=2), when(days=-2)]
AGENT = f"{OWN}/agents/cmp-1"
BEAT = {"started_at": SEEN["since"], "heartbeat_s": 10, "rules": {}}
WRONG_COUNTS = [{"firing": 0.0}, {"parked": True}, {"waiting": 2**31}, {"guests": 1e300}]
WRITES = {"POST", "PUT", "PATCH", "DELETE"}
#: How many requests are made up; `make soak` has time for more.
EXAMPLES = int(os.environ.get("API_EXAMPLES", "0")) or 400


def message(answer: testing.Result) -> str:
    body = answer.json
    return str(body.get("error_message") or body["errors"][0]["detail"])


@contextmanager
def unchanged(house: House) -> Iterator[None]:
    before = house.dump()
    yield
    assert house.dump() == before


NAMED: list[tuple[str, str, dict[str, Any], str]] = [
    ("POST", LEASES, lease_body(name=["x"]), "name"),
    ("POST", LEASES, lease_body(name="x" * 81), "name"),
    ("POST", LEASES, lease_body(name="a\x00b"), "name"),
    ("POST", LEASES, lease_body(name="a\ud800b"), "name"),
    ("POST", LEASES, lease_body(name="a\x1b[2Jb"), "name: holds control characters"),
    ("POST", LEASES, lease_body(name="a\n"), "name: holds control characters"),
    ("POST", LEASES, lease_body(start_date=5), "start_date"),
    ("POST", LEASES, lease_body(start_date="2020-01-01 10:00"), "start_date"),
    ("POST", LEASES, lease_body(start_date="9999-12-31 23:59"), "start_date"),
    ("POST", LEASES, lease_body(end_date="9999-12-31 23:59"), "end_date"),
    ("POST", LEASES, lease_body(end_date="9999-12-31T23:59:59-14:00"), "end_date"),
    ("POST", LEASES, lease_body(end_date="0001-01-01T00:00:00+14:00"), "end_date"),
    ("POST", LEASES, lease_body(end_date=when(hours=1)), "end_date"),
    ("POST", LEASES, lease_body(end_date="x" * 65), "end_date"),
    ("POST", LEASES, lease_body(reservations={}), "reservations"),
    ("POST", LEASES, lease_body(reservations=[7]), "reservations.0"),
    ("POST", LEASES, lease_body(reservations=[host_reservation()] * 101), "reservations"),
    ("POST", LEASES, lease_body(reservations=[host_reservation(min=-3)]), "min"),
    ("POST", LEASES, lease_body(reservations=[host_reservation(max=10**30)]), "max"),
    ("POST", LEASES, lease_body(reservations=[host_reservation(max="9" * 5000)]), "max"),
    ("POST", LEASES, lease_body(reservations=[host_reservation(max=True)]), "max"),
    ("POST", LEASES, lease_body(reservations=[host_reservation(colour=1)]), "colour"),
    ("POST", HOSTS, {"name": "cmp-5", "big": 2**70}, "big"),
    ("POST", HOSTS, {"name": "cmp-5", "long": "x" * 5000}, "long"),
    ("PUT", f"{HOSTS}/1", {"gpu": [1]}, "gpu"),
    ("PATCH", f"{HOSTS}/properties/gpu", {"private": 1}, "private"),
    ("POST", ADDRESSES, {"floating_network_id": NETWORK}, "floating_ip_address"),
    ("POST", LEASES, lease_body(dry_run="yes"), "dry_run"),
    ("PUT", f"{LEASES}/1", {"dry_run": 1}, "dry_run"),
    ("POST", OBSERVATIONS, SEEN | {"state": 5}, "state"),
    ("POST", OBSERVATIONS, SEEN | {"colour": 5}, "colour"),
    ("POST", OBSERVATIONS, SEEN | {"subject": "x" * 256}, "subject"),
    ("POST", OBSERVATIONS, SEEN | {"since": "yesterday"}, "since"),
    ("POST", OBSERVATIONS, SEEN | {"observed_at": "9999-12-31T23:59:59-14:00"}, "observed_at"),
    ("POST", OBSERVATIONS, SEEN | {"evidence": []}, "evidence"),
    ("POST", OBSERVATIONS, SEEN | {"evidence": {str(n): n for n in range(65)}}, "evidence"),
    ("POST", OBSERVATIONS, SEEN | {"evidence": {"x" * 256: 1}}, "evidence"),
    *(("POST", OBSERVATIONS, SEEN | {"sent_at": at}, "sent_at") for at in WRONG_CLOCKS),
    ("POST", OBSERVATIONS, SEEN | {"since": "1971-01-01", "sent_at": "8231-01-01"}, "sent_at"),
    ("POST", OBSERVATIONS, SEEN | {"since": when(days=2)}, "since"),
    ("POST", OBSERVATIONS, SEEN | {"observed_at": when(days=2)}, "observed_at"),
    *(("PUT", AGENT, BEAT | wrong, next(iter(wrong))) for wrong in WRONG_COUNTS),
    ("PUT", f"{OWN}/sim/settings", {"self": 1}, "self"),
    ("PUT", f"{OWN}/sim/settings", {"latency_s": -1}, "latency_s"),
    ("PUT", f"{OWN}/sim/settings", {"latency_s": 10**400}, "latency_s"),
    ("PUT", f"{OWN}/sim/settings", {"only_calls": [[]]}, "only_calls"),
]


@pytest.mark.parametrize(("method", "path", "body", "field"), NAMED)
def test_a_refusal_names_the_field_and_changes_nothing(
    shared: House, method: str, path: str, body: dict[str, Any], field: str
) -> None:
    with unchanged(shared):
        answer = shared.call(method, path, body=json.dumps(body))
    assert answer.status_code == 400, answer.text
    assert re.search(rf"\b{re.escape(field)}\b", message(answer)), message(answer)
    assert len(message(answer)) < 1000


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("limit=x", "limit"),
        ("limit=" + "9" * 5000, "limit"),
        ("since=x", "since"),
        ("colour=red", "colour"),
        ("subject=%00", "subject"),
    ],
)
def test_a_wrong_query_parameter_is_named(shared: House, query: str, field: str) -> None:
    answer = shared.call("GET", OBSERVATIONS, query_string=query)
    assert answer.status_code == 400
    assert field in message(answer)


#: Longer than any column, beyond its integers, and what SQL would take for more than text.
ODD = ["x" * 300, "é" * 300, str(2**31), str(2**63), str(10**30), "-1", "'", "\\", "%"]


@pytest.mark.slow("asks each route dozens of times")
def test_odd_names_and_numbers_are_no_server_error_on_any_database(on_server: House) -> None:
    for route in table(None):  # type: ignore[arg-type]  # only what the table says is looked at
        body = {"json": {}} if route.method in WRITES - {"DELETE"} else {}
        for odd in ODD:
            path = re.sub("{[a-z_]+}", quote(odd, safe=""), route.path)
            for query in ({}, *({name: odd} for name in route.query or {})):
                answer = on_server.call(route.method, path, params=query, **body)
                assert answer.status_code < 500, (route.method, route.path, odd, answer.text)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"observer": 1e999}', "too large a number"),
        (b'{"observer": Infinity}', "Infinity"),
        (b'{"observer": "a", "observer": "b"}', "'observer' is there twice"),
        (b'{"observer": ' + b"9" * 5000 + b"}", "Malformed"),
        (b"[" * 100_000, "Malformed"),
        (b'{"evidence": ' + b'{"a":' * 40 + b"1" + b"}" * 41, "nested deeper"),
        (b"\xff", "Malformed"),
        (b'"text"', "a JSON object is wanted"),
        (b"null", "a JSON object is wanted"),
    ],
    ids=range(9),
)
def test_json_that_no_database_can_keep_is_refused(shared: House, body: bytes, words: str) -> None:
    with unchanged(shared):
        answer = shared.call("POST", OBSERVATIONS, body=body)
    assert answer.status_code == 400
    assert words in message(answer)


def test_bodies_in_other_unicode_encodings_are_understood(house: House) -> None:
    for number, encoding in enumerate(("utf-8-sig", "utf-16", "utf-32")):
        body = json.dumps(SEEN | {"key": f"k{number}"}).encode(encoding)
        assert house.call("POST", OBSERVATIONS, body=body).status_code == 202


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "a/b; x=y"])
def test_a_body_of_another_content_type_is_refused(shared: House, kind: str) -> None:
    with unchanged(shared):
        answer = shared.call(
            "POST", LEASES, body=json.dumps(lease_body()), headers={"Content-Type": kind}
        )
    assert answer.status_code == 400
    assert "Content-Type" in message(answer)


@pytest.mark.parametrize(
    "kind", ["application/json; charset=utf-8", "application/vnd.openstack.masakari+json"]
)
def test_json_by_its_other_names_is_taken(shared: House, kind: str) -> None:
    answer = shared.call("POST", LEASES, body="{}", headers={"Content-Type": kind})
    assert "Missing parameter" in message(answer)


def test_a_reservation_that_an_update_names_twice_is_refused(house: House) -> None:
    made = house.lease()
    mine = made["reservations"][0]["id"]
    changes = [{"id": mine, "max": 2}, {"id": mine, "max": 3}]
    with unchanged(house):
        answer = house.call("PUT", f"{LEASES}/{made['id']}", json={"reservations": changes})
    assert answer.status_code == 400
    assert "reservations: one is named twice" in message(answer)


def test_a_body_beyond_the_limit_is_a_413(shared: House) -> None:
    limit = shared.conf.api.max_body
    just = json.dumps(SEEN | {"key": "k", "evidence": {"x": ""}})
    fits = just.replace('""', '"' + "x" * (limit - len(just)) + '"')
    with unchanged(shared):
        for path in (LEASES, OBSERVATIONS):
            answer = shared.call("POST", path, body=fits + " ")
            assert answer.status_code == 413
            assert str(limit) in message(answer)
    assert len(fits) == limit
    assert shared.call("POST", OBSERVATIONS, body=fits).status_code == 202


@pytest.mark.parametrize("length", ["-1", "x", "1.5", "9" * 400])
def test_a_bad_content_length_is_refused(shared: House, length: str) -> None:
    environ = testing.create_environ(path=LEASES, method="POST", remote_addr="127.0.0.1")
    environ |= {"CONTENT_LENGTH": length, "HTTP_HOST": "localhost"}
    status, _headers, body = shared.raw(environ)
    assert status in (400, 413)
    assert json.loads(body)["error_message"]


# The fuzz: everything at once, on every route.

ROUTES = table(None)  # type: ignore[arg-type]  # only their paths are looked at
TEXT = st.text(max_size=20) | st.sampled_from(
    ["", "now", "\x00", "\ud800", "1", "-1", "9" * 4400, "../..", "%2e%2e", "None", "😀", "cmp-1"]
)
NUMBERS = st.integers(-3, 3) | st.floats() | st.sampled_from([10**20, -(2**63), 2**63, 10**4000])
FIELDS = sorted(
    {name for route in ROUTES for name in (route.schema or {}).get("properties", {})}
    | set(host_reservation())
)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT | st.just(when(days=1)) | st.just(when(days=2)),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(FIELDS) | TEXT, inner, max_size=4)
    ),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.sampled_from(FIELDS) | TEXT, VALUES, max_size=6)


def mutated(body: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """A good body with some fields replaced or removed."""
    changes = st.dictionaries(st.sampled_from(sorted(body)) | TEXT, VALUES, max_size=2)
    gone = st.sets(st.sampled_from(sorted(body)), max_size=1)
    return st.builds(lambda c, g: {k: v for k, v in {**body, **c}.items() if k not in g},
                     changes, gone)  # fmt: skip


RESERVATIONS = st.lists(mutated(host_reservation()), max_size=2)
GOOD: dict[tuple[str, str], st.SearchStrategy[Any]] = {
    ("POST", LEASES): mutated(lease_body())
    | st.builds(lambda r: lease_body(reservations=r), RESERVATIONS),
    ("PUT", f"{LEASES}/{{lease_id}}"): mutated(
        {"name": "n", "start_date": when(days=1), "end_date": when(days=2), "reservations": []}
    ),
    ("POST", HOSTS): mutated({"name": "cmp-5", "colour": "red"}),
    ("PUT", f"{HOSTS}/{{host_id}}"): mutated({"colour": "red"}),
    ("PATCH", f"{HOSTS}/properties/{{name}}"): mutated({"private": False}),
    ("POST", ADDRESSES): mutated(
        {"floating_network_id": NETWORK, "floating_ip_address": "203.0.113.9"}
    ),
    ("POST", OBSERVATIONS): mutated(SEEN | {"evidence": {}, "since": "2026-01-01", "key": "k"}),
    ("PUT", f"{OWN}/sim/settings"): mutated({"delete_s": 0, "only_calls": []}),
}
QUERIES = [
    "limit=9",
    "%ff=%00",
    "a=1&a=2",
    "all=1",
    "sort=name:desc&limit=1",
    "marker=00000000-0000-0000-0000-000000000000",
    "duration_s=60&reservation=%7B%22resource_type%22:%22physical:host%22,%22min%22:1,%22max%22:[]%7D",
]
#: Writes three times as often as reads: there is more to get wrong.
CASES = st.sampled_from([*ROUTES, *(r for r in ROUTES for _ in GOOD if r.method in WRITES)])
HEADERS = st.dictionaries(
    st.sampled_from(
        ["Content-Type", "Accept", "Origin", "OpenStack-API-Version", "X-Openstack-Request-Id",
         "Authorization", "Host", "Sec-Fetch-Site", "Transfer-Encoding", "Range", "If-Match"]
    ),
    st.sampled_from(
        ["application/json", "reservation 1.0", "reservation 1.1", "reservation 9.9", "http://[::1",
         "[::1", "", "é",
         "localhost:x", "127.0.0.1:8780", "null", "chunked", "req-", "Basic é", "bytes=0-"]
    ) | st.text(st.characters(max_codepoint=255, exclude_categories=["Cc"]), max_size=10),
    max_size=2,
)  # fmt: skip


def bodies(route: Any) -> st.SearchStrategy[bytes]:
    """Mostly what the route would take but for a field or two; sometimes anything."""
    near = GOOD.get((route.method, route.path), OBJECTS)
    values = st.one_of(near, near, near, OBJECTS, VALUES)
    return st.one_of(
        values.map(lambda value: json.dumps(value).encode()),
        values.map(lambda value: json.dumps(value).encode()),
        st.binary(max_size=40),
    )


def shape_is_right(path: str, status: int, body: bytes) -> bool:
    if status < 400:
        return True
    said = json.loads(body)
    if path.startswith("/reservation"):
        return said.keys() - {"details"} in (
            {"error_code", "error_message", "error_name"}, {"error", "error_message"},
        )  # fmt: skip
    if path.startswith("/instance-ha"):
        ((_name, fault),) = said.items()
        return bool(fault.keys() == {"code", "message"})
    (fault,) = said["errors"]
    return bool(fault["status"] == status and fault["detail"] and fault["code"])


@pytest.fixture(scope="module")
def battered(furnished: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with House(copy(furnished, tmp_path_factory.mktemp("battered"))) as house:
        house.lease(name="battered")
        yield house


@hypothesis.settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(hypothesis.HealthCheck),
    phases=[hypothesis.Phase.generate, hypothesis.Phase.shrink],
)
@hypothesis.given(
    case=CASES.flatmap(lambda r: st.tuples(st.just(r), bodies(r))),
    method=st.none()
    | st.none()
    | st.sampled_from(["GET", "PUT", "PATCH", "OPTIONS", "TRACE", "FOO", "é"]),
    names=st.lists(TEXT | st.sampled_from(["1", "gpu", "LEASE"]), min_size=2, max_size=2),
    query=st.text(max_size=12) | st.sampled_from(QUERIES),
    suffix=st.sampled_from(["", "", "", "/", ".json", "//", "/.", "%2F", ";x"]),
    headers=HEADERS,
)
def test_nothing_a_client_sends_is_a_500(
    battered: House,
    case: tuple[Any, bytes],
    method: str | None,
    names: list[str],
    query: str,
    suffix: str,
    headers: dict[str, str],
) -> None:
    route, body = case
    ((lease, _events), *_) = battered.core.store.ledger.with_events(project_id="demo")
    lease_id = lease.id
    fill = iter(lease_id if name == "LEASE" else name for name in names)
    path = re.sub(
        r"{\w+}", lambda _: quote(next(fill).encode(errors="surrogatepass"), safe=""), route.path
    )
    verb = method or route.method
    if (verb, path) == ("DELETE", f"{LEASES}/{lease_id}"):
        return  # the others need it
    environ = testing.create_environ(
        method="GET",
        path=path + suffix,
        query_string=quote(query, safe="%&="),
        headers={"Host": "localhost", **headers},
        remote_addr="127.0.0.1",
    )
    environ |= {
        "REQUEST_METHOD": verb,
        "CONTENT_LENGTH": str(len(body)),
        "wsgi.input": io.BytesIO(body),
    }
    status, _headers, answer = battered.raw(environ)
    if "/healthcheck" not in path and verb != "HEAD":
        assert shape_is_right(path, status, answer), (status, answer)
    assert status < 500, (status, answer)


@pytest.mark.parametrize("number", range(60))
def test_a_refused_write_leaves_the_database_as_it_was(battered: House, number: int) -> None:
    """A seeded walk over the writes with bodies that are wrong somewhere."""
    routes = [route for route in ROUTES if route.method in WRITES]
    route = routes[number % len(routes)]
    bad: list[Any] = [{"nope": 1}, {"name": "\x00"}, [], 5, {"reservations": [{"id": 5}]}]
    path = re.sub(r"{\w+}", "nobody", route.path)
    with unchanged(battered):
        answer = battered.call(route.method, path, body=json.dumps(bad[number % len(bad)]))
        assert 400 <= answer.status_code < 500
