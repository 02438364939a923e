# SPDX-License-Identifier: Apache-2.0
"""The compute monitor in a real nova-compute, on threads and on eventlet: Nova's metrics, and
metric plugins of which two hang."""

from __future__ import annotations

import itertools
import json
import subprocess
import time
import tomllib
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from lab.place import ROOT

from holdfast import conf as configuration
from holdfast.drivers.nova_notifications import NovaNotices
from holdfast.hoststatus.plugins.usage import METRICS, UsageMonitor
from holdfast.hoststatus.poll import wants
from holdfast.metrics import plugin_input
from holdfast.model.nova_notification import Notice
from holdfast.ports.metrics import Snapshot
from holdfast.runtime.clock import SystemClock
from tests.e2e.deployment import write_config
from tests.lab.mortal import MortalHost, mortal_host
from tests.processes import PATIENCE_S, eventually

if TYPE_CHECKING:
    from lab.cloud import Lab

DRIVERS = 26728850000000  # what the lab's driver says, always
GROUP = "nova.compute.monitors.cpu"
PLUGINS = """\
import json, sys, time

class Writes:
    def configure(self, config):
        self.file = open(config["file"], "a", buffering=1)
    def write(self, what, d):
        shown = {key: value for key, value in d.items() if key != "ctx"}
        self.file.write(json.dumps([what, d["ctx"]["host"], d["ctx"]["pass_id"], shown]) + "\\n")
    def on_host(self, d):
        self.write("on_host", d)
    def on_cpu(self, d):
        self.write("on_cpu", d)

class Hangs:
    def on_host(self, d):
        while True:
            time.sleep(0.01)

class Spins:
    def on_host(self, d):
        while True:
            pass
"""


@pytest.fixture(scope="module")
def paths(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where nova-compute finds us: our code, and the entry point as pip would have written it."""
    folder = tmp_path_factory.mktemp("installed")
    ours = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    info = folder / "holdfast-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: holdfast\nVersion: 0\n")
    lines = [f"{name} = {value}" for name, value in ours["entry-points"][GROUP].items()]
    (info / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", *lines, ""]))
    found = f"{ROOT / 'src'}:{folder}"
    command = [lab.place.program("python"), "-m", "holdfast.nova.feed"]
    env = {"PYTHONPATH": found}
    subprocess.run([*command, "--install"], env=env, check=True, capture_output=True)
    yield found
    subprocess.run([*command, "--remove"], env=env, check=True, capture_output=True)


class Metrics:
    """When each of Nova's words about a host was heard; they go to the monitor `usage` as well."""

    def __init__(self) -> None:
        self.heard: list[tuple[float, Notice]] = []
        self.snapshots: list[Snapshot] = []
        self._monitor = UsageMonitor(self.snapshots.append, SystemClock())

    def hear(self, notice: Notice) -> None:
        if wants(self._monitor, notice.event_type):
            self.heard.append((time.monotonic(), notice))
            self._monitor.heard(notice)

    def exists(self, server: str) -> bool:
        return any(one.data.get("uuid") == server for _, one in list(self.heard))

    def of(self, host: str) -> list[tuple[float, dict[str, Any]]]:
        named = [
            (at, one.data)
            for at, one in list(self.heard)
            if one.event_type == METRICS and one.data["host"] == host
        ]
        return [
            (at, {m["nova_object.data"]["name"]: m["nova_object.data"] for m in data["metrics"]})
            for at, data in named
        ]


@pytest.fixture
def metrics(lab: Lab, tmp_path: Path) -> Iterator[Metrics]:
    options = {"transport_url": lab.transport_url, "pool": f"monitor-{uuid.uuid4().hex[:8]}"}
    path = write_config(tmp_path / "holdfast.conf", {"notifications": options})
    conf, found = configuration.load([], [str(path)]), Metrics()
    notices = NovaNotices(conf, SystemClock())
    notices.listen(found.hear)
    try:
        eventually(lambda: notices.connected)
        yield found
    finally:
        notices.stop()
        with closing(notices.broker.connect()) as connection:
            connection.channel().queue_delete(conf.notifications.pool)


def written(file: Path, what: str) -> list[tuple[int, dict[str, Any]]]:
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [(number, d) for one, _host, number, d in lines if one == what]


def steady(file: Path) -> bool:
    """Whether the plugin gets each pass once and in order, the last three without a gap."""
    passes = [number for number, _ in written(file, "on_host")]
    assert passes == sorted({*passes})
    return len(passes) >= 3 and passes[-1] - passes[-3] == 2


def child(host: MortalHost) -> psutil.Process | None:
    ours = psutil.Process(host.compute.pid).children(recursive=True)
    return next((our for our in ours if "holdfast.cmd.nova_plugins" in our.cmdline()), None)


@pytest.mark.slow("two nova-compute start, and plugins hang until they are cut off")
def test_nova_gets_its_metrics_and_plugins_theirs_though_some_of_them_hang(
    lab: Lab, paths: str, metrics: Metrics, tmp_path: Path
) -> None:
    def on(backend: str) -> None:
        folder = tmp_path / backend
        folder.mkdir()
        one_host(lab, paths, metrics, folder, backend)

    with ThreadPoolExecutor(2) as both:  # most of it is waiting
        list(both.map(on, ["threading", "eventlet"]))


def one_host(lab: Lab, paths: str, metrics: Metrics, folder: Path, backend: str) -> None:
    seen, listed = folder / "seen", listing(folder)
    more = {
        "DEFAULT": {
            "compute_monitors": "cpu.holdfast",
            "update_resources_interval": 1,
            "concurrency_backend": backend,
        },
        "holdfast": {"metric_plugins_file": listed},
    }
    with mortal_host(lab, folder, more, {"PYTHONPATH": paths}) as host:
        server = host.boot(host.admin, "measured")
        eventually(lambda: any(d["uuid"] == server for _, d in written(seen, "on_cpu")), 240, 0.2)
        _, shown = written(seen, "on_host")[-1]
        assert shown["cpu_user_ns"] == DRIVERS
        assert shown["mem_total_bytes"] > 0 and shown["vcpus_promised"] == 1
        # the two others are cut off now or soon, and Nova does not notice
        log = Path(host.compute.log)
        eventually(lambda: log.read_text().count("did not come back within") == 2, every=0.2)
        assert ("Eventlet based" in log.read_text()) == (backend == "eventlet")
        # a plugin that hangs costs the others the passes until its end; then they get each pass
        eventually(lambda: steady(seen), every=0.2)
        updates = metrics.of(host.name)
        gaps = [b[0] - a[0] for a, b in itertools.pairwise(updates)]
        assert len(updates) >= 5 and max(gaps) < 60, gaps
        numbers = updates[-1][1]
        assert numbers["cpu.user.time"]["value"] == DRIVERS
        assert numbers["cpu.percent"]["value"] == 2  # of all the time: none has passed since
        assert len(numbers) == 10
        ours = child(host)
        assert ours is not None
        host.admin.compute.rescue_server(server)  # then Nova says that it exists, as in its audits
        eventually(lambda: metrics.exists(server), every=0.2)
    ours.wait(PATIENCE_S)  # nova-compute was killed: the plugins end by themselves
    # and a manager's plugins get this from afar
    told = [snapshot for snapshot in metrics.snapshots if snapshot.host == host.name]
    on_hosts = [d for one in told for d in plugin_input.on_host(one)]
    assert len(on_hosts) >= 5 and on_hosts[0]["cpu_user_ns"] == DRIVERS
    on_guests = [d for one in told for d in plugin_input.on_cpu(one)]
    assert {(d["uuid"], d["flavor_vcpus"]) for d in on_guests} == {(server, 1)}


def listing(folder: Path) -> Path:
    code = folder / "plugins.py"
    code.write_text(PLUGINS)
    found = folder / "plugins.yaml"
    found.write_text(
        "plugins:\n"
        f'- {{name: hangs, use: "{code}:Hangs"}}\n'
        f'- {{name: spins, use: "{code}:Spins"}}\n'
        f'- {{name: writes, use: "{code}:Writes", config: {{file: {folder / "seen"}}}}}\n'
    )
    return found
