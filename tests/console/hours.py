# SPDX-License-Identifier: Apache-2.0
"""Hours of host metrics, as agents send them."""

from __future__ import annotations

import time
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.metrics import history
from holdfast.metrics.history import FIELDS, POINTS, Hour, Line
from tests.console.site import Site

EVIL = "<script>alert(1)</script>"
WORSE = '"><img src=x onerror=alert(1)>'
GUEST = "4f2c6b3e-6d0a-4f3c-9a51-0b6f7d1f2a3b"
QUIET = "9d1e54b0-5c1a-4b9e-9a6f-1d2c3e4f5a6b"


def flat(value: float, **at: float) -> array[float]:
    """Return a constant series with other values in some minutes: flat(0.2, m30=0.99)."""
    made = array("f", [value]) * POINTS
    for minute, other in at.items():
        begin = int(minute[1:]) * 6
        made[begin : begin + 60] = array("f", [other]) * 60
    return made


def line(kind: str, id: str, name: str, values: Mapping[str, array[float]], **more: Any) -> Line:
    every = {field: flat(0.25) for field in FIELDS[kind]}
    return Line(kind, id, name, values={**every, **values}, **more)


def guest(id: str, name: str, util: array[float], project: str = "blue") -> Sequence[Line]:
    """Return the lines of a guest with a disk and an interface."""
    return (
        line("guest", id, name, {"util_ratio": util}, project=project, flavor="m1.small"),
        line("disk", f"{id}/vda", f"{name}/vda", {}, project=project, guest=id),
        line("nic", f"{id}/tap0", f"{name}/tap0", {}, project=project, guest=id),
    )


def hour(*guests: Sequence[Line], host: str = "cmp-1", simulated: bool = False) -> Hour:
    lines = [
        line("host", host, host, {"cpu_util_ratio": flat(0.5)}),
        *(x for g in guests for x in g),
    ]
    order = list(FIELDS)
    lines.sort(key=lambda one: order.index(one.kind))
    return Hour(
        history.slot_of(time.time()) - POINTS + 1, POINTS, tuple(lines), simulated=simulated
    )


def put(site: Site, made: Hour, host: str = "cmp-1") -> None:
    """Store metrics as if a page had requested them and the agent had answered."""
    site.core.store.samples.want(host)
    assert site.core.store.samples.put(host, made)


def busy() -> Hour:
    """Return an hour with a guest busy from minute 30 to 40 and an idle, hostile guest."""
    evil = guest(QUIET, EVIL, flat(0.1), WORSE)
    return hour(guest(GUEST, "web-1", flat(0.2, m30=0.99)), evil)


def kept(site: Site) -> list[str]:
    """Dump what the pages of metrics, alarms and rules can change, without notifications."""
    tables = [f'INTO "{name}"' for name in ("samples", "alarms", "alarm_rules", "agents", "audit")]
    return [row for row in site.dump() if any(table in row for table in tables)]
