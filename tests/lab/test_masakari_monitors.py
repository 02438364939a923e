# SPDX-License-Identifier: Apache-2.0
"""masakari-monitors' process and host monitors, as they come, report to us.

What they watch is real: processes, Consul agents. The cloud that is healed is simulated, so that a
host of it can have this machine's name, which is what they report.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.conftest import serve
from tests.e2e.deployment import Options
from tests.lab.monitored import PATIENCE_S, Town, monitored
from tests.processes import eventually, free_port
from tests.servers.consul import Agent, gossip

if TYPE_CHECKING:
    from lab.cloud import Lab

#: Of the simulated cloud: the one that dies, and the one that the monitors run on.
DYING, HERE = "host-002", socket.gethostname()
#: Of their list of processes.
VERBS = ("start", "restart")


@pytest.fixture(scope="module")
def town(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    with monitored(lab, tmp_path_factory.mktemp("monitors")) as made:
        sim = made.home.deployment.simulator
        sim.add_host(HERE, rack="rack-0")
        made.enlist([each["name"] for each in sim.world()["hosts"]])
        yield made


def service(town: Town, host: str) -> Any:
    hosts = town.home.deployment.simulator.world()["hosts"]
    return next(one["service"] for one in hosts if one["name"] == host)


@pytest.fixture(scope="module")
def watcher() -> Iterator[Agent]:
    """The agent that the host monitor asks."""
    settings = {"node_name": "watcher", "server": True, "bootstrap_expect": 1, **listening()}
    yield from serve(Agent(settings))


def listening() -> dict[str, Any]:
    """On ports of its own, for several agents of one machine."""
    ports = {name: free_port() for name in ("http", "server", "serf_lan")}
    return {"bind_addr": "127.0.0.1", "ports": {**ports, "dns": -1, "serf_wan": -1}, **gossip()}


def test_the_process_monitor_reports_a_process_after_failed_restarts(town: Town) -> None:
    folder = town.home.folder / "processes"
    folder.mkdir()
    starter, attempts = folder / "starter", folder / "attempts"
    starter.write_text(f'echo "$@" >>{attempts}\nexit 1\n')
    names = ("neutron-agent", "nova-compute")
    (folder / "list.yaml").write_text(yaml.safe_dump([process(folder, each) for each in names]))
    often = {"check_interval": 1, "restart_retries": 1, "restart_interval": 0}
    options = {"process": {**often, "process_list_path": folder / "list.yaml"}}
    with town.monitor("masakari-processmonitor", options):
        other, compute = town.reports("PROCESS", 2)
    tried = attempts.read_text().splitlines()
    assert [tried.count(f"restart {each}") for each in names] == [2, 2]
    assert other.payload == {"event": "STOPPED", "process_name": "neutron-agent"}
    assert compute.payload == {"event": "STOPPED", "process_name": "nova-compute"}
    assert {other.source_host_uuid, compute.source_host_uuid} == {town.member(HERE).uuid}
    # the other process did not put the host on maintenance: else nobody would hear of nova-compute
    assert town.member(HERE).on_maintenance
    assert not service(town, HERE)["enabled"]


def process(folder: Path, name: str) -> dict[str, Any]:
    """Of their list. They look for the name in `ps -ef` and report what is behind the last slash:
    the folder makes sure that it is not the lab's."""
    starts = {f"{each}_command": f"/bin/sh {folder / 'starter'} {each} {name}" for each in VERBS}
    around = {f"{when}_{each}_command": "" for when in ("pre", "post") for each in VERBS}
    return {"process_name": str(folder / name), "run_as_root": False, **starts, **around}


def test_the_host_monitor_reports_a_host_lost_by_consul(town: Town, watcher: Agent) -> None:
    join = [f"127.0.0.1:{watcher.settings['ports']['serf_lan']}"]
    sim = town.home.deployment.simulator
    server = sim.boot("db", "red", DYING, 1, 512, 1, metadata={"HA_Enabled": "True"}).id
    with contextlib.closing(Agent({"node_name": DYING, "retry_join": join, **listening()})) as host:
        host.start()
        eventually(lambda: watcher.members().get(DYING) == "alive", PATIENCE_S)
        where = f"127.0.0.1:{watcher.settings['ports']['http']}"
        options: Options = {
            "DEFAULT": {"debug": True},
            "host": {"monitoring_driver": "consul", "monitoring_interval": 1},
            "consul": {f"agent_{name}": where for name in ("manage", "tenant", "storage")},
        }
        with town.monitor("masakari-hostmonitor", options) as monitor:
            seen = f"'{DYING}': ['up', 'up', 'up']"
            eventually(lambda: seen in monitor.log.read_text(), PATIENCE_S)
            sim.fail_host(DYING)
            host.kill()
            (report,) = town.reports("COMPUTE_HOST")
    assert report.payload == {
        "event": "STOPPED",
        "host_status": "NORMAL",
        "cluster_status": "OFFLINE",
    }
    assert service(town, DYING)["forced_down"] and town.member(DYING).on_maintenance
    (move,) = town.ha.vmoves(report.notification_uuid)
    assert (move.server_id, move.source_host, move.status) == (server, DYING, "succeeded")
    found = next(one for one in sim.world()["servers"] if one["id"] == server)
    assert found["running_on"] == [move.dest_host] and move.dest_host != DYING
