# SPDX-License-Identifier: Apache-2.0
"""Version documents: what clients read first to find their way."""

from typing import Any
from urllib.parse import quote

from holdfast.api.ask import Ask, Reply
from holdfast.api.microversions import CONTRACTS, Contract, text

_UPDATED = "2026-11-15T00:00:00Z"
_MEDIA = {
    "base": "application/json",
    "type": "application/vnd.openstack.masakari+json;version=1",
}


def _contract(service: str) -> Contract:
    return next(c for c in CONTRACTS if c.service == service)


def _entry(ask: Ask, contract: Contract) -> dict[str, Any]:
    return {
        "id": "v1.0",
        "status": "CURRENT",
        "links": [{"href": f"{ask.base_url}{contract.prefix}", "rel": "self"}],
        "min_version": text(contract.lowest),
        "max_version": text(contract.highest),
    }


def reservation_root(ask: Ask) -> Reply:
    return Reply({"versions": [_entry(ask, _contract("reservation"))]}, status=300)


def reservation_v1(ask: Ask) -> Reply:
    return Reply({"version": _entry(ask, _contract("reservation"))})


def _instance_ha(ask: Ask) -> dict[str, Any]:
    contract = _contract("instance-ha")
    entry = {**_entry(ask, contract), "updated": _UPDATED}
    entry["version"] = entry.pop("max_version")
    return entry


def instance_ha_root(ask: Ask) -> Reply:
    return Reply({"versions": [_instance_ha(ask)]})


def instance_ha_choices(ask: Ask) -> Reply:
    """What an address without a version could mean."""
    entry = {name: _instance_ha(ask)[name] for name in ("id", "status", "links")}
    choice = {**entry, "media-types": [_MEDIA]}
    choice["links"] = [
        {**link, "href": f"{link['href']}/{quote(ask.path['other'])}"} for link in entry["links"]
    ]
    return Reply({"choices": [choice]}, status=300)


def instance_ha_v1(ask: Ask) -> Reply:
    return Reply({"version": {**_instance_ha(ask), "media-types": [_MEDIA]}})


def holdfast_root(ask: Ask) -> Reply:
    return Reply({"versions": [_entry(ask, _contract("holdfast"))]})


def holdfast_v1(ask: Ask) -> Reply:
    links = [
        {"rel": "self", "href": f"{ask.base_url}/holdfast/v1"},
        {"rel": "service-desc", "href": f"{ask.base_url}/holdfast/v1/openapi.json"},
    ]
    return Reply({"version": {**_entry(ask, _contract("holdfast")), "links": links}})
