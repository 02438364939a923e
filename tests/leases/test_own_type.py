# SPDX-License-Identifier: Apache-2.0
"""A third-party resource type: one class and one entry point, from docs/concepts/reservations.md.

The class is the one of that page, to the letter.
"""

import re
from pathlib import Path

import pytest
from stevedore import ExtensionManager

from holdfast.app import service
from holdfast.model.errors import NotEnoughHosts
from holdfast.model.lease import NewLease, NewReservation
from tests.leases import house as houses
from tests.leases.house import ANN, BOB, House

PAGE = Path(__file__).parents[2] / "docs/concepts/reservations.md"
TYPE = "acme:licence"


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, house: House) -> House:
    """Its package, installed as pip would, and a manager that has found it."""
    section = PAGE.read_text().partition("## A type of your own")[2]
    (code,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    (entry,) = re.findall(r'"acme:licence" = "(.*?)"', section)
    site = tmp_path / "site"
    info = site / "acme-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "acme.py").write_text(code)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[holdfast.resources]\n{TYPE} = {entry}\n")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setattr(ExtensionManager, "ENTRY_POINT_CACHE", {})  # as in a new process
    monkeypatch.setattr(houses, "RESOURCES", tuple(service.resources().values()))
    house.manager()
    return house


def lease(house: House, minutes: tuple[float, float]) -> NewLease:
    wanted = (NewReservation(TYPE, {"seats": 3}),)
    start, end = map(house.at, minutes)
    return NewLease(house.new_id(), "cad", start, end, reservations=wanted)


def test_a_third_party_adds_a_resource_type_with_a_class_and_an_entry_point(acme: House) -> None:
    wanted = lease(acme, (5, 65))
    acme.m.commands.create_lease(ANN, wanted)
    with pytest.raises(NotEnoughHosts, match="the licence is taken"):
        acme.m.commands.create_lease(BOB, lease(acme, (60, 90)))
    with pytest.raises(NotEnoughHosts, match="it would fit from 2030-01-01 11:05"):
        acme.m.commands.create_lease(BOB, lease(acme, (10, 90)))
    acme.m.commands.create_lease(BOB, lease(acme, (65, 90)))
    acme.run(minutes=6)
    assert acme.status(wanted.id) == "ACTIVE"
    (reservation,) = acme.lease(wanted.id).reservations
    assert reservation.spec == {"seats": 3}
    assert reservation.made == {"serial": "42"}
    acme.run(minutes=60)
    assert acme.status(wanted.id) == "TERMINATED"
