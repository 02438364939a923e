# SPDX-License-Identifier: Apache-2.0
"""Floating IPs on the wire: enrolled by admins, seen by readers, leased by members."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.house import ADDRESSES, LEASES, NETWORK, House, lease_body, when
from tests.processes import eventually

KNOWN = "203.0.113.7"


def enrol(house: House, address: str, user: str = "", **fields: Any) -> Any:
    body = {"floating_network_id": NETWORK, "floating_ip_address": address, **fields}
    return house.call("POST", ADDRESSES, user, json=body)


def known(house: House) -> dict[str, Any]:
    found = house.call("GET", ADDRESSES).json["floatingips"]
    entry: dict[str, Any] = next(one for one in found if one["floating_ip_address"] == KNOWN)
    return entry


def reservation(**fields: Any) -> dict[str, Any]:
    """As python-blazarclient sends it."""
    return {
        "resource_type": "virtual:floatingip",
        "network_id": NETWORK,
        "amount": 1,
        "required_floatingips": [],
        **fields,
    }


def test_an_enrolled_address_is_shown_listed_and_withdrawn(house: House) -> None:
    made = enrol(house, " 203.0.113.9")
    assert made.status_code == 201
    body = made.json["floatingip"]
    assert body.keys() == {
        "id", "floating_network_id", "subnet_id", "floating_ip_address", "reservable",
        "created_at", "updated_at",
    }  # fmt: skip
    assert (body["floating_network_id"], body["floating_ip_address"]) == (NETWORK, "203.0.113.9")
    assert body["reservable"] is True
    assert body["updated_at"] is None
    path = f"{ADDRESSES}/{body['id']}"
    assert house.call("GET", path).json == {"floatingip": body}
    assert house.call("GET", f"{path}.json").json == {"floatingip": body}
    assert [one["floating_ip_address"] for one in listed(house)] == [KNOWN, "203.0.113.9"]
    gone = house.call("DELETE", path)
    assert (gone.status_code, gone.content) == (204, b"")
    for method in ("GET", "DELETE"):
        missing = house.call(method, path)
        assert missing.status_code == 404
        assert missing.json["error_message"] == (
            f"Object with {{'floatingip_id': '{body['id']}'}} not found"
        )
    assert [one["floating_ip_address"] for one in listed(house)] == [KNOWN]


def listed(house: House) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = house.call("GET", ADDRESSES).json["floatingips"]
    return found


@pytest.mark.parametrize(
    ("address", "fields", "status", "why"),
    [
        (KNOWN, {}, 409, "is enrolled already"),
        ("203.0.113.200", {}, 400, "lies in an allocation pool"),
        ("198.51.100.1", {}, 400, "is of no subnet of network public (203.0.113.0/24)"),
        ("seven", {}, 400, "'seven' is not an IP address"),
        ("203.0.113.9", {"floating_network_id": "nowhere"}, 404, "'network_id': 'nowhere'"),
        ("203.0.113.9", {"floating_network_id": "x" * 37}, 400, "floating_network_id"),
        ("203.0.113.9", {"colour": "blue"}, 400, "colour"),
        (None, {}, 400, "floating_ip_address"),
    ],
)
def test_an_address_that_cannot_be_enrolled_is_refused_with_the_reason(
    shared: House, address: Any, fields: dict[str, Any], status: int, why: str
) -> None:
    refused = enrol(shared, address, **fields)
    assert refused.status_code == status, refused.text
    assert why in refused.json["error_message"]
    assert refused.json["error_code"] == status


def test_an_address_has_no_update_and_no_allocations(shared: House) -> None:
    path = f"{ADDRESSES}/{known(shared)['id']}"
    assert shared.call("PUT", path, json={}).status_code == 405
    assert shared.call("GET", f"{path}/allocation").status_code == 404


def test_a_leased_address_stays_enrolled_until_the_lease_is_over(house: House) -> None:
    lease = house.lease(start_date="now", end_date=when(hours=2), reservations=[reservation()])
    (held,) = lease["reservations"]
    assert held.items() >= reservation().items()
    assert held["missing_resources"] is False
    path = f"{ADDRESSES}/{known(house)['id']}"
    refused = house.call("DELETE", path)
    assert refused.status_code == 409
    assert f"{KNOWN} is reserved" in refused.json["error_message"]
    lease_path = f"{LEASES}/{lease['id']}"
    eventually(lambda: house.call("GET", lease_path).json["lease"]["status"] == "ACTIVE")
    assert [one.address for one in house.manager.cloud.addresses.list()] == [KNOWN]
    assert house.call("DELETE", lease_path).status_code == 204
    assert not house.manager.cloud.addresses.list()
    assert house.call("DELETE", path).status_code == 204


@pytest.mark.parametrize(
    ("fields", "status", "why"),
    [
        ({"amount": 2}, 400, "Not enough floating IPs available: 2 asked for"),
        ({"required_floatingips": [KNOWN, "203.0.113.8"]}, 400, "2 addresses are more than"),
        ({"required_floatingips": ["203.0.113.8"]}, 400, "cannot be reserved"),
        ({"required_floatingips": ["x"]}, 400, "not an IP address"),
        ({"network_id": ""}, 400, "Missing parameter network_id"),
        ({"network_id": "nowhere"}, 400, "of 0 in network nowhere 0 are free"),
    ],
)
def test_a_lease_of_addresses_that_are_not_there_is_refused(
    shared: House, fields: dict[str, Any], status: int, why: str
) -> None:
    body = lease_body(reservations=[reservation(**fields)])
    refused = shared.call("POST", LEASES, json=body)
    assert refused.status_code == status, refused.text
    assert why in refused.json["error_message"]


def test_members_see_addresses_and_only_admins_enrol_them(guarded: House) -> None:
    for user in ("reader", "member", "other"):
        seen = guarded.call("GET", ADDRESSES, user).json["floatingips"]
        assert [one["floating_ip_address"] for one in seen] == [KNOWN]
        assert guarded.call("GET", f"{ADDRESSES}/{seen[0]['id']}", user).status_code == 200
        assert enrol(guarded, "203.0.113.9", user).status_code == 403
        assert guarded.call("DELETE", f"{ADDRESSES}/{seen[0]['id']}", user).status_code == 403
    assert enrol(guarded, "203.0.113.9", "admin").status_code == 201
