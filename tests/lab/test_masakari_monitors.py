# SPDX-License-Identifier: Apache-2.0
"""masakari-monitors, as they come, report to us: found through the catalog, with Keystone's tokens.

What they watch is real: processes, a guest of a libvirtd, Consul agents. The cloud that is healed
is simulated, so that a host of it can have this machine's name, which is what they report.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from lab.steps import StepFailed
from openstack.connection import Connection

from lab import monitors
from tests.conftest import serve
from tests.e2e.deployment import Options, merged, write_config
from tests.lab.house import House, house
from tests.processes import Program, eventually, free_port
from tests.servers.consul import FAST, Agent
from tests.servers.libvirt import MACHINE, Libvirt

if TYPE_CHECKING:
    from lab.cloud import Lab

pytestmark = pytest.mark.timeout(300)  # where they are not installed yet, that is a minute more

#: Of the simulated cloud: the guest's, the one that dies, and the one that the monitors run on.
GUESTS, DYING, HERE = "host-001", "host-002", socket.gethostname()
PATIENCE_S = 30.0
#: Of their list of processes.
VERBS = ("start", "restart")


@dataclass
class Town:
    """A house with one segment of all hosts, and the programs that are to report to it."""

    home: House
    ha: Any
    programs: Path
    segment: str

    def monitor(self, name: str, options: Options, **env: str) -> Program:
        """One of the monitors with these options; to be started."""
        who = self.home.lab.credentials()
        login = {
            name: who[f"OS_{name.upper()}"]
            for name in ("auth_type", "auth_url", "username", "password", "project_name")
        }
        domains = {f"{each}_domain_name": "Default" for each in ("user", "project")}
        api = {"api": {**login, **domains, "region": self.home.region}}
        folder = self.home.folder
        config = write_config(folder / f"{name}.conf", merged(api, options))
        command: list[str | Path] = [self.programs / name, "--config-file", config]
        return Program(command, folder, name=name, env={"NO_PROXY": "*", **env})

    def reports(self, kind: str, number: int = 1) -> list[Any]:
        """All of that type, oldest first, when so many are finished."""

        def over() -> list[Any]:
            found = list(self.ha.notifications(type=kind, sort_key="id", sort_dir="asc"))
            said = [(one.status, one.payload) for one in found]
            assert [one.status for one in found] == ["finished"] * number, said
            return found

        return eventually(over, PATIENCE_S, 0.2)

    def member(self, host: str) -> Any:
        return next(one for one in self.ha.hosts(self.segment) if one.name == host)

    def service(self, host: str) -> Any:
        hosts = self.home.deployment.simulator.world()["hosts"]
        return next(one["service"] for one in hosts if one["name"] == host)

    def server(self, uuid: str) -> Any:
        servers = self.home.deployment.simulator.world()["servers"]
        return next(one for one in servers if one["id"] == uuid)

    def boot(self, name: str, host: str) -> str:
        sim = self.home.deployment.simulator
        return sim.boot(name, "red", host, 1, 512, 1, metadata={"HA_Enabled": "True"}).id


@pytest.fixture(scope="module")
def programs(lab: Lab) -> Path:
    try:
        with lab.alone(monitors.NAME):
            return monitors.install(lab.place)
    except StepFailed as failed:
        if os.environ.get("CI") == "true":
            pytest.fail(str(failed), pytrace=False)
        pytest.skip(f"{monitors.NAME} cannot be installed: see {lab.place.logs / 'install.log'}")


@pytest.fixture(scope="module")
def town(lab: Lab, programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    folder = tmp_path_factory.mktemp("monitors")
    with house(lab, folder) as home, contextlib.closing(lab.connect()) as admin:
        sim = home.deployment.simulator
        sim.add_host(HERE, rack="rack-0")
        ours = Connection(session=admin.session, region_name=home.region, ha_api_version="1.3")
        ha = ours.instance_ha
        segment = ha.create_segment(name="all", recovery_method="auto", service_type="COMPUTE")
        for each in sim.world()["hosts"]:
            words = {"type": "COMPUTE", "control_attributes": "SSH"}
            ha.create_host(segment.uuid, name=each["name"], **words)
        yield Town(home, ha, programs, segment.uuid)


@pytest.fixture(scope="module")
def libvirt() -> Iterator[Libvirt]:
    yield from serve(Libvirt())


@pytest.fixture(scope="module")
def watcher() -> Iterator[Agent]:
    """The agent that the host monitor asks."""
    settings = {"node_name": "watcher", "server": True, "bootstrap_expect": 1, **listening()}
    yield from serve(Agent(settings))


def listening() -> dict[str, Any]:
    """On ports of its own, for several agents of one machine."""
    ports = {name: free_port() for name in ("http", "server", "serf_lan")}
    return {"bind_addr": "127.0.0.1", "ports": {**ports, "dns": -1, "serf_wan": -1}, **FAST}


def test_the_process_monitor_reports_what_it_could_not_restart(town: Town) -> None:
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
    assert not town.service(HERE)["enabled"]


def process(folder: Path, name: str) -> dict[str, Any]:
    """Of their list. They look for the name in `ps -ef` and report what is behind the last slash:
    the folder makes sure that it is not the lab's."""
    starts = {f"{each}_command": f"/bin/sh {folder / 'starter'} {each} {name}" for each in VERBS}
    around = {f"{when}_{each}_command": "" for when in ("pre", "post") for each in VERBS}
    return {"process_name": str(folder / name), "run_as_root": False, **starts, **around}


def test_the_instance_monitor_reports_a_guest_that_was_killed(
    town: Town, libvirt: Libvirt, tmp_path: Path
) -> None:
    server = town.boot("web", GUESTS)
    with libvirt.connected() as connection:
        xml = MACHINE.format(name="web", uuid=server, emulator=libvirt.emulator)
        connection.defineXML(xml).create()
    here = {"hostname": GUESTS, "debug": True}
    options: Options = {"DEFAULT": here, "libvirt": {"connection_uri": libvirt.url}}
    monitor = town.monitor("masakari-instancemonitor", options, PYTHONPATH=str(library(tmp_path)))
    with monitor:
        eventually(lambda: is_heard(libvirt, server, monitor), PATIENCE_S, 0.2)
        town.home.deployment.simulator.crash_server(server)
        assert libvirt.kept is not None
        (guest,) = [one for one in libvirt.kept.tree() if server in one.cmdline()]
        guest.send_signal(signal.SIGKILL)
        (report,) = town.reports("VM")
    assert report.payload == {
        "event": "LIFECYCLE",
        "instance_uuid": server,
        "vir_domain_event": "STOPPED_FAILED",
    }
    assert report.source_host_uuid == town.member(GUESTS).uuid
    assert (town.server(server)["host"], town.server(server)["running_on"]) == (GUESTS, [GUESTS])


def is_heard(libvirt: Libvirt, guest: str, monitor: Program) -> bool:
    """Whether the monitor notices what becomes of it; a pause is nothing to report."""
    with libvirt.connected() as connection:
        domain = connection.lookupByUUIDString(guest)
        domain.suspend()
        domain.resume()
    return f"uuid = {guest}" in monitor.log.read_text()


def library(folder: Path) -> Path:
    """The library that speaks to libvirt, which they take from the system: our own will do."""
    for name in ("libvirt", "libvirtmod"):
        found = importlib.util.find_spec(name)
        assert found is not None and found.origin is not None
        (folder / Path(found.origin).name).symlink_to(found.origin)
    return folder


def test_the_host_monitor_reports_a_host_that_consul_lost(town: Town, watcher: Agent) -> None:
    join = [f"127.0.0.1:{watcher.settings['ports']['serf_lan']}"]
    server = town.boot("db", DYING)
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
            town.home.deployment.simulator.fail_host(DYING)
            host.kill()
            (report,) = town.reports("COMPUTE_HOST")
    assert report.payload == {
        "event": "STOPPED",
        "host_status": "NORMAL",
        "cluster_status": "OFFLINE",
    }
    assert town.service(DYING)["forced_down"] and town.member(DYING).on_maintenance
    (move,) = town.ha.vmoves(report.notification_uuid)
    assert (move.server_id, move.source_host, move.status) == (server, DYING, "succeeded")
    found = town.server(server)
    assert found["running_on"] == [move.dest_host] and move.dest_host != DYING
