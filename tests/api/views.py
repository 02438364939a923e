# SPDX-License-Identifier: Apache-2.0
"""What a host monitor says that it sees, as it sends it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast.api import tokens
from holdfast.db import Store
from holdfast.hostmonitor import matrix
from holdfast.model.observation import AGENT_HEADER
from tests.api.house import SECRET, House

NETWORKS = ("manage", "tenant", "storage")
UP, NO_STORAGE = ("up", "up", "up"), ("up", "up", "down")
BLIND = ("up", "up", "unknown")


def stamp(seconds: float = 0) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


def view_body(
    *rows: tuple[tuple[str, ...], str, list[str]], at: float = 0, **more: Any
) -> dict[str, Any]:
    sight = {"sighted": True, "leader": "10.0.0.1:8300", "since": stamp(-60), "why": ""}
    return {
        "kind": "host",
        "at": stamp(at),
        "started_at": stamp(-60),
        "heartbeat_s": 300,  # it is fresh however slow the machine is
        "networks": {name: sight for name in NETWORKS},
        "ha_matrix": matrix.default(NETWORKS).to_plain(),
        "rows": [
            {"health": dict(zip(NETWORKS, health, strict=True)), "opinion": opinion, "hosts": hosts}
            for health, opinion, hosts in rows
        ],
        **more,
    }


def registered(house: House, observer: str) -> dict[str, str]:
    """A monitor that votes; the header that shows its token."""
    house.core.store.monitors.register(observer, "ann")
    return {AGENT_HEADER: tokens.monitor_token(observer, SECRET)}


def see(store: Store, sent: dict[str, Any], observer: str = "ctl-1") -> None:
    """A registered monitor says what it sees."""
    store.monitors.register(observer, "ann")
    said = dict(sent)
    store.monitors.put(observer, datetime.fromisoformat(said.pop("at")), said)


def furnish_view(house: House) -> None:
    """A monitor that sees cmp-1."""
    see(house.core.store, view_body((UP, "none", ["cmp-1"])))
