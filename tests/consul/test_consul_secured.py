# SPDX-License-Identifier: Apache-2.0
"""A real agent that wants a token and a certificate."""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.drivers.consul import ConsulMembership, Endpoint
from holdfast.model.errors import DriverError
from tests.conftest import serve
from tests.consul.patient import PatientClock
from tests.processes import eventually, free_port
from tests.servers.base import which
from tests.servers.consul import UNANSWERED, Agent

MASTER = str(uuid.uuid4())
#: What docs/install/consul.md tells operators to allow a monitor.
RULES = 'node_prefix "" { policy = "read" } agent_prefix "" { policy = "read" }'


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, a certificate for the agent, one for us, and an authority that nobody knows."""
    consul = which("consul")
    if consul is None:
        pytest.skip("Consul is not installed")  # the fixture `agent` fails in CI
    folder = tmp_path_factory.mktemp("papers")
    (folder / "other").mkdir()
    for where, words in (
        (folder, ["ca", "create"]),
        (folder / "other", ["ca", "create"]),
        (folder, ["cert", "create", "-server", "-dc=dc1"]),
        (folder, ["cert", "create", "-client", "-dc=dc1"]),
    ):
        subprocess.run([consul, "tls", *words], cwd=where, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def agent(papers: Path) -> Iterator[Agent]:
    port = free_port()
    settings = {
        "node_name": "k1",
        "server": True,
        "bootstrap_expect": 1,
        "bind_addr": "127.0.0.1",
        "addresses": {"https": "127.0.0.1"},
        "ports": {
            **{"http": free_port(), "https": port, "server": free_port(), "serf_lan": free_port()},
            **{"serf_wan": -1, "dns": -1},
        },
        "acl": {
            "enabled": True,
            "default_policy": "deny",
            "tokens": {"master": MASTER, "agent": MASTER},
        },
        "performance": {"raft_multiplier": 1},
        "ca_file": str(papers / "consul-agent-ca.pem"),
        "cert_file": str(papers / "dc1-server-consul-0.pem"),
        "key_file": str(papers / "dc1-server-consul-0-key.pem"),
        "verify_incoming": True,
    }
    made = Secured(settings, token=MASTER)
    made.https = port
    yield from serve(made)


class Secured(Agent):
    """It listens in the clear only where nobody else comes."""

    https = 0

    def prepare(self) -> None:
        """Beside what others say, the socket."""
        self.settings = {
            **self.settings,
            "addresses": {"https": "127.0.0.1", "http": f"unix://{self.socket}"},
        }
        super().prepare()


@pytest.fixture(scope="module")
def token(agent: Agent) -> str:
    """One that may read nodes and agents, and nothing else."""

    def put(path: str, given: object) -> str:
        def ask() -> str:
            try:
                return json.dumps(agent.ask(path, "PUT", given=given))
            except UNANSWERED as error:
                raise AssertionError(str(error)) from error

        return eventually(ask)

    put("/v1/acl/policy", {"Name": "hostmonitor", "Rules": RULES})
    made = put("/v1/acl/token", {"Policies": [{"Name": "hostmonitor"}]})
    return str(json.loads(made)["SecretID"])


def asking(agent: Agent, papers: Path, token_file: Path, ca: str = "") -> ConsulMembership:
    assert isinstance(agent, Secured)
    door = Endpoint(
        f"https://127.0.0.1:{agent.https}",
        token_file=str(token_file),
        ca_file=str(papers / ca / "consul-agent-ca.pem"),
        cert_file=str(papers / "dc1-client-consul-0.pem"),
        key_file=str(papers / "dc1-client-consul-0-key.pem"),
    )
    return ConsulMembership("manage", door, PatientClock())


def test_with_a_token_that_may_read_and_a_certificate_everything_is_seen(
    agent: Agent, papers: Path, token: str, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text(f"{token}\n")
    asked = asking(agent, papers, file)
    eventually(lambda: _proves(asked))
    assert asked.prove().gossip == {"k1": "up"}
    assert asked.poll(None, 0).states == {}
    asked.close()


def test_another_token_is_found_out_and_a_new_one_needs_no_restart(
    agent: Agent, papers: Path, token: str, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text(str(uuid.uuid4()))
    asked = asking(agent, papers, file)
    with pytest.raises(DriverError, match="403"):
        asked.prove()
    with pytest.raises(DriverError, match="403"):
        asked.poll(None, 0)
    file.write_text(token)
    eventually(lambda: _proves(asked))
    file.unlink()
    with pytest.raises(DriverError, match="No such file"):
        asked.prove()
    file.write_text("\n")
    with pytest.raises(DriverError, match="must have a token in its first line") as caught:
        asked.prove()
    assert token not in str(caught.value)


def test_an_agent_whose_authority_we_do_not_know_gets_no_token(
    agent: Agent, papers: Path, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text(MASTER)
    with pytest.raises(DriverError, match="CERTIFICATE_VERIFY_FAILED"):
        asking(agent, papers, file, ca="other").prove()


def test_without_a_certificate_the_agent_refuses_the_connection(
    agent: Agent, papers: Path, tmp_path: Path
) -> None:
    assert isinstance(agent, Secured)
    ca = str(papers / "consul-agent-ca.pem")
    bare = ConsulMembership(
        "manage", Endpoint(f"https://127.0.0.1:{agent.https}", ca_file=ca), PatientClock()
    )
    with pytest.raises(DriverError, match="manage: the agent at https"):
        bare.prove()


def test_closing_ends_a_waiting_poll_behind_tls(
    agent: Agent, papers: Path, token: str, tmp_path: Path
) -> None:
    import threading

    file = tmp_path / "token"
    file.write_text(token)
    asked = asking(agent, papers, file)
    eventually(lambda: _proves(asked))
    version = asked.poll(None, 0).version
    threading.Timer(0.5, asked.close).start()
    with pytest.raises(DriverError, match="closing"):
        while True:
            asked.poll(version, 100)


@pytest.mark.parametrize("url", ["", "8500", "ftp://x", "http://", "unix://", "http://a:b@c:1"])
def test_an_invalid_address_is_refused_at_once(url: str) -> None:
    with pytest.raises(ValueError, match="http"):
        Endpoint(url)


def _proves(asked: ConsulMembership) -> bool:
    try:
        return bool(asked.prove())
    except DriverError:
        return False
