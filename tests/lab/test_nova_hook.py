# SPDX-License-Identifier: Apache-2.0
"""Leases from Nova's side: our filter in the lab's own nova-api, with users' tokens.

The lab's nova-api finds the Holdfast of these tests by the catalog, in the region of `house`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from openstack.exceptions import HttpException

from holdfast.nova import names
from tests.lab.ground import Ground
from tests.lab.house import House, house
from tests.lab.site import Site
from tests.processes import eventually

if TYPE_CHECKING:
    from lab.cloud import Lab

SHELVED = ("SHELVED", "SHELVED_OFFLOADED")


@pytest.fixture(scope="module")
def home(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    options = {"enforcement": {"max_leases": 1}}
    with house(lab, tmp_path_factory.mktemp("house"), cloud="nova", extra=options) as made:
        yield made


@pytest.fixture(scope="module")
def site(lab: Lab, our_ground: Ground, home: House) -> Iterator[Site]:
    """Its people log in when Holdfast is in the catalog: nova-api looks into their token's."""
    made = Site.of(lab, our_ground, "hook")
    yield made
    made.empty()


def at(seconds: float) -> str:
    return f"{datetime.now(UTC) + timedelta(seconds=seconds):%Y-%m-%d %H:%M:%S}"


def create(site: Site, params: object = None) -> Any:
    """A server of red's, with the hint if one is given."""
    hints = {} if params is None else {"scheduler_hints": {names.LEASE_HINT: params}}
    return site.members["red"].compute.create_server(
        name=f"{site.prefix}-server",
        image_id=site.lab.image,
        flavor_id=site.ground.flavor,
        networks="none",
        **hints,
    )


def refusal(site: Site, params: object) -> HttpException:
    with pytest.raises(HttpException) as refused:
        create(site, params)
    return refused.value


def servers(site: Site) -> list[str]:
    return [
        server.id for server in site.members["red"].compute.servers(name=f"^{site.prefix}-server")
    ]


@pytest.mark.slow("a real Nova shelves the server, brings it back and deletes it")
def test_a_server_created_with_the_hint_is_shelved_until_its_start_runs_and_ends_by_its_on_end(
    lab: Lab, site: Site, home: House
) -> None:
    red = lab.credentials("red-member", "red")
    params = {"name": "hinted", "start": at(3600), "end": at(7200), "on_end": "delete"}
    made = create(site, json.dumps(params))  # as text: so do commands
    client = home.client(red)
    (lease,) = client.leases.list()
    (reservation,) = lease["reservations"]
    assert (lease["name"], lease["status"]) == ("hinted", "PENDING")
    assert (reservation["resource_type"], reservation["server_id"]) == (
        "virtual:server",
        made.id,
    )

    def status() -> str:
        return str(site.admin.compute.get_server(made.id).status)

    def reaches(wanted: str) -> None:
        eventually(lambda: client.leases.show(lease["id"])["status"] == wanted, every=0.3)

    eventually(lambda: status() in SHELVED, every=0.3)
    reaches("PENDING")
    # one lease is all that the project may have: no other server is even made
    why = refusal(site, {"end": at(3600)})
    assert why.status_code == 409 and "no server was made" in str(why), why
    eventually(lambda: servers(site) == [made.id], every=0.3)
    client.leases.update(lease["id"], start_date="now")
    eventually(lambda: status() == "ACTIVE", every=0.3)
    reaches("ACTIVE")
    client.leases.update(lease["id"], end_date="now")
    eventually(lambda: site.is_gone(made.id), every=0.3)
    reaches("TERMINATED")


def test_a_hint_that_cannot_be_meant_is_refused_in_novas_words(site: Site, home: House) -> None:
    why = refusal(site, '{"end": "soon"}')
    assert why.status_code == 400 and "write YYYY-MM-DD HH:MM" in str(why)
    why = refusal(site, {"start": at(60), "end": "2020-01-01 00:00"})
    assert why.status_code == 400 and "must be later than start" in str(why)
    assert servers(site) == []


@pytest.mark.slow("both programs are killed and started again")
def test_with_holdfast_away_a_hinted_create_answers_503_and_an_unhinted_one_passes(
    site: Site, home: House
) -> None:
    for program in (home.manager, home.api):  # the first alone leaves an API that can do nothing
        program.kill()
        why = refusal(site, {"end": at(3600)})
        assert why.status_code == 503 and "no server was made" in str(why)
        assert why.response.headers["Retry-After"]
    assert servers(site) == []
    plain = create(site)
    assert site.outcome(plain.id) in site.hosts
    home.restart(home.manager)
    home.restart(home.api)
    hinted = create(site, {"end": at(3600), "on_end": "delete"})
    made = site.admin.compute.get_server(hinted.id)
    assert json.loads(made.metadata[names.WISH])["on_end"] == "delete"
