# SPDX-License-Identifier: Apache-2.0
"""A part of the cloud is away for a while when a lease ends and another starts: late, right.

Away means killed, as by a power cut, and started again on the same data. These tests take the lab
from everybody else, so they run alone, after all others.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import requests

from holdfast.nova import names
from tests.e2e.deployment import host_lease, soon, wire_date
from tests.lab.ground import Ground
from tests.lab.house import House, house
from tests.lab.site import REFUSED, Site
from tests.processes import eventually

if TYPE_CHECKING:
    from lab.cloud import Lab

pytestmark = [
    pytest.mark.outage,
    pytest.mark.slow("a part is away for longer than a manager's claim lasts, and comes back"),
]

#: Longer than a manager's claim on its work lasts.
AWAY_S = float(os.environ.get("OUTAGE_S", "20"))
#: After the part is back: its own start, everybody's reconnecting, our longest pause between tries.
LATE_S = 180


@pytest.fixture(scope="module")
def site(lab: Lab, our_ground: Ground) -> Iterator[Site]:
    made = Site.of(lab, our_ground, "outage")
    yield made
    made.empty()


@pytest.fixture(scope="module")
def home(lab: Lab, our_ground: Ground, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with house(lab, tmp_path_factory.mktemp("house"), cloud="nova", managers=2) as made:
        admin = made.client()
        for host in our_ground.hosts:
            admin.hosts.create(host, {})
        yield made
        for host in our_ground.hosts:
            admin.hosts.delete(admin.hosts.find(host)["id"])


@pytest.mark.parametrize("part", ["nova-api", "keystone", "mariadb", "rabbitmq"])
def test_leases_start_and_end_late_and_right_though_a_part_was_away(
    lab: Lab, site: Site, home: House, part: str
) -> None:
    owner = home.client(lab.credentials("red-member", "red"))
    ending = book(owner, "ending", soon(0), soon(3600))
    settled(owner, ending, "ACTIVE")
    old = reservation(owner, ending)
    server, left = site.settle("red", old)
    instant = soon(3)
    owner.leases.update(ending, end_date=wire_date(instant))
    starting = book(owner, "starting", instant, soon(3600))
    new = reservation(owner, starting)
    stranger = {"X-Auth-Token": str(lab.connect("blue-member", "blue").session.get_token())}

    time.sleep(max(0.0, (instant - soon(0)).total_seconds() - 1))
    lab.part(part).kill()
    began = time.monotonic()
    if part == "keystone":
        known_tokens_go_on_and_others_are_told_to_wait(home, owner, stranger)
    time.sleep(max(0.0, began + AWAY_S - time.monotonic()))
    lab.part(part).start()
    print(f"{part} was away for {time.monotonic() - began:.0f} s", end="; ")

    back = time.monotonic()
    settled(owner, starting, "ACTIVE")
    settled(owner, ending, "TERMINATED")
    print(f"both leases right {time.monotonic() - back:.1f} s after it was back")
    eventually(lambda: site.is_gone(server), LATE_S, 0.3)
    pools = eventually(lambda: at_rest(site, old, new), LATE_S, 0.3)
    (host,) = pools[new]
    assert left in pools[names.FREEPOOL] | pools[new]

    # Nova's scheduler knows it too, whatever it did not hear meanwhile
    eventually(lambda: site.lands("red", new) == host, LATE_S, 1)
    with ThreadPoolExecutor(2) as people:
        asked = [("blue", new), ("red", None)]
        assert list(people.map(lambda who: site.lands(*who), asked)) == [REFUSED] * 2
    if part == "rabbitmq":  # who did not hear that the old pool is over, hears it told again
        eventually(lambda: site.lands("red", old) == REFUSED, LATE_S, 1)
    else:
        assert site.lands("red", old) == REFUSED

    leases = f"{home.url}/reservation/v1/leases"
    assert requests.get(leases, headers=stranger, timeout=60).status_code == 200
    owner.leases.delete(starting)
    owner.leases.delete(ending)
    eventually(lambda: site.pools()[names.FREEPOOL] >= set(site.hosts), LATE_S, 0.3)


def known_tokens_go_on_and_others_are_told_to_wait(
    home: House, owner: Any, stranger: dict[str, str]
) -> None:
    assert owner.leases.list()
    answer = requests.get(f"{home.url}/reservation/v1/leases", headers=stranger, timeout=60)
    assert (answer.status_code, bool(answer.headers["Retry-After"])) == (503, True)
    assert "Keystone cannot check" in answer.text


def book(owner: Any, name: str, start: Any, end: Any) -> str:
    made = owner.leases.create(
        name,
        start_date=wire_date(start),
        end_date=wire_date(end),
        reservations=[host_lease(1, 1)],
    )
    return str(made["id"])


def reservation(owner: Any, lease_id: str) -> str:
    return str(owner.leases.show(lease_id)["reservations"][0]["id"])


def settled(owner: Any, lease_id: str, status: str) -> None:
    eventually(lambda: owner.leases.show(lease_id)["status"] == status, LATE_S, 0.2)


def at_rest(site: Site, old: str, new: str) -> dict[str, set[str]] | None:
    """The pools, once the old one is empty and each host is in one place only."""
    pools = site.pools()
    if pools.get(old) or len(pools.get(new, ())) != 1 or pools[new] & pools[names.FREEPOOL]:
        return None
    return pools if pools[new] | pools[names.FREEPOOL] >= set(site.hosts) else None
