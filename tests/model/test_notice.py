# SPDX-License-Identifier: Apache-2.0
"""Nova's messages as values. The samples are what a Nova 34 sent, shortened."""

from __future__ import annotations

import copy
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.nova_notification import (
    AggregateNotice,
    Change,
    Fault,
    Notice,
    NotUnderstood,
    ServerNotice,
    ServiceNotice,
    parse,
)

SERVER = "193677d6-38ef-48ad-b2a5-0c1846e42459"
PROJECT = "0c00d55fe4a74c4fb0f598cd4ff95e1d"


def nova(name: str, version: str, data: dict[str, Any]) -> dict[str, Any]:
    return {
        "nova_object.name": name,
        "nova_object.namespace": "nova",
        "nova_object.version": version,
        "nova_object.data": data,
    }


def message(event_type: str, payload: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "message_id": "742132fc-5b08-45a0-8587-89c91823bc2b",
        "publisher_id": "nova-compute:cmp4",
        "event_type": event_type,
        "priority": "INFO",
        "payload": payload,
        "timestamp": "2026-11-16 00:39:06.805250",
        "_unique_id": "04e1b1f3f1414971bc11cc6b461705c6",
        "_context_auth_token": "a-secret",
        "_context_request_id": "req-c4027915-ae2d-44a3-8591-0fc9fab88f09",
        **more,
    }


def sealed(inner: dict[str, Any]) -> str:
    """In oslo.messaging's envelope."""
    return json.dumps({"oslo.version": "2.0", "oslo.message": json.dumps(inner)})


SERVICE = {
    "host": "cmp4",
    "binary": "nova-compute",
    "topic": "compute",
    "report_count": 149,
    "disabled": True,
    "disabled_reason": "fenced at 00:39",
    "availability_zone": None,
    "last_seen_up": "2026-11-16T00:39:05Z",
    "forced_down": False,
    "version": 74,
    "uuid": "0394dcac-45d8-4ec4-ae9d-5e1e359104fc",
}
INSTANCE = {
    "uuid": SERVER,
    "tenant_id": PROJECT,
    "display_name": "one",
    "host": "cmp3",
    "node": "cmp3.example.org",
    "flavor": nova("FlavorPayload", "1.4", {"name": "m1.small", "vcpus": 1}),
    "launched_at": "2026-11-16T00:38:58Z",
    "state": "stopped",
    "power_state": "shutdown",
    "task_state": None,
    "ip_addresses": [],
    "metadata": {},
    "locked": False,
    "fault": None,
    "locked_reason": None,
}
AGGREGATE = {
    "id": 1,
    "uuid": "b54995aa-8af6-4bd7-b6bc-91054ef9c7e9",
    "name": "freepool",
    "hosts": ["cmp4"],
    "metadata": {"holdfast": "1"},
}
SAMPLES = {
    "service.update": nova("ServiceStatusPayload", "1.1", SERVICE),
    "instance.power_off.end": nova("InstanceActionPayload", "1.9", INSTANCE),
    "aggregate.add_host.end": nova("AggregatePayload", "1.1", AGGREGATE),
}


def test_a_disabled_service_is_parsed_with_the_reason() -> None:
    notice = parse(sealed(message("service.update", SAMPLES["service.update"])))
    assert notice == ServiceNotice(
        event_type="service.update",
        priority="info",
        publisher="nova-compute:cmp4",
        at=datetime(2026, 11, 16, 0, 39, 6, 805250, UTC),
        message_id="742132fc-5b08-45a0-8587-89c91823bc2b",
        request_id="req-c4027915-ae2d-44a3-8591-0fc9fab88f09",
        payload="ServiceStatusPayload 1.1",
        host="cmp4",
        binary="nova-compute",
        disabled=True,
        disabled_reason="fenced at 00:39",
        forced_down=False,
        last_seen_up=datetime(2026, 11, 16, 0, 39, 5, 0, UTC),
        service_id="0394dcac-45d8-4ec4-ae9d-5e1e359104fc",
    )
    assert (notice.noun, notice.action, notice.phase) == ("service", "update", None)
    assert notice.says() == "nova-compute on cmp4: disabled (fenced at 00:39)"


def test_a_server_that_stopped_is_heard_with_where_and_how() -> None:
    notice = parse(sealed(message("instance.power_off.end", SAMPLES["instance.power_off.end"])))
    assert isinstance(notice, ServerNotice)
    assert (notice.server_id, notice.project_id) == (SERVER, PROJECT)
    assert (notice.host, notice.node) == ("cmp3", "cmp3.example.org")
    assert (notice.state, notice.power_state, notice.task_state) == ("stopped", "shutdown", None)
    assert (notice.action, notice.phase, notice.fault, notice.change) == (
        "power_off",
        "end",
        None,
        None,
    )
    assert notice.data["flavor"]["nova_object.data"]["vcpus"] == 1


def test_a_failed_action_says_why() -> None:
    fault = nova(
        "ExceptionPayload",
        "1.1",
        {"exception": "BuildAbortException", "exception_message": "no disk\nhere", "traceback": ""},
    )
    failed = nova("InstanceCreatePayload", "1.13", {**INSTANCE, "state": "error", "fault": fault})
    notice = parse(message("instance.create.error", failed, priority="ERROR"))
    assert isinstance(notice, ServerNotice)
    assert notice.fault == Fault("BuildAbortException", "no disk\nhere")
    assert (notice.priority, notice.phase) == ("error", "error")
    assert notice.says().endswith("BuildAbortException: no disk here")


def test_an_update_notification_names_the_previous_state() -> None:
    states = {
        "old_state": "building",
        "state": "active",
        "old_task_state": "spawning",
        "new_task_state": None,
    }
    update = {**INSTANCE, "state_update": nova("InstanceStateUpdatePayload", "1.0", states)}
    notice = parse(message("instance.update", nova("InstanceUpdatePayload", "2.1", update)))
    assert isinstance(notice, ServerNotice)
    assert notice.change == Change("building", "active", "spawning", None)


def test_an_aggregate_with_a_new_host_is_parsed_with_all_hosts() -> None:
    notice = parse(sealed(message("aggregate.add_host.end", SAMPLES["aggregate.add_host.end"])))
    assert isinstance(notice, AggregateNotice)
    assert (notice.aggregate_id, notice.name, notice.hosts) == (1, "freepool", ("cmp4",))
    assert notice.metadata == {"holdfast": "1"}


def test_an_aggregate_that_has_no_id_yet_is_heard() -> None:
    young = nova("AggregatePayload", "1.1", {**AGGREGATE, "id": None, "hosts": None})
    notice = parse(message("aggregate.create.start", young))
    assert isinstance(notice, AggregateNotice)
    assert (notice.aggregate_id, notice.hosts) == (None, None)


def test_a_notification_without_a_class_carries_the_payload() -> None:
    data = {"exception": "Boom", "exception_message": "no", "module_name": "nova.compute.manager"}
    payload = nova("ExceptionPayload", "7.3", data)
    notice = parse(sealed(message("compute.exception", payload, priority="ERROR")))
    assert type(notice) is Notice
    assert (notice.data["exception"], notice.payload) == ("Boom", "ExceptionPayload 7.3")


def test_a_token_in_the_message_is_not_kept() -> None:
    for event_type, payload in SAMPLES.items():
        assert "a-secret" not in repr(vars(parse(sealed(message(event_type, payload)))))


def test_a_notice_can_be_remembered_in_a_set() -> None:
    twice = [parse(message(name, payload)) for name, payload in SAMPLES.items() for _ in "ab"]
    assert len(set(twice)) == len(SAMPLES)


@pytest.mark.parametrize("event_type", SAMPLES)
def test_keys_of_a_newer_minor_version_do_no_harm(event_type: str) -> None:
    payload = copy.deepcopy(SAMPLES[event_type])
    payload["nova_object.version"] = "1.99"
    payload["nova_object.data"]["something_new"] = {"deep": [1, 2]}
    assert type(parse(message(event_type, payload))) is not Notice


@pytest.mark.parametrize("event_type", SAMPLES)
def test_an_unknown_major_version_is_refused_with_a_sentence(event_type: str) -> None:
    payload = {**SAMPLES[event_type], "nova_object.version": "3.0"}
    with pytest.raises(NotUnderstood, match=r"of version 3\.0, we know 1: this Nova is too new"):
        parse(message(event_type, payload))


def test_the_error_for_an_unversioned_message_names_the_nova_option() -> None:
    with pytest.raises(NotUnderstood, match="notification_format = versioned"):
        parse(message("compute.instance.update", {"instance_id": SERVER}) | {"event_type": "a.b"})


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("nonsense", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        ("[]", "no JSON object"),
        ('{"oslo.version": "3.0", "oslo.message": "{}"}', "envelope of version 3.0"),
        ('{"oslo.version": "2.0", "oslo.message": 3}', "no text in the envelope"),
        ("{}", "no event_type"),
        (message("nodots", {}), "not the name of an event"),
        (message("a..b", {}), "not the name of an event"),
        (message("service.update", SAMPLES["service.update"], timestamp="soon"), "no time"),
        (message("service.update", SAMPLES["service.update"], priority=None), "no priority"),
        (
            message("service.update", nova("ServiceStatusPayload", "1.1", {"host": "cmp4"})),
            r"service.update \(ServiceStatusPayload 1.1\): no binary",
        ),
        (
            message(
                "service.update", nova("ServiceStatusPayload", "1.1", {**SERVICE, "disabled": "no"})
            ),
            "disabled is no bool: no",
        ),
        (
            message("aggregate.x", nova("AggregatePayload", "1.1", {**AGGREGATE, "hosts": [1]})),
            "what is no text",
        ),
    ],
)
def test_a_senseless_notification_is_refused_with_a_reason(body: Any, why: str) -> None:
    with pytest.raises(NotUnderstood, match=why):
        parse(body)


def test_a_reason_never_quotes_a_whole_message() -> None:
    with pytest.raises(NotUnderstood) as refused:
        parse(message("x" * 10_000, {}))
    assert len(refused.value.message) < 200


def test_a_message_too_deep_to_be_read_is_refused() -> None:
    with pytest.raises(NotUnderstood):
        parse("[" * 100_000)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.one_of(st.text(), st.binary(), st.dictionaries(st.text(max_size=12), JSON, max_size=5)))
def test_whatever_comes_is_parsed_or_not_understood(body: Any) -> None:
    try:
        assert isinstance(parse(body), Notice)
    except NotUnderstood as error:
        assert error.message


@given(st.data())
def test_a_real_message_with_anything_changed_is_parsed_or_not_understood(
    data: st.DataObject,
) -> None:
    event_type = data.draw(st.sampled_from(sorted(SAMPLES)))
    changed = copy.deepcopy(message(event_type, SAMPLES[event_type]))
    for _ in range(data.draw(st.integers(1, 3))):
        places = [
            changed,
            changed.get("payload"),
            (changed.get("payload") or {}).get("nova_object.data")
            if isinstance(changed.get("payload"), dict)
            else None,
        ]
        place = data.draw(st.sampled_from([place for place in places if isinstance(place, dict)]))
        key = data.draw(st.sampled_from(sorted(place)) if place else st.just("x"))
        if data.draw(st.booleans()):
            place.pop(key, None)
        else:
            place[key] = data.draw(JSON)
    try:
        notice = parse(json.dumps(changed))
    except NotUnderstood as error:
        assert error.message
        return
    assert notice.at.tzinfo is not None
    assert notice.says()
    hash(notice)
