# SPDX-License-Identifier: Apache-2.0
"""`holdfast up`: a simulated host that dies is noticed, and what Prometheus hears of it.

When a host that is well again can be reserved is for repair to say, and for its tests.
"""

from __future__ import annotations

import contextlib
import re
import signal
import sqlite3
import time
import urllib.request
from pathlib import Path

from holdfast.client.client import Client
from holdfast.hoststatus import poll
from tests.e2e.deployment import all_in_one, write_config
from tests.processes import PATIENCE_S, eventually

MONITORS = {
    "poll": True,
    "poll_interval_s": 1,
    "confirm_s": 0.2,
    "healthy_after_s": 0,
    "flap_holdoff_s": 0,
}


def reservable(client: Client, name: str) -> bool:
    return bool(client.hosts.find(name)["reservable"])


def test_a_dead_simulated_host_is_out_of_use_and_comes_back(tmp_path: Path) -> None:
    with all_in_one(tmp_path, {"monitors": MONITORS}) as (program, client):
        name = client.hosts.list()[0]["hypervisor_hostname"]
        eventually(lambda: reservable(client, name))
        client.sim.fail_host(name)
        eventually(lambda: not reservable(client, name))
        text = eventually(lambda: metrics(client, 'holdfast_hosts{state="down"} 1.0'))
        assert 'holdfast_status_reports_total{source="nova:service",verdict="down"}' in text
        eventually(lambda: poll_age_s(client) < 20)
        assert "holdfast_push_connected 0.0" in text

        write_config(tmp_path / "up.conf", {"monitors": {**MONITORS, "poll": False}})
        program.signal(signal.SIGHUP)
        log = tmp_path / "state" / "holdfast.log"
        eventually(lambda: "[monitors]poll: True -> False" in log.read_text())
        eventually(lambda: "no poll" in poll_says(tmp_path))  # the last look is over
        client.sim.recover_host(name)
        time.sleep(1)
        assert not reservable(client, name)
        write_config(tmp_path / "up.conf", {"monitors": MONITORS})
        program.signal(signal.SIGHUP)
        eventually(lambda: f"host {name}: down -> up" in log.read_text())
        assert program.terminate() == 0


def test_a_simulated_host_that_is_cut_off_is_seen_by_a_monitor_that_votes(tmp_path: Path) -> None:
    with all_in_one(tmp_path, {"monitors": {**MONITORS, "poll": False}}) as (_program, client):
        eventually((tmp_path / "state" / "populated").exists)
        (own,) = client.monitors.list()
        assert (own["registered"], own["registered_by"]) == (True, "holdfast up")
        name = client.hosts.list()[0]["hypervisor_hostname"]
        eventually(lambda: client.monitors.list()[0]["hosts"])  # until then it knows no host
        eventually(lambda: client.monitors.host(name)["votes"]["against"] == [own["observer"]])
        client.sim.cut_host(name, "storage")
        eventually(lambda: client.monitors.host(name)["votes"]["for"] == [own["observer"]])
        (incident,) = eventually(lambda: client.incidents.list(host=name))
        assert f"saw {name} down on storage" in incident["cause"]


def poll_says(folder: Path) -> str:
    with contextlib.closing(sqlite3.connect(folder / "state" / "holdfast.db", timeout=60)) as db:
        rows = db.execute("SELECT sentence FROM operations WHERE key = ?", (poll.POLL,))
        return str(rows.fetchone()[0])


def poll_age_s(client: Client) -> float:
    text = metrics(client, "holdfast_poll_age_seconds{")
    (age,) = re.findall(r'holdfast_poll_age_seconds{monitor="compute"} (\S+)', text)
    return float(age)


def metrics(client: Client, line: str) -> str:
    with urllib.request.urlopen(f"{client.url}/metrics", timeout=PATIENCE_S) as answer:
        text: str = answer.read().decode()
    return text if line in text else ""
