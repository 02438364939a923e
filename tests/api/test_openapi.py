# SPDX-License-Identifier: Apache-2.0
"""The documents of the API: valid OpenAPI 3.1, nothing left out, no link that leads nowhere."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any
from urllib.parse import urlencode

import jsonschema
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from holdfast.api import versions
from holdfast.api.holdfast_v1 import sim
from holdfast.api.routes import table
from holdfast.drivers.sim.world import Settings
from holdfast.model.errors import by_code
from tests.api.house import OWN, House

ROUTES = table(None)  # type: ignore[arg-type]  # only what the table says is looked at
MINE = [route for route in ROUTES if f"{route.path}/".startswith(f"{OWN}/")]
HOSTS_4 = '{"resource_type":"physical:host","min":4,"max":4}'
FITS = urlencode({"reservation": HOSTS_4, "duration_s": 60})
TOO_MANY = urlencode({"reservation": HOSTS_4.replace("4", "9"), "duration_s": 60})
DOCUMENTS = ("/reservation/v1/openapi.json", "/instance-ha/v1/openapi.json", f"{OWN}/openapi.json")


@pytest.fixture(scope="module")
def document(shared: House) -> dict[str, Any]:
    answer = shared.call("GET", f"{OWN}/openapi.json")
    assert answer.status_code == 200
    found: dict[str, Any] = answer.json
    return found


def operations(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [operation for path in document["paths"].values() for operation in path.values()]


@pytest.mark.parametrize("address", DOCUMENTS)
def test_each_contract_has_a_document_of_openapi_with_its_security(
    guarded: House, address: str
) -> None:
    document = guarded.call("GET", address).json
    OpenAPIV31SpecValidator(document).validate()
    names = [operation["operationId"] for operation in operations(document)]
    assert len(names) == len(set(names)) > 5
    schemes = document["components"]["securitySchemes"]
    sent = {scheme.get("name", scheme.get("scheme")) for scheme in schemes.values()}
    assert sent == {"basic", "X-Auth-Token", "X-Holdfast-Agent"}
    assert document["security"] == [{"basic": []}, {"agent": []}]
    for operation in operations(document):
        gone = operation["responses"].get("204", {})
        assert "content" not in gone
    prefix = address.removesuffix("/openapi.json")
    assert document["paths"][prefix]["get"]["security"] == []
    mine = {r.path for r in ROUTES if f"{r.path}/".startswith(f"{prefix}/")}
    assert mine == document["paths"].keys()


def test_a_document_names_the_security_of_its_server(shared: House) -> None:
    contract = versions.CONTRACTS[0]
    assert shared.call("GET", DOCUMENTS[0]).json["security"] == []  # noauth
    asked = versions.document(contract, ROUTES, "keystone")["security"]
    assert asked == [{"token": []}, {"agent": []}]


@pytest.mark.parametrize("route", MINE, ids=lambda route: f"{route.method} {route.path}")
def test_every_route_of_ours_is_documented_as_it_is(document: dict[str, Any], route: Any) -> None:
    operation = document["paths"][route.path][route.method.lower()]
    assert operation["summary"] == route.summary
    assert str(route.status) in operation["responses"]
    assert "default" in operation["responses"]
    said = {(p["in"], p["name"]) for p in operation.get("parameters", [])}
    paths = {("path", name) for name in re.findall(r"{(\w+)}", route.path)}
    assert said == paths | {("query", name) for name in route.query or {}}
    assert ("requestBody" in operation) == (route.schema is not None)
    needed = {p["name"] for p in operation.get("parameters", []) if p["required"]}
    assert needed == {name for _, name in paths} | set(route.needs)


def test_answers_keep_the_schemas_that_the_document_gives_them(house: House) -> None:
    document = house.call("GET", f"{OWN}/openapi.json").json
    seen = {
        "observer": "m1",
        "subject": "cmp-1",
        "kind": "host",
        "state": "down",
        "since": "2026-11-15T00:00:00Z",
    }
    asked: list[tuple[str, str, str, Any]] = [
        ("post", f"{OWN}/observations", f"{OWN}/observations", seen),
        ("get", f"{OWN}/observations", f"{OWN}/observations", None),
        ("get", f"{OWN}/operations", f"{OWN}/operations", None),
        ("get", f"{OWN}/errors/{{code}}", f"{OWN}/errors/holdfast.internal", None),
        ("get", f"{OWN}/sim", f"{OWN}/sim", None),
        ("put", f"{OWN}/sim/settings", f"{OWN}/sim/settings", {"latency_s": 0.0}),
        ("post", f"{OWN}/sim/hosts/{{name}}/fail", f"{OWN}/sim/hosts/cmp-6/fail", {}),
        ("get", f"{OWN}/availability", f"{OWN}/availability?{FITS}", None),
        ("get", f"{OWN}/availability", f"{OWN}/availability?{TOO_MANY}", None),
        ("get", OWN, OWN, None),
        ("get", f"{OWN}/openapi.json", f"{OWN}/openapi.json", None),
    ]
    house.lease()
    for method, template, path, body in asked:
        address, _, query = path.partition("?")
        answer = house.call(method.upper(), address, json=body, query_string=query)
        said = document["paths"][template][method]["responses"][str(answer.status_code)]
        jsonschema.validate(answer.json, said["content"]["application/json"]["schema"])


def test_errors_keep_their_schema_and_their_help_links_resolve(shared: House) -> None:
    schema = shared.call("GET", f"{OWN}/openapi.json").json["components"]["schemas"]["Error"]
    for method, address, headers in (
        ("GET", f"{OWN}/nowhere", {}),
        ("DELETE", f"{OWN}/operations", {}),
        ("GET", f"{OWN}/operations?limit=x", {}),
        ("POST", f"{OWN}/observations", {"Content-Type": "text/plain"}),
        ("GET", f"{OWN}/errors/nope", {}),
        ("GET", f"{OWN}/operations", {"Host": "elsewhere"}),
        ("GET", f"{OWN}/operations", {"OpenStack-API-Version": "holdfast 9.9"}),
        ("GET", f"{OWN}/operations", {"OpenStack-API-Version": "holdfast x"}),
    ):
        path, _, query = address.partition("?")
        answer = shared.call(method, path, headers=headers, query_string=query)
        assert answer.status_code >= 400
        jsonschema.validate(answer.json, schema)
        (fault,) = answer.json["errors"]
        assert fault["status"] == answer.status_code
        assert fault["request_id"] == answer.headers["x-openstack-request-id"]
        (link,) = fault["links"]
        help_page = shared.call("GET", link["href"])
        assert help_page.status_code == 200
        assert help_page.json["error"]["code"] == fault["code"]


def test_every_error_code_has_a_page_of_its_own(shared: House) -> None:
    for code, cls in by_code().items():
        said = shared.call("GET", f"{OWN}/errors/{code}").json["error"]
        assert (said["code"], said["status"]) == (code, cls.status)
        assert said["meaning"]


def test_the_settings_of_the_simulated_cloud_are_all_in_the_schema() -> None:
    assert set(sim.SETTINGS["properties"]) == {field.name for field in fields(Settings)}
