# SPDX-License-Identifier: Apache-2.0
"""A host of the simulated cloud is cut off, on one network or from everybody."""

from __future__ import annotations

from typing import Any

from tests.api.house import House

HOST = "/holdfast/v1/sim/hosts/cmp-1"


def of(house: House) -> Any:
    hosts = house.call("GET", "/holdfast/v1/sim").json["sim"]["hosts"]
    (found,) = [host for host in hosts if host["name"] == "cmp-1"]
    return found


def test_one_cable_is_cut_and_reconnected(house: House) -> None:
    body = {"network": "storage"}
    said = house.call("POST", f"{HOST}/cut", json=body)
    assert (said.status_code, said.json) == (
        202,
        {"said": "host cmp-1 is cut off on the network storage"},
    )
    assert (of(house)["cut"], of(house)["service"]["state"]) == (["storage"], "up")
    assert house.call("POST", f"{HOST}/reconnect", json=body).status_code == 202
    assert of(house)["cut"] == []


def test_without_a_network_the_host_is_cut_off_from_everybody(house: House) -> None:
    assert house.call("POST", f"{HOST}/cut", json={}).status_code == 202
    assert (of(house)["cut"], of(house)["service"]["state"]) == ([], "down")
    assert house.call("POST", f"{HOST}/reconnect", json={}).status_code == 202
    assert of(house)["service"]["state"] == "up"


def test_a_network_without_a_monitor_is_refused(house: House) -> None:
    said = house.call("POST", f"{HOST}/cut", json={"network": "storge"})
    assert said.status_code == 400
    assert "no network storge" in said.text
    assert "manage, tenant, storage" in said.text
    assert of(house)["cut"] == []
