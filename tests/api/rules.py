# SPDX-License-Identifier: Apache-2.0
"""Alarm rules and agents as the API has them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from holdfast.alarms.scopes import Document, Scope
from holdfast.db.alarms import Wanted
from tests.api.house import OWN, House

NOON = "2026-11-16T12:00:00+00:00"
GUEST = "4f2c6b3e-6d0a-4f3c-9a51-0b6f7d1f2a3b"
BUSY = "rules:\n  - {id: busy, on: guest, field: util_ratio, when: '> 95%', for: 1m}\n"


def beat_body(**more: Any) -> dict[str, Any]:
    """What an agent says every few minutes: it is heard of however slow the machine is."""
    return {"started_at": datetime.now(UTC).isoformat(), "heartbeat_s": 300, "rules": {}, **more}


def furnish_rules(house: House) -> None:
    """A document with a version before it."""
    for text in (BUSY, BUSY.replace("95", "90")):
        house.core.store.alarm_rules.put(Document("base", Scope("all"), 0, text), "ann")


def alarm_body(event: str = "raised", at: str = NOON, **more: Any) -> dict[str, Any]:
    """What the agent of cmp-1 reports of a guest of the project blue."""
    said = {
        "rule": "busy",
        "version": "3-abc",
        "entity": GUEST,
        "name": "web-1",
        "kind": "guest",
        "project": "blue",
        "severity": "warning",
        "state": "firing",
        "value": 0.97,
        "threshold": 0.95,
        "first_at": NOON,
        "last_at": at,
        "at": at,
        "samples": 60,
        "actions": ["notify"],
        "key": f"{GUEST}/busy/{NOON}",
        "event": event,
        "host": "cmp-1",
        **more,
    }
    return {
        "observer": "agent@cmp-1",
        "subject": f"server:{said['entity']}" if said["kind"] == "guest" else "host:cmp-1",
        "kind": "alarm",
        "state": event,
        "since": said["first_at"],
        "observed_at": at,
        "key": f"{said['key']}/{event}/{at}",
        "evidence": said,
    }


def report(house: House, body: dict[str, Any], status: int = 202) -> Any:
    answer = house.call("POST", f"{OWN}/observations", json=body)
    assert answer.status_code == status, answer.text
    return answer.json


def furnish_alarm(house: House) -> str:
    """An alarm of the project blue; its id."""
    values = {**alarm_body(), "since": datetime.fromisoformat(NOON)}
    values["observed_at"] = datetime.fromisoformat(NOON)
    house.core.store.observations.add("o-1", values)
    (row,) = house.core.store.alarms.list_all(Wanted())
    return str(row["id"])
