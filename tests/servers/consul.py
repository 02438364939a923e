# SPDX-License-Identifier: Apache-2.0
"""Consul for tests: single agents, and whole sites: a cluster on each of several networks, its
servers on controllers, its clients on computes, each host a network namespace."""

from __future__ import annotations

import functools
import http.client
import json
import socket
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

from tests.processes import eventually
from tests.servers.base import Missing, Server, which
from tests.servers.networks import Namespace, Networks

#: A failure is seen in two seconds rather than in five. A suspicion lasts six rounds of probes, for
#: agents that get no processor for a moment must have the time to say that they live.
FAST: Mapping[str, Any] = {
    "gossip_lan": {
        "probe_interval": "200ms",
        "probe_timeout": "100ms",
        "suspicion_mult": 6,
        "gossip_interval": "50ms",
        "gossip_nodes": 3,
    },
    "performance": {"raft_multiplier": 1, "leave_drain_time": "200ms"},
}
#: Where agents get no priority: gossip as Consul has it, and suspicions that last six seconds.
#: Tests that wait for a failure take longer then, and those that wait for nothing prove less.
PATIENT: Mapping[str, Any] = {
    "gossip_lan": {"probe_interval": "1s", "probe_timeout": "500ms", "suspicion_mult": 6},
    "performance": {"raft_multiplier": 2, "leave_drain_time": "200ms"},
}
#: Ways to have the processor before others; a command that shows whether a way works, and what it
#: says then. Where the kernel groups sessions (sched_autogroup), niceness counts within a session
#: only, and each agent has one of its own. So real time comes first, then niceness of both.
_NICE = 'echo -15 2>/dev/null >/proc/self/autogroup; exec nice -n -15 "$@"'
_AHEAD = (
    (("chrt", "--rr", "1"), ("chrt", "--pid", "0"), "SCHED_RR"),
    (("sh", "-c", _NICE, "sh"), ("nice",), "-15"),
)
#: Of `Status` of a member.
STATUS = {0: "none", 1: "alive", 2: "leaving", 3: "left", 4: "failed"}
NETWORKS = ("manage", "tenant", "storage")
CONTROLLERS = ("k1", "k2", "k3")
COMPUTES = ("h1", "h2", "h3")
#: Where the agents of a host listen on its loopback, in the order of the networks.
FIRST_PORT = 8500
#: What `ask` raises when there is no answer, or none that can be read.
UNANSWERED = (OSError, RuntimeError, ValueError, http.client.HTTPException)


@functools.cache
def ahead() -> tuple[str, ...]:
    """What a command begins with to have the processor before others; () where we may not."""
    for words, look, wanted in _AHEAD:
        try:
            done = subprocess.run(
                [which(words[0]) or words[0], *words[1:], *look],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
                start_new_session=True,
            )
        except FileNotFoundError:
            continue
        if done.returncode == 0 and wanted in done.stdout:
            return (which(words[0]) or words[0], *words[1:])
    return ()


def gossip() -> Mapping[str, Any]:
    """As fast as the machine lets agents be."""
    return FAST if ahead() else PATIENT


class Agent(Server):
    """One agent. It never leaves when it is told to end, so ending it is a failure."""

    name = "Consul"

    def __init__(
        self, settings: Mapping[str, Any], inside: Namespace | None = None, token: str = ""
    ) -> None:
        """Settings of its own, the namespace it lives in, if not ours, and who we are to it."""
        super().__init__()
        self.token = token
        self.settings = settings
        self.inside = inside

    def find(self) -> None:
        """The one program."""
        program = which("consul")
        if program is None:
            raise Missing(self.name, "consul")
        # beside a busy test suite a starved agent would look dead to the others
        self.program = [*ahead(), program]

    def prepare(self) -> None:
        """Its configuration."""
        common = {
            "data_dir": str(self.folder / "data"),
            "disable_update_check": True,
            "leave_on_terminate": False,
            "skip_leave_on_interrupt": True,
            "retry_interval": "1s",
            "log_level": "INFO",
        }
        here = {"addresses": {"http": f"unix://{self.socket} 127.0.0.1"}}
        text = json.dumps({**common, **here, **self.settings}, indent=1)
        (self.folder / "agent.json").write_text(text)

    def environment(self) -> dict[str, str]:
        """One thread at a time is enough for it."""
        return super().environment() | {"GOMAXPROCS": "1"}

    def command(self) -> list[str]:
        """In the foreground."""
        return [*self.program, "agent", "-config-file", str(self.folder / "agent.json")]

    def launch(self) -> None:
        """Start the process where it lives."""
        if self.inside is None:
            super().launch()
        else:
            self.inside.do(super().launch)

    @property
    def socket(self) -> str:
        """Where it can be asked from everywhere."""
        return str(self.folder / "http.sock")

    @property
    def url(self) -> str:
        """As our driver writes it."""
        return f"unix://{self.socket}"

    def ready(self) -> bool:
        """Whether it answers."""
        try:
            return bool(self.members())
        except UNANSWERED:
            return False

    def ask(
        self, path: str, method: str = "GET", timeout: float = 10.0, given: object = None
    ) -> Any:
        """What it answers, None if that is nothing; RuntimeError if it refuses."""
        headers = {"X-Consul-Token": self.token} if self.token else {}
        connection = http.client.HTTPConnection("consul", timeout=timeout)
        connection.sock = socket.socket(socket.AF_UNIX)
        try:
            connection.sock.settimeout(timeout)
            connection.sock.connect(self.socket)
            body = None if given is None else json.dumps(given)
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        if answer.status != 200:
            raise RuntimeError(f"{path}: {answer.status} {text[:200]!r}")
        return json.loads(text) if text else None

    def members(self) -> dict[str, str]:
        """What its own gossip says: alive, failed, left, …"""
        return {each["Name"]: STATUS[each["Status"]] for each in self.ask("/v1/agent/members")}


class Site:
    """The agents of all hosts on all networks, one cluster per network."""

    def __init__(
        self,
        networks: Sequence[str] = NETWORKS,
        controllers: Sequence[str] = CONTROLLERS,
        computes: Sequence[str] = COMPUTES,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """Nothing is made yet. `settings`: of all agents, those of `gossip` unless given."""
        self.networks = tuple(networks)
        self.controllers = tuple(controllers)
        self.hosts = (*controllers, *computes)
        self.cables = Networks(self.hosts, networks)
        self._settings = gossip() if settings is None else settings
        self.agents: dict[tuple[str, str], Agent] = {}

    # the life

    def start(self) -> Self:
        """Everybody sees everybody; nothing stays behind if that does not come to pass."""
        try:
            self.cables.start()
            for network in self.networks:
                for host in self.hosts:
                    self.agents[host, network] = Agent(
                        self._of(host, network), self.cables.inside[host]
                    )
            with ThreadPoolExecutor(len(self.agents)) as pool:
                list(pool.map(Agent.start, self.agents.values()))
            self.whole()
        except BaseException:
            self.close()
            raise
        return self

    def _of(self, host: str, network: str) -> dict[str, Any]:
        servers = [each for each in self.controllers if each != host]
        settings = {
            "node_name": host,
            "datacenter": network,
            "bind_addr": self.cables.address(host, network),
            "ports": {"http": self.port(network), "dns": -1, "serf_wan": -1},
            "retry_join": [self.cables.address(each, network) for each in servers],
            **self._settings,
        }
        if host in self.controllers:
            settings |= {"server": True, "bootstrap_expect": len(self.controllers)}
        return settings

    def port(self, network: str) -> int:
        """Where the agent of a network listens on the loopback of its host."""
        return FIRST_PORT + self.networks.index(network)

    def close(self) -> None:
        """Leave nothing."""
        try:
            with ThreadPoolExecutor(len(self.agents) or 1) as pool:
                list(pool.map(Agent.kill, self.agents.values()))
                list(pool.map(Agent.close, self.agents.values()))
        finally:
            self.agents = {}
            self.cables.close()

    def __enter__(self) -> Self:
        """Start it."""
        return self.start()

    def __exit__(self, *_: object) -> None:
        """Leave nothing."""
        self.close()

    # what is

    def agent(self, host: str, network: str) -> Agent:
        """One of them."""
        return self.agents[host, network]

    def leader(self, network: str) -> str:
        """The host of the leader that most servers agree on; "" if there is none."""
        votes = [self._leader_by(host, network) for host in self.controllers]
        best = max(votes, key=votes.count)
        return best if votes.count(best) > len(votes) // 2 else ""

    def _leader_by(self, host: str, network: str) -> str:
        agent = self.agent(host, network)
        if not agent.running or agent.frozen:
            return ""
        try:
            address = agent.ask("/v1/status/leader", timeout=5.0).rpartition(":")[0]
        except UNANSWERED:
            return ""
        hosts = [each for each in self.hosts if self.cables.address(each, network) == address]
        return hosts[0] if hosts else ""

    def catalog(self, network: str, by: str = "") -> dict[str, str]:
        """What the leader of a network says of each node: passing or critical."""
        path = "/v1/health/state/any?consistent"
        checks = self.agent(by or self.leader(network) or self.hosts[0], network).ask(path)
        return {each["Node"]: each["Status"] for each in checks if each["CheckID"] == "serfHealth"}

    def lost(self, network: str, *hosts: str) -> bool:
        """Whether the leader says that these are dead."""
        try:
            catalog = self.catalog(network)
        except UNANSWERED:
            return False
        return all(catalog.get(host) == "critical" for host in hosts)

    def healthy(self, network: str) -> bool:
        """Whether the leader and all agents see all of them."""
        try:
            views = [self.agent(host, network).members() for host in self.hosts]
            catalog = self.catalog(network)
        except UNANSWERED:
            return False
        everybody = dict.fromkeys(self.hosts, "alive")
        return catalog == dict.fromkeys(self.hosts, "passing") and all(
            each == everybody for each in views
        )

    # what happens to it

    def cut(self, host: str, *networks: str) -> None:
        """Pull the host's cables of these networks."""
        for network in networks:
            self.cables.unplug(host, network)

    def join(self, host: str, network: str) -> None:
        """Let the host look for the others now: by itself it would take up to half a minute."""
        for other in self.controllers:
            agent = self.agent(other, network)
            if other != host and agent.running and not agent.frozen:
                address = self.cables.address(other, network)
                self.agent(host, network).ask(f"/v1/agent/join/{address}", "PUT", timeout=30.0)
                return

    def mend(self, host: str, *networks: str) -> None:
        """Plug the host in again; returns when everybody has seen it."""
        for network in networks:
            self.cables.plug(host, network)
        self.whole(networks)

    def whole(self, networks: Iterable[str] = (), timeout: float = 90.0) -> None:
        """Mend everything, and wait until all see all."""
        self.cables.mend()
        for network in networks or self.networks:
            eventually(lambda net=network: self._joined(net), timeout, 0.1)  # type: ignore[misc]

    def calm(self, seconds: float = 2.0) -> None:
        """Wait until all see all and go on to: after a cable was mended, gossip of the time before
        goes round once more, and beside a full machine a host may look dead for a moment."""

        def is_calm() -> bool:
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                if not all(map(self.healthy, self.networks)):
                    return False
                time.sleep(0.1)
            return True

        eventually(is_calm)

    def _joined(self, network: str) -> bool:
        for host in self.hosts:
            self.agent(host, network).start()  # one that was told to leave may be about to end
        if self.healthy(network):
            return True
        try:
            for host in self._apart(network):
                self.join(host, network)
        except UNANSWERED:
            return False  # not yet; asked again
        return self.healthy(network)

    def _apart(self, network: str) -> set[str]:
        """Who does not see somebody, or is not seen: somebody who was cut off for a moment has
        often not noticed."""
        apart = set()
        for host in self.hosts:
            members = self.agent(host, network).members()
            missed = {each for each in self.hosts if members.get(each) != "alive"}
            apart |= missed | ({host} if missed else set())
        return apart
