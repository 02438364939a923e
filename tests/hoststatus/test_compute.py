# SPDX-License-Identifier: Apache-2.0
"""What the compute host monitor makes of Nova's lists and messages."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.hoststatus.plugins.compute import HYPERVISOR, SERVICE, ComputeMonitor
from holdfast.hoststatus.poll import wants
from holdfast.hoststatus.status import AUTO_DISABLED, DISABLED, DOWN, UNKNOWN, UP
from holdfast.model.nova_notification import Notice, ServiceNotice
from holdfast.ports.cloud import CloudHost, Service

NOW = datetime(2030, 1, 1, tzinfo=UTC)
SEEN = NOW - timedelta(seconds=4)
LOST = "AUTO: Connection to libvirt lost: 1"
MONITOR = ComputeMonitor(None)


def notice(**about: Any) -> ServiceNotice:
    given: dict[str, Any] = {
        "event_type": "service.update",
        "priority": "info",
        "publisher": "nova-api",
        "at": NOW,
        "message_id": "m",
        "host": "cmp-1",
        "binary": "nova-compute",
        "disabled": False,
        "disabled_reason": None,
        "forced_down": False,
        "last_seen_up": SEEN,
        "service_id": "s",
    }
    return ServiceNotice(**{**given, **about})


@pytest.mark.parametrize(
    ("about", "verdict", "decisive"),
    [
        ({"forced_down": True}, DOWN, True),
        ({"forced_down": True, "disabled": True, "disabled_reason": "fans"}, DOWN, True),
        ({"disabled": True, "disabled_reason": "fans"}, DISABLED, True),
        ({"disabled": True}, DISABLED, True),
        ({"disabled": True, "disabled_reason": LOST}, AUTO_DISABLED, False),
        ({}, UP, False),
        ({"last_seen_up": NOW - timedelta(hours=1)}, UNKNOWN, False),
        ({"last_seen_up": None}, UNKNOWN, False),
    ],
)
def test_the_verdict_of_a_service_notification(
    about: dict[str, Any], verdict: str, decisive: bool
) -> None:
    (one,) = MONITOR.heard(notice(**about))
    assert (one.host, one.source, one.at) == ("cmp-1", SERVICE, NOW)
    assert (one.verdict, one.decisive) == (verdict, decisive)


def test_messages_about_other_things_say_nothing() -> None:
    assert MONITOR.heard(notice(binary="nova-conductor", forced_down=True)) == []
    plain = Notice(
        event_type="service.update", priority="info", publisher="p", at=NOW, message_id="m"
    )
    assert MONITOR.heard(plain) == []
    assert wants(MONITOR, "service.update")
    assert not wants(MONITOR, "service.create")
    assert not wants(MONITOR, "instance.update")


@pytest.mark.parametrize(
    ("service", "verdict", "decisive"),
    [
        (Service("h", "up"), UP, False),
        (Service("h", "down", updated_at=SEEN), DOWN, False),
        (Service("h", "down", forced_down=True), DOWN, True),
        (Service("h", "up", enabled=False, disabled_reason="fans"), DISABLED, True),
        (Service("h", "up", enabled=False, disabled_reason=LOST), AUTO_DISABLED, False),
        (Service("h", "down", enabled=False, disabled_reason="fans", updated_at=SEEN), DOWN, False),
        (Service("h", "unknown"), UNKNOWN, False),
    ],
)
def test_the_verdicts_of_the_service_list(service: Service, verdict: str, decisive: bool) -> None:
    (one,) = look([service], [])
    assert (one.source, one.verdict, one.decisive) == (SERVICE, verdict, decisive)
    assert one.since == (SEEN if verdict == DOWN and not decisive else None)


def test_the_verdicts_of_the_hypervisor_list() -> None:
    hosts = [
        CloudHost("1", "a.example.org", "a"),
        CloudHost("2", "b", "b", state="down"),
        CloudHost("3", "c", "c", state="who knows"),
        CloudHost("4", "node-1", "ironic", state="down"),
        CloudHost("5", "node-2", "ironic"),
    ]
    found = [(one.host, one.source, one.verdict) for one in look([], hosts)]
    assert found == [("a", HYPERVISOR, UP), ("b", HYPERVISOR, DOWN), ("c", HYPERVISOR, UNKNOWN)]


def look(services: list[Service], hosts: list[CloudHost]) -> Any:
    cloud: Any = SimpleNamespace(
        services=SimpleNamespace(list=lambda: services), hosts=SimpleNamespace(list=lambda: hosts)
    )
    return MONITOR.states(cloud, NOW)
