# SPDX-License-Identifier: Apache-2.0
"""A process on a host dies."""

from tests.heal.house import HealHouse


def stopped(house: HealHouse, name: str) -> str:
    report = house.notify("PROCESS", "cmp-1", {"process_name": name, "event": "STOPPED"})
    house.run(seconds=20)
    return report


def test_without_nova_compute_a_host_takes_no_new_servers_until_it_is_back(
    house: HealHouse,
) -> None:
    house.segment("cmp-1", "cmp-2")
    house.sim.fail_host("cmp-1")  # its service is silent
    house.sim.change(service_down_s=0.0)
    report = stopped(house, "nova-compute")
    assert house.incident(report).status == "recovered"
    (service,) = [s for s in house.m.cloud.services.list() if s.host == "cmp-1"]
    assert not service.enabled
    assert house.m.store.segments.member("cmp-1").on_maintenance
    house.sim.recover_host("cmp-1")
    house.run(minutes=2)
    (service,) = [s for s in house.m.cloud.services.list() if s.host == "cmp-1"]
    assert service.enabled
    assert not house.m.store.segments.member("cmp-1").on_maintenance


def test_any_other_process_is_noted_and_does_not_touch_maintenance(house: HealHouse) -> None:
    house.segment("cmp-1", "cmp-2")
    report = stopped(house, "libvirtd")
    assert house.reported(report) == "finished"
    assert not house.m.store.segments.member("cmp-1").on_maintenance
    assert not house.effects("services.disable")


def test_a_host_that_dies_after_its_nova_compute_did_is_recovered(house: HealHouse) -> None:
    house.segment("cmp-1", "cmp-2", "cmp-3", "cmp-4")
    server = house.boot("web", "cmp-1")
    house.sim.cut_host("cmp-1")
    stopped(house, "nova-compute")
    assert house.m.store.segments.member("cmp-1").on_maintenance
    report = house.report("cmp-1")
    house.run(minutes=1)
    assert house.incident(report).status == "recovered", house.incident(report)
    assert house.server(server)["host"] != "cmp-1"
    house.check_never_twice()
