# SPDX-License-Identifier: Apache-2.0
"""Host monitors on real Consul clusters of one, two and three servers: what each reports when a
host is lost, and when it is the monitor that is cut off."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast import conf as configuration
from holdfast.app.hostmonitor import HostMonitorPart
from tests.conftest import serve
from tests.processes import eventually
from tests.servers.consul import CONTROLLERS, Site

pytestmark = [
    pytest.mark.networks,
    pytest.mark.slow("Consul takes seconds to see a failure"),
]

NET = "storage"
MATRIX = "for: 1s\nrules: [{when: {storage: down}, do: recovery}]\notherwise: none\n"


class Recorder:
    """What a monitor says, in place of an API."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.failed: dict[str, Mapping[str, Any]] = {}  # the evidence, by host
        self.last: Mapping[str, Any] = {}
        self.views = 0

    def report(self, body: Mapping[str, Any]) -> None:
        with self._lock:
            if body["state"] == "failed":
                self.failed[body["subject"].removeprefix("host:")] = body["evidence"]

    def view(self, observer: str, body: Mapping[str, Any]) -> None:
        with self._lock:
            self.last = body
            self.views += 1

    @property
    def network(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.last.get("networks", {}).get(NET, {})
        return found

    @property
    def healths(self) -> dict[str, str]:
        rows = self.last.get("rows", ())
        return {host: row["health"][NET] for row in rows for host in row["hosts"]}


@contextmanager
def cluster(servers: int) -> Iterator[Site]:
    made = Site(networks=(NET,), controllers=CONTROLLERS[:servers], computes=("h1", "h2"))
    with contextmanager(serve)(made) as site:
        site.calm()
        yield site


@contextmanager
def monitor(site: Site, folder: Path) -> Iterator[Recorder]:
    """The whole monitor, in the network namespace of k1; it sees both computes."""
    folder.joinpath("matrix.yaml").write_text(MATRIX)
    file = folder / "holdfast.conf"
    file.write_text(
        f"[hostmonitor]\nname = k1\nnetworks = {NET}\noutbox = {folder}/outbox\n"
        f"matrix_file = {folder}/matrix.yaml\n"
        "heartbeat_s = 0.5\nproof_interval_s = 0.5\nhealthy_after_s = 1\n"
        f"[network_{NET}]\nurl = {site.agent('k1', NET).url}\n"
    )
    recorder = Recorder()
    part = HostMonitorPart(configuration.load([], [str(file)]), recorder)
    site.cables.inside["k1"].do(part.start)
    try:
        eventually(lambda: recorder.healths == {"h1": "up", "h2": "up"})
        yield recorder
    finally:
        part.stop()


def reported(recorder: Recorder, host: str) -> list[str]:
    """Who confirmed that it is down, once it is reported, and it alone."""
    eventually(lambda: host in recorder.failed)
    assert recorder.failed.keys() == {host}
    confirmed: list[str] = recorder.failed[host]["networks"][NET]["confirmed_by"]
    return confirmed


def blind(recorder: Recorder, why: str) -> Callable[[], bool]:
    return lambda: not recorder.network["sighted"] and why in recorder.network["why"]


def test_the_only_server_cut_off_reports_no_host_and_reports_a_real_loss_by_a_probe(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with cluster(1) as site, monitor(site, tmp_path) as said:
        assert "the cluster has 1 server" in said.network["warning"]
        assert "the cluster has 1 server" in caplog.text
        site.cut("k1", NET)
        # it has a leader and a majority, itself, and takes both for dead
        eventually(lambda: site.lost(NET, "h1", "h2"))
        eventually(blind(said, "0 of 2 other members answer on their gossip port"))
        eventually(lambda: said.healths == {"h1": "unknown", "h2": "unknown"})
        # the cable is back, and its gossip does not know yet
        site.cables.plug("k1", NET)
        eventually(lambda: said.network["sighted"])
        seen = said.views
        eventually(lambda: said.views >= seen + 6)  # longer than the rule asks for
        site.whole()
        eventually(lambda: said.healths == {"h1": "up", "h2": "up"})
        assert not said.failed
        site.cut("h1", NET)
        assert "1 of 2 other members answer on their gossip port" in reported(said, "h1")


def test_of_two_servers_a_loss_is_reported_only_while_half_of_the_others_answer(
    tmp_path: Path,
) -> None:
    with cluster(2) as site, monitor(site, tmp_path) as said:
        assert "the cluster has 2 servers" in said.network["warning"]
        # both servers on one side: leader and majority, and still the lesser part
        site.cut("h1", NET)
        site.cut("h2", NET)
        eventually(lambda: site.lost(NET, "h1", "h2"))
        eventually(blind(said, "1 of 3 other members answer on their gossip port"))
        site.whole()
        eventually(lambda: said.healths == {"h1": "up", "h2": "up"})
        assert not said.failed
        site.cut("h2", NET)
        assert "2 of 3 other members answer on their gossip port" in reported(said, "h2")


def test_three_servers_are_proof_enough_and_cause_no_warning(tmp_path: Path) -> None:
    with cluster(3) as site, monitor(site, tmp_path) as said:
        assert "warning" not in said.network
        site.cut("h1", NET)
        assert not any("gossip port" in one for one in reported(said, "h1"))
