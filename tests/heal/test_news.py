# SPDX-License-Identifier: Apache-2.0
"""People are told of incidents: by the same sinks that tell of leases."""

from tests.heal.house import HealHouse


def test_opened_held_escalated_and_recovered_are_told_once_each(house: HealHouse) -> None:
    house.segment("cmp-1", "cmp-2", "cmp-3", "cmp-4")
    house.boot("web", "cmp-1")
    house.m.store.switches.pause("", "ann", "wait", None)
    house.sim.change(fence_lies=True)
    report = house.report("cmp-1")
    house.run(seconds=30)
    house.m.store.switches.resume("", "ann")
    house.run(minutes=1)
    house.sim.change(fence_lies=False)
    house.run(seconds=30)
    assert [one.event_type for one in house.ear.heard] == [
        "incident.opened",
        "incident.held",
        "incident.escalated",
        "incident.recovered",
    ]
    last = house.ear.heard[-1]
    assert last.publisher == "holdfast.incident"
    assert (last.payload["host"], last.payload["status"]) == ("cmp-1", "recovered")
    assert last.payload["id"] == house.incident(report).id
