# SPDX-License-Identifier: Apache-2.0
"""A site with real Consul on three networks, Holdfast on its simulated cloud, and real monitors
that run on the controllers."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from holdfast.client.client import Client
from holdfast.drivers.sim.simulator import Simulator
from holdfast.runtime.clock import SystemClock
from tests.e2e.deployment import Options, merged, write_config
from tests.processes import PATIENCE_S, Program, eventually, free_port, script
from tests.servers.consul import CONTROLLERS, NETWORKS, Site
from tests.servers.networks import Forward

ROOT = Path(__file__).parents[2]
#: As the default. A second would not be enough: a controller that was cut off takes everybody for
#: dead, and when it is back that goes round until each of them has said otherwise.
QUICK = """\
for: 3s
rules:
  - {when: {storage: down}, do: recovery}
otherwise: none
"""
SETTINGS: Mapping[str, object] = {"heartbeat_s": 1, "proof_interval_s": 0.5, "healthy_after_s": 1}
#: How long nothing must happen, where nothing may: two until Consul sees it, three by the rule, and
#: the rest to spare.
QUIET_S = 7.0


class Monitor:
    """`holdfast-hostmonitor` on one controller."""

    def __init__(
        self,
        house: House,
        host: str,
        ha_matrix: str | None = QUICK,
        networks: Sequence[str] = NETWORKS,
        **settings: object,
    ) -> None:
        """`ha_matrix`: the text of its file, None for the default."""
        self.host = host
        self._house = house
        folder = house.folder
        (folder / f"{host}.token").write_text(f"{house.client.monitors.register(host)}\n")
        own = {
            **SETTINGS,
            "name": host,
            "networks": ", ".join(networks),
            "outbox": folder / f"{host}.outbox",
            "api_url": house.url,
            "token_file": folder / f"{host}.token",
            **settings,
        }
        if ha_matrix is not None:
            file = folder / f"{host}-{abs(hash(ha_matrix))}.yaml"
            file.write_text(ha_matrix)
            own["matrix_file"] = file
        ports = {
            f"network_{name}": {"url": f"http://127.0.0.1:{house.site.port(name)}"}
            for name in networks
        }
        config = write_config(folder / f"{host}.conf", merged({"hostmonitor": own}, ports))
        command = [script("holdfast-hostmonitor"), "--config-file", config]
        self.program = Program(command, folder, name=f"monitor-{host}")
        self.hosts = 3

    def start(self) -> Monitor:
        """Where it lives; without waiting for anything."""
        self._house.site.cables.inside[self.host].do(self.program.start)
        return self

    def sees(self, networks: Sequence[str] = ()) -> bool:
        """Whether Holdfast hears that it sees everything."""
        for one in self._house.client.monitors.list():
            if one["observer"] == self.host and one["fresh"] and one["hosts"] >= self.hosts:
                return all(
                    said["sighted"]
                    for name, said in one["networks"].items()
                    if not networks or name in networks
                )
        return False

    def end(self) -> None:
        """Politely, and its outbox with it."""
        self.program.terminate()
        self.forget()

    def forget(self) -> None:
        """What it kept on disk."""
        for path in self._house.folder.glob(f"{self.host}.outbox*"):
            path.unlink()


class House:
    """All of it."""

    def __init__(self, site: Site, folder: Path, port: int, simulator: Simulator) -> None:
        """Holdfast can be asked from every controller."""
        self.site = site
        self.folder = folder
        self.sim = simulator
        self.url = f"http://127.0.0.1:{port}"
        self.client = Client(self.url, timeout_s=PATIENCE_S)
        self._port = port
        self._ways: dict[str, Forward] = {}
        self.connect()

    def connect(self, away: bool = False) -> None:
        """The way from the controllers to the API is there, or is not."""
        for host in CONTROLLERS:
            if host in self._ways:
                self._ways.pop(host).close()
            if not away:
                self._ways[host] = self.site.cables.inside[host].forward(self._port)

    def close(self) -> None:
        """What it has beside others' things."""
        self.connect(away=True)
        self.client.close()

    @contextlib.contextmanager
    def monitors(self, *monitors: Monitor) -> Iterator[None]:
        """Some monitors, from when all of them see until the end."""
        try:
            for monitor in monitors:
                monitor.start()
            for monitor in monitors:
                monitor.program.wait_until(monitor.sees)
            yield
        finally:
            with ThreadPoolExecutor(3) as pool:
                list(pool.map(lambda each: each.program.kill(), monitors))
            for monitor in monitors:
                monitor.forget()
                self.client.monitors.unregister(monitor.host)

    @contextlib.contextmanager
    def three(self) -> Iterator[tuple[Monitor, Monitor, Monitor]]:
        """One on each controller, all the same, of clusters in which all is well."""
        self.site.calm()
        first, second, third = (Monitor(self, host) for host in CONTROLLERS)
        with self.monitors(first, second, third):
            yield first, second, third

    def words(self, since: datetime, state: str = "failed") -> list[dict[str, Any]]:
        """What was reported since then."""
        query = {"since": since.isoformat(), "limit": 1000}
        found = self.client.wire.call(
            "GET", "/holdfast/v1/observations", query=query, key="observations"
        )
        return [one for one in found if one["state"] == state and one["kind"] == "host_health"]

    def said(self, since: datetime, state: str = "failed") -> set[tuple[str, str]]:
        """Who reported whom."""
        return {
            (word["observer"], word["subject"].removeprefix("host:"))
            for word in self.words(since, state)
        }

    def recovered(self, host: str) -> bool:
        """There is one incident of it, and it is over and well."""
        found = self.client.incidents.list(host=host)
        told = [(one["status"], one["sentence"]) for one in found]
        assert [status for status, _ in told] == ["recovered"], told
        return True

    def quiet(self, since: datetime, seconds: float = QUIET_S) -> None:
        """Nobody reports anybody."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            assert not (found := self.words(since)), found
            time.sleep(0.2)

    def segment(self, *hosts: str) -> None:
        """Hosts that are recovered if they fail."""
        wire, prefix = self.client.wire, "/instance-ha/v1/segments"
        body = {"name": f"of-{hosts[0]}", "recovery_method": "auto", "service_type": "COMPUTE"}
        made = wire.call("POST", prefix, body={"segment": body}, key="segment")
        for host in hosts:
            member = {"name": host, "type": "COMPUTE", "control_attributes": "none"}
            wire.call("POST", f"{prefix}/{made['uuid']}/hosts", body={"host": member})


def now() -> datetime:
    return datetime.now(UTC)


def soon(predicate: Callable[[], object]) -> None:
    eventually(lambda: bool(predicate()), every=0.1)


@contextlib.contextmanager
def built(
    site: Site, folder: Path, database_url: str, options: Options | None = None
) -> Iterator[House]:
    """Holdfast, and the simulated side of the site's computes."""
    port = free_port()
    own = {
        "database": {"connection": database_url.replace("%", "%%")},
        "sim": {"database": folder / "sim.db"},
        "api": {"port": port},
        "auth": {"agent_secret_file": folder / "secret"},
        "monitors": {"poll": False, "healthy_after_s": 0, "flap_holdoff_s": 0},
        "recovery": {"repair_wait_s": 1, "bring_back": False},
    }
    (folder / "secret").write_text("s" * 40)
    config = write_config(folder / "holdfast.conf", merged(own, options or {}))
    simulator = Simulator(str(folder / "sim.db"), SystemClock())
    for host in ("h1", "h2", "h3", "spare-3"):
        simulator.add_host(host, rack=f"rack-{host}")
    for host in ("spare-1", "spare-2"):  # larger, so that servers come here and nowhere else
        simulator.add_host(host, rack=f"rack-{host}", memory_mb=2**20)
    command = [sys.executable, "-m", "tests.hostmonitor.holdfast", "--config-file", config]
    program = Program(command, folder, name="holdfast", env={"PYTHONPATH": str(ROOT)})
    with contextlib.closing(simulator), program:
        program.wait_http(f"http://127.0.0.1:{port}/readyz")
        with contextlib.closing(House(site, folder, port, simulator)) as house:
            yield house
