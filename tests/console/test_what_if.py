# SPDX-License-Identifier: Apache-2.0
"""What would follow if hosts died, on the page and by the API: both say the same."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast.console.hosts import what_if_command
from holdfast.console.wall import Tile
from tests.api.ha import add_host, make_segment
from tests.api.house import OWN
from tests.console.site import Site
from tests.console.test_wall import QUIET, hold, stand

Build = Callable[..., Site]


def test_the_command_names_racks_and_hosts() -> None:
    some = [Tile(number, f"cmp-{number}", rack="a") for number in (1, 2)]
    some.append(Tile(3, "cmp-3", rack="b"))
    assert what_if_command(some, {"a"}) == [
        "holdfast",
        "what-if",
        "--fail-rack",
        "a",
        "--fail",
        "cmp-3",
    ]
    assert what_if_command(some[:2], ()) == ["holdfast", "what-if", "--fail", "cmp-1", "cmp-2"]


def asked(site: Site, **body: Any) -> dict[str, Any]:
    found = site.call("POST", f"{OWN}/what-if", json=body)
    assert found.status_code == 200, found.text
    answer: dict[str, Any] = found.json["what_if"]
    return answer


# on the page


def shown(site: Site, query: str) -> str:
    text = site.call("GET", f"/console/what-if?{query}").text
    return re.sub(r"\s+", " ", re.sub("<[^>]+>", "", text.partition('id="result"')[2]))


def test_the_page_promises_only_what_recovery_would_do(build: Build) -> None:
    site = build(QUIET)
    segment = make_segment(site)["uuid"]
    for name in ("cmp-5", "cmp-6"):
        add_host(site, segment, name)
    said = shown(site, "fail=cmp-6")
    assert "1 server moves" in said and "0 stay down" in said
    assert "cmp-6: 1 server ●would be started elsewhere by recovery (segment north)" in said
    assert "6 → 5" in said and "holdfast what-if --fail cmp-6" in said
    (moves,) = asked(site, hosts=["cmp-6"])["recovery"]["hosts"]
    assert moves["sentence"] == "1 server would be started elsewhere by recovery (segment north)"
    both = shown(site, "fail=cmp-5&fail=cmp-6")
    assert "0 servers move" in both and "1 stays down" in both
    assert "no other host is up that would take them" in both
    whole = shown(site, "rack=rack-a")
    assert "would stay down: 6 of 6 hosts are down" in whole
    assert "would be started" not in whole and "--fail-rack rack-a" in whole
    made = site.call("POST", f"{OWN}/pauses", json={"reason": "storm"})
    assert made.status_code == 201, made.text
    assert "would stay down: recovery is paused by" in shown(site, "fail=cmp-6")
    found = asked(site, hosts=["cmp-6"])["recovery"]
    assert (found["move"], found["stay"]) == (0, 1)
    assert found["hosts"][0]["why"].startswith("recovery is paused by admin")


def test_the_api_refuses_unknown_hosts_and_racks(build: Build) -> None:
    site = build(QUIET)
    for body in ({"hosts": ["nobody"]}, {"racks": ["nowhere"]}):
        refused = site.call("POST", f"{OWN}/what-if", json=body)
        assert refused.status_code == 404, refused.text
    assert "racks known: rack-a" in refused.text


def test_a_maintenance_window_counts_from_its_beginning(build: Build) -> None:
    site = build(QUIET)
    segment = make_segment(site)["uuid"]
    for name in ("cmp-5", "cmp-6"):
        add_host(site, segment, name)
    hour = timedelta(hours=1)
    times = {"starts_at": datetime.now(UTC) + hour, "expires_at": datetime.now(UTC) + 2 * hour}
    later = {name: at.isoformat() for name, at in times.items()}
    about = {"matcher": {"host": "cmp-6"}, "reason": "new fans"}
    assert (
        site.call("POST", f"{OWN}/maintenance-windows", json={**about, **later}).status_code == 201
    )
    assert "1 server moves" in shown(site, "fail=cmp-6")
    later.pop("starts_at")
    assert (
        site.call("POST", f"{OWN}/maintenance-windows", json={**about, **later}).status_code == 201
    )
    assert "would stay down: maintenance window by" in shown(site, "fail=cmp-6")


def test_what_if_shows_the_capacity_left_in_vcpus_and_memory(build: Build) -> None:
    site = build(QUIET)
    hold(site, "blue")
    stand(site, "cmp-4", "down", "so it is")
    said = shown(site, "fail=cmp-1")
    sizes = site.core.store.ledger.sizes()
    vcpus, memory = sizes[1].vcpus, sizes[1].memory_mb // 1024
    assert vcpus and memory
    assert f"{3 * vcpus} → {2 * vcpus}" in said
    assert f"{3 * memory:,} → {2 * memory:,} GiB" in said
