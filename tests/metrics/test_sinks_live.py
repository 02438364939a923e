# SPDX-License-Identifier: Apache-2.0
"""A real guest, measured as an agent does it: its numbers arrive at statsd and Prometheus, and are
seen by `holdfast metric top`."""

from __future__ import annotations

import contextlib
import functools
import json
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import conf as configuration
from holdfast.agent.admin import Admin, AdminSocket
from holdfast.app.agent import Measuring, build_sinks
from holdfast.drivers.libvirt.metrics import LibvirtMeasures
from holdfast.runtime.clock import SystemClock
from tests.libvirt.host import FILE_DISK
from tests.metrics.host import NIC as TAP
from tests.metrics.host import TapHost
from tests.metrics.sinks_world import Ear
from tests.processes import PATIENCE_S, eventually, free_port, script

NAME = "m-told"


@pytest.fixture
def uuid(host: TapHost) -> Iterator[str]:
    path = host.sockets / f"{NAME}.raw"
    path.write_bytes(bytes(2**16))
    path.chmod(0o666)
    tap = TAP.format(mac="52:54:00:00:00:13", tap=host.taps[3], model="e1000")
    with contextlib.closing(host.connected()) as way:
        domain = way.createXML(host.measured(NAME, FILE_DISK.format(path=path) + tap, project="p"))
        host.wait_ready(NAME)
        yield domain.UUIDString()
        domain.destroy()


def test_sinks_send_the_values_of_a_real_guest(host: TapHost, uuid: str, tmp_path: Path) -> None:
    ear, port, clock, admin = Ear(), free_port(), SystemClock(), Admin()
    conf = configuration.load([], [])
    conf.set_override("statsd", f"127.0.0.1:{ear.port}", group="metric_sinks")
    conf.set_override("prometheus", f"127.0.0.1:{port}", group="metric_sinks")
    conf.set_override("interval_s", 1.0, group="metric_sinks")
    measures = LibvirtMeasures(host.url, clock, interval_s=1.0, links=host.links)
    wanted = build_sinks(conf.metric_sinks, clock)
    made = Measuring("cmp-7", measures, conf.metrics, admin, clock, sinks=wanted)
    socket = AdminSocket(str(tmp_path / "agent.sock"), admin, clock)
    with contextlib.ExitStack() as undo:
        undo.callback(ear.close)
        for part in (made, socket):
            part.start()
            undo.callback(part.stop)
        lines: list[str] = []

        def told(metric: str) -> bool:
            lines.extend(ear.lines())
            return any(re.search(rf"guest\.{uuid}\.{metric}:[\d.]+\|g", line) for line in lines)

        for metric in ("util_ratio", r"disk\.hda\.iops", rf"nic\.{host.taps[3]}\.tx_bps"):
            eventually(functools.partial(told, metric))
        with urllib.request.urlopen(
            f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S
        ) as answer:
            page = answer.read().decode()
        assert f'holdfast_guest_cpu_time_seconds_total{{host="cmp-7",uuid="{uuid}"' in page

        def shown() -> bool:
            """Where libvirtd is late, something is missing from one pass, and not from all."""
            (row,) = [guest for guest in _top(tmp_path)["guests"] if guest["uuid"] == uuid]
            assert (row["name"], row["project"], row["stale"]) == (NAME, "shop", "")
            assert row["cpu"] is not None and row["mem"] > 0 and row["rd_iops"] is not None
            return row["rx_bps"] is not None

        eventually(shown)


def _top(folder: Path) -> Any:
    command = [script("holdfast"), "metric", "top", "-f", "json", "--socket"]
    ran = subprocess.run(
        [*command, str(folder / "agent.sock")],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)
