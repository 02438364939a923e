# SPDX-License-Identifier: Apache-2.0
"""People are told of incidents: by the same sinks that tell of leases."""

from datetime import timedelta

import pytest

from holdfast.model.errors import Conflict
from holdfast.model.segment import Segment
from holdfast.ports.publishers import Event, Fault
from holdfast.recovery.events import payload
from tests.ear import Ear
from tests.recovery.house import HealHouse
from tests.simclock import EPOCH


def test_opened_held_escalated_and_recovered_are_published_once_each(house: HealHouse) -> None:
    house.segment("cmp-1", "cmp-2", "cmp-3", "cmp-4")
    house.boot("web", "cmp-1")
    house.m.store.switches.pause("", "ann", "wait", None)
    house.sim.change(fence_lies=True)
    house.sim.cut_host("cmp-1")
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


def opened(house: HealHouse) -> str:
    """cmp-1 is cut off and reported; the incident that comes of it."""
    house.sim.cut_host("cmp-1")
    report = house.report("cmp-1")
    house.run(seconds=3)
    return house.incident(report).id


def events(ear: Ear) -> list[str]:
    return [one.event_type for one in ear.heard]


def test_an_operators_abort_and_retry_are_published_in_order(house: HealHouse) -> None:
    house.segment("cmp-1", "cmp-2", "cmp-3", "cmp-4")
    house.boot("web", "cmp-1")
    house.m.store.switches.pause("", "ann", "wait", None)
    incident = opened(house)
    orders = house.m.store.incident_actions
    orders.abort(incident, "ann", "a drill")
    orders.retry(incident, "bob", "no drill")
    house.m.store.switches.resume("", "ann")
    house.run(seconds=30)
    assert events(house.ear) == [
        "incident.opened",
        "incident.held",
        "incident.aborted",
        "incident.retried",
        "incident.recovered",
    ]
    aborted, retried = house.ear.heard[2:4]
    assert aborted.payload["sentence"] == "aborted by ann: a drill"
    assert aborted.payload["closed_at"] is not None
    assert (retried.payload["status"], retried.payload["closed_at"]) == ("open", None)
    assert "tried again by bob: no drill" in retried.payload["sentence"]


def test_a_refused_change_is_not_published(house: HealHouse) -> None:
    house.segment("cmp-1", "cmp-2")
    incident = opened(house)
    with pytest.raises(Conflict):
        house.m.store.incident_actions.retry(incident, "ann")
    house.run(minutes=1)
    assert "incident.retried" not in events(house.ear)


def test_a_guest_explained_by_its_host_is_published_as_explained(house: HealHouse) -> None:
    house.segment("cmp-1", "cmp-2", "cmp-3", "cmp-4")
    house.recovery.restart_all = True
    house.m.store.switches.pause("", "ann", "wait", None)
    server = house.boot("web", "cmp-1")
    house.report_guest("cmp-1", server)
    house.run(seconds=3)
    house.sim.fail_host("cmp-1")
    house.report("cmp-1")
    house.run(seconds=3)
    house.m.store.switches.resume("", "ann")
    house.run(seconds=20)
    assert events(house.ear)[:3] == ["incident.opened", "incident.held", "incident.opened"]
    assert "incident.explained" in events(house.ear)


def test_the_next_event_waits_for_the_earlier_event_and_not_for_its_claim(
    house: HealHouse,
) -> None:
    """What is written of an incident while somebody is told of it is told next."""
    house.segment("cmp-1", "cmp-2", "cmp-3", "cmp-4")
    house.m.store.switches.pause("", "ann", "wait", None)
    report = house.report("cmp-1")

    def meanwhile() -> None:
        house.ear.meanwhile = lambda: None
        house.m.store.incident_actions.abort(house.incident(report).id, "ann", "a drill")

    house.ear.meanwhile = meanwhile
    house.run(seconds=2)
    assert events(house.ear) == ["incident.opened", "incident.held", "incident.aborted"]


# in the words of the instance HA contract


def test_a_report_is_published_on_the_bus_from_arrival_to_end(house: HealHouse) -> None:
    house.segment("cmp-1", "cmp-2", "cmp-3")
    bus = house.listen()
    house.boot("web", "cmp-1")
    house.sim.cut_host("cmp-1")
    report = house.report("cmp-1", at=EPOCH)
    house.run(minutes=1)
    of_it = [one for one in bus.heard if one.event_type.startswith("notification.")]
    assert [one.event_type for one in of_it] == [
        "notification.create.start",
        "notification.create.end",
        "notification.process.start",
        "notification.process.end",
    ]
    assert [one.publisher for one in of_it] == [
        *["masakari-api:here"] * 2,
        *["masakari-engine:here"] * 2,
    ]
    assert {one.priority for one in of_it} == {"info"}
    last = of_it[-1].payload
    assert last["masakari_object.name"] == "NotificationApiPayload"
    data = last["masakari_object.data"]
    assert (data["notification_uuid"], data["type"]) == (report, "COMPUTE_HOST")
    assert (data["status"], data["fault"]) == ("finished", None)
    assert data["generated_time"] == "2030-01-01T10:00:00Z"
    assert data["payload"]["event"] == "STOPPED"
    first = of_it[0].payload["masakari_object.data"]
    assert first["status"] == "new"
    assert "id" not in first


def test_a_host_on_maintenance_by_recovery_is_published_on_the_bus(house: HealHouse) -> None:
    house.segment("cmp-1", "cmp-2", "cmp-3")
    bus = house.listen()
    house.sim.cut_host("cmp-1")
    house.report("cmp-1")
    house.run(minutes=1)
    started, ended = [one for one in bus.heard if one.event_type.startswith("host.update.")][:2]
    assert (started.event_type, ended.event_type) == ("host.update.start", "host.update.end")
    data = ended.payload["masakari_object.data"]
    assert (data["name"], data["on_maintenance"]) == ("cmp-1", True)
    assert data["failover_segment"]["masakari_object.name"] == "FailoverSegment"


def test_a_report_that_comes_to_nothing_good_ends_as_an_error(house: HealHouse) -> None:
    house.segment("cmp-1", "cmp-2", "cmp-3")
    bus = house.listen()
    house.m.store.switches.pause("", "ann", "wait", None)
    report = house.report("cmp-1")
    house.run(seconds=3)
    orders, incident = house.m.store.incident_actions, house.incident(report).id
    orders.abort(incident, "ann", "a drill")
    house.run(seconds=3)
    last = bus.heard[-1]
    assert (last.event_type, last.priority) == ("notification.process.error", "error")
    fault = last.payload["masakari_object.data"]["fault"]
    assert fault["masakari_object.name"] == "ExceptionPayload"
    assert fault["masakari_object.data"]["exception_message"] == "aborted by ann: a drill"
    orders.retry(incident, "ann")
    house.run(seconds=3)
    assert bus.heard[-1].event_type == "notification.process.start"


def test_a_report_that_is_only_noted_begins_and_ends_at_once(house: HealHouse) -> None:
    house.segment("cmp-1", "cmp-2", "cmp-3")
    bus = house.listen()
    house.report("cmp-1", event="STARTED")
    house.run(seconds=3)
    assert events(bus)[2:] == ["notification.process.start", "notification.process.end"]
    stood = [one.payload["masakari_object.data"]["status"] for one in bus.heard[2:]]
    assert stood == ["running", "finished"]
    assert house.ear.heard == []


def test_without_a_sink_nothing_is_written(house: HealHouse) -> None:
    house.segment("cmp-1", "cmp-2", "cmp-3")
    house.report("cmp-1")
    told = house.m.store.operations.list_all(limit=1000)
    assert not [one for one in told if one.kind == "lease_announce"]


def test_objects_have_the_names_versions_and_fields_of_masakaris() -> None:
    own = "11111111-1111-4111-8111-111111111111"
    at = EPOCH + timedelta(milliseconds=250)
    segment = Segment(1, own, "north", "auto", "compute", created_at=at)
    host = {
        **{"id": 2, "uuid": own, "name": "cmp-1", "segment": segment, "type": "KVM"},
        **{"reserved": False, "control_attributes": "SSH", "on_maintenance": False},
    }
    fault = Fault("Conflict", "it is there already")
    assert payload(Event("host", "create", "error", host, fault)) == {
        "masakari_object.name": "HostApiPayload",
        "masakari_object.namespace": "masakari",
        "masakari_object.version": "1.0",
        "masakari_object.data": {
            "id": 2,
            "uuid": own,
            "name": "cmp-1",
            "failover_segment": {
                "masakari_object.name": "FailoverSegment",
                "masakari_object.namespace": "masakari",
                "masakari_object.version": "1.1",
                "masakari_object.data": {
                    "id": 1,
                    "uuid": own,
                    "name": "north",
                    "service_type": "compute",
                    "enabled": True,
                    "description": None,
                    "recovery_method": "auto",
                    "created_at": "2030-01-01T10:00:00Z",
                    "updated_at": None,
                    "deleted_at": None,
                    "deleted": False,
                },
            },
            "type": "KVM",
            "reserved": False,
            "control_attributes": "SSH",
            "on_maintenance": False,
            "fault": {
                "masakari_object.name": "ExceptionPayload",
                "masakari_object.namespace": "masakari",
                "masakari_object.version": "1.0",
                "masakari_object.data": {
                    "module_name": "holdfast",
                    "function_name": "unknown",
                    "exception": "Conflict",
                    "exception_message": "it is there already",
                    "traceback": "",
                },
            },
        },
    }
    told = payload(Event("segment", "update", "end", vars(segment)))
    assert told["masakari_object.version"] == "1.1"
    assert told["masakari_object.data"] == {
        **{"id": 1, "uuid": own, "name": "north", "service_type": "compute", "description": None},
        **{"recovery_method": "auto", "enabled": True, "fault": None},
    }
