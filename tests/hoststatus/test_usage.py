# SPDX-License-Identifier: Apache-2.0
"""What Nova says of its own periodic work, as metric plugins get it. The payload of volume.usage is
as Nova 34 writes it; the others are heard in tests/lab/test_compute_monitor.py."""

from __future__ import annotations

import functools
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from oslo_config import cfg

from holdfast.app import manager as composed
from holdfast.conf import monitors as options
from holdfast.hoststatus.plugins import usage
from holdfast.hoststatus.plugins.usage import UsageMonitor
from holdfast.hoststatus.poll import wants
from holdfast.metrics import plugin_input, plugin_runner
from holdfast.model.nova_notification import Notice, parse
from holdfast.ports.metrics import Snapshot
from holdfast.runtime.clock import SystemClock
from tests.hoststatus import recorded
from tests.processes import eventually

AT = datetime(2026, 11, 16, 17, 19, 43, tzinfo=UTC)
SERVER = "79c93e9c-1331-43d3-a690-c1ad66017d0b"
VOLUME = "5b1d1b9e-4c1e-4a52-8f8d-0d3a2bb7a7a1"
PLUGIN = """\
import json
class Writes:
    def configure(self, config):
        self.file = open(config["file"], "a", buffering=1)
    def on_volume(self, d):
        self.file.write(json.dumps([d["ctx"]["host"], d["uuid"], d.get("wr_iops")]) + "\\n")
"""


def notice(event_type: str, name: str, data: dict[str, Any], at: datetime = AT) -> Notice:
    payload = {
        "nova_object.name": name,
        "nova_object.namespace": "nova",
        "nova_object.version": "1.0",
        "nova_object.data": data,
    }
    return parse(
        {
            "event_type": event_type,
            "priority": "INFO",
            "publisher_id": "nova-compute:cmp-7",
            "timestamp": f"{at:%Y-%m-%d %H:%M:%S.%f}",
            "message_id": f"{event_type}/{at}",
            "payload": payload,
        }
    )


def volume(after_s: float = 0, writes: int = 50, **more: Any) -> Notice:
    at = AT + timedelta(seconds=after_s)
    data = {
        "volume_id": VOLUME,
        "project_id": "red",
        "user_id": "ana",
        "availability_zone": "nova",
        "instance_uuid": SERVER,
        "last_refreshed": f"{at:%Y-%m-%dT%H:%M:%SZ}",
        "reads": 100,
        "read_bytes": 409600,
        "writes": writes,
        "write_bytes": writes * 4096,
    }
    return notice(usage.VOLUME, "VolumeUsagePayload", {**data, **more}, at)


def metrics(after_s: float, user: int, idle: int) -> Notice:
    said = {"cpu.user.time": user, "cpu.kernel.time": 0, "cpu.idle.time": idle}
    said |= {"cpu.iowait.time": 0, "cpu.frequency": 2400, "cpu.percent": 12}
    found = [{"nova_object.data": {"name": key, "value": one}} for key, one in said.items()]
    data = {"host": "cmp-7", "host_ip": None, "nodename": "cmp-7.example", "metrics": found}
    at = AT + timedelta(seconds=after_s)
    return notice(usage.METRICS, "MetricsPayload", data, at)


class Heard:
    def __init__(self) -> None:
        self.snapshots: list[Snapshot] = []
        self.monitor = UsageMonitor(self.snapshots.append, SystemClock())

    def __call__(self, one: Notice) -> None:
        assert wants(self.monitor, one.event_type)
        assert self.monitor.heard(one) == []


@pytest.fixture
def heard() -> Heard:
    return Heard()


def test_the_use_of_a_volume_has_rates_since_the_previous_notification(heard: Heard) -> None:
    heard(volume())
    heard(volume(after_s=60, writes=650))
    first, then = [d for snapshot in heard.snapshots for d in plugin_input.on_volume(snapshot)]
    assert (first["ctx"]["host"], first["uuid"], first["project"]) == ("cmp-7", SERVER, "red")
    assert (first["cinder_volume_id"], first["wr_reqs"], first["rd_bytes"]) == (VOLUME, 50, 409600)
    assert "wr_iops" in first["missing"] and "mean_latency_ns" in first["missing"]
    assert (then["wr_iops"], then["rd_iops"], then["wr_bytes_per_s"]) == (10, 0, 40960)
    assert then["ctx"]["elapsed_s"] == 60


def test_a_repeated_or_late_message_is_ignored_and_restarted_counters_have_no_rate(
    heard: Heard,
) -> None:
    for one in (volume(60, 650), volume(60, 650), volume(0, 50)):
        heard(one)
    assert len(heard.snapshots) == 1
    heard(volume(120, 3))
    (d,) = plugin_input.on_volume(heard.snapshots[1])
    assert d["reset"] and d["wr_iops"] is None


def test_a_volume_without_a_server_has_its_own_name(heard: Heard) -> None:
    heard(volume(instance_uuid=None, last_refreshed=None))
    (d,) = plugin_input.on_volume(heard.snapshots[0])
    assert (d["name"], d["uuid"]) == (VOLUME, VOLUME) and d["ctx"]["at"] == AT


def test_a_hosts_metrics_are_its_on_host(heard: Heard) -> None:
    heard(metrics(0, user=1000, idle=9000))
    heard(metrics(60, user=1750, idle=9250))
    d = plugin_input.on_host(heard.snapshots[1])[0]
    assert (d["name"], d["cpu_util_ratio"], d["cpu_mhz"]) == ("cmp-7", 0.75, 2400)
    assert "cpu_steal_ratio" in d["missing"] and "mem_total_bytes" in d["missing"]


def test_an_audit_identifies_a_server_and_names_its_volumes(heard: Heard) -> None:
    message = recorded.message(recorded.OFF, event_type=usage.EXISTS, power_state="running")
    message["payload"]["nova_object.name"] = "InstanceExistsPayload"
    data = message["payload"]["nova_object.data"]
    heard(parse(message))
    heard(volume(instance_uuid=data["uuid"]))
    (d,) = plugin_input.on_cpu(heard.snapshots[0])
    flavor = data["flavor"]["nova_object.data"]
    assert (d["uuid"], d["flavor"], d["flavor_vcpus"]) == (
        data["uuid"],
        flavor["name"],
        flavor["vcpus"],
    )
    assert "util_ratio" in d["missing"] and d["stale"] == ""
    (ram,) = plugin_input.on_ram(heard.snapshots[0])
    assert ram["balloon_maximum_kib"] == flavor["memory_mb"] * 1024
    (disk,) = plugin_input.on_volume(heard.snapshots[1])
    assert disk["name"] == f"{data['display_name']}/{VOLUME}"


def test_only_the_last_are_remembered(heard: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "MOST", 2)
    for name in ("a", "b", "c"):
        heard(volume(volume_id=name))
    for name in ("a", "c"):
        heard(volume(60, 650, volume_id=name))
    forgotten, known = [plugin_input.on_volume(snapshot)[0] for snapshot in heard.snapshots[3:]]
    assert "wr_iops" in forgotten["missing"] and known["wr_iops"] == 10


def test_the_usage_monitor_is_off_by_default_and_feeds_the_plugins_of_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patient = functools.partial(
        plugin_runner.Limits, slow_s=30.0, turn_s=30.0, hang_s=60.0, change_s=60.0
    )
    monkeypatch.setattr(plugin_runner, "Limits", patient)  # nobody is blamed for a busy machine
    conf = cfg.ConfigOpts()
    conf.register_opts(options.OPTS, group=options.GROUP)
    conf([], default_config_files=[])
    assert "usage" not in conf.monitors.enabled
    unused = composed.monitor(conf)
    assert unused.push_only and unused.heard(volume()) == []  # there is no file: nothing is made
    (tmp_path / "plugin.py").write_text(PLUGIN)
    listed, seen = tmp_path / "plugins.yaml", tmp_path / "seen"
    listed.write_text(
        f"plugins: [{{name: w, use: {tmp_path}/plugin.py, config: {{file: {seen}}}}}]\n"
    )
    conf.set_override("metric_plugins_file", str(listed), group=options.GROUP)
    plugins = composed.Plugins(conf)
    monitor = UsageMonitor(plugins.offer, SystemClock())
    try:
        monitor.heard(volume())  # the first message starts them
        assert plugins.runner is not None
        eventually(lambda: plugins.runner is not None and plugins.runner.names == ["w"])
        for number in range(1, 301):  # all at once, as Nova sends them
            monitor.heard(volume(60 * number, 50 + 600 * number))
        eventually(lambda: len(with_rates(seen)) == 300)
    finally:
        if plugins.context is not None and plugins.runner is not None:
            plugins.context.stop()
            plugins.runner.close()
    assert all(line == ["cmp-7", SERVER, 10.0] for line in with_rates(seen))


def with_rates(file: Path) -> list[list[Any]]:
    """The first message has none, if the plugins were there in time for it."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return [line for line in lines if line[2] is not None]
