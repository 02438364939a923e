# SPDX-License-Identifier: Apache-2.0
"""Leases on single servers of a real cloud: shelved until the start, there for the lease, and what
becomes of them at the end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.nova import names
from tests.e2e.deployment import host_lease, soon, wire_date
from tests.lab.ground import ground
from tests.lab.house import House, house
from tests.lab.site import REFUSED, Site
from tests.processes import eventually

if TYPE_CHECKING:
    from lab.cloud import Lab

MINE = {"lab": "server"}
HOUR = 3600


@pytest.fixture(scope="module")
def site(lab: Lab) -> Iterator[Site]:
    with ground(lab, "server", 2) as hosts:
        made = Site.of(lab, hosts, "leased")
        made.empty()  # after a run that was killed
        yield made
        made.empty()


@pytest.fixture(scope="module")
def home(lab: Lab, site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """The first host is enrolled, the second takes ordinary servers."""
    with house(lab, tmp_path_factory.mktemp("house"), cloud="nova") as made:
        host = made.client().hosts.create(site.hosts[0], MINE)
        yield made
        made.client().hosts.delete(host["id"])


class Owner:
    """What a member of project red does and sees."""

    def __init__(self, lab: Lab, site: Site, home: House) -> None:
        self.site = site
        self.leases = home.client(lab.credentials("red-member", "red")).leases

    def lease(self, server_id: str, hours: float, **spec: Any) -> dict[str, Any]:
        wanted = {"resource_type": "virtual:server", "server_id": server_id, **spec}
        return self.leases.create(
            f"of {server_id}",
            start_date=wire_date(soon(HOUR / 2)),
            end_date=wire_date(soon(hours * HOUR)),
            reservations=[wanted],
        )

    def wait(self, lease: dict[str, Any], status: str) -> dict[str, Any]:
        def there() -> Any:
            seen = self.leases.show(lease["id"])
            return seen if seen["status"] == status else None

        seen: dict[str, Any] = eventually(there, every=0.3)
        return seen

    def state(self, server_id: str) -> tuple[str, str | None]:
        server = self.site.admin.compute.get_server(server_id)
        return server.status, server.compute_host


@pytest.mark.slow("a real Nova shelves three servers, brings them back and ends them")
def test_leased_servers_are_there_for_the_time_of_their_lease_and_end_as_asked(
    lab: Lab, site: Site, home: House
) -> None:
    owner, (enrolled, ordinary) = Owner(lab, site, home), site.hosts
    servers = [site.boot("red") for _ in range(3)]
    assert [site.outcome(server) for server in servers] == [ordinary] * 3
    stopped, deleted, homeless = servers
    # Somebody has the whole host later: while a lease lasts until then, no room can be held.
    later = home.client(lab.credentials("blue-member", "blue")).leases.create(
        "whole",
        start_date=wire_date(soon(2 * HOUR)),
        end_date=wire_date(soon(3 * HOUR)),
        reservations=[host_lease(1, 1, '["==", "$lab", "server"]')],
    )
    leases = [
        owner.lease(stopped, 1, on_end="stop"),
        owner.lease(deleted, 1, on_end="snapshot,delete"),
        owner.lease(homeless, 2.5, on_end="stop"),
    ]
    assert [lease["status"] for lease in leases] == ["PENDING"] * 3
    for one in servers:
        eventually(lambda one=one: owner.state(one) == ("SHELVED_OFFLOADED", None), every=0.3)
    for lease in leases:
        owner.leases.update(lease["id"], start_date="now")

    seen = [owner.wait(lease, "ACTIVE") for lease in leases]
    assert not any(lease["degraded"] for lease in seen), seen
    assert [owner.state(server) for server in servers] == [
        ("ACTIVE", enrolled),
        ("ACTIVE", enrolled),
        ("ACTIVE", ordinary),
    ]
    pools = {aggregate.name: aggregate for aggregate in site.admin.compute.aggregates()}
    mine = [lease["reservations"][0]["id"] for lease in leases]
    assert [one in pools for one in mine] == [True, True, False]
    about = dict(pools[mine[0]].metadata)
    assert about.pop(names.SIZE).count(",") == 2
    assert about == {**site.owner("red"), names.SERVER: stopped}
    assert enrolled in site.pools()[names.FREEPOOL]
    assert site.lands("red", hint=mine[0]) == REFUSED  # room for one server is nobody else's

    for lease in leases:
        owner.leases.update(lease["id"], end_date="now")
    for lease in leases:
        owner.wait(lease, "TERMINATED")
    assert owner.state(stopped) == ("SHELVED_OFFLOADED", None)  # it left the enrolled host
    assert site.is_gone(deleted)
    assert owner.state(homeless) == ("SHUTOFF", ordinary)
    assert not any(site.pools().get(one) for one in mine)
    name = f"reserved_{site.prefix}-server_{mine[1]}"
    (image,) = (image for image in site.members["red"].image.images() if image.name == name)
    site.admin.image.delete_image(image.id)
    home.client().leases.delete(later["id"])
    for one in mine[:2]:  # the house will not stand when the last telling is due
        site.admin.compute.delete_aggregate(pools[one].id)
