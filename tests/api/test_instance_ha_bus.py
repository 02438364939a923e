# SPDX-License-Identifier: Apache-2.0
"""What happens to segments, hosts and reports is heard on the bus, as from Masakari: by an
unchanged listener of oslo.messaging at a real broker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import kombu
import pytest
from oslo_config import cfg

from tests.api.conftest import Build
from tests.api.ha import REPORTS, SEGMENTS, add_host, make_segment, report_body, segment_body
from tests.api.house import OWN, House
from tests.processes import eventually
from tests.servers.rabbitmq import RabbitMQ

import holdfast.drivers.rabbit  # isort: skip  # noqa: F401  threads, before oslo.messaging chooses otherwise
import oslo_messaging  # isort: skip


class Listener:
    """Endpoint of a listener, as consumers of Masakari's notifications have it."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str, str, dict[str, Any]]] = []

    def info(self, _context: Any, publisher: str, event: str, payload: Any, _more: Any) -> None:
        self.heard.append(("info", publisher, event, payload))

    def error(self, _context: Any, publisher: str, event: str, payload: Any, _more: Any) -> None:
        self.heard.append(("error", publisher, event, payload))

    def of(self, noun: str) -> list[str]:
        return [event for _, _, event, _ in self.heard if event.startswith(f"{noun}.")]

    def last(self, event: str) -> tuple[str, dict[str, Any]]:
        """Publisher and data of the last one of that type."""
        found = [(said_by, payload) for _, said_by, name, payload in self.heard if name == event]
        publisher, payload = found[-1]
        return publisher, payload["masakari_object.data"]

    def data(self, event: str) -> dict[str, Any]:
        return self.last(event)[1]


@pytest.fixture
def bus(rabbitmq: RabbitMQ) -> Iterator[Listener]:
    heard = Listener()
    with kombu.Connection(rabbitmq.url.replace("rabbit://", "amqp://")) as line:
        for level in ("info", "error"):  # what nobody read of an earlier test is not for this one
            line.default_channel.queue_delete(f"versioned_notifications.{level}")
    cfg.CONF(args=[], project="holdfast", default_config_files=[])
    transport = oslo_messaging.get_notification_transport(cfg.CONF, url=rabbitmq.url)
    topic = oslo_messaging.Target(topic="versioned_notifications", exchange="masakari")
    listener = oslo_messaging.get_notification_listener(
        transport, [topic], [heard], executor="threading"
    )
    listener.start()
    yield heard
    listener.stop()
    listener.wait()
    transport.cleanup()


@pytest.fixture
def spoken(build: Build, rabbitmq: RabbitMQ) -> House:
    return build(f"[publishers]\nmessaging = true\ntransport_url = {rabbitmq.url}\n")


def test_the_life_of_a_segment_and_its_hosts_is_heard_in_order(
    spoken: House, bus: Listener
) -> None:
    segment = make_segment(spoken, description="by the door")
    where = f"{SEGMENTS}/{segment['uuid']}"
    host = add_host(spoken, segment["uuid"], "cmp-1")
    its = f"{where}/hosts/{host['uuid']}"
    for method, path, body in (
        ("PUT", its, {"host": {"reserved": True}}),
        ("DELETE", its, None),
        ("PUT", where, {"segment": {"name": "south"}}),
        ("DELETE", where, None),
    ):
        assert spoken.call(method, path, json=body).status_code in (200, 204)
    eventually(lambda: len(bus.heard) == 12)
    actions, phases = ("create", "update", "delete"), ("start", "end")
    for noun in ("segment", "host"):
        assert bus.of(noun) == [
            f"{noun}.{action}.{phase}" for action in actions for phase in phases
        ]
    assert {level for level, _, _, _ in bus.heard} == {"info"}
    assert all(publisher.startswith("masakari-api:") for _, publisher, _, _ in bus.heard)
    assert "id" not in bus.data("segment.create.start")
    made = bus.data("segment.create.end")
    assert made == {
        **{name: segment[name] for name in ("id", "uuid", "name", "service_type", "enabled")},
        **{name: segment[name] for name in ("description", "recovery_method")},
        "fault": None,
    }
    assert bus.data("segment.update.end")["name"] == "south"
    changed = bus.data("host.update.end")
    assert (changed["name"], changed["reserved"]) == ("cmp-1", True)
    assert changed["failover_segment"]["masakari_object.data"]["uuid"] == segment["uuid"]


def test_what_was_refused_is_heard_as_an_error_with_its_reason(
    spoken: House, bus: Listener
) -> None:
    make_segment(spoken)
    refused = spoken.call("POST", SEGMENTS, json={"segment": segment_body()})
    assert refused.status_code == 409
    eventually(lambda: len(bus.heard) == 4)
    told = sorted((event, level) for level, _, event, _ in bus.heard)
    assert told == [
        ("segment.create.end", "info"),
        ("segment.create.error", "error"),
        ("segment.create.start", "info"),
        ("segment.create.start", "info"),
    ]
    fault = bus.data("segment.create.error")["fault"]["masakari_object.data"]
    assert fault["exception"] == "Conflict"
    assert fault["exception_message"] == refused.json["conflictingRequest"]["message"]


def test_a_report_is_heard_by_its_contract_and_people_hear_of_its_incident(
    spoken: House, bus: Listener
) -> None:
    segment = make_segment(spoken)
    add_host(spoken, segment["uuid"], "cmp-1")
    pause = {"reason": "not in this test"}
    assert spoken.call("POST", f"{OWN}/pauses", json=pause).status_code == 201
    report = {"notification": report_body("cmp-1")}
    made = spoken.call("POST", REPORTS, json=report).json["notification"]
    eventually(lambda: "notification.process.start" in bus.of("notification"))
    assert bus.of("notification") == [
        "notification.create.start",
        "notification.create.end",
        "notification.process.start",
    ]
    # by its name: news of other subjects come in an order of their own
    assert bus.last("notification.process.start")[0].startswith("masakari-engine:")
    assert bus.data("notification.create.end")["notification_uuid"] == made["notification_uuid"]
    assert bus.of("incident") == []


def test_a_broker_that_is_away_delays_no_answer_and_notifications_wait(build: Build) -> None:
    house = build(
        "[publishers]\nmessaging = true\nmessaging_timeout_s = 0.5\n"
        "transport_url = rabbit://guest:guest@127.0.0.1:1//\n"
    )
    before = time.monotonic()
    make_segment(house)
    assert time.monotonic() - before < 60.0  # oslo.messaging by itself tries for ever
    waiting = house.core.store.operations.list_all(limit=1000)
    kinds = [one.payload["event_type"] for one in waiting if one.kind == "lease_announce"]
    assert sorted(kinds) == ["segment.create.end", "segment.create.start"]
